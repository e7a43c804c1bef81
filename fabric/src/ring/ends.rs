//! A ring of 32-bit immediates between one producer and one consumer, usually in two processes, and the bell that
//! wakes a consumer that sleeps.
//!
//! ```text
//!   head                    tail            wake_at
//!     |  taken by consumer    |  published      |  the position that wakes a sleeping
//!     v                       v  by producer    v  consumer when it is published
//!   ..[ unread .............. ][ free .......... ]..     positions are free-running u32
//! ```
//!
//! The code is safe code over atomics. The caller provides the memory of the cells (a memfd, the heap, loom)
//! through [`Cells`]. The consumer checks the producer's tail, and the producer checks the consumer's head. A
//! value that no correct peer writes is the error [`Corrupt`], never an index out of bounds.

use std::fmt;

use super::sync::{AtomicU32, Ordering};

#[cfg(test)]
#[path = "tests.rs"] // so that rustfmt finds it from ../../loom, too
mod tests;

/// The shared words of one ring.
pub trait Cells {
    /// Returns the position after the last published item. The producer writes it.
    fn tail(&self) -> &AtomicU32;
    /// Returns the position after the last taken item. The consumer writes it.
    fn head(&self) -> &AtomicU32;
    /// Returns the position at which the tail wakes a sleeping consumer. The consumer writes it.
    fn wake_at(&self) -> &AtomicU32;
    /// Returns the items. Their number is a power of two, at most [`MAX_CAPACITY`].
    fn slots(&self) -> &[AtomicU32];
}

/// The capacity of the largest ring: 16 Mi posts in flight. Positions of 32 bits would allow 2^31.
pub const MAX_CAPACITY: u32 = 1 << 24;

/// The error of a position that no correct peer writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Corrupt {
    /// The position that this end wrote.
    pub ours: u32,
    /// The position that the peer wrote.
    pub theirs: u32,
    /// Number of slots.
    pub capacity: u32,
}

impl fmt::Display for Corrupt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Corrupt { ours, theirs, capacity } = self;
        write!(
            f,
            "in a ring of {capacity} slots, the peer's position {theirs} is impossible with this end's position {ours}"
        )
    }
}

/// The sending end.
pub struct Producer<C> {
    pub(crate) cells: C,
    mask: u32,
    tail: u32,
    head_seen: u32,
}

impl<C: Cells> Producer<C> {
    /// Creates the sending end of a fresh ring.
    pub fn new(cells: C) -> Self {
        let mask = capacity(&cells) - 1;
        Producer { cells, mask, tail: 0, head_seen: 0 }
    }

    /// Publishes `item`. Returns `Ok(false)` if the ring is full.
    pub fn push(&mut self, item: u32) -> Result<bool, Corrupt> {
        if self.tail.wrapping_sub(self.head_seen) > self.mask {
            // [ring-release]: pairs with the consumer's store of head. Slots before that head may be written
            // again.
            self.head_seen = self.cells.head().load(Ordering::Acquire);
            let used = self.tail.wrapping_sub(self.head_seen);
            if used > self.mask + 1 {
                return Err(Corrupt { ours: self.tail, theirs: self.head_seen, capacity: self.mask + 1 });
            }
            if used == self.mask + 1 {
                return Ok(false);
            }
        }
        self.cells.slots()[(self.tail & self.mask) as usize].store(item, Ordering::Relaxed);
        self.tail = self.tail.wrapping_add(1);
        // [ring-publish]: the slot, and the window bytes of the item, become visible before the tail does.
        self.cells.tail().store(self.tail, Ordering::Release);
        Ok(true)
    }

    /// Whether the published items have reached the position at which the consumer wants to be woken. The
    /// answer is only meaningful after a sequentially consistent fence that follows the push (see `bell`).
    pub fn due(&self) -> bool {
        let wake_at = self.cells.wake_at().load(Ordering::Relaxed);
        is_at_or_after(self.tail, wake_at)
    }
}

/// The receiving end.
pub struct Consumer<C> {
    pub(crate) cells: C,
    mask: u32,
    head: u32,
    tail_seen: u32,
}

impl<C: Cells> Consumer<C> {
    /// Creates the receiving end of a fresh ring.
    pub fn new(cells: C) -> Self {
        let mask = capacity(&cells) - 1;
        Consumer { cells, mask, head: 0, tail_seen: 0 }
    }

    /// Takes up to `limit` items in order. Returns how many.
    pub fn take(&mut self, limit: usize, mut item: impl FnMut(u32)) -> Result<usize, Corrupt> {
        let unread = self.unread_at_least(limit)? as usize;
        let count = unread.min(limit);
        if count == 0 {
            return Ok(0);
        }
        for _ in 0..count {
            item(self.cells.slots()[(self.head & self.mask) as usize].load(Ordering::Relaxed));
            self.head = self.head.wrapping_add(1);
        }
        // [ring-release]: the slots are read before the producer may write them again.
        self.cells.head().store(self.head, Ordering::Release);
        Ok(count)
    }

