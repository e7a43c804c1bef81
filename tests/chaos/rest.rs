//! The check of hubs after all jobs are finished: hubs may hold only the resources that they had at their
//! start, and checkpoints.

use std::collections::HashMap;
use std::path::Path;
use std::time::{Duration, Instant};

use hub_tests::describe;
use hub_tests::relay::RelayPath;
use hub_tests::usage::{Holds, holds, status_bytes};
use phub_server::checkpoint::named;

use super::cluster::{Cluster, HubProcess};
use super::tally::Tally;

/// The time within which connections of workers and strangers end, and jobs are forgotten.
const QUIET: Duration = Duration::from_secs(60);
/// The most bytes by which a hub may grow between two checks: its allocator keeps some memory.
const GROWTH_BYTES: u64 = 8 << 20;
/// The number of shared mappings of a hub without jobs: only the mapping of its bells.
const AT_REST: usize = 1;
/// The number of files of a job: the newest file, and older files (`--checkpoint-keep`).
const GENERATIONS: usize = 3;
/// The most parts of one job in one hub's directory, if the job has several hubs. A round is whole when all
/// hubs have its part. The directory has the parts of the last two whole rounds, and of later rounds that are
/// not whole. The parts of rounds that are not whole are removed when the next round is whole.
const PARTS: usize = 6;

/// The resources that hubs held when they were first at rest, by process.
#[derive(Default)]
pub struct Rest {
    first: HashMap<u32, (Holds, u64)>,
}

impl Rest {
    /// Checks all hubs, and reports everything that is left.
    pub fn look(&mut self, cluster: &Cluster, tally: &Tally) {
        for hub in &cluster.hubs {
            let pid = match hub.pid() {
                Ok(pid) => pid,
                Err(error) => {
                    tally.wrong(error);
                    continue;
                }
            };
            self.look_at(hub, pid, tally);
            if let Some(dir) = &hub.checkpoints
                && let Err(what) = files(dir)
            {
                tally.wrong(format!("{}: {what}", hub.name));
            }
            for path in [RelayPath::Control, RelayPath::Data] {
                if !quiet(|| hub.relay.open(path) == 0) {
                    tally.wrong(format!(
                        "{}: {} connection(s) of {path:?} stay",
                        hub.name,
                        hub.relay.open(path)
                    ));
                }
            }
        }
        let names = std::fs::read_to_string("/proc/net/unix").unwrap_or_default();
        let ours = |pid: &u32| names.contains(&format!("-{pid}-"));
        let gone = self.first.keys().filter(|pid| !Path::new(&format!("/proc/{pid}")).exists());
        gone.filter(|pid| ours(pid)).for_each(|pid| tally.wrong(format!("a socket of process {pid} stays")));
    }

    fn look_at(&mut self, hub: &HubProcess, pid: u32, tally: &Tally) {
        let address = hub.address.to_string();
        if !quiet(|| describe(&address).jobs.is_empty()) {
            let jobs: Vec<_> = describe(&address).jobs.into_iter().map(|job| (job.name, job.state)).collect();
            return tally.wrong(format!("{} still has jobs: {jobs:?}", hub.name));
        }
        let Some((at_first, resident)) = self.first.get(&pid).copied() else {
            // A hub is quiet when its resources do not change for some time.
            let mut last = holds(pid);
            quiet(|| {
                std::thread::sleep(Duration::from_secs(1));
                let now = holds(pid);
                let same = now == last;
                last = now;
                same && now.shared_mappings <= AT_REST
            });
            let resident = memory(pid);
            tally.tell(format!("{}: at rest it holds {last:?}, {} KiB allocated", hub.name, resident >> 10));
            if last.shared_mappings > AT_REST {
                tally.wrong(format!("{}: windows stay mapped: {last:?}", hub.name));
            }
            self.first.insert(pid, (last, resident));
            return;
        };
        let no_more = |now: Holds| now.descriptors <= at_first.descriptors && now.threads <= at_first.threads;
        if !quiet(|| no_more(holds(pid)) && holds(pid).shared_mappings <= AT_REST) {
            tally.wrong(format!(
                "{}: it held {at_first:?} at its first rest, and {:?} now",
                hub.name,
                holds(pid)
            ));
        }
        // The check waits, because a thread with a low priority frees the memory.
        let mut now = memory(pid);
        quiet(|| {
            now = memory(pid);
            now.saturating_sub(resident) <= GROWTH_BYTES
        });
        tally.tell(format!(
            "{}: at rest {} KiB allocated, {:+} since its first rest",
            hub.name,
            now >> 10,
            (now as i64 - resident as i64) >> 10
        ));
        if now.saturating_sub(resident) > GROWTH_BYTES {
            tally.wrong(format!("{}: its memory grew from {resident} to {now} bytes", hub.name));
        }
    }
}

/// Returns the bytes that a process has allocated. Pages of its program are loaded on demand, and are not
/// counted.
fn memory(pid: u32) -> u64 {
    status_bytes(pid, "RssAnon:") + status_bytes(pid, "RssShmem:")
}

fn quiet(mut is: impl FnMut() -> bool) -> bool {
    let begun = Instant::now();
    while !is() {
        if begun.elapsed() > QUIET {
            return false;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    true
}

/// Checks that a directory has only the lock and generations of checkpoints, and empties it.
fn files(dir: &Path) -> Result<(), String> {
    let mut counts = HashMap::<String, Vec<String>>::new();
    let fail = |error: std::io::Error| error.to_string();
    for entry in std::fs::read_dir(dir).map_err(fail)? {
        let path = entry.map_err(fail)?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if name == ".phub-lock" {
            continue;
        }
        let Some((job, _)) = named(&name) else { return Err(format!("{name} is in {}", dir.display())) };
        std::fs::remove_file(path).map_err(fail)?;
        counts.entry(job).or_default().push(name);
    }
    let too_many = |names: &&Vec<String>| {
        let is_part = names.iter().any(|name| name.contains(".hub"));
        names.len() > if is_part { PARTS } else { GENERATIONS }
    };
    match counts.values().find(too_many) {
        Some(names) => Err(format!("too many generations: {names:?}")),
        None => Ok(()),
    }
}
