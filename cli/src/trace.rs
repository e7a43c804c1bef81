//! `phub-server trace`: merges the timelines of several processes into one timeline.

use std::path::PathBuf;

use clap::Parser;
use phub_server::program::{WrongSetting, say};
use timeline::{TraceFile, merge};

use crate::input;

/// Merge the timelines of hubs and workers into one timeline, with the clock of the first file.
///
/// Processes of one machine share a clock. A worker compares its clock with the clocks of its hubs when it joins and when it
/// leaves, and its file has the differences. So give the hub's file, and a file of a worker on each machine.
///
///   phub-server trace hub.json run.rank0.json run.rank1.json --to all.json
///
/// https://ui.perfetto.dev opens the merged file.
#[derive(Clone, Debug, Parser)]
pub struct TraceArgs {
    /// Timelines: files that `--trace`, PHUB_TRACE or GET /v1/trace made. The first file sets the clock.
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// File for the merged timeline.
    #[arg(long, value_name = "FILE")]
    to: PathBuf,
}

impl TraceArgs {
    /// Writes the file.
    ///
    /// # Errors
    /// Returns an error if a file cannot be read or written, or is not a timeline.
    pub fn run(&self) -> anyhow::Result<()> {
        if self.files.contains(&self.to) {
            let to = self.to.display();
            let why = format!("{to} is both read and written; name another file after --to");
            return Err(WrongSetting(why).into());
        }
        let is_second = |(at, file): &(usize, &PathBuf)| self.files[..*at].contains(file);
        if let Some((_, file)) = self.files.iter().enumerate().find(is_second) {
            let why = format!("{} is given twice; name each file once", file.display());
            return Err(WrongSetting(why).into());
        }
        self.files.iter().try_for_each(|file| input::check_no_fifo(file))?;
        // The files are merged before the new file is made, so that a bad file does not overwrite an existing
        // one.
        let (processes, apart) = merge(&self.files)?;
        TraceFile::create(&self.to)?.write(&processes)?;
        for name in apart {
            say(format_args!(
                "phub-server: the times of {name} stay uncorrected, because no file says how its clock differs. Add the file of a worker \
                 on the same machine; for a hub, the file of one of its workers"
            ));
        }
        Ok(())
    }
}
