//! A shard made on another thread, so that the core's own thread need not touch gigabytes between two rounds.

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
    /// Makes a shard, and allocates and touches its memory: call it near the core, on the core's NUMA node. `waker` wakes
    /// the core's thread.
    ///
    /// # Errors
    /// Returns an error if there is no memory.
    pub fn new(spec: ShardSpec, waker: Waker) -> Result<Self, MapError> {
        let terms = spec.terms.clone();
        let above = spec.above.as_ref().map(|above| (above.level, above.link_count));
        let shard = Shard::new(spec, waker)?;
        let above = above.as_ref().map(|(level, links)| (level, *links));
        let replies = Replies::new(&terms, above, of_mode!(&shard, shard => shard.keys()));
        Ok(MadeShard { shard, replies })
    }
}

impl std::fmt::Debug for MadeShard {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("MadeShard").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use fabric::sim::{Faults, Net, Windows};
    use fabric::{RecvWindow, SendWindow};

    use crate::kernels::Kernels;
    use crate::{Core, JobId, JobTerms, Key, OnLoss, Optimizer, Placement, Round, ShardSpec, Wire};

    const JOB: JobId = JobId(1);

    #[test]
    fn memory_lives_until_what_a_core_discarded_is_dropped() {
        let keys = vec![Key::f32("a", [32])];
        let terms = JobTerms { on_loss: OnLoss::Continue, ..JobTerms::new(2, keys, Optimizer::Average) };
        let (terms, wire) = (Arc::new(terms.clone()), Wire::of_terms(&terms).unwrap());
        let placement = Placement::new(wire.layout(), 1);
        let (weights, mut claims) = placement.weights_window(&wire).unwrap();
        let owned = (placement.chunks_by_core().remove(0), claims.remove(0));
        let net = Net::new(1, Faults::NONE);
        let mut core = Core::new(net.port(), Kernels::detect());
        core.add_job(JOB, ShardSpec::of_cores(&terms, &wire, [owned]).remove(0)).unwrap();
        let mut gradients = Vec::new();
        for rank in 0..2 {
            // The simulated network keeps its own windows.
            let send = || Arc::new(SendWindow::new(256).unwrap());
            let recv = || Arc::new(RecvWindow::local(256).unwrap());
            let windows = || Windows { send: send(), recv: recv() };
            let (_, endpoint) = net.link(windows(), windows(), 1);
            let window = recv();
            gradients.push(Arc::downgrade(&window));
            core.add_worker(JOB, rank, window, None, endpoint).unwrap();
        }
        core.release(JOB, Round(0), &[0, 1], &mut Vec::new());
        let is_there = |rank: usize| gradients[rank].upgrade().is_some();

        let of_a_worker = core.remove_worker(JOB, 1, &mut Vec::new());
        assert!(is_there(1));
        drop(of_a_worker);
        assert!(is_there(0) && !is_there(1));

        let weights = {
            let weights = weights; // the registry's weights
            Arc::downgrade(&weights)
        };
        let of_the_job = core.remove_job(JOB);
        assert!(is_there(0) && weights.upgrade().is_some());
        drop(of_the_job);
        assert!(!is_there(0) && weights.upgrade().is_none());
    }
}
