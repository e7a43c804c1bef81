//! Tests of the contract's rules about posts, credit and arrivals: each post arrives once, on its own link,
//! with its bytes.

use std::sync::atomic::{AtomicBool, Ordering};

use super::peer::FOR_EVER;
use super::{Bed, End, Seen, Shape, Watchdog, pair};
use crate::{Arrival, Port, Posted, Until};

/// Checks that the bytes of a span are in the local window when `poll` shows its immediate. The writer runs
/// at the same time as the reader, and chunks are so large that the reader would catch a half-written chunk.
pub fn bytes_before_immediate<B: Bed>(bed: &B) {
    let _watchdog = Watchdog::on(bed.name());
    let shape = Shape { chunk_bytes: 16 << 10, ..Shape::SMALL };
    let (mut near, mut peer) = pair(bed, shape);
    let count = shape.chunks as usize - 1;
    let read = AtomicBool::new(false);
    let (here, there) = std::thread::scope(|scope| {
        let (peer, read) = (&mut *peer, &read);
        let sender = scope.spawn(move || {
            (1..shape.chunks).for_each(|value| peer.insist(0, value));
            while !read.load(Ordering::Relaxed) {
                assert_eq!(peer.poll(), []); // a transport may continue to send during a poll
            }
            peer
        });
        let here = near.collect(count);
        read.store(true, Ordering::Relaxed);
        let peer = sender.join().expect("the peer posts");
        let receiver = scope.spawn(move || peer.collect(count));
        post_all(&mut near, 0, 1..shape.chunks);
        while !receiver.is_finished() {
            assert_eq!(near.poll(), []);
        }
        (here, receiver.join().expect("the peer polls"))
    });
    for seen in here.iter().chain(&there) {
        assert!(seen.whole, "{}: {seen:?} was shown before its bytes", bed.name());
    }
    assert_eq!(values(&here, 0), (1..shape.chunks).collect::<Vec<_>>());
    assert_eq!(values(&there, 0), (1..shape.chunks).collect::<Vec<_>>());
}

/// Checks that every accepted post arrives exactly once. The posts go many times round a small ring, in both
/// directions at once.
pub fn each_post_arrives_once<B: Bed>(bed: &B) {
    let _watchdog = Watchdog::on(bed.name());
    let shape = Shape { capacity: 3, chunks: 300, ..Shape::SMALL };
    let (mut near, mut peer) = pair(bed, shape);
    let mut here = Vec::new();
    let there = std::thread::scope(|scope| {
        let peer = &mut *peer;
        let other = scope.spawn(move || {
            let mut seen = Vec::new();
            for value in 0..shape.chunks {
                while peer.post(0, value) != Posted::Accepted {
                    peer.flush();
                    seen.extend(peer.poll());
                    std::thread::yield_now();
                }
                peer.flush();
            }
            let left = (shape.chunks as usize).saturating_sub(seen.len());
            seen.extend(peer.collect(left));
            seen
        });
        for value in 0..shape.chunks {
            while near.post(0, value) != Posted::Accepted {
                near.port.flush();
                here.extend(near.poll());
                std::thread::yield_now();
            }
            near.port.flush();
        }
        let left = (shape.chunks as usize).saturating_sub(here.len());
        here.extend(near.collect(left));
        other.join().expect("the peer posts and polls")
    });
    here.extend((0..200).flat_map(|_| near.poll())); // the second arrival of a post would come now
    for seen in [here, there] {
        assert_eq!(values(&seen, 0), (0..shape.chunks).collect::<Vec<_>>(), "{}", bed.name());
    }
}

/// Checks that a link holds at least its capacity of posts that the peer has not yet polled. Beyond the
/// capacity, `post` answers `Full` and nothing is lost. After the peer has polled, the same post is accepted.
pub fn full_is_not_an_error<B: Bed>(bed: &B) {
    /// More posts than any transport may buffer for a link of this capacity. Over TCP, Linux 6.18 buffers up
    /// to 36 MiB, which are 2.4 million frames of 16 bytes.
    const TOO_MANY: u32 = 1 << 22;
    let _watchdog = Watchdog::on(bed.name());
    let shape = Shape { capacity: 5, ..Shape::SMALL };
    let (mut near, mut peer) = pair(bed, shape);
    for lap in 0..3 {
        let mut accepted = 0;
        loop {
            if near.signal(0, accepted) != Posted::Accepted {
                near.port.flush(); // not after each post, which would be millions of system calls
                if near.signal(0, accepted) != Posted::Accepted {
                    break;
                }
            }
            accepted += 1;
            assert!(accepted < TOO_MANY, "{}: the link never fills", bed.name());
        }
        assert!(accepted >= shape.capacity, "{}: full after {accepted} posts", bed.name());
        assert_eq!(near.signal(0, accepted), Posted::Full, "{}: lap {lap}", bed.name());

        let mut seen = Vec::new();
        while near.signal(0, accepted) == Posted::Full {
            seen.extend(peer.poll());
            near.poll(); // a transport may take credits or send during a poll
        }
        near.port.flush();
        while seen.len() <= accepted as usize {
            seen.extend(peer.poll());
            near.poll();
        }
        assert_eq!(values(&seen, 0), (0..=accepted).collect::<Vec<_>>(), "{}: lap {lap}", bed.name());
    }
}

