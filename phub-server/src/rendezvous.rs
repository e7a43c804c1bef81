//! The rendezvous: accepts data-path connections, asks the registry who they are, and gives their
//! links to the cores. Each handshake has a thread of its own, so that one that stalls holds up
//! nobody; their number is bounded.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use fabric::shm::{Accepted, Group, Listener};

use crate::core_thread::Report;
use crate::registry::Registry;

/// A handshake is one message each way on one machine.
const HANDSHAKE_LIMIT: Duration = Duration::from_secs(5);
/// Handshakes at once; the next waits in the listener's backlog.
const MAX_HANDSHAKES: usize = 64;

/// Descriptors ran out: no event says when there are some again, and accept would fail at once.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Starts the accepting thread; it ends when the listener is stopped.
pub(crate) fn start(
    listener: Arc<Listener>,
    group: Arc<Group>,
    registry: std::sync::Weak<Registry>,
) -> std::io::Result<JoinHandle<()>> {
    std::thread::Builder::new().name("phub-rendezvous".into()).spawn(move || {
        let open = Arc::new(AtomicUsize::new(0));
        loop {
            match listener.accept() {
                Ok(None) => return,
                Err(error) => {
                    tracing::warn!(%error, "accepting a worker's connection failed");
                    std::thread::sleep(ACCEPT_PAUSE);
                }
                Ok(Some(accepted)) if open.load(Ordering::Relaxed) >= MAX_HANDSHAKES => {
                    tracing::warn!("{MAX_HANDSHAKES} handshakes are open; one more was turned away");
                    drop(accepted);
                }
                Ok(Some(accepted)) => {
                    let (group, registry) = (Arc::clone(&group), registry.clone());
                    let slot = Slot::take(&open);
                    let spawned =
                        std::thread::Builder::new().name("phub-handshake".into()).spawn(move || {
                            let _slot = slot;
                            handshake(accepted, &group, &registry);
                        });
                    if let Err(error) = spawned {
                        tracing::warn!(%error, "no thread for a worker's handshake");
                    }
                }
            }
        }
    })
}

/// One of the handshakes at once.
struct Slot(Arc<AtomicUsize>);

impl Slot {
    fn take(open: &Arc<AtomicUsize>) -> Self {
        open.fetch_add(1, Ordering::Relaxed);
        Slot(Arc::clone(open))
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

fn handshake(accepted: Accepted, group: &Arc<Group>, registry: &std::sync::Weak<Registry>) {
    let hello = match accepted.hello(HANDSHAKE_LIMIT) {
        Ok(hello) => hello,
        Err(error) => return tracing::warn!(%error, "a connection to the data path came to nothing"),
    };
    let Some(registry) = registry.upgrade() else { return hello.refuse("the hub is stopping") };
    let admission = match registry.admission(hello.token()) {
        Ok(admission) => admission,
        Err(why) => {
            tracing::warn!(why, "a connection to the data path was refused");
            return hello.refuse(&why);
        }
    };
    match hello.welcome(group, &admission.weights, admission.window_bytes, &admission.capacities) {
        Ok(joined) => registry.attach(admission, joined.recv, joined.endpoints),
        Err(error) => {
            // Its token was good for this one connection: nobody else can come in its place.
            let reason = format!("its data path could not be made: {error}");
            registry.report(Report::WorkerGone { job: admission.job, rank: admission.rank, reason });
        }
    }
}
