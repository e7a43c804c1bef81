//! A whole job on threads. Every worker pushes gradients that change every round, in an order of its own.
//! Every worker compares every weight of every round with the reference.

use std::sync::Arc;
use std::time::Duration;

use fabric::any::Transport;
use half::{bf16, f16};
use pbox_core::Credit;
use pbox_core::{
    Compression, Dtype, Element, Groups, Key, KeyId, Multipliers, Numbers, Optimizer, Schedule, Tensors,
};
use worker_shim::{Pull, Pushed, Session, SessionConfig, SessionError, WeightsMode};

use super::model::Model;
use super::state::fetch_all;
use super::values::{self, Reference, mix, same_bits};
use super::{PATIENT_S, SGD, config_at, on_threads, small_model};

/// The settings of a training.
#[derive(Clone)]
pub struct Training {
    pub job: String,
    pub keys: Vec<Key>,
    pub optimizer: Optimizer,
    pub clip_norm: Option<f32>,
    pub clip_norm_last: Option<f32>,
    /// The rounds in which rank 1 pushes a value that is not finite. These rounds are skipped.
    pub skipped: Vec<u32>,
    pub skip_spikes: Option<f32>,
    /// The rounds in which rank 1 pushes a [large value](values::SPIKE). With `skip_spikes`, these rounds are
    /// skipped from the eleventh round on.
    pub spikes: Vec<u32>,
    pub maximize: bool,
    /// The decay of averages. Rank 0 compares the averages after the last round.
    pub ema: Option<f64>,
    pub compression: Option<Compression>,
    pub workers: u32,
    /// The number of workers of each machine, if each machine sums first. Empty if all workers push to the
    /// same hubs.
    pub machines: Vec<u32>,
    pub chunk_bytes: usize,
    pub rounds: u32,
    pub seed: u64,
    pub weights: WeightsMode,
    pub schedule: Schedule,
    pub slice_bytes: Option<usize>,
    pub credit: Option<Credit>,
    pub pull: Option<Pull>,
    /// Whether gradients are sent before their pushes. Then a third of the keys have another gradient at the
    /// push.
    pub ahead: bool,
    /// The transport of each rank.
    pub transport: fn(u32) -> Option<Transport>,
    /// The learning rates, each from a round on.
    pub rates: Vec<(u32, f32)>,
    /// The optimizer's hyperparameters, each from a round on, with the multipliers of each key if they change.
    pub numbers: Vec<(u32, Optimizer, Option<Vec<Multipliers>>)>,
    /// The keys that have other hyperparameters, if `numbers` change.
    pub groups: Option<Arc<Groups>>,
}

impl Training {
    /// Creates a training of three workers and six rounds, with chunks of the default size.
    pub fn new(job: impl Into<String>, keys: Vec<Key>, optimizer: Optimizer) -> Self {
        Training {
            job: job.into(),
            keys,
            optimizer,
            clip_norm: None,
            clip_norm_last: None,
            skipped: Vec::new(),
            skip_spikes: None,
            spikes: Vec::new(),
            maximize: false,
            ema: None,
            compression: None,
            workers: 3,
            machines: Vec::new(),
            chunk_bytes: pbox_core::DEFAULT_CHUNK_BYTES,
            rounds: 6,
            seed: 1,
            weights: WeightsMode::Shared,
            schedule: Schedule::default(),
            slice_bytes: None,
            credit: None,
            pull: None,
            ahead: false,
            transport: |_| None,
            rates: Vec::new(),
            numbers: Vec::new(),
            groups: None,
        }
    }

    /// Works like [`new`](Self::new), for the small model with plain SGD in chunks of 64 bytes.
    pub fn small(job: &str) -> Self {
        Training { chunk_bytes: 64, ..Training::new(job, small_model(), SGD) }
    }

    /// Works like [`new`](Self::new), for keys of all types, compressed by `codec`.
    pub fn compressed(job: &str, codec: &str) -> Self {
        let keys = vec![
            Key::f32("a", [3, 400]),
            Key::new(Dtype::BF16, "b", [300]),
            Key::f32("c", [1]),
            Key::new(Dtype::F16, "d", [70]),
        ];
        let optimizer = Optimizer::Nesterov { learning_rate: 0.1, weight_decay: 1e-4, momentum: 0.9 };
        let compression = Some(codec.parse().unwrap());
        let job = format!("{job}-{}", codec.replace(':', "-"));
        Training { chunk_bytes: 256, compression, ..Training::new(job, keys, optimizer) }
    }

