//! A log line now and then, for events that a flood of clients causes.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The interval at which the log mentions one cause.
const SAY_EVERY: Duration = Duration::from_secs(1);

/// Counts an event that may happen often, for a log line now and then. There is one for each cause.
#[derive(Debug, Default)]
pub(crate) struct Seldom(Mutex<(Option<Instant>, u64)>);

impl Seldom {
    /// Counts an event. If it is time to log it again, returns how often it happened since the last time.
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
        let seldom = Seldom::default();
        assert_eq!(seldom.count(), Some(1));
        assert!((0..100).all(|_| seldom.count().is_none()));
        let (said, times) = *seldom.0.lock().unwrap();
        assert_eq!(times, 100);
        *seldom.0.lock().unwrap() = (said.map(|said| said - SAY_EVERY), times);
        assert_eq!(seldom.count(), Some(101), "the line says how many were not said");
    }
}
