//! The rendezvous: accepts connections of the data path, asks the registry for their owners, and gives their links to
//! the cores. Each handshake has its own thread, so that a slow handshake delays no other handshake.
//!
//! ```text
//!   accept -> waiting room: hello -> token proven? -> gathered: all links there? -> welcome -> cores
//!             64, the oldest goes    else refused    10 s, then the worker is     64 at once
//!                                                    lost, with the links named
//! ```
//!
//! Only a client that the control port has admitted has a token, because each join gives a token.

use std::os::fd::AsFd;
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use coordinator::Token;
use fabric::FrameRule;
use fabric::any::{Accepted, Gathered, Group, Hello, Listener};
use hub_threads::Report;
use hub_threads::alarm::guarded;
use pbox_core::Expected;
use tokio::runtime::Handle;
use tokio::sync::Semaphore;

use crate::lanes;
use crate::log_limiter::LogLimiter;
use crate::registry::{Registry, STOPS};
use crate::waiting_room::{Place, WaitingRoom};

/// The most workers for which windows (memory for links) are made at the same time.
const MAX_WELCOMES: usize = 64;
/// The time limit for each message of a handshake.
const HANDSHAKE_LIMIT: Duration = Duration::from_secs(5);
/// The longest time from a worker's first connection to its last connection.
const GATHER_LIMIT: Duration = Duration::from_secs(10);

/// The pause before the next accept when there are no free descriptors. No event says when a descriptor
/// is free again, and accept would fail at once.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The most handshake threads of one listener. While there are this many threads, no more connections are accepted.
/// Threads may be busy with closing descriptors that strangers sent.
const MAX_THREADS: usize = 4096;

/// The state that the handshakes of one listener share.
struct Rendezvous {
    group: Group,
    registry: Weak<Registry>,
    runtime: Handle,
    welcomes: Semaphore,
    not_accepted: LogLimiter,
    failed: LogLimiter,
    refused: LogLimiter,
}

/// Starts the accepting thread. It ends when the listener is stopped.
pub(crate) fn start(
    listener: Arc<Listener>,
    group: Group,
    registry: Weak<Registry>,
    runtime: Handle,
) -> std::io::Result<JoinHandle<()>> {
    let shared = Arc::new(Rendezvous {
        group,
        registry,
        runtime,
        welcomes: Semaphore::new(MAX_WELCOMES),
        not_accepted: LogLimiter::default(),
        failed: LogLimiter::default(),
        refused: LogLimiter::default(),
    });
    std::thread::Builder::new().name("phub-rendezvous".into()).spawn(guarded(move || {
        let room = Arc::new(WaitingRoom::default());
        loop {
            while Arc::strong_count(&shared) > MAX_THREADS {
                std::thread::sleep(ACCEPT_PAUSE);
            }
            let accepted = match listener.accept() {
                Ok(None) => return,
                Ok(Some(accepted)) => room
                    .enter(accepted.as_fd())
                    .map(|place| (accepted, place))
                    .map_err(|error| error.to_string()),
                Err(error) => Err(error.to_string()),
            };
            let begun = accepted.and_then(|(accepted, place)| {
                let shared = Arc::clone(&shared);
                let thread = std::thread::Builder::new().name("phub-handshake".into());
                thread
                    .spawn(guarded(move || shared.handshake(accepted, place)))
                    .map_err(|error| error.to_string())
            });
            if let Err(error) = begun {
                if let Some(times) = shared.not_accepted.count() {
                    tracing::warn!(times, error, "data path: cannot accept a connection");
                }
                std::thread::sleep(ACCEPT_PAUSE);
            }
        }
    }))
}

impl Rendezvous {
    /// Handles the handshake of one connection. If a stranger sent descriptors with its `hello`, they are
    /// closed here. Closing may take long, so no lock may be held for which other threads wait.
    fn handshake(&self, accepted: Accepted, place: Place) {
        let mut hello = match accepted.hello_then(HANDSHAKE_LIMIT, || drop(place)) {
            Ok(hello) => hello,
            Err(error) => return self.say_failed(&error),
        };
        // The token is checked before anything of the connection is kept.
        let known = match self.registry.upgrade() {
            Some(registry) => {
                hello.identify(|name| registry.token_named(name).map(|token| token.0));
                registry.expects(Token(hello.token()))
            }
            None => Err(STOPS.into()),
        };
        if let Err(why) = known {
            return self.refuse(hello, &why);
        }
        match hello.gather() {
            Ok(Gathered::Whole(hello)) => self.welcome(hello),
            Ok(Gathered::Waits(None)) => {}
            Ok(Gathered::Waits(Some(pending))) => {
                let token = pending.token();
                let waited = pending.wait(GATHER_LIMIT);
                if let (Err(error), Some(registry)) = (waited, self.registry.upgrade())
                    && let Ok((job, rank)) = registry.expects(Token(token))
                {
                    let reason = format!("its data path could not be made: {error}");
                    registry.report(Report::WorkerGone { job, rank, reason, by_itself: true });
                }
            }
            Err(error) => self.say_failed(&error),
        }
    }

    /// Makes the windows and links of a worker whose connections have all arrived.
    fn welcome(&self, hello: Hello) {
        let Some(registry) = self.registry.upgrade() else { return self.refuse(hello, STOPS) };
        let Ok(_turn) = self.runtime.block_on(self.welcomes.acquire()) else { return };
        let admission = match registry.admission(Token(hello.token())) {
            Ok(admission) => admission,
            Err(why) => return self.refuse(hello, &why),
        };
        self.group.rdma().into_iter().for_each(lanes::mend);
        let (weights, window_bytes) = (&admission.weights, admission.wire.gradient_window_bytes());
        let placed = |window: &_| registry.populate(&admission, window);
        let again = || registry.readmit(&admission);
        match hello.welcome(&self.group, weights, window_bytes, &admission.cores.links, placed, again) {
            Ok(mut joined) => {
                let placement = Arc::new(admission.cores.placement.clone());
                for (core, endpoint) in joined.endpoints.iter_mut().enumerate() {
                    let rule = Expected::of_member(&admission.wire, admission.rank).on_core(&placement, core);
                    endpoint.obey(|| -> Box<dyn FrameRule> { Box::new(rule) });
                    if admission.relinks {
                        endpoint.end_with_port();
                    }
                }
                registry.touch(&admission, &joined.recv);
                registry.attach(admission, joined.recv, joined.endpoints);
            }
            Err(error) if error.is_unreachable() => {
                let rank = admission.rank;
                tracing::warn!(rank, %error, "a worker cannot connect by this transport, and may try another transport");
            }
            Err(error) => {
                // The token was valid for one connection, so the worker cannot connect again.
                let reason = format!("its data path could not be made: {error}");
                let (job, rank) = (admission.job, admission.rank);
                registry.report(Report::WorkerGone { job, rank, reason, by_itself: true });
            }
        }
    }

    fn refuse(&self, hello: Hello, why: &str) {
        if let Some(times) = self.refused.count() {
            tracing::warn!(times, why, "a connection to the data path was refused");
        }
        hello.refuse(why);
    }

    fn say_failed(&self, error: &fabric::any::ConnectError) {
        if let Some(times) = self.failed.count() {
            tracing::warn!(times, %error, "a connection to the data path failed in its handshake");
        }
    }
}