    pub fn config(&self, hub: &str, rank: u32) -> SessionConfig {
        let mut config = config_at(hub, &self.job, rank, self.workers);
        config.terms.keys = self.keys.clone();
        (config.terms.optimizer, config.terms.clip_norm) = (self.optimizer, self.clip_norm);
        config.terms.clip_norm_last = self.clip_norm_last;
        config.terms.skip_nonfinite = !self.skipped.is_empty();
        config.terms.skip_spikes = self.skip_spikes;
        config.terms.maximize = self.maximize;
        config.terms.ema = self.ema;
        config.terms.chunk_bytes = self.chunk_bytes;
        (config.terms.level.compression, config.terms.seed) = (self.compression, self.seed);
        config.weights = self.weights;
        (config.terms.level.schedule, config.terms.level.slice_bytes) = (self.schedule, self.slice_bytes);
        config.terms.level.credit = self.credit;
        config.terms.answers_ahead = self.ahead;
        config.pull = self.pull.clone();
        config.transport = (self.transport)(rank);
        config.terms.compare_every = 2; // the hub compares, too
        config
    }

    /// Whether a round changes no weight.
    fn is_left_out(&self, round: u32) -> bool {
        let is_spike = self.skip_spikes.is_some() && round >= 10 && self.spikes.contains(&round);
        is_spike || self.skipped.contains(&round)
    }

    pub fn fill_gradient(&self, rank: u32, round: u32, key: KeyId, gradient: &mut [f32]) {
        values::fill_gradient(self.seed, rank, round, key, gradient);
        if (rank, key.0) == (1, 0) && self.skipped.contains(&round) {
            gradient[0] = f32::INFINITY;
        }
        if (rank, key.0) == (1, 0) && self.spikes.contains(&round) {
            gradient[0] = values::SPIKE;
        }
    }

    /// Returns the numbers of a round.
    fn numbers(&self, round: u32) -> Numbers {
        let mut numbers = Numbers::new(self.optimizer);
        for round in 0..=round {
            for (_, optimizer, multipliers) in self.numbers.iter().filter(|(from, ..)| *from == round) {
                numbers = numbers.then(self.changed(*optimizer, multipliers));
            }
            for &(_, rate) in self.rates.iter().filter(|&&(from, _)| from == round) {
                numbers = numbers.with_learning_rate(rate);
            }
        }
        numbers
    }

    /// Returns the numbers that the job changes to.
    fn changed(&self, optimizer: Optimizer, multipliers: &Option<Vec<Multipliers>>) -> Numbers {
        let multipliers = multipliers.as_deref().map(Into::into);
        Numbers { optimizer, multipliers, groups: self.groups.clone() }
    }

    /// Returns the weights after the broadcast and after each round.
    fn expected(&self) -> Vec<Vec<Vec<f32>>> {
        if let Some(compression) = self.compression {
            return self.expected_of(compression);
        }
        let mut reference = self.reference();
        let mut expected = vec![reference.weights.clone()];
        for round in 0..self.rounds {
            match self.is_left_out(round) {
                true => reference.lose(1),
                false => reference.advance_by(&self.numbers(round)),
            }
            expected.push(reference.weights.clone());
        }
        expected
    }

    fn expected_of(&self, compression: Compression) -> Vec<Vec<Vec<f32>>> {
        let mut model = self.model(compression);
        let mut expected = vec![model.all_weights()];
        for round in 0..self.rounds {
            self.advance(&mut model, round);
            expected.push(model.all_weights());
        }
        expected
    }

    /// Returns the model of the job after its broadcast.
    pub fn model(&self, compression: Compression) -> Model {
        let Training { keys, chunk_bytes, seed, workers, optimizer, .. } = self;
        let mut model = Model::new(keys, *chunk_bytes, compression, *seed, *workers, *optimizer);
        if optimizer.keeps_weights() {
            model.broadcast(|key, i| values::weight(*seed, key, i));
        }
        (model.clip_norm_last, model.skip_spikes) = (self.clip_norm_last, self.skip_spikes);
        (model.clip_norm, model.skips) = (self.clip_norm, !self.skipped.is_empty());
        model
    }

    /// Makes one round of the job.
    pub fn advance(&self, model: &mut Model, round: u32) {
        let is_skipped = self.skipped.contains(&round);
        model.advance_by(&self.numbers(round), |rank, key, i| match (rank, key.0, i) {
            (1, 0, 0) if is_skipped => f32::INFINITY,
            (1, 0, 0) if self.spikes.contains(&round) => values::SPIKE,
            _ => values::gradient(self.seed, rank, round, key, i),
        });
    }

