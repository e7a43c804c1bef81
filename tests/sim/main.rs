//! Tests over the simulated network, by property, in one program. A failure prints its seed.

mod ahead;
mod bits;
mod clipped;
mod contents;
mod doorbells;
mod full_rings;
mod lives;
mod members;
mod network;
mod relinks;
mod staleness;
