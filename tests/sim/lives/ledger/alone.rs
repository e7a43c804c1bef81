//! The ledger of members that step alone: the number of pushes of each member that a weight contains. A member is a
//! worker, or a machine whose workers step together and push the same values.
//!
//! Element `e` of a key belongs to rank `e mod W`, and only this rank pushes ones there. So a weight is `-n` after `n`
//! pushes of its rank. When a worker dies, its last push of each chunk may or may not be stepped, so two numbers are
//! possible. The first weights of the next worker of its rank show the right number.

use std::collections::HashMap;
use std::ops::RangeInclusive;
use std::sync::Arc;

use pbox_core::{ChunkId, Consistency, KeyId, Layout, Restored, Round, SnapshotPart};

use super::Members;

/// The pushes of all workers of a job.
pub struct Alone {
    layout: Arc<Layout>,
    /// The staleness; `None` in ASP.
    staleness: Option<u32>,
    /// The members that take part, by rank.
    workers: Vec<Option<Worker>>,
    /// The number of members that have taken part so far.
    begun: usize,
    /// The last check of each worker's key: the number of the worker's member, and the round of the weights.
    seen: HashMap<(usize, KeyId), (usize, Round)>,
    /// The number of stepped pushes of former workers of each rank, as a range of possible numbers. By chunk, then by
    /// rank.
    former: Vec<Vec<RangeInclusive<u32>>>,
    /// Whether the job may have ended at a cut, a pause between two rounds. Answers after the cut need not
    /// keep the bound of the staleness.
    pub may_end: bool,
}

/// A member that takes part.
struct Worker {
    /// The number of this member in the order in which members began to take part.
    number: usize,
    first: Round,
    /// The last round whose weights have arrived, by key; `None` before the first.
    has: Vec<Option<Round>>,
}

impl Worker {
    /// Returns the number of the worker's pushes before a round, without the broadcast.
    fn pushes(&self, Round(before): Round) -> u32 {
        before.saturating_sub(self.first.0.max(1))
    }
}

impl Alone {
    /// Creates a job without pushes.
    pub fn new(layout: &Arc<Layout>, consistency: Consistency, workers: u32) -> Self {
        let staleness = match consistency {
            Consistency::Ssp { staleness } => Some(staleness),
            _ => None,
        };
        Alone {
            layout: Arc::clone(layout),
            staleness,
            workers: (0..workers).map(|_| None).collect(),
            begun: 0,
            seen: HashMap::new(),
            former: vec![vec![0..=0; workers as usize]; layout.chunks().len()],
            may_end: false,
        }
    }

    /// Returns the rank that pushes an element of a key.
    pub fn owner(&self, element: usize) -> u32 {
        (element % self.workers.len()) as u32
    }

    pub fn takes_part(&self, rank: u32) -> bool {
        self.workers[rank as usize].is_some()
    }

    /// Notes that a member takes part from a round on.
    pub fn begins(&mut self, rank: u32, first: Round) {
        self.begun += 1;
        let has = vec![None; self.layout.keys().len()];
        self.workers[rank as usize] = Some(Worker { number: self.begun, first, has });
    }

    /// Notes that a member pushes no more. The last push of each key may be lost.
    pub fn ends(&mut self, rank: u32, job: &impl Members) {
        let Some(worker) = self.workers[rank as usize].take() else { return };
        for (chunk, former) in self.layout.chunks().iter().zip(&mut self.former) {
            let most = worker.pushes(Round(*job.next(rank, chunk.key).end()));
            let least = worker.has[chunk.key.index()].map_or(0, |has| worker.pushes(has));
            let former = &mut former[rank as usize];
            *former = former.start() + least..=former.end() + most;
        }
    }

    /// Begins again with the pushes that a state contains, or without pushes. No member takes part yet.
    pub fn begin_again(&mut self, restored: Option<&Restored>) {
        let Alone { layout, former, workers, .. } = self;
        workers.fill_with(|| None);
        self.may_end = false;
        for (chunk, former) in (0..).map(ChunkId).zip(former) {
            let key = layout.chunk(chunk).key;
            let first = first_element(layout, chunk);
            let elements = first..first + layout.chunk(chunk).span.bytes / 4;
            for (rank, former) in former.iter_mut().enumerate() {
                let ranks = self.workers.len();
                let restored = restored.map(|restored| restored.weights(key, elements.clone()));
                let has = restored.and_then(|weights| count(weights, first, (rank, ranks))).unwrap_or(0);
                *former = has..=has;
            }
        }
    }

    /// Checks the weights that a worker has received since the last check.
    pub fn check(&mut self, (rank, worker): (u32, usize), job: &impl Members, lives: impl Fn(u32) -> bool) {
        let exchange = job.exchange(worker);
        for key in (0..self.layout.keys().len() as u32).map(KeyId) {
            let round = exchange.round(key);
            let member = self.workers[rank as usize].as_mut().expect("it takes part");
            let seen = Some((member.number, round));
            if !exchange.is_ready(key) || round == Round(0) || self.seen.get(&(worker, key)).copied() == seen
            {
                continue;
            }
            self.seen.extend(seen.map(|seen| ((worker, key), seen)));
            let has = &mut member.has[key.index()];
            *has = (*has).max(Some(round));
            let pushes = member.pushes(round);
            let mut weights = exchange.weights::<f32>(key).unwrap();
            for chunk in self.layout.key_chunks(key).map(ChunkId) {
                let of_chunk;
                (of_chunk, weights) = weights.split_at(self.layout.chunk(chunk).span.bytes / 4);
                let what = format!("rank {rank} before its round {}, {chunk:?}", round.0);
                self.check_own(of_chunk, chunk, (rank, pushes), &what);
                // In SSP, a worker waits for workers that are slower than the staleness allows. So the weights have all
                // pushes before `near`.
                let staleness = self.staleness.filter(|_| !self.may_end);
                let near = staleness.map(|staleness| round.0.saturating_sub(staleness));
                self.check_values(of_chunk, chunk, Round(near.unwrap_or(0)), job, &lives, &what);
            }
            assert!(weights.is_empty());
            self.check_ahead((rank, key, round), job, &lives);
        }
    }

