//! Peers: other systems that do the same work, run beside the probe.
//!
//! A peer is a command that prints one JSON object with `goodput_gb_per_s`, workers x model / median
//! round. Runs are interleaved, because machines are shared: what counts is the ratio within one
//! repeat, and its spread over the repeats.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use indicatif::ProgressBar;
use pbox_core::Layout;
use phub_server::model_source::ModelSource;

/// Compare the parameter hub with other systems on this machine.
///
/// Every system exchanges the same model between the same number of workers and applies the same
/// Nesterov step. Needs Open MPI (Debian: openmpi-bin libopenmpi-dev).
#[derive(Debug, clap::Parser)]
#[command(name = "phub-peers", version)]
pub struct Args {
    /// The model.
    #[command(flatten)]
    pub source: ModelSource,

    /// Workers, and ranks.
    #[arg(long, default_value_t = 4, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    pub workers: u32,

    /// Measured rounds in each run.
    #[arg(long, default_value_t = 20, value_name = "N")]
    pub rounds: u32,

    /// Runs of each system.
    #[arg(long, default_value_t = 5, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100))]
    pub repeats: u32,
}

struct Peer {
    name: &'static str,
    program: PathBuf,
    args: Vec<String>,
}

/// Runs every system `repeats` times in turn, and prints the ratios.
pub fn run(args: &Args) -> Result<()> {
    let (model, keys) = args.source.keys_or("resnet50")?;
    let elements = Layout::new(keys, pbox_core::DEFAULT_CHUNK_BYTES)?.model_bytes() / 4;
    let peers = peers(args, &model, elements)?;
    let progress = ProgressBar::new(u64::from(args.repeats) * peers.len() as u64);
    let mut goodputs = vec![Vec::new(); peers.len()];
    for _ in 0..args.repeats {
        for (peer, goodputs) in peers.iter().zip(&mut goodputs) {
            goodputs.push(goodput(peer)?);
            progress.inc(1);
        }
    }
    progress.finish_and_clear();

    println!(
        "{model}, {} workers, median of {} interleaved runs (lowest to highest)\n",
        args.workers, args.repeats
    );
    println!("  {:<34} {:>22}   {:>22}", "", "GB/s", "the hub is faster by");
    for (peer, theirs) in peers.iter().zip(&goodputs) {
        let ratios: Vec<f64> = goodputs[0].iter().zip(theirs).map(|(ours, theirs)| ours / theirs).collect();
        println!("  {:<34} {:>22}   {:>22}", peer.name, spread(theirs), spread(&ratios));
    }
    Ok(())
}

/// The probe first, then the others.
fn peers(args: &Args, model: &str, elements: u64) -> Result<Vec<Peer>> {
    let probe = std::env::current_exe()?.with_file_name("phub-probe");
    ensure!(probe.exists(), "{} is not built: cargo build --release --bins", probe.display());
    let mpi = Path::new(env!("CARGO_MANIFEST_DIR")).join("peers/mpi_allreduce.sh");
    let (workers, rounds) = (args.workers.to_string(), args.rounds.to_string());
    let hub = |name, extra: &[&str]| {
        let source = match &args.source.manifest {
            Some(path) => ["--manifest".to_owned(), path.display().to_string()],
            None => ["--model".to_owned(), model.to_owned()],
        };
        let mut line =
            vec!["--json".into(), "--workers".into(), workers.clone(), "--rounds".into(), rounds.clone()];
        line.extend(source);
        line.extend(extra.iter().map(|&word| word.to_owned()));
        Peer { name, program: probe.clone(), args: line }
    };
    let rank = |name, extra: &[&str]| {
        let elements = elements.to_string();
        let line = ["--workers", &workers, "--elements", &elements, "--rounds", &rounds];
        let args = line.iter().chain(extra).map(|&word| word.to_owned()).collect();
        Peer { name, program: mpi.clone(), args }
    };
    Ok(vec![
        hub("phub, shared weights", &[]),
        hub("phub, private weights", &["--weights", "private"]),
        rank("Open MPI, as shipped", &[]),
        rank("Open MPI, tuned", &["--tuned"]),
        rank("Open MPI, in 1 MiB pieces", &["--piece", "262144"]),
        rank("Open MPI, tuned, in 1 MiB pieces", &["--tuned", "--piece", "262144"]),
    ])
}

fn goodput(peer: &Peer) -> Result<f64> {
    let mut command = Command::new(&peer.program);
    let output = command.args(&peer.args).env("RUST_LOG", "warn").stderr(Stdio::inherit()).output();
    let output = output.with_context(|| format!("starting {}", peer.program.display()))?;
    if !output.status.success() {
        bail!("{} failed ({}); its own words are above", peer.name, output.status);
    }
    let result: serde_json::Value = serde_json::from_slice(&output.stdout)
        .with_context(|| format!("{} printed no JSON object", peer.name))?;
    ensure!(result["checked"] == true, "{} did not check its result: {result}", peer.name);
    result["goodput_gb_per_s"].as_f64().with_context(|| format!("{}: no goodput in {result}", peer.name))
}

fn spread(values: &[f64]) -> String {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let (lowest, highest) = (sorted[0], sorted[sorted.len() - 1]);
    format!("{:.2} ({lowest:.2} to {highest:.2})", sorted[sorted.len() / 2])
}
