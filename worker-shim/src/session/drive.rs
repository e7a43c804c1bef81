//! Ways to drive a session without a wait for a key: until a given time, or turn by turn for a loop that has other
//! work.
//!
//! Runs on the caller's thread.

use std::time::{Duration, Instant};

use fabric::{Idle, Port, Until};
use pbox_core::KeyId;

use super::error::SessionError;
use super::session::{LOOK, Session};

impl Session {
    /// Drives the exchange until `until`. Meant for a caller that has nothing else to do, for example while a GPU
    /// computes. Posts the pushes that had to wait, handles arrivals, and sleeps in between. The call returns some 50
    /// us after `until`, because of the kernel's timer slack. On a busy core it returns later, but never much before
    /// `until`.
    ///
    /// # Errors
    /// Returns an error if the job or the hub is lost. The error that a key's answer can never arrive is returned only
    /// by [`wait`](Self::wait).
    pub fn progress(&mut self, until: Instant) -> Result<(), SessionError> {
        loop {
            self.take_in(None)?;
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            // The caller needs no answer before `until`, so the thread may sleep until most answers have arrived.
            self.nap(left);
            self.check_alive()?;
        }
    }

    /// Makes one turn of a session whose callers are on other threads. Handles arrivals. If nothing has arrived, idles
    /// once, until an awaited key may have arrived or the [`waker`](Self::waker) wakes the thread. Returns whether
    /// anything arrived.
    pub(crate) fn turn(
        &mut self,
        idle: &mut Idle,
        awaited: &[(KeyId, Instant)],
    ) -> Result<bool, SessionError> {
        if self.take_in(None)? > 0 {
            idle.reset();
            return Ok(true);
        }
        if awaited.is_empty() {
            // No caller waits for an answer, so this thread leaves the cpu to the callers' computing.
            self.nap(self.config.idle.nap.max(LOOK));
        } else {
            let until = if let &[(key, _)] = awaited { self.exchange.until(Some(key)) } else { Until::Any };
            if !self.idle(idle, until) {
                return Ok(false);
            }
        }
        self.check_alive()?;
        for &(key, since) in awaited {
            if !self.has_answer(key) {
                self.check_still_possible(key, since)?;
            }
        }
        Ok(false)
    }

    /// Sleeps until all answers may have arrived, at most for `limit`, and no longer than until the next pull
    /// begins.
    fn nap(&mut self, limit: Duration) {
        let (until, limit) =
            (self.exchange.until(None), self.pull_in().map_or(limit, |pull| pull.min(limit)));
        self.exchange.port().wait(until, limit);
    }
}
