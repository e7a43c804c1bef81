//! Workers that join, leave and return, and the notices to the remaining workers.

mod compressed;
mod joining;
mod leaving;
mod on_loss;
mod operate;
mod ports;
mod versions;
