//! `phub-server checkpoint`: what it prints about the files of a hub.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use pbox_core::{KeyId, Round, Share, Tensor};
use phub_server::checkpoint::CheckpointStore;
use safetensors::SafeTensors;

use super::snapshots::{ADAM, Job, value};
use crate::support::{phub_server, says};

/// Returns the program's output, and whether it reports success.
fn checkpoint(arguments: &[&str]) -> (bool, String) {
    let output = phub_server(&[&["checkpoint"], arguments].concat()).output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8(said).unwrap())
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn files_are_listed_verified_and_exported() {
    let dir = tempfile::tempdir().unwrap();
    let store = CheckpointStore::open(dir.path()).unwrap();
    let job = Job::small(ADAM);
    for round in [Round(3), Round(7)] {
        store.save("train", Share::WHOLE, &job.snapshot(round)).unwrap();
    }
    let (newest, older) = (store.path("train").unwrap(), dir.path().join("train@3.safetensors"));
    std::fs::write(dir.path().join("other.safetensors"), "not a checkpoint").unwrap();

    // The hub still holds the directory.
    let (well, said) = checkpoint(&["list", text(dir.path())]);
    assert!(well, "{said}");
    let line = |name: &str| said.lines().find(|line| line.starts_with(name)).unwrap().to_owned();
    says(line("train.safetensors"), &["train", " 7 ", " s"]);
    says(line("train@3.safetensors"), &["train", " 3 "]);
    says(line("other.safetensors"), &["?"]);

    let (well, said) = checkpoint(&["verify", text(&newest), text(&older)]);
    assert!(well, "{said}");
    let parameters: u64 = job.keys.iter().map(|key| key.elements().unwrap()).sum();
    says(&said, &["pass", "before round 7", "before round 3", "adam", &format!("{parameters} parameters")]);

    let to = dir.path().join("model.export");
    let (well, said) = checkpoint(&["export", text(&newest), "--to", text(&to)]);
    assert!(well, "{said}");
    let bytes = std::fs::read(&to).unwrap();
    let model = SafeTensors::deserialize(&bytes).unwrap();
    assert_eq!(model.len(), job.keys.len());
    for (key, id) in job.keys.iter().zip((0..).map(KeyId)) {
        let elements = 0..key.elements().unwrap() as usize;
        let bits = elements.flat_map(|at| value(Round(7), id, Tensor::Weights, at).to_le_bytes());
        assert_eq!(model.tensor(&key.name).unwrap().data(), bits.collect::<Vec<u8>>(), "{}", key.name);
    }
    let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&to), 0o600, "whatever the umask is");
    let (well, said) = checkpoint(&["export", text(&newest), "--to", text(&to)]);
    assert!(!well);
    says(said, &[text(&to), "exists"]);
    let all = dir.path().join("all.export");
    assert!(checkpoint(&["export", text(&newest), "--with-state", "--mode", "644", "--to", text(&all)]).0);
    assert_eq!(mode(&all), 0o644);
    let bytes = std::fs::read(&all).unwrap();
    assert_eq!(SafeTensors::deserialize(&bytes).unwrap().len(), 3 * job.keys.len());
}

/// Checks that a FIFO is not opened, because opening it would wait for ever.
#[test]
fn what_is_no_directory_and_what_is_no_file_is_said_with_what_to_do() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("train.safetensors");
    std::fs::write(&file, "").unwrap();
    let (well, said) = checkpoint(&["list", text(&file)]);
    assert!(!well);
    says(
        said,
        &["is a file; expected the directory of", &format!("checkpoint list {}", text(dir.path())), "verify"],
    );
    let (well, said) = checkpoint(&["list", text(&dir.path().join("nowhere"))]);
    assert!(!well);
    says(said, &["nowhere", "expected the directory of", "No such file"]);

    let fifo = dir.path().join("pipe.safetensors");
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    let (well, said) = checkpoint(&["list", text(dir.path())]);
    assert!(well, "{said}");
    says(said, &["pipe.safetensors", "no file"]);
    let (well, said) = checkpoint(&["verify", text(&fifo)]);
    assert!(!well);
    says(said, &["FAIL", "pipe.safetensors", "expected a file"]);
}

#[test]
fn what_is_damaged_is_said_and_fails() {
    let dir = tempfile::tempdir().unwrap();
    let store = CheckpointStore::open(dir.path()).unwrap();
    store.save("train", Share::WHOLE, &Job::small(ADAM).snapshot(Round(3))).unwrap();
    let path = store.path("train").unwrap();
    let mut bytes = std::fs::read(&path).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(&path, &bytes).unwrap();
    let (well, said) = checkpoint(&["verify", text(&path)]);
    assert!(!well);
    says(said, &["FAIL", text(&path), "digest"]);
    let (well, said) = checkpoint(&["export", text(&path), "--to", text(&dir.path().join("model"))]);
    assert!(!well && !dir.path().join("model").exists());
    says(said, &[text(&path), "digest"]);
    let (well, said) = checkpoint(&["list", "/nowhere"]);
    assert!(!well);
    says(said, &["/nowhere", "No such file"]);
}
