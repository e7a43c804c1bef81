//! A hub's state of a job at a cut between two rounds. The hub's cores give this state to a checkpoint, each core its part.
//!
//! ```text
//!   a part's values:  [ chunk 7: weights | state 0 | state 1 ][ chunk 9: weights | state 0 | state 1 ] ...
//!   of one tensor:    [ chunk 7: weights ][ chunk 9: weights ] ...
//! ```
//!
//! Plain data. The core that owns the chunks fills a part, and the writer of the checkpoint reads it. Does not
//! depend on files.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use fabric::Slab;

use crate::job::Schedule;
use crate::kernels::{Numbers, Optimizer, Selection, Tensor, Tensors};
use crate::layout::{ChunkId, Layout, Round};
use crate::place::{Piece, Share};
use crate::whole::{ExactSum, NormMean};

/// One core's part of a snapshot. Its debug output shows only sizes.
pub struct SnapshotPart {
    /// The chunks that the core owns.
    pub chunks: Vec<ChunkId>,
    /// The selected values of each chunk, in this order: its weights, then its state as the kernels keep it.
    pub values: Slab,
    /// The number of steps that each chunk has made.
    pub steps: Vec<u32>,
    /// The sum of the squares of these chunks' mean gradients in the previous round. Only in a job whose next steps depend on
    /// the norm of that round.
    pub squares: Option<ExactSum>,
    /// The running mean of the norms of accepted rounds, in a job that skips spikes.
    pub norm_mean: Option<NormMean>,
}

impl fmt::Debug for SnapshotPart {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (chunks, values) = (self.chunks.len(), self.values.as_slice().len());
        out.debug_struct("SnapshotPart")
            .field("chunks", &chunks)
            .field("values", &values)
            .finish_non_exhaustive()
    }
}

/// A hub's state of a job at a cut: every chunk has ended one round, and none has begun the next. It is the state of the
/// whole job, or of the hub's share of the job.
#[derive(Debug)]
pub struct Snapshot {
    layout: Arc<Layout>,
    pieces: Vec<Piece>,
    tensors: Tensors,
    selection: Selection,
    round: Round,
    numbers: Vec<(Round, Numbers)>,
    ended: Option<String>,
    parts: Vec<SnapshotPart>,
    /// The position of each chunk of the layout.
    places: Vec<Option<Place>>,
}

/// The position of a chunk's values in the parts.
#[derive(Clone, Copy, Debug)]
struct Place {
    part: usize,
    /// The chunk's index among the part's chunks.
    index: usize,
    /// The start of the chunk's values.
    start: usize,
}

/// A range of a snapshot's values, which are in one part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ValueRange {
    part: usize,
    values: Range<usize>,
}

impl ValueRange {
    /// Appends a range that begins where this range ends, unless both together have more than `most` values. Returns whether the
    /// range is appended.
    pub fn append(&mut self, next: &ValueRange, most: usize) -> bool {
        let follows = next.part == self.part && next.values.start == self.values.end;
        let is_appended = follows && self.values.len() + next.values.len() <= most;
        if is_appended {
            self.values.end = next.values.end;
        }
        is_appended
    }
}

/// An error of parts that do not make up a hub's share. It is a bug of the hub: these parts must not become a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)] // each variant is its message; the message prints the fields
pub enum SnapshotError {
    #[error(
        "part {part} of the snapshot has chunk {chunk}, but the job has only {chunks} chunks; report this"
    )]
    NoSuchChunk { part: usize, chunk: u32, chunks: usize },

    #[error(
        "chunk {chunk} is in parts {first} and {second} of the snapshot; expected this chunk in one part; report this"
    )]
    Twice { chunk: u32, first: usize, second: usize },

    #[error("chunk {chunk} of {chunks} is owned by this hub, but is in no part of the snapshot; report this")]
    Missing { chunk: usize, chunks: usize },

    #[error(
        "part {part} of the snapshot has {seen} values, but its chunks have {expected} values; report this"
    )]
    Length { part: usize, expected: usize, seen: usize },

    #[error(
        "part {part} of the snapshot has numbers of steps for {seen} of its {expected} chunks; report this"
    )]
    Steps { part: usize, expected: usize, seen: usize },

    #[error("the snapshot has no hyperparameters of the optimizer for its round {round}; report this")]
    NoNumbers { round: u32 },
}

