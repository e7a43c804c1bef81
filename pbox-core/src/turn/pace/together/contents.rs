//! Rounds of a chunk without a plain step: rounds with pushes that have no gradient, or that have new weights.
//!
//! ```text
//!   all gradients          the step, which `Arrivals` makes itself
//!   some gradients         the step with these gradients, divided by the number of all workers
//!   all nothing            no step: weights and state stay
//!   all weights            the weights of the lowest rank replace the hub's, and the state stays
//!   only some weights      the job fails. Exception: in the broadcast, ranks may push nothing
//! ```
//!
//! Owned by the core. Takes four bits per (chunk, worker); a plain round does not touch these bits.
//!
//! On the list of `unsafe` code (`docs/unsafe.md`): the calls that read the workers' pushes.

use super::{Arrivals, CAME, OTHER, Pace, SHOWS, State, TRIED};
use crate::kernels::Kernels;
use crate::layout::{Content, Round};
use crate::weights::{Gather, Mode, Staged};

/// The pushes in flight that are not plain gradients, by chunk and worker. [`Contents`] also marks which bytes and
/// answers were sent ahead.
#[derive(Debug)]
pub(super) struct Contents {
    /// One row of bits for each chunk and each kind of content, with one bit for each worker. In the row of
    /// [`ANSWERED_AHEAD`], the bits of the workers that were answered ahead are set.
    words: Vec<u64>,
    words_per_row: usize,
    broadcasts: bool,
}

/// The number of rows of each chunk.
const ROWS: usize = 4;
/// Plain gradients are not noted, so their row is free for answers ahead.
const ANSWERED_AHEAD: Content = Content::Gradient;

/// The combined meaning of all pushes of a chunk in a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Together {
    Gradients,
    Nothing,
    Weights,
    Mixed,
}

impl Contents {
    /// Creates the contents. Their memory is touched on first use.
    pub fn new(chunks: usize, workers: u32, broadcasts: bool) -> Self {
        let words_per_row = workers.div_ceil(64) as usize;
        Contents { words: vec![0; chunks * ROWS * words_per_row], words_per_row, broadcasts }
    }

    /// Whether a round is the broadcast, in which workers push weights.
    pub fn must_be_weights(&self, round: Round) -> bool {
        self.broadcasts && round == Round(0)
    }

    fn bit(&self, index: usize, rank: u32, content: Content) -> (usize, u64) {
        let row = ROWS * index + content as usize;
        (row * self.words_per_row + rank as usize / 64, 1 << (rank % 64))
    }

    fn note(&mut self, index: usize, rank: u32, content: Content) {
        let (word, bit) = self.bit(index, rank, content);
        self.words[word] |= bit;
    }

    fn drop(&mut self, index: usize, rank: u32, contents: [Content; 2]) {
        for content in contents {
            let (word, bit) = self.bit(index, rank, content);
            self.words[word] &= !bit;
        }
    }

    fn has(&self, index: usize, rank: u32, content: Content) -> bool {
        let (word, bit) = self.bit(index, rank, content);
        self.words[word] & bit != 0
    }

    /// Forgets a worker's push of a chunk: it no longer counts.
    #[cold]
    pub fn forget(&mut self, index: usize, rank: u32) {
        self.drop(index, rank, [Content::Nothing, Content::Weights]);
    }

    /// Forgets a worker's bytes ahead and its answer ahead.
    pub fn forget_ahead(&mut self, index: usize, rank: u32) {
        self.drop(index, rank, [Content::Ahead, ANSWERED_AHEAD]);
    }

    /// Notes that a worker has sent bytes ahead.
    pub fn note_sent_ahead(&mut self, index: usize, rank: u32) {
        self.note(index, rank, Content::Ahead);
    }

    /// Notes an answer ahead for a worker that has sent its bytes ahead. Returns false if the worker has sent no bytes
    /// ahead.
    pub fn note_ahead(&mut self, index: usize, rank: u32) -> bool {
        let has_sent = self.has(index, rank, Content::Ahead);
        if has_sent {
            self.note(index, rank, ANSWERED_AHEAD);
        }
        has_sent
    }

