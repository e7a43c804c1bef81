//! A state that a job begins with: weights and optimizer state that rank 0 has from elsewhere.
//!
//! Read on the thread that joins. Must not know where it comes from.

use std::io::Read;

use pbox_core::Round;

/// Weights and optimizer state, as they are before a round: what rank 0 may bring instead of a broadcast
/// ([`Session::join_with`](crate::Session::join_with)).
pub struct State {
    /// The round that a job goes on with from it: the steps that were made, and 1 for the broadcast. Adam counts its
    /// steps by it. With SSP and ASP a round is as many steps as there are workers.
    pub before: Round,
    /// f32, little endian: the weights of all keys in the order of the manifest, then their first optimizer state
    /// ([`state_names`](pbox_core::state_names)), then their second. Read once, and only where the job has no state.
    pub values: Box<dyn Read + Send>,
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("State").field("before", &self.before).finish_non_exhaustive()
    }
}
