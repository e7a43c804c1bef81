//! The source of weights: a job at its hub.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow, bail, ensure};
use authority::Credential;
use clap::{Args, ValueEnum};
use membership::{MemberError, fetch_state};
use pbox_core::control::{RefusalCode, check_job_name};
use phub_server::checkpoint::{Decoded, decode, is_state};
use versions::{Origin, Precision, Weights};

use crate::operate::bare;

/// The names of averages of weights in a hub's state begin like this.
const AVERAGE: &str = "optimizer/ema/";

/// The longest file of names.
const NAMES_BYTES: u64 = 64 << 20;

/// The length of a state that nobody has seen yet, for its time limit: an hour and a half.
const UNSEEN_BYTES: u64 = 5 << 30;

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
pub(super) struct Source {
    hub: String,
    job: String,
    credential: Option<Credential>,
    precision: Precision,
    averages: bool,
    names: BTreeMap<String, String>,
    /// The length of the last state.
    bytes: u64,
}

/// The reason why there are no weights.
#[derive(Debug)]
pub(super) enum NoWeights {
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
            NoWeights::NotYet(why) | NoWeights::NoJob(why) => anyhow!(why),
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
        check_job_name(&self.job)?;
        let credential = Credential::find_if_any().context("what to show to the hub")?;
        let precision = match self.dtype {
            Dtype::F32 => Precision::F32,
            Dtype::Bf16 => Precision::Bf16,
            Dtype::F16 => Precision::F16,
        };
        let names = self.names.as_deref().map(read_names).transpose()?.unwrap_or_default();
        let (hub, job) = (bare(&self.hub).to_owned(), self.job.clone());
        Ok(Source { hub, job, credential, precision, averages: self.ema, names, bytes: UNSEEN_BYTES })
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
    /// Returns the job's weights before the round that is furthest ahead.
    pub fn fetch(&mut self) -> Result<(Origin, Weights), NoWeights> {
        let state =
            fetch_state(&self.hub, &self.job, self.bytes, self.credential.as_ref()).map_err(no_weights)?;
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
        self.bytes = bytes;
        // A hub that ends meanwhile may return.
        let decoded = decode(state, bytes);
        let decoded = decoded
            .map_err(|error| NoWeights::NotYet(format!("the state of job {:?}: {error}", self.job)))?;
        let weights = self.weights(&decoded).map_err(NoWeights::Never)?;
        Ok((Origin { job: self.job.clone(), round: decoded.round().0 }, weights))
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
        ensure!(weights.tensors() > 0, "job {job:?} keeps no averages of its weights; start it with `ema`");
        ensure!(unused.is_empty(), "job {job:?} has no key {:?}, which the file of names has", unused[0]);
        Ok(weights)
    }
}

fn no_weights(error: MemberError) -> NoWeights {
    let why = error.to_string();
    match error {
        MemberError::Refused { code: RefusalCode::JobUnknown, .. } => NoWeights::NoJob(why),
        MemberError::Refused { .. } | MemberError::Unreachable { .. } => NoWeights::NotYet(why),
        error => NoWeights::Never(error.into()),
    }
}
