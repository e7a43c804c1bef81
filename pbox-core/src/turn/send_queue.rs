//! The queue of items that wait for a link, at both ends.
//!
//! Owned by the thread that owns the link. Does not depend on links or time.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

/// Items that wait for a link: lowest priority number first, and at equal priority in the order of their pushes. Allocates
/// nothing after its creation.
#[derive(Clone, Debug)]
pub struct SendQueue<T> {
    heap: BinaryHeap<Waiting<T>>,
    bound: usize,
    pushed: u64,
}

#[derive(Clone, Copy, Debug)]
struct Waiting<T> {
    priority: u32,
    /// The number is unique, so the order is strict.
    number: u64,
    what: T,
}

impl<T> Waiting<T> {
    fn rank(&self) -> (u32, u64) {
        (self.priority, self.number)
    }
}

/// The heap returns its greatest item first.
impl<T> Ord for Waiting<T> {
    fn cmp(&self, other: &Self) -> Ordering {
        other.rank().cmp(&self.rank())
    }
}

impl<T> PartialOrd for Waiting<T> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<T> PartialEq for Waiting<T> {
    fn eq(&self, other: &Self) -> bool {
        self.rank() == other.rank()
    }
}

impl<T> Eq for Waiting<T> {}

impl<T: Copy> SendQueue<T> {
    /// Creates an empty queue for at most `bound` items.
    pub fn new(bound: usize) -> Self {
        SendQueue { heap: BinaryHeap::with_capacity(bound), bound, pushed: 0 }
    }

    /// Adds an item. Returns false if the queue is full.
    #[must_use]
    pub fn push(&mut self, priority: u32, what: T) -> bool {
        if self.heap.len() == self.bound {
            return false;
        }
        self.pushed += 1;
        self.heap.push(Waiting { priority, number: self.pushed, what });
        true
    }

    /// Returns the item that leaves next.
    pub fn first(&self) -> Option<T> {
        self.heap.peek().map(|waiting| waiting.what)
    }

    /// Removes the item that leaves next.
    pub fn pop(&mut self) -> Option<T> {
        self.heap.pop().map(|waiting| waiting.what)
    }

    /// Returns the number of items.
    pub fn len(&self) -> usize {
        self.heap.len()
    }

    /// Removes all items.
    pub fn clear(&mut self) {
        self.heap.clear();
    }

    /// Whether the queue is empty.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.heap.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Compares with a list that is sorted before each look: by priority, and stable.
        #[test]
        fn the_queue_is_a_stable_sort(
            steps in proptest::collection::vec(proptest::option::weighted(0.6, 0u32..5), 1..200),
            bound in 1usize..40,
        ) {
            let mut queue = SendQueue::new(bound);
            let room = queue.heap.capacity();
            let mut reference: Vec<(u32, usize)> = Vec::new();
            for (number, step) in steps.into_iter().enumerate() {
                match step {
                    Some(priority) => {
                        prop_assert_eq!(queue.push(priority, number), reference.len() < bound);
                        if reference.len() < bound {
                            reference.push((priority, number));
                            reference.sort_by_key(|&(priority, _)| priority);
                        }
                    }
                    None => {
                        let expected = (!reference.is_empty()).then(|| reference.remove(0).1);
                        prop_assert_eq!(queue.first(), expected);
                        prop_assert_eq!(queue.pop(), expected);
                    }
                }
                prop_assert_eq!(queue.is_empty(), reference.is_empty());
                prop_assert_eq!(queue.heap.capacity(), room, "no allocation");
            }
        }
    }
}
