//! The conformance suite over verbs: either end under test, its peers in this process and in others, where to
//! die means `kill -9`. On the devices of `PHUB_TEST_DEVICE`, each alone and all together. And what becomes of
//! a transport whose machine breaks.
#![cfg(not(loom))]
#![forbid(unsafe_code)]

mod bed;
mod faults;

use bed::{Far, Role, VerbsBed, device_sets};

mod hub_with_workers_here {
    use super::*;
    fabric::conformance_tests!(nics in device_sets() => VerbsBed { nics, near: Role::Hub, far: Far::Here });
}

mod worker_with_hubs_here {
    use super::*;
    fabric::conformance_tests!(nics in device_sets() => VerbsBed { nics, near: Role::Worker, far: Far::Here });
}

mod hub_with_worker_processes {
    use super::*;
    fabric::conformance_tests!(nics in device_sets() => VerbsBed { nics, near: Role::Hub, far: Far::Process });
}

mod worker_with_hub_processes {
    use super::*;
    fabric::conformance_tests!(nics in device_sets() => VerbsBed { nics, near: Role::Worker, far: Far::Process });
}
