//! The modes of a shard, each with its pace and the types of its stages.

use std::task::Waker;

use fabric::MapError;

use super::pace::{Arrivals, Clocks};
use super::shard::ShardOf;
use super::spec::ShardSpec;
use crate::job::Compression;
use crate::layout::Round;
use crate::weights::{
    Alone, Bare, BareSlots, Chunk, Coded, CodedAlone, CodedForAll, CodedForEach, FrameSum, HubWeights,
    RawForAll, RawForEach, Slim, SlimPushes, SlimReply, Staged,
};

/// A shard in one of the modes: its pace, and the types of its stages.
pub(super) enum Shard {
    Bare(ShardOf<Arrivals, Bare>),
    Alone(ShardOf<Clocks, Alone>),
    Coded(ShardOf<Arrivals, Coded>),
    CodedAlone(ShardOf<Clocks, CodedAlone>),
    Slim(ShardOf<Arrivals, Slim>),
}

/// `of_mode!(shard, name => work)`: the same work for a shard of any mode.
macro_rules! of_mode {
    ($shard:expr, $name:ident => $work:expr) => {
        match $shard {
            $crate::turn::mode::Shard::Bare($name) => $work,
            $crate::turn::mode::Shard::Alone($name) => $work,
            $crate::turn::mode::Shard::Coded($name) => $work,
            $crate::turn::mode::Shard::CodedAlone($name) => $work,
            $crate::turn::mode::Shard::Slim($name) => $work,
        }
    };
}

pub(super) use of_mode;

impl Shard {
    /// Allocates and touches the shard's own memory: call it on the thread that owns the core. `waker` wakes that
    /// thread.
    pub fn new(spec: ShardSpec, waker: Waker) -> Result<Self, MapError> {
        let ShardSpec { terms, wire, chunks, mut weights, restored, snapshot_every, board } = spec;
        let (terms, wire, restored) = (&terms, &wire, restored.as_deref());
        assert_eq!(weights.len(), chunks.len(), "one span a chunk");
        let (of_chunks, workers) = (Chunk::of_shard(terms, wire, &chunks), terms.workers);
        let alone = terms.level.consistency.steps_alone();
        let framed = wire.framing().map(|framing| (framing, framing.codecs(), terms.level.compression));
        Ok(match framed {
            None => {
                (0..weights.len()).for_each(|place| weights.elements_mut::<u8>(place).fill(0));
                let read = BareSlots::new(terms.ablate);
                if alone {
                    let reply = RawForEach::new(workers);
                    let stages = Staged::new(terms, of_chunks, read, weights, reply)?;
                    Shard::Alone(ShardOf::new(stages, terms, wire, chunks, restored, snapshot_every))
                } else {
                    let stages = Staged::new(terms, of_chunks, read, weights, RawForAll)?;
                    Shard::Bare(ShardOf::new(stages, terms, wire, chunks, restored, snapshot_every))
                }
            }
            Some((framing, Some(codecs), _)) => {
                let read = FrameSum::new(framing, codecs.push, terms.ablate, &of_chunks);
                if alone {
                    let reply = CodedForEach::new(framing, codecs.answer, &of_chunks, workers)?;
                    let own = HubWeights::new(&of_chunks)?;
                    let stages = Staged::new(terms, of_chunks, read, own, reply)?;
                    Shard::CodedAlone(ShardOf::new(stages, terms, wire, chunks, restored, snapshot_every))
                } else {
                    let own = match framing.keeps_weights() {
                        true => HubWeights::new(&of_chunks)?,
                        false => HubWeights::of_one(&of_chunks)?,
                    };
                    let reply = CodedForAll::new(framing, codecs.answer, &of_chunks, weights)?;
                    let stages = Staged::new(terms, of_chunks, read, own, reply)?;
                    Shard::Coded(ShardOf::new(stages, terms, wire, chunks, restored, snapshot_every))
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
                Shard::Slim(ShardOf::new(stages, terms, wire, chunks, restored, snapshot_every))
            }
            Some((_, None, _)) => unreachable!("a codec's frames have its codecs"),
        })
    }
}
