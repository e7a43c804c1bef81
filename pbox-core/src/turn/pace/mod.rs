//! The paces of a job's workers on one core: *together*, when a round is one step (BSP), or *alone*, when each push is
//! a step (SSP and ASP).

#[allow(unsafe_code)]
mod alone;
#[allow(unsafe_code)]
mod together;

pub(super) use alone::Clocks;
pub(super) use together::Arrivals;
