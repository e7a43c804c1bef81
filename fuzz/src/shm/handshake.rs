//! The shared-memory handshake against a peer that sends any message and offers any memory, as a worker or as
//! a hub. A peer that is admitted must have offered everything that is needed.

use std::cell::RefCell;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use arbitrary::{Arbitrary, Unstructured};
use fabric::shm::{Group, fuzzing, group};
use fabric::{PlannedLink, SendWindow, Span};
use rustix::fs::SealFlags;

use super::raw_peer::{CAPACITY, RawPeer, WINDOW, event, hello, memfd, socket_pair, welcome};

/// A timeout that is never reached, because the peer has already sent a message.
const TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Arbitrary, Debug)]
enum Message {
    Any(Vec<u8>),
    WellFormed { send_bytes: u64, ports: u32 },
    Valid,
}

#[derive(Arbitrary, Debug)]
enum Offer {
    /// A memfd with any size and any seals.
    Memory {
        bytes: u32,
        seals: u8,
    },
    Window,
    Bells,
    Rings,
    NoMemfd,
    Event,
}

#[derive(Arbitrary, Debug)]
struct Peer {
    is_hub: bool,
    message: Message,
    offers: Vec<Offer>,
}

/// The end under test.
struct Ours {
    group: Arc<Group>,
    window: SendWindow,
    runs: u32,
    descriptors: usize,
}

thread_local! {
    static OURS: RefCell<Ours> = RefCell::new(Ours {
        group: group(1).expect("a group").0,
        window: SendWindow::new(WINDOW).expect("a window"),
        runs: 0,
        descriptors: 0,
    });
}

/// Runs a handshake. The bytes are the peer's message and offers.
pub fn run(bytes: &[u8]) {
    fuzzing::decode(bytes);
    let Ok(peer) = Peer::arbitrary(&mut Unstructured::new(bytes)) else { return };
    OURS.with_borrow_mut(|ours| {
        shake_hands(ours, &peer);
        ours.runs += 1;
        // Every 512 runs, no descriptor may be left open.
        if ours.runs.is_multiple_of(512) {
            let limit = if ours.descriptors == 0 { usize::MAX } else { ours.descriptors };
            ours.descriptors = open_descriptors(limit);
            assert!(ours.descriptors <= limit, "{} descriptors are open, before {limit}", ours.descriptors);
        }
    });
}

/// Returns the number of open descriptors. Counts again while there are more than `limit`, because the
/// group's watch may hold the last connection for a moment.
fn open_descriptors(limit: usize) -> usize {
    let count = || std::fs::read_dir("/proc/self/fd").expect("/proc").count();
    for _ in 0..10_000 {
        let open = count();
        if open <= limit {
            return open;
        }
        std::thread::yield_now();
    }
    count()
}

fn shake_hands(ours: &Ours, peer: &Peer) {
    let (socket, raw) = socket_pair();
    let message = message_bytes(peer);
    if message.is_empty() {
        return;
    }
    let offers: Vec<OwnedFd> = peer.offers.iter().take(5).map(open_offer).collect();
    raw.send(&message, &offers);
    let joined = if peer.is_hub {
        fuzzing::welcome(&socket, &ours.group, WINDOW, &PlannedLink::of_one_port(&[CAPACITY]))
    } else {
        admit(ours, socket, &raw)
    };
    if let Ok(joined) = joined {
        assert_eq!(joined.endpoints.len(), 1);
        assert!(
            offers.len() == if peer.is_hub { 4 } else { 2 },
            "admitted with {} descriptors",
            offers.len()
        );
        // Reading the whole window must raise no signal.
        joined.recv.touch(Span { offset: 0, bytes: WINDOW });
    }
}

/// Runs the hub's part. A peer that is refused must get a message with the refusal.
fn admit(
    ours: &Ours,
    socket: OwnedFd,
    raw: &RawPeer,
) -> Result<fabric::Joined<fabric::shm::Endpoint>, fabric::shm::ConnectError> {
    let joined = fuzzing::accepted(socket).hello(TIMEOUT).and_then(|hello| {
        hello.welcome(&ours.group, &ours.window, WINDOW, &PlannedLink::of_one_port(&[CAPACITY]))
    });
    let (reply, descriptors) = raw.receive();
    assert_eq!(descriptors.len(), if joined.is_ok() { 4 } else { 0 });
    assert_eq!(reply[8], u8::from(joined.is_err()));
    joined
}

fn message_bytes(peer: &Peer) -> Vec<u8> {
    match (&peer.message, peer.is_hub) {
        (Message::Any(bytes), _) => bytes.iter().copied().take(2000).collect(),
        (&Message::WellFormed { send_bytes, ports }, true) => welcome(send_bytes, ports),
        (&Message::WellFormed { send_bytes, ports }, false) => hello(send_bytes, ports),
        (Message::Valid, true) => welcome(WINDOW as u64, 1),
        (Message::Valid, false) => hello(WINDOW as u64, 1),
    }
}

fn open_offer(offer: &Offer) -> OwnedFd {
    match *offer {
        Offer::Memory { bytes, seals } => {
            memfd(u64::from(bytes), SealFlags::from_bits_truncate(u32::from(seals & 0x1f)))
        }
        Offer::Window => memfd(WINDOW as u64, SealFlags::SHRINK),
        Offer::Bells => memfd(128, SealFlags::SHRINK),
        Offer::Rings => memfd(1024, SealFlags::SHRINK),
        Offer::NoMemfd => std::fs::File::open("/dev/zero").expect("/dev/zero").into(),
        Offer::Event => event(),
    }
}
