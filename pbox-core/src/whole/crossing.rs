//! The parts of the whole gradient that pass through a hub below several others. They arrive at one of its cores, and go up
//! from other cores.
//!
//! ```text
//!   hub above 0 --part--> core 0 --> line in the window of sums, and its round here
//!                         core 1 <-- wakes, and posts the line --> hub above 1
//! ```
//!
//! The cores of the hub share it. No lock and no allocation: a core writes the line, then its round. A line is kept until the
//! round four later, and at that time all cores have posted it (`docs/design/norms-and-averages.md#steps-that-know-the-norm`).

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Waker;

use crate::layout::Round;

/// The last rounds for which parts have come, of one job at one hub below others.
#[derive(Debug)]
pub struct Crossing {
    /// The last two rounds of each hub above.
    hubs: Vec<AtomicU64>,
    /// The cores' wakers; a core that gets lines from no hub has none.
    wakers: Vec<OnceLock<Waker>>,
}

/// The last two rounds, the older first.
pub type LastTwo = [Option<Round>; 2];

impl Crossing {
    /// Creates a place for the parts of this number of hubs, at a hub with this number of cores.
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

    /// Publishes the last two rounds of a hub, after this core has written their lines, and wakes the other
    /// cores.
    #[cold]
    #[inline(never)] // an atomic store, and system calls, which the path of a chunk does not have
    pub fn say(&self, core: usize, hub: usize, rounds: LastTwo) {
        let [older, newer] = rounds.map(|round| round.map_or(0, |round| u64::from(round.0) + 1));
        // Releases the lines.
        self.hubs[hub].store(older << 32 | newer, Ordering::Release);
        let others = self.wakers.iter().enumerate().filter(|(other, _)| *other != core);
        others.filter_map(|(_, waker)| waker.get()).for_each(Waker::wake_by_ref);
    }

    /// Returns the last two rounds of a hub. Their lines may be posted.
    pub fn said(&self, hub: usize) -> LastTwo {
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
        assert_eq!(crossing.said(1), [None, None]);
        crossing.say(0, 1, [None, Some(Round(0))]);
        assert_eq!((crossing.said(1), crossing.said(0)), ([None, Some(Round(0))], [None, None]));
        let last = Round::LIMIT;
        crossing.say(0, 1, [Some(Round(0)), Some(last)]);
        assert_eq!(crossing.said(1), [Some(Round(0)), Some(last)]);
        assert_eq!(rung.map(|rung| rung.0.load(Ordering::Relaxed)), [0, 2]);
    }
}
