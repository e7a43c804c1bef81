//! In what order gradients leave the workers, and weights the hub.

mod background_pulls;
mod pulls;
mod schedules;
