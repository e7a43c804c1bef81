//! Snapshots of made-up jobs. The value of each element is computed from its place.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use fabric::Slab;
use pbox_core::{
    ChunkId, ExactSum, Key, KeyId, Layout, NormMean, Numbers, Optimizer, Placement, Restored, Round, Share,
    Snapshot, SnapshotPart, Tensor, Tensors,
};
use phub_server::checkpoint::{CheckpointStore, Loaded};

pub const SGD: Optimizer = Optimizer::Sgd { learning_rate: 0.5, weight_decay: 0.0 };
pub const ADAM: Optimizer =
    Optimizer::Adam { learning_rate: 0.001, weight_decay: 0.0, beta1: 0.9, beta2: 0.999, epsilon: 1e-8 };

/// A job that can be saved.
#[derive(Clone, Debug)]
pub struct Job {
    pub keys: Vec<Key>,
    pub optimizer: Optimizer,
    pub ema: Option<f64>,
    pub chunk_bytes: usize,
    pub cores: usize,
    /// One entry for each round.
    pub numbers: Vec<(Round, Numbers)>,
    /// The number of steps of keys that have not made one step per round.
    pub steps: BTreeMap<String, u32>,
    /// The norm of the last round, in a job with `clip_norm_last`. The next round uses it.
    pub last_norm: Option<f32>,
    /// The running mean of the norms of accepted rounds, in a job with `skip_spikes`.
    pub norm_mean: Option<NormMean>,
}

impl Job {
    /// Creates a job on two cores, in chunks of 64 bytes.
    pub fn new(keys: Vec<Key>, optimizer: Optimizer) -> Self {
        let numbers = vec![(Round(0), Numbers::new(optimizer))];
        let (ema, last_norm, norm_mean, steps) = (None, None, None, BTreeMap::new());
        Job { keys, optimizer, ema, chunk_bytes: 64, cores: 2, numbers, steps, last_norm, norm_mean }
    }

    /// Returns the job with these learning rates.
    pub fn with_rates(self, rates: impl IntoIterator<Item = (u32, f32)>) -> Self {
        let of = |(from, rate)| (Round(from), Numbers::new(self.optimizer.with_learning_rate(rate)));
        Job { numbers: rates.into_iter().map(of).collect(), ..self }
    }

    /// Returns the tensors that the job's hub keeps of each key.
    pub fn tensors(&self) -> Tensors {
        Tensors::from(self.optimizer).with_ema(self.ema)
    }

    fn steps_of(&self, key: &Key, round: Round) -> u32 {
        self.steps.get(&key.name).copied().unwrap_or(round.0 - 1)
    }

    /// Creates a job of three keys with a hundred elements or so.
    pub fn small(optimizer: Optimizer) -> Self {
        let keys = vec![Key::f32("fc.weight", [4, 20]), Key::f32("scale", []), Key::f32("fc.bias", [20])];
        Job::new(keys, optimizer)
    }

    /// Returns the state before `round`, in the parts that its cores would give.
    pub fn snapshot(&self, round: Round) -> Snapshot {
        let layout = Arc::new(Layout::new(self.keys.clone(), self.chunk_bytes).unwrap());
        let placement = Placement::new(&layout, self.cores);
        let parts = placement.chunks_by_core().into_iter();
        let parts = parts.map(|chunks| self.part(&layout, chunks, round)).collect();
        Snapshot::new(layout, self.tensors(), round, self.numbers.clone(), parts).unwrap()
    }

    fn part(&self, layout: &Layout, chunks: Vec<ChunkId>, round: Round) -> SnapshotPart {
        let mut values = Vec::new();
        for &id in &chunks {
            let chunk = layout.chunk(id);
            let first = (chunk.span.offset - layout.key_span(chunk.key).offset) / 4;
            for tensor in self.tensors().all() {
                let elements = first..first + chunk.span.bytes / 4;
                values.extend(elements.map(|element| value(round, chunk.key, tensor, element)));
            }
        }
        let mut slab = Slab::zeroed("test", values.len()).unwrap();
        slab.as_mut_slice().copy_from_slice(&values);
        let of = |&id: &ChunkId| self.steps_of(&self.keys[layout.chunk(id).key.index()], round);
        // In these snapshots, the core of the first chunk has the whole norm.
        let norm = |norm: f32| if chunks.contains(&ChunkId(0)) { f64::from(norm) } else { 0.0 };
        let squares = self.last_norm.map(norm).map(|norm| {
            let mut sum = ExactSum::default();
            sum.add(norm * norm);
            sum
        });
        let (steps, norm_mean) = (chunks.iter().map(of).collect(), self.norm_mean);
        SnapshotPart { steps, squares, norm_mean, chunks, values: slab }
    }

