//! Attacks by networks, machines and operators on a job. An innocent job at the same hubs has right bits all
//! the time. The attacked job continues with right bits, or ends with an error that names the event.

mod altered;
mod hubs;
mod levels;
mod machine;
mod network;

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};

use fabric::any::Transport;
use hub_tests::free_address;
use hub_tests::program::Program;
use hub_tests::relay::Relay;
use hub_tests::training::Training;

use crate::processes::hub::start_hub;

/// The heartbeat limit of these hubs.
const LIMIT_S: u64 = 3;

/// A hub in a process of its own, with a network in front of it.
struct Behind {
    process: Program,
    control: SocketAddr,
    data: SocketAddr,
    relay: Relay,
}

impl Behind {
    fn start(variables: &[(&str, &str)]) -> Self {
        let (control, data) = (free_address(), free_address());
        Behind { process: at(control, data, variables), control, data, relay: Relay::start(control, data) }
    }

    /// Starts another process on the ports of the previous process, which it ends first.
    fn start_again(&mut self, variables: &[(&str, &str)]) {
        self.process.end();
        self.process = at(self.control, self.data, variables);
    }

    /// Returns the address at which the control port is reached without the network.
    fn address(&self) -> String {
        self.control.to_string()
    }
}

fn at(control: SocketAddr, data: SocketAddr, variables: &[(&str, &str)]) -> Program {
    let (control, data, limit) = (control.to_string(), data.to_string(), LIMIT_S.to_string());
    let ours = [
        ("PHUB_LISTEN", control.as_str()),
        ("PHUB_DATA_LISTEN", &data),
        ("PHUB_TRANSPORTS", "shm,tcp"),
        ("PHUB_HEARTBEAT_LIMIT_S", &limit),
        ("PHUB_LATE_WARNING_S", "1"),
    ];
    start_hub(&[&ours, variables].concat()).0
}

/// A guard that marks the end of an attack, with or without a panic.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Makes the attack. During the attack, innocent jobs run one after another at each of these hubs. The last
/// job at each hub begins after the attack.
fn beside<T>(hubs: &[&str], attack: impl FnOnce() -> T) -> T {
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for &hub in hubs {
            let over = &over;
            scope.spawn(move || {
                for time in 0.. {
                    let last = over.load(Ordering::Relaxed);
                    let transport = |rank| (rank == 1).then_some(Transport::Tcp);
                    Training { rounds: 40, transport, ..Training::small(&format!("innocent-{time}")) }
                        .run(hub);
                    if last {
                        return;
                    }
                }
            });
        }
        let _over = Over(&over);
        attack()
    })
}
