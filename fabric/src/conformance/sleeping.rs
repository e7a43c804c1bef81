//! Tests of the contract's rules about sleep: a port never sleeps past an arrival that it waits for.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::peer::FOR_EVER;
use super::{Bed, Shape, Watchdog, pair};
use crate::{Port, Until};

/// Checks that `wait` never sleeps past an arrival that it waits for. Both ends sleep again and again without
/// a timeout, and only their posts wake them.
pub fn wait_returns_on_arrival<B: Bed>(bed: &B) {
    const ROUNDS: u32 = 100;
    let _watchdog = Watchdog::on(bed.name());
    let shape = Shape { links: 2, ..Shape::SMALL };
    let batch = shape.capacity;
    let (mut near, mut peer) = pair(bed, shape);
    std::thread::scope(|scope| {
        scope.spawn(|| peer.echo((ROUNDS + ROUNDS * batch) as usize));
        for round in 0..ROUNDS {
            near.insist(round as usize % 2, round);
            near.port.flush();
            while near.poll().is_empty() {
                near.port.wait(Until::Any, FOR_EVER);
            }
        }
        for round in 0..ROUNDS {
            let link = round as usize % 2;
            (0..batch).for_each(|value| near.insist(link, value));
            near.port.flush();
            let mut seen = 0;
            while seen < batch {
                let until = Until::Arrivals { link: near.id(link), count: batch - seen };
                near.port.wait(until, FOR_EVER);
                seen += near.poll().len() as u32;
            }
        }
    });
}

/// Checks that `wait` returns after its timeout when nothing happens, whatever it waits for.
pub fn wait_times_out<B: Bed>(bed: &B) {
    let _watchdog = Watchdog::on(bed.name());
    let (mut near, _peer) = pair(bed, Shape::SMALL);
    assert_eq!(near.poll(), []); // a first wait may return early because of the attach
    let link = near.id(0);
    for until in [Until::Any, Until::Arrivals { link, count: 1 }, Until::Arrivals { link, count: 8 }] {
        for timeout in [Duration::ZERO, Duration::from_nanos(1), Duration::from_millis(2)] {
            near.port.wait(until, timeout);
            assert_eq!(near.poll(), [], "{}: {until:?}", bed.name());
        }
    }
    assert_eq!(near.port.closed(), None);
}

/// Checks that a call of the waker ends the current `wait`, or the next one.
pub fn waker_ends_wait<B: Bed>(bed: &B) {
    let _watchdog = Watchdog::on(bed.name());
    let (mut near, _peer) = pair(bed, Shape::SMALL);
    assert_eq!(near.poll(), []); // a first wait may return early because of the attach
    let until = Until::Arrivals { link: near.id(0), count: 2 };
    let waker = near.port.waker();
    for _ in 0..3 {
        waker.wake_by_ref();
        near.port.wait(until, FOR_EVER); // the next wait
    }
    for _ in 0..100 {
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let (done, waker) = (&done, near.port.waker());
            scope.spawn(move || {
                done.store(true, Ordering::Release);
                waker.wake();
            });
            while !done.load(Ordering::Acquire) {
                near.port.wait(Until::Any, FOR_EVER); // the current wait
            }
        });
    }
    assert_eq!(near.poll(), []);
}
