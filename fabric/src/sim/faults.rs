//! The fault rules of a simulated network: the faults and their rates.

use std::ops::Range;

use super::random::Random;

/// The rules of a simulated network (a net), the same for all its links. For single events (the death of a
/// peer, the loss of one post) see the methods of [`Net`](super::Net).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Faults {
    /// The ticks from flush to arrival. An empty range means no delay.
    pub delay: Range<u64>,
    /// Whether a post with a shorter delay overtakes earlier posts of its link. Otherwise a link is first in,
    /// first out, whatever the delays. The contract promises no order.
    pub reorder: bool,
    /// The rate at which a post vanishes. No reliable link does this.
    pub drop: Rate,
    /// The rate at which a post arrives twice. No reliable link does this. The second arrival copies the
    /// bytes again, as they are at that time.
    pub duplicate: Rate,
}

impl Faults {
    /// The rules of a perfect network: everything arrives at once, in order.
    pub const NONE: Faults =
        Faults { delay: 0..1, reorder: false, drop: Rate::NEVER, duplicate: Rate::NEVER };

    /// Returns the ticks until the next post arrives.
    pub(super) fn draw_delay(&self, random: &mut Random) -> u64 {
        self.delay.start + random.below(self.delay.end.saturating_sub(self.delay.start))
    }
}

impl Default for Faults {
    fn default() -> Self {
        Faults::NONE
    }
}

/// The rate of a fault, in posts per million.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rate(u32);

impl Rate {
    /// The event never happens.
    pub const NEVER: Rate = Rate(0);
    /// The event happens each time.
    pub const ALWAYS: Rate = Rate(1_000_000);

    /// Creates a rate of `count` in a million. A count above a million means always.
    pub const fn per_million(count: u32) -> Rate {
        Rate(count)
    }

    /// Creates a rate of `count` in a thousand. A count above a thousand means always.
    pub const fn per_mille(count: u32) -> Rate {
        Rate(count.saturating_mul(1000))
    }

    /// Decides by a random draw whether the fault happens. A rate of zero draws nothing, so adding a rule
    /// that never applies does not change a run.
    pub(super) fn strikes(self, random: &mut Random) -> bool {
        self != Rate::NEVER && random.below(1_000_000) < u64::from(self.0)
    }
}
