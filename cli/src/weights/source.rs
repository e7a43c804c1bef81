//! Arguments about the job whose weights are wanted.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, anyhow, ensure};
use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use phub_server::program::WrongSetting;
use subscription::{Names, Precision, Source, SourceSettings};

/// The longest file of names.
const NAMES_BYTES: u64 = 64 << 20;

/// Settings about the job whose weights are wanted.
#[derive(Clone, Debug, Args)]
pub struct SourceArgs {
    /// Name of the job. Jobs with the optimizer average or sum have no weights at their hubs.
    #[arg(value_name = "JOB")]
    pub job: String,

    /// Control port of the job's hub. If the job has several hubs, name all, with commas between them. In a mesh, or with
    /// hubs above, name the hub of any machine.
    #[arg(default_value = "127.0.0.1:7077", value_name = "HOST:PORT,...")]
    hubs: String,

    /// Element type of the written weights. Values are rounded to the nearest, ties to even.
    #[arg(long, default_value = "f32", value_parser = precisions())]
    dtype: Precision,

    /// Write the moving averages of the weights, instead of the weights. Only a job with the setting ema has them.
    #[arg(long)]
    ema: bool,

    /// JSON file that renames keys: {"the job's key": "the written name", ...}. Other keys keep their names. An entry may
    /// also set a type, cut a key into tensors, or join keys into a tensor: docs/engines.md.
    #[arg(long, value_name = "FILE")]
    names: Option<PathBuf>,
}

fn precisions() -> impl TypedValueParser<Value = Precision> {
    PossibleValuesParser::new(Precision::NAMED.map(|(name, _)| name)).try_map(|name| name.parse())
}

impl SourceArgs {
    /// Returns the source, which waits up to `hub_wait` for a hub that is away. With `fetch_deltas`, it gets only differences.
    ///
    /// # Errors
    /// Returns an error if the job's name is invalid, or if the secret or the file of names cannot be read.
    pub(super) fn source(&self, hub_wait: Duration, fetch_deltas: bool) -> anyhow::Result<Source> {
        let names = self.names.as_deref().map(read_names).transpose();
        let names = names.map_err(|error| WrongSetting(format!("{error:#}")))?.unwrap_or_default();
        let (precision, averages) = (self.dtype, self.ema);
        let settings = SourceSettings::new(&self.hubs, &self.job);
        Ok(Source::new(SourceSettings { precision, averages, names, fetch_deltas, hub_wait, ..settings })?)
    }
}

fn read_names(path: &Path) -> anyhow::Result<Names> {
    let shown = || format!("the file of names {}", path.display());
    let mut text = Vec::new();
    // The read is bounded, because a device or a pipe does not say its length.
    let advice = "give a JSON file with a name for each key to rename";
    let file = File::open(path).map_err(|error| anyhow!("{}: {error}; {advice}", shown()))?;
    file.take(NAMES_BYTES + 1).read_to_end(&mut text).with_context(shown)?;
    ensure!(text.len() as u64 <= NAMES_BYTES, "{}: expected at most {NAMES_BYTES} bytes", shown());
    let expected = || format!("{}: expected a JSON object of names", shown());
    serde_json::from_slice(&text).with_context(expected)
}
