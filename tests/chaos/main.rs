//! The `phub-chaos` program: hubs and workers as processes, and faults drawn from a seed. Every job must end
//! with the oracle's bits, or with an error that names the job. Nothing may hang, and no process or file may
//! be left. The exit status is 0 if all that holds.
//!
//! ```text
//!   drivers (a thread a job): workers -> relay -> hub0            steady: never killed
//!                             workers -> relay -> hub1, hub2      killed and started again
//!                             workers -> relay -> hub3, hub4 -> relay -> hub1
//!                             a reader -> relay -> the hubs that have the weights
//!   the main thread: fault, pause, fault ...; after each epoch the faults end, all jobs finish, and the hubs are checked
//! ```

#![forbid(unsafe_code)]
#![allow(missing_docs)]

mod cluster;
mod expect;
mod faults;
mod jobs;
mod reader;
mod rest;
mod strangers;
mod tally;
mod worker;

use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::Parser;
use hub_tests::trouble::Dice;
use rustix::process::{Signal, set_parent_process_death_signal};

use cluster::Cluster;
use jobs::{Driver, JOBS};
use rest::Rest;
use tally::Tally;

/// The time during which faults are made before each check of the hubs.
const EPOCH: Duration = Duration::from_secs(90);
/// The environment variable that is set in the process that makes the run.
const INNER: &str = "PHUB_CHAOS_INNER";

/// Breaks hubs, workers, connections and disks at random, and checks the results of jobs.
#[derive(Parser)]
struct Args {
    /// The minutes during which faults are made. The last jobs then finish, which may take some minutes more.
    #[arg(long, default_value_t = 5.0)]
    minutes: f64,
    /// The number from which the faults and their times are drawn. Default: from the clock.
    #[arg(long)]
    seed: Option<u64>,
    /// Rounds of each job.
    #[arg(long, default_value_t = 300)]
    rounds: u32,
}

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args_os().collect();
    let role = arguments.get(1).and_then(|role| role.to_str()).unwrap_or_default();
    let good = match role {
        // The process must end with the run, whatever ends the run; `phub-server` has the same rule. The
        // kernel would send its parent-death signal too early: when the thread that has started the hub ends.
        "hub" => {
            std::thread::spawn(|| {
                let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
                std::process::abort();
            });
            phub_cli::run(arguments.into_iter().skip(1))
        }
        "worker" => {
            let _ = set_parent_process_death_signal(Some(Signal::KILL));
            let text = arguments.get(2).and_then(|task| task.to_str()).unwrap_or_default();
            serde_json::from_str(text).is_ok_and(|task| worker::run(&task))
        }
        _ if std::env::var_os(INNER).is_none() => {
            return phub_server::program::exit_code("phub-chaos", again());
        }
        _ => return phub_server::program::exit_code("phub-chaos", run(&Args::parse())),
    };
    if good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Runs this program again with its own secret. If the machine permits it, also with mounts that no other
/// process sees.
fn again() -> Result<()> {
    let secret = authority::Secret::random()?.reveal().to_owned();
    let prefixes: [&[&str]; 3] =
        [&["unshare", "--mount", "--"], &["unshare", "--user", "--map-root-user", "--mount", "--"], &["env"]];
    let works = |prefix: &&[&str]| {
        let mut tried = Command::new(prefix[0]);
        tried.args(&prefix[1..]).args(["sh", "-c", "test $0 = env || mount -t tmpfs tmpfs /mnt", prefix[0]]);
        tried.stderr(Stdio::null()).status().is_ok_and(|status| status.success())
    };
    let prefix = prefixes.into_iter().find(works).context("there is no env(1)")?;
    let mut command = Command::new(prefix[0]);
    command.args(&prefix[1..]).arg(std::env::current_exe()?).args(std::env::args_os().skip(1));
    command.env(INNER, "1").env("PHUB_TOKEN", secret).env("RUST_LOG", "info");
    let status = command.status()?;
    anyhow::ensure!(status.success(), "the run found what must not be; see above");
    Ok(())
}

fn run(args: &Args) -> Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    let clock =
        || std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |now| now.as_secs());
    let seed = args.seed.unwrap_or_else(clock);
    let dir = tempfile::Builder::new().prefix("phub-chaos-").tempdir()?;
    println!("phub-chaos: seed {seed}, {} minutes, {} rounds a job", args.minutes, args.rounds);
    let tally = Tally::new(dir.path(), JOBS.len(), &faults::names())?;
    let cluster = Cluster::start(dir.path())?;
    let mut dice = Dice::new(seed);
    let (begun, whole) = (Instant::now(), Duration::from_secs_f64(args.minutes * 60.0));
    let mut rest = Rest::default();
    for epoch in 0.. {
        let lasts = EPOCH.min(whole.saturating_sub(begun.elapsed()));
        if lasts.is_zero() || !tally.wrongs().is_empty() {
            break;
        }
        trouble(args, seed, epoch, lasts, &cluster, &tally, &mut dice, dir.path());
        rest.look(&cluster, &tally);
    }
    if tally.reads() == 0 {
        tally.wrong("no reader got a state");
    }
    let lives: Vec<u32> = cluster.hubs.iter().map(|hub| hub.lives()).collect();
    for hub in &cluster.hubs {
        hub.panics()?.iter().for_each(|line| tally.wrong(format!("{}: {line}", hub.name)));
    }
    drop(cluster);
    let left = hub_tests::program::children(std::process::id());
    if !left.is_empty() {
        tally.wrong(format!("processes {left:?} are left"));
    }
    tally.print();
    println!("hubs were started {lives:?} times");
    let wrongs = tally.wrongs();
    if wrongs.is_empty() {
        drop(tally);
        return dir.close().context("the run's directory cannot be removed");
    }
    let kept = dir.keep();
    println!("time line and logs: {}", kept.display());
    anyhow::bail!("seed {seed}: {}", wrongs.join("; "))
}

/// Makes faults for a time, then lets all jobs finish.
#[allow(clippy::too_many_arguments)]
fn trouble(
    args: &Args,
    seed: u64,
    epoch: u32,
    lasts: Duration,
    cluster: &Cluster,
    tally: &Tally,
    dice: &mut Dice,
    dir: &Path,
) {
    let troubled = AtomicBool::new(true);
    std::thread::scope(|scope| {
        for number in 0..JOBS.len() {
            let driver =
                Driver { number, cluster, tally, dir, seed, rounds: args.rounds, troubled: &troubled };
            scope.spawn(move || driver.run(epoch));
        }
        std::thread::scope(|scope| {
            let begun = Instant::now();
            while begun.elapsed() < lasts && tally.wrongs().is_empty() {
                let strike = faults::Strike::draw(dice);
                scope.spawn(move || strike.run(cluster, tally));
                std::thread::sleep(Duration::from_millis(dice.from(200..=2500)));
            }
        });
        troubled.store(false, Ordering::Relaxed);
        tally.tell(format!("epoch {epoch}: the faults are over, {} lives finished so far", tally.finished()));
    });
}
