//! SSP and ASP: no worker is further ahead than the bound, and every push counts once.

mod bound;
mod levels;
