//! SSP and ASP: no worker is too far ahead, and every push counts once.

mod sessions;
mod sim_bound;
mod sim_levels;
mod sim_seeds;
