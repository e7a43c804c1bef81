//! Workers that step together (BSP). The last push of a round steps the chunk, and then all workers are answered.
//!
//! Owned by the core. Takes a bit per (chunk, worker) and a word per chunk. The module `contents` handles rounds in
//! which some push is no plain gradient, and `ahead` handles rounds with bytes ahead.
//!
//! On the list of `unsafe` code (`docs/unsafe.md`): the call of the step.

mod ahead;
mod contents;
mod gathered;
mod ungreeted;

use std::collections::BTreeSet;
use std::ops::Range;

use super::{OutOfTurn, Pace, Repeated, Whole};
use crate::kernels::Kernels;
use crate::layout::{Content, Round};
use crate::turn::shard::{Finished, ShardOf};
use crate::weights::{Gather, Mode, Reply, Staged};
use crate::whole::Found;
use contents::Contents;
use ungreeted::Ungreeted;

/// Arrival state of a shard's chunks.
#[derive(Debug)]
pub(crate) struct Arrivals {
    roster: Roster,
    /// The table of the chunks: each chunk's [`State`], then a bit for each worker whose push has arrived. With many small
    /// chunks the table is larger than a cache, so all fields of a chunk that a push needs lie side by side.
    words: Vec<u64>,
    words_per_chunk: usize,
    contents: Contents,
    ungreeted: Ungreeted,
    /// The chunks and ranks whose pushes were [kept](Pace::keep_taken), by index of the chunk and by rank.
    unlinked: BTreeSet<(usize, u32)>,
    /// Whether [bytes ahead](ahead) are answered.
    answers_ahead: bool,
}

/// The state of a chunk, in one 64-bit word of the table.
///
/// ```text
///   63      32   31      30    29   28    27       26    25      0
///   [ round ][ other ][ came ][ former ][ shows ][ tried ][ count ]
/// ```
#[derive(Clone, Copy, Debug)]
struct State {
    /// The round in flight.
    round: Round,
    /// The number of pushes that have arrived.
    count: u32,
}

/// The bits of the count.
const COUNT: u32 = (1 << 26) - 1;
/// Set if some push of the round in flight is no plain gradient. The [contents](Contents) say which pushes these are.
const OTHER: u64 = 1 << 31;
/// The first bit of the content of the previous round's answer.
const FORMER: u32 = 28;
/// Set if the previous round's answer was sent [ahead].
const CAME: u64 = 1 << 30;
/// Set if the window has weights [ahead] of the round in flight.
const SHOWS: u64 = 1 << 27;
/// Set after the weights [ahead] of this round were shown: they are shown only once a round.
const TRIED: u64 = 1 << 26;

impl State {
    #[inline(always)]
    fn of(word: u64) -> Self {
        State { round: Round((word >> 32) as u32), count: word as u32 & COUNT }
    }

    #[inline(always)]
    fn word(self) -> u64 {
        u64::from(self.round.0) << 32 | u64::from(self.count)
    }
}

impl Arrivals {
    /// Creates the arrivals: all chunks begin with round 0, and no worker takes part. `broadcasts` says whether round 0
    /// is a broadcast of weights.
    pub fn new(chunks: usize, workers: u32, broadcasts: bool) -> Self {
        let words_per_chunk = 1 + workers.div_ceil(64) as usize;
        let mut arrivals = Arrivals {
            roster: Roster::new(workers),
            words: vec![0; chunks * words_per_chunk],
            words_per_chunk,
            contents: Contents::new(chunks, workers, broadcasts),
            ungreeted: Ungreeted::default(),
            unlinked: BTreeSet::new(),
            answers_ahead: false,
        };
        arrivals.begin_at(Round(0));
        arrivals
    }

    /// Notes that `rank`'s push of chunk `index` has arrived. The push must be in [turn](Self::check). Returns true if the push
    /// was the last of its round.
    #[inline]
    pub fn note(&mut self, index: usize, rank: u32) -> bool {
        let (word, bit) = bit(rank);
        let words = &mut self.words[index * self.words_per_chunk..][..self.words_per_chunk];
        words[word] |= bit;
        words[0] += 1; // the count
        let State { round, count } = State::of(words[0]);
        count == self.roster.size(round)
    }

    #[inline(always)]
    fn state(&self, index: usize) -> State {
        State::of(self.words[index * self.words_per_chunk])
    }

