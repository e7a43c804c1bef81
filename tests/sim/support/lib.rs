//! A simulated cluster of one thread, the faults that it may have, and plain models of the expected weights.

#![forbid(unsafe_code)]
#![allow(missing_docs)] // no user reads this crate

pub mod control;
pub mod counts;
pub mod hubs;
pub mod levels;
pub mod member;
pub mod messages;
pub mod model;
pub mod plan;
pub mod race;
pub mod simulated;
pub mod trouble;
pub mod values;

use pbox_core::Optimizer;

pub const SGD: Optimizer = Optimizer::Sgd { learning_rate: 0.5, weight_decay: 0.0 };

/// Asserts that an error contains all of `words`.
#[track_caller]
pub fn says(error: impl std::fmt::Display, words: &[&str]) {
    let error = error.to_string();
    for word in words {
        assert!(error.contains(word), "expected {word:?} in the error:\n  {error}");
    }
}
