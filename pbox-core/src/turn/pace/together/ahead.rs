//! Answers ahead: the hub answers gradients whose bytes arrive before their pushes.
//!
//! ```text
//!   bytes ahead from all  the window shows the weights that the step would make, and they are posted
//!   pushes from all       the step is made; the same bits?  the answer is an immediate
//!                                           other bits?     the answer has its bytes, as always
//! ```
//!
//! The answer ahead of a chunk does not count as a step. The later step compares the weights that it has made with the
//! weights that were shown, whatever has changed since. A chunk is answered ahead at most once a round.
//!
//! Owned by the core. On the list of `unsafe` code (`docs/unsafe.md`): the call that reads the workers' bytes.

use super::{Arrivals, OTHER, Pace, SHOWS, TRIED};
use crate::kernels::Kernels;
use crate::layout::Content;
use crate::turn::shard::ShardOf;
use crate::weights::Mode;

impl Arrivals {
    /// Makes this pace answer bytes ahead.
    pub fn answering_ahead(self) -> Self {
        Arrivals { answers_ahead: true, ..self }
    }

    /// Whether the bytes of a worker's gradient have arrived in its window.
    fn has_bytes(&self, place: usize, rank: u32) -> bool {
        let is_pushed = || self.is_in(place, rank) && self.contents.of(place, rank) == Content::Gradient;
        self.contents.has_sent_ahead(place, rank) || is_pushed()
    }
}

/// Implements [`Pace::take_ahead`].
#[cold]
pub(super) fn take<M: Mode>(
    shard: &mut ShardOf<Arrivals, M>,
    kernels: &Kernels,
    place: usize,
    rank: u32,
) -> bool {
    let ShardOf { pace, stages, until, .. } = shard;
    let (round, word) = (pace.round(place), place * pace.words_per_chunk);
    pace.words[word] |= OTHER;
    pace.contents.note_sent_ahead(place, rank);
    let is_tried = pace.words[word] & TRIED != 0;
    let has_all = || pace.roster.ranks(round).all(|rank| pace.has_bytes(place, rank));
    if is_tried || round >= *until || pace.contents.must_be_weights(round) || !has_all() {
        return false;
    }
    // SAFETY: each worker that takes part has posted its bytes of this chunk.
    unsafe { stages.show(kernels, place, pace.roster.ranks(round), round) };
    pace.words[word] |= SHOWS | TRIED;
    pace.contents.clear_ahead(place);
    true
}

/// Implements [`Pace::take_back`].
pub(super) fn take_back<M: Mode>(shard: &mut ShardOf<Arrivals, M>) {
    let ShardOf { pace, stages, .. } = shard;
    for (place, words) in pace.words.chunks_exact_mut(pace.words_per_chunk).enumerate() {
        if words[0] & SHOWS != 0 {
            words[0] &= !SHOWS;
            stages.hide(place);
        }
    }
}