    /// Whether a rank's push of a chunk has arrived.
    #[inline(always)]
    pub fn is_in(&self, index: usize, rank: u32) -> bool {
        let (word, bit) = bit(rank);
        self.words[index * self.words_per_chunk + word] & bit != 0
    }

    /// Forgets a rank's push of a chunk, if it had arrived.
    pub fn forget_push(&mut self, index: usize, rank: u32) {
        let (word, bit) = bit(rank);
        let words = &mut self.words[index * self.words_per_chunk..][..self.words_per_chunk];
        if words[word] & bit != 0 {
            words[word] &= !bit;
            words[0] -= 1; // the count
            if words[0] & OTHER != 0 {
                self.contents.forget(index, rank);
            }
        }
    }

    /// Notes that a worker lost its links before its first weights of a chunk had arrived. The answer now waits until the
    /// worker [pushes again](Self::handle_repeat_with).
    pub fn lose_first(&mut self, index: usize, rank: u32) {
        self.ungreeted.lose(index, rank);
        self.roster.keep_back(rank);
    }

    /// Handles a push out of turn, as [`Pace::handle_repeat`] does. `has_first` says whether this hub already has the first
    /// weights.
    pub fn handle_repeat_with(
        &mut self,
        index: usize,
        rank: u32,
        bits: u8,
        has_first: bool,
    ) -> Option<Repeated> {
        let is_first = !has_first || self.ungreeted.has_lost(index, rank);
        let next = if is_first { self.roster.first(rank) } else { self.round(index) };
        let round = Round(next.0.checked_sub(1)?);
        match round.low_bits() == bits && (!is_first || self.ungreeted.ask(index, rank, has_first)) {
            false => None,
            true if !is_first => Some(Repeated::Answered(round)),
            true => Some(if has_first { Repeated::Due(round) } else { Repeated::Waits }),
        }
    }

    /// Takes the request of worker `rank` for the weights of a finished round as its first weights. Returns false if there is no
    /// request. The worker asks again if it [lost](Self::lose_first) its links before these weights arrived.
    #[cold]
    fn greet_if_asked(&mut self, index: usize, finished: Round, rank: u32) -> bool {
        self.roster.has(rank, finished.next()) && self.ungreeted.greet(index, rank)
    }

    /// Whether the pushes of all workers that take part have arrived.
    pub fn is_whole(&self, index: usize) -> bool {
        let State { round, count } = self.state(index);
        count > 0 && count == self.roster.size(round)
    }

    /// Moves chunk `index` past rounds without workers: to the first round with a worker, or past at most `most` rounds. Returns
    /// the number of skipped rounds. The workers of the chunk's new round then wait for the weights of the previous round.
    fn skip_deserted(&mut self, index: usize, most: u32) -> u32 {
        let State { round, .. } = self.state(index);
        let Some(next) = self.roster.first_after(round) else { return 0 };
        let next = next.min(Round(round.0.saturating_add(most)));
        self.begin(index, next); // no push has arrived
        next.0 - round.0
    }

    /// Returns the first round in which a worker takes part; `None` without workers.
    pub fn first_round_with_workers(&self) -> Option<Round> {
        self.roster.lowest()
    }

    /// Ends the round of a chunk when all its pushes have arrived, usually by a step. Returns the content of the answer. `None`
    /// if the contents of the pushes [exclude each other](Self::mixed).
    #[inline]
    pub fn conclude<M: Mode>(
        &mut self,
        stages: &mut Staged<M>,
        kernels: &Kernels,
        place: usize,
    ) -> Option<Content> {
        debug_assert!(self.is_whole(place) || M::Gather::WAITS);
        let round = self.round(place);
        let word = &mut self.words[place * self.words_per_chunk];
        *word &= !CAME;
        if *word & OTHER != 0 {
            if !stages.gather.has_mean(place, round) {
                return self.conclude_other(stages, kernels, place);
            }
            self.contents.clear(place); // the mean was decided when the chunk was gathered
        }
        if M::Gather::WAITS && stages.gather.found(place, round) == Some(Found::Skip) {
            return Some(Content::Nothing);
        }
        // SAFETY: all workers that take part have pushed this chunk, and get their answers only after this function returns.
        unsafe { stages.step(kernels, place, self.roster.ranks(round), 0, round) };
        Some(Content::Gradient)
    }

