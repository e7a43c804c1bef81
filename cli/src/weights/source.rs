//! The source of weights: a job at its hub.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, anyhow, bail, ensure};
use authority::Credential;
use clap::{Args, ValueEnum};
use membership::{MemberError, describe, fetch_state};
use pbox_core::control::{JobReply, Only, RefusalCode, check_job_name};
use pbox_core::manifest::MAX_HEADER_BYTES;
use phub_server::checkpoint::{Decoded, decode, is_state};
use versions::{Origin, Precision, Weights};

use crate::operate::bare;

/// The names of averages of weights in a hub's state begin like this.
const AVERAGE: &str = "optimizer/ema/";

/// The longest file of names.
const NAMES_BYTES: u64 = 64 << 20;

/// The time that a hub has to describe its jobs.
const DESCRIBE_LIMIT: Duration = Duration::from_secs(10);

/// Settings about the job whose weights are wanted.
#[derive(Clone, Debug, Args)]
pub struct SourceArgs {
    /// The job. It must be at one hub, which keeps its weights: its optimizer is not `average` or `sum`.
    #[arg(value_name = "JOB")]
    pub job: String,

    /// The hub's control port.
    #[arg(default_value = "127.0.0.1:7077", value_name = "HOST:PORT")]
    hub: String,

    /// The element type of the written weights: the nearest value, ties to even.
    #[arg(long, value_enum, default_value_t = Dtype::F32)]
    dtype: Dtype,

    /// Write the averages of the weights, which a job with `ema` keeps, instead of the weights.
    #[arg(long)]
    ema: bool,

    /// A JSON object of names: {"the job's key": "the written name", ...}. Other keys keep their names.
    #[arg(long, value_name = "FILE")]
    names: Option<PathBuf>,
}

/// An element type.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Dtype {
    F32,
    Bf16,
    F16,
}

/// A job whose weights are wanted.
#[derive(Debug)]
pub struct Source {
    hub: String,
    job: String,
    credential: Option<Credential>,
    precision: Precision,
    averages: bool,
    names: BTreeMap<String, String>,
    /// The start of the hub that has answered; empty before the first answer.
    start: String,
}

/// The reason why there are no weights.
#[derive(Debug)]
pub enum NoWeights {
    /// The hub is not reached, or was started again, and its jobs may return: the reason, in words.
    Away(String),
    /// Weights may be there later: the reason why they are not there now, in words.
    NotYet(String),
    /// The hub has no such job.
    NoJob(String),
    /// No weights will come.
    Never(anyhow::Error),
}

impl From<NoWeights> for anyhow::Error {
    fn from(why: NoWeights) -> Self {
        match why {
            NoWeights::Away(why) | NoWeights::NotYet(why) | NoWeights::NoJob(why) => anyhow!(why),
            NoWeights::Never(error) => error,
        }
    }
}

impl SourceArgs {
    /// Returns the source.
    ///
    /// # Errors
    /// Returns an error if the job's name cannot be one, or the secret or the file of names cannot be read.
    pub(super) fn source(&self) -> anyhow::Result<Source> {
        let credential = Credential::find_if_any().context("what to show to the hub")?;
        let precision = match self.dtype {
            Dtype::F32 => Precision::F32,
            Dtype::Bf16 => Precision::Bf16,
            Dtype::F16 => Precision::F16,
        };
        let names = self.names.as_deref().map(read_names).transpose()?.unwrap_or_default();
        Source::new(&self.hub, &self.job, credential, (precision, self.ema), names)
    }
}

fn read_names(path: &Path) -> anyhow::Result<BTreeMap<String, String>> {
    let shown = || format!("the file of names {}", path.display());
    let bytes = path.metadata().with_context(shown)?.len();
    ensure!(bytes <= NAMES_BYTES, "{}: {bytes} bytes, expected at most {NAMES_BYTES}", shown());
    let text = std::fs::read(path).with_context(shown)?;
    let expected = || format!("{}: expected a JSON object of names", shown());
    serde_json::from_slice(&text).with_context(expected)
}

impl Source {
    /// Creates the source of a job's weights, in this precision, or of their averages. `names` leads from keys to other names.
    ///
    /// # Errors
    /// Returns an error if no job can have this name.
    pub fn new(
        hub: &str,
        job: &str,
        credential: Option<Credential>,
        (precision, averages): (Precision, bool),
        names: BTreeMap<String, String>,
    ) -> anyhow::Result<Self> {
        check_job_name(job)?;
        let (hub, job) = (bare(hub).to_owned(), job.to_owned());
        Ok(Source { hub, job, credential, precision, averages, names, start: String::new() })
    }

