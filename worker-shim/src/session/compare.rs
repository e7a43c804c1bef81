//! Digests of a worker's weights. The hub compares them to see whether all workers have the same weights. A
//! session sends a digest of its weights every `compare_every` rounds. If the worker writes weights itself in a round, it also
//! sends a digest of the written weights.
//!
//! Runs on the caller's thread, before a key is pushed or sent ahead, because until then the key's weights do not
//! change.

use std::collections::VecDeque;

use half::{bf16, f16};
use membership::MemberError;
use pbox_core::control::CompareRequest;
use pbox_core::{Dtype, JobTerms, KeyId, Round};
use xxhash_rust::xxh3::xxh3_64_with_seed;
use zerocopy::IntoBytes;

use super::contents::Pushed;
use super::error::SessionError;
use super::session::Session;

/// The most digests that may be incomplete. A round has up to two digests, and two rounds may be open, because a caller
/// may push some keys of the next round early. If there are more, the oldest digest will never be complete.
const OPEN: usize = 4;

/// The digests of a session that compares its weights.
#[derive(Debug)]
pub(super) struct Digests {
    every: u32,
    keys: usize,
    open: VecDeque<Open>,
}

/// The incomplete digest of a round: the sum of the digests of its keys, and the number of keys in it.
#[derive(Debug)]
struct Open {
    round: Round,
    /// Whether the digest is of weights that the worker writes itself.
    written: bool,
    keys: usize,
    /// The sum; `None` before a key has added its digest.
    digest: Option<u64>,
}

impl Digests {
    /// Creates the digests of a session with these terms, if it compares weights.
    pub fn of(terms: &JobTerms) -> Option<Self> {
        let JobTerms { compare_every: every, ref keys, .. } = *terms;
        (every > 0).then(|| Digests { every, keys: keys.len(), open: VecDeque::new() })
    }

    /// Whether the weights before this round are compared.
    fn has(&self, round: Round) -> bool {
        round > Round(0) && round.0.is_multiple_of(self.every)
    }

    /// Counts a key of a round, and adds the key's digest if there is one. Returns the round's digest if this was the
    /// last key.
    fn take(&mut self, round: Round, written: bool, digest: Option<u64>) -> Option<u64> {
        let at = self.open.iter().position(|open| (open.round, open.written) == (round, written));
        let at = at.unwrap_or_else(|| {
            self.open.truncate(OPEN - 1);
            self.open.push_front(Open { round, written, keys: 0, digest: None });
            0
        });
        let open = &mut self.open[at];
        open.keys += 1;
        if let Some(digest) = digest {
            open.digest = Some(open.digest.unwrap_or(0).wrapping_add(digest));
        }
        if open.keys < self.keys { None } else { self.open.remove(at)?.digest }
    }

    /// Drops all incomplete digests, because the session continues from an earlier round.
    pub fn forget(&mut self) {
        self.open.clear();
    }
}

impl Session {
    /// Prepares the push of a key. The last key of a round makes the session send the digest of the weights
    /// before the round, if they are compared. If the worker writes weights in the round, it sends their
    /// digest, too.
    ///
    /// # Errors
    /// Returns an error if the job has failed. The job fails if weights differ.
    pub(super) fn compare(&mut self, key: KeyId, what: Pushed) -> Result<(), SessionError> {
        self.compare_weights(key)?;
        let round = self.exchange.round(key);
        if self.is_skipped(key) || round == Round(0) {
            return Ok(());
        }
        let written = if what == Pushed::Weights { Some(self.digest(key, true)?) } else { None };
        let whole = self.digests.as_mut().and_then(|digests| digests.take(round, true, written));
        whole.map_or(Ok(()), |digest| self.tell_digest(round, digest, true))
    }

    /// Prepares for pushing a key, or for sending it ahead. Works like [`compare`](Self::compare), but only for the
    /// weights before the round.
    pub(super) fn compare_weights(&mut self, key: KeyId) -> Result<(), SessionError> {
        let round = self.exchange.round(key);
        let is_compared = self.digests.as_ref().is_some_and(|digests| digests.has(round));
        if !is_compared || self.exchange.has_left(key) || self.is_skipped(key) {
            return Ok(());
        }
        let digest = Some(self.digest(key, false)?);
        let whole = self.digests.as_mut().and_then(|digests| digests.take(round, false, digest));
        whole.map_or(Ok(()), |digest| self.tell_digest(round, digest, false))
    }

    fn is_skipped(&self, key: KeyId) -> bool {
        self.skips.get(key.index()).is_some_and(|&skips| skips > 0)
    }

    /// Returns the digest of a key's weights, or of the weights that the caller has written into its gradient.
    fn digest(&mut self, key: KeyId, written: bool) -> Result<u64, SessionError> {
        let dtype = self.exchange.layout().keys()[key.index()].dtype;
        let exchange = &mut self.exchange;
        let bytes = match (dtype, written) {
            (Dtype::F32, false) => exchange.weights::<f32>(key)?.as_bytes(),
            (Dtype::F16, false) => exchange.weights::<f16>(key)?.as_bytes(),
            (Dtype::BF16, false) => exchange.weights::<bf16>(key)?.as_bytes(),
            (Dtype::F32, true) => exchange.gradient_mut::<f32>(key)?.as_bytes(),
            (Dtype::F16, true) => exchange.gradient_mut::<f16>(key)?.as_bytes(),
            (Dtype::BF16, true) => exchange.gradient_mut::<bf16>(key)?.as_bytes(),
        };
        Ok(xxh3_64_with_seed(bytes, u64::from(key.0)))
    }

    fn tell_digest(&mut self, round: Round, digest: u64, written: bool) -> Result<(), SessionError> {
        // If there are several hubs, the first hub compares the digests.
        let hub = &self.hubs[0];
        let request = CompareRequest { token: hub.token.clone(), round, digest, written };
        let told: Result<serde_json::Value, MemberError> = hub.post("compare", "compare weights", &request);
        told.map(|_| ()).or_else(|error| self.survive(error.into()))
    }
}
