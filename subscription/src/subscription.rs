//! A subscription. It returns version after version, with a time limit for each.
//!
//! ```text
//!   next_version() --feed--> thread: Feed::step --feed, step--> next_version(): return it, try again, or end
//! ```
//!
//! The calling thread waits, and every 50 ms asks its caller whether the wait is over. If the caller stops waiting, the try
//! continues on its thread, and the next call gets the result of this try. Only one thread at a time has the `Feed` of the
//! weights. This module must not depend on the source of the weights.

use std::num::NonZeroU32;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Mutex, TryLockError};
use std::time::{Duration, Instant};

use versions::{Origin, VersionId, Weights};

use crate::error::SubscriptionError;
use crate::feed::{Feed, Step};
use crate::source::{Source, SourceSettings};

/// The interval at which a waiting thread asks its caller whether the wait is over.
const LOOK: Duration = Duration::from_millis(50);

/// The time between two tries while there is no new version.
const PAUSE: Duration = Duration::from_millis(500);

/// All weights of one round.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Version {
    /// The job, and the round before which it had these weights.
    pub origin: Origin,
    /// The number of the version in its directory. `None` for a version from a hub.
    pub id: Option<VersionId>,
    /// The number of wanted versions that the reader has missed between the last version and this version. For hubs it
    /// is 0, except with [`Wanted::Each`].
    pub skipped: u64,
    /// The weights, by name.
    pub weights: Weights,
}

/// The versions that are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// The newest one at each call.
    Newest {
        /// The shortest time from the start of the try that gave a version to the start of the next try.
        every: Duration,
    },
    /// The versions at the multiples of a number. From hubs: the weights before each round that is a multiple. From a
    /// directory: each version whose number is a multiple, beginning with the oldest in the directory.
    Each(NonZeroU32),
}

impl Default for Wanted {
    /// Returns the newest version, every ten seconds.
    fn default() -> Self {
        Wanted::Newest { every: Duration::from_secs(10) }
    }
}

impl Wanted {
    fn every(self) -> Duration {
        match self {
            Wanted::Newest { every } => every,
            Wanted::Each(_) => Duration::ZERO,
        }
    }
}

/// A subscription to a job's weights.
///
/// ```no_run
/// use subscription::{SourceSettings, Subscription, Wanted};
///
/// # fn main() -> Result<(), subscription::SubscriptionError> {
/// let settings = SourceSettings::new("127.0.0.1:7077", "job");
/// let versions = Subscription::to_hubs(settings, Wanted::default())?;
/// while let Some(version) = versions.next_version()? {
///     println!("before round {}: {:?}", version.origin.round, version.weights);
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Subscription {
    every: Duration,
    /// The longest wait for one version. The pause `every` between two versions does not count as waiting. `None` for
    /// no limit.
    timeout: Option<Duration>,
    /// The process that made the subscription. Threads do not cross a fork.
    process: u32,
    state: Mutex<State>,
    is_closed: AtomicBool,
}

#[derive(Debug)]
struct State {
    work: Work,
    /// The start of the try that returned the last version.
    begun: Option<Instant>,
}

/// The feed of the weights, or the thread that uses it now.
#[derive(Debug)]
enum Work {
    Idle(Box<Feed>),
    Busy(Receiver<(Box<Feed>, Step)>, Instant),
    Gone,
}

impl Subscription {
    /// Subscribes to a job at its hubs. The hubs are asked at the first call of [`next_version`](Self::next_version).
    ///
    /// # Errors
    /// Returns an error if no job can have this name, if an address is invalid, or if the credential cannot be read.
    pub fn to_hubs(settings: SourceSettings, wanted: Wanted) -> Result<Self, SubscriptionError> {
        let source = Source::new(settings).map_err(SubscriptionError::Source)?;
        Ok(Subscription::new(Feed::to_hubs(source, wanted), wanted))
    }

    /// Subscribes to a directory of `phub-server publish`, which may have no version yet.
    pub fn to_directory(directory: &Path, wanted: Wanted) -> Self {
        Subscription::new(Feed::to_directory(directory, wanted), wanted)
    }

    fn new(feed: Feed, wanted: Wanted) -> Self {
        let state = State { work: Work::Idle(Box::new(feed)), begun: None };
        Subscription {
            every: wanted.every(),
            timeout: None,
            process: std::process::id(),
            state: Mutex::new(state),
            is_closed: AtomicBool::new(false),
        }
    }

    /// Sets the time limit of a wait for one version. The pause `every` between two versions does not count as waiting.
    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Waits for the next version. Returns `None` when the job has ended, or after [`close`](Self::close).
    ///
    /// # Errors
    /// See [`SubscriptionError`]. The caller may call again.
    pub fn next_version(&self) -> Result<Option<Version>, SubscriptionError> {
        self.next_version_unless(&mut || false)
    }

