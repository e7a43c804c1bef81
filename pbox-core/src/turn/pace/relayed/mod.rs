//! Workers that step together, at a hub below other hubs (PHub, figure 5). After the last push of a round, the chunk's
//! sum is sent to a hub above. When that hub answers, all workers get the answer.
//!
//! ```text
//!   Gathering --last push: sum, post up--> Asked --answer from above--> Answered --post down--> Gathering, next round
//! ```
//!
//! A hub that joins a running job first waits for the weights of the round before its own first round. While the shard is
//! held, no sum is sent to hubs above, and answers that have arrived from these hubs wait. Owned by the core.

use std::collections::BTreeSet;
use std::ops::Range;

use super::{Arrivals, OutOfTurn, Pace, Repeated, Whole};
use crate::kernels::Kernels;
use crate::layout::{Content, Round};
use crate::turn::shard::{Finished, ShardOf};
use crate::weights::Mode;

/// Arrivals of pushes from below and of answers from above.
#[derive(Debug)]
pub(crate) struct Relayed {
    below: Arrivals,
    workers: u32,
    /// The number of the link that carries each chunk's sums to a hub above, by the chunk's index in the shard.
    links_above: Vec<u32>,
    /// The state of each chunk at the hub above, by the chunk's index in the shard.
    above: Vec<Above>,
    /// The content of each chunk's sum that was sent to a hub above, or of the hub's answer to this sum.
    contents: Vec<Content>,
    /// The first round in which this hub takes part at the hubs above. Until this round is known, the value is above all
    /// rounds.
    first: Round,
    /// Pushes whose workers have lost their links after the sum was sent to the hub above. A push is answered when its
    /// worker repeats it.
    unlinked: BTreeSet<(usize, u32)>,
}

/// The state of a chunk at the hub above.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Above {
    /// The hub does not yet know with which round the job begins. If weights have already arrived, the value has the low
    /// bits of their round.
    Joining(Option<u8>),
    /// No sum was sent to the hub above: the workers push.
    Gathering,
    /// The sum of this round was sent to the hub above and has no answer.
    Asked(Round),
    /// The answer of this round has arrived.
    Answered(Round),
}

impl Relayed {
    /// Creates the state without workers. `links_above` has the number of the link for the sums of each chunk.
    pub fn new(workers: u32, links_above: Vec<u32>, broadcasts: bool) -> Self {
        let (chunks, below) = (links_above.len(), Arrivals::new(links_above.len(), workers, broadcasts));
        let (above, first) = (vec![Above::Joining(None); chunks], Round(u32::MAX));
        let contents = vec![Content::default(); chunks];
        Relayed { below, workers, links_above, above, contents, first, unlinked: BTreeSet::new() }
    }

    /// Whether the sum of a chunk's current round was sent to the hub above.
    fn is_up(&self, place: usize) -> bool {
        let round = self.below.round(place);
        matches!(self.above[place], Above::Asked(up) | Above::Answered(up) if up == round)
    }

    /// Whether a chunk still lacks the weights of round `from - 1`. Workers that take part from round `from` on begin with
    /// these weights.
    fn waits_for_first(&self, place: usize, from: Round) -> bool {
        let is_asked =
            matches!(self.above[place], Above::Asked(round) | Above::Answered(round) if round < from);
        is_asked || self.below.round(place) < from
    }
}

impl Pace for Relayed {
    /// Begins at a round. A hub that joins a running job first waits for the weights of the previous round.
    fn begin_at(&mut self, first: Round) {
        self.below.begin_at(first);
        self.first = first;
        let before = first.0.checked_sub(1).map(Round);
        for above in &mut self.above {
            *above = match (before, *above) {
                (None, _) => Above::Gathering,
                (Some(before), Above::Joining(Some(bits))) if bits == before.low_bits() => {
                    Above::Answered(before)
                }
                (Some(before), _) => Above::Asked(before),
            }
        }
    }

    fn admit(&mut self, rank: u32, from: Round) {
        self.below.admit(rank, from);
    }

    fn remove(&mut self, rank: u32) {
        self.below.remove(rank);
        self.unlinked.retain(|&(_, of)| of != rank);
    }

    fn forget(&mut self, rank: u32) {
        for place in 0..self.above.len() {
            if !self.is_up(place) {
                self.below.forget_push(place, rank);
            } else if self.below.is_in(place, rank) {
                self.unlinked.insert((place, rank));
            }
            if self.waits_for_first(place, self.below.first_round(rank)) {
                self.below.lose_first(place, rank);
            }
        }
    }

    fn handle_repeat(&mut self, place: usize, rank: u32, round_bits: u8) -> Option<Repeated> {
        let waits = self.is_up(place) && self.below.round(place).low_bits() == round_bits;
        if waits && self.unlinked.remove(&(place, rank)) {
            return Some(Repeated::Waits);
        }
        let has_first = !self.waits_for_first(place, self.below.first_round(rank));
        match self.below.handle_repeat_with(place, rank, round_bits, has_first)? {
            Repeated::Answered(round) if self.unlinked.remove(&(place, rank)) => Some(Repeated::Due(round)),
            repeated => Some(repeated),
        }
    }

    /// Returns the lowest round in flight if no worker is left to push it. The job cannot continue without that round: the
    /// hubs above wait for this hub's sum of every round.
    fn abandoned(&self) -> Option<Round> {
        let lowest = (0..self.above.len()).map(|place| self.round(place)).min()?;
        self.below.first_round_with_workers().is_some_and(|first| first > lowest).then_some(lowest)
    }

