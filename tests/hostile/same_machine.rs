//! Other users of the machine. They know the names of abstract sockets, and send descriptors. They get no
//! token, and they keep no hub from starting and no worker from joining.

use std::io::Write;
use std::mem::MaybeUninit;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Mutex;
use std::time::Duration;

use fabric::any::Transport;
use fabric::conformance::Watchdog;
use fabric::shm::fuzzing;
use fabric::{LinkPorts, PortId};
use hub_tests::proxy::Proxy;
use hub_tests::{
    config, config_at, describe, free_address, hub, join_by_hand, join_request, push_all, ready_all, says,
    settings, shm_address,
};
use phub_server::{Hub, HubSettings};
use rustix::io::IoSlice;
use rustix::net::{self, AddressFamily, SocketAddrUnix, SocketFlags, SocketType, sockopt};
use worker_shim::{Session, SessionConfig};

fn socket() -> OwnedFd {
    net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap()
}

fn bound(name: &str) -> OwnedFd {
    let socket = socket();
    net::bind(&socket, &SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap()).unwrap();
    net::listen(&socket, 64).unwrap();
    socket
}

fn round(sessions: &mut [Session]) {
    sessions.iter_mut().for_each(|session| push_all(session).unwrap());
    sessions.iter_mut().for_each(|session| session.wait_all().unwrap());
}

#[test]
fn nobody_takes_a_hubs_name_before_it() {
    let _watchdog = Watchdog::start();
    let listen = free_address();
    let _taken = bound(&format!("phub-{}-{}", std::process::id(), listen.port()));
    let hub = Hub::start(&HubSettings { listen, ..settings(1, 30) }).unwrap();
    let reply = join_by_hand(&hub, "job", &join_request(0, 2));
    let other = self::hub(1);
    let of_other = join_by_hand(&other, "job", &join_request(0, 2));
    let random = |name: &str| name.strip_prefix("phub-").unwrap().len() == 32;
    let (own, of_other) = (shm_address(&reply), shm_address(&of_other));
    assert!(random(own) && random(of_other) && own != of_other, "{own} {of_other}");
}

fn impostor_name() -> String {
    format!("phub-impostor-{}", std::process::id())
}

/// The tokens of all joins.
static TOKENS: Mutex<Vec<[u8; 16]>> = Mutex::new(Vec::new());

/// Changes the answer to a join so that it leads to an impostor. In another network namespace, somebody else may
/// have the hub's name and be such an impostor.
fn leads_to_an_impostor(path: &str, answer: &mut serde_json::Value) {
    if !path.ends_with("/join") {
        return;
    }
    let token = answer["token"].as_str().unwrap();
    TOKENS.lock().unwrap().push(authority::unhex(token).unwrap());
    for offer in answer["transports"].as_array_mut().unwrap() {
        if offer.get("machine").is_some() {
            offer["address"] = impostor_name().into();
        }
    }
}

#[test]
fn an_impostor_at_a_hubs_name_sees_no_token_and_the_worker_comes_by_another_transport() {
    let _watchdog = Watchdog::start();
    let hub = hub(2);
    let proxy = Proxy::start(hub.address());
    proxy.rewrites(|_, _| (), leads_to_an_impostor);
    let listener = bound(&impostor_name());
    std::thread::spawn(move || {
        for answer in
            [None, Some(b"nonsense".as_slice()), Some(b"phubshm4\x01I do not know you")].iter().cycle()
        {
            let Ok(accepted) = net::accept_with(&listener, SocketFlags::CLOEXEC) else { return };
            let mut hello = vec![0; 1 << 16];
            let (bytes, _) = net::recv(&accepted, &mut hello, net::RecvFlags::empty()).unwrap();
            let tokens = TOKENS.lock().unwrap();
            let shown = |token: &[u8; 16]| hello[..bytes].windows(16).any(|part| part == token);
            // If the worker shows a token, this server answers with a message about the token, and the worker
            // then does not join.
            let answer =
                if tokens.iter().any(shown) { Some(b"phubshm4\x01a token!".as_slice()) } else { *answer };
            assert!(!tokens.is_empty() && !tokens.iter().any(shown), "a token is shown");
            if let Some(answer) = answer {
                net::send(&accepted, answer, net::SendFlags::NOSIGNAL).unwrap();
            }
        }
    });
    for job in ["hangs-up", "nonsense", "refuses"] {
        let mut sessions = ready_all(1, |rank| config_at(&proxy.address(), job, rank, 1));
        round(&mut sessions);
        let seen = describe(&hub.address().to_string()).jobs.remove(0);
        assert_eq!(seen.members[0].transport.as_deref(), Some("tcp"), "{job}");
        sessions.remove(0).leave().unwrap();
    }
    // A client that wants only shared memory gets the reason.
    let config =
        SessionConfig { transport: Some(Transport::Shm), ..config_at(&proxy.address(), "shm", 0, 1) };
    let error = Session::join(config).map(drop).unwrap_err();
    says(error, &["shm: ", "hung up during the handshake"]);
}

/// Returns a TCP socket whose close takes an hour. It lingers, and its bytes are in flight to a peer that reads
/// nothing.
fn lingering() -> (OwnedFd, impl Sized) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    sockopt::set_socket_recv_buffer_size(&listener, 4096).unwrap();
    let mut socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    sockopt::set_socket_send_buffer_size(&socket, 4096).unwrap();
    let peer = listener.accept().unwrap();
    socket.set_nonblocking(true).unwrap();
    while socket.write(&[0; 1 << 14]).is_ok() {}
    sockopt::set_socket_linger(&socket, Some(Duration::from_secs(3600))).unwrap();
    (socket.into(), (listener, peer))
}

/// Strangers may send sockets that take long to close. Clients that have not identified themselves have 64
/// places, and as many threads that could close such a socket.
#[test]
fn strangers_whose_sockets_linger_hold_nobody_up() {
    let _watchdog = Watchdog::start();
    let hub = hub(2);
    let reply = join_by_hand(&hub, "waits", &join_request(0, 2));
    let name = SocketAddrUnix::new_abstract_name(shm_address(&reply).as_bytes()).unwrap();
    let link = || vec![LinkPorts { joiner: PortId(0), hub: PortId(0) }];
    let mut held = Vec::new();
    for number in 0..100 {
        let (lingers, peer) = lingering();
        let stranger = socket();
        net::connect(&stranger, &name).unwrap();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = net::SendAncillaryBuffer::new(&mut space);
        let fds = [lingers.as_fd()];
        assert!(control.push(net::SendAncillaryMessage::ScmRights(&fds)));
        let bytes = match number % 2 {
            0 => b"no hello".to_vec(),
            _ => fuzzing::hello([number; 16], 4096, 1, link()),
        };
        let flags = net::SendFlags::NOSIGNAL;
        net::sendmsg(&stranger, &[IoSlice::new(&bytes)], &mut control, flags).unwrap();
        held.push((stranger, peer));
    }
    let by_shm = |rank| SessionConfig { transport: Some(Transport::Shm), ..config(&hub, "job", rank, 2) };
    let mut sessions = ready_all(2, by_shm);
    round(&mut sessions);
    sessions.into_iter().for_each(|session| session.leave().unwrap());
    hub.stop("the test ends");
    drop(held);
}
