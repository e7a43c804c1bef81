//! One core's part in the selection of the significant set: the significance of its chunks, and the stage of the count.
//!
//! Owned by the core, next to its shard. In a round after which a set is selected, the selector notes each chunk when the
//! chunk is stepped. The core then counts one chunk at a time, between turns. The answers of the next round bring the new
//! set. If a chunk has all pushes of that next round before the selection is over, its step waits. So a set takes effect in
//! the same round in every run.

use std::sync::Arc;

use fabric::{MapError, Slab};

use crate::layout::Round;

use super::SlimDp;
use super::board::{Board, Found};
use super::significance::{BUCKETS, Sums, count_lower, count_upper, select, weigh};

/// A selector's record of one chunk that the core owns.
#[derive(Debug)]
struct Part {
    /// The chunk's id.
    chunk: usize,
    /// The place where the chunk's significance begins.
    start: usize,
    elements: usize,
    sums: Sums,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Stage {
    /// Chunks are noted in the next round after which a set is selected. The value is the number of chunks noted so far.
    Noting(usize),
    /// The core waits for the board's next result.
    Awaiting,
    /// Significances are computed and counted by their upper bits. The chunk at `place` is next.
    Weighing { c: f32, place: usize },
    /// Elements whose upper bits are `upper` are counted by their lower bits. The chunk at `place` is next.
    Counting { upper: u32, place: usize },
}

/// One core's part in selections of the significant set.
#[derive(Debug)]
pub struct Selector {
    slim: SlimDp,
    /// The first round that the job trains in.
    first: Round,
    board: Arc<Board>,
    parts: Vec<Part>,
    /// First the gradients of all noted chunks, then, in their place, the significance of each element.
    significance: Slab,
    counts: Vec<u32>,
    stage: Stage,
    /// The round of the last selection, with the bits of the least significance in the significant set.
    selected: Option<(Round, u32)>,
    /// The round of the chunks that are noted or counted.
    selecting: Round,
    /// The number of the board's results that this core has taken.
    findings: u64,
}

impl Selector {
    /// Creates the selector for chunks, given by id and number of elements. A core without chunks takes no part in
    /// selections. Allocates and touches memory, so call it on the core's NUMA node.
    pub fn new(
        slim: SlimDp,
        first: Round,
        board: Arc<Board>,
        chunks: impl Iterator<Item = (usize, usize)>,
    ) -> Result<Self, MapError> {
        let mut start = 0;
        let part = |(chunk, elements)| {
            start += elements;
            Part { chunk, start: start - elements, elements, sums: Sums::default() }
        };
        let parts: Vec<Part> = chunks.map(part).collect();
        let mut significance = Slab::zeroed("significance of parameters", start)?;
        significance.as_mut_slice().fill(0.0);
        Ok(Selector {
            slim,
            first,
            board,
            parts,
            significance,
            counts: vec![0; BUCKETS],
            stage: Stage::Noting(0),
            selected: None,
            selecting: first,
            findings: 0,
        })
    }

    /// Begins at round `first`. Called before any chunk is noted.
    pub fn begin_at(&mut self, first: Round) {
        (self.first, self.selecting) = (first, first);
    }

    /// Whether a chunk with all pushes of this round must wait for the selection after the previous round.
    pub fn is_awaited(&self, round: Round) -> bool {
        let former = Round(round.0.wrapping_sub(1));
        round > self.first
            && self.slim.selects(former, self.first)
            && self.selected.is_none_or(|(selected, _)| selected != former)
    }

    /// Notes that a chunk was stepped in a round, with its new weights and the mean gradient. If a set is selected
    /// after this round, keeps what the selection needs of the weights and the gradient. If a set was selected after
    /// the previous round, writes the chunk's set to `significant`; workers push this set from the next round on.
    /// Returns whether a set was written.
    pub fn stepped(
        &mut self,
        place: usize,
        round: Round,
        weights: &[f32],
        gradients: &[f32],
        significant: &mut [u64],
    ) -> bool {
        let Part { start, elements, ref mut sums, .. } = self.parts[place];
        let significance = &mut self.significance.as_mut_slice()[start..][..elements];
        let least = self.selected.filter(|(selected, _)| selected.next() == round).map(|(_, least)| least);
        if let Some(least) = least {
            select(significance, least, significant);
        }
        if self.slim.selects(round, self.first) {
            significance.copy_from_slice(gradients);
            *sums = Sums::of(weights, gradients);
            self.selecting = round;
            self.noted();
        }
        least.is_some()
    }

