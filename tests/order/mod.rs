//! The order in which gradients leave the workers, and weights leave the hub.

mod background_pulls;
mod groups;
mod pulls;
mod schedules;
