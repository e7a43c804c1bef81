//! Sleeping at a bell and waking the sleeper, by futex(2) on the bell's word. `crate::ring::bell` has the
//! rules of the word. `waking` wakes a port that sleeps at descriptors.

use rustix::thread::futex;

use crate::ring::AtomicU32;
use crate::ring::bell::Place;

/// Sleeps for at most `timeout` while the word says that the consumer sleeps. [`wake`] ends the sleep from
/// any process.
pub fn sleep(asleep: &AtomicU32, timeout: std::time::Duration) {
    let timeout = rustix::time::Timespec {
        tv_sec: timeout.as_secs().min(i64::MAX as u64) as i64,
        tv_nsec: timeout.subsec_nanos().into(),
    };
    // After any result (woken, word already clear, timeout, signal) the caller checks its links again.
    let _ = futex::wait(asleep, futex::Flags::empty(), Place::Futex as u32, Some(&timeout));
}

/// Wakes the one thread that sleeps on the word.
pub fn wake(asleep: &AtomicU32) {
    let _ = futex::wake(asleep, futex::Flags::empty(), 1);
}
