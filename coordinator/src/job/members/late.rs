//! Workers that hold up a job's rounds: they send heartbeats, and do not push.
//!
//! ```text
//!   a look at all cores --> did anything move since the last look?
//!       no, and who owes a push has left: the job fails, because nobody makes that push
//!       no, for the warning's time: who owes pushes that another worker has made --> the news name them
//!       no, for the limit:          they are lost
//! ```

use std::time::{Duration, Instant};

use pbox_core::control::Late;
use pbox_core::{Look, Round};
use serde::{Deserialize, Serialize};

use super::Ranks;
use crate::job::{Blame, Cause, Effect, Job, JobSpec};

/// The limits after which workers are late.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LateLimits {
    /// The time after which late workers are named.
    pub warning: Duration,
    /// The time after which late workers are lost, if there is a limit.
    pub limit: Option<Duration>,
}

impl LateLimits {
    /// Returns the pause between two looks.
    pub fn pause(&self) -> Duration {
        (self.warning / 6).clamp(Duration::from_millis(250), Duration::from_secs(5))
    }
}

impl Job {
    /// Judges a look at all cores of the job. The workers in `above` hold up its rounds at the hubs above. Returns the effects.
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
                "it has reached round {}, and a job ends before round {}: save its weights, and begin a job of \
                 another name with them",
                look.round.0,
                Round::LIMIT.0
            );
            return vec![Effect::Fail(reason, Blame::Job)];
        }
        let time = self.progress.note(look, now);
        let why = waits_for_ever(look, &self.members, &self.spec);
        if let Some(why) = self.progress.waits_for_ever(why, time) {
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
        // All workers of this hub have pushed. The hubs above may know the workers that they wait for.
        let late = if late.is_empty() { above } else { late };
        Vec::from_iter(self.news.held_up_by(late).then_some(Effect::HeldUp))
    }
}

/// Names a member that left before a round that another member has pushed, if there is one.
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

/// Returns the workers that are late, when nothing has moved for `time`.
fn late(look: &Look, time: Duration, awaited: impl Fn(u32) -> String) -> Vec<Late> {
    let late = look.late().map(|(rank, waits)| Late {
        rank,
        who: awaited(rank),
        round: waits.round.unwrap_or(look.round),
        chunks: waits.owes,
        seconds: time.as_secs(),
    });
    late.collect()
}

/// Names the worker that is waited for. On another machine it is the worker that the machine's hub reports, if it reports
/// one.
fn awaited(rank: u32, members: &Ranks, spec: &JobSpec) -> String {
    let latest = members.get(rank).and_then(|member| member.latest.as_ref());
    match latest.filter(|latest| latest.waited_us > 0) {
        Some(latest) => latest.of_machine(rank),
        None => spec.spoken(rank),
    }
}
