//! Compressed jobs over the simulated network have the bits of a plain model, for any order of arrival, number
//! of cores and credit. If a frame has wrong contents, the worker's error names the fault.

use std::sync::Arc;

use fabric::sim::{self, Faults, Net, seeds};
use fabric::{Arrival, Port, Posted, RecvWindow};
use half::{bf16, f16};
use pbox_core::frame::{HEADER_BYTES, Kind, write_header};
use pbox_core::{
    ChunkId, Credit, Dtype, Element, JobTerms, Key, KeyId, Layout, LevelTerms, Optimizer, Placement, Round,
    Schedule, Slices, Wire,
};
use sim_tests::model::{CODECS, Model};
use sim_tests::simulated::{SEED, Simulated, Terms};
use sim_tests::trouble::Dice;
use sim_tests::values::{mix, same_bits};
use sim_tests::{SGD, says};
use worker_shim::{Exchange, WeightsMode, Windows};

const CLUSTERS: u64 = 400;
const ROUNDS: u32 = 6;

fn value(rank: u32, round: u32, key: KeyId, element: usize) -> f32 {
    let mixed = mix(u64::from(rank) << 48 | u64::from(round) << 32 | u64::from(key.0) << 16 | element as u64);
    ((mixed % 2001) as f32 - 1000.0) / 370.0
}

fn write<P: Port>(worker: &mut Exchange<P>, dtype: Dtype, key: KeyId, value: impl Fn(usize) -> f32) {
    fn put<E: Element, P: Port>(worker: &mut Exchange<P>, key: KeyId, value: impl Fn(usize) -> f32) {
        let gradient = worker.gradient_mut::<E>(key).unwrap();
        gradient.iter_mut().enumerate().for_each(|(i, place)| *place = E::from_f32(value(i)));
    }
    match dtype {
        Dtype::F32 => put::<f32, P>(worker, key, value),
        Dtype::F16 => put::<f16, P>(worker, key, value),
        Dtype::BF16 => put::<bf16, P>(worker, key, value),
    }
}

fn read<P: Port>(worker: &Exchange<P>, dtype: Dtype, key: KeyId) -> Vec<f32> {
    fn get<E: Element, P: Port>(worker: &Exchange<P>, key: KeyId) -> Vec<f32> {
        worker.weights::<E>(key).unwrap().iter().map(|weight| weight.to_f32()).collect()
    }
    match dtype {
        Dtype::F32 => get::<f32, P>(worker, key),
        Dtype::F16 => get::<f16, P>(worker, key),
        Dtype::BF16 => get::<bf16, P>(worker, key),
    }
}

fn keys(dice: &mut Dice) -> Vec<Key> {
    let dtypes = [Dtype::F32, Dtype::F32, Dtype::F16, Dtype::BF16];
    let key = |key| Key::new(dtypes[dice.below(4) as usize], format!("key {key}"), [dice.from(1..=300)]);
    (0..3).map(key).collect()
}

#[test]
fn the_bits_are_those_of_a_plain_model() {
    for seed in seeds(CLUSTERS) {
        let mut dice = Dice::new(seed);
        let codec = CODECS[seed as usize % CODECS.len()];
        let optimizer = match dice.below(3) {
            0 => Optimizer::Average,
            1 => Optimizer::Nesterov { learning_rate: 0.1, weight_decay: 0.01, momentum: 0.9 },
            _ => Optimizer::Adam {
                learning_rate: 0.1,
                weight_decay: 0.0,
                beta1: 0.9,
                beta2: 0.99,
                epsilon: 1e-6,
            },
        };
        let keys = keys(&mut dice);
        let chunk_bytes = 64 * dice.from(1..=6) as usize;
        let layout = Arc::new(Layout::new(keys.clone(), chunk_bytes).unwrap());
        let mut terms = Terms::new(dice.from(1..=4) as u32, dice.from(1..=3) as usize, optimizer);
        terms.job.level.compression = Some(codec.parse().unwrap());
        terms.job.level.schedule = Schedule::ALL[dice.below(4) as usize];
        terms.job.level.slice_bytes = Some(dice.from(64..=512) as usize);
        let mut credit = || (dice.below(2) == 0).then(|| dice.from(1..=600) as usize);
        (terms.worker_credit, terms.job.level.credit) = (credit(), credit().map(Credit::Bytes));
        let faults = Faults { delay: 0..dice.from(1..=30), reorder: dice.below(2) == 0, ..Faults::NONE };
        let mut job = Simulated::new(Net::new(seed, faults), &layout, terms.clone()).unwrap();
        let compression = codec.parse().unwrap();
        let mut model = Model::new(&keys, chunk_bytes, compression, SEED, terms.job.workers, optimizer);
        for round in 0..ROUNDS {
            if round == 0 && optimizer.keeps_weights() {
                model.broadcast(|key, i| value(0, 0, key, i));
            } else {
                model.advance(optimizer.learning_rate(), |rank, key, i| value(rank, round, key, i));
            }
            for (rank, worker) in job.workers.iter_mut().enumerate() {
                for key in 0..keys.len() {
                    let key = KeyId(((key + rank + round as usize) % keys.len()) as u32);
                    write(worker, keys[key.index()].dtype, key, |i| value(rank as u32, round, key, i));
                    worker.push(key).unwrap();
                }
            }
            job.settle(1000).unwrap_or_else(|error| panic!("seed {seed}, {codec}: {error}"));
            for (rank, worker) in job.workers.iter().enumerate() {
                for (key, id) in keys.iter().zip((0..).map(KeyId)) {
                    let what =
                        format!("seed {seed}, {codec}, {optimizer:?}, round {round}, rank {rank}, {key:?}");
                    same_bits(what, &read(worker, key.dtype, id), &model.weights(id));
                }
            }
        }
        assert!(job.notices.is_empty(), "seed {seed}: {:?}", job.notices);
    }
}

