//! The state with which a job begins: weights and optimizer state from outside the job, which rank 0 brings.
//!
//! Read on the thread that joins. Must not depend on where the state comes from.

use std::io::Read;

use membership::LetIn;
use pbox_core::Round;

use super::SessionError;

/// Weights and optimizer state before a round. Rank 0 may bring them instead of a broadcast
/// ([`Session::join_with`](crate::Session::join_with)).
pub struct State {
    /// The round that the job continues with: 1 or more, since round 0 is the broadcast.
    pub before: Round,
    /// The number of steps that each key has made, in the order of the manifest. Adam continues to count steps from
    /// this number. If `None`, a key counts one step per round after the broadcast. With SSP and ASP a key counts one
    /// step per round and worker.
    pub steps: Option<Vec<u32>>,
    /// The values in f32, little endian. First the weights of all keys in the order of the manifest, then the keys'
    /// first optimizer state ([`Tensors::state_names`](pbox_core::Tensors::state_names)), then their second state. If
    /// the job keeps averages, they come last. The values are read once, and only if the job has no state.
    pub values: Box<dyn Read + Send>,
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("State").field("before", &self.before).finish_non_exhaustive()
    }
}

impl State {
    /// Offers the state to the hubs. Returns whether the hubs want the state.
    pub(super) fn offer(&self, hubs: &[LetIn]) -> Result<bool, SessionError> {
        let wanted = membership::all_of(hubs.iter().map(|hub| hub.offer(self.before, self.steps.clone())))?;
        Ok(wanted.is_some())
    }
}
