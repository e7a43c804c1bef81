//! A job's state: brought to a new job, taken from a running one, saved in its file, and sent to clients.
//!
//! | file | what it does |
//! | --- | --- |
//! | `restore` | a new job continues from its checkpoint |
//! | `bring` | takes the state that rank 0 brings |
//! | `collected` | what a job has of checkpoints |
//! | `snapshot`, `checkpoint` | bring a job's state together, and to its file |
//! | `last` | saves the last state of a job that failed |
//! | `send` | sends the state to clients |

pub(super) mod bring;
pub(super) mod checkpoint;
pub(super) mod collected;
pub(super) mod last;
mod restore;
mod send;
pub(super) mod snapshot;

pub(crate) use send::Sent;
