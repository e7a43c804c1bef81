//! The source of weights: a job at its hubs.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, bail, ensure};
use authority::Credential;
use clap::{Args, ValueEnum};
use pbox_core::Round;
use pbox_core::control::{Only, check_job_name};
use phub_server::checkpoint::Decoded;
use versions::{Origin, Precision, Weights};

use super::each_rounds::EachRounds;
use super::hubs::{Ask, Hubs};
use super::whole::whole_keys;

/// The longest file of names.
const NAMES_BYTES: u64 = 64 << 20;

/// The default of the time that a reader waits for a hub that is away.
pub const HUB_WAIT: Duration = Duration::from_secs(300);

/// Settings about the job whose weights are wanted.
#[derive(Clone, Debug, Args)]
pub struct SourceArgs {
    /// The job. Its hubs keep its weights: its optimizer is not `average` or `sum`.
    #[arg(value_name = "JOB")]
    pub job: String,

    /// The control port of the job's hub, or of all its hubs with commas between them. If the job has hubs above, the
    /// hub of any machine.
    #[arg(default_value = "127.0.0.1:7077", value_name = "HOST:PORT,...")]
    hubs: String,

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
    hubs: Hubs,
    ask: Ask,
    precision: Precision,
    names: BTreeMap<String, String>,
    patience: Patience,
}

/// The result of a fetch of the weights before a wanted round, which the job may not have reached yet.
#[derive(Debug)]
pub(super) enum Fetched {
    /// The job's weights before one round.
    Weights(Origin, Weights),
    /// The job is not near the wanted round.
    Ahead,
    /// The job has passed the wanted round, and has reached another one.
    Passed { before: Round, front: Round },
}

/// The time without weights: the hub is away, or is back without its job, or the job does not run yet.
#[derive(Debug)]
struct Patience {
    limit: Duration,
    had_job: bool,
    since: Option<Instant>,
}

/// The reason why there are no weights.
#[derive(Debug)]
pub enum NoWeights {
    /// The hub cannot be reached, or was restarted, and its jobs may return. The text is the reason.
    Away(String),
    /// Weights may come later. The text is the reason why there are none now.
    NotYet(String),
    /// The hub has no such job.
    NoJob(String),
    /// The hub, or the job that it had, was away for too long: for how long, and the last reason, in words.
    Lost(String),
    /// No weights will come.
    Never(anyhow::Error),
}

