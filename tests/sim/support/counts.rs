//! Counts of what happens in the simulated clusters of a thread, by name.

use std::cell::RefCell;
use std::collections::BTreeMap;

thread_local! {
    static COUNTS: RefCell<BTreeMap<&'static str, usize>> = RefCell::default();
}

pub fn count(what: &'static str, times: usize) {
    COUNTS.with_borrow_mut(|counts| *counts.entry(what).or_default() += times);
}

/// Returns the counts of this thread, and sets them to zero.
pub fn take() -> BTreeMap<&'static str, usize> {
    COUNTS.take()
}
