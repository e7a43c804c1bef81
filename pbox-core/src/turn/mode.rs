//! The modes of a shard. A mode is a pace (when workers push and get answers) and a type for each stage of the work on a chunk.

use std::task::Waker;

use fabric::MapError;

use super::pace::{Arrivals, Clocks, Relayed};
use super::shard::ShardOf;
use super::spec::{AboveSpec, ShardSpec, SumForm};
use crate::job::{Compression, Members};
use crate::kernels::Optimizer;
use crate::layout::Round;
use crate::weights::{
    Alone, Bare, BareByNorm, BareSlots, BelowCoded, BelowHubs, BetweenHubs, Chunk, Coded, CodedAlone,
    CodedByNorm, CodedForAll, CodedForEach, CodedRelay, CountedSlots, FrameSum, GatherNorm, HubWeights, Hubs,
    HubsAlone, HubsByNorm, OneSum, PassOn, RawForAll, RawForEach, Relay, Slim, SlimPushes, SlimReply, Staged,
};

/// A shard in one of the modes. The type of its content has the pace and the stages.
pub(super) enum Shard {
    Bare(ShardOf<Arrivals, Bare>),
    BareByNorm(ShardOf<Arrivals, BareByNorm>),
    Alone(ShardOf<Clocks, Alone>),
    Coded(ShardOf<Arrivals, Coded>),
    CodedByNorm(ShardOf<Arrivals, CodedByNorm>),
    CodedAlone(ShardOf<Clocks, CodedAlone>),
    Slim(ShardOf<Arrivals, Slim>),
    Hubs(ShardOf<Arrivals, Hubs>),
    HubsByNorm(ShardOf<Arrivals, HubsByNorm>),
    HubsAlone(ShardOf<Clocks, HubsAlone>),
    BelowHubs(ShardOf<Relayed, BelowHubs>),
    BetweenHubs(ShardOf<Relayed, BetweenHubs>),
    BelowCoded(ShardOf<Relayed, BelowCoded>),
}

/// `of_mode!(shard, name => work)`: does the same work for a shard of any mode.
macro_rules! of_mode {
    ($shard:expr, $name:ident => $work:expr) => {
        match $shard {
            $crate::turn::mode::Shard::Bare($name) => $work,
            $crate::turn::mode::Shard::BareByNorm($name) => $work,
            $crate::turn::mode::Shard::Alone($name) => $work,
            $crate::turn::mode::Shard::Coded($name) => $work,
            $crate::turn::mode::Shard::CodedByNorm($name) => $work,
            $crate::turn::mode::Shard::CodedAlone($name) => $work,
            $crate::turn::mode::Shard::Slim($name) => $work,
            $crate::turn::mode::Shard::Hubs($name) => $work,
            $crate::turn::mode::Shard::HubsByNorm($name) => $work,
            $crate::turn::mode::Shard::HubsAlone($name) => $work,
            $crate::turn::mode::Shard::BelowHubs($name) => $work,
            $crate::turn::mode::Shard::BetweenHubs($name) => $work,
            $crate::turn::mode::Shard::BelowCoded($name) => $work,
        }
    };
}

pub(super) use of_mode;