    /// Loads the job's checkpoint, with a warning if it is not the newest one.
    pub fn loaded(&self, store: &CheckpointStore, name: &str) -> Option<Loaded> {
        store.load(name, &self.keys, &self.tensors()).unwrap_or_else(|error| panic!("{error}"))
    }

    /// Loads the job's checkpoint.
    pub fn load(&self, store: &CheckpointStore, name: &str) -> Option<Restored> {
        self.loaded(store, name).map(|loaded| loaded.restored)
    }

    /// Returns why the job's checkpoint cannot be loaded.
    #[track_caller]
    pub fn refusal(&self, store: &CheckpointStore, name: &str) -> String {
        store.load(name, &self.keys, &self.tensors()).expect_err("it must be refused").to_string()
    }

    /// Returns the bytes of the file with its snapshot.
    pub fn bytes(&self) -> Vec<u8> {
        let dir = tempfile::tempdir().unwrap();
        let store = CheckpointStore::open(dir.path()).unwrap();
        store.save("job", Share::WHOLE, &self.snapshot(Round(5))).unwrap();
        std::fs::read(store.path("job").unwrap()).unwrap()
    }

    /// Asserts that `restored` is bit for bit the state before `round`.
    #[track_caller]
    pub fn check(&self, restored: &Restored, round: Round) {
        assert_eq!(restored.round(), round);
        assert_eq!(restored.last_squares().map(|squares| squares.norm()), self.last_norm);
        assert_eq!(restored.norm_mean(), self.norm_mean.unwrap_or_default());
        let numbers = restored.numbers();
        for (from, expected) in &self.numbers {
            assert_eq!(numbers.at(*from), expected, "from round {}", from.0);
        }
        for (key, id) in self.keys.iter().zip((0..).map(KeyId)) {
            let steps = restored.steps(id).unwrap_or(round.0 - 1);
            assert_eq!(steps, self.steps_of(key, round), "{}", key.name);
        }
        for (key, id) in self.keys.iter().zip(0..).map(|(key, id)| (key, KeyId(id))) {
            let elements = key.elements().unwrap() as usize;
            for tensor in self.tensors().all() {
                let seen = match tensor {
                    Tensor::Weights => restored.weights(id, 0..elements),
                    Tensor::State(which) => restored.state(id, which, 0..elements),
                };
                let expected = (0..elements).map(|element| value(round, id, tensor, element).to_bits());
                assert!(seen.iter().map(|value| value.to_bits()).eq(expected), "{} {tensor:?}", key.name);
            }
        }
    }
}

/// Returns a made-up finite value, which differs by place and by round.
pub fn value(round: Round, key: KeyId, tensor: Tensor, element: usize) -> f32 {
    let place = [round.0, key.0, tensor.place() as u32, element as u32];
    let bits = place
        .iter()
        .fold(0x9e37_79b9, |bits: u32, part| (bits ^ part).wrapping_mul(0x85eb_ca6b).rotate_left(13));
    f32::from_bits(bits & !0x0080_0000) // avoids the exponent of NaN and infinity
}

/// Returns the files of a directory, except the lock, sorted.
pub fn files(dir: &Path) -> Vec<String> {
    let names =
        std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.filter(|name| name != ".phub-lock").collect();
    names.sort();
    names
}

/// Asserts that an error contains all of these texts.
#[track_caller]
pub fn says(error: impl std::fmt::Display, words: &[&str]) {
    let error = error.to_string();
    for word in words {
        assert!(error.contains(word), "expected {word:?} in the error:\n  {error}");
    }
}