    /// Returns the round of a chunk's next sum. After the sum of a round was sent to the hub above, no worker can join this
    /// round.
    #[inline]
    fn round(&self, place: usize) -> Round {
        let round = self.below.round(place);
        match self.above[place] {
            Above::Asked(up) | Above::Answered(up) => round.max(up.next()),
            Above::Gathering | Above::Joining(_) => round,
        }
    }

    #[inline]
    fn next_round(&self, place: usize, rank: u32) -> Round {
        self.below.next_round(place, rank)
    }

    #[inline]
    fn first_round(&self, link: u32) -> Round {
        if self.is_push(link) { self.below.first_round(link) } else { self.first }
    }

    #[inline]
    fn takes(&self, rank: u32, content: Content, round: Round) -> Result<(), &'static str> {
        self.below.takes(rank, content, round)
    }

    #[inline]
    fn answered(&self, place: usize, link: u32, round: Round) -> Content {
        if self.is_push(link) { self.below.answered(place, link, round) } else { self.contents[place] }
    }

    #[inline]
    fn check(&self, place: usize, link: u32, round_bits: u8) -> Result<Round, OutOfTurn> {
        if self.is_push(link) {
            return self.below.check(place, link, round_bits);
        }
        match self.above[place] {
            Above::Asked(round) if link == self.links_above[place] && round.low_bits() == round_bits => {
                Ok(round)
            }
            Above::Asked(expected) => Err(OutOfTurn::OtherRound { expected }),
            Above::Joining(None) if link == self.links_above[place] => Ok(Round(u32::from(round_bits))),
            Above::Answered(round) => Err(OutOfTurn::Duplicate(round)),
            Above::Gathering | Above::Joining(_) => Err(OutOfTurn::NotYet(self.below.round(place))),
        }
    }

    #[inline]
    fn turn_of_all(&self, places: Range<usize>, link: u32, round_bits: u8) -> Option<Round> {
        if self.is_push(link) { self.below.turn_of_all(places, link, round_bits) } else { None }
    }

    #[inline]
    fn note_all(&mut self, places: Range<usize>, link: u32) -> Whole {
        self.below.note_all(places, link)
    }

    fn each_waiting(&self, place: usize, each: &mut dyn FnMut(u32, bool)) -> u64 {
        self.below.each_waiting(place, each)
    }

    fn link_above(&self, place: usize) -> Option<u32> {
        Some(self.links_above[place])
    }

    fn asked(&self, place: usize) -> Option<Round> {
        match self.above[place] {
            Above::Asked(round) => Some(round),
            Above::Joining(_) | Above::Gathering | Above::Answered(_) => None,
        }
    }

    #[inline]
    fn is_push(&self, link: u32) -> bool {
        link < self.workers
    }

    #[inline]
    fn answer_due(&mut self, place: usize, finished: Round, link: u32) -> Option<Round> {
        if !self.is_push(link) {
            return Some(finished);
        }
        let due = self.below.answer_due(place, finished, link);
        due.filter(|_| self.unlinked.is_empty() || !self.unlinked.contains(&(place, link)))
    }

    fn has_finished_before(&self, place: usize, from: Round) -> bool {
        // If the chunk still waits for the weights of the previous round, it is answered when these weights arrive.
        self.below.has_finished_before(place, from) && !self.waits_for_first(place, from)
    }

    #[inline]
    fn take_push<M: Mode>(
        shard: &mut ShardOf<Self, M>,
        kernels: &Kernels,
        place: usize,
        link: u32,
        (round, content): (Round, Content),
    ) -> Option<Finished> {
        let pace = &mut shard.pace;
        if !pace.is_push(link) {
            pace.contents[place] = content;
            pace.above[place] = match pace.above[place] {
                Above::Joining(_) => Above::Joining(Some(round.low_bits())),
                _ => Above::Answered(round),
            };
        } else {
            if content != Content::Gradient {
                pace.below.note_content(place, link, content);
            }
            if !pace.below.note(place, link) {
                return None;
            }
        }
        if shard.is_held() { None } else { Self::settle(shard, kernels, place) }
    }

    fn settle<M: Mode>(shard: &mut ShardOf<Self, M>, kernels: &Kernels, place: usize) -> Option<Finished> {
        let ShardOf { pace, stages, .. } = shard;
        match pace.above[place] {
            Above::Gathering if pace.below.is_whole(place) => {
                let (round, link_above) = (pace.below.round(place), pace.links_above[place]);
                let Some(content) = pace.below.conclude(stages, kernels, place) else {
                    return Some(shard.fail(place, |shard, key| shard.pace.below.mixed(place, key)));
                };
                (pace.above[place], pace.contents[place]) = (Above::Asked(round), content);
                Some(Finished { ranks: link_above..link_above + 1, ..shard.finished(place, round, 1) })
            }
            Above::Joining(_) | Above::Gathering | Above::Asked(_) => None,
            Above::Answered(round) => {
                pace.above[place] = Above::Gathering;
                if round == pace.below.round(place) {
                    pace.below.advance(place, pace.contents[place]);
                }
                Some(shard.finished(place, round, 0))
            }
        }
    }
}

#[cfg(test)]
mod tests;
