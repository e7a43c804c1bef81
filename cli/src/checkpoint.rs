//! `phub-server checkpoint`: prints the contents of checkpoint files for people.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::{Context, bail, ensure};
use checkpoint_file::{Decoded, about, decode, is_state};
use clap::{Parser, Subcommand};
use phub_server::checkpoint::{FileMode, export};

use crate::out::{line, verdict};

/// List, verify and export the checkpoints of a hub. Changes no checkpoint, so the hub may run meanwhile.
#[derive(Clone, Debug, Parser)]
pub struct CheckpointArgs {
    #[command(subcommand)]
    command: Command,
}

#[derive(Clone, Debug, Subcommand)]
enum Command {
    /// List the files of a directory: job, round, size and age. Does not check the values: `verify` does.
    List {
        /// The directory of `phub-server serve --checkpoints`.
        directory: PathBuf,
    },
    /// Read whole files, and check digests and that every value is finite. Ends with status 1 if a file has a fault.
    Verify {
        /// Checkpoint files.
        #[arg(required = true)]
        files: Vec<PathBuf>,
    },
    /// Write the trained weights into a plain safetensors file, in f32, which other programs read.
    Export {
        /// A checkpoint file.
        file: PathBuf,
        /// The new file. It must not exist.
        #[arg(long)]
        to: PathBuf,
        /// Permissions of the new file. By default only you can read it; 640 lets your group read it. The umask does not
        /// change them.
        #[arg(long, default_value_t, value_name = "MODE")]
        mode: FileMode,
        /// Export the optimizer's state, too, as tensors optimizer/NAME/KEY. Use this to continue the training elsewhere.
        #[arg(long)]
        with_state: bool,
    },
}

impl CheckpointArgs {
    /// Runs the subcommand. Returns whether all files are good, and prints the faults of bad files.
    ///
    /// # Errors
    /// Returns an error if a file or directory cannot be read or written.
    pub fn run(&self) -> anyhow::Result<bool> {
        match &self.command {
            Command::List { directory } => list(directory).map(|()| true),
            Command::Verify { files } => {
                let all: Vec<bool> = files.iter().map(|file| verify(file)).collect::<anyhow::Result<_>>()?;
                Ok(!all.contains(&false))
            }
            Command::Export { file, to, mode, with_state } => {
                write(file, (to, *mode), *with_state).map(|()| true)
            }
        }
    }
}

fn list(directory: &Path) -> anyhow::Result<()> {
    let expected = "expected the directory of `phub-server serve --checkpoints`";
    if directory.is_file() {
        let above = directory.parent().filter(|above| *above != Path::new("")).unwrap_or(Path::new("."));
        let (file, above) = (directory.display(), above.display());
        bail!(
            "{file} is a file; {expected}: `phub-server checkpoint list {above}` lists the files of a directory, and `phub-server checkpoint \
             verify {file}` checks this file"
        );
    }
    let entries = std::fs::read_dir(directory)
        .with_context(|| format!("reading {}: {expected}", directory.display()))?;
    let mut names: Vec<String> = Vec::new();
    for entry in entries {
        let name = entry?.file_name().to_string_lossy().into_owned();
        names.extend(Some(name).filter(|name| name.ends_with(".safetensors") && !name.starts_with('.')));
    }
    names.sort();
    if names.is_empty() {
        return line(format_args!("{} has no checkpoints", directory.display()));
    }
    let width = names.iter().map(String::len).max().unwrap_or(0).max(4);
    line(format_args!("{:width$}  {:<20} {:>10} {:>12} {:>8}", "file", "job", "round", "bytes", "age"))?;
    for name in names {
        let path = directory.join(&name);
        let (bytes, age) = std::fs::metadata(&path)
            .map(|file| {
                (
                    file.len(),
                    file.modified().ok().and_then(|then| SystemTime::now().duration_since(then).ok()),
                )
            })
            .unwrap_or_default();
        let age = age.map_or("?".to_owned(), spoken);
        // Opens only plain files: opening a FIFO would wait for its writer.
        let about =
            if path.is_file() { about(&path).map_err(|e| e.to_string()) } else { Err("no file".into()) };
        match about {
            Ok(about) => {
                let ended = about.ended.map(|ended| format!("  {ended}")).unwrap_or_default();
                line(format_args!(
                    "{name:width$}  {:<20} {:>10} {bytes:>12} {age:>8}{ended}",
                    about.job, about.round.0
                ))?;
            }
            Err(error) => {
                line(format_args!("{name:width$}  {:<20} {:>10} {bytes:>12} {age:>8}  {error}", "?", "?"))?;
            }
        }
    }
    Ok(())
}

/// Returns a duration in its largest unit.
fn spoken(time: Duration) -> String {
    let seconds = time.as_secs();
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7200 => format!("{} min", seconds / 60),
        7200..172_800 => format!("{} h", seconds / 3600),
        _ => format!("{} d", seconds / 86400),
    }
}

fn read(path: &Path) -> anyhow::Result<Decoded> {
    let named = || path.display().to_string();
    // This check comes before the file is opened: opening a FIFO would wait for its writer.
    ensure!(path.metadata().with_context(named)?.is_file(), "{}: expected a file", path.display());
    let file = File::open(path).with_context(named)?;
    let about = file.metadata()?;
    decode(file, about.len()).with_context(|| path.display().to_string())
}

/// Checks that a file is complete and finite, and prints the result.
fn verify(path: &Path) -> anyhow::Result<bool> {
    let checkpoint = match read(path) {
        Ok(checkpoint) => checkpoint,
        Err(error) => {
            verdict(format_args!("FAIL  {error:#}"))?;
            return Ok(false);
        }
    };
    let (mut parameters, mut not_finite, mut first) = (0, 0, None);
    for (tensor, values) in checkpoint.tensors() {
        parameters += if is_state(&tensor.name) { 0 } else { values.len() };
        let strange = values.iter().filter(|value| !value.is_finite()).count();
        not_finite += strange;
        first = first.or(Some(&tensor.name).filter(|_| strange > 0));
    }
    let part = checkpoint.part().map(|part| format!(", {part}")).unwrap_or_default();
    let (path, round, optimizer) = (path.display(), checkpoint.round().0, checkpoint.optimizer().name());
    let seen = format!("{path}: before round {round}, {optimizer}, {parameters} parameters{part}");
    match first {
        None => verdict(format_args!("pass  {seen}"))?,
        Some(name) => {
            verdict(format_args!(
                "FAIL  {seen}; {not_finite} value(s) are NaN or infinite, first in {name:?}"
            ))?;
        }
    }
    Ok(first.is_none())
}

fn write(path: &Path, (to, mode): (&Path, FileMode), with_state: bool) -> anyhow::Result<()> {
    let checkpoint = read(path)?;
    if let Some(part) = checkpoint.part() {
        bail!(
            "{} is {part}; expected a whole job's file; `phub-server pull` gets the weights of all hubs while the job runs",
            path.display()
        );
    }
    let tensors =
        export(&checkpoint, to, mode, with_state).with_context(|| format!("writing {}", to.display()))?;
    line(format_args!("{}: {tensors} tensors, before round {}", to.display(), checkpoint.round().0))
}
