//! Many workers at one hub. The benchmark prints the seconds until all workers have joined, have the first weights,
//! have made rounds, and have left. It also prints the hub's memory for each worker.
//!
//! The hub is in this process. Child processes run the workers, each worker on its own thread, because a process may open only
//! some thousands of files. All workers use TCP on loopback. `cargo bench --bench members -- [WORKERS]...`

use std::sync::Barrier;
use std::thread;
use std::time::Instant;

use anyhow::Result;
use benches::child::{ChildProcess, die_with_parent, say, wait_for_word};
use fabric::any::Transport;
use hub_tests::{hub_with_limit, usage};
use pbox_core::{Key, Optimizer};
use worker_shim::{Session, SessionConfig, SessionError};

/// The argument that makes this program a child.
const CHILD: &str = "--child";
/// The most workers of a child process.
const OF_A_CHILD: u32 = 512;
const KEYS: u64 = 8;
const KEY_ELEMENTS: u64 = 8192;
const ROUNDS: u32 = 3;
/// The stages of a job. A child process reports each stage when its workers have passed the stage.
const STAGES: [&str; 4] = ["joined", "first weights", "3 rounds", "left"];
/// The heartbeat limit, in seconds: longer than any pause between two heartbeats of a worker on this machine's cores.
const HEARTBEAT_LIMIT_S: u64 = 60;

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if let [child, address, first, end, workers] = &words[..]
        && child == CHILD
    {
        return run_workers(address, first.parse()?..end.parse()?, workers.parse()?);
    }
    let mut counts: Vec<u32> = words.iter().filter_map(|word| word.parse().ok()).collect();
    if counts.is_empty() {
        counts = vec![64, 512];
    }
    counts.into_iter().try_for_each(measure)
}

/// Makes a job of this many workers, and prints the time of each stage.
fn measure(workers: u32) -> Result<()> {
    let hub = hub_with_limit(1, HEARTBEAT_LIMIT_S);
    let memory = || usage::status_bytes(std::process::id(), "VmRSS");
    let (address, before) = (hub.address().to_string(), memory());
    let child = |first: u32| {
        let end = workers.min(first + OF_A_CHILD);
        let numbers = [first, end, workers].map(|number| number.to_string());
        let args = [CHILD.to_owned(), address.clone()].into_iter().chain(numbers).collect::<Vec<_>>();
        ChildProcess::start(format!("workers {first} to {}", end - 1), &args)
    };
    let mut children = (0..workers).step_by(OF_A_CHILD as usize).map(child).collect::<Result<Vec<_>>>()?;
    children.iter_mut().try_for_each(|child| child.send("go"))?;
    let mut since = Instant::now();
    print!("{workers} workers:");
    for stage in STAGES {
        for child in &mut children {
            child.read_message::<()>()?;
        }
        print!(" {stage} after {:.1} s,", since.elapsed().as_secs_f64());
        if stage == STAGES[1] {
            let each = (memory() - before) / u64::from(workers);
            print!(" {} KiB of the hub for each worker,", each >> 10);
        }
        since = Instant::now();
        children.iter_mut().try_for_each(|child| child.send("go"))?;
    }
    println!(" the model has {} KiB", (KEYS * KEY_ELEMENTS * 4) >> 10);
    children.into_iter().try_for_each(ChildProcess::finish)
}

/// Runs some workers of a job. All workers pass each stage together.
fn run_workers(address: &str, ranks: std::ops::Range<u32>, workers: u32) -> Result<()> {
    die_with_parent();
    wait_for_word("go")?;
    let (all_here, all_go) = (Barrier::new(ranks.len() + 1), Barrier::new(ranks.len() + 1));
    let pass = || {
        all_here.wait();
        all_go.wait();
    };
    thread::scope(|scope| {
        for rank in ranks.clone() {
            scope.spawn(move || {
                train(address, rank, workers, pass).unwrap_or_else(|error| {
                    eprintln!("worker {rank}: {error}");
                    std::process::exit(1);
                });
            });
        }
        STAGES.iter().try_for_each(|_| {
            all_here.wait();
            say(&())?;
            wait_for_word("go")?;
            all_go.wait();
            Ok(())
        })
    })
}

fn train(address: &str, rank: u32, workers: u32, pass: impl Fn()) -> Result<(), SessionError> {
    let keys = (0..KEYS).map(|key| Key::f32(format!("key{key}"), [KEY_ELEMENTS])).collect();
    let optimizer = Optimizer::Sgd { learning_rate: 1.0, weight_decay: 0.0 };
    let config = SessionConfig::new(address, "members", rank, workers, keys, optimizer);
    let mut session = Session::join(SessionConfig { transport: Some(Transport::Tcp), ..config })?;
    pass();
    session.broadcast_weights(|_key, weights| weights.fill(0.0))?;
    pass();
    for _ in 0..ROUNDS {
        for key in session.keys() {
            session.gradient_mut(key)?.fill(1.0);
            session.push(key)?;
        }
        session.wait_all()?;
    }
    for key in session.keys() {
        assert!(session.weights(key)?.iter().all(|&weight: &f32| weight == -(ROUNDS as f32)));
    }
    pass();
    session.leave()?;
    pass();
    Ok(())
}
