//! The paces of a job's workers on one core: *together*, when a round is one step (BSP), *alone*, when each push is a step
//! (SSP and ASP), or *relayed*, when a hub above steps.

#[allow(unsafe_code)]
mod alone;
mod relayed;
#[allow(unsafe_code)]
mod together;

pub(super) use alone::Clocks;
pub(super) use relayed::Relayed;
pub(super) use together::Arrivals;
