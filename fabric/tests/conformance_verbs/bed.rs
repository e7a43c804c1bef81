//! Verbs as a transport of the suite, on the devices that the variable [`DEVICES`] names. All ends are on one
//! machine, and a NIC reaches itself. Without the variable, the tests print that they are skipped.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Once};
use std::time::Duration;

use fabric::conformance::{Joined, Role, Transport};
use fabric::verbs::{Group, GroupOptions, Listener, NicOptions, Port, connect, group, worker_group};
use fabric::{PlannedLink, Receive, SendWindow};

/// The variable that names devices, with commas between them.
const DEVICES: &str = "PHUB_TEST_DEVICE";
/// The timeout of each step of a handshake. The suite's watchdog waits longer.
pub const TIMEOUT: Duration = Duration::from_secs(30);

/// Returns the devices to test on. If the variable names none, prints that once.
pub fn devices() -> Vec<String> {
    static SAID: Once = Once::new();
    let named = std::env::var(DEVICES).unwrap_or_default();
    let devices: Vec<String> = named.split(',').filter(|name| !name.is_empty()).map(str::to_owned).collect();
    if devices.is_empty() {
        SAID.call_once(|| {
            use std::io::Write;
            let what = "skipped: no RDMA device to test on; name one (ibv_devices lists them), e.g.";
            let _ = writeln!(std::io::stderr(), "{what} {DEVICES}=mlx5_0, or make rxe for soft-RoCE");
        });
    }
    devices
}

/// Returns a transport on each device, and a transport on all devices together.
pub fn each_and_all() -> Vec<Verbs> {
    let devices = devices();
    let mut sets: Vec<Verbs> = devices.iter().map(|device| Verbs(vec![device.clone()])).collect();
    if devices.len() > 1 {
        sets.push(Verbs(devices));
    }
    sets
}

/// Verbs on these devices. A worker's only port uses all NICs, and any other port uses one NIC.
#[derive(Clone, Debug)]
pub struct Verbs(pub Vec<String>);

impl Transport for Verbs {
    type Port = Port;
    type Group = Arc<Group>;
    type Listener = Listener;

    fn name(&self) -> String {
        format!("verbs on {}", self.0.join(" and "))
    }

    fn named(name: &str) -> Self {
        let devices = name.strip_prefix("verbs on ").unwrap();
        Verbs(devices.split(" and ").map(str::to_owned).collect())
    }

    fn ports(&self, role: Role, count: usize) -> (Arc<Group>, Vec<Port>) {
        let nics = self.0.iter().map(NicOptions::new);
        match role {
            Role::Worker if count == 1 => {
                let (group, port) = worker_group(&nics.collect::<Vec<_>>(), GroupOptions::default()).unwrap();
                (group, vec![port])
            }
            _ => group(&nics.cycle().take(count).collect::<Vec<_>>(), GroupOptions::default()).unwrap(),
        }
    }

    fn listen() -> (Listener, String) {
        let listener = Listener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).unwrap();
        let address = listener.address().to_string();
        (listener, address)
    }

    fn welcome(
        listener: &Listener,
        group: &Arc<Group>,
        ours: &Arc<SendWindow>,
        bytes: usize,
        plan: &[PlannedLink],
    ) -> ([u8; 16], Joined<Port>) {
        let mut hello = listener.accept().unwrap().unwrap().hello(TIMEOUT).unwrap();
        hello.identify(crate::tokens::token_named);
        let token = hello.token();
        let joined = hello.welcome(group, ours, bytes, plan, |_| (), || ()).unwrap();
        (token, (joined.recv, joined.endpoints))
    }

    fn connect(
        address: &str,
        token: [u8; 16],
        group: &Arc<Group>,
        ours: &Arc<SendWindow>,
        bytes: usize,
        plan: &[PlannedLink],
    ) -> Joined<Port> {
        let address = address.parse().unwrap();
        let joined = connect(address, token, group, ours, Receive::New(bytes), plan, TIMEOUT).unwrap();
        (joined.recv, joined.endpoints)
    }
}
