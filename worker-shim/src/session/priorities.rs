//! The order in which the schedule p3 sends a worker's keys, if it is not the order of the job.
//!
//! Runs on the caller's thread.

use membership::MemberError;
use pbox_core::KeyId;

use super::error::SessionError;
use super::session::Session;

impl Session {
    /// Changes the order in which the schedule p3 sends keys from now on (P3, section 4). The order is for this worker's
    /// pushes and the hubs' answers. Meant for a caller that learns the order in which it needs keys only while it computes.
    /// Keys that are not named come last. Workers may choose different orders. With another schedule, nothing changes.
    ///
    /// # Errors
    /// Returns an error if a key does not exist, or if the job has ended.
    pub fn need(&mut self, order: &[KeyId]) -> Result<(), SessionError> {
        self.exchange.need(order)?;
        self.ask(Session::tell_priorities)
    }

    /// Sends the priorities of the keys to the hubs, unless the order of the job counts.
    pub(super) fn tell_priorities(&self) -> Result<(), MemberError> {
        let priorities = self.exchange.priorities();
        let hubs = self.hubs.iter().filter(|_| !priorities.is_empty());
        hubs.into_iter().try_for_each(|hub| hub.set_priorities(priorities))
    }
}
