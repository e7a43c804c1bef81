//! The needs of a hub, which its settings and its machine must meet before its first thread starts. `serve`
//! stops at the first need that is not met; the doctor reports all of them.
//!
//! Ports, cores and NICs are not checked here. The code that opens them reports their errors.

use std::fs::OpenOptions;
use std::path::Path;
use std::sync::mpsc::channel;

use rustix::fs::{Access, access};
use timeline::TraceError;

use crate::checkpoint::{CheckpointError, CheckpointStore};
use crate::control::Encryption;
use crate::error::HubError;
use crate::settings::{HubSettings, interface};

/// The number of threads of a hub in addition to its core threads: for control, joins, rendezvous, freeing, checkpoints
/// and handshakes.
const BESIDE_CORES: usize = 16;

/// A description of what a check found; `None` if the settings do not need the check.
type Found = Result<Option<String>, HubError>;

/// The check of one need.
type Look = fn(&HubSettings) -> Found;

/// The checks of all needs by name, in the order in which `serve` runs them.
const NEEDS: [(&str, Look); 6] = [
    ("settings", |settings| settings.check().map(|()| Some(settings.to_string()))),
    ("secret", secret),
    ("certificate", certificate),
    ("interface", own_interface),
    ("checkpoints", checkpoints),
    ("timeline", timeline),
];

/// Runs the check of each need, one after another.
pub fn needs(settings: &HubSettings) -> impl Iterator<Item = (&'static str, Found)> + '_ {
    NEEDS.into_iter().map(move |(name, find)| (name, find(settings)))
}

fn secret(settings: &HubSettings) -> Found {
    if settings.insecure {
        return Ok(Some("no secret is needed: the hub serves everybody who reaches it".to_owned()));
    }
    let credential = settings.credential()?;
    credential.secrets()?;
    Ok(Some(format!("from {}", credential.source())))
}

fn certificate(settings: &HubSettings) -> Found {
    Ok(Encryption::is_possible(settings)?.then(|| "the control port speaks TLS".to_owned()))
}

/// Checks only the interface that the hub's own setting names. Variables of other programs are preferences, which never
/// stop a hub.
fn own_interface(settings: &HubSettings) -> Found {
    let Some(list) = &settings.interface else { return Ok(None) };
    let address = interface::address(Some(list))?;
    Ok(address.map(|address| format!("other hubs reach this hub at {address}")))
}

fn checkpoints(settings: &HubSettings) -> Found {
    let Some(dir) = &settings.checkpoints else { return Ok(None) };
    if dir.exists() {
        CheckpointStore::open_silently(dir, settings.checkpoint_mode)?;
        return Ok(Some(format!("{} exists and can be written", dir.display())));
    }
    // A hub makes the directory itself, but not its parents.
    let parent = parent(dir);
    let failed = |error| CheckpointError::Directory { dir: dir.clone(), doing: "making it", error };
    can_make_in(parent).map_err(failed)?;
    Ok(Some(format!("{} will be made", dir.display())))
}

fn timeline(settings: &HubSettings) -> Found {
    let Some(path) = &settings.trace else { return Ok(None) };
    let opened = match path.exists() {
        true => {
            authority::check_no_fifo(path).and_then(|()| OpenOptions::new().write(true).open(path).map(drop))
        }
        false => can_make_in(parent(path)),
    };
    let failed = |error| TraceError::File { path: path.clone(), doing: "opening it for writing", error };
    opened.map_err(failed)?;
    Ok(Some(format!("{} can be written", path.display())))
}

fn parent(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

fn can_make_in(directory: &Path) -> std::io::Result<()> {
    // The check uses the entry "." of the directory, so that it fails if the path is a file.
    Ok(access(directory.join("."), Access::WRITE_OK | Access::EXEC_OK)?)
}

/// Creates as many threads as a hub with `cores` cores has, and ends them again. Returns their number.
///
/// # Errors
/// Returns an error if the system does not allow as many.
pub fn threads(cores: usize) -> Result<usize, HubError> {
    let needed = cores + BESIDE_CORES;
    let mut threads = Vec::new();
    let mut refused = None;
    // All threads live until the last thread is made.
    let (hold, held) = channel::<()>();
    let held = std::sync::Arc::new(std::sync::Mutex::new(held));
    for made in 0..needed {
        let held = std::sync::Arc::clone(&held);
        let wait = move || drop(held.lock().map(|held| held.recv()));
        match std::thread::Builder::new().name("phub-try".into()).stack_size(64 << 10).spawn(wait) {
            Ok(thread) => threads.push(thread),
            Err(error) => {
                refused = Some(HubError::Threads { needed, made, error });
                break;
            }
        }
    }
    drop(hold);
    threads.into_iter().for_each(|thread| drop(thread.join()));
    refused.map_or(Ok(needed), Err)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn first_missing(arguments: &[&str]) -> (&'static str, String) {
        let settings = HubSettings::of_arguments(arguments.iter().map(Into::into)).unwrap();
        let missing = needs(&settings).find_map(|(name, found)| Some((name, found.err()?.to_string())));
        missing.unwrap_or_else(|| panic!("{arguments:?} lacks nothing"))
    }

    #[test]
    fn what_is_missing_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name).display().to_string();
        std::fs::write(dir.path().join("file"), "").unwrap();
        for (arguments, name, words) in [
            (vec!["--late-limit-s".into(), "1".into()], "settings", "--late-limit-s"),
            (vec!["--token-file".into(), at("none")], "secret", "none"),
            (vec!["--tls-cert".into(), at("a"), "--tls-key".into(), at("b")], "certificate", "--tls-cert"),
            (vec!["--interface".into(), "nowhere7".into()], "interface", "--interface"),
            (vec!["--checkpoints".into(), at("no/where")], "checkpoints", "making it"),
            (vec!["--checkpoints".into(), at("file")], "checkpoints", "file"),
            (vec!["--trace".into(), at("no/trace")], "timeline", "trace"),
        ] {
            let insecure: Vec<&str> = match name {
                "secret" => arguments.iter().map(String::as_str).collect(),
                _ => arguments.iter().map(String::as_str).chain(["--insecure"]).collect(),
            };
            let (seen, why) = first_missing(&insecure);
            assert!(seen == name && why.contains(words), "{arguments:?}: {seen}: {why}");
        }
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "looking makes nothing");
    }

    #[test]
    fn threads_are_tried_by_making_them() {
        assert_eq!(threads(2).unwrap(), 2 + BESIDE_CORES);
    }
}
