//! A guard against tests that hang: a thread that ends the process when the test does not end.

use std::io::Write;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

/// Long enough for the slowest test on a loaded machine with one core; a hang, not slowness.
const LIMIT: Duration = Duration::from_secs(60);

/// Aborts the process, with the test's name, unless dropped within 60 seconds.
#[derive(Debug)]
pub struct Watchdog {
    _alive: Sender<()>,
}

impl Watchdog {
    /// Starts to watch over a test.
    pub fn new(test: impl Into<String>) -> Self {
        let (alive, dropped) = channel::<()>();
        let test = test.into();
        std::thread::spawn(move || {
            if dropped.recv_timeout(LIMIT) == Err(RecvTimeoutError::Timeout) {
                // Not eprintln, which the test harness keeps to itself and an abort loses.
                let _ = writeln!(std::io::stderr(), "watchdog: {test} did not end within {LIMIT:?}");
                std::process::abort();
            }
        });
        Watchdog { _alive: alive }
    }
}
