//! The requests of a session to the control ports of its hubs, and the hubs' news.
//!
//! Runs on the caller's thread. `membership` makes the requests.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use membership::{Hub, MemberError};
use pbox_core::KeyId;
use pbox_core::control::{CheckpointReply, Late, Left, reason};

use super::error::SessionError;
use super::recovery::TELL_LIMIT;
use super::session::Session;
use crate::exchange::ExchangeError;

/// The time limit for asking a hub why a link closed.
const REASON_LIMIT: Duration = Duration::from_secs(2);

impl Session {
    /// Waits for all keys in flight, and makes the hub write a checkpoint. The checkpoint has the weights and the
    /// optimizer state before the highest round that any worker of the job has reached. Returns when the file is on the
    /// disk.
    ///
    /// # Errors
    /// Returns the errors of [`wait_all`](Self::wait_all). Returns an error if the hub has no directory for checkpoints, or if
    /// writing fails.
    pub fn checkpoint(&mut self) -> Result<CheckpointReply, SessionError> {
        // The hub replies only after the end of the round. While this thread waits for the reply, it sends nothing, so
        // all keys must have their answers before.
        self.wait_all()?;
        // If there are several hubs, hub 0 makes all hubs write.
        self.ask(|session| session.hubs[0].post("checkpoint", "write a checkpoint", &serde_json::json!({})))
    }

    /// Makes a request to the hubs. If a hub is lost, makes the request once more after the recovery.
    pub(super) fn ask<R>(
        &mut self,
        ask: impl Fn(&Self) -> Result<R, MemberError>,
    ) -> Result<R, SessionError> {
        match ask(self) {
            Ok(answer) => Ok(answer),
            Err(error) => {
                self.survive(error.into())?;
                Ok(ask(self)?)
            }
        }
    }

    /// Returns the ranks that take part now, ascending. All ranks take part, unless the job continues after losses.
    /// With several hubs, returns the ranks that take part at any hub.
    pub fn members(&self) -> Vec<u32> {
        self.hubs.iter().flat_map(Hub::members).collect::<BTreeSet<u32>>().into_iter().collect()
    }

    /// Whether the worker's hub is below other hubs. The job may then have workers at other hubs, which
    /// [`members`](Self::members) does not know.
    pub fn is_below_others(&self) -> bool {
        self.is_below_others
    }

    /// Returns the late workers, as the hubs report them. Late workers are alive, but have not pushed rounds that
    /// other workers have pushed.
    pub fn held_up_by(&self) -> Vec<Late> {
        self.hubs.iter().flat_map(Hub::held_up_by).collect()
    }

    /// Waits for all keys in flight, and leaves the job.
    ///
    /// Returns the errors of [`wait_all`](Self::wait_all). Returns [`MemberError::CheckpointLost`] if this was the last
    /// worker, and the hub could not write the last checkpoint. Even with this error the worker has left.
    pub fn leave(mut self) -> Result<(), SessionError> {
        self.wait_all()?;
        tracing::info!(job = self.config.job, rank = self.config.rank, "{}", self.times());
        self.send_leave()
    }

    /// Leaves the job, without waiting for keys in flight.
    pub(crate) fn send_leave(&self) -> Result<(), SessionError> {
        let at = self.left_at();
        if let Some(timeline) = self.stopwatch.timeline() {
            timeline.compare(&self.hubs);
        }
        // Every hub gets the request to leave, even if the request to another hub has failed.
        Ok(self.hubs.iter().map(|hub| hub.leave(&at)).fold(Ok(()), Result::and)?)
    }

    /// Ends the session because this worker fails, and sends the other workers the reason: "rank 1 failed:
    /// KeyError: 'x'". The other workers get one line of `why`, of at most
    /// [`MAX_REASON_BYTES`](pbox_core::control::MAX_REASON_BYTES). The job ends, or continues without this
    /// worker.
    pub fn fail(self, why: &str) {
        self.send_failed(why);
    }

    /// Sends the other workers the reason why this worker fails. The reason must arrive before this worker's links end.
    /// Otherwise the hubs would report that the worker died.
    pub(crate) fn send_failed(&self, why: &str) {
        for hub in self.hubs.iter().filter(|hub| hub.end().is_none()) {
            if let Err(error) = hub.fail(&reason(why), TELL_LIMIT) {
                tracing::debug!(hub = hub.address(), %error, "cannot report to this hub why the worker fails");
            }
        }
    }

    /// Checks that a key in flight can still complete. Called after each sleep, and after some polls of a
    /// worker that never sleeps.
    pub(super) fn check_still_possible(&mut self, key: KeyId, since: Instant) -> Result<(), SessionError> {
        self.check_alive()?;
        let round = self.exchange.round(key);
        let name = || self.exchange.layout().keys()[key.index()].name.clone();
        let waits_for =
            |left: &Left| !self.config.terms.level.consistency.allows(round.next(), left.at.round_of(key));
        if let Some(left) = self.hubs.iter().find_map(|hub| hub.find_left(waits_for)) {
            return Err(SessionError::PeerLeft {
                job: self.config.job.clone(),
                rank: left.rank,
                left_at: left.at.round_of(key).0,
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
                late: self.held_up_by(),
            });
        }
        Ok(())
    }

    /// Checks that no hub has reported the end of this session.
    pub(super) fn check_alive(&mut self) -> Result<(), SessionError> {
        let Some(end) = self.hubs.iter().find_map(Hub::end) else { return Ok(()) };
        // The news may arrive before this worker notices that its links have ended. So the last arrivals are handled
        // first: if a link failed at this end, its error has the reason.
        let limit = if end.is_loss_of_hub() && self.waits_alone() { REASON_LIMIT } else { Duration::ZERO };
        match self.exchange.take_last(Instant::now() + limit) {
            Err(error @ ExchangeError::Closed { here: true, .. }) => self.survive(self.explain(error)),
            _ => self.survive(end.into()),
        }
    }

    /// Returns the cause of a link's end, because the closed link is only a symptom. If the link's hub is alive, it
    /// reports the cause over the control port.
    pub(super) fn explain(&self, error: ExchangeError) -> SessionError {
        let ExchangeError::Closed { here, core, .. } = error else { return error.into() };
        let hub = self.hubs.iter().find(|hub| hub.cores.contains(&core)).unwrap_or(&self.hubs[0]);
        let end = match hub.wait_for_end(Instant::now() + REASON_LIMIT) {
            // The hub saw only that this worker's links ended, and not the error at this end.
            Some(MemberError::JobFailed { job, reason, hub_stops }) if here => {
                let reason = format!("{reason}; at this worker, rank {}: {error}", self.config.rank);
                MemberError::JobFailed { job, reason, hub_stops }
            }
            Some(end) => end,
            None => hub.lost(error.to_string()),
        };
        end.into()
    }
}
