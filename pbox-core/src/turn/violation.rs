//! Violations: breaches of the protocol by a core's peer, described for the peer's job.
//!
//! Made by a shard on its core's thread. Does not depend on links.

use std::fmt;

use super::pace::OutOfTurn;
use crate::layout::{ChunkId, Content, Immediate, Round};
use crate::wire::frame::FrameError;

/// A peer's breach of the protocol. The core drops the peer's link and gives the hub a notice.
#[derive(Clone, Debug, PartialEq)]
pub enum Violation {
    /// The chunk does not exist, or another core owns it.
    NotOurs {
        /// The chunk that the immediate named.
        chunk: ChunkId,
        /// The number of the job's chunks.
        chunks: usize,
    },
    /// The worker pushed a chunk twice in a round.
    Duplicate {
        /// The chunk.
        chunk: ChunkId,
        /// The chunk's round in flight.
        round: Round,
    },
    /// The worker pushed a chunk again before it had the answer to its last push.
    Unanswered {
        /// The chunk.
        chunk: ChunkId,
        /// The round of the push that has no answer.
        round: Round,
    },
    /// The worker pushed a chunk for a round that is not the worker's next round.
    OtherRound {
        /// The chunk.
        chunk: ChunkId,
        /// The worker's next round of the chunk.
        expected: Round,
        /// The low bits of the round that the immediate named.
        seen: u8,
    },
    /// The worker pushed a chunk with an invalid frame.
    Frame {
        /// The chunk.
        chunk: ChunkId,
        /// The round of the push.
        round: Round,
        /// The error in the frame.
        why: FrameError,
    },
    /// A push or an answer has a content that its job does not allow in this round.
    Content {
        /// The name of the chunk's key, or of a group's first key.
        key: String,
        /// The round of the push.
        round: Round,
        /// The content that the immediate named.
        content: Content,
        /// The expected value, in words.
        why: &'static str,
    },
    /// A hub's part of the gradient norm is invalid.
    Line {
        /// The number of the hub whose part is invalid.
        hub: usize,
        /// The low bits of the part's round, from the immediate.
        round: u8,
        /// The fault, in words.
        why: &'static str,
    },
    /// The worker's ring of answers is full: it pushed without reading its answers.
    RingFull,
    /// The worker pushed a chunk in a round in which it does not take part.
    NotYet {
        /// The chunk.
        chunk: ChunkId,
        /// The chunk's round in flight.
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
            Violation::Duplicate { chunk, round } => {
                write!(f, "pushed chunk {} twice in round {}", chunk.0, round.0)
            }
            Violation::Unanswered { chunk, round } => {
                write!(
                    f,
                    "pushed chunk {} again, but its push of round {} has no answer yet",
                    chunk.0, round.0
                )
            }
            Violation::OtherRound { chunk, expected, seen } => {
                write!(
                    f,
                    "pushed chunk {} for a round that is {seen} modulo 64, but round {} ({} modulo 64) is in flight",
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
                write!(
                    f,
                    "passed on hub {hub}'s part of a norm in a round that is {round} modulo 64, but {why}"
                )
            }
            Violation::RingFull => {
                f.write_str("pushed without reading the answers: its ring of answers is full")
            }
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
    /// Creates the violation by a push that is out of turn. The push has this immediate.
    pub(crate) fn new(immediate: Immediate, wrong: OutOfTurn) -> Self {
        let Immediate { chunk, round_bits: seen, .. } = immediate;
        match wrong {
            OutOfTurn::Duplicate(round) => Violation::Duplicate { chunk, round },
            OutOfTurn::Unanswered(round) => Violation::Unanswered { chunk, round },
            OutOfTurn::NotYet(round) => Violation::NotYet { chunk, round },
            OutOfTurn::OtherRound { expected } => Violation::OtherRound { chunk, expected, seen },
        }
    }
}
