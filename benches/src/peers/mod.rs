//! Peers: other systems that do the same work as the probe, for comparison.
//!
//! A peer is a command that prints one JSON object with `goodput_gb_per_s`, which is workers x model / median
//! round. Runs of all systems alternate, because machines are shared. Only the ratio within one repeat
//! counts, and its spread over the repeats. This module must not depend on how a peer does its work.

mod args;
mod guard;
mod report;
mod system;

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use indicatif::{ProgressBar, ProgressStyle};

pub use args::Args;
use guard::{Ending, Guarded};
use report::Report;
use system::{Contender, Work};

/// The part of a peer's output that this program uses.
#[derive(Debug, serde::Deserialize)]
struct Said {
    goodput_gb_per_s: f64,
    checked: bool,
    /// The instruction set of the hub's kernels. Only the hub prints it.
    kernels: Option<String>,
}

/// Runs every system `repeats` times, one after another, and prints the ratios. With the hidden flag, guards
/// one command instead.
pub fn run(args: &Args) -> ExitCode {
    match &args.guard {
        Some(command) => guard::run(command, Duration::from_secs(args.limit_s)),
        None => phub_server::program::exit_code("phub-peers", compare(args)),
    }
}

fn compare(args: &Args) -> Result<()> {
    let work = Work::new(args)?;
    let (systems, missing) = system::present(&args.systems(), !args.peers.is_empty(), system::ready)?;
    let peers = system::peers(&work, &systems)?;
    for missing in &missing {
        eprintln!("phub-peers: not run: {missing}");
    }
    let progress = ProgressBar::new(u64::from(args.repeats) * peers.len() as u64);
    let style = ProgressStyle::with_template("{msg:34} {wide_bar} {pos}/{len} {elapsed_precise}");
    progress.set_style(style.expect("the template is right"));
    let mut goodputs = vec![Vec::new(); peers.len()];
    let mut kernels = None;
    for _ in 0..args.repeats {
        for (peer, goodputs) in peers.iter().zip(&mut goodputs) {
            progress.set_message(peer.name);
            let said = measure(peer, args.limit_s)?;
            goodputs.push(said.goodput_gb_per_s);
            kernels = kernels.or(said.kernels);
            progress.inc(1);
        }
    }
    progress.finish_and_clear();
    let names: Vec<&str> = peers.iter().map(|peer| peer.name).collect();
    Report::new(args, &work, kernels, &names, &goodputs, missing).print(args.json)
}

/// Runs a peer once. None of its processes outlives the run.
fn measure(peer: &Contender, limit_s: u64) -> Result<Said> {
    let (ending, stdout) = Guarded::start(peer.name, &peer.program, &peer.args, limit_s)?.end()?;
    match ending {
        Ending::Good => {}
        Ending::Bad(status) => bail!("{} failed ({status}); its error is above", peer.name),
        Ending::Late => bail!(
            "{} did not end within {limit_s} s and was killed; raise --limit-s, or use fewer --rounds",
            peer.name
        ),
    }
    parse(peer.name, &stdout)
}

fn parse(name: &str, stdout: &[u8]) -> Result<Said> {
    let said: Said = serde_json::from_slice(stdout).with_context(|| {
        format!("{name}: expected one JSON object, it printed {:?}", String::from_utf8_lossy(stdout))
    })?;
    ensure!(said.checked, "{name} did not check its result; its goodput counts for nothing");
    let goodput = said.goodput_gb_per_s;
    ensure!(goodput.is_finite() && goodput > 0.0, "{name}: goodput_gb_per_s is {goodput}, expected above 0");
    Ok(said)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_peer_prints() {
        let good = br#"{"peer":"x","goodput_gb_per_s":2.5,"checked":true,"more":[1]}"#;
        assert_eq!(parse("x", good).unwrap().goodput_gb_per_s, 2.5);
        for (stdout, word) in [
            (&b"no JSON"[..], "no JSON"),
            (b"", "one JSON object"),
            (br#"{"checked":true}"#, "goodput_gb_per_s"),
            (br#"{"goodput_gb_per_s":2.5}"#, "checked"),
            (br#"{"goodput_gb_per_s":2.5,"checked":false}"#, "did not check"),
            (br#"{"goodput_gb_per_s":0.0,"checked":true}"#, "expected above 0"),
        ] {
            let error = format!("{:#}", parse("a peer", stdout).unwrap_err());
            assert!(error.contains("a peer") && error.contains(word), "expected {word:?} in {error}");
        }
    }
}
