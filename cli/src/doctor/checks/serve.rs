//! The checks that `serve` makes before it starts, by the same function as in `serve`. This module also
//! checks the memory and the threads that `serve` takes at its start.

use pbox_core::{JobTerms, Optimizer, Wire};
use phub_server::job_memory::JobMemory;
use phub_server::{HubError, HubSettings, needs};

use super::control_port::Seen;
use crate::doctor::check::{Check, Verdict};
use crate::doctor::job::Job;

/// Returns a check for each need of the settings.
pub(crate) fn needs<'a>(settings: &'a HubSettings, control: &'a Seen) -> impl Iterator<Item = Check> + 'a {
    needs::needs(settings).filter_map(|(name, found)| match found {
        Ok(found) => found.map(|found| Check::pass(name, found)),
        // The running hub has locked the directory.
        Err(HubError::Checkpoints(error)) if error.is_in_use() && matches!(control, Seen::Hub(_)) => {
            Some(Check::note(name, format!("{error}: a hub runs already")))
        }
        Err(error) => Some(Check::fail(name, error.to_string(), fix(name))),
    })
}

/// Returns the fix for a need, if its error does not say everything.
fn fix(name: &str) -> &'static str {
    match name {
        "secret" => {
            "set PHUB_TOKEN, or give --token-file a file that the hub's user may read (phub-server token --new makes a secret)"
        }
        "certificate" => {
            "phub-server certificate makes a pair; both files must be readable by the hub's user"
        }
        "interface" => "give --interface an interface that `ip -brief address` lists",
        "checkpoints" => {
            "mkdir -p, chown or chmod the directory for the hub's user, or give --checkpoints another directory"
        }
        "timeline" => "give --trace a file in a directory that the hub's user may write",
        _ => "do what the message says; phub-server serve refuses these settings, too",
    }
}

/// Checks that the hub's threads can be made.
pub(crate) fn threads(cores: usize) -> Check {
    const NAME: &str = "threads";
    match needs::threads(cores) {
        Ok(made) => {
            Check::pass(NAME, format!("{made} can be made, as many as a hub with {cores} core threads needs"))
        }
        Err(error) => Check::fail(
            NAME,
            error.to_string(),
            "raise the limit on threads: ulimit -u, TasksMax= in a systemd unit, pids.max of a container",
        ),
    }
}

/// Judges whether the job fits into this machine's memory. If the job does not fit, the check fails only for
/// a job that the user has named.
pub(crate) fn memory(settings: &HubSettings, job: &Job, is_named: bool) -> Check {
    let optimizer = Optimizer::Nesterov { learning_rate: 0.1, momentum: 0.9, weight_decay: 0.0 };
    let terms = JobTerms::new(job.workers, job.keys.clone(), optimizer);
    let room = fabric::memory_room();
    match Wire::of_terms(&terms) {
        Ok(wire) => {
            let memory =
                JobMemory::new(&wire, &terms, settings.checkpoint_every.is_some(), settings.above.is_some());
            let room = room.map(|room| (room.bytes, room.to_string()));
            judge_memory(job, memory.promised(&terms), settings.memory_per_job.map(u64_of), room, is_named)
        }
        Err(error) => Check::fail("memory", error.to_string(), "another --model or --workers"),
    }
}

fn u64_of(megabytes: std::num::NonZeroU32) -> u64 {
    u64::from(megabytes.get()) * 1_000_000
}

fn judge_memory(
    job: &Job,
    needed: u64,
    quota: Option<u64>,
    room: Option<(u64, String)>,
    is_named: bool,
) -> Check {
    const NAME: &str = "memory";
    let gb = |bytes: u64| bytes as f64 / 1e9;
    let Job { name, workers, .. } = job;
    let seen = format!("{name} with {workers} workers needs {:.2} GB with momentum", gb(needed));
    let verdict = if is_named { Verdict::Fail } else { Verdict::Warn };
    let fix = "use fewer workers, several hubs for the job, or a machine or control group with more memory; this hub would refuse the job";
    if let Some(quota) = quota.filter(|&quota| needed > quota) {
        let seen = format!("{seen}, and --memory-per-job lets a job have {:.2} GB", gb(quota));
        return Check { verdict, ..Check::fail(NAME, seen, fix) };
    }
    match room {
        Some((bytes, words)) if needed > bytes => {
            Check { verdict, ..Check::fail(NAME, format!("{seen}; {words}"), fix) }
        }
        Some((_, words)) => Check::pass(NAME, format!("{seen}; {words}")),
        None => Check::note(NAME, format!("{seen}; the kernel does not say how much memory is available")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pbox_core::Key;

    #[test]
    fn a_job_that_does_not_fit_is_a_failure_if_somebody_named_it() {
        let job = Job::new("large".into(), vec![Key::f32("a", [1])], 4).unwrap();
        let judge = |needed, quota, is_named| {
            let room = Some((24_000_000_000, "this machine has 24.00 GB available".to_owned()));
            judge_memory(&job, needed, quota, room, is_named)
        };
        let large = judge(590_000_000_000, None, true);
        assert_eq!(large.verdict, Verdict::Fail);
        assert!(large.seen.contains("590.00 GB") && large.seen.contains("24.00 GB"), "{large:?}");
        assert_eq!(judge(590_000_000_000, None, false).verdict, Verdict::Warn);
        assert_eq!(judge(1_000_000_000, None, true).verdict, Verdict::Pass);
        assert_eq!(judge(1_000_000_000, Some(1_000_000), true).verdict, Verdict::Fail);
    }
}