    fn noted(&mut self) {
        let Stage::Noting(noted) = &mut self.stage else { unreachable!("the former selection was awaited") };
        *noted += 1;
        if *noted == self.parts.len() {
            self.stage = Stage::Awaiting;
            self.board.give_sums(self.parts.iter().map(|part| (part.chunk, part.sums)));
        }
    }

    /// Whether a selection is in progress, so that there may be work between turns.
    #[inline]
    pub fn is_selecting(&self) -> bool {
        !matches!(self.stage, Stage::Noting(_))
    }

    /// Does the next part of a selection: counts one chunk, with the weights that `read` returns, or takes the board's next
    /// result. Returns whether there was something to do. The last result ends the selection, and then the chunks that
    /// [waited](Self::is_awaited) continue.
    pub fn go_on(&mut self, read: impl FnOnce(usize, &mut Vec<f32>), scratch: &mut Vec<f32>) -> bool {
        match self.stage {
            Stage::Noting(_) => false,
            Stage::Awaiting => self.receive(),
            Stage::Weighing { c, place } => {
                let Part { start, elements, .. } = self.parts[place];
                let significance = &mut self.significance.as_mut_slice()[start..][..elements];
                read(place, scratch);
                weigh(scratch, significance, c);
                count_upper(significance, &mut self.counts);
                self.stage = Stage::Weighing { c, place: place + 1 };
                self.counted(place + 1);
                true
            }
            Stage::Counting { upper, place } => {
                let Part { start, elements, .. } = self.parts[place];
                let significance = &self.significance.as_slice()[start..][..elements];
                count_lower(significance, upper, &mut self.counts);
                self.stage = Stage::Counting { upper, place: place + 1 };
                self.counted(place + 1);
                true
            }
        }
    }

    fn counted(&mut self, places: usize) {
        if places == self.parts.len() {
            self.stage = Stage::Awaiting;
            self.board.give_counts(&self.counts);
            self.counts.fill(0);
        }
    }

