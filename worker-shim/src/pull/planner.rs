//! Plans batches from the measured times of pulls and of the caller's computing. A profile gives a plan. When
//! the plan's prediction fails, a new profile is made.
//!
//! Owned by the session, which reports each event with its time. Reads no clock, and does not depend on links
//! or bytes.
//!
//! ```text
//!   round:  due(batch) there(batch) ... asked(key) used(key) ...     end_of_round -> new batches?
//!
//!   PROFILE_ROUNDS with one layer a batch, then as many with one batch -> profile -> batches, prediction
//!            ^                                                                            |
//!            +---- off by DRIFT for some rounds in a row ---------------------------------+
//! ```
//!
//! The *pull* of a batch is the time from `due` to `there`. One pull of all layers takes less time than the separate
//! pulls of the layers together. The *start-up* is this difference, divided by the number of pulls that are saved. So
//! the start-up is known even if all layers are alike. The *forward* time of a layer is the time from the receipt of
//! the layer's weights by the caller to its request for the next layer's weights. The last layer's forward time counts
//! as 0: it hides no pull, so no plan depends on it.

use std::fmt;
use std::ops::Range;
use std::time::Instant;

use pbox_core::KeyId;

use super::batch::{Batching, LayerCost, Profile, Timeline};

/// The number of rounds of a profile that pull each layer by itself. As many rounds with one pull for all layers
/// follow. Of each kind of round the median counts, so that one round of the kind may be disturbed.
pub const PROFILE_ROUNDS: u32 = 3;
/// The fraction by which a round's time may differ from its prediction.
pub const DRIFT: f64 = 0.2;
/// The number of rounds in a row that must differ from the prediction before a new profile. The number doubles after each new
/// profile. A profile costs rounds that pull layer by layer, and does not help if times cannot be predicted.
pub const DRIFT_ROUNDS: u32 = 4;
const MOST_DRIFT_ROUNDS: u32 = 1024;

/// A plan, and the times of the rounds that used it.
#[derive(Clone, Debug, PartialEq)]
pub struct PullPlan {
    /// The rule that chooses the batches.
    pub batching: Batching,
    /// The measured times, in seconds; `None` if the batches do not depend on times.
    pub profile: Option<Profile>,
    /// The batches: ranges of layers.
    pub batches: Vec<Range<usize>>,
    /// The predicted time from the first pull to the beginning of the last layer, in seconds.
    pub predicted_s: Option<f64>,
    /// The measured time, as the mean of the rounds that used the plan. `None` before the first such round.
    pub measured_s: Option<f64>,
    /// The number of rounds that used the plan.
    pub rounds: u32,
    /// The number of profiles until now.
    pub profiles: u32,
}

impl fmt::Display for PullPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let layers: Vec<String> = self.batches.iter().map(|batch| batch.len().to_string()).collect();
        write!(f, "{}, {} batches of {} layers", self.batching, layers.len(), layers.join(", "))?;
        if let (Some(profile), Some(predicted)) = (&self.profile, self.predicted_s) {
            let [start_up, predicted] = [profile.start_up, predicted].map(|seconds| seconds * 1e3);
            write!(
                f,
                "; start-up of a pull {start_up:.2} ms; predicted time to the last layer {predicted:.2} ms"
            )?;
        }
        self.measured_s.map_or(Ok(()), |measured| {
            write!(f, "; measured time to the last layer {:.2} ms", measured * 1e3)
        })
    }
}

/// The events of a round.
#[derive(Debug, Default)]
struct Events {
    due: Vec<Instant>,
    there: Vec<Instant>,
    /// The time at which the caller asked for each layer, by layer.
    asked: Vec<Option<Instant>>,
    used: Vec<Option<Instant>>,
    /// Whether the caller has used each key, by key.
    has_used: Vec<bool>,
}

/// The times of a round, in seconds.
#[derive(Debug)]
struct Lap {
    pulls: Vec<f64>,
    forward: Vec<f64>,
    to_last_layer: f64,
}

