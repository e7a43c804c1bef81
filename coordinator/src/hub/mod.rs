//! A hub: all its jobs, their names, the tokens of their members, and the members that must still be notified of an end.
//!
//! | file | what it does |
//! | --- | --- |
//! | here | finds jobs and their members |
//! | `names` | has the job of each name, and the reserved names |
//! | `join` | decides whether a worker finds a job, makes one, or is refused |
//! | `quotas` | limits what one address, and one job, may have |
//! | `promises` | promises memory |
//! | `end` | ends jobs; forgets what is old |
//! | `stop` | stops the hub: saves its jobs, then ends them |
//!
//! Every change to a hub is made by [`Hub::ask`], which is in `input`. The driver only reads a hub.

mod end;
mod join;
mod names;
mod promises;
mod quotas;
mod stop;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::time::Instant;

use pbox_core::JobId;
use pbox_core::control::{CountsReply, RefusalCode};
use serde::{Deserialize, Serialize};

pub use end::{End, Failed};
pub use join::Found;
pub use names::Names;
pub use promises::{Memory, NoRoom, Promise};
pub use quotas::Quotas;
pub(crate) use stop::Stopping;
pub use stop::{ROUND_AT_STOP, SAVED_WITHIN, StopStep};

use crate::job::{Cause, Effect, Job, LateLimits};
use crate::refused::Refused;
use crate::tokens::{KEEP_FAILED, Tokens, Unserved};

/// The reason given for a refusal while the hub stops.
pub const STOPS: &str = "the hub is stopping";

/// An error: the job ended during the request. Its workers know the reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JobEnded;

impl From<JobEnded> for String {
    fn from(JobEnded: JobEnded) -> Self {
        "the job ended meanwhile".to_owned()
    }
}

/// The settings on which a hub's decisions depend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// The limit on the jobs at a time.
    pub jobs_limit: usize,
    /// The quotas of addresses and of jobs.
    pub quotas: Quotas,
    /// The limits after which workers are late.
    pub late: LateLimits,
}

/// A hub.
#[derive(Debug)]
pub struct Hub {
    pub(crate) settings: Settings,
    /// All jobs, including failed jobs.
    pub(crate) jobs: BTreeMap<JobId, Job>,
    /// The names of jobs that have not failed, and the reserved names.
    pub(crate) names: Names,
    /// The memory that is promised for the joins whose bodies are being read.
    pub(crate) joins_bytes: u64,
    /// The tokens of the members of all jobs.
    pub(crate) tokens: Tokens,
    /// The counts of the hub's events.
    pub(crate) counts: CountsReply,
    pub(crate) end: End,
}

impl Settings {
    /// Checks that the limit allows one more job, which has this name. `there` is the number of names in use.
    fn check_jobs(&self, name: &str, there: usize) -> Result<(), Refused> {
        match there < self.jobs_limit {
            true => Ok(()),
            false => Err(Refused::new(
                RefusalCode::JobsLimit,
                format!(
                    "job {name:?}: this hub has {there} jobs, which is its limit; end a job, or start the hub with a \
                     higher --jobs-limit"
                ),
            )),
        }
    }
}

impl Hub {
    /// Makes a hub without jobs.
    pub fn new(settings: Settings) -> Self {
        Hub {
            settings,
            jobs: BTreeMap::new(),
            names: Names::default(),
            joins_bytes: 0,
            tokens: Tokens::default(),
            counts: CountsReply::default(),
            end: End::default(),
        }
    }

    /// Returns the job of this number.
    pub fn job(&self, id: JobId) -> Option<&Job> {
        self.jobs.get(&id)
    }

    /// Returns all jobs, including failed jobs.
    pub fn jobs(&self) -> impl Iterator<Item = &Job> {
        self.jobs.values()
    }

    /// Returns the jobs that have not failed.
    pub fn living(&self) -> impl Iterator<Item = &Job> {
        self.jobs().filter(|job| !job.life.failed())
    }

    /// Returns the names of jobs.
    pub fn names(&self) -> &Names {
        &self.names
    }

    /// Returns the tokens of members.
    pub fn tokens(&self) -> &Tokens {
        &self.tokens
    }

    /// Returns the state of the end of the hub's service.
    pub fn end(&self) -> &End {
        &self.end
    }

    /// Returns the counts of the hub's events.
    pub fn counts(&self) -> CountsReply {
        self.counts
    }

    /// Returns the job of this name that has not failed.
    pub fn named(&self, name: &str) -> Option<&Job> {
        self.job(self.names.job(name)?)
    }

    /// Returns the number of the job of this name that has not failed.
    ///
    /// # Errors
    /// Returns an error if there is no such job.
    pub fn id(&self, name: &str) -> Result<JobId, Refused> {
        self.names.job(name).ok_or_else(|| {
            let why = format!("this hub has no job {name:?}; GET /v1/hub lists its jobs");
            Refused::new(RefusalCode::JobUnknown, why)
        })
    }

    /// Returns the member of a job that shows this token.
    ///
    /// # Errors
    /// Returns an error if the token serves no member of the job.
    pub fn member(&self, job: &str, token: &str) -> Result<(&Job, u32), Refused> {
        let owner = match self.tokens.owner_by_digits(token) {
            Ok(owner) => Some(owner),
            Err(Unserved::Lost(why)) => return Err(Refused::new(RefusalCode::WorkerLost, why)),
            Err(Unserved::Left | Unserved::Unknown) => None,
        };
        let member = owner.and_then(|(id, rank)| Some((self.jobs.get(&id)?, rank)));
        member.filter(|(of, _)| of.spec.name == job).ok_or_else(|| {
            let why = format!(
                "no worker of job {job:?} has this token: the worker left, or its job ended more than {} s ago; join again",
                KEEP_FAILED.as_secs()
            );
            Refused::new(RefusalCode::TokenUnknown, why)
        })
    }

    pub(crate) fn job_mut(&mut self, id: JobId) -> Option<&mut Job> {
        self.jobs.get_mut(&id)
    }

    /// Returns the job of this number, so that it can be changed. A failed job gives an error.
    pub(crate) fn running(&mut self, id: JobId) -> Result<&mut Job, JobEnded> {
        self.job_mut(id).filter(|job| !job.life.failed()).ok_or(JobEnded)
    }

    /// Updates tokens and counts after the effects of a job. Returns the effects that the driver must carry out.
    pub(crate) fn noted(&mut self, id: JobId, effects: Vec<Effect>, now: Instant) -> Vec<Effect> {
        for effect in &effects {
            let lost = &mut self.counts.lost;
            match effect {
                Effect::Lost { cause: Cause::Link, .. } => lost.link += 1,
                Effect::Lost { cause: Cause::Silent, .. } => lost.silent += 1,
                Effect::Lost { cause: Cause::Late, .. } => lost.late += 1,
                Effect::Lost { cause: Cause::HubLost | Cause::Other, .. } => lost.other += 1,
                Effect::LastOver(saved) => {
                    self.job_mut(id).into_iter().for_each(|job| job.checkpoints.note_last_state(saved));
                    if saved.is_ok() {
                        self.end.forget(id);
                    }
                }
                Effect::Forget(rank, why) => self.tokens.note_lost((id, *rank), why, now),
                // A connection with this token may be in progress, and its links are lost, too. So the token is
                // withdrawn.
                Effect::DropLinks(_, Some(token)) => self.tokens.withdraw(*token),
                _ => {}
            }
        }
        effects
    }
}
