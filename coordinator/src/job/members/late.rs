//! Late workers: they delay a job's rounds, because they send heartbeats but do not push.
//!
//! ```text
//!   a look, which is a check of all cores --> did anything change since the last look?
//!       no, and a worker that owes a push has left:  the job fails, because the push will never arrive
//!       no, for the time of the warning:             the news names the late workers
//!       no, for the time of the limit:               these workers are lost
//! ```

use std::time::{Duration, Instant};

use pbox_core::control::Late;
use pbox_core::{Look, Round};
use serde::{Deserialize, Serialize};

use super::Ranks;
use crate::job::{Blame, Cause, Effect, Job, JobSpec};

/// The times after which workers count as late.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LateLimits {
    /// The time after which the news names late workers.
    pub warning: Duration,
    /// The time after which late workers are lost, if there is such a limit.
    pub limit: Option<Duration>,
}

impl LateLimits {
    /// Returns the pause between two checks of the rounds.
    pub fn pause(&self) -> Duration {
        (self.warning / 6).clamp(Duration::from_millis(250), Duration::from_secs(5))
    }
}

impl Job {
    /// Judges the result of a check of all the job's cores. `above` has the workers that delay the job's rounds at the hubs
    /// above. Returns the effects.
    pub(crate) fn judge(
        &mut self,
        look: &Look,
        limits: &LateLimits,
        above: Vec<Late>,
        now: Instant,
    ) -> Vec<Effect> {
        if !self.life.runs() {
            return Vec::new();
        }
        if look.round >= Round::LIMIT {
            let reason = format!(
                "the job has reached round {}, and a job ends before round {}: save the job's weights, and begin \
                 a job of another name with these weights",
                look.round.0,
                Round::LIMIT.0
            );
            return vec![Effect::Fail(reason, Blame::Job)];
        }
        let time = self.progress.note(look, now);
        let why = waits_for_ever(look, &self.members, &self.spec);
        if let Some(why) = self.progress.note_stall(why, time) {
            return vec![Effect::Fail(why, Blame::Job)];
        }
        let late = if time < limits.warning {
            Vec::new()
        } else {
            late(look, time, |rank| awaited(rank, &self.members, &self.spec))
        };
        if let Some(limit) = limits.limit.filter(|&limit| time >= limit && self.hubs.share.is_whole()) {
            let why = |late: &Late| format!("{late}; the limit is {} s (--late-limit-s)", limit.as_secs());
            let lost = late.iter().map(|late| (late.rank, Cause::Late, why(late)));
            return self.lose_all(lost.collect());
        }
        // If no worker of this hub is late, the late workers are the workers for which the hubs above wait.
        let late = if late.is_empty() { above } else { late };
        Vec::from_iter(self.news.note_held_up_by(late).then_some(Effect::HeldUp))
    }
}

/// Returns the reason why a round can never end: a member has left before a round that another member has pushed. `None` if
/// there is no such member.
fn waits_for_ever(look: &Look, members: &Ranks, spec: &JobSpec) -> Option<String> {
    let has_left = |rank| members.get(rank).is_some_and(|member| member.standing.has_left());
    let (&rank, waits) = look.workers.iter().find(|&(&rank, waits)| waits.owes > 0 && has_left(rank))?;
    Some(format!(
        "{} has left the job, and {} chunk(s) of round {} wait for its push; all workers must make the same number of rounds, and the \
         same calls",
        spec.spoken(rank),
        waits.owes,
        waits.round.unwrap_or(look.round).0
    ))
}

/// Returns the late workers, according to a check of the cores. Nothing has changed for `time`.
fn late(look: &Look, time: Duration, awaited: impl Fn(u32) -> String) -> Vec<Late> {
    let late = Vec::from_iter(look.late());
    // If all these workers also wait, they wait for each other. The workers that owe a push of the lowest round have stopped all
    // other workers. So only the workers that owe this push are late.
    let all_wait = late.iter().all(|(_, waits)| waits.is_waiting);
    let lowest = late.iter().filter_map(|(_, waits)| waits.round).min();
    let late = late.into_iter().filter(|(_, waits)| !all_wait || waits.round == lowest);
    let late = late.map(|(rank, waits)| Late {
        rank,
        who: awaited(rank),
        round: waits.round.unwrap_or(look.round),
        chunks: waits.owes,
        seconds: time.as_secs(),
    });
    late.collect()
}

/// Names the worker for which rounds wait. If a hub below has this rank and has reported a late worker, names that
/// worker. Otherwise names the member of this rank.
fn awaited(rank: u32, members: &Ranks, spec: &JobSpec) -> String {
    let latest = members.get(rank).and_then(|member| member.latest.as_ref());
    match latest.filter(|latest| latest.waited_us > 0) {
        Some(latest) => latest.of_machine(rank),
        None => spec.spoken(rank),
    }
}
