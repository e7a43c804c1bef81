//! Waiting: for one key, for all keys, for a time, or for one turn of another loop.
//!
//! On the caller's thread. Knows when to give up, not how answers come.

use std::time::{Duration, Instant};

use fabric::{Idle, Port, Until, any};
use pbox_core::KeyId;
use pbox_core::control::Left;

use super::error::SessionError;
use super::session::{LOOK, Session};
use crate::exchange::{Exchange, ExchangeError};
use crate::pull::Pulling;

/// A worker that spins looks at the news after so many polls: often enough to see an error, and so seldom that the lock
/// of the news costs nothing.
const POLLS_PER_LOOK: u32 = 4096;

impl Session {
    /// Waits until the key's answer is there.
    pub fn wait(&mut self, key: KeyId) -> Result<(), SessionError> {
        self.check_exists(key)?;
        let asked = Instant::now();
        self.wait_for(|exchange| (!exchange.is_ready(key)).then(|| (key, exchange.until_key(key))))?;
        if let Some(pulling) = &mut self.pulling {
            pulling.asked(key, asked);
            pulling.used(key, Instant::now());
        }
        Ok(())
    }

    /// Whether the key's answer is there. Takes in what has come, and does not wait.
    pub fn is_ready(&mut self, key: KeyId) -> Result<bool, SessionError> {
        self.check_exists(key)?;
        let asked = Instant::now();
        self.take_in()?;
        let is_ready = self.exchange.is_ready(key);
        if let Some(pulling) = &mut self.pulling {
            pulling.asked(key, asked);
            if is_ready {
                pulling.used(key, Instant::now());
            }
        }
        Ok(is_ready)
    }

    /// Drives the exchange until `until`, for a caller that has nothing else to do, such as beside a GPU that computes:
    /// posts what had to wait, takes in what comes, and sleeps in between. Returns some 50 us late because of the
    /// kernel's timer slack, later on a busy core, and never much earlier.
    ///
    /// # Errors
    /// When the job or the hub is lost. A key whose answer does not come is an error only of [`wait`](Self::wait).
    pub fn progress(&mut self, until: Instant) -> Result<(), SessionError> {
        loop {
            self.take_in()?;
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            let pull_in = self.pulling.as_ref().and_then(Pulling::sleep_limit);
            // Nobody needs the answers before `until`: one wake-up for most of them is enough.
            let sleep_for = self.exchange.until_all();
            self.exchange.port().wait(sleep_for, pull_in.map_or(left, |limit| limit.min(left)));
            self.check_alive()?;
        }
    }

    /// Waits until every key's answer is there.
    pub fn wait_all(&mut self) -> Result<(), SessionError> {
        self.wait_for(|exchange| exchange.first_under_way().map(|key| (key, exchange.until_all())))
    }

    /// One turn of a session with callers on other threads: takes in what has come. If nothing has come, idles once,
    /// until an awaited key may be there or the [`waker`](Self::waker) wakes. Returns whether something came.
    pub(crate) fn turn(
        &mut self,
        idle: &mut Idle,
        awaited: &[(KeyId, Instant)],
    ) -> Result<bool, SessionError> {
        if self.take_in()? > 0 {
            idle.reset();
            return Ok(true);
        }
        let until = match awaited {
            [] => self.exchange.until_all(),
            &[(key, _)] => self.exchange.until_key(key),
            _ => Until::Any,
        };
        let pull_in = self.pulling.as_ref().and_then(Pulling::sleep_limit);
        if awaited.is_empty() {
            // The caller's computing needs the core more than an answer that nobody waits for.
            let nap = self.config.idle.nap.max(LOOK);
            self.exchange.port().wait(until, pull_in.map_or(nap, |limit| limit.min(nap)));
        } else if !self.idle(idle, until, pull_in) {
            return Ok(false);
        }
        self.check_alive()?;
        let open = |&&(key, _): &&(KeyId, Instant)| !self.has_answer(key);
        awaited.iter().filter(open).try_for_each(|&(key, since)| self.check_still_possible(key, since))?;
        Ok(false)
    }

    /// Waits until `open` returns `None`. It returns a key that is under way, and what to sleep for.
    fn wait_for(
        &mut self,
        open: impl Fn(&Exchange<any::Port>) -> Option<(KeyId, Until)>,
    ) -> Result<(), SessionError> {
        let mut idle = Idle::new(self.config.idle);
        let mut waiting_since = None;
        let mut polls = 0u32;
        loop {
            polls = polls.wrapping_add(1);
            if self.take_in()? > 0 {
                idle.reset();
            }
            let Some((key, until)) = open(&self.exchange) else { return Ok(()) };
            let pull_in = match &self.pulling {
                None => None,
                Some(pulling) => pulling.sleep_limit_for(key, &self.exchange)?,
            };
            if self.idle(&mut idle, until, pull_in) || polls.is_multiple_of(POLLS_PER_LOOK) {
                let since = *waiting_since.get_or_insert_with(Instant::now);
                self.check_still_possible(key, since)?;
            }
        }
    }

    /// Takes in what has come. Returns the number of arrivals.
    pub(super) fn take_in(&mut self) -> Result<usize, SessionError> {
        let taken = match &mut self.pulling {
            None => self.exchange.progress(),
            Some(pulling) => pulling.progress(&mut self.exchange),
        };
        taken.map_err(|error| self.explain(error))
    }

    /// Idles once. Returns whether it slept. With `pull_in`, sleeps no longer than that: then a pull begins.
    fn idle(&mut self, idle: &mut Idle, until: Until, pull_in: Option<Duration>) -> bool {
        match pull_in {
            Some(limit) => {
                self.exchange.port().wait(until, limit);
                true
            }
            None => idle.step(self.exchange.port(), until),
        }
    }

    /// Checks that a key that is under way can still complete: after each sleep, and after some polls of a worker that
    /// never sleeps.
    fn check_still_possible(&self, key: KeyId, since: Instant) -> Result<(), SessionError> {
        self.check_alive()?;
        let round = self.exchange.round(key);
        let name = || self.exchange.layout().keys()[key.index()].name.clone();
        let waits_for = |left: &Left| !self.config.terms.level.consistency.allows(round.next(), left.round);
        if let Some(left) = self.hubs.iter().find_map(|hub| hub.find_left(waits_for)) {
            return Err(SessionError::PeerLeft {
                job: self.config.job.clone(),
                rank: left.rank,
                left_at: left.round.0,
                round: round.0,
                key: name(),
            });
        }
        if since.elapsed() > self.config.wait_limit {
            return Err(SessionError::Stalled {
                job: self.config.job.clone(),
                waited: self.config.wait_limit,
                round: round.0,
                key: name(),
                missing: self.exchange.outstanding(key),
                chunks: self.exchange.layout().key_chunks(key).len() as u32,
            });
        }
        Ok(())
    }

    /// Checks that no key is under way, for a call that must not be made within a round.
    pub(super) fn check_quiet(&self, doing: &'static str) -> Result<(), ExchangeError> {
        let Some(key) = self.exchange.first_under_way() else { return Ok(()) };
        let name = self.exchange.layout().keys()[key.index()].name.clone();
        Err(ExchangeError::UnderWay { key: name, round: self.exchange.round(key).0, doing })
    }

    fn check_exists(&self, key: KeyId) -> Result<(), SessionError> {
        match self.exchange.layout().keys().len() {
            keys if key.index() >= keys => Err(ExchangeError::NoSuchKey { key: key.0, keys }.into()),
            _ => Ok(()),
        }
    }
}