/// A worker of a job with top-k. The test sends the hub's answers itself.
struct Far {
    worker: Exchange<sim::Port>,
    hub: sim::Port,
    link: fabric::LinkId,
    weights: fabric::Spans,
    wire: Wire,
}

impl Far {
    fn new() -> Self {
        let layout = Arc::new(Layout::new(vec![Key::f32("a", [16])], 64).unwrap());
        let compression = "topk:0.25".parse().unwrap();
        let level = LevelTerms { compression: Some(compression), ..LevelTerms::default() };
        let terms = JobTerms { level, ..JobTerms::new(1, Vec::new(), SGD) };
        let wire = Wire::new(Arc::clone(&layout), &terms);
        let placement = Placement::new(&layout, 1);
        let net = Net::new(1, Faults::NONE);
        let (gradients, spans) = Windows::gradients(&wire).unwrap();
        let (window, mut weights) = placement.weights_window(&wire).unwrap();
        let local = || Arc::new(RecvWindow::local(wire.weights_window_bytes()).unwrap());
        let (here, there) = (local(), local());
        let ours = sim::Windows { send: gradients, recv: Arc::clone(&here) };
        let (end, far) = net.link(ours, sim::Windows { send: window, recv: there }, 1);
        let windows = Windows::new(&wire, 0, spans, vec![here], WeightsMode::Shared).unwrap();
        let slices = Slices::new(&layout, &placement, Schedule::default(), 0);
        let mut worker = Exchange::new(net.port(), vec![end], layout, windows, slices);
        worker.begin(Round(0)).unwrap();
        let mut hub = net.port();
        let link = hub.attach(far);
        Far { worker, hub, link, weights: weights.remove(0), wire }
    }

    /// Pushes the only key and answers with the bytes that `write` makes. Returns the worker's result.
    fn answer(&mut self, round: u32, write: impl FnOnce(&mut [u8])) -> Result<(), String> {
        self.worker.push(KeyId(0)).unwrap();
        while self.hub.poll(&mut [Arrival::default()]) == 0 {}
        write(self.weights.elements_mut(0));
        let imm = self.wire.push(ChunkId(0), Round(round)).encode();
        assert_eq!(self.hub.post(self.link, self.wire.weights_span(ChunkId(0)), imm), Posted::Accepted);
        self.hub.flush();
        while !self.worker.is_ready(KeyId(0)) {
            self.worker.progress().map_err(|error| error.to_string())?;
        }
        Ok(())
    }
}

#[test]
fn a_frame_of_a_hub_that_lies_is_an_error() {
    let raw = |wire: &Wire, bytes: &mut [u8]| {
        wire.framing().unwrap().frames(ChunkId(0)).begin_raw(bytes).fill(0);
    };
    let first = |write: &dyn Fn(&Wire, &mut [u8])| {
        let mut far = Far::new();
        let wire = far.wire.clone();
        far.answer(0, |bytes| write(&wire, bytes)).unwrap_err()
    };
    says(
        first(&|_, bytes| write_header(bytes, Kind::Coded, 4)),
        &["the hub broke the protocol", "chunk 0 in round 0", "neither raw nor coded", "expected raw"],
    );
    says(
        first(&|wire, bytes| {
            raw(wire, bytes);
            let frames = *wire.framing().unwrap().frames(ChunkId(0));
            write_header(&mut bytes[frames.coded_bytes..], Kind::Raw, 60);
        }),
        &["60 bytes of payload, where the chunk has 64"],
    );
    let later = |write: &dyn Fn(&mut [u8])| {
        let mut far = Far::new();
        let wire = far.wire.clone();
        far.answer(0, |bytes| raw(&wire, bytes)).unwrap();
        far.answer(1, |bytes| write(bytes)).unwrap_err()
    };
    says(later(&|_| ()), &["chunk 0 in round 1", "neither raw nor coded", "expected coded"]);
    says(later(&|bytes| write_header(bytes, Kind::Coded, 1 << 20)), &["there is room for"]);
    says(
        later(&|bytes| {
            write_header(bytes, Kind::Coded, 12);
            bytes[HEADER_BYTES..][..12].fill(0xff);
        }),
        &["chunk 0 in round 1", "its frame is invalid"],
    );
}
