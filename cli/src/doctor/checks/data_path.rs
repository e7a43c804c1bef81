//! The data paths without RDMA: a trial of shared memory from handshake to arrival, and the addresses for
//! TCP.

use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener};
use std::time::{Duration, Instant};

use fabric::{Arrival, Imm, PlannedLink, Port as _, Posted, SendWindow, Span, Until, WindowError, shm};
use phub_server::HubSettings;

use super::control_port::Seen;
use crate::doctor::check::Check;

/// The timeout of each step of the handshake, and of each arrival.
const PATIENCE: Duration = Duration::from_secs(1);
/// The size of each window: a huge page.
const WINDOW: usize = 2 << 20;

/// The reason why shared memory does not work.
#[derive(Debug, thiserror::Error)]
enum ShmError {
    #[error(transparent)]
    Window(#[from] WindowError),
    #[error(transparent)]
    Connect(#[from] shm::ConnectError),
    #[error("making ports: {0}")]
    System(#[from] std::io::Error),
    #[error("the bytes of one end did not arrive at the other end within {PATIENCE:?}")]
    Silent,
}

/// Connects a hub and a worker in this process over shared memory: sealed memfds, the socket that passes them, and
/// rings.
pub(crate) fn shared_memory() -> Check {
    const NAME: &str = "shared memory";
    match try_shared_memory() {
        Ok(()) => Check::pass(NAME, "memfds, an abstract socket and rings work between a hub and a worker"),
        Err(error @ ShmError::Connect(shm::ConnectError::Unshared(_))) => Check::warn(
            NAME,
            error.to_string(),
            "allow memfd_create (a container's seccomp profile may refuse it); until then workers of this machine use TCP",
        ),
        Err(error) => Check::fail(
            NAME,
            error.to_string(),
            "allow memfd_create, its seals, and abstract Unix sockets (docker run --security-opt \
             seccomp=unconfined shows whether the container's seccomp profile refuses them); or give --transports tcp",
        ),
    }
}

fn try_shared_memory() -> Result<(), ShmError> {
    let (hub_group, mut hub_ports) = shm::group(1)?;
    let (worker_group, mut worker_ports) = shm::group(1)?;
    let (weights, gradients) = (SendWindow::new(WINDOW)?, SendWindow::new(WINDOW)?);
    if let Some(why) = worker_group.unshared() {
        return Err(shm::ConnectError::Unshared(why).into());
    }
    let listener = shm::Listener::bind(&shm::Listener::new_address()?)?;
    let address = listener.address();
    let (hub, worker) = std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("phub-doctor".into());
        let worker = thread.spawn_scoped(scope, || {
            shm::connect(
                address,
                [0; 16],
                &worker_group,
                &gradients,
                WINDOW,
                &PlannedLink::of_one_port(&[1]),
                PATIENCE,
            )
        })?;
        let hub = listener.accept().and_then(|accepted| {
            let hello = accepted.expect("nobody stops the listener").hello(PATIENCE)?;
            hello.welcome(&hub_group, &weights, WINDOW, &PlannedLink::of_one_port(&[1]))
        });
        if hub.is_err() {
            listener.stop();
        }
        Ok::<_, ShmError>((hub, worker.join().expect("connecting does not panic")))
    })?;
    let (mut hub, mut worker) = (hub?, worker?);
    let (mut hub_port, mut worker_port) = (hub_ports.remove(0), worker_ports.remove(0));
    hub_port.attach(hub.endpoints.remove(0));
    let link = worker_port.attach(worker.endpoints.remove(0));
    let posted = worker_port.post(link, Span { offset: 0, bytes: WINDOW }, Imm(1));
    worker_port.flush();
    let deadline = Instant::now() + PATIENCE;
    let mut arrivals = [Arrival::default()];
    while posted == Posted::Accepted && Instant::now() < deadline {
        if hub_port.poll(&mut arrivals) == 1 && arrivals[0].imm == Imm(1) {
            return Ok(());
        }
        hub_port.wait(Until::Any, PATIENCE);
    }
    Err(ShmError::Silent)
}

/// Checks the address for gradients and weights over TCP. `control` is the state of the control port's address.
pub(crate) fn tcp(settings: &HubSettings, control: &Seen) -> Check {
    address("TCP data path", settings.data_path(settings.listen.ip()), control)
}

/// Checks the address for RDMA's handshake.
pub(crate) fn handshake(settings: &HubSettings, control: &Seen) -> Check {
    address("RDMA handshake", settings.handshake(settings.listen.ip()), control)
}

fn address(name: &str, address: SocketAddr, control: &Seen) -> Check {
    let at = match address.port() {
        0 => format!("a free port at {}", address.ip()),
        _ => address.to_string(),
    };
    judge(name, &at, control, TcpListener::bind(address).err())
}

fn judge(name: &str, at: &str, control: &Seen, error: Option<std::io::Error>) -> Check {
    let Some(error) = error else { return Check::pass(name, format!("{at} can be listened at")) };
    match (control, error.kind()) {
        (Seen::Hub(_), ErrorKind::AddrInUse | ErrorKind::AddrNotAvailable) => {
            Check::note(name, format!("{at}: {error}, because a hub runs already"))
        }
        _ => Check::fail(
            name,
            format!("cannot listen at {at}: {error}"),
            "give --data-listen an address of this machine (ip -brief address) and a free port; the next higher port must be free, too (ss -ltnp)",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::check::Verdict;

    #[test]
    fn what_a_running_hub_holds_is_no_failure() {
        let judge = |seen: &Seen, kind: ErrorKind| {
            judge("TCP data path", "10.0.0.1:80", seen, Some(kind.into())).verdict
        };
        let reply =
            r#"{"protocol":1,"version":"1","kernels":"","rss_bytes":0,"transports":[],"cores":[],"jobs":[]}"#;
        let hub = Seen::Hub(serde_json::from_str(reply).unwrap());
        assert_eq!(judge(&hub, ErrorKind::AddrInUse), Verdict::Note);
        assert_eq!(judge(&Seen::Free, ErrorKind::AddrInUse), Verdict::Fail);
        assert_eq!(judge(&hub, ErrorKind::PermissionDenied), Verdict::Fail);
    }

    #[test]
    fn each_transport_has_its_address() {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let data_listen = taken.local_addr().ok();
        let settings = HubSettings { data_listen, ..HubSettings::default() };
        let tcp = tcp(&settings, &Seen::Free);
        assert_eq!((tcp.name.as_str(), tcp.verdict), ("TCP data path", Verdict::Fail));
        let handshake = handshake(&settings, &Seen::Free);
        assert_eq!(handshake.name, "RDMA handshake");
        let next = format!("127.0.0.1:{} ", data_listen.unwrap().port() + 1);
        assert!(handshake.seen.contains(next.trim_end()), "{handshake:?}");
    }
}
