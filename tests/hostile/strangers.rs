//! Strangers on the TCP port of the data path: silent connections, hellos with unknown tokens, and workers
//! whose connections never arrive. They cost no other client a place, and each of their connections ends in
//! bounded time.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use fabric::any::Transport;
use fabric::conformance::{Watchdog, alone};
use hub_tests::program::until;
use hub_tests::training::Training;
use hub_tests::usage::{holds, holds_at_rest};
use hub_tests::{
    config, hub, hub_with_limit, join_by_hand, join_request, leave_by_hand, push_all, ready_all, says,
};
use pbox_core::control::{JoinReply, TransportAddress};
use worker_shim::{Session, SessionConfig};

fn tcp_address(reply: &JoinReply) -> SocketAddr {
    let tcp = reply.transports.iter().find_map(|each| match each {
        TransportAddress::Tcp { addresses } => Some(addresses[0]),
        _ => None,
    });
    tcp.expect("a hub offers TCP")
}

fn by_tcp(config: SessionConfig) -> SessionConfig {
    SessionConfig { transport: Some(Transport::Tcp), ..config }
}

fn hello(address: SocketAddr, token: [u8; 16], link: u32, links: u32) -> TcpStream {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(&hello_bytes(token, link, links)).unwrap();
    stream
}

fn hello_bytes(token: [u8; 16], link: u32, links: u32) -> Vec<u8> {
    let mut bytes = [link, links].map(u32::to_le_bytes).as_flattened().to_vec();
    bytes.extend([0, 0, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]); // ports, size of the window, plain frames
    fabric::tcp::fuzzing::hello(token, &bytes)
}

/// Returns the hub's message before it closes the connection.
fn read_message(mut stream: TcpStream) -> String {
    stream.set_read_timeout(Some(Duration::from_secs(25))).unwrap();
    let mut said = Vec::new();
    match stream.read_to_end(&mut said) {
        Err(error) if error.kind() != ErrorKind::ConnectionReset => panic!("the hub says nothing: {error}"),
        _ => String::from_utf8_lossy(&said).into_owned(),
    }
}

fn train_a_round(sessions: &mut [Session]) {
    sessions.iter_mut().for_each(|session| push_all(session).unwrap());
    sessions.iter_mut().for_each(|session| session.wait_all().unwrap());
}

/// Silent connections take the place of no worker. A worker that sends nothing for 4 s is dead, and its
/// heartbeats begin after the data path. If each of the 3000 silent connections held a place for some time,
/// they would delay the data path for longer.
#[test]
fn silent_connections_take_the_place_of_no_worker() {
    alone(|| {
        let _watchdog = Watchdog::start();
        phub_server::raise_open_files();
        let hub = hub_with_limit(2, 4);
        let address = hub.address().to_string();
        let before = holds_at_rest(&address, std::process::id());
        let mut steady = ready_all(2, |rank| by_tcp(config(&hub, "steady", rank, 2)));
        let reply = join_by_hand(&hub, "unfinished", &join_request(0, 2));
        let port = tcp_address(&reply);
        let silent: Vec<TcpStream> = (0..3000).map(|_| TcpStream::connect(port).unwrap()).collect();
        let new = Training { transport: |_| Some(Transport::Tcp), ..Training::small("new") };
        std::thread::scope(|scope| {
            let new = scope.spawn(|| new.run(&address));
            while !new.is_finished() {
                train_a_round(&mut steady);
            }
            new.join().expect("a new job is made, and its bits are right");
        });
        // The last connections may remain until their time is over.
        let first = silent.into_iter().take(2900).map(read_message).collect::<Vec<_>>();
        assert!(first.iter().all(|told| told.is_empty() || told.contains("hung up")), "{first:?}");
        steady.into_iter().for_each(|session| session.leave().unwrap());
        until("all descriptors are closed", || holds(std::process::id()).descriptors <= before.descriptors);
    });
}

