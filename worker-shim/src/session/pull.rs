//! Weights that are pulled in batches: what is planned, and what the planner is told of the session's caller.
//!
//! On the session's thread. What batches are asked for when is the exchange's business.

use std::time::Instant;

use pbox_core::KeyId;

use super::error::SessionError;
use super::session::Session;
use crate::pull::{Pull, PullError, PullPlan, Pulling};

impl Session {
    /// Where weights are pulled in batches: what is planned, once there is a plan, and what came of it.
    pub fn pull_plan(&self) -> Option<&PullPlan> {
        self.pulling.as_ref().and_then(Pulling::plan)
    }

    /// Where weights are pulled in batches: by other layers from now on, for a caller that learns only as it computes
    /// in what order its layers are needed. What they take is measured anew.
    ///
    /// # Errors
    /// While a key is under way, where weights are not pulled in batches, and when they are not every key once.
    pub fn pull_by(&mut self, layers: Vec<Vec<KeyId>>) -> Result<(), SessionError> {
        self.check_quiet("pulling by other layers")?;
        let pull = self.config.pull.as_mut().ok_or(PullError::NoBatches)?;
        let pull = Pull { layers, ..pull.clone() };
        self.pulling = Some(Pulling::begin(&pull, &mut self.exchange)?);
        self.config.pull = Some(pull);
        Ok(())
    }

    /// When the caller wanted a key's weights, for the planner.
    pub(crate) fn asked(&mut self, key: KeyId, at: Instant) {
        self.pulling.iter_mut().for_each(|pulling| pulling.asked(key, at));
    }

    /// When the caller had them.
    pub(crate) fn used(&mut self, key: KeyId, at: Instant) {
        self.pulling.iter_mut().for_each(|pulling| pulling.used(key, at));
    }

    /// Whether a key that is under way can come without another push.
    pub(crate) fn check_can_come(&self, key: KeyId) -> Result<(), SessionError> {
        Ok(self.exchange.check_can_come(key)?)
    }
}