/// The planner of a worker's pulls.
#[derive(Debug)]
pub(crate) struct Planner {
    batching: Batching,
    layer_of: Vec<usize>,
    layers: usize,
    batches: Vec<Range<usize>>,
    events: Events,
    /// The rounds of the profile that is being made.
    laps: Vec<Lap>,
    is_profiling: bool,
    /// The last plan. It stays while a new profile is made.
    plan: Option<PullPlan>,
    profiles: u32,
    /// The number of rounds in a row that differed from the prediction. If it reaches `patience`, a new
    /// profile is made.
    off: u32,
    patience: u32,
}

impl Planner {
    /// Creates a planner for these layers, which together contain each of `keys` keys once. If the batches
    /// depend on a profile, each layer is a batch at first.
    pub fn new(batching: Batching, layers: &[Vec<KeyId>], keys: usize) -> Self {
        let mut layer_of = vec![0; keys];
        for (number, layer) in layers.iter().enumerate() {
            layer.iter().for_each(|key| layer_of[key.index()] = number);
        }
        let layers = layers.len();
        let mut planner = Planner {
            batching,
            layer_of,
            layers,
            batches: each(layers),
            events: Events::new(layers, keys),
            laps: Vec::new(),
            is_profiling: batching.needs_profile(),
            plan: None,
            profiles: 0,
            off: 0,
            patience: DRIFT_ROUNDS,
        };
        if !batching.needs_profile() {
            planner.choose(None, Profile { start_up: 0.0, layers: vec![LayerCost::default(); layers] });
        }
        planner
    }

    /// Returns the batches of the first round.
    pub fn batches(&self) -> &[Range<usize>] {
        &self.batches
    }

    /// Notes that the next batch can be pulled.
    pub fn due(&mut self, now: Instant) {
        self.events.due.push(now);
    }

    /// Notes that all keys of a batch have arrived.
    pub fn there(&mut self, now: Instant) {
        self.events.there.push(now);
    }

    /// Notes that the caller wants a key's weights.
    pub fn asked(&mut self, key: KeyId, now: Instant) {
        if !self.events.has_used[key.index()] {
            self.events.asked[self.layer_of[key.index()]].get_or_insert(now);
        }
    }

    /// Notes that the caller has received a key's weights.
    pub fn used(&mut self, key: KeyId, now: Instant) {
        if !std::mem::replace(&mut self.events.has_used[key.index()], true) {
            self.events.used[self.layer_of[key.index()]] = Some(now);
        }
    }

    /// Prepares for the push of a key. If no batch of the current round was due yet, all uses of weights so far belong
    /// to the previous round, and are dropped.
    pub fn forget_what_was_used(&mut self) {
        if self.events.due.is_empty() && self.events.has_used.contains(&true) {
            self.events = Events::new(self.layers, self.layer_of.len());
        }
    }

    /// Whether all batches of the round have arrived.
    pub fn is_round_over(&self) -> bool {
        self.events.there.len() >= self.batches.len()
    }

    /// Ends the round. Returns the batches of the next round if they change. A round is not evaluated if the caller did not
    /// ask for one of the layers. `is_quiet` is false if the round overlaps the next round. An overlapping round is not
    /// evaluated either.
    pub fn end_of_round(&mut self, is_quiet: bool) -> Option<&[Range<usize>]> {
        let events = std::mem::replace(&mut self.events, Events::new(self.layers, self.layer_of.len()));
        let lap = events.lap(self.batches.len()).filter(|_| is_quiet)?;
        let Some(plan) = self.plan.as_mut().filter(|_| !self.is_profiling) else {
            self.laps.push(lap);
            return self.go_on_with_profile();
        };
        let mean = plan.measured_s.unwrap_or(0.0);
        plan.rounds += 1;
        plan.measured_s = Some(mean + (lap.to_last_layer - mean) / f64::from(plan.rounds));
        let is_off =
            plan.predicted_s.is_some_and(|predicted| (lap.to_last_layer / predicted - 1.0).abs() > DRIFT);
        self.off = if is_off { self.off + 1 } else { 0 };
        if self.off < self.patience {
            return None;
        }
        (self.off, self.patience) = (0, MOST_DRIFT_ROUNDS.min(2 * self.patience));
        self.is_profiling = true;
        self.batches = each(self.layers);
        Some(&self.batches)
    }

