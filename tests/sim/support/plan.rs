//! The pushes of each worker, for each key in each round: a gradient, nothing, or weights. [`Drafts`] are
//! the gradients that a worker sends ahead.

use std::collections::BTreeMap;

use fabric::Port;
use pbox_core::{Content, KeyId, Round};
use worker_shim::{Exchange, ExchangeError};

use super::trouble::Dice;
use super::values::mix;

/// A plan that all workers follow.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    seed: u64,
    /// Whether all pushes are gradients.
    plain: bool,
    /// Whether all workers push the same content.
    alike: bool,
    /// Whether round 0 is the broadcast.
    broadcasts: bool,
}

impl Plan {
    /// Creates a plan. For half of the seeds, workers also push other contents than gradients.
    pub fn new(seed: u64, broadcasts: bool) -> Self {
        let seed = mix(seed ^ 0x706c_616e);
        Plan { seed, plain: seed.is_multiple_of(2), alike: false, broadcasts }
    }

    /// Returns the plan in which all workers push gradients, after a broadcast.
    pub fn plain() -> Self {
        Plan { seed: 0, plain: true, alike: true, broadcasts: true }
    }

    /// Returns the plan with `alike` set: whether all workers push the same content.
    #[must_use]
    pub fn alike(self, alike: bool) -> Self {
        Plan { alike, ..self }
    }

    /// Returns the content of a worker's push. In the broadcast, rank 0 pushes weights, and most other ranks push
    /// nothing.
    pub fn content(&self, worker: u32, round: Round, key: KeyId) -> Content {
        self.content_at_hub(worker, worker, round, key)
    }

    /// Returns the content of a worker's push to a hub at which it has this rank.
    pub fn content_at_hub(&self, worker: u32, rank: u32, round: Round, key: KeyId) -> Content {
        let of_key = mix(self.seed ^ u64::from(round.0) << 32 ^ u64::from(key.0));
        let of_worker = mix(of_key ^ u64::from(worker));
        if round == Round(0) && self.broadcasts {
            let leaves_out = rank > 0 && !(self.alike && self.plain) && !of_worker.is_multiple_of(4);
            return if leaves_out { Content::Nothing } else { Content::Weights };
        }
        match of_key % 8 {
            _ if self.plain => Content::Gradient,
            0 => Content::Weights,
            1 => Content::Nothing,
            2..=4 if of_worker.is_multiple_of(2) && !self.alike => Content::Nothing,
            _ => Content::Gradient,
        }
    }

    /// Returns what the pushes of all `workers` workers mean for a key in a round: a step by the pushed gradients,
    /// nothing, or new weights.
    pub fn together(&self, workers: u32, round: Round, key: KeyId) -> Content {
        let has = |content| (0..workers).any(|worker| self.content(worker, round, key) == content);
        let contents = [Content::Weights, Content::Gradient, Content::Nothing];
        contents.into_iter().find(|&content| has(content)).expect("a worker")
    }

    /// Whether a worker pushes a gradient.
    pub fn has_gradient(&self, worker: u32, round: Round, key: KeyId) -> bool {
        self.content(worker, round, key) == Content::Gradient
    }
}

/// Gradients of one worker that were sent ahead. The flag says whether a gradient must be written again.
#[derive(Debug, Default)]
pub struct Drafts(BTreeMap<KeyId, bool>);

impl Drafts {
    /// Sends a key's gradient ahead, if the dice say so. `write` writes it, with a number that is added: 0, or another
    /// number for values that must be written again.
    pub fn perhaps<P: Port>(
        &mut self,
        dice: &mut Dice,
        worker: &mut Exchange<P>,
        key: KeyId,
        write: impl FnOnce(&mut Exchange<P>, f32),
    ) -> Result<(), ExchangeError> {
        if !worker.is_ready(key) || dice.below(3) > 0 {
            return Ok(());
        }
        let is_other = dice.below(2) == 0;
        write(worker, if is_other { 3.5 } else { 0.0 });
        self.0.insert(key, is_other);
        worker.send_ahead(key)
    }

    /// Whether a key's gradient was sent ahead.
    pub fn has(&self, key: KeyId) -> bool {
        self.0.contains_key(&key)
    }

    /// Writes the key if that is needed, and pushes it now.
    pub fn push<P: Port>(
        &mut self,
        worker: &mut Exchange<P>,
        key: KeyId,
        content: Content,
    ) -> Result<(), ExchangeError> {
        if self.0.remove(&key) == Some(true) {
            worker.rewritten(key);
        }
        worker.put_as(key, content)
    }
}
