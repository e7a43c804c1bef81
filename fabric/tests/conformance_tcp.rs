//! The conformance suite over TCP on loopback: either end under test, its peers in this process and in others,
//! where to die means `kill -9`.
#![cfg(not(loom))]
#![forbid(unsafe_code)]

mod tcp_bed;

use tcp_bed::{Far, Role, TcpBed};

mod hub_with_workers_here {
    use super::*;
    fabric::conformance_tests!(TcpBed { near: Role::Hub, far: Far::Here });
}

mod worker_with_hubs_here {
    use super::*;
    fabric::conformance_tests!(TcpBed { near: Role::Worker, far: Far::Here });
}

mod hub_with_worker_processes {
    use super::*;
    fabric::conformance_tests!(TcpBed { near: Role::Hub, far: Far::Process });
}

mod worker_with_hub_processes {
    use super::*;
    fabric::conformance_tests!(TcpBed { near: Role::Worker, far: Far::Process });
}
