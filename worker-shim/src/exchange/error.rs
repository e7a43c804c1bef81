//! The reasons why a call of an exchange fails, and the violations of the protocol by a hub.

use fabric::CloseReason;
use pbox_core::frame::FrameError;

/// A call out of order, or a hub that broke the protocol.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ExchangeError {
    /// The key does not exist.
    #[error("key {key} does not exist; the manifest has {keys} keys, numbered from 0")]
    NoSuchKey {
        /// The number of the key that the caller asked for.
        key: u32,
        /// The number of keys.
        keys: usize,
    },
    /// The caller asked for the key with another type than the key has.
    #[error("key {key:?} has type {seen}, and was asked for as {asked}: ask for the type in the manifest")]
    OtherType {
        /// The name of the key.
        key: String,
        /// The type of the key.
        seen: &'static str,
        /// The type that the caller asked for.
        asked: &'static str,
    },
    /// The key is in flight.
    #[error("key {key:?} is in flight in round {round}: wait for it before {doing}")]
    UnderWay {
        /// The name of the key.
        key: String,
        /// The round of the key's push in flight.
        round: u32,
        /// The action that was tried.
        doing: &'static str,
    },
    /// Only the hub writes weights.
    #[error(
        "key {key:?}: only the hub writes its weights; a worker makes steps of its own with Slim-DP alone"
    )]
    HubsWeights {
        /// The name of the key.
        key: String,
    },
    /// The gradient lies in a dma-buf.
    #[error(
        "key {key:?}: its gradient lies in the dma-buf of the session, which has no address in this process: write the gradient by the device, at the key's place in the window"
    )]
    InDmaBuf {
        /// The name of the key.
        key: String,
    },
    /// The job takes gradients only.
    #[error("key {key:?} cannot be pushed as {pushed}: {why}")]
    OnlyGradients {
        /// The name of the key.
        key: String,
        /// The content that was pushed.
        pushed: &'static str,
        /// The reason, and the next step.
        why: &'static str,
    },
    /// The weights were broadcast after a push.
    #[error(
        "a broadcast before round {round} would change nothing, because this session has pushed: broadcast once, before the first push; later every worker pushes new weights (push_weights)"
    )]
    LateBroadcast {
        /// The next round.
        round: u32,
    },
    /// A key was not pushed for the previous round.
    #[error(
        "key {key:?} cannot be pushed for round {round}: key {missing:?} is not pushed for the previous round; push every key once a round, because Slim-DP selects its significant set from all keys"
    )]
    NeedsAll {
        /// The name of the key that was pushed.
        key: String,
        /// The round of the push.
        round: u32,
        /// The name of a key that was not pushed.
        missing: String,
    },
    /// A message arrived from the hub that was not the expected answer.
    #[error(
        "the hub broke the protocol: an answer came for chunk {chunk} and a round whose number ends in {round_bits}, {expected}; run the same version at both ends"
    )]
    UnexpectedAnswer {
        /// The chunk that the arrival names.
        chunk: u32,
        /// The low bits of the arrival's round.
        round_bits: u8,
        /// A description of what was expected.
        expected: String,
    },
    /// The bytes of an answer are not a frame of its chunk and round.
    #[error(
        "the hub broke the protocol: it answered chunk {chunk} in round {round}, but {why}; run the same version at both ends"
    )]
    Frame {
        /// The chunk.
        chunk: u32,
        /// The round of the answer.
        round: u32,
        /// The fault.
        why: FrameError,
    },
    /// The answer of the key cannot arrive before another key is pushed.
    #[error("key {key:?} waits for the push of key {unpushed:?}: {why}")]
    Unpushed {
        /// The name of the key.
        key: String,
        /// The name of the other key.
        unpushed: String,
        /// The reason, and the next step.
        why: &'static str,
    },
    /// A link closed.
    #[error("the link to the hub's core {core} closed: {reason}")]
    Closed {
        /// The number of the hub's core at the other end of the link.
        core: usize,
        /// The reason.
        reason: String,
        /// Whether the transport of this worker closed the link, and not the hub.
        here: bool,
    },
}

impl ExchangeError {
    pub(super) fn closed(core: usize, reason: &CloseReason) -> Self {
        // The flag matters: if this end closed the link, the hub does not know the reason, and sees only that the link
        // ended.
        let here = !matches!(reason, CloseReason::PeerGone);
        ExchangeError::Closed { core, reason: reason.to_string(), here }
    }
}
