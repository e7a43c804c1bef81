//! How far members were when they lost their hub: where a job goes on that begins again.

use pbox_core::control::RefusalCode;
use pbox_core::{Consistency, Round};

use super::Job;
use crate::registry::{Because, Refusal};

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
        if let Some(gathering) = self.gathering_mut() {
            gathering.reached[rank as usize] = Some(round);
        }
        self.has_reached(round);
    }

    /// Whether a member of this hub can have reached this round when it lost the hub. With SSP all are within the staleness.
    pub fn check_reached(&self, rank: u32, reached: Option<Round>) -> Result<(), Refusal> {
        let (Some(reached), Consistency::Ssp { staleness }) = (reached, self.terms.level.consistency) else {
            return Ok(());
        };
        let Some(gathering) = self.gathering().filter(|_| !self.steps_together()) else { return Ok(()) };
        let most = staleness.saturating_add(Round::APART);
        let others = (0u32..).zip(&gathering.reached).filter(|&(other, _)| other != rank);
        let mut others = others.filter_map(|(other, reached)| Some((other, (*reached)?)));
        match others.find(|(_, other)| reached.0.abs_diff(other.0) > most) {
            None => Ok(()),
            Some((other, theirs)) => Err(RefusalCode::ReachedDiffers.because(format!(
                "{} says that it has reached round {}, and {} had reached {}: with {} they are at most {most} rounds apart",
                self.spoken(rank),
                reached.0,
                self.spoken(other),
                theirs.0,
                self.terms.level.consistency
            ))),
        }
    }

    /// Whether its members have a common round here: those of a machine have, whatever the machines have among them.
    fn steps_together(&self) -> bool {
        self.terms.level.consistency == Consistency::Bsp || self.above.is_some()
    }

    /// How far each worker begins ahead of the slowest, by rank, in a job that begins again and whose workers step alone: as far
    /// as it was, so that all have made equally many steps at the end. Else nothing.
    pub fn ahead(&self) -> Vec<u32> {
        let reached = self.gathering().map_or(&[][..], |gathering| &gathering.reached);
        let slowest = reached.iter().flatten().min();
        let Some(slowest) = slowest.filter(|_| !self.steps_together() && self.first_round > Round(0)) else {
            return Vec::new();
        };
        let most = Round::LIMIT.0.saturating_sub(self.first_round.0);
        let ahead = |reached: &Option<Round>| reached.map_or(0, |reached| (reached.0 - slowest.0).min(most));
        reached.iter().map(ahead).collect()
    }
}

#[cfg(test)]
mod tests {
    use pbox_core::JobId;

    use super::*;
    use crate::registry::test_bed;

    #[test]
    fn members_with_a_bound_of_staleness_are_not_further_apart() {
        let (registry, mut core) = test_bed::registry();
        let ssp = Consistency::Ssp { staleness: 3 };
        let join = |rank: u32, reached: u32, job: &str, consistency: Consistency| {
            let mut request = test_bed::request();
            (request.rank, request.reached) = (rank, Some(Round(reached)));
            (request.terms.workers, request.terms.level.consistency) = (2, consistency);
            test_bed::runtime().block_on(registry.join(job.into(), request))
        };
        join(0, 1, "job", ssp).unwrap();
        core.obey();
        let Refusal { code, why } = join(1, 25_000, "job", ssp).expect_err("it is not believed");
        assert_eq!(code, RefusalCode::ReachedDiffers);
        assert!(why.contains("round 25000") && why.contains("at most 67 rounds apart"), "{why}");
        join(1, 68, "job", ssp).unwrap();
        // Without a bound, they are as far apart as they say, and no round is beyond the last.
        join(0, 1, "another", Consistency::Asp).unwrap();
        join(1, Round::LIMIT.0, "another", Consistency::Asp).unwrap();
        core.obey();
        let ahead = |job: &mut Job| {
            job.first_round = Round(10);
            job.ahead()
        };
        assert_eq!(registry.of_job(JobId(1), ahead).unwrap(), [0, Round::LIMIT.0 - 10]);
    }
}
