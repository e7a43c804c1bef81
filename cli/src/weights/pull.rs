//! `phub-server pull`: a job's weights in a file.

use std::path::PathBuf;

use clap::Parser;
use subscription::HUB_WAIT;

use super::source::SourceArgs;
use super::spoken;
use crate::out::line;

/// Pull a job's weights into a safetensors file, while it trains.
///
/// All weights are of one round, which is printed. No worker waits. The hub needs memory for a copy of the weights while it
/// sends them.
#[derive(Clone, Debug, Parser)]
pub struct PullArgs {
    #[command(flatten)]
    source: SourceArgs,

    /// The new file. It must not exist.
    #[arg(long, value_name = "FILE")]
    to: PathBuf,
}

impl PullArgs {
    /// Writes the file.
    ///
    /// # Errors
    /// Returns an error if the hub is not reached, the hub refuses, or the file cannot be written.
    pub fn run(&self) -> anyhow::Result<()> {
        anyhow::ensure!(!self.to.exists(), "{} exists already; give a new file", self.to.display());
        let (origin, weights) = self.source.source(HUB_WAIT, false)?.fetch()?;
        weights.save(&self.to)?;
        let (to, tensors, bytes) = (self.to.display(), weights.tensors(), spoken(weights.bytes()));
        line(format_args!("{to}: {tensors} tensors, {bytes}, before round {}", origin.round))
    }
}
