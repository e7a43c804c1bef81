//! The conformance suite over verbs: either end under test, with peers in this process and in others. Death is
//! `kill -9`. On the devices of `PHUB_TEST_DEVICE`, each alone and all together. It also tests a transport on
//! a machine that breaks.
#![forbid(unsafe_code)]

mod bed;
mod faults;
#[path = "../tokens/mod.rs"]
mod tokens;

use bed::{Verbs, each_and_all};

fabric::conformance_of_hub_and_workers!(Verbs: each_and_all());
