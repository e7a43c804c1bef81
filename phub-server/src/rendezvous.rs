//! The rendezvous: accepts data-path connections, asks the registry who they are, and gives their
//! links to the cores. Each handshake has a thread of its own, so that one that stalls holds up
//! nobody; their number is bounded, and a connection beyond it waits in the listener's backlog.

use fabric::PlannedLink;
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use fabric::any::{Accepted, Group, Listener};

use crate::cores::Report;
use crate::registry::{Admission, Registry};

/// Handshakes at once.
const MAX_HANDSHAKES: usize = 64;
/// Half of them may be so patient: a handshake is one message each way on one machine.
const HANDSHAKE_LIMIT: Duration = Duration::from_secs(5);
/// The others are not, so that those who connect and say nothing never hold all of them for long.
const CROWDED_LIMIT: Duration = Duration::from_millis(250);

/// Descriptors ran out: no event says when there are some again, and accept would fail at once.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Starts the accepting thread; it ends when the listener is stopped.
pub(crate) fn start(
    listener: Arc<Listener>,
    group: Group,
    registry: std::sync::Weak<Registry>,
) -> std::io::Result<JoinHandle<()>> {
    std::thread::Builder::new().name("phub-rendezvous".into()).spawn(move || {
        let slots = Arc::new(Slots::default());
        loop {
            match listener.accept() {
                Ok(None) => return,
                Err(error) => {
                    tracing::warn!(%error, "accepting a worker's connection failed");
                    std::thread::sleep(ACCEPT_PAUSE);
                }
                Ok(Some(accepted)) => {
                    let (group, registry) = (group.clone(), registry.clone());
                    let slot = Slot::take(&slots);
                    let spawned =
                        std::thread::Builder::new().name("phub-handshake".into()).spawn(move || {
                            handshake(accepted, slot.limit, &group, &registry);
                            drop(slot);
                        });
                    if let Err(error) = spawned {
                        tracing::warn!(%error, "no thread for a worker's handshake");
                    }
                }
            }
        }
    })
}

/// How many handshakes are under way.
#[derive(Debug, Default)]
struct Slots {
    taken: Mutex<usize>,
    freed: Condvar,
}

/// One of the handshakes at once.
struct Slot {
    slots: Arc<Slots>,
    /// How long its peer may be silent.
    limit: Duration,
}

impl Slot {
    /// Waits for a free one.
    fn take(slots: &Arc<Slots>) -> Self {
        let taken = slots.taken.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let full = |taken: &mut usize| *taken >= MAX_HANDSHAKES;
        let waited = slots.freed.wait_while(taken, full);
        let mut taken = waited.unwrap_or_else(|poisoned| poisoned.into_inner());
        let limit = if *taken < MAX_HANDSHAKES / 2 { HANDSHAKE_LIMIT } else { CROWDED_LIMIT };
        *taken += 1;
        Slot { slots: Arc::clone(slots), limit }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        *self.slots.taken.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) -= 1;
        self.slots.freed.notify_one();
    }
}

fn handshake(accepted: Accepted, limit: Duration, group: &Group, registry: &std::sync::Weak<Registry>) {
    let hello = match accepted.hello(limit) {
        Ok(Some(hello)) => hello,
        Ok(None) => return, // its other connections are yet to come
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
    let Admission { weights, window_bytes, capacities, .. } = &admission;
    let plan = PlannedLink::of_one_port(capacities);
    match hello.welcome(group, weights, *window_bytes, &plan, |window| registry.populate(&admission, window))
    {
        Ok(joined) => registry.attach(admission, joined.recv, joined.endpoints),
        Err(error) => {
            // Its token was good for this one connection: nobody else can come in its place.
            let reason = format!("its data path could not be made: {error}");
            registry.report(Report::WorkerGone { job: admission.job, rank: admission.rank, reason });
        }
    }
}
