//! The stop of a hub. Each job ends at a cut, which is a pause between two rounds, and is saved there. All jobs do
//! this at the same time. Then all jobs fail.
//!
//! ```text
//!   runs --begin--> jobs are saved --all have answered, or time is over--> jobs fail --all last states are saved--> over
//!     |                   |                                                ^    |                                 ^
//!     '---- at once ------'------------------------------------------------'    '--------- time is over ----------'
//! ```
//!
//! No worker may join during the stop, because the job's last state is being saved. If a job could not be saved at a cut,
//! its [last state](crate::job::LastStep) may be saved when it fails.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use pbox_core::JobId;

use super::Hub;

/// The longest time that a stop waits for checkpoints, and then again for last states. Writing a terabyte to a slow
/// disk takes this long.
pub const SAVED_WITHIN: Duration = Duration::from_secs(3600);
/// The longest time that a job's last cut waits for the round in flight. There is a limit, because perhaps no worker
/// still pushes.
pub const ROUND_AT_STOP: Duration = Duration::from_secs(10);

/// A step of a stop, which the driver carries out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StopStep {
    /// End a job at a cut, and save it there. The driver reports whether the job is saved.
    Save {
        /// The job.
        job: JobId,
        /// The reason, for the hubs above.
        why: String,
    },
    /// Report in the log that these jobs were not saved in time. The stop no longer waits for them.
    TooLate(Vec<String>),
    /// Fail all running jobs for this reason.
    Fail(Vec<JobId>, String),
}

/// The stop of a hub.
#[derive(Debug, Default)]
pub(super) struct Stop {
    stage: Stage,
    /// The jobs whose state is not written yet, or cannot be written.
    unsaved: BTreeMap<JobId, String>,
}

#[derive(Debug, Default)]
enum Stage {
    #[default]
    Runs,
    /// Jobs are being saved. For some of them, the result has not been reported yet.
    Saves {
        since: Instant,
        reason: String,
        waits: BTreeSet<JobId>,
    },
    Fails(Instant),
    Over,
}

impl Stop {
    /// Whether all jobs are failing or have failed.
    pub fn stops(&self) -> bool {
        matches!(self.stage, Stage::Fails(_) | Stage::Over)
    }

    /// Returns the names of the jobs that are not saved.
    pub fn unsaved(&self) -> Vec<String> {
        self.unsaved.values().cloned().collect()
    }

    /// Forgets a job that is saved or has ended.
    pub fn forget(&mut self, job: JobId) {
        self.unsaved.remove(&job);
    }
}

/// A hub and the time, while the state of its stop changes.
pub(crate) struct Stopping<'hub> {
    pub hub: &'hub mut Hub,
    pub now: Instant,
}

impl Stopping<'_> {
    /// Begins the stop, unless the stop has already begun. `has_files` says whether the hub writes checkpoints.
    pub fn begin(&mut self, reason: String, has_files: bool) -> Vec<StopStep> {
        let end = &mut self.hub.end;
        end.closed = true;
        if !matches!(end.stop.stage, Stage::Runs) {
            return Vec::new();
        }
        let saved = self.hub.living().filter(|job| job.is_saved_at_stop(has_files));
        let unsaved: BTreeMap<_, _> = saved.map(|job| (job.spec.id, job.spec.name.clone())).collect();
        if unsaved.is_empty() {
            return self.at_once(reason);
        }
        let waits: BTreeSet<JobId> = unsaved.keys().copied().collect();
        let why = format!("its hub stops: {reason}");
        let save = |&job| StopStep::Save { job, why: why.clone() };
        let steps = waits.iter().map(save).collect();
        self.hub.end.stop = Stop { stage: Stage::Saves { since: self.now, reason, waits }, unsaved };
        steps
    }

    /// Notes that a job is saved, or cannot be saved. After the report about the last job, all jobs fail.
    pub fn answered(&mut self, job: JobId, is_saved: bool) -> Vec<StopStep> {
        let stop = &mut self.hub.end.stop;
        if is_saved {
            stop.forget(job);
        }
        let Stage::Saves { waits, reason, .. } = &mut stop.stage else { return Vec::new() };
        if waits.remove(&job) && waits.is_empty() {
            let reason = std::mem::take(reason);
            return self.at_once(reason);
        }
        Vec::new()
    }

    /// Stops at once. The driver must notify the members of the jobs that fail.
    pub fn at_once(&mut self, reason: String) -> Vec<StopStep> {
        let Hub { jobs, end, .. } = &mut *self.hub;
        end.closed = true;
        if end.stops() {
            return Vec::new();
        }
        end.stop.stage = Stage::Fails(self.now);
        let unnotified = &mut end.unnotified;
        let living = jobs.iter().filter(|(_, job)| !job.life.failed());
        let living = living.map(|(&id, job)| {
            unnotified.extend(job.members.present().map(|(rank, _)| (id, rank)));
            id
        });
        vec![StopStep::Fail(living.collect(), reason)]
    }

    /// Ends the wait for checkpoints or for last states, if it has lasted longer than [`SAVED_WITHIN`].
    pub fn time_passes(&mut self) -> Vec<StopStep> {
        let Stopping { hub, now } = self;
        let is_late = |since: Instant| *now - since > SAVED_WITHIN;
        let late = StopStep::TooLate(hub.end.stop.unsaved());
        match &mut hub.end.stop.stage {
            Stage::Saves { since, reason, .. } if is_late(*since) => {
                let reason = std::mem::take(reason);
                [late].into_iter().chain(self.at_once(reason)).collect()
            }
            Stage::Fails(since) if is_late(*since) && hub.names.saves_any() => {
                hub.end.stop.stage = Stage::Over;
                vec![late]
            }
            _ => Vec::new(),
        }
    }
}

impl Hub {
    /// Whether the hub has stopped, and nothing is left to be saved.
    pub fn has_stopped(&self) -> bool {
        // Jobs that are being made do not delay the stop: they may wait for other hubs, or for a name server.
        match self.end.stop.stage {
            Stage::Over => true,
            Stage::Fails(_) => !self.names.saves_any(),
            _ => false,
        }
    }
}
