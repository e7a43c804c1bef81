//! A hub that is killed while it saves leaves the old checkpoint or the new one, and never a part of one.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use fabric::conformance::Watchdog;
use pbox_core::{Key, Round, Share};
use phub_server::checkpoint::{CheckpointStore, Loaded};

use super::children::child;
use super::snapshots::{Job, SGD, files};

/// Returns a job whose file has 12 MB, which takes several writes.
fn job() -> Job {
    let keys = vec![Key::f32("a", [2_000_001]), Key::f32("b", [1_000_001])];
    Job { chunk_bytes: 32 * 1024, ..Job::new(keys, SGD) }
}

/// The number of kills that must leave a half-written file. Other kills happen between two saves.
const HALF_WRITTEN: usize = 3;

/// The number of kills; at least `HALF_WRITTEN` of them leave a half-written file.
const KILLS: u32 = 60;

#[test]
fn a_killed_hub_leaves_a_whole_checkpoint() {
    let _watchdog = Watchdog::start();
    let dir = tempfile::tempdir().unwrap();
    let (job, mut half_written, mut last) = (job(), 0, Round(0));
    for kill in 0..KILLS {
        let mut saver = Saver::start(dir.path());
        let mut saved = saver.read_round();
        for _ in 0..kill % 3 {
            saved = saver.read_round();
        }
        assert!(saved > last, "saves continue with the round after the checkpoint's");
        // The kill happens at some point of the next saves, because the child only saves.
        (0..kill * 300_000 % 2_000_003).for_each(|_| std::hint::spin_loop());
        drop(saver);

        half_written += files(dir.path()).iter().filter(|name| name.ends_with(".phub-tmp")).count();
        let store = CheckpointStore::open(dir.path()).unwrap();
        let names = files(dir.path());
        assert!(names.iter().any(|name| name == "job.safetensors"), "{names:?}");
        // If the kill comes between a save and the removal of the oldest file, there is one file more.
        assert!(names.len() <= 4 && names.iter().all(|name| name.ends_with(".safetensors")), "{names:?}");
        let Loaded { restored, warning } = job.loaded(&store, "job").unwrap();
        assert_eq!(warning, None);
        last = restored.round();
        assert!(last >= saved, "round {} was saved, round {} is there", saved.0, last.0);
        job.check(&restored, last);
        if half_written >= HALF_WRITTEN {
            return;
        }
    }
    panic!("{KILLS} kills left {half_written} files half written, not {HALF_WRITTEN}: they hit nothing");
}

/// Saves one round after another, and prints each round. The child runs this.
pub fn save_for_ever(dir: &Path) {
    let (store, job) = (CheckpointStore::open(dir).unwrap(), job());
    let mut round = job.load(&store, "job").map_or(Round(0), |restored| restored.round());
    loop {
        round = round.next();
        store.save("job", Share::WHOLE, &job.snapshot(round)).unwrap();
        println!("@{}", round.0);
    }
}

/// The child of the test. Dropping it kills and reaps the process.
struct Saver {
    child: Child,
    stdout: BufReader<std::process::ChildStdout>,
}

impl Saver {
    fn start(dir: &Path) -> Self {
        let mut command = child(Command::new("env"), "saver", dir);
        let mut child = command.stdout(Stdio::piped()).spawn().expect("the child starts");
        let stdout = BufReader::new(child.stdout.take().expect("stdout is a pipe"));
        Saver { child, stdout }
    }

    /// Returns the next round that the child has saved. Skips the lines of the test harness, which name no
    /// rounds.
    fn read_round(&mut self) -> Round {
        let mut lines = self.stdout.by_ref().lines();
        let said = lines.find_map(|line| Some(line.unwrap().split_once('@')?.1.parse().unwrap()));
        Round(said.expect("the child ended, its own words are above"))
    }
}

impl Drop for Saver {
    fn drop(&mut self) {
        self.child.kill().expect("killing a child");
        self.child.wait().expect("reaping a child");
    }
}
