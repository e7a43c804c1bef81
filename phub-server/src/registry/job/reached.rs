//! How far members were when they lost their hub: where a job goes on that begins again.

use pbox_core::control::JobState;
use pbox_core::{Consistency, Round};

use super::Job;

impl Job {
    fn has_reached(&mut self, round: Round) {
        self.publish(|news| news.reached = news.reached.max(Some(round)));
    }

    /// A worker of any machine had reached this round when it lost a hub. Machines that step alone have no common round.
    pub fn machines_have_reached(&mut self, round: Round) {
        if self.terms.level.consistency == Consistency::Bsp {
            self.has_reached(round);
        }
    }

    /// A member of this hub had reached this round when it lost the hub.
    pub fn worker_has_reached(&mut self, rank: u32, round: Round) {
        if self.state() != JobState::Running {
            self.reached[rank as usize] = Some(round);
        }
        self.has_reached(round);
    }

    /// Whether its members have a common round here: those of a machine have, whatever the machines have among them.
    fn steps_together(&self) -> bool {
        self.terms.level.consistency == Consistency::Bsp || self.above.is_some()
    }

    /// How far each worker begins ahead of the slowest, by rank, in a job that begins again and whose workers step alone: as far
    /// as it was, so that all have made equally many steps at the end. Else nothing.
    pub fn ahead(&self) -> Vec<u32> {
        let slowest = self.reached.iter().flatten().min();
        let Some(slowest) = slowest.filter(|_| !self.steps_together() && self.first_round > Round(0)) else {
            return Vec::new();
        };
        self.reached.iter().map(|reached| reached.map_or(0, |reached| reached.0 - slowest.0)).collect()
    }
}
