//! Tests of the ring and the bell under loom: every interleaving, and every value that a weak memory model
//! allows.
//!
//! A loom cell stands for the bytes of a post in a window. These bytes are plain memory, so loom fails a test
//! that accesses a cell without a happens-before.

use std::sync::Arc;

use fabric_loom::bell::{self, Place};
use fabric_loom::ring::{Cells, Consumer, Producer};
use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicU32, Ordering};
use loom::thread;

use heap_cells::HeapCells;

#[path = "../../src/ring/tests/heap_cells.rs"]
mod heap_cells;

fn ring(capacity: u32) -> (Producer<HeapCells>, Consumer<HeapCells>) {
    let cells = HeapCells::new(capacity);
    (Producer::new(cells.clone()), Consumer::new(cells))
}

/// The window bytes of the ring's items: one cell for each item.
struct Window([UnsafeCell<u32>; 3]);

// SAFETY: loom checks each access to a cell; a race fails the test.
unsafe impl Sync for Window {}
// SAFETY: loom checks each access to a cell.
unsafe impl Send for Window {}

impl Window {
    fn new() -> Arc<Self> {
        Arc::new(Window(std::array::from_fn(|_| UnsafeCell::new(0))))
    }

    fn write(&self, item: u32, value: u32) {
        // SAFETY: loom fails the test when another thread may access the cell.
        self.0[item as usize].with_mut(|cell| unsafe { *cell = value });
    }

    fn read(&self, item: u32) -> u32 {
        // SAFETY: loom fails the test when another thread may be writing the cell.
        self.0[item as usize].with(|cell| unsafe { *cell })
    }
}

fn push(producer: &mut Producer<HeapCells>, item: u32) {
    while !producer.push(item).unwrap() {
        thread::yield_now();
    }
}

#[test]
fn every_item_comes_once_whole_and_in_order() {
    loom::model(|| {
        let (mut producer, mut consumer) = ring(2);
        let window = Window::new();
        let written = Arc::clone(&window);
        let writer = thread::spawn(move || {
            for item in 0..3 {
                written.write(item, 10 + item);
                push(&mut producer, item);
            }
            // There are two slots, and item 2 is in the ring. So item 0 was taken, and its bytes are free
            // again.
            written.write(0, 20);
        });
        let mut seen = Vec::new();
        while seen.len() < 3 {
            let taken = consumer.take(2, |item| {
                assert_eq!(window.read(item), 10 + item);
                seen.push(item);
            });
            if taken.unwrap() == 0 {
                thread::yield_now();
            }
        }
        assert_eq!(seen, [0, 1, 2]);
        writer.join().unwrap();
        assert_eq!(consumer.unread(), Ok(0));
    });
}

#[test]
fn a_full_ring_comes_free_again() {
    loom::model(|| {
        let (mut producer, mut consumer) = ring(2);
        assert_eq!([producer.push(0), producer.push(1), producer.push(2)], [Ok(true), Ok(true), Ok(false)]);
        let writer = thread::spawn(move || {
            push(&mut producer, 2);
            push(&mut producer, 3);
            producer
        });
        let mut seen = Vec::new();
        while seen.len() < 3 {
            if consumer.take(1, |item| seen.push(item)).unwrap() == 0 {
                thread::yield_now();
            }
        }
        let mut producer = writer.join().unwrap();
        assert_eq!(producer.push(4), Ok(true), "one of two slots is in use");
        assert_eq!(consumer.take(9, |item| seen.push(item)), Ok(2));
        assert_eq!(seen, [0, 1, 2, 3, 4]);
    });
}

/// The bell at which a port sleeps.
#[derive(Clone)]
struct Bell {
    asleep: Arc<AtomicU32>,
    /// The number of datagrams in the receiver's queue. The kernel's queue has a lock: a thread that takes a
    /// datagram sees everything that its sender did before sending it.
    datagrams: Arc<AtomicU32>,
}

impl Bell {
    fn new() -> Self {
        Bell { asleep: Arc::new(AtomicU32::new(0)), datagrams: Arc::new(AtomicU32::new(0)) }
    }

    /// Flushes as a port does.
    fn flush(&self, producer: &Producer<HeapCells>) {
        bell::published();
        if !producer.due() {
            return;
        }
        match bell::claim_wake(&self.asleep) {
            // A futex wake needs no code here: the sleeper checks the word itself.
            Some(Place::Futex) | None => {}
            Some(Place::Descriptors) => {
                self.datagrams.fetch_add(1, Ordering::Release);
            }
        }
    }

