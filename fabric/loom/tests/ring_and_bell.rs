//! The ring and the bell under loom: every interleaving, and every value that a weaker machine than
//! ours may show.
//!
//! Loom's cells stand for the window: a post's bytes are plain memory, and loom fails a test that
//! reads or writes them without a happens-before.

use std::sync::Arc;

use fabric_loom::bell;
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

/// Bytes behind items, one cell an item.
struct Window([UnsafeCell<u32>; 3]);

// SAFETY: loom checks each access to a cell; a race fails the test.
unsafe impl Sync for Window {}
// SAFETY: as above.
unsafe impl Send for Window {}

impl Window {
    fn new() -> Arc<Self> {
        Arc::new(Window(std::array::from_fn(|_| UnsafeCell::new(0))))
    }

    fn write(&self, item: u32, value: u32) {
        // SAFETY: loom fails the test when another thread may be at the cell.
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
            // Two slots, and item 2 is in: item 0 was taken, its bytes are free again.
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

/// What a port does in `flush`.
fn flush(producer: &Producer<HeapCells>, asleep: &AtomicU32) {
    bell::published();
    if producer.due() && bell::claim_wake(asleep) {
        // The futex wakes who sleeps while the word is set; here the sleeper looks by itself.
    }
}

/// What a port does in `wait`: sleeps until `ready`, or woken. A sleeper whom nobody wakes runs
/// into loom's limit of branches, which fails the test.
fn wait(asleep: &AtomicU32, mut ready: impl FnMut() -> bool) {
    bell::announce(asleep);
    if !ready() {
        while asleep.load(Ordering::Relaxed) == 1 {
            thread::yield_now();
        }
    }
    bell::awake(asleep);
}

/// A producer publishes `items`, flushing after each; a consumer sleeps until all are there.
fn nobody_sleeps_past(items: u32) {
    loom::model(move || {
        let (mut producer, mut consumer) = ring(2);
        let asleep = Arc::new(AtomicU32::new(0));
        let bell = Arc::clone(&asleep);
        let writer = thread::spawn(move || {
            for item in 0..items {
                push(&mut producer, item);
                flush(&producer, &bell);
            }
        });
        while consumer.unread().unwrap() < items {
            consumer.wake_when(items);
            wait(&asleep, || consumer.unread().unwrap() >= items);
        }
        writer.join().unwrap();
        assert_eq!(consumer.take(9, |_| ()), Ok(items as usize));
    });
}

#[test]
fn nobody_sleeps_past_one_item() {
    nobody_sleeps_past(1);
}

#[test]
fn nobody_sleeps_past_the_second_item() {
    nobody_sleeps_past(2);
}

#[test]
fn the_mark_of_an_earlier_sleep_does_no_harm() {
    loom::model(|| {
        let (mut producer, mut consumer) = ring(2);
        let asleep = Arc::new(AtomicU32::new(0));
        let bell = Arc::clone(&asleep);
        // It waited for another ring before, and was woken for that.
        consumer.wake_when(1 << 30);
        let writer = thread::spawn(move || {
            push(&mut producer, 7);
            flush(&producer, &bell);
        });
        bell::announce(&asleep);
        bell::awake(&asleep);
        while consumer.unread().unwrap() == 0 {
            consumer.wake_when(1);
            wait(&asleep, || consumer.unread().unwrap() > 0);
        }
        writer.join().unwrap();
    });
}

#[test]
fn two_producers_of_one_bell_wake_one_sleeper() {
    // Three threads have too many interleavings to see them all: those with at most three switches
    // away from a thread that could run on.
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let asleep = Arc::new(AtomicU32::new(0));
        let (writers, mut consumers): (Vec<_>, Vec<_>) = (0..2)
            .map(|link| {
                let (mut producer, consumer) = ring(1);
                let bell = Arc::clone(&asleep);
                let writer = thread::spawn(move || {
                    push(&mut producer, link);
                    flush(&producer, &bell);
                });
                (writer, consumer)
            })
            .unzip();
        let mut seen = Vec::new();
        while seen.len() < 2 {
            consumers.iter().for_each(|consumer| consumer.wake_when(1));
            wait(&asleep, || consumers.iter_mut().any(|consumer| consumer.unread().unwrap() > 0));
            for consumer in &mut consumers {
                consumer.take(1, |item| seen.push(item)).unwrap();
            }
        }
        writers.into_iter().for_each(|writer| writer.join().unwrap());
    });
}
