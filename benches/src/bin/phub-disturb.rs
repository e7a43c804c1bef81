//! The `phub-disturb` program. It times each round of a small job, while large jobs join and end at the same
//! hub. The large jobs run in separate processes.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::Parser;
use pbox_core::{Key, Optimizer};
use worker_shim::{Session, SessionConfig};

const NESTEROV: Optimizer = Optimizer::Nesterov { learning_rate: 0.1, momentum: 0.9, weight_decay: 0.0 };

/// Times the rounds of a small job while large jobs join, leave and die at the same hub.
#[derive(Parser)]
struct Args {
    /// Control port of the hub, which must run already.
    #[arg(long, default_value = "127.0.0.1:7077")]
    hub: String,
    /// Sizes of the large jobs' models in megabytes, with commas between them.
    #[arg(long, value_delimiter = ',', default_value = "1000,4000", value_name = "MB")]
    mb: Vec<u64>,
    /// Number of times that each large job joins and ends.
    #[arg(long, default_value_t = 3)]
    times: u32,
    /// Act as a large job of this size, until standard input ends.
    #[arg(long, hide = true)]
    large: Option<u64>,
}

fn main() -> Result<()> {
    let args = Args::parse();
    if let Some(mb) = args.large {
        let session = join(&args.hub, "large", mb * 1_000_000)?;
        println!("joined");
        std::io::stdin().read_to_end(&mut Vec::new())?;
        return Ok(session.leave()?);
    }
    let (rounds, ends) = (Mutex::new(Vec::new()), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let small = scope.spawn(|| {
            let measured = measure(&args.hub, &rounds, &ends);
            ends.store(true, Ordering::Relaxed);
            measured
        });
        let disturbed = disturb(&args, &rounds);
        ends.store(true, Ordering::Relaxed);
        small.join().expect("the small job panicked")?;
        disturbed
    })
}

fn join(hub: &str, job: &str, bytes: u64) -> Result<Session> {
    let mut session =
        Session::join(SessionConfig::new(hub, job, 0, 1, vec![Key::f32("a", [bytes / 4])], NESTEROV))?;
    if job == "small" {
        session.broadcast_weights(|_, weights: &mut [f32]| weights.fill(1.0))?;
    }
    Ok(session)
}

/// Records the time of each round of the small job.
fn measure(hub: &str, rounds: &Mutex<Vec<Duration>>, ends: &AtomicBool) -> Result<()> {
    let mut session = join(hub, "small", 256 << 10)?;
    while !ends.load(Ordering::Relaxed) {
        let begun = Instant::now();
        session.keys().try_for_each(|key| session.push(key))?;
        session.wait_all()?;
        let took = begun.elapsed();
        rounds.lock().expect("nobody panicked").push(took);
    }
    Ok(session.leave()?)
}

fn disturb(args: &Args, rounds: &Mutex<Vec<Duration>>) -> Result<()> {
    println!("{:32} {:>8} {:>10} {:>10} {:>12}", "", "rounds", "median ms", "p99 ms", "slowest ms");
    let phase = |what: &str, work: &mut dyn FnMut() -> Result<()>| {
        rounds.lock().expect("nobody panicked").clear();
        work()?;
        let mut times = std::mem::take(&mut *rounds.lock().expect("nobody panicked"));
        times.sort_unstable();
        let at = |part: f64| times.get((times.len() as f64 * part) as usize).or(times.last());
        let ms = |part| at(part).map_or(f64::NAN, |time| time.as_secs_f64() * 1e3);
        let (median, p99, slowest) = (ms(0.5), ms(0.99), ms(1.0));
        println!("{what:32} {:8} {median:10.3} {p99:10.3} {slowest:12.3}", times.len());
        Ok::<(), anyhow::Error>(())
    };
    let pause = |seconds| std::thread::sleep(Duration::from_secs(seconds));
    pause(1); // lets the small job join first
    for _ in 0..args.times {
        phase("nothing beside", &mut || {
            pause(3);
            Ok(())
        })?;
        for mb in &args.mb {
            let mut large = None;
            phase(&format!("{mb} MB join"), &mut || {
                large = Some(start(args, *mb)?);
                Ok(())
            })?;
            phase(&format!("{mb} MB leave"), &mut || {
                let mut child = large.take().context("it has joined")?;
                drop(child.stdin.take());
                child.wait()?;
                pause(2);
                Ok(())
            })?;
            phase(&format!("{mb} MB join, then die"), &mut || {
                let mut child = start(args, *mb)?;
                child.kill()?;
                child.wait()?;
                pause(2);
                Ok(())
            })?;
        }
    }
    std::io::stdout().flush()?;
    Ok(())
}

/// Starts a large job. The job has joined when this function returns.
fn start(args: &Args, mb: u64) -> Result<Child> {
    let mut command = Command::new(std::env::current_exe()?);
    command
        .args(["--hub", &args.hub, "--large", &mb.to_string()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    let mut child = command.spawn()?;
    let mut said = String::new();
    BufReader::new(child.stdout.take().context("a pipe")?).read_line(&mut said)?;
    anyhow::ensure!(said == "joined\n", "the large job did not join: {said:?}");
    Ok(child)
}
