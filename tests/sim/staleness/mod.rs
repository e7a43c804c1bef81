//! SSP and ASP: no worker is too far ahead, and every push counts once.

mod bound;
mod levels;
