//! Parts of the gradient norm that pass through a hub below several top hubs. A part arrives at one core of this hub, and
//! other cores send it to the other top hubs.
//!
//! ```text
//!   top hub 0 --part--> core 0 --> writes the line into the window of sums, and publishes its round here
//!                       core 1 <-- wakes, and posts the line --> top hub 1
//! ```
//!
//! The cores of the hub share this memory. There is no lock and no allocation: a core writes the line first, and then its
//! round. A line's memory is used again four rounds later. By then all cores have posted the line
//! (`docs/design/norms-and-averages.md#steps-that-know-the-norm`).

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Waker;

use crate::layout::Round;

/// The last rounds whose parts have arrived, for one job at one hub below other hubs.
#[derive(Debug)]
pub struct Crossing {
    /// For each top hub, the last two rounds for which its part has arrived.
    hubs: Vec<AtomicU64>,
    /// The wakers of the cores. A core that gets no lines has no waker.
    wakers: Vec<OnceLock<Waker>>,
}

/// The last two rounds, the older one first.
pub type LastTwo = [Option<Round>; 2];

impl Crossing {
    /// Creates the memory for the parts of this number of top hubs, at a hub with this number of cores.
    pub fn new(hubs: usize, cores: usize) -> Self {
        Crossing {
            hubs: (0..hubs).map(|_| AtomicU64::new(0)).collect(),
            wakers: (0..cores).map(|_| OnceLock::new()).collect(),
        }
    }

    /// Stores the waker of a core.
    pub fn wake(&self, core: usize, waker: Waker) {
        _ = self.wakers[core].set(waker);
    }

    /// Publishes the last two rounds for which a top hub has sent its part, and wakes the other cores. The calling core
    /// must have written the lines of these rounds.
    #[cold]
    #[inline(never)] // it has an atomic store and system calls; the path of a chunk has none
    pub fn publish(&self, core: usize, hub: usize, rounds: LastTwo) {
        let [older, newer] = rounds.map(|round| round.map_or(0, |round| u64::from(round.0) + 1));
        // Makes the lines visible to a core that loads the rounds.
        self.hubs[hub].store(older << 32 | newer, Ordering::Release);
        let others = self.wakers.iter().enumerate().filter(|(other, _)| *other != core);
        others.filter_map(|(_, waker)| waker.get()).for_each(Waker::wake_by_ref);
    }

    /// Returns the last two rounds for which a top hub's part has arrived. The lines (messages) of these rounds may be
    /// posted.
    pub fn published(&self, hub: usize) -> LastTwo {
        let word = self.hubs[hub].load(Ordering::Acquire);
        [word >> 32, word & u64::from(u32::MAX)].map(|round| Some(Round(round.checked_sub(1)? as u32)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::AtomicUsize;
    use std::task::Wake;

    #[derive(Default)]
    struct Rung(AtomicUsize);

    impl Wake for Rung {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn the_last_two_rounds_of_each_hub_are_said_and_the_other_cores_wake() {
        let crossing = Crossing::new(2, 3);
        let rung = [(); 2].map(|()| Arc::new(Rung::default()));
        (0..2).for_each(|core| crossing.wake(core, Arc::clone(&rung[core]).into()));
        assert_eq!(crossing.published(1), [None, None]);
        crossing.publish(0, 1, [None, Some(Round(0))]);
        assert_eq!((crossing.published(1), crossing.published(0)), ([None, Some(Round(0))], [None, None]));
        let last = Round::LIMIT;
        crossing.publish(0, 1, [Some(Round(0)), Some(last)]);
        assert_eq!(crossing.published(1), [Some(Round(0)), Some(last)]);
        assert_eq!(rung.map(|rung| rung.0.load(Ordering::Relaxed)), [0, 2]);
    }
}
