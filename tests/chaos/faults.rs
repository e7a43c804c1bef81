//! The faults: a table, the draw of the next fault, and the action of each fault. A fault lasts for a certain
//! time on its own thread, so that faults overlap.

use std::io::Write;
use std::time::Duration;

use hub_tests::relay::{RelayPath, Stall};
use hub_tests::trouble::Dice;
use rustix::process::Signal;

use super::cluster::{Cluster, HUBS, HubProcess, KILLED, STEADY};
use super::jobs::{JOBS, jobs_of};
use super::strangers;
use super::tally::Tally;

/// The action of a fault. A new fault is a variant, a line in [`FAULTS`] and an arm of [`Strike::run`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Act {
    KillWorker,
    /// Stop a worker for a time between these two numbers of milliseconds.
    StopWorker(u64, u64),
    /// Kill the hub, and start it again on its ports after up to this number of milliseconds.
    KillHub(u64),
    EndHub,
    StopHub(u64, u64),
    Cut(RelayPath),
    Stall(RelayPath, Stall),
    FullDisk,
    NoDirectory,
    SlowReaders,
    Strangers,
    Scrapes,
}

const UP: Stall = Stall { up: true, down: false };
const DOWN: Stall = Stall { up: false, down: true };

/// Each fault with its name and its weight in the draw.
const FAULTS: [(&str, u64, Act); 20] = [
    ("worker killed", 5, Act::KillWorker),
    ("worker stopped shortly", 3, Act::StopWorker(50, 2000)),
    ("worker stopped too long", 2, Act::StopWorker(5000, 8000)),
    ("hub killed, back at once", 2, Act::KillHub(0)),
    ("hub killed, back later", 2, Act::KillHub(4000)),
    ("hub ended, back", 1, Act::EndHub),
    ("hub stopped shortly", 2, Act::StopHub(50, 2000)),
    ("hub stopped too long", 2, Act::StopHub(5000, 8000)),
    ("data path cut", 3, Act::Cut(RelayPath::Data)),
    ("data path stalls", 2, Act::Stall(RelayPath::Data, Stall::BOTH)),
    ("data path stalls up", 2, Act::Stall(RelayPath::Data, UP)),
    ("data path stalls down", 2, Act::Stall(RelayPath::Data, DOWN)),
    ("control path cut", 3, Act::Cut(RelayPath::Control)),
    ("control path stalls", 2, Act::Stall(RelayPath::Control, Stall::BOTH)),
    ("control path stalls down", 1, Act::Stall(RelayPath::Control, DOWN)),
    ("disk full", 2, Act::FullDisk),
    ("directory gone", 1, Act::NoDirectory),
    ("slow readers of states", 2, Act::SlowReaders),
    ("strangers", 3, Act::Strangers),
    ("storm of scrapes", 2, Act::Scrapes),
];

/// Returns the names of all faults.
pub fn names() -> Vec<&'static str> {
    FAULTS.iter().map(|(name, _, _)| *name).collect()
}

/// A fault that was drawn.
pub struct Strike {
    fault: usize,
    hub: usize,
    job: usize,
    worker: u32,
    lasts: Duration,
    seed: u64,
}

impl Strike {
    /// Draws the next fault.
    pub fn draw(dice: &mut Dice) -> Self {
        let mut at = dice.below(FAULTS.iter().map(|(_, weight, _)| weight).sum());
        let fault = FAULTS.iter().position(|(_, weight, _)| {
            let hit = at < *weight;
            at = at.wrapping_sub(*weight);
            hit
        });
        let fault = fault.expect("the weights add up");
        let (job, any_hub) = (dice.below(JOBS.len() as u64) as usize, dice.below(HUBS as u64) as usize);
        let worker = dice.below(u64::from(JOBS[job].shape.iter().sum::<u32>())) as u32;
        let (first, last) = match FAULTS[fault].2 {
            Act::StopWorker(first, last) | Act::StopHub(first, last) => (first, last),
            Act::KillHub(last) => (0, last),
            Act::Stall(..) => (50, 8000),
            Act::FullDisk | Act::NoDirectory => (500, 4000),
            _ => (1000, 3000),
        };
        let lasts = Duration::from_millis(dice.from(first..=last));
        // One hub is never killed. Resources that a hub does not free would show at that hub.
        let hub = match FAULTS[fault].2 {
            Act::KillHub(_) | Act::EndHub if any_hub == STEADY => KILLED,
            Act::FullDisk => KILLED,
            _ => any_hub,
        };
        Strike { fault, hub, job, worker, lasts, seed: dice.below(u64::MAX) }
    }