    /// Checks that a worker's weights have all its own pushes. Its first weights also show the number of
    /// pushes of the former worker.
    fn check_own(&mut self, weights: &[f32], chunk: ChunkId, (rank, pushes): (u32, u32), what: &str) {
        let own = (rank as usize, self.workers.len());
        let Some(seen) = count(weights, first_element(&self.layout, chunk), own) else { return };
        let former = &mut self.former[chunk.index()][rank as usize];
        let of_former = seen.checked_sub(pushes).filter(|seen| former.contains(seen));
        assert!(of_former.is_some(), "{what}: {seen} own pushes, not {pushes} after {former:?}");
        let of_former = of_former.expect("just asserted");
        *former = of_former..=of_former;
    }

    /// Checks that weights contain only pushes that were made, and all pushes of living members in rounds before
    /// `near`.
    fn check_values(
        &self,
        weights: &[f32],
        chunk: ChunkId,
        near: Round,
        job: &impl Members,
        lives: impl Fn(u32) -> bool,
        what: &str,
    ) {
        let first = first_element(&self.layout, chunk);
        let key = self.layout.chunk(chunk).key;
        for rank in 0..self.workers.len() as u32 {
            let Some(seen) = count(weights, first, (rank as usize, self.workers.len())) else { continue };
            let former = &self.former[chunk.index()][rank as usize];
            let pushes = |before| self.workers[rank as usize].as_ref().map_or(0, |of| of.pushes(before));
            let most = former.end() + pushes(Round(*job.next(rank, key).end()));
            let due = if lives(rank) { pushes(near) } else { 0 };
            let least = if due > 0 { former.start() + due } else { 0 };
            assert!(
                (least..=most).contains(&seen),
                "{what}: {seen} pushes of rank {rank}, not {least} to {most}"
            );
        }
    }

    /// Checks that a worker is not further ahead of other workers than the staleness allows.
    fn check_ahead(
        &self,
        (rank, key, round): (u32, KeyId, Round),
        job: &impl Members,
        lives: impl Fn(u32) -> bool,
    ) {
        let Some(staleness) = self.staleness.filter(|_| !self.may_end) else { return };
        for other in (0..self.workers.len() as u32).filter(|&other| lives(other)) {
            // If a machine has just come back, its workers have no round yet. Then the machine's first round
            // counts.
            let first = self.workers[other as usize].as_ref().map_or(0, |of| of.first.0);
            let next = first.max(*job.next(other, key).start());
            assert!(
                round.0 <= next + staleness,
                "rank {rank} goes on with round {} of {key:?}, and rank {other} has pushed {next}",
                round.0
            );
        }
    }

    /// Checks a part of the last state. The part must contain all pushes that were answered.
    pub fn check_last(&self, part: &SnapshotPart, before: Round, job: &impl Members) {
        let mut values = part.values.as_slice();
        for &chunk in &part.chunks {
            let of_chunk;
            (of_chunk, values) = values.split_at(self.layout.chunk(chunk).span.bytes / 4);
            let (first, key) = (first_element(&self.layout, chunk), self.layout.chunk(chunk).key);
            let what = format!("the last state before round {}, {chunk:?}", before.0);
            self.check_values(of_chunk, chunk, Round(0), job, |_| false, &what);
            for (rank, member) in (0..).zip(&self.workers) {
                let Some(seen) = count(of_chunk, first, (rank, self.workers.len())) else { continue };
                let has = member.as_ref().and_then(|of| of.has[key.index()].map(|has| of.pushes(has)));
                let least = has.map_or(0, |pushes| self.former[chunk.index()][rank].start() + pushes);
                assert!(seen >= least, "{what}: {seen} pushes of rank {rank}, and {least} were answered");
            }
        }
    }

    /// Checks a part of a snapshot before a round. The part must contain all pushes of earlier rounds.
    pub fn check_part(
        &self,
        part: &SnapshotPart,
        before: Round,
        job: &impl Members,
        lives: impl Fn(u32) -> bool,
    ) {
        let mut values = part.values.as_slice();
        for &chunk in &part.chunks {
            let of_chunk;
            (of_chunk, values) = values.split_at(self.layout.chunk(chunk).span.bytes / 4);
            let what = format!("the state before round {}, {chunk:?}", before.0);
            self.check_values(of_chunk, chunk, before, job, &lives, &what);
        }
    }
}

fn first_element(layout: &Layout, chunk: ChunkId) -> usize {
    let chunk = layout.chunk(chunk);
    (chunk.span.offset - layout.key_span(chunk.key).offset) / 4
}

/// Returns the number of pushes of a rank that these weights contain. `first` is the index of the first weight in its
/// key. Returns `None` if none of the weights belongs to the rank.
fn count(weights: &[f32], first: usize, (rank, ranks): (usize, usize)) -> Option<u32> {
    let of_rank = (first..).zip(weights).filter(|(element, _)| element % ranks == rank);
    let mut pushes = of_rank.map(|(_, weight)| -weight);
    let all = pushes.next()?;
    assert!(pushes.all(|pushes| pushes == all) && all.fract() == 0.0, "rank {rank}: {weights:?}");
    Some(all as u32)
}