    /// Returns the ranks whose push of a chunk has arrived, in ascending order.
    fn pushed(&self, index: usize) -> impl Iterator<Item = u32> + Clone {
        (0..self.roster.from.len() as u32).filter(move |&rank| self.is_in(index, rank))
    }

    /// Moves a chunk that has all its pushes to the next round. `content` is the content of the answers.
    #[inline]
    pub fn advance(&mut self, index: usize, content: Content) {
        let came = self.words[index * self.words_per_chunk] & CAME;
        self.begin(index, self.state(index).round.next());
        self.words[index * self.words_per_chunk] |= came | (content as u64) << FORMER;
    }

    /// Begins a round: no worker's push has arrived.
    #[inline]
    fn begin(&mut self, index: usize, round: Round) {
        let words = &mut self.words[index * self.words_per_chunk..][..self.words_per_chunk];
        words.fill(0);
        words[0] = State { round, count: 0 }.word();
    }
}

/// Returns the position of a rank's bit: the index of the word among the chunk's words, and the bit in this word.
#[inline(always)]
fn bit(rank: u32) -> (usize, u64) {
    (1 + rank as usize / 64, 1 << (rank % 64))
}

impl Pace for Arrivals {
    fn begin_at(&mut self, first: Round) {
        self.roster = Roster::new(self.roster.from.len() as u32);
        let other = if self.contents.must_be_weights(first) { OTHER } else { 0 };
        for index in 0..self.words.len() / self.words_per_chunk {
            self.begin(index, first);
            self.words[index * self.words_per_chunk] |= other;
        }
    }

    fn admit(&mut self, rank: u32, from: Round) {
        self.roster.admit(rank, from);
    }

    fn remove(&mut self, rank: u32) {
        if self.roster.remove(rank) {
            self.unlinked.retain(|&(_, of)| of != rank);
            self.forget(rank);
            self.ungreeted.forget(rank);
        }
    }

    fn forget(&mut self, rank: u32) {
        for index in 0..self.words.len() / self.words_per_chunk {
            if !self.unlinked.contains(&(index, rank)) {
                self.forget_push(index, rank);
            }
            self.contents.forget_ahead(index, rank);
            if self.round(index) < self.roster.first(rank) {
                self.lose_first(index, rank);
            }
        }
    }

    fn keep_taken(&mut self, rank: u32, is_taken: &dyn Fn(usize, Round) -> bool) {
        for index in 0..self.words.len() / self.words_per_chunk {
            let is_kept = is_taken(index, self.round(index)) && self.is_in(index, rank);
            // Pushed weights are not kept: they are read when the result of the round is known, from the worker's new
            // links.
            if is_kept && self.contents.of(index, rank) != Content::Weights {
                self.unlinked.insert((index, rank));
            }
        }
    }

    fn forget_untaken(&mut self, is_taken: &dyn Fn(usize, Round) -> bool) {
        let mut kept = std::mem::take(&mut self.unlinked);
        kept.retain(|&(index, rank)| {
            let stays = !self.is_in(index, rank) || is_taken(index, self.round(index));
            if !stays {
                self.forget_push(index, rank);
            }
            stays
        });
        self.unlinked = kept;
    }

    fn awaits_again(&self, index: usize, rank: u32) -> bool {
        self.unlinked.contains(&(index, rank))
    }

    fn handle_repeat(&mut self, index: usize, rank: u32, round_bits: u8) -> Option<Repeated> {
        let (round, is_in) = (self.round(index), self.is_in(index, rank));
        let pushed = if is_in { round } else { Round(round.0.wrapping_sub(1)) };
        if pushed.low_bits() == round_bits && self.unlinked.remove(&(index, rank)) {
            return Some(if is_in { Repeated::Waits } else { Repeated::Due(pushed) });
        }
        self.handle_repeat_with(index, rank, round_bits, self.round(index) >= self.roster.first(rank))
    }

    #[inline]
    fn round(&self, index: usize) -> Round {
        self.state(index).round
    }

    #[inline]
    fn next_round(&self, place: usize, _: u32) -> Round {
        self.round(place)
    }

    #[inline]
    fn first_round(&self, rank: u32) -> Round {
        self.roster.first(rank)
    }

