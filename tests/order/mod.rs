//! In what order gradients leave the workers, and weights the hub.

mod background_pulls;
mod groups;
mod pulls;
mod schedules;