    /// Makes the fault, and repairs the damage afterwards.
    pub fn run(&self, cluster: &Cluster, tally: &Tally) {
        let Strike { fault, hub: number, job, worker, lasts, seed } = *self;
        let hub = &cluster.hubs[number];
        let ms = lasts.as_millis();
        let of_worker =
            || tally.fault(fault, &[job], format!("worker {worker} of {}, {ms} ms", JOBS[job].name));
        let of_hub = || tally.fault(fault, &jobs_of(number), format!("{}, {ms} ms", hub.name));
        match FAULTS[fault].2 {
            Act::KillWorker => {
                of_worker();
                cluster.signal_worker(job, worker, Signal::KILL);
            }
            Act::StopWorker(..) => {
                of_worker();
                cluster.signal_worker(job, worker, Signal::STOP);
                std::thread::sleep(lasts);
                cluster.signal_worker(job, worker, Signal::CONT);
            }
            Act::KillHub(_) => {
                of_hub();
                restart(hub, Signal::KILL, lasts, tally);
            }
            Act::EndHub => {
                of_hub();
                restart(hub, Signal::TERM, Duration::ZERO, tally);
            }
            Act::StopHub(..) => {
                of_hub();
                hub.signal(Signal::STOP);
                std::thread::sleep(lasts);
                hub.signal(Signal::CONT);
            }
            Act::Cut(path) => {
                of_hub();
                hub.relay.cut(path);
            }
            Act::Stall(path, stall) => {
                of_hub();
                hub.relay.stall(path, stall);
                std::thread::sleep(lasts);
                hub.relay.stall(path, Stall::NONE);
            }
            Act::FullDisk if !cluster.small_disk => tally.skipped(fault),
            Act::FullDisk => {
                of_hub();
                fill_disk(hub, lasts);
            }
            Act::NoDirectory => {
                if let Some(dir) = &hub.checkpoints
                    // A file system cannot be renamed.
                    && !(number == KILLED && cluster.small_disk)
                {
                    of_hub();
                    // No hub may start while the directory is away, because the hub would make the directory.
                    let _alone = hub.restarts();
                    let aside = dir.with_extension("aside");
                    if std::fs::rename(dir, &aside).is_ok() {
                        std::thread::sleep(lasts);
                        if let Err(error) = std::fs::rename(&aside, dir) {
                            tally.wrong(format!("{}: somebody made its directory: {error}", hub.name));
                        }
                    }
                }
            }
            Act::SlowReaders => {
                of_hub();
                strangers::read_slowly(hub, &jobs_of(number), lasts);
            }
            Act::Strangers => {
                of_hub();
                strangers::come(hub, lasts, seed);
            }
            Act::Scrapes => {
                of_hub();
                strangers::scrape(hub, lasts);
            }
        }
    }
}

/// Restarts a hub. Another process starts on the same ports.
fn restart(hub: &HubProcess, signal: Signal, after: Duration, tally: &Tally) {
    let _alone = hub.restarts();
    // A hub that is suspended would receive only SIGKILL, so it is continued first.
    hub.signal(Signal::CONT);
    if let Err(error) = hub.end(signal) {
        tally.wrong(error);
    }
    std::thread::sleep(after);
    if let Err(error) = hub.start() {
        tally.wrong(error);
    }
}

fn fill_disk(hub: &HubProcess, lasts: Duration) {
    let Some(dir) = &hub.checkpoints else { return };
    let path = dir.join("somebody-else");
    if let Ok(mut file) = std::fs::File::create(&path) {
        while file.write_all(&[0; 64 << 10]).is_ok() {}
    }
    std::thread::sleep(lasts);
    let _ = std::fs::remove_file(&path);
}
