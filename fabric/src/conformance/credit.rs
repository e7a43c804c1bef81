//! The bullet about credit.

use super::peer::FOR_EVER;
use super::{Bed, Shape, Watchdog, pair};
use crate::{Port, Posted, Until};

/// A link that holds all that it may answers `Full`, takes a post without bytes all the same, and ends a sleep
/// when it has room again, though nothing arrives. A transport that holds nothing is never full.
pub fn full_ends<B: Bed>(bed: &B) {
    let _watchdog = Watchdog::on(bed.name());
    // More than sockets hold for a peer that does not read.
    let shape = Shape { capacity: 64, chunks: 64, chunk_bytes: 128 << 10, ..Shape::SMALL };
    let (mut near, mut peer) = pair(bed, shape);
    // Less than a post: one at a time.
    near.port.set_credit(near.id(0), Some(1));
    let mut posted = 0;
    while posted < shape.chunks && near.post(0, posted) == Posted::Accepted {
        posted += 1;
        near.port.flush();
    }
    assert!(posted > 0, "{}: a link that holds nothing takes a post of any size", bed.name());
    let mut expected = shape.chunks as usize;
    if posted < shape.chunks {
        assert_eq!(near.signal(0, 0), Posted::Accepted, "{}: no bytes wait for no room", bed.name());
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
            assert_eq!(near.poll(), []); // a transport may send on in here
        }
        reader.join().expect("the peer polls")
    });
    let mut values: Vec<u32> = seen.iter().map(|seen| seen.value).collect();
    values.sort_unstable();
    values.dedup();
    assert_eq!(values, (0..shape.chunks).collect::<Vec<_>>(), "{}", bed.name());
}
