//! The probe's worker. In each round it pushes in the order of a backward pass, and waits for everything.
//! With compute, the worker waits for the times of a trace between the pushes.

mod computing;

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use membership::Credential;
use pbox_core::control::HubReply;
use pbox_core::{Consistency, Element, KeyId, Optimizer, Round};
use serde::{Deserialize, Serialize};
use worker_shim::{Session, Traffic};

use super::args::Args;
use super::expected::{Expected, allowed};
use super::report::{CreditReport, Crossed, PullReport, digest};
use crate::child;
use crate::compute::{ComputePlan, Times};

/// The number of rounds between two checks of a chunk. A check reads one cache line of each chunk, and all
/// elements after the last round. A wrong bit stays in weights and state, so a later check finds it.
/// Formerly each round checked a line of every chunk, which cost a miss of cache and TLB for each line. The
/// misses took 4% of the processors' time, and were half of the hub's wait for pushes.
const ROUNDS_PER_LOOK: u32 = 16;

/// The number of rounds before the measured rounds.
const WARM_UP: u32 = 2;
/// The timeout of a hub's description of itself.
const DESCRIBE_LIMIT: Duration = Duration::from_secs(30);
/// The interval at which a child sends its progress to its parent.
const PROGRESS: Duration = Duration::from_millis(100);

/// A message from a worker process to its parent.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Word {
    /// All workers have joined, and have made the warm-up rounds.
    Ready {
        /// The transport to the hub.
        transport: String,
    },
    /// This number of rounds is done.
    Rounds(u32),
    /// The rounds of a leg (a group of rounds) are done, with the time of each.
    Leg(Vec<u64>),
    /// The iterations of a leg are done, in a run with compute.
    Computed(Times),
    /// Every element was right after the last round, as far as the probe can know.
    Right {
        /// The process's resident memory.
        rss_bytes: u64,
        /// The credit of the worker's links.
        credit: CreditReport,
        /// The bytes that crossed these links.
        crossed: Crossed,
        /// The pulls, if weights are pulled in batches.
        pull: Option<PullReport>,
        /// The norm of the last round, if the job has norms.
        norm: Option<f32>,
    },
}

struct Worker<E> {
    session: Session,
    expected: Expected<E>,
    /// The expected norm, which is the same in each round. `None` in a job without norms or with a codec.
    norm: Option<f32>,
    /// The weights before the first round of the job.
    at_first: Expected<E>,
    optimizer: Optimizer,
    consistency: Consistency,
    rank: u32,
    workers: u32,
    /// The number of members that push, if pushes step alone: workers, or machines in a mesh.
    steppers: u32,
    round: u32,
    /// The number of rounds that the job has at the end, including the rounds before this run.
    rounds: u32,
    /// The round with which this run begins, because the job continues from a checkpoint.
    begins: u32,
    /// The number of exchanges before the iterations of a trace.
    exchanges: u32,
    /// The traffic before the measured rounds.
    before: Traffic,
    /// The number of rounds before the measured rounds.
    lead_in: u32,
}

