//! A shard that another thread has made, so that the core's own thread touches no gigabytes between two rounds.

use std::task::Waker;

use fabric::MapError;

use super::mode::{Shard, of_mode};
use super::replies::Replies;
use super::spec::ShardSpec;

/// A shard with all its memory, for the core that will own it.
pub struct MadeShard {
    pub(super) shard: Shard,
    pub(super) replies: Replies,
}

impl MadeShard {
    /// Makes a shard, whose memory it allocates and touches: call it near the core, on the core's NUMA node. `waker` wakes
    /// the core's thread.
    ///
    /// # Errors
    /// When there is no memory.
    pub fn new(spec: ShardSpec, waker: Waker) -> Result<Self, MapError> {
        let terms = spec.terms.clone();
        let above = spec.above.as_ref().map(|above| (above.level.schedule, above.ways));
        let shard = Shard::new(spec, waker)?;
        let replies = Replies::new(&terms, above, of_mode!(&shard, shard => shard.keys()));
        Ok(MadeShard { shard, replies })
    }
}

impl std::fmt::Debug for MadeShard {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("MadeShard").finish_non_exhaustive()
    }
}