impl From<NoWeights> for anyhow::Error {
    fn from(why: NoWeights) -> Self {
        match why {
            NoWeights::Away(why) | NoWeights::NotYet(why) | NoWeights::NoJob(why) | NoWeights::Lost(why) => {
                anyhow!(why)
            }
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
        let credential =
            Credential::find_if_any().context("the token or secret for the hub cannot be read")?;
        let precision = match self.dtype {
            Dtype::F32 => Precision::F32,
            Dtype::Bf16 => Precision::Bf16,
            Dtype::F16 => Precision::F16,
        };
        let names = self.names.as_deref().map(read_names).transpose()?.unwrap_or_default();
        Source::new(&self.hubs, &self.job, credential, (precision, self.ema), names)
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
    /// Creates the source of a job's weights at its hubs, `HOST:PORT,...`, in this precision, or of their averages. `names` leads
    /// from keys to other names.
    ///
    /// # Errors
    /// Returns an error if no job can have this name.
    pub fn new(
        hubs: &str,
        job: &str,
        credential: Option<Credential>,
        (precision, averages): (Precision, bool),
        names: BTreeMap<String, String>,
    ) -> anyhow::Result<Self> {
        check_job_name(job)?;
        let only = if averages { Only::Averages } else { Only::Weights };
        let ask = Ask { job: job.to_owned(), credential, only };
        let patience = Patience { limit: HUB_WAIT, had_job: false, since: None };
        Ok(Source { hubs: Hubs::new(hubs), ask, precision, names, patience })
    }

    /// Returns the job's weights before one round. At one hub it is the round that is furthest ahead.
    ///
    /// # Errors
    /// Returns an error if there are none now, or never.
    pub fn fetch(&mut self) -> Result<(Origin, Weights), NoWeights> {
        let parts = self.hubs.fetch(&self.ask);
        let (round, parts) = self.judge(parts)?;
        let weights = self.weights(&parts).map_err(NoWeights::Never)?;
        Ok((Origin { job: self.ask.job.clone(), round: round.0 }, weights))
    }

    /// Returns the job's weights before the next wanted round, if the job is near it.
    ///
    /// # Errors
    /// Returns an error if there are none now, or never.
    pub(super) fn fetch_next(&mut self, rounds: &mut EachRounds) -> Result<Fetched, NoWeights> {
        let seen = self.hubs.round(&self.ask).map(|round| rounds.next(round, Instant::now()));
        let parts = seen.and_then(|(before, is_near)| match is_near {
            true => Ok(Some((before, self.hubs.fetch_before(&self.ask, before)?))),
            false => Ok(None),
        });
        let now = Instant::now();
        match self.judge(parts) {
            Ok(None) => Ok(Fetched::Ahead),
            Ok(Some((before, Err(front)))) => {
                rounds.passed(front, now);
                Ok(Fetched::Passed { before, front })
            }
            Ok(Some((before, Ok(parts)))) => {
                rounds.reached(before, now);
                let weights = self.weights(&parts).map_err(NoWeights::Never)?;
                Ok(Fetched::Weights(Origin { job: self.ask.job.clone(), round: before.0 }, weights))
            }
            Err(why) => {
                if !matches!(why, NoWeights::NotYet(_)) {
                    rounds.forget();
                }
                Err(why)
            }
        }
    }

    /// Sets the time limit of the wait for a hub that is away. After this time the reader gets [`NoWeights::Lost`].
    pub fn with_hub_wait(mut self, limit: Duration) -> Self {
        self.patience.limit = limit;
        self
    }

    /// Passes on a result, unless the hubs were away for too long.
    fn judge<T>(&mut self, result: Result<T, NoWeights>) -> Result<T, NoWeights> {
        if matches!(result, Err(NoWeights::Away(_) | NoWeights::NoJob(_))) {
            self.hubs.start_over(&self.ask);
        }
        if self.hubs.all_run() {
            self.patience.job_runs();
        }
        self.patience.judge(result, Instant::now())
    }

    fn weights(&self, parts: &[Decoded]) -> anyhow::Result<Weights> {
        let job = &self.ask.job;
        let mut weights = Weights::default();
        let mut unused: Vec<&String> = self.names.keys().collect();
        let mut key_of: BTreeMap<&str, &str> = BTreeMap::new();
        for (key, whole) in whole_keys(parts, self.ask.only)? {
            unused.retain(|name| *name != key);
            let name = self.names.get(key).map_or(key, String::as_str);
            let of_key = || format!("key {key:?} of job {job:?}");
            if let Some(other) = key_of.insert(name, key) {
                bail!(
                    "keys {other:?} and {key:?} of job {job:?} would both have the name {name:?}; \
                     give each of them another name in the file of names"
                );
            }
            let shape = whole.shape.clone();
            let values = whole.values().with_context(of_key)?;
            weights.add(name, shape, &values, self.precision).with_context(of_key)?;
        }
        ensure!(unused.is_empty(), "job {job:?} has no key {:?}, which is in the file of names", unused[0]);
        Ok(weights)
    }
}

impl Patience {
    /// Notes that the job runs at its hubs, which may have no weights yet.
    fn job_runs(&mut self) {
        (self.had_job, self.since) = (true, None);
    }

    /// Passes on a result, unless the hub was away for too long.
    fn judge<T>(&mut self, result: Result<T, NoWeights>, now: Instant) -> Result<T, NoWeights> {
        let why = match result {
            Err(NoWeights::Away(ref why)) => why.clone(),
            // A hub that came back may wait for its workers: first for all of them, and then for some.
            Err(NoWeights::NoJob(ref why) | NoWeights::NotYet(ref why))
                if self.had_job && self.since.is_some() =>
            {
                why.clone()
            }
            other => {
                self.had_job |= !matches!(other, Err(NoWeights::NoJob(_)));
                self.since = None;
                return other;
            }
        };
        let away = now.duration_since(*self.since.get_or_insert(now));
        if away < self.limit {
            return result;
        }
        let away = away.as_secs();
        Err(NoWeights::Lost(format!(
            "for {away} s there was no hub with the job, and the wait is over: {why}"
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hub_that_does_not_come_back_with_its_job_is_waited_for_within_the_limit() {
        let (limit, begun) = (Duration::from_secs(300), Instant::now());
        let mut patience = Patience { limit, had_job: false, since: None };
        let mut hears = |result, seconds| {
            let judged = patience.judge::<()>(result, begun + Duration::from_secs(seconds));
            matches!(judged, Err(NoWeights::Lost(_)))
        };
        let [away, no_job, not_yet] = [
            || Err(NoWeights::Away("away".into())),
            || Err(NoWeights::NoJob("none".into())),
            || Err(NoWeights::NotYet("worker 1 is missing".into())),
        ];
        assert!(!hears(away(), 0) && !hears(not_yet(), 1000), "a job that is new may wait for its workers");
        assert!(!hears(no_job(), 0) && !hears(no_job(), 1000), "a job may begin at any time");
        assert!(!hears(away(), 1001) && !hears(away(), 1300) && hears(away(), 1301));
        assert!(!hears(Ok(()), 1400) && !hears(away(), 1500), "the limit begins anew");
        assert!(!hears(no_job(), 1600) && hears(no_job(), 1800), "it is back without the job");
        assert!(
            !hears(Ok(()), 2000) && !hears(not_yet(), 2001) && !hears(not_yet(), 2400),
            "it was not away"
        );
        assert!(
            !hears(away(), 2500) && !hears(not_yet(), 2600),
            "it is back, and the job waits for a worker"
        );
        assert!(hears(not_yet(), 2800));
    }

    #[test]
    fn a_job_that_runs_is_back_before_it_has_weights() {
        let (limit, begun) = (Duration::from_secs(300), Instant::now());
        let mut patience = Patience { limit, had_job: true, since: Some(begun) };
        patience.job_runs();
        let slow = Err(NoWeights::NotYet("no round is over".into()));
        let judged = patience.judge::<()>(slow, begun + Duration::from_secs(400));
        assert!(matches!(judged, Err(NoWeights::NotYet(_))));
    }
}
