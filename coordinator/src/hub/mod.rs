//! A hub: all its jobs, their names, the tokens of their members, and who has not been told of an end.
//!
//! | file | what it does |
//! | --- | --- |
//! | here | finds jobs and their members |
//! | `names` | says which job has a name, and which names are reserved |
//! | `join` | decides whether a worker finds a job, makes one, or is refused |
//! | `quotas` | says what one address, and one job, may have |
//! | `promises` | promises memory |
//! | `end` | ends jobs: one alone, or all of a hub that stops; forgets what is old |
//!
//! Of a job it must know nothing but the coordinator's [`Job`]: who drives may have more of it, to which that one belongs.

mod end;
mod join;
mod names;
mod promises;
mod quotas;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashSet};
use std::ops::DerefMut;
use std::time::Instant;

use pbox_core::JobId;
use pbox_core::control::{CountsReply, RefusalCode};

pub use join::{Found, Newcomer};
pub use names::Names;
pub use promises::{Memory, NoRoom};
pub use quotas::Quotas;

use crate::job::{Cause, Effect, Event, Job};
use crate::refused::Refused;
use crate::tokens::{KEEP_FAILED, Tokens, Unserved};

/// Why a hub that stops takes nobody.
pub const STOPS: &str = "the hub is stopping";

/// The job ended meanwhile. Its workers have been told why.
#[derive(Debug)]
pub struct JobEnded;

impl From<JobEnded> for String {
    fn from(JobEnded: JobEnded) -> Self {
        "the job ended meanwhile".to_owned()
    }
}

/// A hub. Of a name that is reserved, who drives notes an `L`.
#[derive(Debug)]
pub struct Hub<J, L = ()> {
    /// The most jobs at a time.
    jobs_limit: usize,
    quotas: Quotas,
    /// All jobs, also those that have failed.
    jobs: BTreeMap<JobId, J>,
    /// The names of jobs that have not failed, and names that are reserved.
    pub names: Names<L>,
    /// The memory that joins were promised that are being read.
    joins_bytes: u64,
    /// The tokens of the members of all jobs.
    pub tokens: Tokens,
    /// The counts of what it has done.
    pub counts: CountsReply,
    /// Whether it takes no more jobs.
    draining: bool,
    /// Whether nobody may join any more: it writes its checkpoints, and then stops.
    closed: bool,
    /// Whether all jobs end, or have ended, because it stops.
    stopping: bool,
    /// Members that have not been told yet that it stops.
    untold: HashSet<(JobId, u32)>,
    /// Jobs whose failure the hubs above have not been told yet.
    untold_above: HashSet<JobId>,
}

impl<J: DerefMut<Target = Job>, L: Default> Hub<J, L> {
    /// Makes a hub without jobs.
    pub fn new(jobs_limit: usize, quotas: Quotas) -> Self {
        Hub {
            jobs_limit,
            quotas,
            jobs: BTreeMap::new(),
            names: Names::default(),
            joins_bytes: 0,
            tokens: Tokens::default(),
            counts: CountsReply::default(),
            draining: false,
            closed: false,
            stopping: false,
            untold: HashSet::new(),
            untold_above: HashSet::new(),
        }
    }

    /// Returns the job of this number.
    pub fn job(&self, id: JobId) -> Option<&J> {
        self.jobs.get(&id)
    }

    /// Returns the job of this number.
    pub fn job_mut(&mut self, id: JobId) -> Option<&mut J> {
        self.jobs.get_mut(&id)
    }

    /// Returns all jobs, also those that have failed.
    pub fn jobs(&self) -> impl Iterator<Item = &J> {
        self.jobs.values()
    }

    /// Returns all jobs, also those that have failed.
    pub fn jobs_mut(&mut self) -> impl Iterator<Item = &mut J> {
        self.jobs.values_mut()
    }

    /// Returns the jobs that have not failed.
    pub fn living(&self) -> impl Iterator<Item = &J> {
        self.jobs().filter(|job| !job.failed())
    }

    /// Returns the job of this number, unless it has failed.
    ///
    /// # Errors
    /// When it has failed or ended.
    pub fn running(&mut self, id: JobId) -> Result<&mut J, JobEnded> {
        self.job_mut(id).filter(|job| !job.failed()).ok_or(JobEnded)
    }

    /// Returns the job of this name that has not failed.
    pub fn named(&self, name: &str) -> Option<&J> {
        self.job(self.names.job(name)?)
    }

    /// Returns the number of the job of this name that has not failed.
    ///
    /// # Errors
    /// When there is none.
    pub fn id(&self, name: &str) -> Result<JobId, Refused> {
        self.names.job(name).ok_or_else(|| {
            let why = format!("no job {name:?} is here; GET /v1/hub lists them");
            Refused::new(RefusalCode::JobUnknown, why)
        })
    }

    /// Returns the member of a job that shows this token.
    ///
    /// # Errors
    /// When the token serves no member of the job.
    pub fn member(&mut self, job: &str, token: &str) -> Result<(&mut J, u32), Refused> {
        let owner = match self.tokens.owner_by_digits(token) {
            Ok(owner) => Some(owner),
            Err(Unserved::Lost(why)) => return Err(Refused::new(RefusalCode::WorkerLost, why)),
            Err(Unserved::Left | Unserved::Unknown) => None,
        };
        let member = owner.and_then(|(id, rank)| Some((self.jobs.get_mut(&id)?, rank)));
        member.filter(|(of, _)| of.name == job).ok_or_else(|| {
            let why = format!(
                "no worker of job {job:?} has this token: it left, or its job ended more than {} s ago; join again",
                KEEP_FAILED.as_secs()
            );
            Refused::new(RefusalCode::TokenUnknown, why)
        })
    }

    /// Has a job take an event in. Returns what follows, in order.
    pub fn handle(&mut self, id: JobId, event: Event, now: Instant) -> Vec<Effect> {
        self.job_mut(id).map_or_else(Vec::new, |job| job.handle(event, now))
    }

    /// Notes what an effect of a job changes for tokens and counts. Who drives does the rest.
    pub fn note(&mut self, id: JobId, effect: &Effect, now: Instant) {
        let lost = &mut self.counts.lost;
        match effect {
            Effect::Lost { cause: Cause::Link, .. } => lost.link += 1,
            Effect::Lost { cause: Cause::Silent, .. } => lost.silent += 1,
            Effect::Lost { cause: Cause::Late, .. } => lost.late += 1,
            Effect::Lost { cause: Cause::HubLost | Cause::Other, .. } => lost.other += 1,
            Effect::Forget(rank, why) => self.tokens.lost((id, *rank), why, now),
            // A connection by this token, which may be on its way here, is one of the lost.
            Effect::DropLinks(_, Some(token)) => self.tokens.withdraw(*token),
            _ => {}
        }
    }
}
