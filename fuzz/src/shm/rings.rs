//! A hub's port against a worker that writes anything into the shared words at any time: positions, items,
//! the bell. The port must never panic. It must never show more arrivals than a ring can hold, and must
//! report the closed link at most once.

use std::cell::RefCell;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use arbitrary::{Arbitrary, Unstructured};
use fabric::shm::{Group, Port, fuzzing, group};
use fabric::{Arrival, Imm, LinkId, PlannedLink, Port as _, Posted, SendWindow, Span, Until};
use rustix::fs::SealFlags;
use rustix::io::pwrite;

use super::raw_peer::{CAPACITY, RawPeer, WINDOW, hello, memfd, socket_pair};

const NOTHING: Span = Span { offset: 0, bytes: 0 };
const STEPS: usize = 200;

#[derive(Arbitrary, Debug)]
enum Step {
    /// The peer writes a word of a ring. If `known`, the word is a position or the first slot; otherwise it
    /// is any word.
    Write {
        word: u16,
        known: bool,
        value: u32,
    },
    /// The peer writes its own bell.
    Bell {
        value: u32,
    },
    /// The peer posts as the protocol requires.
    Publish {
        item: u32,
    },
    Post {
        imm: u32,
    },
    Flush,
    Poll {
        room: u8,
    },
    Wait {
        count: u32,
        any: bool,
    },
    Closed,
}

thread_local! {
    static HUB: RefCell<(Arc<Group>, Port, SendWindow)> = RefCell::new({
        let (group, mut ports) = group(1).expect("a group");
        (group, ports.remove(0), SendWindow::new(WINDOW).expect("a window"))
    });
}

/// Interprets the bytes as steps of the peer and of the port.
pub fn run(bytes: &[u8]) {
    HUB.with_borrow_mut(|(group, port, window)| {
        let (link, peer) = join(group, port, window);
        run_steps(port, link, peer, &mut Unstructured::new(bytes));
        port.detach(link);
        assert_eq!(port.post(link, NOTHING, Imm(0)), Posted::Closed);
    });
}

/// The memory that the peer can write.
struct Shared {
    _raw: RawPeer,
    bells: OwnedFd,
    rings: OwnedFd,
    published: u32,
}

fn join(group: &Arc<Group>, port: &mut Port, window: &SendWindow) -> (LinkId, Shared) {
    let (socket, raw) = socket_pair();
    let bells = memfd(128, SealFlags::SHRINK);
    let offers = [memfd(WINDOW as u64, SealFlags::SHRINK), bells.try_clone().expect("a descriptor")];
    raw.send(&hello(WINDOW as u64, 1), &offers);
    let hello = fuzzing::accepted(socket).hello(Duration::from_secs(10)).expect("a good hello");
    let mut joined =
        hello.welcome(group, window, WINDOW, &PlannedLink::of_one_port(&[CAPACITY])).expect("a good window");
    let rings = raw.receive().1.swap_remove(2);
    let link = port.attach(joined.endpoints.remove(0));
    (link, Shared { _raw: raw, bells, rings, published: 0 })
}

fn run_steps(port: &mut Port, link: LinkId, mut peer: Shared, input: &mut Unstructured) {
    let (mut open, mut waiting) = (true, 0);
    for _ in 0..STEPS {
        if input.is_empty() {
            return;
        }
        let Ok(step) = Step::arbitrary(input) else { return };
        match step {
            Step::Write { word, known, value } => peer.write_word(word, known, value),
            Step::Bell { value } => write_u32(&peer.bells, 0, value),
            Step::Publish { item } => peer.publish_item(item),
            Step::Post { imm } => match port.post(link, NOTHING, Imm(imm)) {
                Posted::Accepted => {
                    assert!(open, "a closed link takes no posts");
                    waiting += 1;
                }
                Posted::Full | Posted::Closed => {}
            },
            Step::Flush => port.flush(),
            Step::Poll { room } => {
                let mut arrivals = vec![Arrival::default(); usize::from(room)];
                let count = port.poll(&mut arrivals);
                assert!(count <= CAPACITY as usize, "{count} arrivals from a ring of {CAPACITY}");
                assert!(open || count == 0, "a closed link shows no arrival");
                assert!(arrivals[..count].iter().all(|arrival| arrival.link == link));
            }
            Step::Wait { any: true, .. } => port.wait(Until::Any, Duration::ZERO),
            Step::Wait { count, .. } => port.wait(Until::Arrivals { link, count }, Duration::ZERO),
            Step::Closed => {
                if let Some(closed) = port.closed() {
                    assert_eq!(closed.link, link);
                    assert!(std::mem::replace(&mut open, false), "the link is reported closed twice");
                }
            }
        }
    }
    assert!(waiting <= STEPS);
}

impl Shared {
    /// Writes a word. The up ring has its tail, head, wake_at and slots from byte 0 on, and the down ring
    /// from byte 512 on.
    fn write_word(&mut self, word: u16, known: bool, value: u32) {
        const KNOWN: [u64; 8] = [0, 128, 256, 384, 512, 640, 768, 896];
        let offset = if known { KNOWN[usize::from(word % 8)] } else { u64::from(word) * 4 % 1024 };
        write_u32(&self.rings, offset, value);
    }

    fn publish_item(&mut self, item: u32) {
        write_u32(&self.rings, 384 + u64::from(self.published % CAPACITY) * 4, item);
        self.published = self.published.wrapping_add(1);
        write_u32(&self.rings, 0, self.published);
    }
}

fn write_u32(fd: &OwnedFd, offset: u64, value: u32) {
    pwrite(fd, &value.to_ne_bytes(), offset).expect("the peer's memory");
}