impl Snapshot {
    /// Puts the parts of a job together. `tensors` are the tensors of the job's terms, and `round` is the next round.
    /// `numbers` are the changes of the optimizer's hyperparameters that matter from `round` on: (first round,
    /// hyperparameters), in ascending order of rounds. The first change is at `round` or at an earlier round.
    pub fn new(
        layout: Arc<Layout>,
        tensors: impl Into<Tensors>,
        round: Round,
        numbers: Vec<(Round, Numbers)>,
        parts: Vec<SnapshotPart>,
    ) -> Result<Self, SnapshotError> {
        let pieces = Share::WHOLE.pieces(&layout, Schedule::default());
        Self::of_share(layout, pieces, (tensors.into(), Selection::All), round, numbers, parts)
    }

    /// Creates a snapshot like [`new`](Self::new), for the pieces of one of several hubs. The parts have the selected tensors.
    pub fn of_share(
        layout: Arc<Layout>,
        pieces: Vec<Piece>,
        (tensors, selection): (Tensors, Selection),
        round: Round,
        numbers: Vec<(Round, Numbers)>,
        parts: Vec<SnapshotPart>,
    ) -> Result<Self, SnapshotError> {
        if numbers.first().is_none_or(|&(from, _)| from > round) {
            return Err(SnapshotError::NoNumbers { round: round.0 });
        }
        let places = places(&layout, &pieces, tensors.selected(selection).count(), &parts)?;
        Ok(Snapshot { layout, pieces, tensors, selection, round, numbers, ended: None, parts, places })
    }

    /// Marks the snapshot as the last state of a job, which ended for this reason.
    pub fn with_end(self, ended: String) -> Self {
        Snapshot { ended: Some(ended), ..self }
    }

    /// Returns why the job ended, if this is the last state of a job that failed.
    pub fn ended(&self) -> Option<&str> {
        self.ended.as_deref()
    }

    /// Returns the snapshot's parts, in their order. The snapshot then has no values.
    pub fn take_parts(&mut self) -> Vec<SnapshotPart> {
        std::mem::take(&mut self.parts)
    }

    /// Returns the job's layout.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Returns the piece of each key that the snapshot has.
    pub fn pieces(&self) -> &[Piece] {
        &self.pieces
    }

    /// Returns the optimizer of the job's terms.
    pub fn optimizer(&self) -> &Optimizer {
        self.tensors.optimizer()
    }

    /// Returns the tensors of each of the job's keys.
    pub fn tensors(&self) -> &Tensors {
        &self.tensors
    }

    /// Returns the tensors that the snapshot has.
    pub fn selection(&self) -> Selection {
        self.selection
    }

    /// Returns the next round.
    pub fn round(&self) -> Round {
        self.round
    }

    /// Returns the optimizer's hyperparameters, such as the learning rate, each with the first round that uses them.
    /// The list begins with the hyperparameters of the next round, and has all later changes.
    pub fn numbers(&self) -> &[(Round, Numbers)] {
        &self.numbers
    }

    /// Returns the sum of squares of the hub's mean gradients in the previous round, in a job whose next steps depend on their
    /// norm. `None` if a core does not know its part: a job may have failed when only some of its chunks had ended the round.
    pub fn last_squares(&self) -> Option<ExactSum> {
        let mut parts = self.parts.iter().filter(|part| !part.chunks.is_empty()).map(|part| part.squares);
        let join = |mut sum: ExactSum, part: Option<ExactSum>| {
            sum.join(&part?);
            Some(sum)
        };
        let first = parts.next()??;
        parts.try_fold(first, join)
    }

    /// Returns the running mean of the norms of accepted rounds, in a job that skips spikes. Every core has the same
    /// mean.
    pub fn norm_mean(&self) -> Option<NormMean> {
        self.parts.iter().find_map(|part| part.norm_mean)
    }

