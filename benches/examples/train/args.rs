//! The example's settings.

use benches::child::ChildRole;
use pbox_core::Compression;
use training::MAX_WORKERS;

/// Train a small network on real data over a parameter hub, and compare with one process.
///
/// The data are 1359 red wines (UCI Wine Quality, from the package linfa-datasets). The task is to tell from
/// 11 chemical measurements whether tasters gave a wine 6 points or more. The training set is divided by rank
/// among worker processes. The hub sums their gradients in worker order, and steps (Nesterov). Then one process
/// trains on the same shards, one after another, in plain arithmetic.
///
/// Ends with an error if any weight of any worker differs in any bit from that of the one process. Also ends
/// with an error if the accuracy on the test set is below --min-accuracy.
#[derive(Clone, Debug, clap::Parser)]
#[command(name = "train", version)]
pub struct Args {
    /// Number of worker processes.
    #[arg(long, default_value_t = 4, value_name = "N",
          value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_WORKERS)))]
    pub workers: u32,

    /// Number of passes over the training set.
    #[arg(long, default_value_t = 30, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub epochs: u32,

    /// Number of samples in a round, of all workers together.
    #[arg(long, default_value_t = 64, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub batch: u32,

    /// Control port of a hub that runs on this machine. Default: the example starts a hub for this run.
    #[arg(long, value_name = "HOST:PORT")]
    pub hub: Option<String>,

    /// Codec that makes gradients and weights smaller, as in phub-probe: bf16, qsgd:8:512, topk:0.01. The result then differs
    /// from that of one process, but all workers must still end with the same weights. Default: no codec.
    #[arg(long, value_name = "CODEC[:SETTING...]")]
    pub compress: Option<Compression>,

    /// Seed of the split, the first weights and the order of the samples.
    #[arg(long, default_value_t = 1, value_name = "S")]
    pub seed: u64,

    /// The least share of the test set that must be classified right. Over 24 seeds, 30 epochs reach
    /// 0.70 to 0.79, and always naming the more frequent class reaches 0.48 to 0.58.
    #[arg(long, default_value_t = 0.65, value_name = "SHARE")]
    pub min_accuracy: f64,

    /// The role of this process in a run; set by the example itself, like --rank and --job.
    #[arg(long, value_enum, hide = true)]
    pub role: Option<ChildRole>,

    /// A worker's number.
    #[arg(long, default_value_t = 0, hide = true)]
    pub rank: u32,

    /// The run's name at the hub.
    #[arg(long, default_value = "", hide = true)]
    pub job: String,
}

impl Args {
    /// Returns the command line of a worker's process: that of this process, with the worker's hub, rank and
    /// job.
    pub fn for_worker(&self, rank: u32, hub: &str, job: &str) -> Vec<String> {
        let rank = rank.to_string();
        let own = ["--role", "worker", "--rank", &rank, "--job", job];
        let hub = ["--hub", hub].into_iter().filter(|_| self.hub.is_none());
        std::env::args().skip(1).chain(own.into_iter().chain(hub).map(str::to_owned)).collect()
    }
}
