//! Requests about rounds: observations of the cores, hyperparameters of optimizers, and digests of weights.

use std::time::Instant;

use pbox_core::control::Late;
use pbox_core::{JobId, KeyId, Look, Members, Numbers, Round};
use serde::{Deserialize, Serialize};

use super::{MemberOf, Request};
use crate::digests::Compared;
use crate::hub::{Hub, JobEnded};
use crate::job::{Change, Effect, forget_numbers};
use crate::progress::Progress;

/// A report of a look, which is one check of a job's rounds on all its cores.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Judge {
    /// The job.
    pub job: JobId,
    /// The result of the check of all cores.
    pub look: Look,
    /// The workers that delay the job's rounds at the hubs above.
    pub above: Vec<Late>,
}

impl Request for Judge {
    type Answer = Vec<Effect>;

    fn apply(self, hub: &mut Hub, now: Instant) -> Vec<Effect> {
        let limits = hub.settings.late;
        let job = hub.job_mut(self.job);
        let effects = job.map_or_else(Vec::new, |job| job.judge(&self.look, &limits, self.above, now));
        hub.noted(self.job, effects, now)
    }
}

/// A report of the bytes that have crossed the links of members.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Crossed {
    /// The job.
    pub job: JobId,
    /// For each link: the member's rank, the index of the core, and the numbers of bytes sent and received.
    pub links: Vec<(u32, usize, (u64, u64))>,
}

impl Request for Crossed {
    type Answer = ();

    fn apply(self, hub: &mut Hub, _: Instant) {
        let Some(job) = hub.job_mut(self.job) else { return };
        for (rank, core, (sent, received)) in self.links {
            let link = job.members.get_mut(rank).and_then(|member| member.links.get_mut(core));
            link.into_iter().for_each(|link| link.crossed = Some(fabric::Crossed { sent, received }));
        }
    }
}

/// A request of a member to change the hyperparameters of an optimizer from a round on. The answer is the job's
/// hyperparameters, or the reason why the change is refused.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChangeNumbers {
    /// The job.
    pub job: JobId,
    /// The change.
    pub change: Change,
    /// The round.
    pub from: Round,
    /// The keys whose optimizer state is set to zero.
    pub reset: Vec<KeyId>,
}

impl Request for ChangeNumbers {
    type Answer = Result<Numbers, String>;

    fn apply(self, hub: &mut Hub, _: Instant) -> Self::Answer {
        let job = hub.job_mut(self.job).ok_or(JobEnded)?;
        let now = (&job.numbers, &*job.spec.terms);
        let numbers = self.change.checked(now, self.from, &self.reset)?;
        // In a job below other hubs, the hubs above keep the hyperparameters.
        if !job.spec.made.is_below {
            job.numbers.change(self.from, numbers.clone());
        }
        Ok(numbers)
    }
}

/// A report that rounds before the oldest round in flight are over. Their hyperparameters are forgotten.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ForgetNumbers {
    /// The job.
    pub job: JobId,
    /// The oldest round.
    pub oldest: Round,
}

impl Request for ForgetNumbers {
    type Answer = ();

    fn apply(self, hub: &mut Hub, _: Instant) {
        let job = hub.running(self.job); // a job that has ended needs no numbers
        job.into_iter().for_each(|job| forget_numbers(&mut job.numbers, self.oldest));
    }
}

/// A report of the digest of a member's weights. If weights differ, the answer is the difference. Otherwise the answer is
/// whether all members are known to have the same weights.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Compare {
    /// The member.
    pub member: MemberOf,
    /// The weights.
    pub compared: Compared,
    /// The digest.
    pub digest: u64,
}

impl Request for Compare {
    type Answer = Result<bool, String>;

    fn apply(self, hub: &mut Hub, _: Instant) -> Self::Answer {
        let MemberOf { job, rank } = self.member;
        let Some(job) = hub.job_mut(job) else { return Ok(false) };
        let members = Vec::from_iter(job.members.present().map(|(rank, _)| rank));
        let who = match job.spec.terms.level.members {
            Members::Workers => "workers",
            Members::Hubs | Members::Mesh => "machines",
        };
        job.digests.compare((rank, self.compared, self.digest), &members, who)
    }
}

/// A report that this hub itself was suspended, and could receive no heartbeats. The timeouts of all members, and of the wait
/// for hub 0 to end a cut, start again.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct StoodStill;

impl Request for StoodStill {
    type Answer = ();

    fn apply(self, hub: &mut Hub, now: Instant) {
        for job in hub.jobs.values_mut() {
            job.members.iter_mut().for_each(|(_, member)| member.last_heartbeat = now);
            job.cuts.stood_still(now);
            job.progress = Progress::new(now);
        }
    }
}
