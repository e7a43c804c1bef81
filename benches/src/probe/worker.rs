//! The probe's worker: pushes in the order of a backward pass, waits for everything, again.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use half::{bf16, f16};
use pbox_core::control::HubReply;
use pbox_core::{Dtype, Element, KeyId};
use serde::{Deserialize, Serialize};
use worker_shim::Session;

use super::args::Args;
use super::expected::Expected;
use super::report::Report;
use crate::child;

/// Rounds before the measured ones.
const WARM_UP: u32 = 2;
/// How often a child tells its parent how far it is.
const PROGRESS: Duration = Duration::from_millis(100);

/// What a worker process tells its parent.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Word {
    /// All workers are here and warm.
    Ready,
    /// So many rounds are done.
    Rounds(u32),
    /// All rounds are done, and all results were right.
    Done(Outcome),
}

/// What a worker measured.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Outcome {
    /// Each round's time.
    pub round_ns: Vec<u64>,
    /// The process's resident memory.
    pub rss_bytes: u64,
}

struct Worker<E> {
    session: Session,
    expected: Expected<E>,
    rank: u32,
    workers: u32,
    round: u32,
}

impl<E: Element> Worker<E> {
    fn join(args: &Args) -> Result<Self> {
        let (_, keys) = args.keys()?;
        let rank = args.rank.unwrap_or_default();
        let mut session = Session::join(args.session_config(keys))?;
        let optimizer = args.optimizer();
        if optimizer.keeps_weights() {
            session.broadcast_weights(Expected::<E>::fill_weights)?;
        }
        for key in session.keys() {
            Expected::<E>::fill_gradient(rank, key, session.gradient_mut(key)?);
        }
        let expected = Expected::new(optimizer, args.ablate(), args.workers);
        let mut worker = Worker { session, expected, rank, workers: args.workers, round: 0 };
        for _ in 0..WARM_UP {
            worker.round()?;
        }
        Ok(worker)
    }

    /// One round, and a look at one line of this worker's share of the chunks.
    fn round(&mut self) -> Result<()> {
        for key in (0..self.session.layout().keys().len() as u32).rev().map(KeyId) {
            self.session.push(key)?;
        }
        // While the hub works: what must come back.
        self.expected.advance();
        self.session.wait_all()?;
        self.round += 1;
        let first = (self.rank + self.round) % self.workers;
        let session = &self.session;
        self.expected.check_lines(
            session.layout(),
            first as usize,
            self.workers as usize,
            self.round,
            |key| Ok(session.weights(key)?),
        )
    }

    /// `rounds` rounds, timed one by one, and a look at every element after the last.
    fn measure(&mut self, rounds: u32, mut progress: impl FnMut(u32)) -> Result<Outcome> {
        let mut round_ns = Vec::with_capacity(rounds as usize);
        let mut last = Instant::now();
        for round in 1..=rounds {
            self.round()?;
            let now = Instant::now();
            round_ns.push((now - last).as_nanos() as u64);
            last = now;
            progress(round);
        }
        let rss_bytes = fabric::resident_bytes().unwrap_or(0);
        for key in self.session.keys() {
            self.expected.check(self.session.layout(), key, 0, self.session.weights(key)?)?;
        }
        Ok(Outcome { round_ns, rss_bytes })
    }
}

/// A worker process that the probe started.
pub(super) fn run_as_child(args: &Args) -> Result<()> {
    child::die_with_parent();
    match args.dtype() {
        Dtype::F32 => child_of::<f32>(args),
        Dtype::F16 => child_of::<f16>(args),
        Dtype::BF16 => child_of::<bf16>(args),
    }
}

fn child_of<E: Element>(args: &Args) -> Result<()> {
    let say = |word: &Word| println!("{}", serde_json::to_string(word).expect("words are plain data"));
    let mut worker = Worker::<E>::join(args)?;
    say(&Word::Ready);
    child::wait_for_word("go")?;
    let mut said = Instant::now();
    let outcome = worker.measure(args.rounds, |round| {
        if args.rank == Some(0) && said.elapsed() > PROGRESS {
            said = Instant::now();
            say(&Word::Rounds(round));
        }
    })?;
    say(&Word::Done(outcome));
    child::wait_for_word("leave")?;
    Ok(worker.session.leave()?)
}

/// One worker of a hub elsewhere.
pub(super) fn run_alone(args: &Args) -> Result<Report> {
    match args.dtype() {
        Dtype::F32 => alone::<f32>(args),
        Dtype::F16 => alone::<f16>(args),
        Dtype::BF16 => alone::<bf16>(args),
    }
}

fn alone<E: Element>(args: &Args) -> Result<Report> {
    let hub = args.hub.as_deref().expect("--hub chose this role");
    let mut worker = Worker::<E>::join(args)?;
    let before = describe_hub(hub)?;
    let progress = super::report::progress_bar(args);
    let outcome = worker.measure(args.rounds, |round| progress.set_position(round.into()))?;
    progress.finish_and_clear();
    let after = describe_hub(hub)?;
    let report = Report::new(args, worker.session.layout(), &[outcome], &before, &after, None)?;
    worker.session.leave()?;
    Ok(report)
}

/// The hub's own words about itself.
pub(super) fn describe_hub(hub: &str) -> Result<HubReply> {
    let url = format!("http://{hub}/v1/hub");
    let mut answer = ureq::get(&url).call().with_context(|| format!("asking {url}"))?;
    answer.body_mut().read_json().with_context(|| format!("reading the answer of {url}"))
}
