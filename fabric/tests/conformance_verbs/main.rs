//! The conformance suite over verbs: either end under test, with peers in this process and in others. A peer
//! dies by `kill -9`. The suite runs on each device of `PHUB_TEST_DEVICE`, and on all of them together. Other
//! tests are about machines with faults.
#![forbid(unsafe_code)]

mod bed;
mod faults;
#[path = "../tokens/mod.rs"]
mod tokens;

use bed::{Verbs, each_and_all};

fabric::conformance_of_hub_and_workers!(Verbs: each_and_all());