    fn reference(&self) -> Reference {
        let mut reference = Reference::new(self.seed, self.workers, self.optimizer, &self.keys);
        reference.maximize = self.maximize;
        reference.ema = self.ema;
        reference.clip_norm_last = self.clip_norm_last;
        reference.spikes = self.spikes.clone();
        let reference = reference.clipped(self.clip_norm);
        match self.machines[..] {
            [] => reference,
            _ => reference.on_machines(self.machines.clone()),
        }
    }

    /// Returns the norms that workers receive, by round.
    fn norms(&self) -> Vec<f32> {
        if let Some(compression) = self.compression {
            let mut model = self.model(compression);
            let norm = |round| {
                self.advance(&mut model, round);
                model.norm.expect("a job with norms")
            };
            return (0..self.rounds).map(norm).collect();
        }
        let mut reference = self.reference();
        let norm = |round| match self.skipped.contains(&round) {
            true => {
                reference.lose(1);
                f32::INFINITY
            }
            false if self.is_left_out(round) => reference.skip(),
            false => {
                reference.advance_by(&self.numbers(round));
                reference.norm
            }
        };
        (0..self.rounds).map(norm).collect()
    }

    /// Returns the tensors that the hub keeps of each key.
    pub fn tensors(&self) -> Tensors {
        Tensors::from(self.optimizer).with_ema(self.ema)
    }

    /// Compares the averages of the hubs at this address with the expected averages after `rounds` rounds.
    pub fn check_averages(&self, hubs: &str, rounds: u32) {
        let mut reference = self.reference();
        for round in 0..rounds {
            match self.is_left_out(round) {
                true => reference.lose(1),
                false => reference.advance_by(&self.numbers(round)),
            }
        }
        let (tensors, averages) = (self.tensors(), &reference.averages);
        let hubs: Vec<&str> = hubs.split(',').collect();
        let saved = fetch_all(&hubs, &self.job, &self.keys, &tensors, Duration::from_secs(PATIENT_S));
        let seen = saved.unwrap().tensor(&self.keys, tensors.saved_per_element() - 1);
        for (key, (seen, expected)) in seen.iter().zip(averages).enumerate() {
            same_bits(format!("job {}, average of key {key}", self.job), seen, expected);
        }
    }

    /// Returns the weights after `rounds` rounds.
    pub fn reference_after(&self, rounds: u32) -> Vec<Vec<f32>> {
        let mut reference = self.reference();
        for round in 0..rounds {
            match self.is_left_out(round) {
                true => reference.lose(1),
                false => reference.advance_by(&self.numbers(round)),
            }
        }
        reference.weights
    }

    /// Runs the job on the hub at this address. Returns the bits of the last weights.
    pub fn run(&self, hub: &str) -> Vec<Vec<u32>> {
        self.run_at(|rank| self.config(hub, rank))
    }

    /// Runs the job with settings for each worker.
    pub fn run_at(&self, config: impl Fn(u32) -> SessionConfig + Sync) -> Vec<Vec<u32>> {
        let expected = self.expected();
        let mut seen = on_threads(self.workers, |rank| self.work(config(rank), rank, &expected));
        let first = seen.swap_remove(0);
        assert!(seen.iter().all(|other| *other == first), "{}: all workers have the same weights", self.job);
        first
    }

    fn work(&self, config: SessionConfig, rank: u32, expected: &[Vec<Vec<f32>>]) -> Vec<Vec<u32>> {
        let what = |round: &str, key: KeyId| {
            format!("job {}, rank {rank}, {round}, key {:?}", self.job, self.keys[key.index()].name)
        };
        let norms = config.terms.waits_for_all().then(|| self.norms());
        let hubs = config.hub.clone();
        let mut session = Session::join(config).unwrap();
        if self.optimizer.keeps_weights() {
            self.broadcast(&mut session, rank).unwrap();
            for key in session.keys() {
                same_bits(what("broadcast", key), &self.read(&session, key), &expected[0][key.index()]);
            }
        }
        for round in 0..self.rounds {
            if rank == 0 {
                self.change(&mut session, round).unwrap();
            }
            if self.ahead {
                self.send_ahead(&mut session, rank, round);
            }
            for key in self.shuffled(rank, round) {
                if !self.ahead || self.is_rewritten(rank, round, key) {
                    self.write(&mut session, key, |gradient| self.fill_gradient(rank, round, key, gradient));
                }
                let is_other = self.ahead && self.is_rewritten(rank, round, key);
                session.push_as(if is_other { Pushed::Rewritten } else { Pushed::Gradient }, [key]).unwrap();
            }
            // Waits for some keys one by one, in any order, then for the rest.
            for key in self.shuffled(rank, round + 1).into_iter().step_by(2) {
                session.wait(key).unwrap();
            }
            session.wait_all().unwrap();
            let norm = norms.as_ref().map(|norms| norms[round as usize].to_bits());
            assert_eq!(session.norm().map(|(_, norm)| norm.to_bits()), norm, "{}, round {round}", self.job);
            let last = session.norm().map(|(round, _)| round.next());
            assert!(last.is_none_or(|next| next == session.next_round()), "{last:?} is another round's");
            let skipped = (0..=round).filter(|&round| self.is_left_out(round)).count();
            assert_eq!(session.skipped(), skipped as u64, "{}, round {round}", self.job);
            for key in session.keys() {
                let expected = &expected[round as usize + 1][key.index()];
                same_bits(what(&format!("round {round}"), key), &self.read(&session, key), expected);
            }
        }
        let last = session.keys().map(|key| values::bits(&self.read(&session, key))).collect();
        if rank == 0 && self.ema.is_some() {
            self.check_averages(&hubs, self.rounds);
        }
        session.leave().unwrap();
        last
    }