    /// Accepts every content. After the last push, the contents of all pushes are compared.
    #[inline]
    fn takes(&self, _: u32, _: Content, _: Round) -> Result<(), &'static str> {
        Ok(())
    }

    #[inline]
    fn answered(&self, place: usize, rank: u32, round: Round) -> Content {
        // A group that stepped as one has an index after the indices of the chunks, and no word.
        let former = self.words.get(place * self.words_per_chunk).map_or(0, |word| word >> FORMER & 3);
        if former == 0 { Content::Gradient } else { self.answered_other(former, place, rank, round) }
    }

    #[inline]
    fn answer(&self, place: usize, rank: u32, round: Round) -> (Content, bool) {
        // A group that stepped as one has an index after the indices of the chunks, and no word.
        let word = self.words.get(place * self.words_per_chunk).map_or(0, |word| *word);
        match word & (CAME | 3 << FORMER) {
            0 => (Content::Gradient, true),
            _ => self.answer_other(word & CAME != 0, place, rank, round),
        }
    }

    #[inline]
    fn check(&self, index: usize, rank: u32, round_bits: u8) -> Result<Round, OutOfTurn> {
        let round = self.state(index).round;
        if round.low_bits() != round_bits {
            return Err(OutOfTurn::OtherRound { expected: round });
        }
        if !self.roster.has(rank, round) {
            return Err(OutOfTurn::NotYet(round));
        }
        if self.is_in(index, rank) {
            return Err(OutOfTurn::Duplicate(round));
        }
        Ok(round)
    }

    #[inline]
    fn turn_of_all(&self, places: Range<usize>, rank: u32, round_bits: u8) -> Option<Round> {
        let (word, bit) = bit(rank);
        let State { round, .. } = self.state(places.start);
        let in_turn = |words: &[u64]| State::of(words[0]).round == round && words[word] & bit == 0;
        let words = &self.words[places.start * self.words_per_chunk..places.end * self.words_per_chunk];
        let is_turn = round.low_bits() == round_bits
            && self.roster.has(rank, round)
            && words.chunks_exact(self.words_per_chunk).all(in_turn);
        is_turn.then_some(round)
    }

    #[inline]
    fn note_all(&mut self, places: Range<usize>, rank: u32) -> Whole {
        let (word, bit) = bit(rank);
        let size = self.roster.size(self.round(places.start));
        let words = &mut self.words[places.start * self.words_per_chunk..places.end * self.words_per_chunk];
        let (mut whole, mut all, chunks) = (0, 0, places.len());
        for words in words.chunks_exact_mut(self.words_per_chunk) {
            words[word] |= bit;
            words[0] += 1; // the count
            all |= words[0];
            whole += usize::from(State::of(words[0]).count == size);
        }
        match whole {
            0 => Whole::None,
            _ if whole == chunks && all & OTHER == 0 => Whole::All,
            _ => Whole::Some,
        }
    }

    /// Checks whether a worker takes part in the next round, and so gets the weights of the finished round.
    #[inline]
    fn answer_due(&mut self, index: usize, finished: Round, rank: u32) -> Option<Round> {
        let is_due =
            self.roster.is_answered(rank, finished.next()) || self.greet_if_asked(index, finished, rank);
        is_due.then_some(finished)
    }

    fn each_waiting(&self, index: usize, each: &mut dyn FnMut(u32, bool)) -> u64 {
        let State { round, count } = self.state(index);
        let taking_part = self.roster.size(round);
        // Workers that take part only from a later round on get their first weights after this round. So these workers wait, too.
        let is_awaited = count > 0 || taking_part < self.roster.count;
        if is_awaited && count < taking_part {
            let owes = |rank| self.roster.has(rank, round) && !self.is_in(index, rank);
            self.roster.ranks(round.max(self.roster.settled)).for_each(|rank| each(rank, owes(rank)));
        }
        count.into()
    }

    fn has_finished_before(&self, place: usize, from: Round) -> bool {
        from > Round(0) && self.round(place) == from
    }

    #[inline]
    fn take_push<M: Mode>(
        shard: &mut ShardOf<Self, M>,
        kernels: &Kernels,
        place: usize,
        rank: u32,
        (round, content): (Round, Content),
    ) -> Option<Finished> {
        if content != Content::Gradient {
            shard.pace.note_content(place, rank, content);
        }
        let can_step =
            shard.pace.note(place, rank) && round < shard.until && may_finish(shard, kernels, place);
        can_step.then(|| finish_round(shard, kernels, place))
    }

    fn take_ahead<M: Mode>(shard: &mut ShardOf<Self, M>, kernels: &Kernels, place: usize, rank: u32) -> bool {
        shard.pace.answers_ahead && ahead::take(shard, kernels, place, rank)
    }

    fn note_ahead(&mut self, place: usize, rank: u32) -> bool {
        self.contents.note_ahead(place, rank)
    }

    fn take_back<M: Mode>(shard: &mut ShardOf<Self, M>) {
        if shard.pace.answers_ahead {
            ahead::take_back(shard);
        }
    }

    fn end_rounds<M: Mode>(
        shard: &mut ShardOf<Self, M>,
        kernels: &Kernels,
        place: usize,
        before: Round,
    ) -> bool {
        let ShardOf { pace, stages, .. } = shard;
        if pace.round(place) < before {
            pace.end_round(stages, kernels, place);
            pace.begin(place, before); // later rounds before `before` have no pushes
        }
        true
    }

    /// Makes one step for the group, unless newcomers or a snapshot need each chunk separately.
    #[inline]
    fn settle_joined<M: Mode>(
        shard: &mut ShardOf<Self, M>,
        kernels: &Kernels,
        places: Range<usize>,
        joined: usize,
    ) -> Option<Finished> {
        let ShardOf { pace, stages, .. } = shard;
        let round = pace.round(places.start);
        let next = round.next();
        let apart = round >= shard.until || pace.roster.has_newcomers(next) || shard.snapshots.concerns(next);
        if apart || stages.reply.awaits_task(round) || !stages.steps_alike(places.clone(), round) {
            return None;
        }
        // SAFETY: all workers that take part have pushed each chunk of the group, and get their answers only after this
        // function returns.
        unsafe { stages.step(kernels, joined, pace.roster.ranks(round), 0, round) };
        places.for_each(|place| pace.begin(place, next));
        Some(shard.finished(joined, round, 1))
    }

    fn settle<M: Mode>(shard: &mut ShardOf<Self, M>, kernels: &Kernels, place: usize) -> Option<Finished> {
        let round = shard.pace.round(place);
        if round >= shard.until {
            return None;
        }
        if M::Gather::WAITS && gathered::is_decided(shard, place, round) {
            return gathered::settle(shard, kernels, place);
        }
        if !shard.pace.is_whole(place) {
            return skip_deserted(shard, place);
        }
        may_finish(shard, kernels, place).then(|| finish_round(shard, kernels, place))
    }
}

