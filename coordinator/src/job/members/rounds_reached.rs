//! The rounds that members had reached when they lost their hub. A job that begins again continues from these rounds.

use pbox_core::control::RefusalCode;
use pbox_core::{Consistency, Round};

use crate::job::{JobSpec, Life, News};
use crate::refused::Refused;

impl Life {
    /// Notes that a worker of some machine had reached this round when it lost a hub. Ignores the round if machines
    /// step alone (SSP, ASP), because then they have no common round.
    pub(crate) fn note_machine_reached(&self, round: Round, spec: &JobSpec, news: &mut News) {
        if spec.terms.level.consistency == Consistency::Bsp {
            news.note_reached(self, round);
        }
    }

    /// Notes that a member of this hub had reached this round when it lost the hub.
    pub(crate) fn note_worker_reached(&mut self, rank: u32, round: Round, news: &mut News) {
        if let Some(gathering) = self.gathering_mut() {
            gathering.reached[rank as usize] = Some(round);
        }
        news.note_reached(self, round);
    }

    /// Checks the round that a member of this hub had reached when it lost the hub, as the member reports it. With SSP, the
    /// members' rounds differ by at most the staleness.
    ///
    /// # Errors
    /// Returns an error if the member cannot have reached this round.
    pub(crate) fn check_reached(
        &self,
        rank: u32,
        reached: Option<Round>,
        spec: &JobSpec,
    ) -> Result<(), Refused> {
        let consistency = spec.terms.level.consistency;
        let (Some(reached), Consistency::Ssp { staleness }) = (reached, consistency) else { return Ok(()) };
        let Some(gathering) = self.gathering().filter(|_| !spec.steps_together()) else { return Ok(()) };
        let most = staleness.saturating_add(Round::APART);
        let others = (0u32..).zip(&gathering.reached).filter(|&(other, _)| other != rank);
        let mut others = others.filter_map(|(other, reached)| Some((other, (*reached)?)));
        match others.find(|(_, other)| reached.0.abs_diff(other.0) > most) {
            None => Ok(()),
            Some((other, theirs)) => Err(Refused::new(
                RefusalCode::ReachedDiffers,
                format!(
                    "{} says that it has reached round {}, but {} had reached round {}; with {consistency} workers are at most {most} rounds apart",
                    spec.spoken(rank),
                    reached.0,
                    spec.spoken(other),
                    theirs.0,
                ),
            )),
        }
    }

    /// Returns each worker's lead over the slowest worker, by rank, for a job that begins again and whose workers step
    /// alone. Each worker keeps its lead, so that all workers have made equally many steps at the end. For other jobs,
    /// returns an empty list.
    pub(crate) fn ahead(&self, spec: &JobSpec, first_round: Round) -> Vec<u32> {
        let reached = self.gathering().map_or(&[][..], |gathering| &gathering.reached);
        let slowest = reached.iter().flatten().min();
        let Some(slowest) = slowest.filter(|_| !spec.steps_together() && first_round > Round(0)) else {
            return Vec::new();
        };
        let most = Round::LIMIT.0.saturating_sub(first_round.0);
        let ahead = |reached: &Option<Round>| reached.map_or(0, |reached| (reached.0 - slowest.0).min(most));
        reached.iter().map(ahead).collect()
    }
}
