//! Disks that are full, read-only or limited, and directories that are in use. Each causes a clear error, and
//! the previous checkpoint stays whole.

use std::path::Path;
use std::process::Command;

use pbox_core::{Key, Round, Share};
use phub_server::checkpoint::CheckpointStore;

use super::children::{child, prepared, shell_with_mounts, succeeds};
use super::generations::not_finite;
use super::snapshots::{Job, SGD, files, says};

/// Returns a job whose file has 600 KB.
fn job() -> Job {
    Job::new(vec![Key::f32("a", [100_000]), Key::f32("b", [50_000])], SGD)
}

#[test]
fn a_full_disk_keeps_the_former_checkpoint() {
    let Some(shell) = shell_with_mounts() else { return };
    let dir = tempfile::tempdir().unwrap();
    let mount = "mount -t tmpfs -o size=1m tmpfs \"$dir\"";
    succeeds(&mut child(prepared(shell, mount, dir.path()), "full", dir.path()));
}

/// Runs the part of the test above that uses the small disk.
pub fn on_a_small_disk(dir: &Path) {
    let (store, job) = (CheckpointStore::open(dir).unwrap(), job());
    let bytes = store.save("job", Share::WHOLE, &job.snapshot(Round(1))).unwrap();
    // The disk has room for one file, but not for two.
    let error = store.save("job", Share::WHOLE, &job.snapshot(Round(2))).unwrap_err();
    let needed = format!("{bytes} bytes needed");
    let words =
        ["job.safetensors", "reserving", &needed, " free there", "No space left", "unchanged", "free space"];
    says(error, &words);
    assert_eq!(files(dir), ["job.safetensors"]);
    job.check(&job.load(&store, "job").unwrap(), Round(1));
    std::fs::remove_file(store.path("job").unwrap()).unwrap();
    store.save("job", Share::WHOLE, &job.snapshot(Round(2))).unwrap();
    job.check(&job.load(&store, "job").unwrap(), Round(2));
}

#[test]
fn a_disk_for_fewer_files_than_generations_keeps_the_newest() {
    let Some(shell) = shell_with_mounts() else { return };
    let dir = tempfile::tempdir().unwrap();
    let mount = "mount -t tmpfs -o size=1500k tmpfs \"$dir\"";
    succeeds(&mut child(prepared(shell, mount, dir.path()), "room for two", dir.path()));
}

/// Runs the part of the test above that uses a disk for two checkpoints.
pub fn on_a_disk_for_two(dir: &Path) {
    let (store, job) = (CheckpointStore::open(dir).unwrap(), job());
    // The store would keep three files, and the disk has room for two.
    for round in 1..=4 {
        store.save("job", Share::WHOLE, &job.snapshot(Round(round))).unwrap();
        job.check(&job.load(&store, "job").unwrap(), Round(round));
    }
    assert_eq!(files(dir), ["job.safetensors", "job@3.safetensors"]);
    // A state that is not finite must not displace a finite one.
    let error = store.save("job", Share::WHOLE, &not_finite(&job, Round(5), &[(0, f32::NAN)])).unwrap_err();
    says(error, &["job.safetensors", "No space left", "unchanged"]);
    assert_eq!(files(dir), ["job.safetensors", "job@3.safetensors"]);
    // On a full disk, the store first removes a file that no job continues from.
    std::fs::rename(dir.join("job@3.safetensors"), dir.join("job@not-finite.safetensors")).unwrap();
    store.save("job", Share::WHOLE, &job.snapshot(Round(6))).unwrap();
    assert_eq!(files(dir), ["job.safetensors", "job@4.safetensors"]);
    // If there is no newest file, the newest generation is kept, because the job has nothing else.
    std::fs::remove_file(store.path("job").unwrap()).unwrap();
    std::fs::write(dir.join("filler"), vec![1; 800_000]).unwrap();
    store.save("job", Share::WHOLE, &job.snapshot(Round(7))).unwrap_err();
    assert_eq!(files(dir), ["filler", "job@4.safetensors"]);
}

#[test]
fn a_directory_that_was_replaced_is_locked_before_it_is_written() {
    let parent = tempfile::tempdir().unwrap();
    let (dir, away) = (parent.path().join("here"), parent.path().join("away"));
    let (store, job) = (CheckpointStore::open(&dir).unwrap(), Job::small(SGD));
    std::fs::rename(&dir, &away).unwrap();
    let error = store.save("job", Share::WHOLE, &job.snapshot(Round(1))).unwrap_err();
    says(error, &["/here", "was not replaced", "make the directory"]);
    let second = CheckpointStore::open(&dir).unwrap();
    let error = store.save("job", Share::WHOLE, &job.snapshot(Round(1))).unwrap_err();
    says(error, &["/here", "in use by another hub"]);
    assert_eq!(files(&dir), [""; 0]);
    second.save("job", Share::WHOLE, &job.snapshot(Round(1))).unwrap();
    // When the directory is free, the store locks it and writes.
    drop(second);
    store.save("job", Share::WHOLE, &job.snapshot(Round(2))).unwrap();
    says(CheckpointStore::open(&dir).unwrap_err(), &["in use by another hub"]);
}