/// Whether a chunk that has all its pushes may step at once.
#[inline]
fn may_finish<M: Mode>(shard: &mut ShardOf<Arrivals, M>, kernels: &Kernels, place: usize) -> bool {
    let ShardOf { pace, stages, .. } = shard;
    !stages.reply.awaits_task(pace.round(place))
        && (!M::Gather::WAITS || gathered::gather(pace, stages, kernels, place))
}

/// Ends the round of a chunk that has all its pushes, and moves the chunk to its next round.
#[inline]
fn finish_round<M: Mode>(shard: &mut ShardOf<Arrivals, M>, kernels: &Kernels, place: usize) -> Finished {
    let ShardOf { pace, stages, .. } = shard;
    let round = pace.round(place);
    let Some(content) = pace.conclude(stages, kernels, place) else {
        return shard.fail(place, |shard, key| shard.pace.mixed(place, key));
    };
    if M::Gather::WAITS && content != Content::Gradient && stages.gather.steps_at_once() {
        stages.gather.take_nothing(place, round);
    }
    if pace.roster.has_newcomers(round.next()) {
        stages.greet(place);
    }
    pace.advance(place, content);
    shard.capture(place, round.next());
    shard.finished(place, round, u32::from(content != Content::Nothing))
}

/// Skips rounds of a chunk that no worker is left to push, if workers of a later round wait. The waiting workers get the current
/// weights.
fn skip_deserted<M: Mode>(shard: &mut ShardOf<Arrivals, M>, place: usize) -> Option<Finished> {
    let deserted = shard.pace.round(place);
    let at_once = M::Gather::WAITS && shard.stages.gather.steps_at_once();
    if at_once && shard.stages.gather.found_before(deserted).is_none() {
        return None; // other chunks are a round behind
    }
    let skipped = shard.pace.skip_deserted(place, if at_once { 1 } else { u32::MAX });
    if skipped == 0 {
        return None;
    }
    if M::Gather::WAITS {
        gathered::pass(&shard.pace, &mut shard.stages, place, deserted);
    }
    let round = shard.pace.round(place);
    shard.stages.greet(place);
    shard.capture_passed(place, Round(round.0 - skipped), round);
    let last = Round(round.0 - 1);
    Some(Finished { skipped, ..shard.finished(place, last, 0) })
}

