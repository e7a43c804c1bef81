//! The failures that a seed causes in a simulated tree, and the ends of such a tree.

use pbox_core::Notice;

use super::Levels;
use crate::trouble::{Dice, Trouble};

/// The number of ends that [`Levels::name_end`] distinguishes.
pub const ENDS: usize = 8;

/// The failure of a worker or a hub.
pub enum Strike {
    Kill(usize),
    KillHub(usize),
    /// The hub of a machine, and all its workers.
    KillMachine(usize),
    Rejoin(usize),
    RejoinHub(usize),
}

impl Levels {
    /// Returns the event of this step, which the dice decide. If the job continues without lost workers, worker 0 and
    /// the hubs above it are never killed. `begun` says that all living workers have the first weights.
    pub fn strike(&self, trouble: Trouble, dice: &mut Dice, begun: bool) -> Option<Strike> {
        let worker = dice.below(self.workers.len() as u64) as usize;
        let hub = dice.below(self.nodes.len() as u64) as usize;
        match trouble {
            Trouble::None | Trouble::Posts => None,
            Trouble::Death if dice.below(60) > 0 || !self.is_whole() => None,
            Trouble::Death if dice.below(2) == 0 => Some(Strike::Kill(worker)),
            Trouble::Death => Some(Strike::KillHub(hub)),
            Trouble::ComingAndGoing if !begun || dice.below(15) > 0 => None,
            Trouble::ComingAndGoing if dice.below(2) == 0 => {
                let hub_lives = self.is_hub_alive(self.workers[worker].node);
                match self.is_alive(worker) {
                    // A mesh ends if one of its machines has no worker left.
                    true if self.terms.mesh && self.workers[worker].rank == 0 => None,
                    true => (worker > 0).then_some(Strike::Kill(worker)),
                    false => hub_lives.then_some(Strike::Rejoin(worker)),
                }
            }
            Trouble::ComingAndGoing if self.terms.mesh => None,
            Trouble::ComingAndGoing => {
                let mut stays = Some(self.workers[0].node);
                while let Some(node) = stays {
                    if node == hub {
                        return None;
                    }
                    stays = self.above(node);
                }
                let above_lives = self.above(hub).is_some_and(|above| self.is_hub_alive(above));
                match self.is_hub_alive(hub) {
                    true => Some(Strike::KillMachine(hub)),
                    false => (above_lives && self.has_workers(hub)).then_some(Strike::RejoinHub(hub)),
                }
            }
        }
    }

    /// Whether all workers and hubs live.
    pub fn is_whole(&self) -> bool {
        let hubs = (0..self.nodes.len()).all(|hub| self.is_hub_alive(hub));
        hubs && (0..self.workers.len()).all(|worker| self.is_alive(worker))
    }

    /// Names the end of a run.
    ///
    /// # Panics
    /// Panics if the run is not allowed to end like this.
    pub fn name_end(&self, trouble: Trouble, ended: &Result<(), String>) -> &'static str {
        let said = |words: &str| {
            self.notices.iter().any(|(_, notice)| match notice {
                Notice::WorkerGone { reason, .. }
                | Notice::AboveGone { reason, .. }
                | Notice::JobFailed { reason, .. } => reason.contains(words),
                Notice::Snapshot { .. } | Notice::Skipped { .. } => false,
            })
        };
        let above_gone = || self.notices.iter().any(|(_, notice)| matches!(notice, Notice::AboveGone { .. }));
        if !matches!(trouble, Trouble::Posts) {
            // A hub that refuses a push of a machine loses the machine, and the other machines may continue. So the run
            // itself would not show such an error.
            assert!(!said("pushed chunk"), "{trouble:?}: a hub blames another: {:?}", self.notices);
        }
        match (trouble, ended) {
            (Trouble::None | Trouble::ComingAndGoing, Ok(())) => "whole",
            (Trouble::None | Trouble::ComingAndGoing, Err(error)) => {
                panic!("{trouble:?}: {error}, {:?}, {:?}", self.terms, self.notices)
            }
            (Trouble::Posts | Trouble::Death, Ok(())) => "whole in spite of trouble",
            (Trouble::Posts, Err(_)) if said("pushed chunk") => "a hub saw a repeat",
            (Trouble::Posts, Err(error)) if error.contains("broke the protocol") => "a worker saw a repeat",
            (Trouble::Posts, Err(error)) if error.contains("waits for") => "a post is missing",
            (Trouble::Death, Err(_)) if above_gone() => "a hub above is gone",
            (Trouble::Death, Err(_)) if said("link") => "a worker or a hub below is gone",
            (Trouble::Death, Err(error)) if error.contains("closed") => "a worker's hub is gone",
            (trouble, Err(error)) => panic!("{trouble:?}: {error}, {:?}", self.notices),
        }
    }
}