#[test]
fn a_read_only_directory_is_refused_at_the_start() {
    let Some(shell) = shell_with_mounts() else { return };
    let dir = tempfile::tempdir().unwrap();
    let mount = "mount -t tmpfs tmpfs \"$dir\" && touch \"$dir/.phub-lock\" && mount -o remount,ro \"$dir\"";
    succeeds(&mut child(prepared(shell, mount, dir.path()), "readonly", dir.path()));
}

pub fn on_a_read_only_disk(dir: &Path) {
    let error = CheckpointStore::open(dir).unwrap_err();
    says(error, &[dir.to_str().unwrap(), "Read-only", "the hub's user may make"]);
    let error = CheckpointStore::open(dir.join("new")).unwrap_err();
    says(error, &["making it", "Read-only"]);
}

#[test]
fn a_limit_on_file_sizes_is_an_error_and_no_signal() {
    let dir = tempfile::tempdir().unwrap();
    // The unit of `ulimit -f` is 512 or 1024 bytes, depending on the shell.
    let shell = prepared(Command::new("sh"), "ulimit -f 500", dir.path());
    succeeds(&mut child(shell, "limited", dir.path()));
}

pub fn under_a_size_limit(dir: &Path) {
    let (store, small) = (CheckpointStore::open(dir).unwrap(), Job::small(SGD));
    store.save("job", Share::WHOLE, &small.snapshot(Round(1))).unwrap();
    let error = store.save("job", Share::WHOLE, &job().snapshot(Round(2))).unwrap_err();
    says(error, &["job.safetensors", "limit on file sizes", "ulimit -f", "unchanged"]);
    assert_eq!(files(dir), ["job.safetensors"]);
    small.check(&small.load(&store, "job").unwrap(), Round(1));
}

#[test]
fn one_hub_at_a_time_has_a_directory() {
    let dir = tempfile::tempdir().unwrap();
    let first = CheckpointStore::open(dir.path()).unwrap();
    let half_written = dir.path().join(".job.0123456789abcdef.phub-tmp");
    std::fs::write(&half_written, "the first hub is at it").unwrap();
    let error = CheckpointStore::open(dir.path()).unwrap_err();
    let process = format!("process {} has it locked", std::process::id());
    says(error, &[dir.path().to_str().unwrap(), "in use by another hub", &process, "another directory"]);
    // The lock is on the directory, not on the file.
    std::fs::remove_file(dir.path().join(".phub-lock")).unwrap();
    says(CheckpointStore::open(dir.path()).unwrap_err(), &["in use by another hub", &process]);
    assert!(half_written.exists());
    drop(first);
    // Another test may be starting a program now. Until the child executes the program, it holds the lock's
    // descriptor.
    let mut again = CheckpointStore::open(dir.path());
    for _ in 0..1000 {
        if again.is_ok() {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(2));
        again = CheckpointStore::open(dir.path());
    }
    again.unwrap();
    assert!(!half_written.exists());
}

#[test]
fn a_directory_is_made_but_not_its_parents() {
    let dir = tempfile::tempdir().unwrap();
    CheckpointStore::open(dir.path().join("new")).unwrap();
    let error = CheckpointStore::open(dir.path().join("mistyped/new")).unwrap_err();
    says(error, &["mistyped/new", "making it", "make the directory, or give another one"]);
    let file = dir.path().join("file");
    std::fs::write(&file, "").unwrap();
    says(CheckpointStore::open(&file).unwrap_err(), &["/file", "the path is a file", "Not a directory"]);
}

#[test]
fn a_checkpoint_that_cannot_be_replaced_leaves_nothing_behind() {
    let dir = tempfile::tempdir().unwrap();
    let (store, job) = (CheckpointStore::open(dir.path()).unwrap(), Job::small(SGD));
    std::fs::create_dir(store.path("job").unwrap()).unwrap();
    let error = store.save("job", Share::WHOLE, &job.snapshot(Round(1))).unwrap_err();
    says(error, &["job.safetensors", "renaming", "Is a directory"]);
    assert_eq!(files(dir.path()), ["job.safetensors"]);
    says(job.refusal(&store, "job"), &["job.safetensors", "not a regular file"]);
}
