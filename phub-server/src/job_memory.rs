//! How much of this machine's memory a job needs at a hub. Pure: the hub asks it before it lets a job in, and `topology` before
//! there is one.

use pbox_core::{JobTerms, Wire};

/// The memory of one job at one hub, in bytes. Windows are counted whole; a hub touches its share of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct JobMemory {
    /// The windows of what workers, or hubs below, push.
    pub gradients: u64,
    /// Below other hubs: the window of sums.
    pub sums: u64,
    /// The windows that workers, or hubs below, read; and the hub's own weights.
    pub weights: u64,
    /// Master weights and the optimizer's state; with compression also what the workers have. 0 below other hubs, which keep
    /// them.
    pub kept: u64,
    /// Room for a snapshot, where these are taken all the time.
    pub snapshots: u64,
    /// Over how many hubs the job is spread.
    hubs: u64,
}

impl JobMemory {
    /// For a job with this wire and these terms. `snapshots`: they are taken all the time. `is_below`: sums go up to other hubs.
    pub fn new(wire: &Wire, terms: &JobTerms, snapshots: bool, is_below: bool) -> Self {
        let own_weights = wire.has_own_weights();
        let workers = u64::from(terms.workers);
        let of_workers = if own_weights { workers } else { 0 };
        // Frames are no place for the hub's own weights.
        let of_the_job = u64::from(wire.framing().is_none() || !own_weights);
        let window = wire.gradient_window_bytes() as u64;
        let of_a_snapshot = 4 * wire.layout().parameters() * terms.optimizer.saved_per_element() as u64;
        JobMemory {
            gradients: workers.saturating_mul(window),
            sums: if is_below { window } else { 0 },
            weights: (of_workers + of_the_job).saturating_mul(wire.weights_window_bytes() as u64),
            kept: if is_below { 0 } else { wire.kept_bytes(&terms.optimizer) },
            snapshots: if snapshots { of_a_snapshot } else { 0 },
            hubs: u64::from(terms.hubs),
        }
    }

    /// This hub's share of so many bytes of the whole job.
    pub fn share(&self, bytes: u64) -> u64 {
        bytes / self.hubs
    }

    /// What the hub must have.
    pub fn needed(&self) -> u64 {
        let JobMemory { gradients, sums, weights, kept, snapshots, .. } = *self;
        self.share([gradients, sums, weights, kept, snapshots].into_iter().fold(0, u64::saturating_add))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pbox_core::{Key, Members, Optimizer};

    const NESTEROV: Optimizer = Optimizer::Nesterov { learning_rate: 0.1, momentum: 0.9, weight_decay: 0.0 };
    /// One key of a MiB: 32 chunks, whose counts have 64 bytes each.
    const MODEL: u64 = 1 << 20;
    const COUNTS: u64 = 32 * 64;

    fn terms() -> JobTerms {
        JobTerms::new(4, vec![Key::f32("a", [MODEL / 4])], NESTEROV)
    }

    #[test]
    fn a_flat_job_has_a_window_for_each_worker_one_of_weights_and_state() {
        let terms = terms();
        let memory = JobMemory::new(&Wire::of_terms(&terms).unwrap(), &terms, true, false);
        assert_eq!(
            [memory.gradients, memory.sums, memory.weights, memory.kept],
            [4, 0, 1, 1].map(|n| n * MODEL)
        );
        assert_eq!(memory.snapshots, 2 * MODEL, "weights and momentum");
        assert_eq!(memory.needed(), 8 * MODEL);
    }

    #[test]
    fn in_a_mesh_the_state_is_above_and_each_hub_has_its_share() {
        let (terms, above) = (terms(), terms().above(Members::Mesh, 2, 2).unwrap());
        let below = JobMemory::new(&Wire::of_terms(&terms).unwrap(), &terms, false, true);
        assert_eq!([below.gradients, below.sums, below.weights, below.kept], [4, 1, 1, 0].map(|n| n * MODEL));
        let above = JobMemory::new(&Wire::of_terms(&above).unwrap(), &above, false, false);
        assert_eq!([above.gradients, above.weights, above.kept], [2 * (MODEL + COUNTS), MODEL, MODEL]);
        assert_eq!(above.needed(), (4 * MODEL + 2 * COUNTS) / 2);
    }
}
