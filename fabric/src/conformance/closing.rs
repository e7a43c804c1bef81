//! Tests of the contract's rules about the end of a link. The end shows after all arrivals, posts then fail,
//! and a detached link is silent.

use std::time::Duration;

use super::peer::FOR_EVER;
use super::{Bed, End, Meeting, Peer, Shape, Watchdog, pair};
use crate::{CloseReason, Imm, LinkId, Port, Posted, Span, Until};

/// Checks the end of a peer that detaches or dies. Everything that it posted before is still shown. Then
/// `closed` names the link once, and `wait` does not sleep past the end.
pub fn closed_after_arrivals<B: Bed>(bed: &B) {
    let _watchdog = Watchdog::on(bed.name());
    let shape = Shape { links: 2, ..Shape::SMALL };
    for posts in [0, 1, shape.capacity] {
        let post_all = |peer: &mut dyn Peer| {
            (0..posts).for_each(|value| (0..2).for_each(|link| peer.insist(link, value)));
        };
        let expect = |near, links| Ending::new(posts, bed.name()).comes(near, links);

        let (mut near, mut peer) = pair(bed, shape);
        post_all(&mut *peer);
        peer.die();
        expect(&mut near, &[0, 1]);

        // Links that share a connection may close together.
        let (mut near, mut peer) = pair(bed, shape);
        post_all(&mut *peer);
        peer.detach(1);
        expect(&mut near, &[1]);

        // The peer is dead before the near end attaches the links.
        let Meeting { mut near, mut peers } = bed.meet(shape);
        post_all(&mut *peers[0]);
        peers.remove(0).die();
        std::thread::sleep(PROBABLY);
        assert_eq!(near.poll(), []);
        near.attach_all();
        expect(&mut near, &[0, 1]);

        // The near end sleeps when the peer dies.
        let (mut near, mut peer) = pair(bed, shape);
        std::thread::scope(|scope| {
            scope.spawn(move || {
                std::thread::sleep(PROBABLY);
                post_all(&mut *peer);
                peer.die();
            });
            expect(&mut near, &[0, 1]);
        });
    }
}

/// The time in which another thread most likely has done its next step.
const PROBABLY: Duration = Duration::from_millis(5);

/// The record of the arrivals and the closing that an end has seen on its two links.
struct Ending {
    /// The number of posts on each link.
    posts: u32,
    seen: [Vec<u32>; 2],
    closed: [bool; 2],
    name: String,
}

impl Ending {
    fn new(posts: u32, name: String) -> Self {
        Ending { posts, seen: [Vec::new(), Vec::new()], closed: [false; 2], name }
    }

    /// Polls and sleeps until `links` have closed.
    fn comes<P: Port>(mut self, near: &mut End<P>, links: &[usize]) {
        while links.iter().any(|&link| !self.closed[link]) {
            if !self.look(near) {
                near.port.wait(Until::Any, FOR_EVER);
            }
        }
        for _ in 0..50 {
            self.look(near);
        }
    }

    /// Polls the near port once. Returns whether it had arrivals or a closed link.
    fn look<P: Port>(&mut self, near: &mut End<P>) -> bool {
        // `closed` is called before the poll: a link must not close while it still has arrivals to show.
        let closed = near.port.closed();
        if let Some(close) = &closed {
            let link = near.index(close.link);
            assert_eq!(close.reason, CloseReason::PeerGone, "{}", self.name);
            assert!(
                !std::mem::replace(&mut self.closed[link], true),
                "{}: link {link} closed twice",
                self.name
            );
            self.seen[link].sort_unstable();
            assert_eq!(self.seen[link], (0..self.posts).collect::<Vec<_>>(), "{}: link {link}", self.name);
        }
        let arrivals = near.poll();
        for arrival in &arrivals {
            assert!(arrival.whole, "{}: {arrival:?}", self.name);
            assert!(!self.closed[arrival.link], "{}: {arrival:?} after the link closed", self.name);
            self.seen[arrival.link].push(arrival.value);
        }
        closed.is_some() || !arrivals.is_empty()
    }
}

/// Checks that nothing more is shown of a link after `detach`, and that the link's number may be given to the
/// next link.
pub fn detached_is_silent<B: Bed>(bed: &B) {
    let _watchdog = Watchdog::on(bed.name());
    let Meeting { mut near, mut peers } = bed.meet(Shape { peers: 2, ..Shape::SMALL });
    let id = near.attach(0);
    (0..8).for_each(|value| peers[0].insist(0, value));
    while near.port.poll(&mut [Default::default()]) == 0 {} // shows one of eight arrivals
    assert_eq!(near.post(0, 1), Posted::Accepted); // never flushed: must not disturb the next link
    near.detach(0);
    near.port.flush();
    assert_eq!(near.port.poll(&mut [Default::default(); 8]), 0, "{}", bed.name());

    assert_eq!(near.attach(1), id, "{}: the lowest free number", bed.name());
    peers[1].insist(0, 50);
    let mut seen = near.collect(1);
    for _ in 0..200 {
        seen.extend(near.poll());
        assert_eq!(near.port.closed(), None, "{}", bed.name());
    }
    assert_eq!(seen.iter().map(|seen| seen.value).collect::<Vec<_>>(), [50], "{}", bed.name());
    near.insist(1, 51);
    near.port.flush();
    assert_eq!(peers[1].collect(1)[0].value, 51, "{}", bed.name());
}

/// Checks that `post` answers `Closed` on a link that never existed, that is detached, or whose peer is gone.
pub fn post_on_closed_link<B: Bed>(bed: &B) {
    let _watchdog = Watchdog::on(bed.name());
    let nothing = Span { offset: 0, bytes: 0 };
    let (mut near, peer) = pair(bed, Shape { links: 2, ..Shape::SMALL });
    let highest = near.id(0).max(near.id(1));
    for unknown in [LinkId(highest.0 + 1), LinkId(u32::MAX)] {
        assert_eq!(near.port.post(unknown, nothing, Imm(0)), Posted::Closed, "{}", bed.name());
        near.port.detach(unknown);
    }
    peer.die();
    for _ in 0..2 {
        while near.port.closed().is_none() {
            near.poll();
            near.port.wait(Until::Any, FOR_EVER);
        }
    }
    assert_eq!((near.post(0, 0), near.post(1, 0)), (Posted::Closed, Posted::Closed), "{}", bed.name());
    let id = near.id(0);
    near.detach(0);
    assert_eq!(near.port.post(id, nothing, Imm(0)), Posted::Closed, "{}", bed.name());
    near.port.flush();
}
