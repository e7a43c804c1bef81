//! Pauses of the hub's process: it was suspended, or got no processor. Plain state.

use std::time::{Duration, Instant};

/// The delay of the check for silent workers above which the delay counts as a pause. During a pause the hub received
/// no heartbeats.
const SHORTEST: Duration = Duration::from_millis(500);

/// The rule that decides after which pauses the hub counts the silence of its workers anew.
pub(crate) struct Pauses {
    /// The limit on the silence of a worker.
    limit: Duration,
    /// The time of the last restart of the silence.
    last: Option<Instant>,
}

impl Pauses {
    /// Creates the state of a hub with this limit on the silence of a worker.
    pub fn new(limit: Duration) -> Self {
        Pauses { limit, last: None }
    }

    /// Notes that the check came late by `pause`. Returns whether the silence of workers counts from now on.
    ///
    /// A living worker is silent for at most a third of the limit. Together with a short pause, its silence stays below
    /// the limit. Within twice the limit, only one short pause restarts the silence. So on a busy machine, many short
    /// pauses do not hide the death of a worker.
    pub fn restart(&mut self, pause: Duration, now: Instant) -> bool {
        let is_free = self.last.is_none_or(|last| now - last >= 2 * self.limit);
        let restarts = pause > SHORTEST && (is_free || pause >= self.limit / 3);
        self.last = if restarts { Some(now) } else { self.last };
        restarts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Formerly a hub on a busy machine never counted a worker as lost after the worker was cut off.
    #[test]
    fn short_pauses_end_the_silence_of_a_dead_worker_once_in_twice_the_limit() {
        let (begun, limit) = (Instant::now(), Duration::from_secs(9));
        let mut pauses = Pauses::new(limit);
        let mut restarts = |pause_ms, at_s| {
            pauses.restart(Duration::from_millis(pause_ms), begun + Duration::from_secs(at_s))
        };
        assert!(!restarts(500, 0), "the check is seldom exact");
        assert!(restarts(600, 1));
        let more: Vec<u64> = (2..=40).filter(|&at| restarts(600, at)).collect();
        assert_eq!(more, [19, 37]);
        assert!(restarts(3000, 41), "living workers may have been silent for long");
    }
}
