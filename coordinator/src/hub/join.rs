//! Joins: a worker finds a job, makes one, or is refused.

use std::net::IpAddr;
use std::time::Instant;

use pbox_core::control::{JoinRequest, Mesh, Pass, Peers, RefusalCode};
use pbox_core::job::Difference;
use pbox_core::{JobId, Round};
use serde::{Deserialize, Serialize};

use super::{Hub, STOPS};
use crate::asker::Asker;
use crate::job::Job;
use crate::refused::Refused;
use crate::tokens::Token;

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

/// How the terms of a worker differ from those of its job, in words.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Differs {
    /// The keys are not the same.
    Keys(String),
    /// A term has two values.
    Term {
        /// The name of the term.
        what: String,
        /// The value of the job.
        ours: String,
        /// The value of the worker.
        theirs: String,
    },
}

impl From<&Difference> for Differs {
    fn from(difference: &Difference) -> Self {
        match difference {
            Difference::Keys(theirs) => Differs::Keys(theirs.to_string()),
            Difference::Term { what, ours, theirs } => {
                Differs::Term { what: (*what).to_owned(), ours: ours.clone(), theirs: theirs.clone() }
            }
        }
    }
}

/// A worker comes to the job of a name. The answer has what the worker shows to the job's other hubs.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Join {
    /// The name of the job.
    pub name: String,
    /// The rank of the worker.
    pub rank: u32,
    /// The number of this hub, as the worker has it, and the number of hubs.
    pub hub: (u32, u32),
    /// The address of the job's hub 0, and the pass that it gave, of a job over several hubs.
    pub lead: Option<(String, Option<Pass>)>,
    /// The mesh that the worker asks for.
    pub mesh: Option<Mesh>,
    /// Whether it asks for a trial.
    pub trial: bool,
    /// Whether it makes its links again.
    pub relinks: bool,
    /// The round that it had reached when it lost a hub.
    pub reached: Option<Round>,
    /// How its terms differ from the job's.
    pub differs: Option<Differs>,
    /// Its place.
    pub from: Option<Asker>,
    /// A token that nobody has had.
    pub token: Token,
    /// Whether this hub writes checkpoints.
    pub saves: bool,
}

impl Join {
    /// Takes what the hub needs of a worker's request. The worker gets this token.
    pub fn new(name: &str, request: &JoinRequest, token: Token) -> Self {
        let lead = |peers: &Peers| Some((peers.hubs.first()?.clone(), peers.pass.clone()));
        Join {
            name: name.to_owned(),
            rank: request.rank,
            hub: (request.hub, request.terms.hubs),
            lead: request.peers.as_ref().and_then(lead),
            mesh: request.mesh.clone(),
            trial: request.trial,
            relinks: request.relinks,
            reached: request.reached,
            differs: None,
            from: None,
            token,
            saves: false,
        }
    }
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
        self.names.give(&job.name, job.id);
        self.jobs.insert(job.id, job);
    }

    /// Takes a worker into the job of a name, which is there. Returns the job, and what the worker shows to the job's other hubs.
    pub(crate) fn join(&mut self, join: Join, now: Instant) -> Result<(JobId, Pass), Refused> {
        let (id, rank) = (self.id(&join.name)?, join.rank);
        let job = self.jobs.get_mut(&id).expect("names are of jobs that are there");
        job.may_come(&join)?;
        let Join { lead, relinks, reached, from, token, saves, .. } = join;
        self.tokens.give(token, (id, rank));
        let saves = saves && !job.made.trial;
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
            let why = format!("rank {rank} of job {:?} is not free yet: try again", self.name);
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
                self.name, join.rank
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
            self.name, lead,
        );
        Err(Refused::new(RefusalCode::JobDiffers, why))
    }
}
