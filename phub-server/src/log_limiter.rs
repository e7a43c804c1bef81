//! A limit on log lines for events that many clients can cause.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The shortest interval between two log lines about one cause.
const SAY_EVERY: Duration = Duration::from_secs(1);

/// A counter of an event that may happen often. It decides when the log mentions the event. Each cause
/// has its own counter.
#[derive(Debug, Default)]
pub(crate) struct LogLimiter(Mutex<(Option<Instant>, u64)>);

impl LogLimiter {
    /// Counts an event. If it is time to log it again, returns the number of events since the last log line.
    pub fn count(&self) -> Option<u64> {
        let mut counted = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (said, times) = &mut *counted;
        *times += 1;
        if said.is_some_and(|said| said.elapsed() < SAY_EVERY) {
            return None;
        }
        *said = Some(Instant::now());
        Some(std::mem::take(times))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_logged_once() {
        let limiter = LogLimiter::default();
        assert_eq!(limiter.count(), Some(1));
        assert!((0..100).all(|_| limiter.count().is_none()));
        let (said, times) = *limiter.0.lock().unwrap();
        assert_eq!(times, 100);
        *limiter.0.lock().unwrap() = (said.map(|said| said - SAY_EVERY), times);
        assert_eq!(limiter.count(), Some(101), "the line says how many were not said");
    }
}
