//! The order of pushes that Slim-DP requires, as the session's thread published it last. A push in another order would
//! end the session, so the callers' pushes are checked first.
//!
//! The callers' lock protects the order. Must not depend on sessions.

use pbox_core::{KeyId, Round};

use crate::exchange::ExchangeError;

/// A push of a key: the push that is queued or in flight or, if there is none, the next push.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Push {
    pub round: Round,
    /// The round that must be pushed for all keys before this push.
    pub awaits: Option<Round>,
}

/// The last or next push of each key.
#[derive(Debug)]
pub(super) struct Order(Vec<Push>);

impl Order {
    pub fn new(keys: usize) -> Self {
        Order(vec![Push::default(); keys])
    }

    pub fn set(&mut self, key: KeyId, push: Push) {
        self.0[key.index()] = push;
    }

    /// Checks that all pushes for which the next push of a key must wait are made. `open` says whether each key is
    /// queued or in flight.
    pub fn check(&self, key: KeyId, open: &[bool], names: &[String]) -> Result<(), ExchangeError> {
        let Push { round, awaits } = self.0[key.index()];
        let Some(awaited) = awaits else { return Ok(()) };
        let is_missing =
            |(push, open): (&Push, &bool)| push.round < awaited || (push.round == awaited && !open);
        let name = |index: usize| names[index].clone();
        match self.0.iter().zip(open).position(is_missing) {
            None => Ok(()),
            Some(missing) => Err(ExchangeError::NeedsAll {
                key: name(key.index()),
                round: round.0,
                missing: name(missing),
            }),
        }
    }
}