/// Checks that an arrival names the link over which it came, at both ends. Also checks that polls for one
/// arrival at a time see all arrivals.
pub fn links_do_not_mix<B: Bed>(bed: &B) {
    let _watchdog = Watchdog::on(bed.name());
    let shape = Shape { peers: 2, links: 3, capacity: 4, ..Shape::SMALL };
    let mut meeting = bed.meet(shape);
    let near = &mut meeting.near;
    near.attach_all();
    let links = shape.near_links();
    // Each post has its own value, link + links * turn, so that no two posts share a chunk.
    let value = |link: usize, turn: usize| (link + links * turn) as u32;
    for turn in 0..4 {
        for link in 0..links {
            near.insist(link, value(link, turn));
            meeting.peers[link / shape.links].insist(link % shape.links, value(link, turn));
        }
    }
    near.port.flush();

    let mut here = Vec::new();
    while here.len() < 4 * links {
        let mut one = [Arrival::default()];
        if near.port.poll(&mut one) == 1 {
            here.push(near.seen(one[0]));
        }
    }
    let name = bed.name();
    for link in 0..links {
        let expected: Vec<u32> = (0..4).map(|turn| value(link, turn)).collect();
        assert_eq!(values(&here, link), expected, "{name}: near link {link}");
    }
    for (number, peer) in meeting.peers.iter_mut().enumerate() {
        let there = peer.collect(4 * shape.links);
        for link in 0..shape.links {
            let expected: Vec<u32> = (0..4).map(|turn| value(number * shape.links + link, turn)).collect();
            assert_eq!(values(&there, link), expected, "{name}: link {link} of peer {number}");
        }
        assert!(there.iter().all(|seen| seen.whole), "{name}: {there:?}");
    }
    assert!(here.iter().all(|seen| seen.whole), "{name}: {here:?}");
}

/// Checks that `flush` sends the posts that were held back: they arrive although the near end does nothing
/// after `flush`.
pub fn flush_makes_visible<B: Bed>(bed: &B) {
    let _watchdog = Watchdog::on(bed.name());
    let (mut near, mut peer) = pair(bed, Shape { links: 2, ..Shape::SMALL });
    for value in 0..10 {
        assert_eq!(near.post(0, value), Posted::Accepted);
        assert_eq!(near.post(1, value), Posted::Accepted);
        near.port.flush();
        let seen = peer.collect(2);
        assert_eq!((values(&seen, 0), values(&seen, 1)), (vec![value], vec![value]), "{}", bed.name());
    }
}

fn post_all<P: Port>(end: &mut End<P>, link: usize, values: impl Iterator<Item = u32>) {
    for value in values {
        end.insist(link, value);
        end.port.flush();
    }
}

/// Returns the values that came over a link. They are sorted, because the contract promises no order.
fn values(seen: &[Seen], link: usize) -> Vec<u32> {
    let mut values: Vec<u32> = seen.iter().filter(|seen| seen.link == link).map(|seen| seen.value).collect();
    values.sort_unstable();
    values
}

/// Checks a link that holds as many bytes as its credit allows. Such a link answers `Full`, and still accepts
/// a post without bytes. When the link has room again, a sleep of its port ends, even if nothing arrives. A
/// transport that holds no bytes is never full.
pub fn full_ends<B: Bed>(bed: &B) {
    let _watchdog = Watchdog::on(bed.name());
    // The posts have more bytes than sockets hold for a peer that does not read.
    let shape = Shape { capacity: 64, chunks: 64, chunk_bytes: 128 << 10, ..Shape::SMALL };
    let (mut near, mut peer) = pair(bed, shape);
    // The credit is less than a post, so the link takes one post at a time.
    near.port.set_credit(near.id(0), Some(1));
    let mut posted = 0;
    while posted < shape.chunks && near.post(0, posted) == Posted::Accepted {
        posted += 1;
        near.port.flush();
    }
    assert!(posted > 0, "{}: a link that holds nothing takes a post of any size", bed.name());
    let mut expected = shape.chunks as usize;
    if posted < shape.chunks {
        assert_eq!(near.signal(0, 0), Posted::Accepted, "{}: a post without bytes needs no room", bed.name());
        near.port.flush();
        expected += 1;
    }
    let seen = std::thread::scope(|scope| {
        let reader = scope.spawn(|| peer.collect(expected));
        while posted < shape.chunks {
            match near.post(0, posted) {
                Posted::Accepted => posted += 1,
                Posted::Full => {
                    near.port.wait(Until::Any, FOR_EVER);
                    assert_eq!(near.poll(), [], "{}: nothing arrives", bed.name());
                }
                Posted::Closed => panic!("{}: the link closed", bed.name()),
            }
            near.port.flush();
        }
        while !reader.is_finished() {
            assert_eq!(near.poll(), []); // a transport may continue to send during a poll
        }
        reader.join().expect("the peer polls")
    });
    let mut values: Vec<u32> = seen.iter().map(|seen| seen.value).collect();
    values.sort_unstable();
    values.dedup();
    assert_eq!(values, (0..shape.chunks).collect::<Vec<_>>(), "{}", bed.name());
}
