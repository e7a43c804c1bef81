//! Chunk ids, rounds, contents, and the immediate that carries all three.
//!
//! ```text
//!   31     30 29          24 23                            0
//!   [ content ][ round % 64 ][ chunk id                    ]
//! ```
//!
//! In PHub, an immediate has the sender's id. Here the link identifies the sender. In place of the sender's id, the
//! immediate has the content of the post, and the low bits of the round, which show a late or repeated immediate.

use fabric::Imm;
use serde::{Deserialize, Serialize};

/// The number of ids that an immediate can carry.
const IDS: u32 = 1 << 24;

/// The number of ids for [lines](Immediate::line), the messages about the gradient norm: the highest ids.
pub(crate) const LINES: u32 = 4096;

/// The id of the line of hub 0. In earlier versions, a job had at most 256 hubs; the first 256 hubs still have the same
/// ids.
const FIRST_LINE: u32 = IDS - 256;

/// The limit on the chunks of a job: the number of ids that are not ids of lines. With chunks of 32 KiB, a model at
/// this limit has 512 GiB.
pub const MAX_CHUNKS: u32 = IDS - LINES;

/// The number of a chunk in its job's layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChunkId(pub u32);

impl ChunkId {
    /// Returns the id as an index into per-chunk tables.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// The number of a chunk's round, counted from 0. In a round, each worker pushes the chunk once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(try_from = "u32")]
pub struct Round(pub u32);

impl Round {
    /// The round before which a job ends with an error: round numbers have 32 bits, and must not wrap around to 0. The
    /// remaining numbers give the hub time to notice that a job has reached this round.
    pub const LIMIT: Round = Round(u32::MAX - (1 << 28));

    /// The limit on the rounds between two chunks of one job, over all its hubs. Workers push every key in every round, so
    /// chunks differ only by a round or two. A round that another hub reports must be within this limit.
    pub const APART: u32 = 64;

    /// Whether another hub can have a chunk in this round, if the highest round of this hub's chunks is `ours`.
    pub fn is_near(self, ours: Round) -> bool {
        self.0 <= ours.0.saturating_add(Self::APART)
    }

    /// Returns the round after this one.
    pub fn next(self) -> Round {
        Round(self.0.wrapping_add(1))
    }

    /// Returns the bits of the round that an immediate carries.
    pub fn low_bits(self) -> u8 {
        self.0 as u8 & ROUND_BITS
    }
}

/// An error: the number from outside is not a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{seen} is not a round: a job ends before round {}", Round::LIMIT.0)]
pub struct NoRound {
    seen: u32,
}

/// Reads a round from a message or a file. Half of the numbers after the [limit](Round::LIMIT) are accepted, because a job
/// may be past the limit for a moment.
impl TryFrom<u32> for Round {
    type Error = NoRound;

    fn try_from(seen: u32) -> Result<Self, NoRound> {
        let room = u32::MAX - Round::LIMIT.0;
        if seen <= Round::LIMIT.0 + room / 2 { Ok(Round(seen)) } else { Err(NoRound { seen }) }
    }
}

/// The mask of a round's bits in an immediate.
const ROUND_BITS: u8 = 0x3f;

/// The content of a push or an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Content {
    /// A gradient, or the push of a gradient whose bytes were sent ahead. In an answer: the weights after the step.
    #[default]
    Gradient = 0,
    /// No values: the worker has no gradient of the chunk in this round. In an answer: no worker had a gradient, and
    /// the weights do not change.
    Nothing = 1,
    /// New weights. If several workers push weights, the push of the lowest rank counts. In the broadcast, round 0,
    /// workers push weights.
    Weights = 2,
    /// Bytes of a gradient that are sent before its push. These bytes do not count as a push, and may be sent again.
    /// From the hub: the weights that a step on these bytes would make. The answer follows later, and has no bytes if
    /// the step has made the same weights.
    Ahead = 3,
}

impl Content {
    /// Returns the name, for errors.
    pub fn name(self) -> &'static str {
        match self {
            Content::Gradient => "a gradient",
            Content::Nothing => "nothing",
            Content::Weights => "weights",
            Content::Ahead => "bytes ahead",
        }
    }
}

/// The decoded immediate of a push or an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Immediate {
    /// The chunk with the bytes that have arrived.
    pub chunk: ChunkId,
    /// The low bits of the round.
    pub round_bits: u8,
    /// The content of the post.
    pub content: Content,
}