    /// Returns the job's weights before the round that is furthest ahead.
    ///
    /// # Errors
    /// Returns an error if there are none now, or never.
    pub fn fetch(&mut self) -> Result<(Origin, Weights), NoWeights> {
        let only = if self.averages { Only::Averages } else { Only::Weights };
        let most = self.most_bytes()?;
        let state = fetch_state(&self.hub, &self.job, Some(only), most, self.credential.as_ref());
        let state = state.map_err(no_weights)?;
        let elsewhere = || {
            NoWeights::Never(anyhow!(
                "the hub at {} has no part of job {:?}; ask another of its hubs",
                self.hub,
                self.job
            ))
        };
        let state = state.ok_or_else(elsewhere)?;
        let no_length = || {
            NoWeights::Never(anyhow!(
                "the hub at {} does not say how long the state is; install the same version",
                self.hub
            ))
        };
        let bytes = state.bytes().ok_or_else(no_length)?;
        if bytes > most {
            return Err(NoWeights::Never(anyhow!(
                "the hub at {} says that the {only} of job {:?} have {bytes} bytes, and its model has room for {most}; install the \
                 same version at both ends",
                self.hub,
                self.job
            )));
        }
        // A hub that ends meanwhile may return.
        let decoded = decode(state, bytes);
        let decoded = decoded
            .map_err(|error| NoWeights::NotYet(format!("the state of job {:?}: {error}", self.job)))?;
        let weights = self.weights(&decoded).map_err(NoWeights::Never)?;
        Ok((Origin { job: self.job.clone(), round: decoded.round().0 }, weights))
    }

    /// Returns the longest file of weights that the job's model can have. Memory is reserved for no longer one.
    fn most_bytes(&mut self) -> Result<u64, NoWeights> {
        let hub = describe(&self.hub, DESCRIBE_LIMIT, self.credential.as_ref()).map_err(no_weights)?;
        let before = std::mem::replace(&mut self.start, hub.id);
        if !before.is_empty() && before != self.start {
            return Err(NoWeights::Away(format!("the hub at {} was started anew", self.hub)));
        }
        let job = hub.jobs.iter().find(|job| job.name == self.job);
        // Without the job it refuses, in its own words.
        Ok(job.map_or(0, of_weights) + MAX_HEADER_BYTES)
    }

    fn weights(&self, state: &Decoded) -> anyhow::Result<Weights> {
        let job = &self.job;
        if let Some(part) = state.part() {
            bail!("job {job:?} has several hubs, and this is {part}; weights come from a job at one hub");
        }
        let mut weights = Weights::default();
        let mut unused: Vec<&String> = self.names.keys().collect();
        for (tensor, values) in state.tensors() {
            let key = match (self.averages, tensor.name.strip_prefix(AVERAGE)) {
                (true, Some(key)) => key,
                (false, None) if !is_state(&tensor.name) => &tensor.name,
                _ => continue,
            };
            unused.retain(|name| *name != key);
            let shape = tensor.shape.iter().map(|&extent| extent as usize).collect();
            let name = self.names.get(key).map_or(key, String::as_str);
            let added = weights.add(name, shape, values, self.precision);
            added.with_context(|| format!("key {key:?} of job {job:?}"))?;
        }
        ensure!(weights.tensors() > 0, "the state of job {job:?} has no tensor of its weights");
        ensure!(unused.is_empty(), "job {job:?} has no key {:?}, which the file of names has", unused[0]);
        Ok(weights)
    }
}

/// Returns the length of a job's weights as f32, or twice that: a model of 16 bits has half of it.
fn of_weights(job: &JobReply) -> u64 {
    2 * job.model_bytes
}

fn no_weights(error: MemberError) -> NoWeights {
    let why = error.to_string();
    match error {
        MemberError::Refused { code: RefusalCode::JobUnknown, .. } => NoWeights::NoJob(why),
        MemberError::Refused { code: RefusalCode::BadRequest, .. } => NoWeights::Never(error.into()),
        MemberError::Refused { .. } => NoWeights::NotYet(why),
        MemberError::Unreachable { .. } => NoWeights::Away(why),
        error => NoWeights::Never(error.into()),
    }
}
