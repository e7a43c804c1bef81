//! The order in which workers send gradients, and the hub sends weights.

mod background_pulls;
mod groups;
mod pulls;
mod schedules;
