//! A session as a worker whose computing takes time, on the real clock. The exchange continues while the
//! worker computes.

use std::time::{Duration, Instant};

use anyhow::Result;
use pbox_core::KeyId;
use worker_shim::Session;

use super::iteration::Worker;

/// A session, and a check that runs once per iteration.
pub struct Clocked<'a, L> {
    session: &'a mut Session,
    begun: Instant,
    look: L,
}

impl<'a, L: FnMut(&mut Session) -> Result<()>> Clocked<'a, L> {
    /// Creates a worker whose time starts now.
    pub fn new(session: &'a mut Session, look: L) -> Self {
        Clocked { session, begun: Instant::now(), look }
    }
}

impl<L: FnMut(&mut Session) -> Result<()>> Worker for Clocked<'_, L> {
    type Error = anyhow::Error;

    fn now(&self) -> Duration {
        self.begun.elapsed()
    }

    fn is_ready(&mut self, key: KeyId) -> Result<bool> {
        Ok(self.session.is_ready(key)?)
    }

    fn wait(&mut self, key: KeyId) -> Result<()> {
        Ok(self.session.wait(key)?)
    }

    fn push(&mut self, key: KeyId) -> Result<()> {
        Ok(self.session.push(key)?)
    }

    fn compute_until(&mut self, until: Duration) -> Result<()> {
        Ok(self.session.progress(self.begun + until)?)
    }

    fn look(&mut self) -> Result<()> {
        (self.look)(self.session)
    }
}
