//! The demo's task is to decide to which of two spirals a point belongs. A small network learns the task
//! within seconds, and draws its answer as a picture.

use std::f32::consts::{PI, TAU};
use std::fmt::Write as _;

use training::{Network, Random, Samples, TrainingPlan, Weights};

/// The number of samples of both spirals together.
const SAMPLES: usize = 2000;
const TEST_EVERY: usize = 5;
/// The number of samples of one worker in a round.
const BATCH: usize = 100;
const TURNS: f32 = 1.75;
/// The largest distance of a point from its spiral, in units of half the picture's width.
const NOISE: f32 = 0.02;
const WIDTHS: [usize; 4] = [2, 96, 96, 2];
const SEED: u64 = 1;

const COLUMNS: usize = 64;
const ROWS: usize = 26;

/// The network, its training samples, and its test samples.
#[derive(Debug)]
pub struct Task {
    pub network: Network,
    pub plan: TrainingPlan,
    pub train: Samples,
    test: Samples,
}

impl Task {
    /// Creates the task, and divides the samples among the workers.
    ///
    /// # Errors
    /// Returns an error if there are more workers than the training plan allows.
    pub fn new(workers: u32) -> anyhow::Result<Self> {
        let (train, test) = spirals().split(SEED, TEST_EVERY);
        let batch = BATCH.min(train.len() / workers as usize);
        let plan = TrainingPlan::new(workers, 1, batch * workers as usize, SEED, train.len())?;
        Ok(Task { network: Network::new(WIDTHS), plan, train, test })
    }

    /// Returns the part of the test samples that the network classifies correctly.
    pub fn accuracy(&self, weights: &Weights) -> f64 {
        let classes = self.network.classify(&self.test, |key| weights.key(key));
        let right = classes.iter().zip(self.test.labels()).filter(|(seen, label)| seen == label).count();
        right as f64 / self.test.len() as f64
    }

    /// Draws the spiral that the network chooses for each point of the picture.
    pub fn picture(&self, weights: &Weights) -> String {
        let place = |index: usize, of: usize| (2 * index + 1) as f32 / of as f32 - 1.0;
        let places = (0..ROWS).flat_map(|row| (0..COLUMNS).map(move |column| (row, column)));
        let inputs = places.flat_map(|(row, column)| [place(column, COLUMNS), -place(row, ROWS)]).collect();
        let grid = Samples::new(2, inputs, vec![0; ROWS * COLUMNS]);
        let classes = self.network.classify(&grid, |key| weights.key(key));
        classes.chunks(COLUMNS).fold(String::new(), |mut text, row| {
            let drawn: String = row.iter().map(|&class| if class == 0 { '.' } else { '#' }).collect();
            let _ = writeln!(text, "  {drawn}");
            text
        })
    }
}

fn spirals() -> Samples {
    let mut random = Random::new(SEED, &[]);
    let mut inputs = Vec::with_capacity(2 * SAMPLES);
    for sample in 0..SAMPLES {
        let radius = (sample / 2 + 1) as f32 / (SAMPLES / 2) as f32;
        let angle = radius.sqrt() * TURNS * TAU + (sample % 2) as f32 * PI;
        let mut beside = || random.symmetric() * NOISE;
        inputs.extend([radius.sqrt() * angle.cos() + beside(), radius.sqrt() * angle.sin() + beside()]);
    }
    Samples::new(2, inputs, (0..SAMPLES).map(|sample| sample % 2).collect())
}
