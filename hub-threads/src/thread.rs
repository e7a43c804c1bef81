//! A core thread. It is pinned, owns one port and one [`Core`], and makes turns until the command to stop.
//!
//! Between turns, the thread checks one flag for new commands. Commands and reports go through channels, and
//! gradients and weights do not.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use fabric::{Idle, IdlePolicy, Port as _, Until, any};
use pbox_core::kernels::Kernels;
use pbox_core::{Core, Discarded, JobId, Notice};
use tokio::sync::mpsc::UnboundedSender;

use crate::handle::{CoreHandle, Meters, WaitingSince};
use crate::timeline::CoreTimeline;
use crate::{Command, Lane, Measured, Report};

/// The number of turns between two publications of the meters, while there is always work.
const TURNS_PER_PUBLICATION: u32 = 1024;

/// The state of a core thread. Commands change it between two turns.
pub struct CoreThread {
    /// The core. Tests of the hub use it between two turns.
    pub core: Core<any::Port>,
    /// Notices that are not reported to the hub yet.
    pub notices: Vec<Notice>,
    pub(crate) number: usize,
    pub(crate) inbox: Receiver<Command>,
    mail: Arc<AtomicBool>,
    pub(crate) waiting_since: Arc<WaitingSince>,
    meters: Arc<Meters>,
    reports: UnboundedSender<Report>,
    /// The channel to the thread that frees memory.
    pub(crate) discard: Sender<Discarded>,
    clock: Clock,
    pub(crate) timeline: Option<CoreTimeline>,
    pub(crate) stops: bool,
}

impl CoreThread {
    /// Creates a core thread's state, and the hub's handle of the thread.
    pub fn new(
        number: usize,
        lane: Lane,
        port: any::Port,
        kernels: &'static Kernels,
        reports: UnboundedSender<Report>,
        discard: Sender<Discarded>,
    ) -> (CoreHandle, Self) {
        let (commands, inbox) = channel();
        let (mail, meters) = (Arc::new(AtomicBool::new(false)), Arc::new(Meters::default()));
        let waiting_since = Arc::new(WaitingSince::new());
        let (waker, core) = (port.waker(), Core::new(port, kernels));
        let handle = CoreHandle {
            lane,
            meters: Arc::clone(&meters),
            contention: Arc::default(),
            commands,
            mail: Arc::clone(&mail),
            waiting_since: Arc::clone(&waiting_since),
            waker,
            thread: Mutex::default(),
        };
        let thread = CoreThread {
            core,
            notices: Vec::new(),
            number,
            inbox,
            mail,
            waiting_since,
            meters,
            reports,
            discard,
            clock: Clock::new(),
            timeline: None,
            stops: false,
        };
        (handle, thread)
    }

    /// Runs the loop of turns. It is compiled twice, so that the timeline costs nothing if it is off.
    pub(crate) fn run(self, policy: IdlePolicy) {
        match self.timeline.is_some() {
            false => self.run_with(policy, |thread| thread.core.turn(&mut thread.notices)),
            true => self.run_with(policy, |CoreThread { core, notices, timeline, .. }| {
                core.turn_seen(notices, timeline.as_mut().expect("this loop is for one"))
            }),
        }
    }

    fn run_with(mut self, policy: IdlePolicy, turn: impl Fn(&mut Self) -> bool) {
        let mut idle = Idle::new(policy);
        self.clock = Clock::new();
        loop {
            // Commands come before the turn: a command that was sent before a push is carried out before the
            // push is read.
            // [mail] The flag is swapped and not only stored to. So a command that is sent between the two
            // accesses is seen now.
            if self.mail.load(Ordering::Relaxed) && self.mail.swap(false, Ordering::Acquire) {
                self.obey();
                if self.stops {
                    return;
                }
            }
            let worked = turn(&mut self);
            self.report_notices();
            if self.clock.note_turn(worked) {
                self.publish();
                self.watch();
            }
            if worked {
                idle.reset();
            } else {
                let asleep = idle.sleeps_next().then(Instant::now);
                idle.step(self.core.port(), Until::Any);
                self.clock.note_wake(asleep);
            }
        }
    }

    pub(crate) fn report_notices(&mut self) {
        let mut skipped: Option<(JobId, u64)> = None;
        for notice in self.notices.drain(..) {
            let report = match notice {
                // All notices are of one job: one command, or the end of one worker, has caused them.
                Notice::Skipped { job, .. } => {
                    skipped = Some((job, skipped.map_or(1, |(_, chunks)| chunks + 1)));
                    continue;
                }
                Notice::WorkerGone { job, rank, reason, by_itself } => {
                    Report::WorkerGone { job, rank, reason, by_itself }
                }
                Notice::AboveGone { job, reason } => Report::AboveGone { job, reason },
                Notice::Snapshot { job, taken } => {
                    Report::Snapshot { job, core: self.number, taken: Box::new(taken) }
                }
                Notice::JobFailed { job, reason } => Report::JobFailed { job, reason },
            };
            let _ = self.reports.send(report);
        }
        if let Some((job, chunks)) = skipped {
            self.report(Report::Skipped { job, chunks });
        }
    }

