//! The rendezvous: accepts connections of the data path, asks the registry whose they are, and gives their links to the
//! cores. Each handshake has its own thread, so that a slow handshake delays nobody else. The number of handshakes is
//! bounded; further connections wait in the listener's backlog.

use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use fabric::PlannedLink;
use fabric::any::{Accepted, Group, Listener};
use tokio::runtime::Handle;
use tokio::sync::Semaphore;

use crate::cores::Report;
use crate::registry::Registry;

/// Handshakes at once.
const MAX_HANDSHAKES: usize = 64;
/// The time limit of half of the handshakes. A handshake is one message each way.
const HANDSHAKE_LIMIT: Duration = Duration::from_secs(5);
/// The time limit of the other half, so that clients that connect and send nothing cannot hold all handshakes for long.
const CROWDED_LIMIT: Duration = Duration::from_millis(250);

/// The pause when descriptors have run out. No event says when there are some again, and accept would fail at once.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Starts the accepting thread. It ends when the listener is stopped.
pub(crate) fn start(
    listener: Arc<Listener>,
    group: Group,
    registry: Weak<Registry>,
    runtime: Handle,
) -> std::io::Result<JoinHandle<()>> {
    std::thread::Builder::new().name("phub-rendezvous".into()).spawn(move || {
        let slots = Arc::new(Semaphore::new(MAX_HANDSHAKES));
        loop {
            match listener.accept() {
                Ok(None) => return,
                Err(error) => {
                    tracing::warn!(%error, "accepting a worker's connection failed");
                    std::thread::sleep(ACCEPT_PAUSE);
                }
                Ok(Some(accepted)) => {
                    let (group, registry) = (group.clone(), registry.clone());
                    let slot = runtime.block_on(Arc::clone(&slots).acquire_owned());
                    let is_crowded = slots.available_permits() < MAX_HANDSHAKES / 2;
                    let limit = if is_crowded { CROWDED_LIMIT } else { HANDSHAKE_LIMIT };
                    let spawned =
                        std::thread::Builder::new().name("phub-handshake".into()).spawn(move || {
                            handshake(accepted, limit, &group, &registry);
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

fn handshake(accepted: Accepted, limit: Duration, group: &Group, registry: &Weak<Registry>) {
    let hello = match accepted.hello(limit) {
        Ok(Some(hello)) => hello,
        Ok(None) => return, // the peer's other connections have not come yet
        Err(error) => return tracing::warn!(%error, "a connection to the data path failed in its handshake"),
    };
    let Some(registry) = registry.upgrade() else { return hello.refuse("the hub is stopping") };
    let mut admission = match registry.admission(hello.token()) {
        Ok(admission) => admission,
        Err(why) => {
            tracing::warn!(why, "a connection to the data path was refused");
            return hello.refuse(&why);
        }
    };
    let plan = PlannedLink::of_one_port(&admission.cores.capacities);
    let (weights, window_bytes) = (&admission.weights, admission.wire.gradient_window_bytes());
    match hello.welcome(group, weights, window_bytes, &plan, |window| registry.populate(&admission, window)) {
        Ok(joined) => {
            registry.touch(&mut admission, &joined.recv);
            registry.attach(admission, joined.recv, joined.endpoints);
        }
        Err(error) => {
            // The token was good for one connection, so the worker cannot connect again.
            let reason = format!("its data path could not be made: {error}");
            registry.report(Report::WorkerGone { job: admission.job, rank: admission.rank, reason });
        }
    }
}
