//! The shared-memory handshake against a peer that says anything and offers any memory: once as a
//! worker to a hub, once as a hub to a worker. Whoever is let in has offered what is needed.

use std::cell::RefCell;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use arbitrary::{Arbitrary, Unstructured};
use fabric::shm::{Group, fuzzing, group};
use fabric::{SendWindow, Span};
use rustix::fs::SealFlags;

use crate::raw_peer::{CAPACITY, RawPeer, WINDOW, hello, memfd, socket_pair, welcome};

/// For what must not happen: the peer has always said something.
const TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Arbitrary, Debug)]
enum Words {
    Any(Vec<u8>),
    Good { send_bytes: u64, ports: u32 },
    Best,
}

#[derive(Arbitrary, Debug)]
enum Offer {
    /// A memfd of any size and seals.
    Memory {
        bytes: u32,
        seals: u8,
    },
    Window,
    Bells,
    Rings,
    NoMemfd,
}

#[derive(Arbitrary, Debug)]
struct Peer {
    hub: bool,
    words: Words,
    offers: Vec<Offer>,
}

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

/// Any bytes.
pub fn run(bytes: &[u8]) {
    fuzzing::decode(bytes);
    let Ok(peer) = Peer::arbitrary(&mut Unstructured::new(bytes)) else { return };
    OURS.with_borrow_mut(|ours| {
        meet(ours, &peer);
        ours.runs += 1;
        // Now and then: whatever was said, nothing stays open.
        if ours.runs.is_multiple_of(512) {
            let most = if ours.descriptors == 0 { usize::MAX } else { ours.descriptors };
            ours.descriptors = open_descriptors(most);
            assert!(ours.descriptors <= most, "{} descriptors are open, before {most}", ours.descriptors);
        }
    });
}

/// Open descriptors, looked at until they are no more than `most`, or often: the watch of the group may
/// hold the last connection for a moment.
fn open_descriptors(most: usize) -> usize {
    let count = || std::fs::read_dir("/proc/self/fd").expect("/proc").count();
    for _ in 0..10_000 {
        let open = count();
        if open <= most {
            return open;
        }
        std::thread::yield_now();
    }
    count()
}

fn meet(ours: &Ours, peer: &Peer) {
    let (socket, raw) = socket_pair();
    let words = words(peer);
    if words.is_empty() {
        return;
    }
    let offers: Vec<OwnedFd> = peer.offers.iter().take(5).map(offer).collect();
    raw.send(&words, &offers);
    let joined = if peer.hub {
        fuzzing::welcome(&socket, &ours.group, WINDOW, &[CAPACITY])
    } else {
        answer(ours, socket, &raw)
    };
    if let Ok(joined) = joined {
        assert_eq!(joined.endpoints.len(), 1);
        assert!(offers.len() == if peer.hub { 3 } else { 2 }, "let in with {} descriptors", offers.len());
        // Reading all of it raises no signal.
        joined.recv.touch(Span { offset: 0, bytes: WINDOW });
    }
}

/// The hub's part; whoever is turned away is told.
fn answer(
    ours: &Ours,
    socket: OwnedFd,
    raw: &RawPeer,
) -> Result<fabric::shm::Joined, fabric::shm::ConnectError> {
    let joined = fuzzing::accepted(socket)
        .hello(TIMEOUT)
        .and_then(|hello| hello.welcome(&ours.group, &ours.window, WINDOW, &[CAPACITY]));
    let (said, with) = raw.receive();
    assert_eq!(with.len(), if joined.is_ok() { 3 } else { 0 });
    assert_eq!(said[8], u8::from(joined.is_err()));
    joined
}

fn words(peer: &Peer) -> Vec<u8> {
    match (&peer.words, peer.hub) {
        (Words::Any(bytes), _) => bytes.iter().copied().take(2000).collect(),
        (&Words::Good { send_bytes, ports }, true) => welcome(send_bytes, ports),
        (&Words::Good { send_bytes, ports }, false) => hello(send_bytes, ports),
        (Words::Best, true) => welcome(WINDOW as u64, 1),
        (Words::Best, false) => hello(WINDOW as u64, 1),
    }
}

fn offer(offer: &Offer) -> OwnedFd {
    match *offer {
        Offer::Memory { bytes, seals } => {
            memfd(u64::from(bytes), SealFlags::from_bits_truncate(u32::from(seals & 0x1f)))
        }
        Offer::Window => memfd(WINDOW as u64, SealFlags::SHRINK),
        Offer::Bells => memfd(128, SealFlags::SHRINK),
        Offer::Rings => memfd(1024, SealFlags::SHRINK),
        Offer::NoMemfd => std::fs::File::open("/dev/zero").expect("/dev/zero").into(),
    }
}