impl<E: Element> Worker<E> {
    fn join(args: &Args, plan: Option<&ComputePlan>) -> Result<Self> {
        let (_, keys) = args.keys()?;
        let rank = args.rank.unwrap_or_default();
        let mut session = Session::join(args.session_config(keys, plan))?;
        let optimizer = args.optimizer;
        if optimizer.keeps_weights() {
            session.broadcast_weights(Expected::<E>::fill_weights)?;
        }
        for key in session.keys() {
            Expected::<E>::fill_gradient(args.consistency, rank, key, session.gradient_mut(key)?);
        }
        let (workers, consistency) = (args.workers, args.consistency);
        let machines = args.mesh.as_ref().map(|mesh| mesh.machine.of);
        let steppers = machines.unwrap_or(workers);
        let mut expected =
            Expected::new(optimizer, args.ablate(), consistency, workers, machines).compressed(args.compress);
        if let Some(most) = args.clip_norm.or(args.clip_norm_last) {
            expected =
                expected.clipped(session.layout(), most, Round(1 + u32::from(args.clip_norm.is_none())));
        }
        let has_norm = args.terms(Vec::new()).waits_for_all() && args.compress.is_none();
        let norm = has_norm.then(|| expected.norm(session.layout()));
        if optimizer.adapts_keys() {
            expected = expected.by_key(session.layout());
        }
        let exchanges = args.compute.exchanges;
        let lead_in = computing::LEAD_IN + args.pull.profile_rounds();
        let more = if plan.is_some() { exchanges + lead_in } else { 0 };
        let rounds = WARM_UP + more + args.rounds + u32::from(consistency.steps_alone());
        let before = session.traffic();
        let at_first = expected.clone();
        // If pushes step alone, weights depend on the number of steps. Such a run is a trial, which
        // begins with round 0.
        let begins = if consistency.steps_alone() { 0 } else { steps_of(&session, optimizer) };
        let mut worker = Worker {
            session,
            expected,
            norm,
            at_first,
            optimizer,
            consistency,
            rank,
            workers,
            steppers,
            round: begins,
            rounds: begins + rounds,
            begins,
            exchanges,
            before,
            lead_in,
        };
        for _ in 0..WARM_UP {
            worker.round()?;
        }
        worker.before = worker.session.traffic();
        Ok(worker)
    }

    /// Makes one round and checks one cache line of some chunks.
    fn round(&mut self) -> Result<()> {
        let keys = self.session.layout().keys().len() as u32;
        self.session.push_keys((0..keys).rev().map(KeyId))?;
        self.round += 1;
        if self.expected.is_slow() {
            self.session.wait_all()?;
            self.go_where_the_job_is();
            return Ok(()); // a wrong bit stays, and the check after the last round finds it
        }
        // The expected weights are computed now, while the hub works, before the wait.
        self.expect();
        self.session.wait_all()?;
        self.go_where_the_job_is();
        check_lines(&self.session, &self.expected, self.rank, self.workers, self.round)
    }

    /// Computes the weights that are expected after this round.
    fn expect(&mut self) {
        self.expected.expect(allowed(self.consistency, self.steppers, self.round, self.rounds));
    }

    /// Computes the weights of the job's round, after a hub has restarted and lost rounds.
    fn go_where_the_job_is(&mut self) {
        let round = steps_of(&self.session, self.optimizer);
        if round < self.round && !self.consistency.steps_alone() {
            self.rounds -= self.round - round;
            self.round = round;
            self.expected = self.at_first.clone();
            if !self.expected.is_slow() {
                self.expected.expect(round..=round);
            }
        }
    }

    /// Makes `rounds` rounds. Returns the time of each.
    fn measure(&mut self, rounds: u32, mut progress: impl FnMut(u32)) -> Result<Vec<u64>> {
        let mut round_ns = Vec::with_capacity(rounds as usize);
        let mut last = Instant::now();
        for _ in 0..rounds {
            self.round()?;
            let now = Instant::now();
            round_ns.push((now - last).as_nanos() as u64);
            last = now;
            progress((self.round - WARM_UP).saturating_sub(self.begins));
        }
        Ok(round_ns)
    }

    /// Checks every element after the last round, and the norm of that round.
    fn check(&mut self) -> Result<()> {
        if let Some(norm) = self.norm {
            check_norm(&self.session, norm)?;
        }
        if self.expected.is_slow() {
            self.expect();
        }
        let check = |key| self.expected.check(self.session.layout(), key, self.session.weights(key)?);
        self.session.keys().try_for_each(check)
    }

    /// Returns the number of bytes that crossed in a measured round, and the digest of the weights.
    fn crossed(&self) -> Result<Crossed> {
        let mut all = 0;
        for key in self.session.keys() {
            let weights: &[E] = self.session.weights(key)?;
            all = digest(all, weights.iter().map(|weight| weight.to_f32().to_bits()));
        }
        Ok(Crossed::new(
            self.before,
            self.session.traffic(),
            (self.round - WARM_UP).saturating_sub(self.begins),
            all,
        ))
    }

