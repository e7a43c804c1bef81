//! A reader of a job's weights, which is no member of the job. Each state that the reader gets is of one
//! round, although hubs and workers are killed.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use authority::Credential;
use subscription::{NoWeights, Source, SourceSettings, Weights};

use super::expect::{Expect, Rounds};
use super::tally::Tally;
use super::worker::{Kind, Task, digest};

/// The time between two reads.
const PAUSE: Duration = Duration::from_millis(200);
/// The longest time of a read. The limits of hubs and requests, and all faults, are shorter, so a longer read
/// is an error.
const READ_LIMIT: Duration = Duration::from_secs(180);

/// The words of final errors that faults of the run may cause.
const ALLOWED: [&str; 1] = [
    // The job failed and was made anew, between the answers of its hubs.
    "have different jobs with the name",
];

/// The states that a reader has got: digests of the weights by round.
pub type Read = BTreeMap<u32, String>;

/// Reads the weights of the task's job until the end. Returns the digests, which the driver compares.
pub fn read(task: &Task, tally: &Tally, ends: &AtomicBool) -> Read {
    let mut read = Read::new();
    // The workers of these jobs do not have the bits of the hub's weights.
    if matches!(task.kind, Kind::Ssp | Kind::Codec) {
        return read;
    }
    let (hubs, job) = match task.above.is_empty() {
        true => (task.hub.clone(), task.job.clone()),
        false => (task.above.join(","), format!("{}.above", task.job)),
    };
    let credential = Credential::find_if_any().expect("the run has a secret");
    let settings = SourceSettings { credential, ..SourceSettings::new(&hubs, &job) };
    let source = |fetch_deltas| {
        Source::new(SourceSettings { fetch_deltas, ..settings.clone() }).expect("a job's name")
    };
    // Whole weights and differences come in turns.
    let (mut sources, mut turns) = ([false, true].map(source), (0..2).cycle());
    while !ends.load(Ordering::Relaxed) {
        let turn = turns.next().expect("it has no end");
        let begun = Instant::now();
        let fetched = sources[turn].fetch();
        if begun.elapsed() > READ_LIMIT {
            tally.wrong(format!("{job}: a read took {:?}", begun.elapsed()));
        }
        match fetched {
            Ok((origin, weights)) => take(task, tally, (&job, origin.round), &weights, &mut read),
            Err(NoWeights::Never(error)) => {
                let error = format!("{job}: a reader: {error}");
                if ALLOWED.iter().any(|words| error.contains(words)) {
                    tally.say(error);
                } else {
                    tally.wrong(error);
                }
                sources[turn] = source(turn == 1);
            }
            Err(NoWeights::Lost(why)) => tally.wrong(format!("{job}: a reader: {why}")),
            Err(NoWeights::Away(_) | NoWeights::NotYet(_) | NoWeights::NoJob(_)) => {}
        }
        std::thread::sleep(PAUSE);
    }
    read
}

/// Adds the weights before a round.
fn take(task: &Task, tally: &Tally, (job, before): (&str, u32), weights: &Weights, read: &mut Read) {
    let values = |key| weights.get(key).expect("all keys of the job").chunks_exact(4);
    let value = |bytes: &[u8]| f32::from_le_bytes(bytes.try_into().expect("4 bytes"));
    let values = ["a", "b", "c"].map(|key| values(key).map(value).collect::<Vec<f32>>());
    tally.read();
    if task.kind.returns() {
        // After a hub returns, a round may be repeated, so this job's digests are not compared. Each step
        // subtracts 1 from every weight, so the weights count their steps. `Rounds` checks that count.
        if let Err(wrong) = Rounds::new(before, &values).first(&values) {
            tally.wrong(format!("{job}: a reader before round {before}: {wrong}"));
        }
        return;
    }
    let digest = format!("{:016x}", digest(&values));
    let known = read.entry(before - 1).or_insert_with(|| digest.clone());
    if *known != digest {
        tally.wrong(format!("{job}: a reader got two states before round {before}"));
    }
}