    pub(crate) fn report(&self, report: Report) {
        let _ = self.reports.send(report);
    }

    /// Tells the core about its waits: work has begun, or ended, or the wait continues.
    fn watch(&mut self) {
        match self.clock.working {
            true => self.core.end_wait(self.clock.at(self.clock.woke)),
            false => self.core.begin_wait(self.clock.at(self.clock.since)),
        }
    }

    /// Returns this core's measurements of a job's last rounds up to now.
    pub(crate) fn measured(&mut self, job: JobId) -> Measured {
        if !self.clock.working {
            self.core.begin_wait(self.clock.at(Instant::now()));
        }
        let links: Vec<_> = self.core.links(job).collect();
        let port = self.core.port();
        let crossed =
            links.into_iter().filter_map(|(rank, link)| Some((rank, port.crossed(link)?))).collect();
        let (round, watched) = (self.core.round(job), self.core.watched(job));
        Measured { round, watched, gauged: self.core.gauged(job), crossed }
    }

    fn publish(&self) {
        let (tally, clock) = (self.core.tally(), &self.clock);
        self.meters.chunks.store(tally.chunks, Ordering::Relaxed);
        self.meters.chunk_bytes.store(tally.chunk_bytes, Ordering::Relaxed);
        self.meters.busy_ns.store(clock.busy.as_nanos() as u64, Ordering::Relaxed);
        self.meters.waiting_ns.store(clock.waiting.as_nanos() as u64, Ordering::Relaxed);
        self.meters.asleep_ns.store(clock.asleep.as_nanos() as u64, Ordering::Relaxed);
        self.meters.held_back.store(tally.held_back, Ordering::Relaxed);
    }
}

/// A clock that splits a thread's time into work and waiting. It is read after each wait, when work begins or
/// ends, and after every 1024 turns.
struct Clock {
    begun: Instant,
    busy: Duration,
    waiting: Duration,
    asleep: Duration,
    /// The time up to which work and waiting are counted.
    since: Instant,
    /// The time when the last wait ended.
    woke: Instant,
    working: bool,
    turns: u32,
}

impl Clock {
    fn new() -> Self {
        let (zero, now) = (Duration::ZERO, Instant::now());
        Clock {
            begun: now,
            busy: zero,
            waiting: zero,
            asleep: zero,
            since: now,
            woke: now,
            working: false,
            turns: 0,
        }
    }

    /// Returns a time in microseconds since the clock's start.
    fn at(&self, time: Instant) -> u64 {
        time.saturating_duration_since(self.begun).as_micros() as u64
    }

    /// Notes that a turn is over. Returns true if it is time to publish the meters.
    fn note_turn(&mut self, worked: bool) -> bool {
        self.turns += 1;
        if worked == self.working && self.turns < TURNS_PER_PUBLICATION {
            return false;
        }
        self.book(worked, Instant::now());
        true
    }

    /// Notes that a wait is over. If the thread slept, `asleep` is the time when the sleep began. Whether
    /// there is work is not known yet.
    fn note_wake(&mut self, asleep: Option<Instant>) {
        self.woke = Instant::now();
        self.asleep += asleep.map_or(Duration::ZERO, |asleep| self.woke - asleep);
    }

    /// Counts the time until the end of a turn as work or waiting. A turn that finds work after a wait counts
    /// as work.
    fn book(&mut self, worked: bool, now: Instant) {
        if worked && !self.working {
            self.waiting += self.woke - self.since;
            (self.since, self.working) = (self.woke, true);
        }
        let part = if self.working { &mut self.busy } else { &mut self.waiting };
        *part += now - self.since;
        (self.since, self.working, self.turns) = (now, worked, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_turn_with_work_is_work() {
        let mut clock = Clock::new();
        let at = |ms| clock.since + Duration::from_millis(ms);
        let [woke, done, empty, woke_again, done_again] = [10, 17, 18, 30, 35].map(at);
        clock.woke = woke;
        clock.book(true, done);
        assert_eq!([clock.waiting, clock.busy], [10, 7].map(Duration::from_millis));
        clock.book(false, empty);
        clock.woke = woke_again;
        clock.book(true, done_again);
        assert_eq!([clock.waiting, clock.busy], [22, 13].map(Duration::from_millis));
    }
}