    /// Whether a worker was answered ahead, in the round in flight or in the previous round.
    pub fn is_ahead(&self, index: usize, rank: u32) -> bool {
        self.has(index, rank, ANSWERED_AHEAD)
    }

    /// Whether a worker has sent bytes ahead in the round in flight.
    pub fn has_sent_ahead(&self, index: usize, rank: u32) -> bool {
        self.has(index, rank, Content::Ahead)
    }

    fn row(&mut self, index: usize, content: Content) -> &mut [u64] {
        let row = ROWS * index + content as usize;
        &mut self.words[row * self.words_per_row..][..self.words_per_row]
    }

    /// Forgets all answers ahead of a chunk.
    pub fn clear_ahead(&mut self, index: usize) {
        self.row(index, ANSWERED_AHEAD).fill(0);
    }

    /// Forgets the contents of a chunk after its round.
    pub fn clear(&mut self, index: usize) {
        for content in [Content::Nothing, Content::Weights, Content::Ahead] {
            self.row(index, content).fill(0);
        }
    }

    /// Returns the content of a worker's push that has arrived.
    pub fn of(&self, index: usize, rank: u32) -> Content {
        let is = |content: &Content| self.has(index, rank, *content);
        [Content::Nothing, Content::Weights].into_iter().find(is).unwrap_or_default()
    }
}

impl Arrivals {
    /// Notes that a worker's push is not a gradient, before the push itself [is noted](Self::note).
    #[cold]
    pub(in crate::turn) fn note_content(&mut self, index: usize, rank: u32, content: Content) {
        self.words[index * self.words_per_chunk] |= OTHER;
        self.contents.note(index, rank, content);
    }

    /// Returns a chunk's [answer](Pace::answer) after a round without a plain step, or if some workers got the answer ahead.
    #[cold]
    pub(super) fn answer_other(&self, came: bool, place: usize, rank: u32, round: Round) -> (Content, bool) {
        let content = self.answered(place, rank, round);
        (content, content != Content::Nothing && !(came && self.contents.is_ahead(place, rank)))
    }

    /// Returns the content of a chunk's answer in a round without a plain step. If the weights did not change, only two kinds
    /// of worker get them: workers that have no weights yet, and workers that were answered ahead.
    #[cold]
    pub(super) fn answered_other(&self, former: u64, place: usize, rank: u32, round: Round) -> Content {
        match former == Content::Nothing as u64 {
            true if round < self.roster.first(rank) || self.contents.is_ahead(place, rank) => {
                Content::Gradient
            }
            true => Content::Nothing,
            false => Content::Weights,
        }
    }

    /// Returns the workers whose push of a chunk has arrived and has this content, in ascending order.
    pub(super) fn pushed_as(&self, index: usize, content: Content) -> impl Iterator<Item = u32> + Clone {
        self.pushed(index).filter(move |&rank| self.contents.of(index, rank) == content)
    }

    /// Combines the pushes of a chunk that have arrived. At least one must have arrived.
    pub(super) fn together(&self, index: usize) -> Together {
        let has = |content| self.pushed_as(index, content).next().is_some();
        match (has(Content::Gradient), has(Content::Nothing), has(Content::Weights)) {
            (false, false, true) => Together::Weights,
            (false, true, true) if self.contents.must_be_weights(self.round(index)) => Together::Weights,
            (_, _, true) => Together::Mixed,
            _ if self.contents.must_be_weights(self.round(index)) => Together::Mixed,
            (true, _, false) => Together::Gradients,
            (false, _, false) => Together::Nothing,
        }
    }