    fn receive(&mut self) -> bool {
        let Some(found) = self.board.found(self.findings + 1) else { return false };
        self.findings += 1;
        match found {
            Found::Coefficient(c) => self.stage = Stage::Weighing { c, place: 0 },
            Found::Upper(upper) => self.stage = Stage::Counting { upper, place: 0 },
            Found::Least(least) => {
                self.selected = Some((self.selecting, least));
                self.stage = Stage::Noting(0);
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::super::set::{has, words};
    use super::*;
    use proptest::prelude::*;

    /// Deals chunks with these weights and gradients to cores in turn, and makes one selection after round 1.
    fn selection(slim: &SlimDp, chunks: &[Vec<(f32, f32)>], cores: usize) -> Vec<Vec<bool>> {
        let elements = chunks.iter().map(Vec::len).sum::<usize>() as u64;
        let cores = cores.min(chunks.len());
        let board = Arc::new(Board::new(slim, cores, chunks.len(), elements));
        let owned = |core: usize| (0..chunks.len()).filter(move |chunk| chunk % cores == core);
        let mut selectors: Vec<Selector> = (0..cores)
            .map(|core| {
                let sizes = owned(core).map(|chunk| (chunk, chunks[chunk].len()));
                Selector::new(*slim, Round(1), Arc::clone(&board), sizes).unwrap()
            })
            .collect();
        let weights = |chunk: usize| chunks[chunk].iter().map(|both| both.0).collect::<Vec<f32>>();
        let gradients = |chunk: usize| chunks[chunk].iter().map(|both| both.1).collect::<Vec<f32>>();
        for (core, selector) in selectors.iter_mut().enumerate() {
            assert!(!selector.is_awaited(Round(1)));
            assert!(selector.is_awaited(Round(2)));
            for (place, chunk) in owned(core).enumerate() {
                let mut set = vec![0; words(chunks[chunk].len())];
                assert!(!selector.stepped(place, Round(1), &weights(chunk), &gradients(chunk), &mut set));
            }
        }
        while selectors.iter().any(Selector::is_selecting) {
            let mut worked = false;
            for (core, selector) in selectors.iter_mut().enumerate() {
                let read = |place: usize, out: &mut Vec<f32>| *out = weights(owned(core).nth(place).unwrap());
                worked |= selector.go_on(read, &mut Vec::new());
            }
            assert!(worked, "a selection goes on until it is over");
        }
        let mut selected = vec![Vec::new(); chunks.len()];
        for (core, selector) in selectors.iter_mut().enumerate() {
            assert!(!selector.is_awaited(Round(2)));
            for (place, chunk) in owned(core).enumerate() {
                let mut set = vec![0; words(chunks[chunk].len())];
                assert!(selector.stepped(place, Round(2), &weights(chunk), &gradients(chunk), &mut set));
                selected[chunk] = (0..chunks[chunk].len()).map(|place| has(&set, place)).collect();
            }
        }
        selected
    }

    fn numbers() -> impl Strategy<Value = f32> {
        prop_oneof![
            -1.0f32..1.0,
            Just(0.0),
            -1e-6f32..1e-6,
            Just(0.5),
            Just(f32::NAN),
            Just(f32::NEG_INFINITY)
        ]
    }

    proptest! {
        #[test]
        fn the_significant_set_is_what_matters_most(
            chunks in proptest::collection::vec(proptest::collection::vec((numbers(), numbers()), 1..150), 1..8),
            cores in 1usize..4,
            beta in 0.0f32..=1.0,
            c in proptest::option::of(0.0f32..10.0),
        ) {
            let slim = SlimDp { c, ..SlimDp::new(1.0, beta) };
            let selected = selection(&slim, &chunks, cores);
            prop_assert_eq!(&selection(&slim, &chunks, 1), &selected, "however many cores");

            let mean = |of: fn(&(f32, f32)) -> f32| -> f64 {
                chunks.iter().flatten().map(|both| f64::from(of(both).abs())).filter(|x| x.is_finite()).sum()
            };
            let balanced = (mean(|both| both.0) / mean(|both| both.1)) as f32;
            let c = c.unwrap_or(if balanced.is_finite() { balanced } else { 0.0 });
            // The last bits of the means depend on the order of addition. So sizes that are almost equal count as equal.
            let of = |(w, g): (f32, f32)| {
                let s = w.abs() + c * g.abs();
                if s.is_nan() { f32::INFINITY } else { s }
            };
            let all: Vec<(f32, bool)> =
                chunks.iter().flatten().map(|both| of(*both)).zip(selected.iter().flatten().copied()).collect();
            let room = (f64::from(beta) * all.len() as f64) as usize;
            let count = all.iter().filter(|(_, is)| *is).count();
            prop_assert!(count <= room, "{} in the significant set, room for {}", count, room);
            let least = all.iter().filter(|(_, is)| *is).map(|(s, _)| *s).fold(f32::INFINITY, f32::min);
            let most = all.iter().filter(|(_, is)| !*is).map(|(s, _)| *s).fold(0.0, f32::max);
            prop_assert!(count == 0 || least >= most * (1.0 - 1e-5), "{} is in, {} is not", least, most);
            // Room is left only if all elements at the edge are equal.
            let edge = all.iter().filter(|(s, is)| !*is && *s >= most * (1.0 - 1e-5)).count();
            prop_assert!(count == room || count + edge > room, "{} in, room for {}, {} at the edge", count, room, edge);
        }
    }

    #[test]
    fn no_scale_changes_what_is_selected() {
        let chunk = |w: f32, g: f32| -> Vec<(f32, f32)> {
            (0..100).map(|i| (((i * 37 % 100) as f32).sqrt() * w, (i * 61 % 100) as f32 * g)).collect()
        };
        let slim = SlimDp::new(0.4, 0.25);
        let selected = selection(&slim, &[chunk(1.0, 1.0)], 1);
        assert_eq!(selected[0].iter().filter(|is| **is).count(), 25);
        assert_eq!(selection(&slim, &[chunk(1.0, 1024.0)], 1), selected);
        assert_eq!(selection(&slim, &[chunk(0.125, 0.0625)], 1), selected);
    }
}