impl Immediate {
    /// Creates the immediate of `chunk` in `round`, for a gradient or for the weights after its step. The layout has
    /// checked that the id fits.
    pub fn new(chunk: ChunkId, round: Round) -> Self {
        Immediate { chunk, round_bits: round.low_bits(), content: Content::Gradient }
    }

    /// Returns this immediate with another content.
    pub fn with(self, content: Content) -> Self {
        Immediate { content, ..self }
    }

    /// Returns the immediate of a control message in `round`, about the layer part that begins with `chunk`. Its round bits
    /// are those of `round` plus 32, modulo 64. So a control message is never taken for a late or repeated push or answer.
    pub fn control(chunk: ChunkId, round: Round) -> Self {
        Immediate { round_bits: round.low_bits() ^ 0x20, ..Self::new(chunk, round) }
    }

    /// Returns the immediate of a line: a message with a hub's part of a round's gradient norm. Its id is not that of a chunk.
    /// The ids of the first 256 hubs ascend to the highest id; the ids of the next 256 hubs are below.
    pub fn line(hub: usize, round: Round) -> Self {
        Self::new(ChunkId(hub as u32 ^ FIRST_LINE), round)
    }

    /// Returns the number of the hub, if this is the immediate of a hub's [line](Self::line).
    pub fn hub(self) -> Option<usize> {
        (self.chunk.0 >= MAX_CHUNKS).then_some((self.chunk.0 ^ FIRST_LINE) as usize)
    }

    /// Returns the 32 bits that the fabric carries.
    pub fn encode(self) -> Imm {
        debug_assert!(self.chunk.0 < IDS);
        Imm((self.content as u32) << 30 | u32::from(self.round_bits) << 24 | self.chunk.0)
    }

    /// Decodes an immediate from the fabric. Every value can be decoded, but perhaps the chunk does not exist.
    pub fn decode(imm: Imm) -> Self {
        let content = match imm.0 >> 30 {
            0 => Content::Gradient,
            1 => Content::Nothing,
            2 => Content::Weights,
            _ => Content::Ahead,
        };
        let chunk = ChunkId(imm.0 & (IDS - 1));
        Immediate { chunk, round_bits: (imm.0 >> 24) as u8 & ROUND_BITS, content }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn immediates_survive_the_wire(chunk in 0..IDS, round: u32, content in 0..4usize) {
            let content = [Content::Gradient, Content::Nothing, Content::Weights, Content::Ahead][content];
            let immediate = Immediate::new(ChunkId(chunk), Round(round)).with(content);
            prop_assert_eq!(Immediate::decode(immediate.encode()), immediate);
        }

        #[test]
        fn every_value_is_one_immediate(bits: u32) {
            prop_assert_eq!(Immediate::decode(Imm(bits)).encode(), Imm(bits));
        }

        #[test]
        fn control_messages_have_the_bits_of_no_near_round(round: u32, near in 0..32u32) {
            let control = Immediate::control(ChunkId(5), Round(round)).round_bits;
            prop_assert_ne!(control, Round(round.wrapping_add(near)).low_bits());
            prop_assert_ne!(control, Round(round.wrapping_sub(near)).low_bits());
        }
    }

    #[test]
    fn a_line_has_the_id_of_no_chunk() {
        let lines =
            (0..LINES as usize).map(|hub| Immediate::decode(Immediate::line(hub, Round(70)).encode()));
        let lines: Vec<_> = lines.collect();
        assert!(lines.iter().enumerate().all(|(hub, line)| line.hub() == Some(hub) && line.round_bits == 6));
        let ids = [0, 1, 255, 256, 511].map(|hub: usize| IDS - lines[hub].chunk.0);
        assert_eq!(ids, [256, 255, 1, 512, 257], "the first 256 ids are those of earlier programs");
        assert_eq!(Immediate::new(ChunkId(MAX_CHUNKS - 1), Round(0)).hub(), None);
    }

    #[test]
    fn a_number_that_no_round_has_is_refused() {
        let read = |text: &str| serde_json::from_str::<Round>(text).map_err(|error| error.to_string());
        assert_eq!(read("4026531839"), Ok(Round::LIMIT));
        assert_eq!(serde_json::to_string(&Round(7)).unwrap(), "7");
        for text in ["4294967295", "4294967294"] {
            let error = read(text).unwrap_err();
            assert!(error.contains("is not a round: a job ends before round 4026531839"), "{error}");
        }
        assert!(Round(71).is_near(Round(7)) && !Round(72).is_near(Round(7)) && Round(1).is_near(Round(7)));
    }
}
