//! A worker's shard of the training set, and its mini-batches.

use super::plan::TrainingPlan;
use super::random::Random;
use super::samples::Samples;

/// The name of the random sequences of the batches' order.
const BATCHES: u64 = 2;

/// One worker's share of the samples, with their order in an epoch.
#[derive(Clone, Debug)]
pub struct Shard {
    samples: Samples,
    rank: u32,
    seed: u64,
    batch: usize,
    order: Vec<usize>,
}

impl Shard {
    /// Creates the shard of worker `rank`: every `plan.workers`-th sample, beginning with sample `rank`.
    pub fn new(plan: &TrainingPlan, train: &Samples, rank: u32) -> Self {
        let samples = train.select((rank as usize..train.len()).step_by(plan.workers as usize));
        let order = (0..samples.len()).collect();
        Shard { samples, rank, seed: plan.seed, batch: plan.batch, order }
    }

    /// Returns all samples of the shard.
    pub fn samples(&self) -> &Samples {
        &self.samples
    }

    /// Shuffles the samples for an epoch. The order depends only on seed, rank and epoch, so every process can make the
    /// batches of every worker.
    pub fn begin_epoch(&mut self, epoch: u32) {
        let names = [BATCHES, self.rank.into(), epoch.into()];
        self.order = Random::new(self.seed, &names).order(self.samples.len());
    }

    /// Returns the mini-batch of a round, counted from the beginning of the epoch. Samples after the last whole batch of an
    /// epoch are not used.
    pub fn batch(&self, round: usize) -> Samples {
        self.samples.select(self.order[round * self.batch..][..self.batch].iter().copied())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shards_share_out_every_sample_and_batches_do_not_overlap() {
        let train = Samples::new(1, (0..50).map(|i| i as f32).collect(), vec![0; 50]);
        let plan = TrainingPlan::new(3, 2, 12, 9, train.len()).unwrap();
        let mut all = Vec::new();
        for rank in 0..3 {
            let mut shard = Shard::new(&plan, &train, rank);
            all.extend_from_slice(shard.samples().inputs());
            let epoch = |shard: &mut Shard, epoch| {
                shard.begin_epoch(epoch);
                (0..plan.rounds_per_epoch).flat_map(|r| shard.batch(r).inputs().to_vec()).collect::<Vec<_>>()
            };
            let first = epoch(&mut shard, 0);
            assert_ne!(first, epoch(&mut shard, 1));
            assert_eq!(first, epoch(&mut shard, 0), "an epoch is the same however one comes to it");
            assert!((1..first.len()).all(|i| !first[..i].contains(&first[i])));
        }
        all.sort_unstable_by(f32::total_cmp);
        assert_eq!(all, train.inputs());
    }
}
