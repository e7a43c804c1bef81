//! Other ways to drive a session than a wait: until a time, and turn by turn for a loop that has other work.
//!
//! Runs on the caller's thread.

use std::time::{Duration, Instant};

use fabric::{Idle, Port, Until};
use pbox_core::KeyId;

use super::error::SessionError;
use super::session::{LOOK, Session};

impl Session {
    /// Drives the exchange until `until`, for a caller that has nothing else to do, for example while a GPU computes.
    /// It posts the pushes that had to wait, handles arrivals, and sleeps in between. The call returns some 50 us
    /// late because of the kernel's timer slack, later on a busy core, and never much earlier.
    ///
    /// # Errors
    /// Returns an error if the job or the hub is lost. A key whose answer does not come is an error only of
    /// [`wait`](Self::wait).
    pub fn progress(&mut self, until: Instant) -> Result<(), SessionError> {
        loop {
            self.take_in(None)?;
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            // The caller does not need the answers before `until`: one wake-up for most of them is enough.
            self.nap(left);
            self.check_alive()?;
        }
    }

    /// Takes one turn of a session with callers on other threads: handles arrivals. If nothing has come, idles
    /// once, until an awaited key may be there or the [`waker`](Self::waker) wakes. Returns whether something came.
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
            // The caller needs the core for computing more than for an answer that nobody waits for.
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

    /// Sleeps until all answers may be there, at most for `limit`, and no longer than until the next pull begins.
    fn nap(&mut self, limit: Duration) {
        let (until, limit) =
            (self.exchange.until(None), self.pull_in().map_or(limit, |pull| pull.min(limit)));
        self.exchange.port().wait(until, limit);
    }
}
