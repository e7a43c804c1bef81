//! Workers that join, leave and come back, and what the others are told.

mod compressed;
mod joining;
mod leaving;
mod on_loss;
mod operate;
mod ports;
mod versions;
