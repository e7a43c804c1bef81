//! The jobs of the run. Each has a driver: a thread that starts the job's workers and reads their messages.
//! The driver starts the job again, from its checkpoint or as a new job, until the run ends. Each start
//! begins a *life* of the job.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use hub_tests::values::mix;
use phub_server::checkpoint::named;
use rustix::process::Signal;

use super::cluster::{BELOW, Cluster, EVERY, KILLED, Living, SECOND, STEADY};
use super::reader;
use super::tally::Tally;
use super::worker::{Kind, Task};

/// The time without a message of any worker after which a job counts as hanging. All limits of hubs and workers, and
/// all faults, are shorter.
const SILENCE: Duration = Duration::from_secs(150);
/// The time within which a job must be finished after the faults.
const CALM: Duration = Duration::from_secs(240);
/// The pause between the end of a job and its next start.
const PAUSE: Duration = Duration::from_millis(300);

/// A job.
pub struct Job {
    pub name: &'static str,
    pub kind: Kind,
    /// The number of workers on each machine.
    pub shape: &'static [u32],
    /// The hubs to which each machine's workers push.
    hubs: &'static [&'static [usize]],
    /// The hubs above the machines' hubs.
    above: &'static [usize],
    /// The transport of each worker, in order.
    transports: &'static [Option<&'static str>],
    /// All hubs on which this job depends.
    pub touched_by: &'static [usize],
}

const TCP: Option<&str> = Some("tcp");

pub const JOBS: [Job; 9] = [
    Job {
        name: "exact",
        kind: Kind::Exact,
        shape: &[2],
        hubs: &[&[STEADY]],
        above: &[],
        transports: &[None, TCP],
        touched_by: &[STEADY],
    },
    Job {
        name: "survivors",
        kind: Kind::Survivors,
        shape: &[3],
        hubs: &[&[STEADY]],
        above: &[],
        transports: &[None, TCP, TCP],
        touched_by: &[STEADY],
    },
    Job {
        name: "ssp",
        kind: Kind::Ssp,
        shape: &[2],
        hubs: &[&[STEADY]],
        above: &[],
        transports: &[None, TCP],
        touched_by: &[STEADY],
    },
    Job {
        name: "codec",
        kind: Kind::Codec,
        shape: &[2],
        hubs: &[&[KILLED]],
        above: &[],
        transports: &[TCP],
        touched_by: &[KILLED],
    },
    Job {
        name: "returns",
        kind: Kind::Returns,
        shape: &[2],
        hubs: &[&[KILLED]],
        above: &[],
        transports: &[None, TCP],
        touched_by: &[KILLED],
    },
    Job {
        name: "two-hubs",
        kind: Kind::Exact,
        shape: &[2],
        hubs: &[&[KILLED, SECOND]],
        above: &[],
        transports: &[None, TCP],
        touched_by: &[KILLED, SECOND],
    },
    Job {
        name: "two-levels",
        kind: Kind::Exact,
        shape: &[2, 1],
        hubs: &[&[BELOW[0]], &[BELOW[1]]],
        above: &[KILLED],
        transports: &[None, TCP, TCP],
        touched_by: &[KILLED, BELOW[0], BELOW[1]],
    },
    Job {
        name: "two-return",
        kind: Kind::Returns,
        shape: &[2],
        hubs: &[&[KILLED, SECOND]],
        above: &[],
        transports: &[None, TCP],
        touched_by: &[KILLED, SECOND],
    },
    Job {
        name: "levels-return",
        kind: Kind::Returns,
        shape: &[1, 2],
        hubs: &[&[BELOW[0]], &[BELOW[1]]],
        above: &[KILLED],
        transports: &[None, TCP, TCP],
        touched_by: &[KILLED, BELOW[0], BELOW[1]],
    },
];

/// Returns the jobs that depend on a hub.
pub fn jobs_of(hub: usize) -> Vec<usize> {
    (0..JOBS.len()).filter(|&job| JOBS[job].touched_by.contains(&hub)).collect()
}

/// The parts that a driver needs.
pub struct Driver<'a> {
    pub number: usize,
    pub cluster: &'a Cluster,
    pub tally: &'a Tally,
    pub dir: &'a Path,
    pub seed: u64,
    pub rounds: u32,
    /// Whether faults are still made.
    pub troubled: &'a AtomicBool,
}

enum Heard {
    Line(u32, String),
    End(u32, std::process::ExitStatus, bool),
}

/// A life of a job so far.
#[derive(Default)]
struct Life {
    living: u32,
    finished: BTreeMap<u32, String>,
    error: Option<String>,
    wrong: Option<String>,
}

