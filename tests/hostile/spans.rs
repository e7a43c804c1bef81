//! Frames over TCP whose span is not that of their chunk: short, empty, too long, or at another chunk's
//! place. No such frame counts as a push. The sender of such a frame loses its link, and the error names the
//! expected bytes.
//!
//! Workers check the hub's frames in the same way. In these tests, a relay between them and a real hub
//! changes a frame.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::OnceLock;

use fabric::Span;
use fabric::any::Transport;
use fabric::conformance::Watchdog;
use hub_tests::training::Training;
use hub_tests::{config, config_at, hub, join_by_hand, join_request, says};
use pbox_core::control::TransportAddress;
use pbox_core::{ChunkId, Schedule};
use worker_shim::Session;

use super::by_hand::{ByHand, JOB, attack};

const CHUNK: u32 = 3;

/// Posts chunk 3 for round 0 with the span that `wrong` makes of the right span. Returns the right span and
/// the error of the other worker. Another job at the hub has right bits.
fn error_after(schedule: Schedule, wrong: impl FnOnce(Span) -> Span) -> (Span, String) {
    let hub = hub(2);
    let address = hub.address().to_string();
    let beside = Training { rounds: 50, transport: |_| Some(Transport::Tcp), ..Training::small("beside") };
    let mut request = join_request(0, 2);
    request.terms.level.schedule = schedule;
    let victim = || {
        let mut config = config(&hub, JOB, 1, 2);
        config.terms.level.schedule = schedule;
        config
    };
    let mut right = None;
    std::thread::scope(|scope| {
        let beside = scope.spawn(|| beside.run(&address));
        let error = attack(&hub, &request, Transport::Tcp, victim, |attacker: &mut ByHand| {
            let place = *right.insert(attacker.wire.gradient_span(ChunkId(CHUNK)));
            attacker.post(attacker.owner(CHUNK), wrong(place), CHUNK, 0);
        });
        beside.join().expect("the job beside goes on");
        (right.expect("the attack was made"), error)
    })
}

#[test]
fn a_frame_is_exactly_its_chunk() {
    let _watchdog = Watchdog::start();
    let wrongs: [fn(Span) -> Span; 5] = [
        |right| Span { bytes: right.bytes - 4, ..right },
        |right| Span { bytes: 0, ..right },
        |_| Span { offset: 0, bytes: 0 },
        |right| Span { bytes: right.bytes + 64, ..right },
        |right| Span { offset: right.offset - 64, ..right },
    ];
    for wrong in wrongs {
        let (right, error) = error_after(Schedule::default(), wrong);
        let Span { offset, bytes } = wrong(right);
        let seen = format!("a frame of weights of {bytes} bytes for offset {offset} with chunk {CHUNK}");
        let expected = format!("expected {} bytes for offset {}", right.bytes, right.offset);
        says(error, &["worker 0 is gone", &seen, &expected]);
    }
}

/// The hub does not take an empty push for a pull. With this schedule a pull is a frame without bytes, but a
/// pull is valid only after the hub's notice.
#[test]
fn an_empty_push_is_no_pull() {
    let _watchdog = Watchdog::start();
    let (_, error) = error_after(Schedule::KvStore, |_| Span { offset: 0, bytes: 0 });
    says(error, &["worker 0 is gone", "a frame of weights of 0 bytes for offset 0 with chunk 3"]);
}

fn relay(mut from: TcpStream, mut to: TcpStream) {
    let _ = std::io::copy(&mut from, &mut to);
    let _ = to.shutdown(Shutdown::Write);
}

/// Accepts connections, and passes each one on to a new connection to `to`.
fn between(to: SocketAddr, pass_on: fn(TcpStream, TcpStream)) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for client in listener.incoming().map_while(Result::ok) {
            let server = TcpStream::connect(to).unwrap();
            std::thread::spawn(move || pass_on(client, server));
        }
    });
    address
}

/// Relays the hub's data path, but sends the first frame of the hub to another chunk's place.
fn misplaced(client: TcpStream, mut hub: TcpStream) {
    let (mut up, to_hub) = (client.try_clone().unwrap(), hub.try_clone().unwrap());
    std::thread::spawn(move || relay(client, to_hub));
    let (mut welcome, mut header) = ([0; 16], [0; 16]);
    hub.read_exact(&mut welcome).unwrap();
    up.write_all(&welcome).unwrap();
    hub.read_exact(&mut header).unwrap();
    let (offset, _) = header.split_first_chunk_mut().unwrap();
    let right = u64::from_le_bytes(*offset);
    *offset = right.checked_sub(64).unwrap_or(64).to_le_bytes();
    up.write_all(&header).unwrap();
    relay(hub, up);
}

/// Relays the hub's control port, but changes its answers to name another address for the data path.
fn other_address(client: TcpStream, mut hub: TcpStream) {
    let (mut down, to_hub) = (client.try_clone().unwrap(), hub.try_clone().unwrap());
    std::thread::spawn(move || relay(client, to_hub));
    let (real, other) = DATA_PATH.get().unwrap();
    let mut answer = vec![0; 64 << 10];
    while let Ok(bytes @ 1..) = hub.read(&mut answer) {
        let text = String::from_utf8_lossy(&answer[..bytes]).replace(real, other);
        if down.write_all(text.as_bytes()).is_err() {
            return;
        }
    }
    let _ = down.shutdown(Shutdown::Write);
}

/// The real address of the data path, and the address of the same length that workers get.
static DATA_PATH: OnceLock<(String, String)> = OnceLock::new();

#[test]
fn a_worker_takes_no_misplaced_answer() {
    let _watchdog = Watchdog::start();
    let hub = hub(1);
    let reply = join_by_hand(&hub, "unfinished", &join_request(0, 2));
    let tcp = reply.transports.iter().find_map(|each| match each {
        TransportAddress::Tcp { addresses } => Some(addresses[0]),
        _ => None,
    });
    let real = tcp.expect("a hub offers TCP");
    let other = between(real, misplaced);
    DATA_PATH.set((real.to_string(), other.to_string())).unwrap();
    assert_eq!(real.to_string().len(), other.to_string().len(), "the answer's length stays");
    let control = between(hub.address(), other_address);
    let mut config = config_at(&control.to_string(), "job", 0, 1);
    config.transport = Some(Transport::Tcp);
    let mut session = Session::join(config).unwrap();
    let error = session.broadcast_weights(|_, _: &mut [f32]| ()).unwrap_err();
    says(error, &["corrupted the link", "a frame of", "with chunk", ": expected", "bytes for offset"]);
}
