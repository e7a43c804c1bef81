//! Joins: a worker finds a job, makes one, or is refused.

use std::net::IpAddr;
use std::time::Instant;

use pbox_core::JobId;
use pbox_core::control::{Pass, RefusalCode};

use super::{Hub, STOPS};
use crate::asker::Asker;
use crate::job::Job;
use crate::join::Join;
use crate::refused::Refused;

/// The state of a name, as a worker that wants to join finds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// A job that is being made, or whose last state is being saved. The worker waits.
    Reserved,
    /// A job that has not failed.
    Job,
    /// Nothing: the name is reserved now for a job of this number, which the worker has made.
    Free(JobId),
}

impl Hub {
    /// Looks what a worker that comes from this address finds under a name. A free name is reserved for it.
    ///
    /// # Errors
    /// When there may not be one more job, or not of this address; or the hub admits nobody.
    pub(crate) fn find_or_reserve(&mut self, name: &str, owner: Option<IpAddr>) -> Result<Found, Refused> {
        if self.names.is_reserved(name) {
            return Ok(Found::Reserved);
        }
        self.check_open(RefusalCode::HubStops)?;
        if self.names.job(name).is_some() {
            return Ok(Found::Job);
        }
        self.check_takes_jobs(name)?;
        self.check_jobs_of(name, owner)?;
        Ok(Found::Free(self.names.reserve(name, owner)))
    }

    /// Refuses with this code once the hub admits nobody.
    ///
    /// # Errors
    /// When it admits nobody.
    pub fn check_open(&self, code: RefusalCode) -> Result<(), Refused> {
        if self.end.closed { Err(Refused::new(code, STOPS.to_owned())) } else { Ok(()) }
    }

    /// Refuses to make a job if there may not be one more.
    fn check_takes_jobs(&self, name: &str) -> Result<(), Refused> {
        let there = self.names.len();
        if self.end.draining {
            let why = format!(
                "job {name:?}: this hub takes no new jobs, because it ends with those that it has; use another hub"
            );
            return Err(Refused::new(RefusalCode::Draining, why));
        }
        if there >= self.settings.jobs_limit {
            let why = format!(
                "job {name:?}: this hub has {there} jobs, the most that it may have; end one, or start the hub with a \
                 higher --jobs-limit"
            );
            return Err(Refused::new(RefusalCode::JobsLimit, why));
        }
        Ok(())
    }

    /// Begins a job that was made under a reserved name, which is free again.
    pub(crate) fn begin(&mut self, job: Job) {
        self.names.give(&job.spec.name, job.spec.id);
        self.jobs.insert(job.spec.id, job);
    }

    /// Takes a worker into the job of a name, which is there. Returns the job, and what the worker shows to the job's other hubs.
    pub(crate) fn join(&mut self, join: Join, now: Instant) -> Result<(JobId, Pass), Refused> {
        let (id, rank) = (self.id(&join.name)?, join.rank);
        let job = self.jobs.get_mut(&id).expect("names are of jobs that are there");
        job.may_come(&join)?;
        let Join { lead, relinks, reached, from, token, saves, .. } = join;
        self.tokens.give(token, (id, rank));
        let saves = saves && !job.spec.made.trial;
        let pass = lead.and_then(|(_, pass)| pass).unwrap_or_else(|| job.hubs.next_pass(saves));
        job.add_member(rank, pass.worker, relinks, from, now);
        reached.into_iter().for_each(|round| job.worker_has_reached(rank, round));
        Ok((id, pass))
    }

    /// Counts a join that is over. Members that gather hear why the worker of this rank was refused.
    pub(crate) fn count_join(&mut self, name: &str, rank: u32, from: Option<&Asker>, refused: Option<&str>) {
        let Some(why) = refused else { return self.counts.joins += 1 };
        self.counts.refused_joins += 1;
        let named = self.names.job(name).and_then(|id| self.job_mut(id));
        named.into_iter().for_each(|job| job.refused(rank, from, why));
    }
}

impl Job {
    /// Checks that a worker may come to this job now.
    fn may_come(&self, join: &Join) -> Result<(), Refused> {
        let rank = join.rank;
        if self.may_become_free(rank) {
            let why = format!("rank {rank} of job {:?} is not free yet: try again", self.spec.name);
            return Err(Refused::new(RefusalCode::RankBusy, why));
        }
        self.admits(join)?;
        self.check_pass(join)?;
        self.check_reached(rank, join.reached)
    }

    /// Checks that a worker's pass is of this job, and not of a job of the same name that hub 0 has begun since.
    fn check_pass(&self, join: &Join) -> Result<(), Refused> {
        let Some((lead, pass)) = &join.lead else { return Ok(()) };
        if let Some(other) = pass.as_ref().and_then(|pass| self.rank(pass.worker)) {
            let why = format!(
                "job {:?}: the pass of worker {} is that of worker {other}, which is here; a worker gets a pass of its own from \
                 hub 0 in each join",
                self.spec.name, join.rank
            );
            return Err(Refused::new(RefusalCode::JobDiffers, why));
        }
        let is_ours =
            |pass: &Pass| self.hubs.secret.is(&pass.secret) && self.hubs.first_round == pass.first_round;
        if pass.as_ref().is_none_or(is_ours) {
            return Ok(());
        }
        let why = format!(
            "job {:?} is another one at hub 0, at {}, than here; if its hub 0 was started again, the job ends here soon: \
             try again; otherwise use another job name",
            self.spec.name, lead,
        );
        Err(Refused::new(RefusalCode::JobDiffers, why))
    }
}