    /// Ends a round as [`conclude`](Self::conclude) does, with or without a plain step.
    #[cold]
    pub(super) fn conclude_other<M: Mode>(
        &mut self,
        stages: &mut Staged<M>,
        kernels: &Kernels,
        place: usize,
    ) -> Option<Content> {
        let round = self.round(place);
        let content = match self.together(place) {
            Together::Mixed => return None,
            Together::Nothing => Content::Nothing,
            Together::Weights => Content::Weights,
            Together::Gradients => Content::Gradient,
        };
        let word = self.words[place * self.words_per_chunk];
        let (shows, mut came) = (word & SHOWS != 0, false);
        if shows && content != Content::Gradient {
            stages.hide(place);
        }
        let pushed = self.pushed_as(place, content);
        // SAFETY: all workers in `pushed` have pushed this chunk, and get their answers only after this function returns.
        unsafe {
            match content {
                Content::Nothing => stages.relay_nothing(place, pushed),
                Content::Weights => stages.put(kernels, place, pushed, round),
                _ => {
                    let missing = stages.without_gradient(place, self.pushed_as(place, Content::Nothing));
                    match shows {
                        true => came = stages.step_shown(kernels, place, pushed, missing, round),
                        false => stages.step(kernels, place, pushed, missing, round),
                    }
                }
            }
        }
        self.contents.clear(place);
        if word & TRIED == 0 {
            self.contents.clear_ahead(place);
        }
        if came {
            self.words[place * self.words_per_chunk] |= CAME;
        }
        Some(content)
    }

    /// Ends a chunk's round with the pushes that have arrived, in a job that is over. The chunk keeps its weights if no
    /// push has arrived, or if the contents of the pushes exclude each other.
    pub(super) fn end_round<M: Mode>(&mut self, stages: &mut Staged<M>, kernels: &Kernels, place: usize) {
        let round = self.round(place);
        if State::of(self.words[place * self.words_per_chunk]).count == 0 {
            return;
        }
        // SAFETY: each worker whose slot is read has pushed this chunk, and no worker gets an answer from now on.
        unsafe {
            match self.together(place) {
                // The gathered mean has all pushes, even those of workers that have lost their links.
                Together::Gradients if M::Gather::WAITS && !stages.gather.steps_at_once() => {
                    stages.last_step(kernels, place, [].into_iter(), 0, round);
                }
                Together::Gradients => {
                    let missing = stages.without_gradient(place, self.pushed_as(place, Content::Nothing));
                    let pushed = self.pushed_as(place, Content::Gradient);
                    stages.last_step(kernels, place, pushed, missing, round);
                }
                Together::Weights => stages.last_put(place, self.pushed_as(place, Content::Weights)),
                Together::Nothing | Together::Mixed => {}
            }
        }
        self.contents.clear(place);
    }

