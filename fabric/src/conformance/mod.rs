//! The conformance suite. Each bullet of the contract on [`Port`] has one test, which has the name of the
//! bullet.
//!
//! A transport provides a [`Bed`], and runs the suite in a file of `tests/`:
//!
//! ```text
//! fabric::conformance_tests!(MyBed::new());
//! // or, once for each seed:
//! fabric::conformance_tests!(seed in fabric::sim::seeds(20) => MyBed::new(seed));
//! // or, for transports on which workers join a listening hub, for each end:
//! fabric::conformance_of_hub_and_workers!(MyTransport: [MyTransport]);
//! ```
//!
//! ```text
//!   the bed makes:   near end [port] ==links==> peer 0     in this process, or in another
//!                             [    ] ==links==> peer 1     process, which obeys over a pipe
//! ```
//!
//! The near end is under test, and the test controls the peers. No test asserts a time. Every test that could
//! hang has a [`Watchdog`]. The suite does not depend on the transport.

mod alone;
mod arrivals;
mod closing;
#[allow(unsafe_code)]
mod end;
mod hub_and_workers;
mod peer;
mod ports;
mod remote;
mod shape;
mod sleeping;
mod watchdog;

pub use alone::{alone, rerun};
pub use arrivals::{
    bytes_before_immediate, each_post_arrives_once, flush_makes_visible, full_ends, full_is_not_an_error,
    links_do_not_mix,
};
pub use closing::{closed_after_arrivals, detached_is_silent, post_on_closed_link};
pub use end::{End, Seen};
pub use hub_and_workers::{Far, HubAndWorkers, Joined, Role, Starting, Transport, peer_process};
pub use peer::{Local, Peer};
pub use ports::links_end_at_the_ports_of_the_plan;
pub use remote::Remote;
pub use shape::Shape;
pub use sleeping::{wait_returns_on_arrival, wait_times_out, waker_ends_wait};
pub use watchdog::Watchdog;

use crate::Port;

/// A transport with its settings, for the tests of the suite.
pub trait Bed {
    /// The transport's port.
    type Port: Port;

    /// Returns the name for messages: transport, settings and seed.
    fn name(&self) -> String;

    /// Makes a near end and `shape.peers` peers, all connected to the near end. The peers' links are
    /// attached, the near end's are not.
    fn meet(&self, shape: Shape) -> Meeting<Self::Port>;
}

/// Connected ends.
pub struct Meeting<P: Port> {
    /// The end under test.
    pub near: End<P>,
    /// The peers that it is connected to.
    pub peers: Vec<Box<dyn Peer>>,
}

/// Returns a meeting with one peer, whose links are attached.
fn pair<B: Bed>(bed: &B, shape: Shape) -> (End<B::Port>, Box<dyn Peer>) {
    let Meeting { mut near, mut peers } = bed.meet(Shape { peers: 1, ..shape });
    near.attach_all();
    (near, peers.remove(0))
}

/// Makes a `#[test]` of each test of the suite, for a bed.
#[macro_export]
macro_rules! conformance_tests {
    ($bed:expr) => {
        $crate::conformance_tests!(seed in [()] => { let () = seed; $bed });
    };
    ($seed:ident in $seeds:expr => $bed:expr) => {
        $crate::conformance_tests!(@each $seed, $seeds, $bed;
            bytes_before_immediate,
            each_post_arrives_once,
            full_is_not_an_error,
            full_ends,
            links_do_not_mix,
            flush_makes_visible,
            wait_returns_on_arrival,
            wait_times_out,
            waker_ends_wait,
            closed_after_arrivals,
            detached_is_silent,
            post_on_closed_link,
        );
    };
    (@each $seed:ident, $seeds:expr, $bed:expr; $($name:ident,)*) => {$(
        #[test]
        fn $name() {
            for $seed in $seeds {
                $crate::conformance::$name(&$bed);
            }
        }
    )*};
}
