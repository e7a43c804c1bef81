//! A guard against tests that hang: a thread that ends the process when the test does not end.

use std::io::Write;
use std::panic::Location;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Mutex, Once, PoisonError};
use std::thread;
use std::time::Duration;

/// The time after which a test counts as hanging. It is long enough for the slowest test on a loaded machine
/// with one core.
const LIMIT: Duration = Duration::from_secs(120);

/// The panics in this process. The test harness shows a panic only when its test ends. A test that waits for
/// a panicked thread does not end.
static PANICS: Mutex<Vec<String>> = Mutex::new(Vec::new());
const MOST_PANICS: usize = 16;

/// A guard that aborts the process with the test's name and the panics, unless it is dropped within 120 seconds.
#[derive(Debug)]
pub struct Watchdog {
    _alive: Sender<()>,
}

impl Watchdog {
    /// Starts to watch over the test that calls it.
    #[track_caller]
    pub fn start() -> Self {
        Self::over(String::new())
    }

    /// Starts to watch like [`start`](Self::start). The message then also names the object under test, such
    /// as a bed with its seed.
    #[track_caller]
    pub fn on(what: impl std::fmt::Display) -> Self {
        Self::over(format!(" on {what}"))
    }

    #[track_caller]
    fn over(what: String) -> Self {
        static HOOK: Once = Once::new();
        HOOK.call_once(keep_panics);
        let (alive, dropped) = channel::<()>();
        // The test harness gives a test's thread the name of the test.
        let (place, current) = (Location::caller(), thread::current());
        let test = format!("{}{what} ({place})", current.name().unwrap_or("a test"));
        thread::spawn(move || {
            if dropped.recv_timeout(LIMIT) == Err(RecvTimeoutError::Timeout) {
                // `eprintln` does not work here: the test harness captures its output, and the abort loses
                // it.
                let mut stderr = std::io::stderr();
                let _ = writeln!(stderr, "watchdog: {test} did not end within {LIMIT:?}");
                for panic in PANICS.lock().unwrap_or_else(PoisonError::into_inner).iter() {
                    let _ = writeln!(stderr, "before, {panic}");
                }
                std::process::abort();
            }
        });
        Watchdog { _alive: alive }
    }
}

fn keep_panics() {
    let print = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        let mut panics = PANICS.lock().unwrap_or_else(PoisonError::into_inner);
        if panics.len() < MOST_PANICS {
            let current = thread::current();
            panics.push(format!("thread {} {info}", current.name().unwrap_or("without a name")));
        }
        drop(panics);
        print(info);
    }));
}
