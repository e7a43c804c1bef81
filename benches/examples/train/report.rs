//! The example's output: lines while it runs, a table or one JSON object at the end.

use std::fmt::Write as _;
use std::io::Write as _;

use anyhow::{Result, ensure};
use benches::train::{Samples, Weights};
use serde::Serialize;

use crate::args::Args;
use crate::task::Task;

/// A run whose weights were equal bit for bit.
#[derive(Debug, Serialize)]
pub struct Report {
    workers: u32,
    epochs: u32,
    rounds: usize,
    seconds: f64,
    parameters: usize,
    train_accuracy: f64,
    test_accuracy: f64,
    majority_accuracy: f64,
    compression: Option<String>,
    /// Whether one process gave the same weights.
    bit_for_bit: bool,
    fingerprint: String,
}

/// Prints a line at once. A reader that closed the pipe wants no more.
pub fn tell(line: &str) {
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}

impl Report {
    /// The report of `weights`: the last weights of every worker and, without compression, of the one-process run.
    pub fn new(args: &Args, task: &Task, weights: &Weights, seconds: f64) -> Self {
        let accuracy = |samples: &Samples| {
            let classes = task.network.classify(samples, |key| weights.key(key));
            let right = classes.iter().zip(samples.labels()).filter(|(class, label)| class == label).count();
            right as f64 / samples.len() as f64
        };
        Report {
            workers: args.workers,
            epochs: args.epochs,
            rounds: task.plan.rounds(),
            seconds,
            parameters: weights.elements(),
            train_accuracy: accuracy(&task.train),
            test_accuracy: accuracy(&task.test),
            majority_accuracy: task.test.majority_accuracy(&task.train),
            compression: args.compress.map(|compression| compression.to_string()),
            bit_for_bit: args.compress.is_none(),
            fingerprint: format!("{:016x}", weights.fingerprint()),
        }
    }

    /// Prints it.
    pub fn print(&self, json: bool) -> Result<()> {
        tell(&if json { serde_json::to_string(self)? } else { self.table() });
        Ok(())
    }

    fn table(&self) -> String {
        let mut text = String::new();
        let mut row = |name: &str, value: String| {
            let _ = write!(text, "\n  {name:<16} {value}");
        };
        let percent = |share: f64| format!("{:.1}%", share * 100.0);
        row("rounds", format!("{} in {:.2} s, processes' start included", self.rounds, self.seconds));
        row("accuracy", format!("{} of the test set", percent(self.test_accuracy)));
        row("baseline", format!("{} by always naming the commoner class", percent(self.majority_accuracy)));
        row("training set", percent(self.train_accuracy));
        row(
            "weights",
            match &self.compression {
                None => format!(
                    "the same weights, bit for bit: all {} of {} worker(s) and of the one process",
                    self.parameters, self.workers
                ),
                Some(codec) => format!(
                    "the same weights, bit for bit: all {} of {} worker(s), by way of {codec}",
                    self.parameters, self.workers
                ),
            },
        );
        row("fingerprint", self.fingerprint.clone());
        text
    }

    /// # Errors
    /// When too few samples of the test set are classified right.
    pub fn judge(&self, min_accuracy: f64) -> Result<()> {
        ensure!(
            self.test_accuracy >= min_accuracy,
            "accuracy {:.3} on the test set is below {min_accuracy:.3}; train longer (--epochs), or ask for less (--min-accuracy)",
            self.test_accuracy
        );
        Ok(())
    }
}
