//! The bullets about the end of a link.
#![forbid(unsafe_code)]

use std::time::Duration;

use super::peer::FOR_EVER;
use super::{Bed, End, Meeting, Shape, Watchdog, pair};
use crate::{CloseReason, Imm, LinkId, Port, Posted, Span, Until};

/// When the peer detaches or dies, everything it posted before is still shown, then `closed` names
/// the link once, and `wait` does not sleep past it.
pub fn closed_after_arrivals<B: Bed>(bed: &B) {
    let _watchdog = Watchdog::new(format!("closed_after_arrivals on {}", bed.name()));
    let shape = Shape { links: 2, ..Shape::SMALL };
    for posts in [0, 1, shape.capacity] {
        let (mut near, mut peer) = pair(bed, shape);
        (0..posts).for_each(|value| (0..2).for_each(|link| peer.insist(link, value)));
        peer.die();
        arrivals_then_closed(&mut near, &[posts, posts], &bed.name());

        let (mut near, mut peer) = pair(bed, Shape { links: 1, ..shape });
        (0..posts).for_each(|value| peer.insist(0, value));
        peer.detach(0);
        arrivals_then_closed(&mut near, &[posts], &bed.name());

        // The near end most likely sleeps by the time that the peer dies.
        let (mut near, mut peer) = pair(bed, shape);
        std::thread::scope(|scope| {
            scope.spawn(move || {
                std::thread::sleep(Duration::from_millis(5));
                (0..posts).for_each(|value| peer.insist(0, value));
                peer.die();
            });
            arrivals_then_closed(&mut near, &[posts, 0], &bed.name());
        });
    }
}

/// Sleeps and polls until all links closed, and checks what came before. `expected` is the number
/// of posts on each link.
fn arrivals_then_closed<P: Port>(near: &mut End<P>, expected: &[u32], name: &str) {
    let mut seen = vec![Vec::new(); expected.len()];
    let mut closed = vec![false; expected.len()];
    while closed.contains(&false) {
        // Asked before each poll: a link must not close while it has arrivals to show.
        while let Some(close) = near.port.closed() {
            let link = near.index(close.link);
            assert_eq!(close.reason, CloseReason::PeerGone, "{name}");
            assert!(!std::mem::replace(&mut closed[link], true), "{name}: link {link} closed twice");
            assert_eq!(seen[link].len() as u32, expected[link], "{name}: link {link} closed early");
        }
        let arrivals = near.poll();
        for arrival in &arrivals {
            assert!(arrival.whole, "{name}: {arrival:?}");
            assert!(!closed[arrival.link], "{name}: {arrival:?} after the link closed");
            seen[arrival.link].push(arrival.value);
        }
        if arrivals.is_empty() && closed.contains(&false) {
            near.port.wait(Until::Any, FOR_EVER);
        }
    }
    for (link, values) in seen.iter_mut().enumerate() {
        values.sort_unstable();
        assert_eq!(*values, (0..expected[link]).collect::<Vec<_>>(), "{name}: link {link}");
    }
    for _ in 0..50 {
        assert_eq!((near.poll(), near.port.closed()), (Vec::new(), None), "{name}: after the end");
    }
}

/// After `detach` nothing more is shown of a link, and its number may be given to the next one.
pub fn detached_is_silent<B: Bed>(bed: &B) {
    let _watchdog = Watchdog::new(format!("detached_is_silent on {}", bed.name()));
    let Meeting { mut near, mut peers } = bed.meet(Shape { peers: 2, ..Shape::SMALL });
    let id = near.attach(0);
    (0..8).for_each(|value| peers[0].insist(0, value));
    while near.port.poll(&mut [Default::default()]) == 0 {} // one of eight: the others wait
    assert_eq!(near.post(0, 1), Posted::Accepted); // not flushed: must not disturb later
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

/// `post` on a link that is not open answers `Closed`: one that never was, one detached, one whose
/// peer is gone.
pub fn post_on_closed_link<B: Bed>(bed: &B) {
    let _watchdog = Watchdog::new(format!("post_on_closed_link on {}", bed.name()));
    let nothing = Span { offset: 0, bytes: 0 };
    let (mut near, peer) = pair(bed, Shape { links: 2, ..Shape::SMALL });
    for unknown in [LinkId(2), LinkId(u32::MAX)] {
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