    /// Describes an error: the workers' pushes of a chunk have contents that exclude each other, such as weights and
    /// gradients. `key` is the name of the chunk's key.
    pub(in crate::turn) fn mixed(&self, place: usize, key: &str) -> String {
        let Round(round) = self.round(place);
        let pushed = |content: Content| {
            let ranks: Vec<String> = self.pushed_as(place, content).map(|rank| rank.to_string()).collect();
            (!ranks.is_empty()).then(|| format!("{} from rank {}", content.name(), ranks.join(", ")))
        };
        let all = [Content::Weights, Content::Gradient, Content::Nothing].map(pushed);
        let all = all.into_iter().flatten().collect::<Vec<_>>().join("; ");
        let what = match self.contents.must_be_weights(Round(round)) {
            true => "round 0 is the broadcast: rank 0 pushes weights, and each other rank weights or nothing",
            false => {
                "weights are replaced only if each rank pushes weights of the key in the same round: write the \
                 weights on all ranks, or on none"
            }
        };
        format!("key {key:?} got in round {round} {all}: {what}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GRADIENT: Content = Content::Gradient;
    const NOTHING: Content = Content::Nothing;
    const WEIGHTS: Content = Content::Weights;

    /// Returns one chunk in this round. Each worker has pushed one of these contents.
    fn pushed(round: u32, contents: &[Content]) -> Arrivals {
        let mut arrivals = Arrivals::new(1, contents.len() as u32, true);
        arrivals.begin_at(Round(round));
        for (rank, &content) in (0..).zip(contents) {
            arrivals.admit(rank, Round(round));
            push(&mut arrivals, rank, content);
        }
        arrivals
    }

    fn push(arrivals: &mut Arrivals, rank: u32, content: Content) {
        if content != GRADIENT {
            arrivals.note_content(0, rank, content);
        }
        arrivals.note(0, rank);
    }

    #[test]
    fn weights_go_with_weights_alone() {
        for (contents, together) in [
            (&[GRADIENT, GRADIENT][..], Together::Gradients),
            (&[NOTHING, GRADIENT, NOTHING], Together::Gradients),
            (&[NOTHING, NOTHING], Together::Nothing),
            (&[WEIGHTS, WEIGHTS], Together::Weights),
            (&[WEIGHTS, GRADIENT], Together::Mixed),
            (&[NOTHING, WEIGHTS], Together::Mixed),
        ] {
            let seen = pushed(3, contents).together(0);
            assert_eq!(seen, together, "{contents:?}");
            let is_broadcast = contents.contains(&WEIGHTS) && !contents.contains(&GRADIENT);
            let first = if is_broadcast { Together::Weights } else { Together::Mixed };
            assert_eq!(pushed(0, contents).together(0), first, "{contents:?} in round 0");
        }
    }

    #[test]
    fn the_weights_of_a_broadcast_are_those_of_the_lowest_rank_that_pushed_any() {
        let arrivals = pushed(0, &[NOTHING, WEIGHTS, NOTHING, WEIGHTS]);
        assert_eq!(arrivals.pushed_as(0, WEIGHTS).collect::<Vec<_>>(), [1, 3]);
    }

    #[test]
    fn who_pushed_what_is_in_the_error() {
        let error = pushed(7, &[WEIGHTS, GRADIENT, WEIGHTS, NOTHING]).mixed(0, "fc.bias");
        let expected = "key \"fc.bias\" got in round 7 weights from rank 0, 2; a gradient from rank 1; nothing from rank 3: \
                        weights are replaced only if each rank pushes weights of the key in the same round: write the \
                        weights on all ranks, or on none";
        assert_eq!(error, expected);
        let error = pushed(0, &[GRADIENT, GRADIENT]).mixed(0, "fc.bias");
        assert!(
            error.ends_with("a gradient from rank 0, 1: round 0 is the broadcast: rank 0 pushes weights, and each other rank weights or nothing")
        );
    }

    #[test]
    fn a_push_that_is_forgotten_may_come_as_something_else() {
        let mut arrivals = pushed(3, &[WEIGHTS, GRADIENT, NOTHING]);
        for rank in [0, 2] {
            arrivals.forget(rank);
            assert!(!arrivals.is_whole(0) && !arrivals.is_in(0, rank));
            push(&mut arrivals, rank, GRADIENT);
        }
        assert_eq!(arrivals.together(0), Together::Gradients);
        assert_eq!(arrivals.pushed_as(0, GRADIENT).collect::<Vec<_>>(), [0, 1, 2]);
    }

    #[test]
    fn an_answer_says_what_came_of_the_round_and_a_newcomer_gets_weights() {
        let mut arrivals = pushed(3, &[NOTHING, NOTHING]);
        arrivals.admit(1, Round(4));
        for content in [NOTHING, WEIGHTS, GRADIENT] {
            arrivals.contents.clear(0);
            let round = arrivals.round(0);
            arrivals.advance(0, content);
            assert_eq!((arrivals.round(0), arrivals.answered(0, 0, round)), (round.next(), content));
            let newcomer = if round == Round(3) { GRADIENT } else { content };
            assert_eq!(arrivals.answered(0, 1, round), newcomer, "it has nothing that could stay");
            assert!(!arrivals.is_in(0, 0) && !arrivals.is_whole(0));
        }
    }
}
