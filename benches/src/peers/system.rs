//! The systems for the comparison: whether each can run here, and its commands.
//!
//! Each system is a script in `benches/peers`. It installs nothing, and has an option `--ready`.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use pbox_core::Layout;
use serde::Serialize;

use super::args::Args;

/// Another system.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum System {
    /// Open MPI's all-reduce, and the step on every rank.
    #[value(name = "openmpi")]
    OpenMpi,
    /// PyTorch's all-reduce over gloo, and the step on every rank.
    Gloo,
}

impl System {
    fn name(self) -> &'static str {
        match self {
            System::OpenMpi => "Open MPI",
            System::Gloo => "gloo",
        }
    }

    fn script(self) -> PathBuf {
        let name = match self {
            System::OpenMpi => "mpi_allreduce.sh",
            System::Gloo => "gloo_allreduce.sh",
        };
        Path::new(env!("CARGO_MANIFEST_DIR")).join("peers").join(name)
    }

    /// Returns the rows of the table for this system: the name of each row, and the script's options for it.
    fn variants(self) -> &'static [(&'static str, &'static [&'static str])] {
        match self {
            System::OpenMpi => &[
                ("Open MPI, as shipped", &[]),
                ("Open MPI, tuned", &["--tuned"]),
                ("Open MPI, in 1 MiB pieces", &["--piece", "262144"]),
                ("Open MPI, tuned, in 1 MiB pieces", &["--tuned", "--piece", "262144"]),
            ],
            System::Gloo => &[
                ("gloo, in DDP's 25 MiB buckets", &["--piece", "6553600"]),
                ("gloo, tuned, in 4 MiB pieces", &["--interfaces", "2", "--piece", "1048576"]),
            ],
        }
    }
}

/// A system that cannot run on this machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Missing {
    /// The name.
    pub system: &'static str,
    /// The missing package or program, and how to get it. The script gives the text.
    pub how: String,
}

impl std::fmt::Display for Missing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.system, self.how)
    }
}

/// The work that every system does.
#[derive(Debug)]
pub struct Work {
    /// The model's name.
    pub model: String,
    /// The number of elements of all keys.
    pub elements: u64,
    /// The flag and the value by which the probe finds the model.
    source: [String; 2],
    workers: String,
    rounds: String,
}

impl Work {
    /// Creates the work from the settings.
    pub fn new(args: &Args) -> Result<Self> {
        let (model, keys) = args.source.keys_or("resnet50")?;
        let layout = Layout::new(keys, pbox_core::DEFAULT_CHUNK_BYTES)?;
        let source = match &args.source.manifest {
            Some(path) => ["--manifest".to_owned(), path.display().to_string()],
            None => ["--model".to_owned(), model.clone()],
        };
        Ok(Work {
            model,
            elements: layout.keys().iter().filter_map(|key| key.elements()).sum(),
            source,
            workers: args.workers.to_string(),
            rounds: args.rounds.to_string(),
        })
    }

    /// Returns a script's options.
    fn options(&self) -> [String; 6] {
        let elements = self.elements.to_string();
        ["--workers", &self.workers, "--rounds", &self.rounds, "--elements", &elements].map(str::to_owned)
    }
}

/// One row of the table.
#[derive(Debug)]
pub struct Contender {
    /// The name in the table.
    pub name: &'static str,
    /// The program.
    pub program: PathBuf,
    /// The options.
    pub args: Vec<String>,
}

/// Divides systems into those that can run here and those that cannot. With `by_name`, a missing system is an
/// error.
pub fn present(
    asked: &[System],
    by_name: bool,
    ready: impl Fn(&Path) -> Result<Option<String>>,
) -> Result<(Vec<System>, Vec<Missing>)> {
    let (mut systems, mut missing) = (Vec::new(), Vec::new());
    for &system in asked {
        match ready(&system.script())? {
            None => systems.push(system),
            Some(how) => missing.push(Missing { system: system.name(), how }),
        }
    }
    if by_name && !missing.is_empty() {
        let words: Vec<String> = missing.iter().map(Missing::to_string).collect();
        bail!("cannot compare with {}; without --peers those run that are here", words.join("\nand with "));
    }
    Ok((systems, missing))
}

/// Returns what is missing for a script on this machine, or `None` if nothing is.
pub fn ready(script: &Path) -> Result<Option<String>> {
    /// The exit status of a script for which something must be installed first.
    const MISSING: i32 = 3;
    let output = Command::new(script).arg("--ready").stdin(Stdio::null()).output();
    let output = output.with_context(|| format!("starting {}", script.display()))?;
    let words = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    match output.status.code() {
        Some(0) => Ok(None),
        Some(MISSING) => Ok(Some(words)),
        _ => bail!(
            "{} --ready failed ({}); expected status 0 or 3; it said: {words}",
            script.display(),
            output.status
        ),
    }
}

/// Returns the probe, and after it the other systems.
pub fn peers(work: &Work, systems: &[System]) -> Result<Vec<Contender>> {
    let probe = std::env::current_exe()?.with_file_name("phub-probe");
    ensure!(probe.exists(), "{} is not built: cargo build --release --bins", probe.display());
    let hub = |name, extra: &[&str]| {
        let common = ["--json", "--workers", &work.workers, "--rounds", &work.rounds];
        let mut args: Vec<String> = common.iter().chain(extra).map(|&word| word.to_owned()).collect();
        args.extend(work.source.iter().cloned());
        Contender { name, program: probe.clone(), args }
    };
    let mut peers = vec![
        hub("phub, shared weights", &["--weights", "shared"]),
        hub("phub, private weights", &["--weights", "private"]),
        hub("phub, over TCP on loopback", &["--transport", "tcp"]),
    ];
    for &system in systems {
        for &(name, extra) in system.variants() {
            // A script's own options come first.
            let mut args: Vec<String> = extra.iter().map(|&word| word.to_owned()).collect();
            args.extend(work.options());
            peers.push(Contender { name, program: system.script(), args });
        }
    }
    Ok(peers)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn missing_systems_are_named() {
        let all = [System::OpenMpi, System::Gloo];
        let no_gloo =
            |script: &Path| Ok(script.ends_with("gloo_allreduce.sh").then(|| "install it".to_owned()));
        let (systems, missing) = present(&all, false, no_gloo).unwrap();
        assert_eq!(systems, [System::OpenMpi]);
        assert_eq!(missing[0].to_string(), "gloo: install it");
        let error = present(&all, true, no_gloo).unwrap_err().to_string();
        assert!(error.contains("gloo: install it") && error.contains("without --peers"), "{error}");
        assert_eq!(present(&[System::OpenMpi], true, no_gloo).unwrap(), (vec![System::OpenMpi], vec![]));
    }

    #[test]
    fn a_script_says_what_is_missing() {
        let dir = tempfile::tempdir().unwrap();
        let says = |name: &str, body: &str| {
            let script = dir.path().join(name);
            fs::write(&script, format!("#!/bin/sh\n{body}\n")).unwrap();
            fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
            ready(&script)
        };
        assert_eq!(says("here", "[ $1 = --ready ]").unwrap(), None);
        assert_eq!(says("gone", "echo install it >&2; exit 3").unwrap().as_deref(), Some("install it"));
        let error = says("broken", "echo oh >&2; exit 1").unwrap_err().to_string();
        assert!(error.contains("broken") && error.contains("oh"), "{error}");
        let error = format!("{:#}", ready(&dir.path().join("nowhere")).unwrap_err());
        assert!(error.contains("nowhere"), "{error}");
    }
}
