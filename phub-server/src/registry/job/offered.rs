//! The state that rank 0 offers to a new job, and that the job then waits for.

use pbox_core::control::JobState;
use pbox_core::{Restored, Round};

use super::{Arrival, Job, Standing};

/// Whether a job waits for the state of rank 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Brought {
    /// It does not wait.
    Nothing,
    /// The hubs above are asked whether they want it.
    Offered,
    /// It waits for the state before this round, of so many bytes.
    Awaited(Round, u64),
    /// The state is on its way.
    Coming,
}

impl Job {
    /// Rank 0 offers a state. Returns whether the job has none of its own; it then waits.
    pub fn state_offered(&mut self) -> Result<bool, String> {
        if self.first_round > Round(0) || !matches!(self.state(), JobState::Gathering { .. }) {
            return Ok(false);
        }
        let may_begin = matches!(self.standing(0), Some(Standing::Connecting { is_ready: true, .. }));
        if self.brought != Brought::Nothing || may_begin {
            return Err(format!(
                "{} offers a state too late: it may once, after its join and before it connects to the data path; a hub \
                 below others, before it is ready",
                self.spoken(0)
            ));
        }
        self.brought = Brought::Offered;
        Ok(true)
    }

    /// Whether the state before this round is wanted, and how long it must be.
    pub fn state_wanted(&mut self, before: Round, bytes: Option<u64>) -> Arrival {
        self.brought = bytes.map_or(Brought::Nothing, |bytes| Brought::Awaited(before, bytes));
        self.arrived(0)
    }

    /// Length of this hub's state: f32 of weights and of what the optimizer keeps beside them.
    pub fn state_bytes(&self) -> u64 {
        let elements: u64 = self.hubs.pieces.iter().map(|piece| piece.elements.len() as u64).sum();
        4 * elements * self.terms.optimizer.saved_per_element() as u64
    }

    /// The state begins to come, once. Returns the round that it is before, and its length in bytes.
    pub fn state_comes(&mut self) -> Option<(Round, u64)> {
        let Brought::Awaited(before, bytes) = self.brought else { return None };
        self.brought = Brought::Coming;
        Some((before, bytes))
    }

    /// The state is complete: here, or at the hubs above, which say with which round the job begins.
    pub fn begin_with(&mut self, restored: Option<&Restored>) -> Arrival {
        self.brought = Brought::Nothing;
        self.brought_steps = Vec::new();
        if let Some(restored) = restored {
            self.first_round = restored.round();
            self.numbers = restored.numbers();
        }
        self.gathered()
    }
}
