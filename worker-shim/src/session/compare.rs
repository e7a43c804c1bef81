//! Comparing weights: whether all workers have the same. Each sends a digest of its weights every so many rounds, and the
//! hub compares.
//!
//! On the caller's thread, before a push, or before bytes leave ahead: until then the key's weights stay as they are.

use std::collections::VecDeque;

use half::{bf16, f16};
use membership::MemberError;
use pbox_core::control::CompareRequest;
use pbox_core::{Compression, Consistency, Dtype, KeyId, Round};
use xxhash_rust::xxh3::xxh3_64_with_seed;
use zerocopy::IntoBytes;

use super::config::{InvalidSetting, SessionConfig};
use super::error::SessionError;
use super::session::Session;

/// Rounds whose keys are not all pushed yet. Keys that a caller pushes ahead of others make a second one; of more, the
/// oldest is never complete.
const OPEN: usize = 4;

/// The digests of a session that compares its weights.
#[derive(Debug)]
pub(super) struct Digests {
    every: u32,
    keys: usize,
    open: VecDeque<Open>,
}

/// A round, the keys that are in its digest, and the digest: the sum of theirs.
#[derive(Debug)]
struct Open {
    round: Round,
    keys: usize,
    digest: u64,
}

impl Digests {
    /// Of a session with these settings, if it compares.
    pub fn of(config: &SessionConfig) -> Result<Option<Self>, InvalidSetting> {
        let level = &config.terms.level;
        let is_slim = matches!(level.compression, Some(Compression::Slim(_)));
        match config.compare_every {
            0 => Ok(None),
            every if level.consistency == Consistency::Bsp && !is_slim => {
                Ok(Some(Digests { every, keys: config.terms.keys.len(), open: VecDeque::new() }))
            }
            every => Err(InvalidSetting::new(
                "compare_every",
                every,
                "with SSP, ASP and Slim-DP workers have different weights, and nothing can be compared; leave it out",
            )),
        }
    }

    /// Whether the weights before this round are compared.
    fn has(&self, round: Round) -> bool {
        round > Round(0) && round.0.is_multiple_of(self.every)
    }

    /// Takes a key's weights before a round in. Returns the round's digest if this was its last key.
    fn take(&mut self, round: Round, key: KeyId, weights: &[u8]) -> Option<u64> {
        let digest = xxh3_64_with_seed(weights, u64::from(key.0));
        let at = self.open.iter().position(|open| open.round == round).unwrap_or_else(|| {
            self.open.truncate(OPEN - 1);
            self.open.push_front(Open { round, keys: 0, digest: 0 });
            0
        });
        let open = &mut self.open[at];
        (open.keys, open.digest) = (open.keys + 1, open.digest.wrapping_add(digest));
        if open.keys < self.keys { None } else { self.open.remove(at).map(|open| open.digest) }
    }

    /// The session goes back to an earlier round.
    pub fn forget(&mut self) {
        self.open.clear();
    }
}

impl Session {
    /// A key is about to be pushed, or sent ahead. With the last key of a round that is compared, tells the hub the digest.
    ///
    /// # Errors
    /// When the job has failed, as it does where weights differ.
    pub(super) fn compare(&mut self, key: KeyId) -> Result<(), SessionError> {
        if self.exchange.has_left(key) || self.skips.get(key.index()).is_some_and(|&skips| skips > 0) {
            return Ok(());
        }
        let round = self.exchange.round(key);
        let Some(digests) = self.digests.as_mut().filter(|digests| digests.has(round)) else { return Ok(()) };
        let weights = match self.exchange.layout().keys()[key.index()].dtype {
            Dtype::F32 => self.exchange.weights::<f32>(key)?.as_bytes(),
            Dtype::F16 => self.exchange.weights::<f16>(key)?.as_bytes(),
            Dtype::BF16 => self.exchange.weights::<bf16>(key)?.as_bytes(),
        };
        let Some(digest) = digests.take(round, key, weights) else { return Ok(()) };
        // Of several hubs, the first one compares.
        let hub = &self.hubs[0];
        let request = CompareRequest { token: hub.token.clone(), round, digest };
        let told: Result<serde_json::Value, MemberError> = hub.post("compare", "compare weights", &request);
        told.map(|_| ()).or_else(|error| self.survive(error.into()))
    }
}
