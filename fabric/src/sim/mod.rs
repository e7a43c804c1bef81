//! The simulated network: both ends in one process, virtual time, faults from a seed.
//!
//! The net is for tests of the layers above, and of the conformance suite itself. It has no wall clock. Each
//! post gets a due tick, and the clock moves only when a port waits or polls without result. So a test that
//! one thread drives sees the same run for the same seed, on any machine.
//!
//! ```text
//!   post --> held --flush--> in flight [due 3][due 5][due 9] --poll at tick >= due--> arrival
//!                  drop?                                       the bytes are copied here,
//!                  duplicate?                                  as late as a NIC may read them;
//!                                                              flip a byte?
//! ```
//!
//! A real reliable link never drops and never duplicates. [`Faults::drop`] and [`Faults::duplicate`] break
//! the contract of [`Port`](crate::Port) on purpose, to test that the layers above notice.
//!
//! ```
//! use std::sync::Arc;
//! use fabric::{Arrival, Imm, Port, RecvWindow, SendWindow, Span, sim};
//!
//! let span = Span { offset: 0, bytes: 64 };
//! let end = || {
//!     let (send, mut spans) = SendWindow::new(64).unwrap().split(vec![vec![span]]).unwrap();
//!     let recv = Arc::new(RecvWindow::local(64).unwrap());
//!     (sim::Windows { send, recv }, spans.remove(0))
//! };
//! let ((a, mut gradient), (b, _)) = (end(), end());
//!
//! for seed in sim::seeds(10) {
//!     let net = sim::Net::new(seed, sim::Faults { delay: 0..9, ..sim::Faults::NONE });
//!     let (mut worker, mut hub) = (net.port(), net.port());
//!     let (to_hub, to_worker) = net.link(a.clone(), b.clone(), 4);
//!     let link = worker.attach(to_hub);
//!     hub.attach(to_worker);
//!     gradient.elements_mut::<f32>(0).fill(seed as f32);
//!     assert_eq!(worker.post(link, span, Imm(7)), fabric::Posted::Accepted);
//!     worker.flush();
//!     let mut arrivals = [Arrival::default(); 4];
//!     while hub.poll(&mut arrivals) == 0 {}
//!     assert_eq!(arrivals[0].imm, Imm(7));
//! }
//! ```

#[allow(unsafe_code)]
mod delivery;
mod faults;
mod net;
mod port;
mod random;
mod seeds;
#[cfg(test)]
#[allow(unsafe_code)]
mod tests;
mod traffic;

pub use faults::{Faults, Rate};
pub use net::{EndId, Net, Windows};
pub use port::{Endpoint, Port};
pub use seeds::{Seeds, seeds};
