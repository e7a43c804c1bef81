//! The present of a job whose hub was lost, if its workers ask for it: for each key the weights of a worker that has the furthest.
//!
//! ```text
//!   joins: what each has of each key --> all are here --> the plan, in the news --> every worker brings its keys, or none
//!      --> weights over the checkpoint's, whose optimizer state stays --> the job begins, each key with its own round
//! ```
//!
//! For a key, the highest round of any worker is the one that all go on with: who is there has the weights before it. They are
//! exact, unless all have pushed the round: then a hub may have stepped some of it. Nobody can tell where, if the weights were the
//! hub's own memory.

use std::collections::BTreeMap;
use std::sync::Arc;

use fabric::Slab;
use pbox_core::control::{Begins, Holds, JobState, NumbersSet, Present, PresentReply, Stand};
use pbox_core::{NumbersByRound, OnLoss, Piece, Restored, RestoredKey, Round};

use crate::registry::job::{Arrival, Job};
use crate::registry::numbers::Change;

/// A job whose workers ask for the present.
#[derive(Debug)]
pub(crate) struct Bringing {
    /// What each rank has.
    ranks: Vec<Present>,
    /// Once all are here, if there is something to bring.
    plan: Option<PresentReply>,
    /// The weights that each rank has brought.
    came: Vec<Option<Arc<Restored>>>,
}

impl Bringing {
    /// Of so many workers.
    pub fn new(workers: u32) -> Self {
        let workers = workers as usize;
        Bringing { ranks: vec![Present::default(); workers], plan: None, came: vec![None; workers] }
    }

    /// A worker has joined, before the job begins: if it is lost until then, the job fails.
    pub fn joined(&mut self, rank: u32, present: Present) {
        self.ranks[rank as usize] = present;
    }

    /// Rounds that were lost before, if the job begins by a plan.
    pub fn lost(&self) -> Option<u32> {
        self.plan.as_ref().map(|plan| plan.lost)
    }

    /// The job begins: what it was made from is needed no more.
    pub fn begins(&mut self) {
        self.ranks.fill(Present::default());
        self.came.fill(None);
    }
}

impl Job {
    /// What a worker that asks for the present has.
    pub fn has_present(&mut self, rank: u32, present: Present) {
        if self.state() != JobState::Running
            && let Some(bringing) = &mut self.bringing
        {
            bringing.joined(rank, present);
        }
    }

    /// All workers are here. Returns what they bring before the job can begin, unless they have brought it.
    pub fn waits_for_present(&mut self) -> Option<PresentReply> {
        let state_before = self.first_round;
        let is_complete = self.terms.on_loss == OnLoss::Stop;
        let keys = &self.terms.keys;
        let bringing = self.bringing.as_mut()?;
        if bringing.plan.is_none() {
            let name = |key: usize| keys[key].name.clone();
            bringing.plan = plan(&bringing.ranks, keys.len(), state_before, is_complete, name);
        }
        let plan = bringing.plan.as_ref()?;
        bringing.came.iter().any(Option::is_none).then(|| plan.clone())
    }

    /// The pieces of keys that a rank has to bring to this hub; `None` if it brings nothing now.
    fn brought_by(&self, rank: u32) -> Option<(&PresentReply, Vec<&Piece>)> {
        let Bringing { plan, came, .. } = self.bringing.as_ref()?;
        let plan = plan.as_ref().filter(|plan| plan.differ.is_none() && came[rank as usize].is_none())?;
        let brings = |piece: &&Piece| plan.keys[piece.key.index()].from == Some(rank);
        Some((plan, self.hubs.pieces.iter().filter(brings).collect()))
    }

    /// The round that a job begins with to which a rank brings weights, and their bytes.
    pub fn present_comes(&self, rank: u32) -> Option<(Round, u64)> {
        let (plan, pieces) = self.brought_by(rank)?;
        let elements: u64 = pieces.iter().map(|piece| piece.elements.len() as u64).sum();
        Some((first(plan), 4 * elements))
    }

    /// A rank's weights are here, in the order of the keys. Returns those of all ranks, when they are.
    pub fn present_came(&mut self, rank: u32, values: Slab) -> Option<Vec<Arc<Restored>>> {
        let (plan, pieces) = self.brought_by(rank)?;
        let mut keys = vec![RestoredKey { elements: 0..0, starts: Vec::new() }; self.terms.keys.len()];
        let mut begin = 0;
        for Piece { key, elements, .. } in pieces {
            keys[key.index()] = RestoredKey { elements: elements.clone(), starts: vec![begin] };
            begin += elements.len();
        }
        let round = first(plan);
        let numbers = self.numbers_of(&self.bringing.as_ref()?.ranks, plan.lost);
        let rounds = plan.keys.iter().map(|key| key.round).collect();
        let restored = Restored::new(round, numbers.changes_from(round), values, keys).with_rounds(rounds);
        let bringing = self.bringing.as_mut()?;
        bringing.came[rank as usize] = Some(Arc::new(restored));
        bringing.came.iter().cloned().collect()
    }

