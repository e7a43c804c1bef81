//! Followers of a job's weights. They return version after version, from a hub or from a directory that a
//! publisher writes.
//!
//! ```text
//!   next() --way--> thread: Source::fetch, or Reader::go_to --way, step--> next(): return it, try again, or end
//! ```
//!
//! The Python thread waits without the GIL, and checks every 50 ms for Ctrl-C and for `close`. A try for
//! which nobody waits any more continues, and the next call gets its result. No worker waits for a follower.

mod version;
mod way;

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use pyo3::prelude::*;

use crate::errors::{OrderError, ResourceError, SettingsError, UnreachableError};
pub use version::{Tensor, Version};
use way::{Step, Way};

/// The time between two checks for Ctrl-C.
const LOOK: Duration = Duration::from_millis(50);

/// The time between two tries while there is no new version.
const PAUSE: Duration = Duration::from_millis(500);

/// A follower of a job's weights.
#[pyclass(frozen, module = "phub._phub")]
pub struct Follower {
    state: Mutex<State>,
    is_closed: AtomicBool,
}

struct State {
    work: Work,
    /// The time at which the try began that returned the last version.
    begun: Option<Instant>,
}

/// The way to the weights, or the thread that uses it now.
enum Work {
    Idle(Box<Way>),
    Busy(Receiver<(Box<Way>, Step)>, Instant),
    Gone,
}

/// The limits of one call.
struct Wait {
    every: Duration,
    timeout: Option<Duration>,
}

#[pymethods]
impl Follower {
    /// Creates a follower of a job at its hub, or at all of its hubs, with commas between them. `names` has
    /// pairs of a key and the name that the key gets.
    #[staticmethod]
    fn of_hub(
        hub: &str,
        job: &str,
        dtype: &str,
        ema: bool,
        names: Vec<(String, String)>,
        token: Option<&str>,
        hub_wait: f64,
    ) -> PyResult<Self> {
        let hub_wait = seconds("hub_wait", hub_wait)?;
        Ok(Follower::new(Way::of_hub(hub, job, (dtype, ema), names, (token, hub_wait))?))
    }

    /// Creates a follower of a directory.
    #[staticmethod]
    fn of_directory(directory: std::path::PathBuf) -> Self {
        Follower::new(Way::of_directory(&directory))
    }

    /// Returns the next version. It is taken `every` seconds after the begin of the try for the last version,
    /// or later. Returns None at the end. Raises an error `timeout` seconds after that time.
    #[pyo3(name = "next")]
    fn next_version(&self, py: Python<'_>, every: f64, timeout: Option<f64>) -> PyResult<Option<Version>> {
        let every = seconds("every", every)?;
        let timeout = timeout.map(|timeout| seconds("timeout", timeout)).transpose()?;
        py.detach(|| {
            let Ok(mut state) = self.state.try_lock() else {
                return Err(OrderError::new_err(
                    "another thread waits for the next version; make a subscription for each thread",
                ));
            };
            state.next(&self.is_closed, &Wait { every, timeout })
        })
    }

    /// Ends all waits.
    fn close(&self) {
        self.is_closed.store(true, Ordering::Relaxed);
    }
}

impl Follower {
    fn new(way: Way) -> Self {
        let state = State { work: Work::Idle(Box::new(way)), begun: None };
        Follower { state: Mutex::new(state), is_closed: AtomicBool::new(false) }
    }
}

/// Returns a time that Python gives in seconds.
fn seconds(what: &str, seconds: f64) -> PyResult<Duration> {
    let wrong = |_| SettingsError::new_err(format!("{what} {seconds}: expected seconds, 0 or more"));
    Duration::try_from_secs_f64(seconds).map_err(wrong)
}

impl State {
    fn next(&mut self, is_closed: &AtomicBool, wait: &Wait) -> PyResult<Option<Version>> {
        let mut why = "no version has come".to_owned();
        // The time of the next try.
        let mut until = self.begun.and_then(|begun| begun.checked_add(wait.every));
        let first = until.map_or_else(Instant::now, |until| until.max(Instant::now()));
        let deadline = wait.timeout.and_then(|timeout| first.checked_add(timeout));
        loop {
            if is_closed.load(Ordering::Relaxed) {
                return Ok(None);
            }
            Python::attach(|py| py.check_signals())?;
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                return Err(UnreachableError::new_err(format!("no version within the timeout: {why}")));
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
                // A hub makes a new copy for each try, so the next try comes later.
                Step::Same(because) => (why, until) = (because, begun.checked_add(wait.every.max(PAUSE))),
                Step::Later(because) => (why, until) = (because, Instant::now().checked_add(PAUSE)),
                Step::End => return Ok(None),
                Step::Fault(error) => return Err(error),
            }
        }
    }

    /// Begins a try if none is running. Returns its result if it arrives soon.
    fn look(&mut self) -> PyResult<Option<(Step, Instant)>> {
        if let Work::Idle(_) = self.work {
            self.begin()?;
        }
        let Work::Busy(coming, begun) = &self.work else {
            return Err(ResourceError::new_err("the thread that got the weights is gone; subscribe anew"));
        };
        match coming.recv_timeout(LOOK) {
            Ok((way, step)) => {
                let begun = *begun;
                self.work = Work::Idle(way);
                Ok(Some((step, begun)))
            }
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => {
                self.work = Work::Gone;
                Ok(None)
            }
        }
    }

    fn begin(&mut self) -> PyResult<()> {
        let Work::Idle(mut way) = std::mem::replace(&mut self.work, Work::Gone) else { return Ok(()) };
        let (result, coming) = channel();
        let thread = std::thread::Builder::new().name("phub-follow".into()).spawn(move || {
            let step = way.step();
            // If the follower is gone, no caller waits for the result.
            let _ = result.send((way, step));
        });
        thread.map_err(|error| ResourceError::new_err(format!("cannot start a thread: {error}")))?;
        self.work = Work::Busy(coming, Instant::now());
        Ok(())
    }
}