    /// Waits as a port does: sleeps until `ready` returns true, or until a thread wakes the port. A sleeper
    /// that nobody wakes reaches loom's limit of branches, which fails the test.
    fn wait(&self, place: Place, mut ready: impl FnMut() -> bool) {
        bell::announce(&self.asleep, place);
        if !ready() {
            match place {
                Place::Futex => {
                    while self.asleep.load(Ordering::Relaxed) == place as u32 {
                        thread::yield_now();
                    }
                }
                Place::Descriptors => {
                    while self.datagrams.load(Ordering::Acquire) == 0 {
                        thread::yield_now();
                    }
                    self.datagrams.fetch_sub(1, Ordering::Acquire);
                }
            }
        }
        bell::awake(&self.asleep);
    }
}

/// Checks that no consumer sleeps past an item. The producer publishes `items` items, and flushes after each.
/// The consumer sleeps at `place` until all items have arrived.
fn nobody_sleeps_past(items: u32, place: Place) {
    loom::model(move || {
        let (mut producer, mut consumer) = ring(2);
        let bell = Bell::new();
        let rung = bell.clone();
        let writer = thread::spawn(move || {
            for item in 0..items {
                push(&mut producer, item);
                rung.flush(&producer);
            }
        });
        while consumer.unread().unwrap() < items {
            consumer.wake_when(items);
            bell.wait(place, || consumer.unread().unwrap() >= items);
        }
        writer.join().unwrap();
        assert_eq!(consumer.take(9, |_| ()), Ok(items as usize));
    });
}

#[test]
fn nobody_sleeps_past_one_item() {
    nobody_sleeps_past(1, Place::Futex);
    nobody_sleeps_past(1, Place::Descriptors);
}

#[test]
fn nobody_sleeps_past_the_second_item() {
    nobody_sleeps_past(2, Place::Futex);
    nobody_sleeps_past(2, Place::Descriptors);
}

#[test]
fn who_wakes_does_so_where_the_sleeper_is_now() {
    for [earlier, now] in [[Place::Futex, Place::Descriptors], [Place::Descriptors, Place::Futex]] {
        loom::model(move || {
            let (mut producer, mut consumer) = ring(2);
            let bell = Bell::new();
            let rung = bell.clone();
            consumer.wake_when(1);
            let writer = thread::spawn(move || {
                push(&mut producer, 7);
                rung.flush(&producer);
            });
            // A sleep at the place `earlier` ends at once, by its timeout.
            bell::announce(&bell.asleep, earlier);
            bell::awake(&bell.asleep);
            while consumer.unread().unwrap() == 0 {
                consumer.wake_when(1);
                bell.wait(now, || consumer.unread().unwrap() > 0);
            }
            writer.join().unwrap();
        });
    }
}

#[test]
fn the_mark_of_an_earlier_sleep_does_no_harm() {
    loom::model(|| {
        let (mut producer, mut consumer) = ring(2);
        let bell = Bell::new();
        let rung = bell.clone();
        // The port has waited for another ring before, and the waker has ended that wait.
        consumer.wake_when(1 << 30);
        let writer = thread::spawn(move || {
            push(&mut producer, 7);
            rung.flush(&producer);
        });
        bell::announce(&bell.asleep, Place::Futex);
        bell::awake(&bell.asleep);
        while consumer.unread().unwrap() == 0 {
            consumer.wake_when(1);
            bell.wait(Place::Futex, || consumer.unread().unwrap() > 0);
        }
        writer.join().unwrap();
    });
}

#[test]
fn two_producers_of_one_bell_wake_one_sleeper() {
    // Only the place `Futex` is tested. A swap in hardware is atomic, but loom lets another store come
    // between the read and the write of a swap. So in loom, the 0 of a late producer, meant for one sleep,
    // may overwrite the announcement of the next sleep. A sleeper at the futex sees that 0, because it looks
    // at the word. Three threads have too many interleavings to test all: the model has at most three
    // switches away from a thread that could run on.
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let bell = Bell::new();
        let (writers, mut consumers): (Vec<_>, Vec<_>) = (0..2)
            .map(|link| {
                let (mut producer, consumer) = ring(1);
                let rung = bell.clone();
                let writer = thread::spawn(move || {
                    push(&mut producer, link);
                    rung.flush(&producer);
                });
                (writer, consumer)
            })
            .unzip();
        let mut seen = Vec::new();
        while seen.len() < 2 {
            consumers.iter().for_each(|consumer| consumer.wake_when(1));
            bell.wait(Place::Futex, || consumers.iter_mut().any(|consumer| consumer.unread().unwrap() > 0));
            for consumer in &mut consumers {
                consumer.take(1, |item| seen.push(item)).unwrap();
            }
        }
        writers.into_iter().for_each(|writer| writer.join().unwrap());
    });
}
