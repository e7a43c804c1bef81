//! The example's output: lines while it runs, and a table at the end.

use std::io::Write as _;

use anyhow::{Result, ensure};
use training::{Samples, Weights};

use crate::args::Args;
use crate::task::Task;

/// Prints a line at once. Ignores a closed pipe: its reader wants no more lines.
pub fn tell(line: &str) {
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}

/// Prints the table of a run. `weights` are the last weights of every worker and, without compression, of the
/// one-process run.
///
/// # Errors
/// Returns an error if too few samples of the test set are classified correctly.
pub fn report(args: &Args, task: &Task, weights: &Weights, seconds: f64) -> Result<()> {
    let accuracy = |samples: &Samples| {
        let classes = task.network.classify(samples, |key| weights.key(key));
        let right = classes.iter().zip(samples.labels()).filter(|(class, label)| class == label).count();
        right as f64 / samples.len() as f64
    };
    let row = |name: &str, value: String| tell(&format!("  {name:<16} {value}"));
    let percent = |share: f64| format!("{:.1}%", share * 100.0);
    let (right, least) = (accuracy(&task.test), args.min_accuracy);
    tell("");
    row("rounds", format!("{} in {seconds:.2} s, processes' start included", task.plan.rounds()));
    row("accuracy", format!("{} of the test set", percent(right)));
    let majority = task.test.majority_accuracy(&task.train);
    row("baseline", format!("{} by always naming the commoner class", percent(majority)));
    row("training set", percent(accuracy(&task.train)));
    let others = match &args.compress {
        None => " and of the one process".to_owned(),
        Some(codec) => format!(", by way of {codec}"),
    };
    let (parameters, workers) = (weights.elements(), args.workers);
    row("weights", format!("the same weights, bit for bit: all {parameters} of {workers} worker(s){others}"));
    row("fingerprint", format!("{:016x}", weights.fingerprint()));
    ensure!(
        right >= least,
        "accuracy {right:.3} on the test set is below {least:.3}; train longer (--epochs), or ask for less (--min-accuracy)"
    );
    Ok(())
}