/// The workers that take part, by rank.
#[derive(Debug)]
struct Roster {
    /// The first round of each rank; `None` for ranks that do not take part.
    from: Vec<Option<Round>>,
    /// The first round before which each rank gets an answer, by rank: the answer has the weights of the previous
    /// round. This is the rank's first round or, if the first answer is [kept back](Self::keep_back), the round after
    /// it.
    answered_from: Vec<Option<Round>>,
    count: u32,
    /// The round from which all `count` workers take part.
    settled: Round,
}

impl Roster {
    /// Creates an empty roster for at most `ranks` workers.
    fn new(ranks: u32) -> Self {
        let none = vec![None; ranks as usize];
        Roster { from: none.clone(), answered_from: none, count: 0, settled: Round(0) }
    }

    /// Lets `rank` take part from round `from` on.
    fn admit(&mut self, rank: u32, from: Round) {
        if self.from[rank as usize].replace(from).is_none() {
            self.count += 1;
        }
        self.answered_from[rank as usize] = Some(from);
        self.settled = self.settled.max(from);
    }

    /// Removes `rank` from every unfinished round. Returns false if it did not take part.
    fn remove(&mut self, rank: u32) -> bool {
        // This is not `count -= u32::from(took_part)`, followed by a test of `took_part`: rustc 1.96.0 and earlier
        // lose the subtraction in release builds when this is inlined (docs/decisions/0022-a-miscompiled-count.md).
        if self.from[rank as usize].take().is_none() {
            return false;
        }
        self.answered_from[rank as usize] = None;
        self.count -= 1;
        true
    }

    /// Delays the answer with the weights before the first round of `rank`, until `rank` pushes again.
    fn keep_back(&mut self, rank: u32) {
        self.answered_from[rank as usize] = self.from[rank as usize].map(Round::next);
    }

    /// Whether `rank` gets the answer of the round just before `before`. False if this answer is [kept back](Self::keep_back).
    #[inline]
    fn is_answered(&self, rank: u32, before: Round) -> bool {
        self.answered_from[rank as usize].is_some_and(|from| from <= before)
    }

    /// Returns the number of workers that take part in a round.
    #[inline]
    fn size(&self, round: Round) -> u32 {
        if round >= self.settled { self.count } else { self.ranks(round).count() as u32 }
    }

    /// Returns the first round with a worker after a round without workers. `None` if `round` has workers, or no later
    /// round has.
    fn first_after(&self, round: Round) -> Option<Round> {
        if self.size(round) > 0 { None } else { self.lowest() }
    }

    /// Returns the first round in which a worker takes part; `None` without workers.
    fn lowest(&self) -> Option<Round> {
        self.from.iter().flatten().min().copied()
    }

    /// Whether `rank` takes part in a round.
    #[inline]
    fn has(&self, rank: u32, round: Round) -> bool {
        self.from[rank as usize].is_some_and(|from| from <= round)
    }

    /// Returns the first round in which `rank` takes part, or round 0 if it does not take part.
    #[inline]
    fn first(&self, rank: u32) -> Round {
        self.from[rank as usize].unwrap_or_default()
    }

    /// Whether a worker first takes part in this round.
    #[inline]
    fn has_newcomers(&self, round: Round) -> bool {
        round <= self.settled && self.from.contains(&Some(round))
    }

    /// Returns the ranks that take part in a round, ascending.
    fn ranks(&self, round: Round) -> impl Iterator<Item = u32> + Clone {
        (0u32..)
            .zip(&self.from)
            .filter(move |(_, from)| from.is_some_and(|from| from <= round))
            .map(|(r, _)| r)
    }
}

#[cfg(test)]
mod tests;
