//! The pulls of a session in batches: drives the batches, and reports events to the planner.
//!
//! Owned by the session. Reads the clock for the exchange, the batches and the planner, which do not read it.

use std::time::{Duration, Instant};

use fabric::Port;
use pbox_core::{KeyId, Schedule};

use crate::exchange::{Exchange, ExchangeError};

use super::batch::Batching;
use super::batches::{Batches, Counts};
use super::planner::Planner;

/// The settings for pulling weights in batches of layers, so that pulling overlaps the forward pass (iBatch).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pull {
    /// The rule that decides which layers are pulled together. If it depends on times, the session measures
    /// pulls and computing in its first rounds, and then makes a plan. It measures again when the plan's
    /// prediction fails.
    pub batching: Batching,
    /// The layers in the order of the forward pass, each with the keys that are needed together. Each key is
    /// in one layer. Default (empty): a layer for each key, in the order of the manifest.
    pub layers: Vec<Vec<KeyId>>,
    /// A pause before each pull, for measurements: it imitates a system in which each pull needs this start-up time.
    /// Default 0.
    pub start_up: Duration,
}

/// Settings of pulls in batches that cannot work.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PullError {
    /// The schedule does not pull.
    #[error(
        "pull {batching} with schedule {schedule}: only kvstore pulls weights; use kvstore, or leave pull out"
    )]
    Nothing {
        /// The batches that were asked for.
        batching: Batching,
        /// The schedule.
        schedule: Schedule,
    },
    /// The layers do not contain every key once.
    #[error("layers to pull: {why}; expected every key once")]
    Layers {
        /// The fault.
        why: String,
    },
    /// The session does not pull in batches.
    #[error(
        "layers were set, but this session does not pull layers in batches; set SessionConfig::pull before the join"
    )]
    NoBatches,
}

impl Pull {
    /// Creates settings for batches of keys.
    pub fn new(batching: Batching) -> Self {
        Pull { batching, layers: Vec::new(), start_up: Duration::ZERO }
    }

    /// Returns the layers of a model of `keys` keys.
    pub(crate) fn layers(&self, keys: usize) -> Result<Vec<Vec<KeyId>>, PullError> {
        let each = || (0..keys as u32).map(|key| vec![KeyId(key)]).collect();
        let layers = if self.layers.is_empty() { each() } else { self.layers.clone() };
        let wrong = |why: String| Err(PullError::Layers { why });
        let mut times = vec![0; keys];
        for key in layers.iter().flatten() {
            let Some(times) = times.get_mut(key.index()) else {
                return wrong(format!("key {} does not exist", key.0));
            };
            *times += 1;
        }
        if let Some(empty) = layers.iter().position(Vec::is_empty) {
            return wrong(format!("layer {empty} has no keys"));
        }
        match times.iter().position(|&times| times != 1) {
            Some(key) => wrong(format!("key {key} is in {} layers", times[key])),
            None => Ok(layers),
        }
    }
}

/// A session's pulls in batches.
#[derive(Debug)]
pub(crate) struct Pulling {
    pub batches: Batches,
    pub planner: Planner,
    start_up: Duration,
    /// The time at which the batch that is due will be pulled, after the imitated start-up.
    pulled_at: Option<Instant>,
    /// The counts that were last reported to the planner.
    reported: Counts,
}

impl Pulling {
    /// Begins to pull in batches through this exchange.
    pub fn begin<P: Port>(pull: &Pull, exchange: &mut Exchange<P>) -> Result<Self, PullError> {
        let keys = exchange.layout().keys().len();
        let layers = pull.layers(keys)?;
        let planner = Planner::new(pull.batching, &layers, keys);
        let mut batches = Batches::begin(layers, exchange);
        batches.set(planner.batches());
        Ok(Pulling {
            batches,
            planner,
            start_up: pull.start_up,
            pulled_at: None,
            reported: Counts::default(),
        })
    }

    /// Makes progress on the exchange, reports its events to the planner, and pulls a batch whose start-up is over.
    /// `asked` is the key whose weights the caller wants next, if any. Returns the number of arrivals.
    pub fn progress<P: Port>(
        &mut self,
        exchange: &mut Exchange<P>,
        asked: Option<KeyId>,
    ) -> Result<usize, ExchangeError> {
        asked.into_iter().for_each(|key| self.planner.asked(key, Instant::now()));
        let count = exchange.progress()?;
        self.batches.take_news(exchange);
        let counts = self.batches.counts();
        if counts != self.reported {
            let now = Instant::now();
            // The arrivals are reported first, because a batch is due only after the previous batch has arrived.
            (self.reported.there..counts.there).for_each(|_| self.planner.there(now));
            (self.reported.due..counts.due).for_each(|_| self.planner.due(now));
            self.reported = counts;
            self.pulled_at = self.batches.is_due().then(|| now + self.start_up);
        }
        if self.pulled_at.is_some_and(|at| at <= Instant::now()) {
            self.pulled_at = None;
            self.batches.pull(exchange)?;
        }
        if let Some(key) = asked.filter(|&key| exchange.is_ready(key)) {
            self.planner.used(key, Instant::now());
        }
        Ok(count)
    }

    /// Returns the time until the next pull begins. The thread must not sleep longer.
    pub fn sleep_limit(&self) -> Option<Duration> {
        self.pulled_at.map(|at| at.saturating_duration_since(Instant::now()))
    }

    /// Prepares a push. If it is the first push after a round, the batches may change.
    pub fn before_push<P: Port>(&mut self, exchange: &Exchange<P>) {
        if !self.planner.is_round_over() {
            return self.planner.forget_what_was_used();
        }
        // If other keys of the round are still in flight, the events of two rounds cannot be distinguished.
        let is_quiet = exchange.first_under_way().is_none();
        if let Some(batches) = self.planner.end_of_round(is_quiet) {
            self.batches.set(batches);
        }
    }
}
