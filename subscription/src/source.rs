//! The source of weights: a job at its hubs.

use std::time::{Duration, Instant};

use authority::Credential;
use checkpoint_file::Decoded;
use membership::MemberError;
use pbox_core::Dtype;
use pbox_core::control::{Only, check_job_name};
use versions::{Origin, Precision, Weights};

use crate::each_rounds::{EachRounds, Next, Passed};
use crate::error::{NoWeights, SourceError};
use crate::hubs::{Ask, Hubs};
use crate::names::Names;
use crate::tensors::tensors;
use crate::whole::whole_keys;

/// The default of the time that a reader waits for a hub that is away.
pub const HUB_WAIT: Duration = Duration::from_secs(300);

/// Settings of a source.
#[derive(Clone, Debug)]
pub struct SourceSettings {
    /// The control ports of all hubs of the job, `HOST:PORT,...`.
    pub hubs: String,
    /// The name of the job.
    pub job: String,
    /// The secret or token to show to the hubs. If `None`, the secret or token from the environment or from this user's
    /// file is used, if there is one.
    pub credential: Option<Credential>,
    /// The element type of weights for which `names` has no type.
    pub precision: Precision,
    /// Whether the caller wants the averages of the weights, which a job with `ema` keeps.
    pub averages: bool,
    /// The keys that get another name or another element type, or that are cut or joined.
    pub names: Names,
    /// Whether the hubs should send the differences from the reader's previous weights, if the hubs have the differences. The
    /// reader then needs memory for two copies of the weights. Without differences, a hub on this machine writes the weights
    /// into this process's memory.
    pub fetch_deltas: bool,
    /// The time limit of the wait for a hub that does not answer, or that lacks the job. After this time the reader
    /// gets [`NoWeights::Lost`].
    pub hub_wait: Duration,
}

impl SourceSettings {
    /// Creates the settings for the f32 weights of a job at its hubs, `HOST:PORT,...`.
    pub fn new(hubs: &str, job: &str) -> Self {
        SourceSettings {
            hubs: hubs.to_owned(),
            job: job.to_owned(),
            credential: None,
            precision: Precision::F32,
            averages: false,
            names: Names::default(),
            fetch_deltas: false,
            hub_wait: HUB_WAIT,
        }
    }
}

/// A job whose weights are wanted.
#[derive(Debug)]
pub struct Source {
    hubs: Hubs,
    ask: Ask,
    precision: Precision,
    names: Names,
    patience: Patience,
}

/// The result of a fetch of the weights before a wanted round, which the job has perhaps not reached yet.
#[derive(Debug)]
pub enum Fetched {
    /// The job's weights before one round.
    Weights(Origin, Weights),
    /// The job is not near the wanted round.
    Ahead,
    /// The job has passed wanted rounds.
    Passed(Passed),
}

/// The time without weights: the hub is away, or is back without its job, or the job does not run yet.
#[derive(Debug)]
struct Patience {
    limit: Duration,
    had_job: bool,
    since: Option<Instant>,
}

impl Source {
    /// Creates the source of a job's weights at its hubs.
    ///
    /// # Errors
    /// Returns an error if no job can have this name, if an address is invalid, or if the credential cannot be read.
    pub fn new(settings: SourceSettings) -> Result<Self, SourceError> {
        let SourceSettings { hubs, job, credential, precision, averages, names, fetch_deltas, hub_wait } =
            settings;
        check_job_name(&job)?;
        let credential = match credential {
            Some(given) => Some(given),
            None => Credential::find_if_any().map_err(MemberError::from)?,
        };
        let only = if averages { Only::Averages } else { Only::Weights };
        let patience = Patience { limit: hub_wait, had_job: false, since: None };
        let ask = Ask { job, credential, only, dtype: dtype(precision, &names), fetch_deltas };
        Ok(Source { hubs: Hubs::new(&hubs)?, ask, precision, names, patience })
    }

    /// Returns the job's weights before one round. If the job has one hub, this is the furthest round of the
    /// job.
    ///
    /// # Errors
    /// Returns an error if there are no weights now, or if there will never be any.
    pub fn fetch(&mut self) -> Result<(Origin, Weights), NoWeights> {
        let parts = self.hubs.fetch(&self.ask);
        let (round, parts) = self.judge(parts)?;
        let weights = self.weights(&parts)?;
        Ok((Origin { job: self.ask.job.clone(), round: round.0 }, weights))
    }

    /// Returns the job's weights before the next wanted round, if the job is near it.
    ///
    /// # Errors
    /// Returns an error if there are no weights now, or if there will never be any.
    pub fn fetch_next(&mut self, rounds: &mut EachRounds) -> Result<Fetched, NoWeights> {
        let seen = self.hubs.round(&self.ask).map(|round| rounds.next(round, Instant::now()));
        let parts = seen.and_then(|next| match next {
            Next::Ask(before) => Ok(Ok((before, self.hubs.fetch_before(&self.ask, before)?))),
            Next::Later(_) => Ok(Err(Fetched::Ahead)),
            Next::Passed(passed) => Ok(Err(Fetched::Passed(passed))),
        });
        let now = Instant::now();
        match self.judge(parts) {
            Ok(Err(none)) => Ok(none),
            Ok(Ok((before, Err(front)))) => Ok(Fetched::Passed(rounds.note_passed(before, front, now))),
            Ok(Ok((before, Ok(parts)))) => {
                rounds.note_arrived(before, now);
                let weights = self.weights(&parts)?;
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

    /// Returns the result, or [`NoWeights::Lost`] if the hubs were away for longer than the limit.
    fn judge<T>(&mut self, result: Result<T, NoWeights>) -> Result<T, NoWeights> {
        if matches!(result, Err(NoWeights::Away(_) | NoWeights::NoJob(_))) {
            self.hubs.start_over(&self.ask);
        }
        if self.hubs.all_run() {
            self.patience.note_running();
        }
        self.patience.judge(result, Instant::now())
    }

    fn weights(&self, parts: &[Decoded]) -> Result<Weights, SourceError> {
        let keys = whole_keys(parts, self.ask.only)?;
        tensors(&self.ask.job, &self.names, keys, self.precision)
    }
}

/// Returns the type of the values that the hubs should send: the type of all tensors, or f32 if the types differ.
fn dtype(of_all: Precision, names: &Names) -> Dtype {
    match of_all {
        Precision::Bf16 if names.have_only(of_all) => Dtype::BF16,
        Precision::F16 if names.have_only(of_all) => Dtype::F16,
        Precision::F32 | Precision::Bf16 | Precision::F16 => Dtype::F32,
    }
}

impl Patience {
    /// Notes that the job runs at its hubs, which may have no weights yet.
    fn note_running(&mut self) {
        (self.had_job, self.since) = (true, None);
    }

    /// Returns the result, or [`NoWeights::Lost`] if the hub was away for longer than the limit.
    fn judge<T>(&mut self, result: Result<T, NoWeights>, now: Instant) -> Result<T, NoWeights> {
        let why = match result {
            Err(NoWeights::Away(ref why)) => why.clone(),
            // A hub that has returned has no job, or no weights, until its workers have joined again. This time counts as
            // away, too.
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
        patience.note_running();
        let slow = Err(NoWeights::NotYet("no round is over".into()));
        let judged = patience.judge::<()>(slow, begun + Duration::from_secs(400));
        assert!(matches!(judged, Err(NoWeights::NotYet(_))));
    }
}
