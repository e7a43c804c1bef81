//! A job continues from a saved state: a checkpoint file, or a state that a client fetched.

mod at_once;
pub(crate) mod checkpoint;
mod compressed;
mod failed;
mod in_flight;
mod lost;
mod making;
mod over_hubs;
mod runs;
mod selected;
pub(crate) mod state;
mod steps;
mod trial;
mod weights;
