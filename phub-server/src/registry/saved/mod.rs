//! A job's state: brought to a new job, taken from a running job, saved in its file, and sent to clients.
//!
//! | file | what it does |
//! | --- | --- |
//! | `restore` | a new job continues from its checkpoint |
//! | `bring` | takes the state that rank 0 brings |
//! | `collected` | has the parts of snapshots that have arrived, and a job's checkpoint state |
//! | `snapshot`, `checkpoint` | bring a job's state together, and to its file |
//! | `last` | saves the last state of a job that failed |
//! | `copies` | the copies of the state, and the clients that wait for them |
//! | `clients` | makes copies, each for all clients that wait |
//! | `deltas` | the differences between the states that clients got |
//! | `reads` | counts the clients |
//! | `for_readers` | counts the memory of copies and deltas |
//! | `send` | sends a copy to a client |
//! | `loans` | the memory that clients lend |
//! | `borrow` | writes the values of a copy into memory that a client lends |

mod borrow;
pub(super) mod bring;
pub(super) mod checkpoint;
mod clients;
pub(super) mod collected;
mod copies;
mod deltas;
mod for_readers;
pub(super) mod last;
mod loans;
mod reads;
mod restore;
mod send;
pub(super) mod snapshot;

pub(super) use for_readers::ForReaders;
pub(super) use loans::Loans;
pub(crate) use loans::Offer;
pub(crate) use reads::Reader;
pub(crate) use send::{Instead, Sent, Wish};
