//! The ring against a model, and against a peer that lies.

use std::collections::VecDeque;

use proptest::prelude::*;

use super::{Cells, Consumer, Corrupt, MAX_CAPACITY, Producer};
use crate::ring::sync::{AtomicU32, Ordering};
use heap_cells::HeapCells;

#[path = "tests/heap_cells.rs"]
mod heap_cells;

type Ends = (Producer<HeapCells>, Consumer<HeapCells>, HeapCells);

/// Returns a ring that has carried `start` items, modulo 2^32.
fn ring_at(start: u32, capacity: u32) -> Ends {
    let cells = HeapCells::new(capacity);
    cells.tail().store(start, Ordering::Relaxed);
    cells.head().store(start, Ordering::Relaxed);
    let mut producer = Producer::new(cells.clone());
    let mut consumer = Consumer::new(cells.clone());
    (producer.tail, producer.head_seen) = (start, start);
    (consumer.head, consumer.tail_seen) = (start, start);
    (producer, consumer, cells)
}

/// Draws a position. Half of the positions wrap around in one of the next steps.
fn position() -> impl Strategy<Value = u32> {
    prop_oneof![any::<u32>(), (0u32..40).prop_map(|back| 0u32.wrapping_sub(back))]
}

#[derive(Clone, Debug)]
enum Step {
    Push(u32),
    Take(usize),
    Unread,
    /// The consumer announces a sleep until this many items are unread, and the producer checks whether to
    /// wake it.
    Sleep(u32),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => any::<u32>().prop_map(Step::Push),
        2 => prop_oneof![0usize..20, Just(usize::MAX)].prop_map(Step::Take),
        1 => Just(Step::Unread),
        1 => prop_oneof![1u32..40, Just(1 << 30)].prop_map(Step::Sleep),
    ]
}

proptest! {
    #[test]
    fn a_ring_is_a_queue(
        start in position(),
        log2 in 0u32..5,
        steps in proptest::collection::vec(step(), 0..200),
    ) {
        let capacity = 1 << log2;
        let (mut producer, mut consumer, _) = ring_at(start, capacity);
        let mut model = VecDeque::new();
        for step in steps {
            match step {
                Step::Push(item) => {
                    let room = model.len() < capacity as usize;
                    prop_assert_eq!(producer.push(item), Ok(room));
                    if room {
                        model.push_back(item);
                    }
                }
                Step::Take(limit) => {
                    let mut taken = Vec::new();
                    let count = consumer.take(limit, |item| taken.push(item)).unwrap();
                    prop_assert_eq!(count, taken.len());
                    // `take` may miss items published since its last read of the tail, but only if it already
                    // knows of `limit` earlier items.
                    prop_assert_eq!(count, limit.min(model.len()));
                    prop_assert_eq!(taken, model.drain(..count).collect::<Vec<_>>());
                }
                Step::Unread => prop_assert_eq!(consumer.unread(), Ok(model.len() as u32)),
                Step::Sleep(count) => {
                    consumer.wake_when(count);
                    prop_assert_eq!(producer.due(), model.len() >= count as usize);
                }
            }
        }
    }

    #[test]
    fn a_consumer_survives_any_tail(start in position(), log2 in 0u32..5, tail in position(), near in 0u32..40) {
        let capacity = 1 << log2;
        for tail in [tail, start.wrapping_add(near), start.wrapping_sub(near)] {
            let (mut producer, mut consumer, cells) = ring_at(start, capacity);
            assert_eq!(producer.push(1), Ok(true));
            cells.tail().store(tail, Ordering::Relaxed);
            let claimed = tail.wrapping_sub(start);
            let corrupt = Corrupt { ours: start, theirs: tail, capacity };
            let mut items = 0;
            if claimed > capacity {
                prop_assert_eq!(consumer.unread(), Err(corrupt));
                prop_assert_eq!(consumer.take(usize::MAX, |_| items += 1), Err(corrupt));
                prop_assert_eq!(items, 0);
                prop_assert_eq!(cells.head().load(Ordering::Relaxed), start, "nothing is taken");
            } else {
                prop_assert_eq!(consumer.unread(), Ok(claimed));
                prop_assert_eq!(consumer.take(usize::MAX, |_| items += 1), Ok(claimed as usize));
                prop_assert_eq!(items, claimed);
            }
        }
    }

    #[test]
    fn a_producer_survives_any_head(start in position(), log2 in 0u32..5, head in position(), near in 0u32..40) {
        let capacity = 1 << log2;
        let full = start.wrapping_add(capacity);
        for head in [head, start.wrapping_add(near), start.wrapping_sub(near)] {
            let (mut producer, _, cells) = ring_at(start, capacity);
            for item in 0..capacity {
                prop_assert_eq!(producer.push(item), Ok(true));
            }
            cells.head().store(head, Ordering::Relaxed);
            let used = full.wrapping_sub(head);
            let expected = match used {
                used if used < capacity => Ok(true),
                used if used == capacity => Ok(false),
                _ => Err(Corrupt { ours: full, theirs: head, capacity }),
            };
            prop_assert_eq!(producer.push(9), expected);
        }
    }

    /// Both positions and `wake_at` change at any time. The ends may return anything that the words allow,
    /// but they never panic, and never take more items than the ring holds.
    #[test]
    fn no_sequence_of_lies_does_more_than_lie(
        start in position(),
        log2 in 0u32..5,
        lies in proptest::collection::vec((0u8..6, position(), any::<bool>()), 0..100),
    ) {
        let capacity = 1 << log2;
        let (mut producer, mut consumer, cells) = ring_at(start, capacity);
        for (what, value, relative) in lies {
            let lie = |base: u32| if relative { base.wrapping_add(value % (2 * capacity)) } else { value };
            match what {
                0 => cells.tail().store(lie(consumer.head), Ordering::Relaxed),
                1 => cells.head().store(lie(producer.tail), Ordering::Relaxed),
                2 => cells.wake_at().store(value, Ordering::Relaxed),
                3 => {
                    let _ = producer.push(value);
                    producer.due();
                }
                4 => consumer.wake_when(value),
                _ => {
                    let mut items = 0;
                    let taken = consumer.take(usize::MAX, |_| items += 1);
                    prop_assert!(items <= capacity, "{taken:?}");
                    prop_assert_eq!(taken.unwrap_or(0), items as usize);
                }
            }
        }
    }
}

#[test]
fn a_ring_has_a_power_of_two_of_slots() {
    for wrong in [0, 3, 6, MAX_CAPACITY + 1] {
        let made = std::panic::catch_unwind(|| Producer::new(HeapCells::new(wrong)));
        assert!(made.is_err(), "{wrong} slots");
    }
    for right in [1, 2, 1024] {
        let (mut producer, _, _) = ring_at(0, right);
        let accepted = (0..=right).filter(|&item| producer.push(item).unwrap()).count();
        assert_eq!(accepted, right as usize);
    }
}

#[test]
fn two_threads_pass_many_items_through_few_slots() {
    const ITEMS: u32 = 100_000;
    let (mut producer, mut consumer, _) = ring_at(0u32.wrapping_sub(ITEMS / 2), 8);
    std::thread::scope(|scope| {
        scope.spawn(move || {
            for item in 0..ITEMS {
                while !producer.push(item).unwrap() {
                    std::thread::yield_now();
                }
            }
        });
        let mut expected = 0;
        while expected < ITEMS {
            let taken = consumer.take(5, |item| {
                assert_eq!(item, expected);
                expected += 1;
            });
            if taken.unwrap() == 0 {
                std::thread::yield_now();
            }
        }
    });
}
