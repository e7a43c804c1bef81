//! Joins: a worker finds a job, makes a job, or is refused.

use std::net::IpAddr;
use std::time::Instant;

use pbox_core::JobId;
use pbox_core::control::{Pass, RefusalCode};

use super::Hub;
use crate::join::Join;
use crate::refused::Refused;

/// The state of a job's name, for a worker that wants to join.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// A job of this name is being made, or its last state is being saved. The worker waits.
    Reserved,
    /// A job of this name has not failed.
    Job,
    /// The name was free. It is now reserved for a job with this number, which the worker makes.
    Free(JobId),
}

impl Hub {
    /// Looks up a job's name for a worker, whose address is `owner`. If the name is free, reserves it for this worker.
    ///
    /// # Errors
    /// Returns an error if the limit on the jobs of the hub or of this address is reached, or if the hub admits no
    /// worker.
    pub(crate) fn find_or_reserve(&mut self, name: &str, owner: Option<IpAddr>) -> Result<Found, Refused> {
        if self.names.is_reserved(name) {
            return Ok(Found::Reserved);
        }
        self.end.check_open(RefusalCode::HubStops)?;
        if self.names.job(name).is_some() {
            return Ok(Found::Job);
        }
        self.end.check_takes_jobs(name)?;
        self.settings.check_jobs(name, self.names.len())?;
        let owned = || owner.map_or_else(Vec::new, |owner| self.owned_by(owner));
        self.settings.quotas.check_jobs_of(name, owner, owned)?;
        Ok(Found::Free(self.names.reserve(name, owner)))
    }

    /// Lets a worker join the existing job of this name. Returns the job, and the pass that the worker shows to the job's
    /// other hubs.
    pub(crate) fn join(&mut self, join: Join, now: Instant) -> Result<(JobId, Pass), Refused> {
        let (id, rank) = (self.id(&join.name)?, join.rank);
        let job = self.jobs.get_mut(&id).expect("a name belongs to an existing job");
        job.may_come(&join)?;
        let Join { lead, relinks, reached, from, token, saves, .. } = join;
        self.tokens.give(token, (id, rank));
        let saves = saves && !job.spec.made.trial;
        let pass = lead.and_then(|(_, pass)| pass).unwrap_or_else(|| job.hubs.next_pass(saves));
        job.add_member(rank, pass.worker, relinks, from, now);
        if let Some(round) = reached {
            job.life.note_worker_reached(rank, round, &mut job.news);
        }
        Ok((id, pass))
    }
}
