//! Chunks whose steps wait for the whole gradient. Each chunk is gathered (its mean is kept) at its last push, and
//! steps when the norm of the round is known.
//!
//! On the list of `unsafe` code (`docs/unsafe.md`): the call that reads the workers' pushes.

use super::contents::Together;
use super::{Arrivals, OTHER, Pace, finish_round, skip_deserted};
use crate::kernels::Kernels;
use crate::layout::{Content, Round};
use crate::turn::shard::{Finished, ShardOf};
use crate::weights::{Gather, Mode, Staged};

/// Gathers a chunk that has all its pushes. Returns whether it may conclude its round.
pub(super) fn gather<M: Mode>(
    pace: &Arrivals,
    stages: &mut Staged<M>,
    kernels: &Kernels,
    place: usize,
) -> bool {
    let round = pace.round(place);
    if stages.gather.steps_at_once() {
        return stages.gather.found_before(round).is_some();
    }
    if pace.contents.must_be_weights(round) {
        return true; // it has no gradients
    }
    if !stages.gather.has(place, round) {
        let is_plain = pace.words[place * pace.words_per_chunk] & OTHER == 0;
        // SAFETY: each worker whose slot is read has pushed this chunk, and gets its answer only after the chunk's step.
        unsafe {
            match if is_plain { Together::Gradients } else { pace.together(place) } {
                Together::Mixed => return true, // the job fails
                Together::Nothing | Together::Weights => stages.gather.take_nothing(place, round),
                Together::Gradients if is_plain => {
                    stages.take_in(kernels, place, pace.roster.ranks(round), 0, round);
                }
                Together::Gradients => {
                    let missing = stages.without_gradient(place, pace.pushed_as(place, Content::Nothing));
                    let pushed = pace.pushed_as(place, Content::Gradient);
                    stages.take_in(kernels, place, pushed, missing, round);
                }
            }
        }
    }
    stages.gather.found(place, round).is_some()
}

/// Whether a gathered chunk waits only for the result of the round. A chunk with a kept mean no longer needs its
/// pushes. A chunk without a mean may step on pushed weights, so it must still have all its pushes.
pub(super) fn is_decided<M: Mode>(shard: &ShardOf<Arrivals, M>, place: usize, round: Round) -> bool {
    let ShardOf { pace, stages, .. } = shard;
    stages.gather.has_mean(place, round) || stages.gather.has(place, round) && pace.is_whole(place)
}

/// Steps a gathered chunk, if the result of the round is known. The workers that pushed the chunk may be gone, or may push
/// it again.
pub(super) fn settle<M: Mode>(
    shard: &mut ShardOf<Arrivals, M>,
    kernels: &Kernels,
    place: usize,
) -> Option<Finished> {
    shard.stages.gather.found(place, shard.pace.round(place))?;
    let finished = finish_round(shard, kernels, place);
    Some(match skip_deserted(shard, place) {
        Some(passed) => Finished { steps: finished.steps, ..passed },
        None => finished,
    })
}

/// Gathers a chunk for a round in which no worker takes part, because other chunks wait until all chunks are gathered.
pub(super) fn pass<M: Mode>(pace: &Arrivals, stages: &mut Staged<M>, place: usize, round: Round) {
    let counts = stages.gather.steps_at_once() || !pace.contents.must_be_weights(round);
    if counts && !stages.gather.has(place, round) {
        stages.gather.take_nothing(place, round);
    }
}
