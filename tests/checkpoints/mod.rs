//! A job goes on from what was saved of it: from a file, or from a state that was fetched.

mod checkpoint;
mod compressed;
mod making;
mod state;
