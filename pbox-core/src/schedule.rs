//! Schedules: in what order parts of a model leave, at both ends of a link; and the queue that they wait in.
//!
//! Plain data and one queue. Knows neither links nor time.
//!
//! | schedule | a unit | order | weights come back |
//! | --- | --- | --- | --- |
//! | `kvstore` | a layer | as pushed | when the worker pulls what the hub has notified it of |
//! | `layerwise` | a layer | as pushed | when the worker may have all of the layer |
//! | `sliced` | a slice | as pushed | chunk by chunk |
//! | `p3` | a slice | first layer first | chunk by chunk, first layer first |

use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::key::KeyId;

/// In what order a job's gradients and weights leave. The same at all its workers and at the hub.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Schedule {
    /// MXNet's KVStore, the baseline of P3's paper: whole layers in the order of their pushes; the hub notifies,
    /// the worker pulls, and only then the weights are sent.
    KvStore,
    /// Whole layers in the order of their pushes, sent back as wholes (wait-free backpropagation).
    Layerwise,
    /// Slices in the order of their pushes, sent back chunk by chunk.
    #[default]
    Sliced,
    /// Slices, the first layer's first, at both ends; within a layer in the order of their pushes (P3, section 4).
    P3,
}

/// A text that names no schedule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("schedule {seen:?}: expected kvstore, layerwise, sliced or p3")]
pub struct NotASchedule {
    seen: String,
}

impl Schedule {
    /// All of them.
    pub const ALL: [Schedule; 4] = [Schedule::KvStore, Schedule::Layerwise, Schedule::Sliced, Schedule::P3];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Schedule::KvStore => "kvstore",
            Schedule::Layerwise => "layerwise",
            Schedule::Sliced => "sliced",
            Schedule::P3 => "p3",
        }
    }

    /// Where a key's parts go in a queue; lower leaves first.
    #[inline]
    pub fn priority(self, key: KeyId) -> u32 {
        if self == Schedule::P3 { key.0 } else { 0 }
    }

    /// Whether a key's chunks on a core are one unit, which is answered as a whole.
    pub fn by_layer(self) -> bool {
        matches!(self, Schedule::KvStore | Schedule::Layerwise)
    }

    /// Whether weights are sent only when they are pulled.
    pub fn pulls(self) -> bool {
        self == Schedule::KvStore
    }
}

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Schedule {
    type Err = NotASchedule;

    fn from_str(text: &str) -> Result<Self, NotASchedule> {
        let found = Schedule::ALL.into_iter().find(|schedule| schedule.name() == text);
        found.ok_or_else(|| NotASchedule { seen: text.to_owned() })
    }
}

/// What waits for a link: lowest priority number first, and in the order of their pushes where that is equal.
/// Allocates nothing after it is made.
#[derive(Clone, Debug)]
pub struct SendQueue<T> {
    heap: BinaryHeap<Waiting<T>>,
    bound: usize,
    pushed: u64,
}

#[derive(Clone, Copy, Debug)]
struct Waiting<T> {
    priority: u32,
    /// No two have the same: the order is strict.
    number: u64,
    what: T,
}

impl<T> Waiting<T> {
    fn rank(&self) -> (u32, u64) {
        (self.priority, self.number)
    }
}

/// The heap has its greatest first.
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
    /// An empty queue for at most `bound` things.
    pub fn new(bound: usize) -> Self {
        SendQueue { heap: BinaryHeap::with_capacity(bound), bound, pushed: 0 }
    }

    /// Takes something in; false when there are as many as there may be.
    #[must_use]
    pub fn push(&mut self, priority: u32, what: T) -> bool {
        if self.heap.len() == self.bound {
            return false;
        }
        self.pushed += 1;
        self.heap.push(Waiting { priority, number: self.pushed, what });
        true
    }

    /// What leaves next.
    pub fn first(&self) -> Option<T> {
        self.heap.peek().map(|waiting| waiting.what)
    }

    /// Takes out what leaves next.
    pub fn pop(&mut self) -> Option<T> {
        self.heap.pop().map(|waiting| waiting.what)
    }

    /// How many wait.
    pub fn len(&self) -> usize {
        self.heap.len()
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.heap.clear();
    }

    /// Whether nothing waits.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.heap.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn in_json_and_on_the_command_line() {
        for schedule in Schedule::ALL {
            let name = schedule.name();
            assert_eq!(serde_json::to_string(&schedule).unwrap(), format!("{name:?}"));
            assert_eq!(serde_json::from_str::<Schedule>(&format!("{name:?}")).unwrap(), schedule);
            assert_eq!((schedule.to_string().as_str(), name.parse()), (name, Ok(schedule)));
        }
        let error = "fifo".parse::<Schedule>().unwrap_err().to_string();
        assert!(error.contains("\"fifo\"") && error.contains("expected kvstore, layerwise"), "{error}");
        assert_eq!(Schedule::default(), Schedule::Sliced);
    }

    proptest! {
        /// Against a list that is sorted before each look: by priority, and stable.
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