    /// Returns how many items are published and not yet taken.
    pub fn unread(&mut self) -> Result<u32, Corrupt> {
        self.unread_at_least(usize::MAX)
    }

    /// Sets the number of unread items at which a producer wakes this consumer.
    pub fn wake_when(&self, unread: u32) {
        self.cells.wake_at().store(self.head.wrapping_add(unread), Ordering::Relaxed);
    }

    /// Returns the number of unread items. Reads the shared tail only if the last read does not already show
    /// `wanted` items.
    fn unread_at_least(&mut self, wanted: usize) -> Result<u32, Corrupt> {
        let known = self.tail_seen.wrapping_sub(self.head);
        if known as usize >= wanted {
            return Ok(known);
        }
        // [ring-publish]: pairs with the producer's store of tail.
        let tail = self.cells.tail().load(Ordering::Acquire);
        let unread = tail.wrapping_sub(self.head);
        if unread > self.mask + 1 {
            return Err(Corrupt { ours: self.head, theirs: tail, capacity: self.mask + 1 });
        }
        self.tail_seen = tail;
        Ok(unread)
    }
}

fn capacity(cells: &impl Cells) -> u32 {
    let slots = cells.slots().len();
    assert!(
        slots.is_power_of_two() && slots <= MAX_CAPACITY as usize,
        "the number of slots of a ring must be a power of two, at most {MAX_CAPACITY}; this ring has {slots}"
    );
    slots as u32
}

/// Whether free-running `position` is at or after `mark`.
fn is_at_or_after(position: u32, mark: u32) -> bool {
    position.wrapping_sub(mark) < 1 << 31
}

pub mod bell {
    //! The bell: how a producer wakes a consumer that sleeps, without a system call for a consumer that is
    //! awake.
    //!
    //! Each port has one word, which all its producers share. Before the consumer sleeps, it writes the
    //! positions at which it wants to be woken (`wake_at`). Then it sets the word to its place of sleep, and
    //! checks the rings once more. A producer publishes first and reads the word afterwards. Because of the
    //! two fences, at least one end sees what the other end has written. The thread that clears the word
    //! wakes the sleeper, at the place that the word named.
    //!
    //! ```text
    //!   consumer                         producer
    //!   wake_at = ...                    tail = ...          (publish)
    //!   asleep = place                   fence
    //!   fence            [bell]          if asleep && tail reached wake_at:
    //!   nothing unread? sleep there         place = swap(asleep, 0), wake there
    //! ```
    //!
    //! A hostile producer can wake the consumer without a reason, or write a wrong word. The consumer's sleep
    //! has a timeout, so such a producer can only cause a delay.

    use super::super::sync::{AtomicU32, Ordering, fence};

    /// The place where a consumer sleeps. It is the value of the consumer's word, which is 0 while the
    /// consumer is awake.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Place {
        /// The consumer sleeps at the word itself, a futex.
        Futex = 1,
        /// The consumer sleeps at descriptors, one of which takes datagrams of producers.
        Descriptors = 2,
    }

    /// Announces that the consumer is about to sleep at `place`. The caller must set `wake_at` of its rings
    /// before this call, and check the rings once more after it.
    pub fn announce(asleep: &AtomicU32, place: Place) {
        asleep.store(place as u32, Ordering::Relaxed);
        fence(Ordering::SeqCst); // [bell]
    }

    /// Notes that the consumer is awake again. The caller is the consumer, or a thread of its process that is
    /// about to wake the consumer.
    pub fn awake(asleep: &AtomicU32) {
        asleep.store(0, Ordering::Relaxed);
    }

    /// Orders the producer's publications before its read of the word. The producer calls this once per
    /// flush.
    pub fn published() {
        fence(Ordering::SeqCst); // [bell]
    }

    /// Returns the place at which the caller, a producer, must wake the consumer. Returns `None` if the
    /// caller need not wake it. The word is swapped only if the consumer sleeps.
    pub fn claim_wake(asleep: &AtomicU32) -> Option<Place> {
        const DESCRIPTORS: u32 = Place::Descriptors as u32;
        if asleep.load(Ordering::Relaxed) == 0 {
            return None;
        }
        match asleep.swap(0, Ordering::Relaxed) {
            0 => None,
            DESCRIPTORS => Some(Place::Descriptors),
            // A correct peer writes no other value. A wake-up for another value does no harm: if nobody
            // sleeps on the futex, nobody wakes.
            _ => Some(Place::Futex),
        }
    }
}
