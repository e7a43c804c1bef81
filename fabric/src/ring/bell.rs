//! The bell: how a producer wakes a consumer that sleeps, without a system call when it does not.
//!
//! One word per port, shared by all its producers. Before the consumer sleeps, it writes the ring
//! positions to be woken for (`wake_at`), sets the word, and looks once more. A producer publishes
//! first and looks at the word afterwards. The two fences make it impossible that both look too
//! early.
//!
//! ```text
//!   consumer                         producer
//!   wake_at = ...                    tail = ...          (publish)
//!   asleep = 1                       fence
//!   fence            [bell]          if asleep && tail reached wake_at:
//!   nothing unread? sleep while 1       asleep = 0, wake
//! ```
//!
//! A hostile producer can wake the consumer for nothing or clear the word. The consumer's sleep has
//! a time-out, so it can cause delay and nothing worse.

use super::sync::{AtomicU32, Ordering, fence};

/// Consumer: announces that it is about to sleep. The caller has set its rings' `wake_at` before,
/// and looks at them once more after.
pub fn announce(asleep: &AtomicU32) {
    asleep.store(1, Ordering::Relaxed);
    fence(Ordering::SeqCst); // [bell]
}

/// Awake again: set by the consumer, or by a thread of its process that is about to wake it.
pub fn awake(asleep: &AtomicU32) {
    asleep.store(0, Ordering::Relaxed);
}

/// Producer: orders what it published before its look at the bell. Once per flush.
pub fn published() {
    fence(Ordering::SeqCst); // [bell]
}

/// Producer: whether this call is the one that must wake the consumer. The read-modify-write is
/// reached only when the consumer sleeps.
pub fn claim_wake(asleep: &AtomicU32) -> bool {
    asleep.load(Ordering::Relaxed) != 0 && asleep.swap(0, Ordering::Relaxed) != 0
}
