//! The checkpoint files before the newest one, and the states that are never saved.

use std::path::Path;

use fabric::Slab;
use pbox_core::{Round, Share, Snapshot, SnapshotPart};
use phub_server::checkpoint::CheckpointStore;

use super::snapshots::{ADAM, Job, SGD, files, says};

/// Saves these rounds.
fn saved(dir: &Path, job: &Job, rounds: &[u32]) -> CheckpointStore {
    let store = CheckpointStore::open(dir).unwrap();
    for &round in rounds {
        store.save("job", Share::WHOLE, &job.snapshot(Round(round))).unwrap();
    }
    store
}

/// Changes one bit of the last value of a file.
fn damage(file: &Path) {
    let mut bytes = std::fs::read(file).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(file, bytes).unwrap();
}

#[test]
fn the_newest_has_the_name_and_those_before_it_their_rounds() {
    let dir = tempfile::tempdir().unwrap();
    let job = Job::small(ADAM);
    let store = saved(dir.path(), &job, &[5, 10, 10, 15, 20]);
    let kept = ["job.safetensors", "job@10.safetensors", "job@15.safetensors"];
    assert_eq!(files(dir.path()), kept);
    job.check(&job.load(&store, "job").unwrap(), Round(20));
    // A generation is a whole checkpoint. If a copy of it replaces the newest file, the job continues from
    // the copy, and later generations are dropped.
    std::fs::copy(dir.path().join("job@10.safetensors"), store.path("job").unwrap()).unwrap();
    job.check(&job.load(&store, "job").unwrap(), Round(10));
    store.save("job", Share::WHOLE, &job.snapshot(Round(12))).unwrap();
    assert_eq!(files(dir.path()), ["job.safetensors", "job@10.safetensors"]);
    // The store keeps one file only.
    let store = store.keeping(std::num::NonZeroU32::MIN);
    store.save("job", Share::WHOLE, &job.snapshot(Round(13))).unwrap();
    assert_eq!(files(dir.path()), ["job.safetensors"]);
}

#[test]
fn a_damaged_newest_falls_back_and_only_all_damaged_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let job = Job::small(ADAM);
    let store = saved(dir.path(), &job, &[5, 10, 15]);
    damage(&store.path("job").unwrap());
    let loaded = job.loaded(&store, "job").unwrap();
    job.check(&loaded.restored, Round(10));
    let words = ["continues from", "job@10.safetensors", "digest", "job@damaged.safetensors"];
    says(loaded.warning.unwrap(), &words);
    // The job can continue any number of times. The damaged file does not count as a generation.
    let loaded = job.loaded(&store, "job").unwrap();
    says(loaded.warning.unwrap(), &["there is no", "job.safetensors"]);
    store.save("job", Share::WHOLE, &job.snapshot(Round(12))).unwrap();
    let names = ["job.safetensors", "job@10.safetensors", "job@5.safetensors", "job@damaged.safetensors"];
    assert_eq!(files(dir.path()), names);
    // All files are damaged.
    for name in ["job.safetensors", "job@10.safetensors"] {
        damage(&dir.path().join(name));
    }
    job.check(&job.load(&store, "job").unwrap(), Round(5));
    damage(&dir.path().join("job@5.safetensors"));
    std::fs::copy(dir.path().join("job@damaged.safetensors"), store.path("job").unwrap()).unwrap();
    says(job.refusal(&store, "job"), &["job.safetensors", "digest", "move the file away"]);
}

