//! `phub-server replay`: replays the record of a hub.

use std::fs::File;
use std::io::BufReader;
use std::path::PathBuf;
use std::time::Instant;

use anyhow::Context;
use clap::Parser;
use coordinator::record::{NotReplayed, replay};
use timeline::lines;

use crate::{input, out};

/// The longest line of a record. A line may have a request of 64 MB with the keys of a job.
const LINE_BYTES: u64 = 256 << 20;

/// Replay the record of a hub, and compare each answer with the record.
///
/// A new hub without threads, sockets and files gets the recorded requests, with the recorded times. If an answer differs,
/// the first such answer is shown with the events before it. If another version of the program made the record, a difference
/// shows where the two versions decide differently. A record in another format is refused.
#[derive(Clone, Debug, Parser)]
pub struct ReplayArgs {
    /// Record: a file that `phub-server serve --record` made.
    #[arg(value_name = "FILE")]
    file: PathBuf,
}

impl ReplayArgs {
    /// Replays the file. Returns whether all answers are equal, and prints the first that differs.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read, or is not a record.
    pub fn run(&self) -> anyhow::Result<bool> {
        let shown = || self.file.display().to_string();
        input::check_no_fifo(&self.file)?;
        let file = File::open(&self.file)
            .with_context(|| format!("{}: give a file that `serve --record FILE` has made", shown()))?;
        match replay(lines(BufReader::new(file), u64::MAX, LINE_BYTES), Instant::now()) {
            Ok(replayed) => out::line(replayed)?,
            Err(NotReplayed::Differs(difference)) => {
                out::verdict(difference)?;
                return Ok(false);
            }
            Err(error) => return Err(error).with_context(shown),
        }
        Ok(true)
    }
}