    /// Waits for the next version, unless `interrupted`, which is called 20 times a second, returns true first.
    ///
    /// # Errors
    /// See [`SubscriptionError`]. The caller may call again.
    pub fn next_version_unless(
        &self,
        interrupted: &mut dyn FnMut() -> bool,
    ) -> Result<Option<Version>, SubscriptionError> {
        if std::process::id() != self.process {
            return Err(SubscriptionError::OtherProcess);
        }
        let mut state = match self.state.try_lock() {
            Ok(state) => state,
            // A panic of `interrupted` leaves the state intact, so the poison of the lock does not matter.
            Err(TryLockError::Poisoned(state)) => state.into_inner(),
            Err(TryLockError::WouldBlock) => return Err(SubscriptionError::Busy),
        };
        state.next((self.every, self.timeout), &self.is_closed, interrupted)
    }

    /// Forgets the last version. So the next call returns the newest version at once, even if it is the same. The
    /// weights in memory stay the base of the differences that hubs send. While another thread waits for a version,
    /// this call does nothing.
    pub fn forget(&self) {
        if let Ok(mut state) = self.state.try_lock()
            && let Work::Idle(feed) = &mut state.work
        {
            feed.forget();
            state.begun = None;
        }
    }

    /// Ends the subscription. A thread that waits for the next version stops waiting.
    pub fn close(&self) {
        self.is_closed.store(true, Ordering::Relaxed);
    }
}

impl Drop for Subscription {
    /// Leaks the work in the child of a fork. The thread does not exist in the child, and may have been sending at the fork.
    /// The NICs belong to the parent.
    fn drop(&mut self) {
        if std::process::id() != self.process
            && let Ok(state) = self.state.get_mut()
        {
            std::mem::forget(std::mem::replace(&mut state.work, Work::Gone));
        }
    }
}

impl State {
    fn next(
        &mut self,
        (every, timeout): (Duration, Option<Duration>),
        is_closed: &AtomicBool,
        interrupted: &mut dyn FnMut() -> bool,
    ) -> Result<Option<Version>, SubscriptionError> {
        let mut why = "no version has come".to_owned();
        // The time of the next try.
        let mut until = self.begun.and_then(|begun| begun.checked_add(every));
        let first = until.map_or_else(Instant::now, |until| until.max(Instant::now()));
        let deadline = timeout.and_then(|timeout| first.checked_add(timeout));
        loop {
            if is_closed.load(Ordering::Relaxed) {
                return Ok(None);
            }
            if interrupted() {
                return Err(SubscriptionError::Interrupted);
            }
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                return Err(SubscriptionError::Timeout { why });
            }
            if let Some(left) = until.and_then(|until| until.checked_duration_since(Instant::now())) {
                std::thread::sleep(left.min(LOOK));
                continue;
            }
            until = None;
            let Some((step, begun)) = self.look()? else { continue };
            match step {
                Step::Version(version) => {
                    self.begun = Some(begun);
                    return Ok(Some(version));
                }
                // Each try makes the hub copy its weights. So the next try comes only after `every`, even if `PAUSE` is
                // shorter.
                Step::Unchanged(because) => (why, until) = (because, begun.checked_add(every.max(PAUSE))),
                Step::RetryLater(because) => (why, until) = (because, Instant::now().checked_add(PAUSE)),
                Step::RetryNow(because) => why = because,
                Step::End => return Ok(None),
                Step::Fault(error) => return Err(error),
            }
        }
    }

    /// Begins a try if no try is running. Returns the result of the try if it arrives soon.
    fn look(&mut self) -> Result<Option<(Step, Instant)>, SubscriptionError> {
        if let Work::Idle(_) = self.work {
            self.begin()?;
        }
        let Work::Busy(coming, begun) = &self.work else { return Err(SubscriptionError::Gone) };
        match coming.recv_timeout(LOOK) {
            Ok((feed, step)) => {
                let begun = *begun;
                self.work = Work::Idle(feed);
                Ok(Some((step, begun)))
            }
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => {
                self.work = Work::Gone;
                Ok(None)
            }
        }
    }

    fn begin(&mut self) -> Result<(), SubscriptionError> {
        let Work::Idle(mut feed) = std::mem::replace(&mut self.work, Work::Gone) else { return Ok(()) };
        let (result, coming) = channel();
        let thread = std::thread::Builder::new().name("phub-follow".into()).spawn(move || {
            let step = feed.step();
            // If the subscription was dropped, no caller waits for the result.
            let _ = result.send((feed, step));
        });
        thread.map_err(SubscriptionError::Thread)?;
        self.work = Work::Busy(coming, Instant::now());
        Ok(())
    }
}