    /// Sends the gradients of a round before their pushes. Keys that are written again before the push first
    /// send another gradient.
    fn send_ahead(&self, session: &mut Session, rank: u32, round: u32) {
        let copies = (self.transport)(rank).is_some_and(|transport| transport != Transport::Shm);
        assert_eq!(session.leaves_ahead(KeyId(0)), copies, "the first key of rank {rank}");
        for key in self.shuffled(rank, round + 2) {
            let sent = if self.is_rewritten(rank, round, key) { round + 1 } else { round };
            self.write(session, key, |gradient| {
                values::fill_gradient(self.seed, rank, sent, key, gradient);
            });
            session.send_ahead([key]).unwrap();
        }
    }

    fn is_rewritten(&self, rank: u32, round: u32, key: KeyId) -> bool {
        (rank + round + key.0).is_multiple_of(3)
    }

    /// Sets the numbers that apply from a round on.
    fn change(&self, session: &mut Session, round: u32) -> Result<(), SessionError> {
        for (_, optimizer, multipliers) in self.numbers.iter().filter(|(from, ..)| *from == round) {
            session.set_numbers(self.changed(*optimizer, multipliers), &[])?;
        }
        self.rates
            .iter()
            .filter(|&&(from, _)| from == round)
            .try_for_each(|&(_, rate)| session.set_learning_rate(rate))
    }

    /// Broadcasts the first weights.
    pub fn broadcast(&self, session: &mut Session, rank: u32) -> Result<(), SessionError> {
        if self.keys.iter().all(|key| key.dtype == Dtype::F32) {
            let fill = |key, weights: &mut [f32]| values::fill_weights(self.seed, key, weights);
            return session.broadcast_weights(fill);
        }
        for key in session.keys().filter(|_| rank == 0) {
            self.write(session, key, |weights| values::fill_weights(self.seed, key, weights));
        }
        session.broadcast_written()
    }

    /// Writes the gradient of a key in the key's own type. `fill` writes the gradient in f32.
    pub fn write(&self, session: &mut Session, key: KeyId, fill: impl FnOnce(&mut [f32])) {
        fn put<E: Element>(session: &mut Session, key: KeyId, values: &[f32]) {
            let gradient = session.gradient_mut::<E>(key).unwrap();
            gradient.iter_mut().zip(values).for_each(|(place, &value)| *place = E::from_f32(value));
        }
        let Key { dtype, .. } = self.keys[key.index()];
        let mut values = vec![0.0; self.keys[key.index()].elements().unwrap() as usize];
        fill(&mut values);
        match dtype {
            Dtype::F32 => put::<f32>(session, key, &values),
            Dtype::F16 => put::<f16>(session, key, &values),
            Dtype::BF16 => put::<bf16>(session, key, &values),
        }
    }

    /// Returns a key's weights, in f32.
    pub fn read(&self, session: &Session, key: KeyId) -> Vec<f32> {
        fn get<E: Element>(session: &Session, key: KeyId) -> Vec<f32> {
            session.weights::<E>(key).unwrap().iter().map(|weight| weight.to_f32()).collect()
        }
        match self.keys[key.index()].dtype {
            Dtype::F32 => get::<f32>(session, key),
            Dtype::F16 => get::<f16>(session, key),
            Dtype::BF16 => get::<bf16>(session, key),
        }
    }

    /// Returns all keys in an order that differs by worker and round.
    fn shuffled(&self, rank: u32, round: u32) -> Vec<KeyId> {
        let mut keys: Vec<KeyId> = (0..self.keys.len() as u32).map(KeyId).collect();
        keys.sort_by_key(|key| {
            mix(self.seed ^ mix(u64::from(rank) << 40 | u64::from(round) << 20 | u64::from(key.0)))
        });
        keys
    }
}