    /// The job's numbers, and what its ranks have set since. All numbers come before rates, which a rank has set after them.
    fn numbers_of(&self, ranks: &[Present], lost: u32) -> NumbersByRound {
        let mut numbers = self.numbers.clone();
        let round = |from: Round| Round(from.0.saturating_sub(lost));
        for NumbersSet { from_round, optimizer, keys } in ranks.iter().filter_map(|of| of.numbers.as_ref()) {
            let keys = keys.as_deref().map(Into::into);
            Change::All(*optimizer, keys).make(&mut numbers, round(*from_round));
        }
        for (from, rate) in ranks.iter().filter_map(|of| of.learning_rate) {
            Change::Rate(rate).make(&mut numbers, round(from));
        }
        numbers
    }

    /// The weights of all workers that have the present are here.
    pub fn begin_with_present(&mut self, parts: &[Arc<Restored>]) -> Arrival {
        if let Some(restored) = parts.first() {
            (self.first_round, self.numbers) = (restored.round(), restored.numbers());
        }
        self.gathered()
    }
}

/// The round that the first key begins with.
fn first(plan: &PresentReply) -> Round {
    plan.keys.iter().map(|key| key.round).min().unwrap_or_default()
}

/// With what each of so many keys begins. `state_before` is the checkpoint's round, 0 without one. `is_complete` says that no
/// round was stepped without all these workers. `None` if nothing of any worker is ahead of the checkpoint, and while some key
/// has no weights yet.
fn plan(
    ranks: &[Present],
    keys: usize,
    state_before: Round,
    is_complete: bool,
    name: impl Fn(usize) -> String,
) -> Option<PresentReply> {
    let lost = ranks.iter().map(|present| present.lost).max()?;
    let there = || (0u32..).zip(ranks).filter(|(_, present)| !present.keys.is_empty());
    let is_complete = is_complete && there().count() == ranks.len();
    let mut reply = PresentReply { lost, state_before, ..PresentReply::default() };
    for key in 0..keys {
        let stands = || there().map(|(rank, present)| (rank, present.lost == lost, present.keys[key]));
        let highest = stands().map(|(_, _, stand)| stand.round).max()?;
        let round = Round(highest.0.saturating_sub(lost));
        if round <= state_before && state_before > Round(0) {
            reply.keys.push(Begins { round: state_before, from: None, in_part: false });
            continue;
        }
        if round == Round(0) {
            return None;
        }
        // Who does not know of a loss has weights of before it.
        let here = || stands().filter(|&(_, knows, stand)| knows && stand.round == highest);
        let is_unpushed = |stand: Stand| stand.round < highest || stand.weights == Holds::Whole;
        let is_untouched = is_complete && stands().any(|(_, _, stand)| is_unpushed(stand));
        let exact: Vec<(u32, u64)> = here()
            .filter(|(_, _, stand)| is_untouched || stand.weights != Holds::Mixed)
            .map(|(rank, _, stand)| (rank, stand.digest))
            .collect();
        reply.differ = reply.differ.or_else(|| difference(&name(key), round, &exact));
        reply.keys.push(match exact.first() {
            Some(&(rank, _)) => Begins { round, from: Some(rank), in_part: false },
            None => Begins { round: round.next(), from: Some(here().next()?.0), in_part: true },
        });
    }
    reply.keys.iter().any(|key| key.from.is_some()).then_some(reply)
}

/// Whether ranks have different weights of one round, in words.
fn difference(key: &str, round: Round, digests: &[(u32, u64)]) -> Option<String> {
    let mut ranks: BTreeMap<u64, Vec<u32>> = BTreeMap::new();
    digests.iter().for_each(|&(rank, digest)| ranks.entry(digest).or_default().push(rank));
    if ranks.len() < 2 {
        return None;
    }
    let mut ranks: Vec<Vec<u32>> = ranks.into_values().collect();
    ranks.sort();
    let ranks: Vec<String> = ranks.iter().map(|ranks| format!("{ranks:?}")).collect();
    Some(format!(
        "weights of key {key:?} before round {} differ: those of workers {} are not the same; a network, memory or a program \
         has altered them on some machine: look at these, and start all workers again, without the present, from a checkpoint \
         before that round",
        round.0,
        ranks.join(" and of ")
    ))
}

