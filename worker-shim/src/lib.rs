//! A worker's side of a parameter hub. A worker joins a job, writes gradients into a window in place, pushes them,
//! waits for the new weights, and reads them in place.
//!
//! ```no_run
//! use pbox_core::{Key, KeyId, Optimizer};
//! use worker_shim::{Session, SessionConfig};
//!
//! let keys = vec![Key::f32("fc.weight", [10, 64]), Key::f32("fc.bias", [10])];
//! let optimizer = Optimizer::Nesterov { learning_rate: 0.1, weight_decay: 0.0, momentum: 0.9 };
//! let mut session = Session::join(SessionConfig::new("127.0.0.1:7077", "demo", 0, 1, keys, optimizer))?;
//! session.broadcast_weights(|_key, weights| weights.fill(0.01))?;
//! for _round in 0..10 {
//!     for key in [KeyId(1), KeyId(0)] { // the backward pass
//!         session.gradient_mut(key)?.fill(0.5);
//!         session.push(key)?;
//!     }
//!     for key in [KeyId(0), KeyId(1)] { // the next forward pass
//!         session.wait(key)?;
//!         let _weights: &[f32] = session.weights(key)?;
//!     }
//! }
//! session.leave()?;
//! # Ok::<(), worker_shim::SessionError>(())
//! ```
//!
//! This crate must never depend on how gradients are summed.

#![deny(unsafe_code)] // exceptions: docs/unsafe.md

mod background;
mod exchange;
mod pull;
mod session;

pub use background::{Background, BackgroundError, KeyMemory, Memory};
pub use exchange::{Exchange, ExchangeError, Traffic, WeightsMode, Windows};
pub use fabric::{DmaBuf, DmaBufError};
pub use membership::{Credential, MemberError, NicSettings, Way};
pub use pull::{Batches, Counts, DRIFT, DRIFT_ROUNDS, PROFILE_ROUNDS, Pull, PullError, PullPlan, batch};
pub use session::{
    InvalidSetting, LAPS, Pushed, Returns, Session, SessionConfig, SessionError, State, TRIALS, Times, Trial,
};

/// Checks that the example of the page on Rust compiles.
#[cfg(doctest)]
#[doc = include_str!("../../docs/rust.md")]
mod page {}