impl Shard {
    /// Allocates and touches the shard's own memory: call it on the core's NUMA node. `waker` wakes the core's thread.
    pub fn new(spec: ShardSpec, waker: Waker) -> Result<Self, MapError> {
        let ShardSpec { terms, wire, chunks, mut weights, restored, snapshot_every, above, board, scopes } =
            spec;
        let (terms, wire, restored) = (&terms, &wire, restored.as_deref());
        let lines = weights.split_off(chunks.len().min(weights.len()));
        assert_eq!(weights.len(), chunks.len(), "one span a chunk");
        let workers = terms.workers;
        let broadcasts = wire.broadcasts();
        let together = || Arrivals::new(chunks.len(), workers, broadcasts);
        let apart = || Clocks::new(terms.level.consistency, chunks.len(), workers, broadcasts);
        if wire.framing().is_none() {
            (0..weights.len()).for_each(|place| weights.elements_mut::<u8>(place).fill(0));
        }
        if let Some(AboveSpec { form, links, link_count, keeps_first, passes, .. }) = above {
            let of_chunks = Chunk::of_shard(&Optimizer::Average.into(), wire, &chunks);
            let keeps_first = keeps_first && broadcasts;
            let gather = PassOn::new(passes, wire, &chunks, &links, lines, waker);
            let pace = Relayed::new(workers, links, broadcasts);
            return Ok(match (form, terms.level.members) {
                (SumForm::Bare { counts, posts, shown }, Members::Workers) => {
                    let (read, reply) = (
                        BareSlots::new(terms.ablate),
                        Relay::new(workers, posts, counts, shown, keeps_first),
                    );
                    let stages =
                        Staged::summing(terms, of_chunks, (read, gather), weights, reply, link_count)?;
                    Shard::BelowHubs(ShardOf::new(pace, stages, terms, wire, chunks, None, None))
                }
                (SumForm::Bare { counts, posts, shown }, Members::Hubs | Members::Mesh) => {
                    let read = CountedSlots::new(terms.ablate);
                    let reply = Relay::new(workers, posts, counts, shown, keeps_first);
                    let stages =
                        Staged::summing(terms, of_chunks, (read, gather), weights, reply, link_count)?;
                    Shard::BetweenHubs(ShardOf::new(pace, stages, terms, wire, chunks, None, None))
                }
                (SumForm::Coded(windows), _) => {
                    let (read, sum) = (BareSlots::new(terms.ablate), OneSum::new(&of_chunks)?);
                    let reply = CodedRelay::new(workers, windows, weights, keeps_first, &of_chunks)?;
                    let stages = Staged::summing(terms, of_chunks, (read, gather), sum, reply, link_count)?;
                    Shard::BelowCoded(ShardOf::new(pace, stages, terms, wire, chunks, None, None))
                }
            });
        }
        let of_chunks = Chunk::of_shard(&terms.tensors(), wire, &chunks);
        let alone = terms.level.consistency.steps_alone();
        let of_sum = terms.optimizer == Optimizer::Sum;
        let framed = wire.framing().map(|framing| (framing, framing.codecs(), terms.level.compression));
        Ok(match framed {
            None if terms.level.members.are_hubs() && !scopes.is_empty() => {
                let read = CountedSlots::new(terms.ablate);
                let gather = GatherNorm::new(scopes, (wire, lines), of_sum, &of_chunks, waker)?;
                let stages = Staged::gathering(terms, of_chunks, (read, gather), weights, RawForAll)?;
                let pace = together();
                Shard::HubsByNorm(ShardOf::new(pace, stages, terms, wire, chunks, restored, snapshot_every))
            }
            None if terms.level.members.are_hubs() => {
                let read = CountedSlots::new(terms.ablate);
                if alone {
                    let stages = Staged::new(terms, of_chunks, read, weights, RawForEach::new(workers))?;
                    let pace = apart();
                    Shard::HubsAlone(ShardOf::new(
                        pace,
                        stages,
                        terms,
                        wire,
                        chunks,
                        restored,
                        snapshot_every,
                    ))
                } else {
                    let stages = Staged::new(terms, of_chunks, read, weights, RawForAll)?;
                    let pace = together();
                    Shard::Hubs(ShardOf::new(pace, stages, terms, wire, chunks, restored, snapshot_every))
                }
            }
            None if !scopes.is_empty() => {
                let read = BareSlots::new(terms.ablate);
                let gather = GatherNorm::new(scopes, (wire, lines), of_sum, &of_chunks, waker)?;
                let stages = Staged::gathering(terms, of_chunks, (read, gather), weights, RawForAll)?;
                let pace = together();
                Shard::BareByNorm(ShardOf::new(pace, stages, terms, wire, chunks, restored, snapshot_every))
            }
            None => {
                let read = BareSlots::new(terms.ablate);
                if alone {
                    let stages = Staged::new(terms, of_chunks, read, weights, RawForEach::new(workers))?;
                    let pace = apart();
                    Shard::Alone(ShardOf::new(pace, stages, terms, wire, chunks, restored, snapshot_every))
                } else {
                    let (mut stages, mut pace) =
                        (Staged::new(terms, of_chunks, read, weights, RawForAll)?, together());
                    if terms.has_answers_ahead() {
                        (stages, pace) = (stages.showing()?, pace.answering_ahead());
                    }
                    let shard = ShardOf::new(pace, stages, terms, wire, chunks, restored, snapshot_every);
                    Shard::Bare(shard.joining())
                }
            }
            Some((framing, Some(codecs), _)) => {
                let read = FrameSum::new(framing, codecs.push, terms, &of_chunks);
                if alone {
                    let reply = CodedForEach::new(framing, codecs.answer, &of_chunks, workers)?;
                    let own = HubWeights::new(&of_chunks)?;
                    let stages = Staged::new(terms, of_chunks, read, own, reply)?;
                    let pace = apart();
                    Shard::CodedAlone(ShardOf::new(
                        pace,
                        stages,
                        terms,
                        wire,
                        chunks,
                        restored,
                        snapshot_every,
                    ))
                } else {
                    let own = match framing.keeps_weights() {
                        true => HubWeights::new(&of_chunks)?,
                        false => HubWeights::of_one(&of_chunks)?,
                    };
                    let reply = CodedForAll::new(framing, codecs.answer, &of_chunks, weights)?;
                    let pace = together();
                    if scopes.is_empty() {
                        let stages = Staged::new(terms, of_chunks, read, own, reply)?;
                        let coded = ShardOf::new(pace, stages, terms, wire, chunks, restored, snapshot_every);
                        return Ok(Shard::Coded(coded));
                    }
                    let gather = GatherNorm::new(scopes, (wire, lines), of_sum, &of_chunks, waker)?;
                    let stages = Staged::gathering(terms, of_chunks, (read, gather), own, reply)?;
                    let coded = ShardOf::new(pace, stages, terms, wire, chunks, restored, snapshot_every);
                    Shard::CodedByNorm(coded)
                }
            }
            Some((framing, None, Some(Compression::Slim(slim)))) => {
                let board = board.expect("the cores of a job with Slim-DP have a board");
                board.wake(waker);
                let first = restored.map_or(Round(1), |restored| restored.round());
                let read = SlimPushes::new(framing, slim, terms, &of_chunks);
                let own = HubWeights::new(&of_chunks)?;
                let reply = SlimReply::new(framing, slim, board, first.max(Round(1)), workers, &of_chunks)?;
                let stages = Staged::new(terms, of_chunks, read, own, reply)?;
                let pace = together();
                Shard::Slim(ShardOf::new(pace, stages, terms, wire, chunks, restored, snapshot_every))
            }
            Some((_, None, _)) => unreachable!("a codec's frames have its codecs"),
        })
    }
}
