//! A core thread: pinned, owns one port and one [`Core`], turns until it is told to stop.
//!
//! Between turns it looks at one flag. Commands and reports cross by channel, outside the round path.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::task::Waker;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use fabric::{Idle, IdlePolicy, Port, RecvWindow, Slab, Spans, Until};
use pbox_core::kernels::Kernels;
use pbox_core::{Core, Front, JobId, Layout, Notice, Occasion, Restored, Round, ShardSpec, Taken};
use tokio::sync::{mpsc::UnboundedSender, oneshot};

use super::Lane;

/// Turns between two publications of the meters while work never stops.
const TURNS_PER_PUBLICATION: u32 = 1024;

/// What a core thread is told.
#[derive(Debug)]
pub(crate) enum Command<E> {
    AddJob {
        job: JobId,
        spec: Box<ShardSpec>,
    },
    AddWorker {
        job: JobId,
        rank: u32,
        gradients: Arc<RecvWindow>,
        /// This core's part of the worker's own weights window, where it has one.
        weights: Option<Spans>,
        endpoint: Box<E>,
    },
    RemoveWorker {
        job: JobId,
        rank: u32,
    },
    RemoveJob {
        job: JobId,
    },
    /// Begin the job with a state that rank 0 brought. Nobody takes part yet.
    Restore {
        job: JobId,
        layout: Arc<Layout>,
        restored: Arc<Restored>,
    },
    /// Finish no round of the job until the release, and report the rounds in flight.
    Hold {
        job: JobId,
        done: oneshot::Sender<Option<Front>>,
    },
    /// Take a snapshot of the held job: its state before a round.
    TakeSnapshot {
        job: JobId,
        occasion: Occasion,
        before: Round,
    },
    /// A snapshot's part is written, or will not be written.
    GiveBack {
        job: JobId,
        /// Its memory, unless the writer panicked with it.
        values: Option<Slab>,
    },
    /// Go on. The workers in `admitted` take part from round `from` on.
    Release {
        job: JobId,
        from: Round,
        admitted: Arc<[u32]>,
        done: oneshot::Sender<()>,
    },
    SetLearningRate {
        job: JobId,
        from: Round,
        rate: f32,
        done: oneshot::Sender<()>,
    },
    Stop,
}

/// What a core thread reports. There are few reports for each worker and job, and their number bounds the channel.
#[derive(Debug)]
pub(crate) enum Report {
    /// This core has the worker's link, and has touched its part of the worker's window.
    Attached { job: JobId, rank: u32 },
    /// This core has let go of the worker, and reports nothing more about it.
    Removed { job: JobId, rank: u32 },
    /// The worker's link ended.
    WorkerGone { job: JobId, rank: u32, reason: String },
    /// This core's part of a snapshot is taken, or cannot be taken.
    Snapshot { job: JobId, core: usize, taken: Taken },
    /// This many of the core's chunks skipped rounds whose workers are all gone.
    Skipped { job: JobId, chunks: u64 },
    /// The core cannot take the job, or cannot continue it.
    JobFailed { job: JobId, reason: String },
    /// The hub stops: write the checkpoints that can be written. This comes from the hub, through the same channel.
    SaveAll { done: std::sync::mpsc::Sender<()> },
    /// The thread has ended, by a bug of the hub.
    CorePanicked { cpu: u32 },
}

/// What a core has done. Other threads may read it at any time.
#[derive(Debug, Default)]
pub(crate) struct Meters {
    pub chunks: AtomicU64,
    pub chunk_bytes: AtomicU64,
    pub busy_ns: AtomicU64,
    pub waiting_ns: AtomicU64,
}

/// The hub's end of a core thread.
#[derive(Debug)]
pub(crate) struct CoreHandle<E> {
    pub lane: Lane,
    pub meters: Arc<Meters>,
    commands: Sender<Command<E>>,
    mail: Arc<AtomicBool>,
    waker: Waker,
    thread: Option<JoinHandle<()>>,
}