#[test]
fn a_token_that_nobody_has_is_refused_before_anything_is_kept() {
    alone(|| {
        let _watchdog = Watchdog::start();
        let hub = hub(2);
        let before = holds_at_rest(&hub.address().to_string(), std::process::id());
        let mut steady = ready_all(2, |rank| by_tcp(config(&hub, "steady", rank, 2)));
        let unfinished = join_by_hand(&hub, "unfinished", &join_request(0, 2));
        let port = tcp_address(&unfinished);
        train_a_round(&mut steady);
        let with_jobs = holds(std::process::id()).descriptors;
        // Each hello says that its connection is the first of two.
        let strangers: Vec<TcpStream> = (0..200).map(|number| hello(port, [number; 16], 0, 2)).collect();
        train_a_round(&mut steady);
        for stranger in strangers {
            says(read_message(stranger), &["the token is not one of this hub's", "join first"]);
        }
        until("nothing is kept of them", || holds(std::process::id()).descriptors <= with_jobs);
        assert_eq!(leave_by_hand(&hub, "unfinished", &unfinished.token), 200);
        steady.into_iter().for_each(|session| session.leave().unwrap());
        until("all descriptors are closed", || holds(std::process::id()).descriptors <= before.descriptors);
    });
}

#[test]
fn a_worker_that_does_not_come_whole_is_named_with_its_links() {
    let _watchdog = Watchdog::start();
    let hub = hub(2);
    let mut steady = ready_all(2, |rank| by_tcp(config(&hub, "steady", rank, 2)));
    let reply = join_by_hand(&hub, "job", &join_request(0, 2));
    let token = authority::unhex(&reply.token).unwrap();
    let port = tcp_address(&reply);
    let links = "the connections of links 0, 3 arrived, but those of links 1, 2 did not arrive within";
    std::thread::scope(|scope| {
        let other = scope.spawn(|| {
            let mut session = Session::join(config(&hub, "job", 1, 2))?;
            session.broadcast_weights(|_, _: &mut [f32]| ())
        });
        let came = [0, 3].map(|link| hello(port, token, link, 4));
        train_a_round(&mut steady);
        came.into_iter().for_each(|stream| says(read_message(stream), &[links]));
        let error = other.join().unwrap().unwrap_err();
        says(error, &["\"job\" failed", "worker 0 is gone: its data path could not be made", links]);
    });
    train_a_round(&mut steady);
    steady.into_iter().for_each(|session| session.leave().unwrap());
    Training::small("after").run(&hub.address().to_string());
}

/// A replayed or made-up hello is refused. Somebody who reads the network's traffic knows the name of a token
/// and whole hellos, but neither the name nor a hello gives access.
#[test]
fn a_hello_that_is_replayed_or_made_up_is_refused() {
    let _watchdog = Watchdog::start();
    let hub = hub(2);
    let reply = join_by_hand(&hub, "job", &join_request(0, 2));
    let token = authority::unhex(&reply.token).unwrap();
    let port = tcp_address(&reply);
    let say = |bytes: &[u8]| {
        let mut stream = TcpStream::connect(port).unwrap();
        stream.write_all(bytes).unwrap();
        stream
    };
    let seen = hello_bytes(token, 0, 2);
    assert!(!seen.windows(16).any(|part| part == token), "a hello shows no token");
    let mut of_link_1 = seen.clone();
    of_link_1[24] = 1;
    says(read_message(say(&of_link_1)), &["not one of this hub's"]);
    // The hub keeps the first of two equal connections, which waits for its other link.
    let (tell, hear) = std::sync::mpsc::channel();
    let both = [say(&seen), say(&seen)];
    for stream in &both {
        let (stream, tell) = (stream.try_clone().unwrap(), tell.clone());
        std::thread::spawn(move || tell.send(read_message(stream)));
    }
    says(hear.recv().unwrap(), &["link 0 of the same worker has a connection already"]);
    assert!(hear.try_recv().is_err(), "the other one stays");
}