/// The weights of a job after each round, as digests, over all its lives. All workers of the job must have
/// the same weights. A saved state may include a round that some worker has not finished. Then no worker has
/// the weights of that round.
type Past = BTreeMap<u32, String>;

impl Driver<'_> {
    fn job(&self) -> &'static Job {
        &JOBS[self.number]
    }

    /// Finishes one job after another, at least one. Returns when the faults are over and the last job is
    /// finished, or when something is wrong.
    pub fn run(&self, epoch: u32) {
        let mut calm_since = None;
        for time in 0.. {
            let name = format!("{}-{epoch}-{time}", self.job().name);
            let mut past = Past::default();
            while !self.live(&name, &mut past) {
                if !self.tally.wrongs().is_empty() {
                    return;
                }
                if !self.troubled.load(Ordering::Relaxed) {
                    let since: &Instant = calm_since.get_or_insert_with(Instant::now);
                    if since.elapsed() > CALM {
                        return self
                            .tally
                            .wrong(format!("{name} is not finished {CALM:?} after the last fault"));
                    }
                }
                std::thread::sleep(PAUSE);
            }
            if !self.troubled.load(Ordering::Relaxed) {
                return;
            }
        }
    }

    /// Removes files of a job, as an operator would. If a job failed before its first checkpoint, some of its
    /// hubs may have saved no part of its last state. Then the job cannot continue, and must not begin from
    /// zero silently, so the operator removes its files.
    fn take_away(&self, name: &str, past: &Past) {
        if past.last_key_value().is_some_and(|(&round, _)| round >= EVERY) {
            return;
        }
        for dir in self.job().touched_by.iter().filter_map(|&hub| self.cluster.hubs[hub].checkpoints.as_ref())
        {
            for path in std::fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path()) {
                let file = path.file_name().unwrap_or_default().to_string_lossy();
                if named(&file).is_some_and(|(job, _)| job == name) {
                    self.tally.say(format!("{name}: {file} is taken away"));
                    let _ = std::fs::remove_file(&path);
                }
            }
        }
    }

    fn task(&self, name: &str, number: u32) -> Task {
        let Job { kind, shape, hubs, above, transports, .. } = self.job();
        let (mut machine, mut rank) = (0, number);
        while rank >= shape[machine] {
            rank -= shape[machine];
            machine += 1;
        }
        let address = |&hub: &usize| self.cluster.hubs[hub].relay.address();
        let seed = mix(self.seed ^ mix(name.bytes().fold(0, |seed, byte| mix(seed ^ u64::from(byte)))));
        Task {
            kind: *kind,
            hub: hubs[machine].iter().map(address).collect::<Vec<_>>().join(","),
            above: above.iter().map(address).collect(),
            job: name.to_owned(),
            rank,
            workers: shape[machine],
            shape: shape.to_vec(),
            number,
            rounds: self.rounds,
            transport: transports[number as usize % transports.len()].map(str::to_owned),
            pace_ms: 2 + seed % 20,
            seed,
        }
    }

    /// Runs all workers until the last worker has ended. Returns true if all workers have finished their
    /// rounds.
    fn live(&self, name: &str, past: &mut Past) -> bool {
        let workers: u32 = self.job().shape.iter().sum();
        let goes_on = self.job().kind == Kind::Survivors;
        let (say, hear) = channel();
        let mut life = Life::default();
        let mut began = Vec::new();
        let ends = AtomicBool::new(false);
        let read = std::thread::scope(|scope| {
            let (task, ends) = (self.task(name, 0), &ends);
            let reader = scope.spawn(move || reader::read(&task, self.tally, ends));
            let start = |number, life: &mut Life| {
                let (task, say) = (self.task(name, number), say.clone());
                life.living += 1;
                scope.spawn(move || self.attend(&task, &say));
            };
            (0..workers).for_each(|number| start(number, &mut life));
            while life.living > 0 {
                match hear.recv_timeout(SILENCE) {
                    Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                        self.tally.wrong(format!("{name} hangs: no worker said anything for {SILENCE:?}"));
                        (0..workers).for_each(|n| self.cluster.signal_worker(self.number, n, Signal::KILL));
                    }
                    Ok(Heard::Line(number, line)) => {
                        self.take_line(name, number, &line, &mut life, past, &mut began)
                    }
                    Ok(Heard::End(number, status, killed)) => {
                        life.living -= 1;
                        if killed && !status.success() {
                            life.error.get_or_insert_with(|| "(its last worker was killed)".into());
                            if goes_on && life.living > 0 && life.finished.is_empty() {
                                self.tally.say(format!("{name}: worker {number} comes back"));
                                start(number, &mut life);
                            }
                        } else if !status.success() {
                            life.wrong.get_or_insert(format!("worker {number} ended with {status}"));
                        }
                        if self.job().kind.returns() && !life.finished.contains_key(&number) {
                            // The other workers are killed, too, as by a launcher: they would wait for a
                            // worker that does not return.
                            let others = (0..workers).filter(|other| !life.finished.contains_key(other));
                            others.for_each(|n| self.cluster.signal_worker(self.number, n, Signal::KILL));
                        }
                    }
                }
            }
            ends.store(true, Ordering::Relaxed);
            reader.join().expect("a reader does not panic")
        });
        // A reader may have a round that no worker reported: each worker was killed, or has made another round.
        for (round, digest) in read {
            match past.get(&round) {
                Some(known) if *known == digest => self.tally.compared(),
                Some(_) => {
                    life.wrong.get_or_insert(format!("a reader has other weights after round {round}"));
                }
                None => {}
            }
        }
        if let Some(wrong) = life.wrong {
            self.tally.wrong(format!("{name}: {wrong}"));
            return false;
        }
        let finished = life.finished.len() == workers as usize || (goes_on && !life.finished.is_empty());
        let error = life.error.unwrap_or_else(|| "ended without a word".into());
        if !finished && error == "ended without a word" {
            self.tally.wrong(format!("{name}: {error}"));
        }
        if error.contains("no round has the parts of all hubs") {
            self.take_away(name, past);
        }
        self.tally.life(self.number, name, (!finished).then_some(&error));
        finished
    }

    fn take_line(
        &self,
        name: &str,
        number: u32,
        line: &str,
        life: &mut Life,
        past: &mut Past,
        began: &mut Vec<u32>,
    ) {
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        let (round, digest) = rest.split_once(' ').unwrap_or_default();
        let round: u32 = round.parse().unwrap_or_default();
        match word {
            "began" => {
                self.tally.say(format!("{name}: worker {number} {line}"));
                if began.is_empty() {
                    if round > 1 {
                        self.tally.resumed();
                    }
                    past.retain(|&known, _| known < round);
                }
                began.push(round);
                self.compare(round - 1, digest, number, life, past);
            }
            "round" => self.compare(round, digest, number, life, past),
            "returned" => {
                self.tally.say(format!("{name}: worker {number} {line}"));
                self.tally.returned();
            }
            "finished" => {
                life.finished.insert(number, digest.to_owned());
            }
            "error" if rest.contains(name) || rest.contains("127.0.0.1:") => {
                self.tally.say(format!("{name}: worker {number}: {rest}"));
                life.error.get_or_insert(rest.to_owned());
            }
            _ => drop(life.wrong.get_or_insert(format!("worker {number} said {line:?}"))),
        }
    }

    /// Compares weights. All workers of a job in BSP have the same weights after a round, in each of its
    /// lives.
    fn compare(&self, round: u32, digest: &str, number: u32, life: &mut Life, past: &mut Past) {
        // In a job that waits for its hub, a round may be made twice, so the hub alone compares the workers.
        if self.job().kind == Kind::Ssp || self.job().kind.returns() || round == 0 {
            return;
        }
        let known = past.entry(round).or_insert_with(|| digest.to_owned());
        // After a checkpoint, workers with a codec get finer weights than they had before.
        if known != digest && self.job().kind != Kind::Codec {
            let wrong = format!("round {round}: worker {number} has other weights than a worker before it");
            life.wrong.get_or_insert(wrong);
        }
    }

    /// Starts a worker, and passes its messages on until it ends.
    fn attend(&self, task: &Task, say: &Sender<Heard>) {
        let log =
            File::options().create(true).append(true).open(self.dir.join(format!("{}.log", self.job().name)));
        let log = log.expect("the directory of the run is there");
        let task_text = serde_json::to_string(task).expect("plain data");
        let place = (self.number, task.number);
        let mut child = {
            let mut workers = self.cluster.workers();
            let child = Command::new(std::env::current_exe().expect("this program has a file"))
                .args(["worker", &task_text])
                .stdin(Stdio::null())
                .stdout(Stdio::piped())
                .stderr(log)
                .spawn()
                .expect("a worker starts");
            workers.insert(place, Living { pid: child.id(), killed: false });
            child
        };
        for line in BufReader::new(child.stdout.take().expect("a pipe")).lines().map_while(Result::ok) {
            let _ = say.send(Heard::Line(task.number, line));
        }
        // The worker's output has ended. After the removal from the table, no signal can reach another
        // process with its number.
        let killed = self.cluster.workers().remove(&place).is_some_and(|living| living.killed);
        let status = child.wait().expect("our own child");
        let _ = say.send(Heard::End(task.number, status, killed));
    }
}
