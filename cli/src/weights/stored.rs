//! `phub-server versions`: prints the contents of a directory of versions for people.

use std::path::{Path, PathBuf};

use clap::{Parser, Subcommand};
use versions::{Listed, Reader, VersionError, VersionId, list, without_index};

use super::spoken;
use crate::out::{line, verdict};

/// List, verify and export the versions that `phub-server publish` has written. Changes no version, so `publish` may run
/// meanwhile.
#[derive(Clone, Debug, Parser)]
pub struct VersionsArgs {
    #[command(subcommand)]
    command: Command,
}

#[derive(Clone, Debug, Subcommand)]
enum Command {
    /// List the versions of a directory: round, whole or delta, tensors and size.
    List {
        /// The directory of `phub-server publish --to`.
        directory: PathBuf,
    },
    /// Read every version, and compare each tensor with its checksum. Fails at the first tensor that differs. If a version
    /// has no index, fails after all other versions were checked.
    Verify {
        /// The directory of `phub-server publish --to`.
        directory: PathBuf,
    },
    /// Write the weights of a version to a safetensors file.
    Export {
        /// The directory of `phub-server publish --to`.
        directory: PathBuf,
        /// Number of the version. Default: the newest.
        #[arg(long, value_name = "NUMBER")]
        version: Option<VersionId>,
        /// The new file. It must not exist.
        #[arg(long, value_name = "FILE")]
        to: PathBuf,
    },
}

impl VersionsArgs {
    /// Runs the subcommand.
    ///
    /// # Errors
    /// Returns an error if a directory cannot be read, a version is damaged or gone, or a file cannot be
    /// written.
    pub fn run(&self) -> anyhow::Result<()> {
        match &self.command {
            Command::List { directory } => show(directory),
            Command::Verify { directory } => verify(directory),
            Command::Export { directory, version, to } => export(directory, *version, to),
        }
    }
}

fn show(directory: &Path) -> anyhow::Result<()> {
    let (all, without_index) = (list(directory)?, without_index(directory)?);
    if all.is_empty() && without_index.is_empty() {
        return line(format_args!("{} has no versions", directory.display()));
    }
    line(format_args!(
        "{:<8} {:<20} {:>10}  {:<16} {:>8} {:>10}",
        "version", "job", "round", "kind", "tensors", "bytes"
    ))?;
    for Listed { id, base, origin, tensors, bytes } in all {
        let kind = base.map_or("whole".to_owned(), |base| format!("delta on {base}"));
        let id = id.to_string();
        line(format_args!(
            "{id:<8} {:<20} {:>10}  {kind:<16} {tensors:>8} {:>10}",
            origin.job,
            origin.round,
            spoken(bytes)
        ))?;
    }
    without_index.into_iter().try_for_each(|fault| line(format_args!("{fault}")))
}

fn verify(directory: &Path) -> anyhow::Result<()> {
    let mut reader = Reader::new(directory);
    let (all, without_index) = (list(directory)?, without_index(directory)?);
    if all.is_empty() && without_index.is_empty() {
        // An empty directory is not a success: it may be the wrong one.
        return Err(VersionError::Empty { path: directory.to_owned() }.into());
    }
    for Listed { id, origin, .. } in &all {
        let at = reader.go_to(*id)?;
        verdict(format_args!(
            "pass  version {id}, before round {}: {}",
            origin.round,
            spoken(at.weights.bytes())
        ))?;
    }
    let plural = if all.len() == 1 { "" } else { "s" };
    verdict(format_args!("{} version{plural}, each with its published checksums", all.len()))?;
    without_index.into_iter().next().map_or(Ok(()), |fault| Err(fault.into()))
}

fn export(directory: &Path, version: Option<VersionId>, to: &Path) -> anyhow::Result<()> {
    let mut reader = Reader::new(directory);
    let version = match version {
        Some(version) => version,
        None => reader.newest()?.ok_or_else(|| anyhow::anyhow!("{} has no versions", directory.display()))?,
    };
    let at = reader.go_to(version)?;
    at.weights.save(to)?;
    let (tensors, bytes) = (at.weights.tensors(), spoken(at.weights.bytes()));
    line(format_args!("{}: {tensors} tensors, {bytes}, before round {}", to.display(), at.origin.round))
}