#[cfg(test)]
mod tests {
    use super::Holds::{Before, Mixed, Whole};
    use super::*;

    /// Ranks with one key each: the round, what the weights are, and their digest.
    fn ranks(stands: &[(u32, Holds, u64)]) -> Vec<Present> {
        let stand = |&(round, weights, digest)| Stand { round: Round(round), weights, digest };
        stands.iter().map(|it| Present { keys: vec![stand(it)], ..Present::default() }).collect()
    }

    fn one(ranks: &[Present], state_before: u32, is_complete: bool) -> Option<(u32, Option<u32>, bool)> {
        let plan = plan(ranks, 1, Round(state_before), is_complete, |_| "w".into())?;
        let Begins { round, from, in_part } = plan.keys[0];
        Some((round.0, from, in_part))
    }

    #[test]
    fn the_furthest_weights_of_a_key_are_the_present() {
        for (stands, complete, expected) in [
            // Some have the answer of round 6, which others wait for.
            ([(6, Mixed, 1), (7, Whole, 2)], true, (7, Some(1), false)),
            ([(6, Mixed, 1), (7, Mixed, 2)], true, (7, Some(1), false)),
            // A round that some worker has not pushed was not stepped, unless it was stepped without that worker.
            ([(7, Mixed, 2), (7, Whole, 2)], true, (7, Some(0), false)),
            ([(7, Mixed, 1), (7, Whole, 2)], false, (7, Some(1), false)),
            ([(6, Mixed, 1), (7, Mixed, 2)], false, (8, Some(1), true)),
            // All have pushed it. A copy shows that nothing of it came.
            ([(7, Mixed, 1), (7, Before, 2)], true, (7, Some(1), false)),
            ([(7, Mixed, 1), (7, Mixed, 2)], true, (8, Some(0), true)),
        ] {
            assert_eq!(one(&ranks(&stands), 0, complete), Some(expected), "{stands:?}");
        }
    }

    #[test]
    fn a_checkpoint_that_is_as_far_is_better() {
        let stands = ranks(&[(7, Mixed, 1), (7, Mixed, 2)]);
        assert_eq!(one(&stands, 7, true), None, "nobody brings anything");
        assert_eq!(one(&stands, 8, true), None);
        assert_eq!(one(&stands, 6, true), Some((8, Some(0), true)));
        let mut stands = ranks(&[(7, Whole, 1), (7, Whole, 1)]);
        stands.iter_mut().for_each(|of| of.keys.push(Stand { round: Round(9), ..of.keys[0] }));
        let plan = plan(&stands, 2, Round(8), true, |_| "w".into()).unwrap();
        let begins = plan.keys.iter().map(|key| (key.round.0, key.from));
        assert_eq!(begins.collect::<Vec<_>>(), [(8, None), (9, Some(0))]);
    }

    #[test]
    fn without_weights_there_is_no_present() {
        assert_eq!(one(&ranks(&[(0, Whole, 1), (0, Mixed, 1)]), 0, true), None, "they are being broadcast");
        assert_eq!(one(&[Present::default(), Present::default()], 0, true), None, "nobody has any");
        let mut one_is_new = ranks(&[(7, Mixed, 1), (7, Mixed, 1)]);
        one_is_new[1] = Present::default();
        assert_eq!(
            one(&one_is_new, 0, true),
            Some((8, Some(0), true)),
            "who knows what the former rank 1 pushed"
        );
    }

    #[test]
    fn rounds_that_were_lost_before_are_counted() {
        let mut stands = ranks(&[(17, Whole, 1), (17, Whole, 2)]);
        stands[1].lost = 10;
        let plan = plan(&stands, 1, Round(0), true, |_| "w".into()).unwrap();
        assert_eq!((plan.lost, plan.keys[0].round, plan.keys[0].from), (10, Round(7), Some(1)));
        assert_eq!(plan.differ, None, "rank 0 does not know of the loss");
    }

    #[test]
    fn different_weights_are_named() {
        let stands = ranks(&[(7, Whole, 1), (7, Whole, 2), (7, Mixed, 1)]);
        let plan = plan(&stands, 1, Round(0), true, |_| "w".into()).unwrap();
        let why = plan.differ.unwrap();
        assert!(why.contains("\"w\" before round 7") && why.contains("[0, 2] and of [1]"), "{why}");
    }
}