impl<E: Send + 'static> CoreHandle<E> {
    /// Starts the thread of core `number` on a lane. The thread owns `port`.
    pub fn start<P: Port<Endpoint = E> + 'static>(
        number: usize,
        lane: Lane,
        port: P,
        kernels: &'static Kernels,
        idle: IdlePolicy,
        reports: UnboundedSender<Report>,
    ) -> std::io::Result<Self> {
        let (commands, inbox) = channel();
        let mail = Arc::new(AtomicBool::new(false));
        let meters = Arc::new(Meters::default());
        let waker = port.waker();
        let thread = {
            let (mail, meters) = (Arc::clone(&mail), Arc::clone(&meters));
            let cpu = lane.cpu;
            std::thread::Builder::new().name(format!("phub-core-{cpu}")).spawn(move || {
                pin(cpu);
                let core = Core::new(port, kernels);
                let last_words = reports.clone();
                let thread = CoreThread { number, core, inbox, mail, meters, reports };
                if catch_unwind(AssertUnwindSafe(|| thread.run(idle))).is_err() {
                    let _ = last_words.send(Report::CorePanicked { cpu });
                }
            })?
        };
        Ok(CoreHandle { lane, meters, commands, mail, waker, thread: Some(thread) })
    }

    /// A core without a thread, for tests that read its commands.
    #[cfg(test)]
    pub fn idle(cpu: u32) -> (Self, Receiver<Command<E>>) {
        let (commands, inbox) = channel();
        let waker = Waker::noop().clone();
        let (mail, meters) = Default::default();
        let lane = Lane { cpu, nic: None };
        (CoreHandle { lane, meters, commands, mail, waker, thread: None }, inbox)
    }

    /// Sends a command. The thread sees it after its current turn.
    pub fn send(&self, command: Command<E>) {
        // A thread that panicked takes no commands. The workers of its jobs see their links close.
        let _ = self.commands.send(command);
        self.mail.store(true, Ordering::Release); // [mail]
        self.waker.wake_by_ref();
    }

    /// Waits for the thread to end after [`Command::Stop`].
    pub fn join(&mut self) {
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Keeps the calling thread on a cpu.
pub(crate) fn pin(cpu: u32) {
    let mut set = rustix::thread::CpuSet::new();
    set.set(cpu as usize);
    if let Err(errno) = rustix::thread::sched_setaffinity(None, &set) {
        tracing::warn!(cpu, %errno, "cannot pin a core thread; it runs wherever the kernel puts it");
    }
}

struct CoreThread<P: Port> {
    number: usize,
    core: Core<P>,
    inbox: Receiver<Command<P::Endpoint>>,
    mail: Arc<AtomicBool>,
    meters: Arc<Meters>,
    reports: UnboundedSender<Report>,
}

impl<P: Port> CoreThread<P> {
    fn run(mut self, policy: IdlePolicy) {
        let mut idle = Idle::new(policy);
        let mut notices = Vec::new();
        let mut clock = Clock::new();
        loop {
            // Commands come before the turn: a command that was sent before a push is done before the push is read.
            // [mail] A swap and not a store: a command that is sent in between is seen now.
            if self.mail.load(Ordering::Relaxed) && self.mail.swap(false, Ordering::Acquire) {
                while let Ok(command) = self.inbox.try_recv() {
                    if !self.execute(command, &mut notices) {
                        return;
                    }
                    self.report_notices(&mut notices);
                }
            }
            let worked = self.core.turn(&mut notices);
            self.report_notices(&mut notices);
            if clock.note_turn(worked) {
                self.publish(&clock);
            }
            if worked {
                idle.reset();
            } else {
                idle.step(self.core.port(), Until::Any);
            }
        }
    }

    /// Carries out a command. False if the thread must stop.
    fn execute(&mut self, command: Command<P::Endpoint>, notices: &mut Vec<Notice>) -> bool {
        match command {
            Command::AddJob { job, spec } => match self.core.add_job(job, *spec) {
                Ok(()) => {}
                Err(error) => self.report(Report::JobFailed { job, reason: error.to_string() }),
            },
            Command::AddWorker { job, rank, gradients, weights, endpoint } => {
                match self.core.add_worker(job, rank, gradients, weights, *endpoint) {
                    Ok(()) => {
                        self.report(Report::Attached { job, rank });
                    }
                    Err(error) => {
                        self.report(Report::WorkerGone { job, rank, reason: error.to_string() });
                    }
                }
            }
            Command::RemoveWorker { job, rank } => {
                self.core.remove_worker(job, rank, notices);
                self.report_notices(notices);
                self.report(Report::Removed { job, rank });
            }
            Command::Restore { job, layout, restored } => self.core.restore(job, &layout, &restored),
            Command::Hold { job, done } => {
                let _ = done.send(self.core.hold(job));
            }
            Command::TakeSnapshot { job, occasion, before } => {
                self.core.take_snapshot(job, occasion, before, notices);
            }
            Command::GiveBack { job, values } => self.core.give_back(job, values),
            Command::Release { job, from, admitted, done } => {
                self.core.release(job, from, &admitted, notices);
                let _ = done.send(());
            }
            Command::RemoveJob { job } => self.core.remove_job(job),
            Command::SetLearningRate { job, from, rate, done } => {
                self.core.set_learning_rate(job, from, rate);
                let _ = done.send(());
            }
            Command::Stop => return false,
        }
        true
    }

    fn report_notices(&self, notices: &mut Vec<Notice>) {
        let mut skipped: Option<(JobId, u64)> = None;
        for notice in notices.drain(..) {
            self.report(match notice {
                // All are of one job: they follow from one command, or from the end of one worker.
                Notice::Skipped { job, .. } => {
                    skipped = Some((job, skipped.map_or(1, |(_, chunks)| chunks + 1)));
                    continue;
                }
                Notice::WorkerGone { job, rank, reason } => Report::WorkerGone { job, rank, reason },
                Notice::Snapshot { job, taken } => Report::Snapshot { job, core: self.number, taken },
                Notice::JobFailed { job, reason } => Report::JobFailed { job, reason },
            });
        }
        if let Some((job, chunks)) = skipped {
            self.report(Report::Skipped { job, chunks });
        }
    }

    fn report(&self, report: Report) {
        let _ = self.reports.send(report);
    }

    fn publish(&self, clock: &Clock) {
        let tally = self.core.tally();
        self.meters.chunks.store(tally.chunks, Ordering::Relaxed);
        self.meters.chunk_bytes.store(tally.chunk_bytes, Ordering::Relaxed);
        self.meters.busy_ns.store(nanos(clock.busy), Ordering::Relaxed);
        self.meters.waiting_ns.store(nanos(clock.waiting), Ordering::Relaxed);
    }
}

fn nanos(time: Duration) -> u64 {
    time.as_nanos() as u64
}

/// Splits a thread's time into work and waiting. Reads the clock when one turns into the other, and now and then in
/// between.
struct Clock {
    busy: Duration,
    waiting: Duration,
    since: Instant,
    working: bool,
    turns: u32,
}

impl Clock {
    fn new() -> Self {
        let zero = Duration::ZERO;
        Clock { busy: zero, waiting: zero, since: Instant::now(), working: false, turns: 0 }
    }

    /// A turn is over. True if it is time to publish the meters.
    fn note_turn(&mut self, worked: bool) -> bool {
        self.turns += 1;
        if worked == self.working && self.turns < TURNS_PER_PUBLICATION {
            return false;
        }
        let now = Instant::now();
        let part = if self.working { &mut self.busy } else { &mut self.waiting };
        *part += now - self.since;
        (self.since, self.working, self.turns) = (now, worked, 0);
        true
    }
}