    /// Makes one more round, if pushes step alone. All workers have then made all measured rounds, so each
    /// worker gets the weights with all of their pushes.
    fn check_total(&mut self) -> Result<()> {
        if self.consistency.steps_alone() {
            self.session.push_keys(self.session.keys())?;
            self.expected.expect(self.steppers * (self.rounds - 1) + 1..=self.steppers * self.rounds);
            self.session.wait_all()?;
            self.check()?;
        }
        Ok(())
    }
}

/// Returns the number of steps that a job has made. The first round of a job with weights is the broadcast,
/// which is no step.
fn steps_of(session: &Session, optimizer: Optimizer) -> u32 {
    session.next_round().0.saturating_sub(u32::from(optimizer.keeps_weights()))
}

/// Checks one cache line of some chunks after a round.
fn check_lines<E: Element>(
    session: &Session,
    expected: &Expected<E>,
    rank: u32,
    workers: u32,
    round: u32,
) -> Result<()> {
    let (first, stride) = (rank * ROUNDS_PER_LOOK + round, workers * ROUNDS_PER_LOOK);
    let (first, stride) = ((first % stride) as usize, stride as usize);
    expected.check_lines(session.layout(), first, stride, round, |key| Ok(session.weights(key)?))
}

/// Checks the norm that the hub has sent for the last round, and that the hub skipped no round.
fn check_norm(session: &Session, norm: f32) -> Result<()> {
    let (seen, skipped) = (session.norm(), session.skipped());
    let expected = Some((Round(session.next_round().0 - 1), norm));
    ensure!(
        seen == expected && skipped == 0,
        "wrong norm: expected {expected:?} and no skipped round, saw {seen:?} and {skipped} skipped rounds"
    );
    Ok(())
}

/// Runs as a worker process.
pub(super) fn run(args: &Args) -> Result<()> {
    child::die_with_parent();
    in_dtype!(args.keys()?.1[0].dtype, child_of(args))
}

fn child_of<E: Element>(args: &Args) -> Result<()> {
    let plan = args.plan()?;
    let mut worker = Worker::<E>::join(args, plan.as_ref())?;
    child::say(&Word::Ready { transport: transports(&worker.session) })?;
    let mut said = Instant::now();
    loop {
        let word = child::read_word()?;
        if word == "done" {
            break;
        }
        let rounds = word.parse().with_context(|| format!("expected a number of rounds, read {word:?}"))?;
        let progress = |round| {
            if said.elapsed() > PROGRESS {
                said = Instant::now();
                let _ = child::say(&Word::Rounds(round));
            }
        };
        child::say(&match &plan {
            None => Word::Leg(worker.measure(rounds, progress)?),
            Some(plan) => Word::Computed(worker.compute(plan, rounds, progress)?),
        })?;
    }
    let rss_bytes = fabric::resident_bytes().unwrap_or(0);
    worker.check()?;
    let (credit, pull) =
        (CreditReport::from_session(&worker.session), PullReport::from_session(&worker.session));
    let norm = worker.session.norm().map(|(_, norm)| norm);
    child::say(&Word::Right { rss_bytes, credit, crossed: worker.crossed()?, pull, norm })?;
    if child::read_word()? == "check the total" {
        worker.check_total()?;
    }
    Ok(worker.session.leave()?)
}

/// Returns the transports by which a worker reaches its hubs.
fn transports(session: &Session) -> String {
    let mut names: Vec<&str> = session.ways().iter().map(|way| way.transport.name()).collect();
    names.dedup();
    names.join(", ")
}

/// Returns the descriptions of all hubs as one description, which has the cores of all hubs.
pub(super) fn describe_hubs(hubs: &str) -> Result<HubReply> {
    let replies = hubs.split(',').map(|hub| describe_hub(hub.trim()));
    let together = |mut all: HubReply, one: HubReply| {
        all.rss_bytes += one.rss_bytes;
        all.cores.extend(one.cores);
        all
    };
    replies.reduce(|all, one| Ok(together(all?, one?))).expect("split yields one at least")
}

fn describe_hub(hub: &str) -> Result<HubReply> {
    let credential = Credential::find_if_any()?;
    Ok(membership::describe(hub, DESCRIBE_LIMIT, credential.as_ref())?)
}
