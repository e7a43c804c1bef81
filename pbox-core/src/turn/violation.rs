//! Violations: the errors that a worker can make with an immediate, in words for its job.
//!
//! Made by a shard on its core's thread. Knows no link.

use std::fmt;

use super::pace::OutOfTurn;
use crate::layout::{ChunkId, Content, Immediate, Round};
use crate::wire::frame::FrameError;

/// A worker broke the protocol. It loses its link, and its job is notified.
#[derive(Clone, Debug, PartialEq)]
pub enum Violation {
    /// A chunk that does not exist, or that another core owns.
    NotOurs {
        /// The chunk that the immediate named.
        chunk: ChunkId,
        /// Chunks of the job.
        chunks: usize,
    },
    /// The worker pushed a chunk twice in a round.
    Again {
        /// The chunk.
        chunk: ChunkId,
        /// The round it is in.
        round: Round,
    },
    /// A chunk that the worker had pushed and that has no answer yet.
    Unanswered {
        /// The chunk.
        chunk: ChunkId,
        /// The round of the push before.
        round: Round,
    },
    /// A chunk of another round than its next one.
    OtherRound {
        /// The chunk.
        chunk: ChunkId,
        /// The round it is in.
        expected: Round,
        /// The low bits of the round that the immediate named.
        seen: u8,
    },
    /// A chunk with an invalid frame.
    Frame {
        /// The chunk.
        chunk: ChunkId,
        /// The round it was pushed for.
        round: Round,
        /// The error in the frame.
        why: FrameError,
    },
    /// A push or an answer of a content that its job does not take there.
    Content {
        /// The name of the chunk's key; of a group's the first.
        key: String,
        /// The round it was pushed for.
        round: Round,
        /// The content that the immediate named.
        content: Content,
        /// The expected value, in words.
        why: &'static str,
    },
    /// A hub's part of the whole gradient that cannot be.
    Line {
        /// The hub that the immediate named a part of.
        hub: usize,
        /// The low bits of the round that the immediate named.
        round: u8,
        /// The fault, in words.
        why: &'static str,
    },
    /// More answers than a round in flight needs.
    RingFull,
    /// A chunk in a round that the worker takes no part in.
    NotYet {
        /// The chunk.
        chunk: ChunkId,
        /// The round it is in.
        round: Round,
    },
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Violation::NotOurs { chunk, chunks } => {
                write!(
                    f,
                    "pushed chunk {} over the link of a core that does not own it (the job has {chunks} chunks)",
                    chunk.0
                )
            }
            Violation::Again { chunk, round } => {
                write!(f, "pushed chunk {} twice in round {}", chunk.0, round.0)
            }
            Violation::Unanswered { chunk, round } => {
                write!(f, "pushed chunk {} again before it was answered in round {}", chunk.0, round.0)
            }
            Violation::OtherRound { chunk, expected, seen } => {
                write!(
                    f,
                    "pushed chunk {} for a round that ends in {seen}, but round {} (ends in {}) is in flight",
                    chunk.0,
                    expected.0,
                    expected.low_bits()
                )
            }
            Violation::Frame { chunk, round, why } => {
                write!(f, "pushed chunk {} for round {}, but {why}", chunk.0, round.0)
            }
            Violation::Content { key, round, content, why } => {
                write!(f, "pushed {} for key {key:?} in round {}: {why}", content.name(), round.0)
            }
            Violation::Line { hub, round, why } => {
                write!(f, "passed on the part of hub {hub} in a round that ends in {round}, but {why}")
            }
            Violation::RingFull => f.write_str("its ring of answers is full: it pushed without reading them"),
            Violation::NotYet { chunk, round } => {
                write!(
                    f,
                    "pushed chunk {} in round {}, which it takes no part in: its job has not begun, or continues without it",
                    chunk.0, round.0
                )
            }
        }
    }
}

impl Violation {
    /// Describes a worker's error with a chunk.
    pub(crate) fn new(immediate: Immediate, wrong: OutOfTurn) -> Self {
        let Immediate { chunk, round_bits: seen, .. } = immediate;
        match wrong {
            OutOfTurn::Again(round) => Violation::Again { chunk, round },
            OutOfTurn::Unanswered(round) => Violation::Unanswered { chunk, round },
            OutOfTurn::NotYet(round) => Violation::NotYet { chunk, round },
            OutOfTurn::OtherRound { expected } => Violation::OtherRound { chunk, expected, seen },
        }
    }
}