    /// Returns the last plan, with its prediction and the measured time.
    pub fn plan(&self) -> Option<&PullPlan> {
        self.plan.as_ref()
    }

    /// Continues the profile after one of its rounds. Returns the batches of the next round if they change.
    fn go_on_with_profile(&mut self) -> Option<&[Range<usize>]> {
        let rounds = PROFILE_ROUNDS as usize;
        if self.laps.len() == rounds {
            self.batches = std::iter::once(0..self.layers).collect();
            return Some(&self.batches);
        }
        (self.laps.len() == 2 * rounds).then(|| self.make_plan())
    }

    fn make_plan(&mut self) -> &[Range<usize>] {
        let laps = std::mem::take(&mut self.laps);
        let (by_layer, at_once) = laps.split_at(PROFILE_ROUNDS as usize);
        let pull = |of: &[Lap], batch: usize| median(of.iter().map(|lap| lap.pulls[batch]).collect());
        let pulls: Vec<f64> = (0..self.layers).map(|layer| pull(by_layer, layer)).collect();
        let start_up = start_up(&pulls, pull(at_once, 0));
        let cost = |(layer, pull): (usize, &f64)| LayerCost {
            transfer: f64::max(0.0, pull - start_up),
            forward: median(laps.iter().map(|lap| lap.forward[layer]).collect()),
        };
        let profile = Profile { start_up, layers: pulls.iter().enumerate().map(cost).collect() };
        self.profiles += 1;
        let timeline = Timeline::new(&profile, &self.batching.batches(&profile));
        self.choose(Some(timeline.last_begun), profile);
        &self.batches
    }

    fn choose(&mut self, predicted_s: Option<f64>, profile: Profile) {
        self.batches = self.batching.batches(&profile);
        self.is_profiling = false;
        self.plan = Some(PullPlan {
            batching: self.batching,
            profile: predicted_s.map(|_| profile),
            batches: self.batches.clone(),
            predicted_s,
            measured_s: None,
            rounds: 0,
            profiles: self.profiles,
        });
    }
}

impl Events {
    fn new(layers: usize, keys: usize) -> Self {
        let (asked, used) = (vec![None; layers], vec![None; layers]);
        Events { asked, used, has_used: vec![false; keys], ..Events::default() }
    }

    /// Returns the times of the round. Returns `None` if an event is missing.
    fn lap(&self, batches: usize) -> Option<Lap> {
        if self.due.len() != batches || self.there.len() != batches {
            return None;
        }
        let used: Vec<Instant> = self.used.iter().copied().collect::<Option<_>>()?;
        let asked: Vec<Instant> = self.asked.iter().copied().collect::<Option<_>>()?;
        let seconds = |from: Instant, to: Instant| to.saturating_duration_since(from).as_secs_f64();
        let next = asked.iter().skip(1).chain(used.last());
        Some(Lap {
            pulls: self.due.iter().zip(&self.there).map(|(&due, &there)| seconds(due, there)).collect(),
            forward: used.iter().zip(next).map(|(&used, &next)| seconds(used, next)).collect(),
            to_last_layer: seconds(*self.due.first()?, *used.last()?),
        })
    }
}

fn each(layers: usize) -> Vec<Range<usize>> {
    (0..layers).map(|layer| layer..layer + 1).collect()
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Returns the start-up of a pull: the part of its time that does not depend on its size. `pulls` are the pulls of each
/// layer, `at_once` is the pull of all layers. The result is at most the time of the fastest pull, and 0 if there is
/// only one layer.
fn start_up(pulls: &[f64], at_once: f64) -> f64 {
    let saved = (pulls.len() - 1) as f64;
    let each = (pulls.iter().sum::<f64>() - at_once) / saved.max(1.0);
    each.clamp(0.0, pulls.iter().copied().fold(f64::INFINITY, f64::min))
}

#[cfg(test)]
mod tests;
