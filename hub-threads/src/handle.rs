//! The hub's handle of a core thread. It starts the thread, sends it commands, and reads its meters.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Waker;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use fabric::{IdlePolicy, any};
use pbox_core::Discarded;
use pbox_core::kernels::Kernels;
use tokio::sync::mpsc::UnboundedSender;

use crate::alarm::guarded;
use crate::near::give_way;
use crate::timeline::CoreTimeline;
use crate::{Command, Contention, CoreThread, Lane, Report};

/// The counters of a core's work. Other threads may read them at any time.
#[derive(Debug, Default)]
pub struct Meters {
    /// The chunks that were stepped.
    pub chunks: AtomicU64,
    /// The bytes of the stepped chunks.
    pub chunk_bytes: AtomicU64,
    /// The time of turns with work, in nanoseconds.
    pub busy_ns: AtomicU64,
    /// The time of waits, in nanoseconds.
    pub waiting_ns: AtomicU64,
    /// The part of `waiting_ns` for which the thread slept, in nanoseconds.
    pub asleep_ns: AtomicU64,
    /// The answers and sums that waited before they were posted, because their link had no room or its credit was used up.
    pub held_back: AtomicU64,
}

/// The time since which a core thread has commands that it has not taken.
#[derive(Debug)]
pub struct WaitingSince {
    begun: Instant,
    /// The time from `begun` to the first waiting command, in nanoseconds, plus one; 0 if no command waits.
    since: AtomicU64,
}

impl WaitingSince {
    pub fn new() -> Self {
        WaitingSince { begun: Instant::now(), since: AtomicU64::new(0) }
    }

    /// Notes that a command waits.
    fn note_command(&self) {
        if self.since.load(Ordering::Relaxed) == 0 {
            let now = self.begun.elapsed().as_nanos() as u64 + 1;
            let _ = self.since.compare_exchange(0, now, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    /// Notes that the thread takes its commands. The thread will also see a command that arrives at this moment.
    pub fn clear(&self) {
        self.since.store(0, Ordering::Relaxed);
    }

    fn since(&self) -> Option<Instant> {
        let since = self.since.load(Ordering::Relaxed).checked_sub(1)?;
        Some(self.begun + Duration::from_nanos(since))
    }
}

/// The hub's handle of a core thread.
#[derive(Debug)]
pub struct CoreHandle {
    /// The cpu and NIC of the core.
    pub lane: Lane,
    /// The counters of the core's work.
    pub meters: Arc<Meters>,
    /// The part of its cpu's time that the thread gets.
    pub contention: Arc<Contention>,
    pub(crate) commands: Sender<Command>,
    pub(crate) mail: Arc<AtomicBool>,
    pub(crate) waiting_since: Arc<WaitingSince>,
    /// Wakes the thread.
    pub waker: Waker,
    pub(crate) thread: Mutex<Option<JoinHandle<()>>>,
}

/// Starts the thread that frees discarded memory. The thread ends when all senders are dropped.
pub fn free() -> std::io::Result<(Sender<Discarded>, JoinHandle<()>)> {
    let (discard, discarded) = channel();
    let free = move || {
        give_way();
        while let Ok(first) = discarded.recv() {
            drop(first);
            discarded.try_iter().for_each(drop);
            fabric::trim_heap();
        }
    };
    Ok((discard, std::thread::Builder::new().name("phub-free".into()).spawn(guarded(free))?))
}

impl CoreHandle {
    /// Starts the thread of core `number` on the cpu of a lane, which is a cpu and a NIC. The thread owns `port`, and
    /// records its work if there is a timeline.
    #[allow(clippy::too_many_arguments)] // the parts of a core
    pub fn start(
        number: usize,
        lane: Lane,
        port: any::Port,
        kernels: &'static Kernels,
        idle: IdlePolicy,
        reports: UnboundedSender<Report>,
        discard: Sender<Discarded>,
        has_timeline: bool,
    ) -> std::io::Result<Self> {
        let cpu = lane.cpu;
        let (mut handle, mut thread) = CoreThread::new(number, lane, port, kernels, reports.clone(), discard);
        thread.timeline = has_timeline.then(CoreTimeline::new);
        let contention = Arc::clone(&handle.contention);
        let run = guarded(move || {
            pin(cpu);
            contention.begin();
            if catch_unwind(AssertUnwindSafe(|| thread.run(idle))).is_err() {
                let _ = reports.send(Report::CorePanicked { cpu });
            }
        });
        let thread = std::thread::Builder::new().name(format!("phub-core-{cpu}")).spawn(run)?;
        *handle.thread.get_mut().unwrap_or_else(PoisonError::into_inner) = Some(thread);
        Ok(handle)
    }

    /// Sends the thread a command, which it carries out after its current turn.
    pub fn tell(&self, command: Command) {
        // An error means that the thread has panicked. The workers of its jobs notice that their links end.
        let _ = self.commands.send(command);
        self.waiting_since.note_command();
        self.mail.store(true, Ordering::Release); // [mail]
        self.waker.wake_by_ref();
    }

    /// Returns the time for which the thread has left commands waiting, as of `now`. If no command waits, sends a
    /// command, so that a later call sees whether the thread took the command.
    pub fn unresponsive_for(&self, now: Instant) -> Duration {
        let unresponsive =
            self.waiting_since.since().map_or(Duration::ZERO, |since| now.saturating_duration_since(since));
        if self.waiting_since.since().is_none() {
            self.tell(Command::Nothing);
        }
        unresponsive
    }

    /// Waits for the thread to end after [`Command::Stop`].
    pub fn join(&self) {
        if let Some(thread) = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take() {
            let _ = thread.join();
        }
    }
}

/// Pins the calling thread to a cpu.
pub(crate) fn pin(cpu: u32) {
    let mut set = rustix::thread::CpuSet::new();
    set.set(cpu as usize);
    if let Err(errno) = rustix::thread::sched_setaffinity(None, &set) {
        tracing::warn!(cpu, %errno, "cannot pin a core thread; the thread runs wherever the kernel puts it");
    }
}