    /// Returns the number of steps of a piece. Its chunks have the same number, except with SSP and ASP, or if the job
    /// failed when only some chunks had ended a round. In those two cases the highest number counts.
    pub fn steps(&self, piece: &Piece) -> u32 {
        let of = |id| {
            let Place { part, index, .. } = self.place(id);
            self.parts[part].steps[index]
        };
        piece.chunks.clone().map(of).max().unwrap_or_default()
    }

    /// Returns the values of one tensor of a piece, as one slice for each of its chunks, in their order.
    pub fn tensor(&self, piece: &Piece, tensor: Tensor) -> impl Iterator<Item = &[f32]> {
        self.ranges(piece, tensor).map(|range| self.values(&range))
    }

    /// Returns the values of one tensor of a piece, as one range for each of its chunks, in their order.
    pub fn ranges(&self, piece: &Piece, tensor: Tensor) -> impl Iterator<Item = ValueRange> {
        piece.chunks.clone().map(move |id| self.range(id, tensor))
    }

    /// Returns the values of a range.
    pub fn values(&self, range: &ValueRange) -> &[f32] {
        &self.parts[range.part].values.as_slice()[range.values.clone()]
    }

    /// Returns the values of a range, to be replaced.
    pub fn values_mut(&mut self, range: &ValueRange) -> &mut [f32] {
        &mut self.parts[range.part].values.as_mut_slice()[range.values.clone()]
    }

    fn range(&self, chunk: u32, tensor: Tensor) -> ValueRange {
        let elements = elements(&self.layout, ChunkId(chunk));
        let Place { part, start, .. } = self.place(chunk);
        let mut selected = self.tensors.selected(self.selection);
        let place = selected.position(|of| of == tensor).expect("the snapshot has the tensor");
        let start = start + place * elements;
        ValueRange { part, values: start..start + elements }
    }

    fn place(&self, chunk: u32) -> Place {
        self.places[chunk as usize].expect("checked when it was made")
    }
}

/// Returns the position of each chunk's values. Each chunk has `tensors` tensors. Every chunk of the pieces must be in exactly
/// one part, and every part must have the length of its chunks.
fn places(
    layout: &Layout,
    pieces: &[Piece],
    tensors: usize,
    parts: &[SnapshotPart],
) -> Result<Vec<Option<Place>>, SnapshotError> {
    let chunks = layout.chunks().len();
    let mut places = vec![None; chunks];
    for (part, SnapshotPart { chunks: owned, values, steps, .. }) in parts.iter().enumerate() {
        if steps.len() != owned.len() {
            return Err(SnapshotError::Steps { part, expected: owned.len(), seen: steps.len() });
        }
        let mut expected = 0;
        for (index, &id) in owned.iter().enumerate() {
            let place = places.get_mut(id.index());
            let place = place.ok_or(SnapshotError::NoSuchChunk { part, chunk: id.0, chunks })?;
            if let Some(Place { part: first, .. }) = place.replace(Place { part, index, start: expected }) {
                return Err(SnapshotError::Twice { chunk: id.0, first, second: part });
            }
            expected += elements(layout, id) * tensors;
        }
        let seen = values.as_slice().len();
        if seen != expected {
            return Err(SnapshotError::Length { part, expected, seen });
        }
    }
    let mut ours = pieces.iter().flat_map(|piece| piece.chunks.clone()).map(|id| id as usize);
    match ours.find(|&chunk| places[chunk].is_none()) {
        Some(chunk) => Err(SnapshotError::Missing { chunk, chunks }),
        None => Ok(places),
    }
}