#[test]
fn a_flipped_bit_in_the_version_is_damage_and_a_newer_version_is_not() {
    let dir = tempfile::tempdir().unwrap();
    let job = Job::small(ADAM);
    let store = saved(dir.path(), &job, &[5, 10]);
    let newest = store.path("job").unwrap();
    let whole = std::fs::read(&newest).unwrap();
    let key = b"\"phub_checkpoint\":\"";
    let at = whole.windows(key.len()).position(|bytes| bytes == key).unwrap() + key.len();
    assert_eq!(whole[at], b'1');
    for bit in 0..8 {
        let mut bytes = whole.clone();
        bytes[at] ^= 1 << bit;
        std::fs::write(&newest, bytes).unwrap();
        let loaded = job.loaded(&store, "job").unwrap();
        job.check(&loaded.restored, Round(5));
        says(loaded.warning.unwrap(), &["continues from", "job@5.safetensors", "job@damaged.safetensors"]);
    }
    // The file of a newer program has a matching digest and is not damaged. Loading an older generation would
    // hide that the program is too old.
    let mut bytes = whole;
    bytes[at] = b'2';
    bytes[35..67].fill(b'0');
    let digest = format!("{:032x}", xxhash_rust::xxh3::xxh3_128(&bytes));
    bytes[35..67].copy_from_slice(digest.as_bytes());
    std::fs::write(&newest, bytes).unwrap();
    says(job.refusal(&store, "job"), &["job.safetensors", "format \"2\"", "reads format 1"]);
}

#[test]
fn a_file_of_another_job_is_refused_and_not_taken_for_damage() {
    let dir = tempfile::tempdir().unwrap();
    let job = Job::small(ADAM);
    let store = saved(dir.path(), &job, &[5, 10]);
    says(Job::small(SGD).refusal(&store, "job"), &["job.safetensors", "optimizer"]);
    let averaged = Job { ema: Some(0.999), ..Job::small(ADAM) };
    says(averaged.refusal(&store, "job"), &["job.safetensors", "ema) is none", "asks for 0.999"]);
    assert_eq!(files(dir.path()), ["job.safetensors", "job@5.safetensors"]);
}

/// Returns the state before a round, in which these values of core 0's part are not finite.
pub fn not_finite(job: &Job, round: Round, values: &[(usize, f32)]) -> Snapshot {
    let mut whole = job.snapshot(round);
    let (layout, numbers) = (whole.layout().clone(), whole.numbers().to_vec());
    let parts = whole.take_parts().into_iter().enumerate().map(|(core, part)| {
        let mut slab = Slab::zeroed("test", part.values.as_slice().len()).unwrap();
        slab.as_mut_slice().copy_from_slice(part.values.as_slice());
        for &(at, value) in values.iter().filter(|_| core == 0) {
            slab.as_mut_slice()[at] = value;
        }
        SnapshotPart { values: slab, ..part }
    });
    Snapshot::new(layout.into(), job.tensors(), round, numbers, parts.collect()).unwrap()
}

#[test]
fn a_state_that_is_not_finite_replaces_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let job = Job::small(ADAM);
    let store = saved(dir.path(), &job, &[5]);
    // A weight and a value of the optimizer's second state are not finite, both in core 0's first chunk of 16
    // elements.
    for (round, bad) in [(6, f32::NAN), (7, f32::INFINITY), (8, f32::NEG_INFINITY)] {
        let state = not_finite(&job, Round(round), &[(0, bad), (40, bad)]);
        let error = store.save("job", Share::WHOLE, &state).unwrap_err();
        let round = format!("before round {round} ");
        says(error, &[&round, "2 values", "fc.weight", "job@not-finite.safetensors", "unchanged"]);
        assert_eq!(files(dir.path()), ["job.safetensors", "job@not-finite.safetensors"]);
        job.check(&job.load(&store, "job").unwrap(), Round(5));
    }
    // Only a value of the optimizer's state is not finite.
    let error = store.save("job", Share::WHOLE, &not_finite(&job, Round(9), &[(40, f32::NAN)]));
    says(error.unwrap_err(), &["1 value", "optimizer/exp_avg_sq/fc.weight"]);
    // No job continues from the file with the state that is not finite, not even a job without another
    // checkpoint.
    std::fs::remove_file(store.path("job").unwrap()).unwrap();
    assert!(job.load(&store, "job").is_none());
}