fn elements(layout: &Layout, chunk: ChunkId) -> usize {
    let chunk = layout.chunk(chunk);
    chunk.span.bytes / layout.keys()[chunk.key.index()].dtype.bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::Key;

    const NESTEROV: Optimizer = Optimizer::Nesterov { learning_rate: 0.1, weight_decay: 0.0, momentum: 0.9 };

    /// Returns a layout: chunks 0 and 1 of key `a` (16 and 2 elements), chunk 2 of key `b` (1 element).
    fn layout() -> Arc<Layout> {
        Arc::new(Layout::new(vec![Key::f32("a", [18]), Key::f32("b", [1])], 64).unwrap())
    }

    /// Returns a part with values that count up from `first`.
    fn part(chunks: &[u32], first: u16, values: u16) -> SnapshotPart {
        let mut slab = Slab::zeroed("test", values.into()).unwrap();
        slab.as_mut_slice().iter_mut().zip(first..).for_each(|(value, n)| *value = n.into());
        let steps = chunks.iter().map(|&id| 10 + id).collect();
        let chunks = chunks.iter().map(|&id| ChunkId(id)).collect();
        SnapshotPart { chunks, values: slab, steps, squares: None, norm_mean: None }
    }

    fn snapshot(parts: Vec<SnapshotPart>) -> Result<Snapshot, SnapshotError> {
        Snapshot::new(layout(), NESTEROV, Round(3), vec![(Round(0), Numbers::new(NESTEROV))], parts)
    }

    #[test]
    fn a_tensor_is_gathered_from_the_parts_of_its_owners() {
        let snapshot = snapshot(vec![part(&[2, 0], 0, 34), part(&[1], 100, 4)]).unwrap();
        let tensor = |key: usize, tensor| {
            snapshot.tensor(&snapshot.pieces()[key], tensor).collect::<Vec<_>>().concat()
        };
        let counted = |from: u16, to: u16| (from..to).map(f32::from).collect::<Vec<_>>();
        assert_eq!(tensor(0, Tensor::Weights), [counted(2, 18), counted(100, 102)].concat());
        assert_eq!(tensor(0, Tensor::State(0)), [counted(18, 34), counted(102, 104)].concat());
        assert_eq!(tensor(1, Tensor::Weights), counted(0, 1));
        assert_eq!(tensor(1, Tensor::State(0)), counted(1, 2));
        assert_eq!([0, 1].map(|key| snapshot.steps(&snapshot.pieces()[key])), [11, 12], "of chunks 1 and 2");
    }

    #[test]
    fn parts_that_are_not_a_whole_job_are_refused() {
        let refused = |parts| snapshot(parts).unwrap_err();
        assert_eq!(refused(vec![part(&[0, 2], 0, 34)]), SnapshotError::Missing { chunk: 1, chunks: 3 });
        assert_eq!(
            refused(vec![part(&[0, 1, 2], 0, 38), part(&[1], 0, 4)]),
            SnapshotError::Twice { chunk: 1, first: 0, second: 1 }
        );
        assert_eq!(
            refused(vec![part(&[0, 1, 2, 3], 0, 38)]),
            SnapshotError::NoSuchChunk { part: 0, chunk: 3, chunks: 3 }
        );
        assert_eq!(
            refused(vec![part(&[0, 1, 2], 0, 37)]),
            SnapshotError::Length { part: 0, expected: 38, seen: 37 }
        );
        let short = SnapshotPart { steps: vec![1], ..part(&[0, 1, 2], 0, 38) };
        assert_eq!(refused(vec![short]), SnapshotError::Steps { part: 0, expected: 3, seen: 1 });
        let late = vec![(Round(4), Numbers::new(NESTEROV))];
        let parts = vec![part(&[0, 1, 2], 0, 38)];
        let refused = Snapshot::new(layout(), NESTEROV, Round(3), late, parts).unwrap_err();
        assert_eq!(refused, SnapshotError::NoNumbers { round: 3 });
    }

    #[test]
    fn the_last_squares_are_of_all_cores_or_there_are_none() {
        let sum = |square: f64| {
            let mut sum = ExactSum::default();
            sum.add(square);
            Some(sum)
        };
        let of = |squares: [Option<ExactSum>; 2]| {
            let parts = [part(&[0, 1], 0, 36), part(&[2], 36, 2)].into_iter().zip(squares);
            let mut parts: Vec<_> = parts.map(|(part, squares)| SnapshotPart { squares, ..part }).collect();
            parts.push(part(&[], 0, 0)); // the part of a core without chunks has no squares, and none are missing
            snapshot(parts).unwrap().last_squares().map(|squares| squares.norm())
        };
        assert_eq!(of([sum(9.0), sum(16.0)]), Some(5.0));
        assert_eq!(of([sum(9.0), None]), None);
        assert_eq!(of([None, None]), None);
        assert_eq!(of([sum(9.0), sum(f64::INFINITY)]), Some(f32::INFINITY));
    }
}
