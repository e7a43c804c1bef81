//! Members that come to take part: they connect, cores get their links, and when all that a job needs is there, it begins.

use std::sync::Arc;

use super::offered::Brought;
use super::{Gathering, Job, Life, Standing};

/// What follows when all cores have a worker's link.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Arrival {
    /// Nothing: others are missing.
    Waiting,
    /// All workers are here, and the job can begin.
    Complete(Arc<[u32]>),
    /// The job runs, and this worker wants to take part.
    Newcomer(u32),
}

impl Job {
    /// A worker connects to the data path. Only once, because a rank has one link to each core.
    pub fn connect(&mut self, rank: u32, token: [u8; 16]) -> Result<(), String> {
        if self.standing(rank).is_some_and(|standing| standing.connect(token)) {
            return Ok(());
        }
        Err(format!(
            "worker {rank} of job {:?} is connected already, and a token is good for one connection; join again under another rank or job name",
            self.name
        ))
    }

    /// A connection of a worker came to nothing: it may connect again.
    pub fn not_connected(&mut self, rank: u32) {
        self.standing(rank).into_iter().for_each(Standing::disconnect);
    }

    /// A core has a worker's link.
    pub fn attached(&mut self, rank: u32) -> Arrival {
        let cores = self.cores.numbers.len();
        if self.standing(rank).is_some_and(|standing| standing.attach(cores)) {
            tracing::info!(job = self.name, rank, "a worker has made its links again");
        }
        self.arrived(rank)
    }

    /// All members of a hub below are there.
    pub fn ready(&mut self, rank: u32) -> Arrival {
        match self.standing(rank).is_some_and(Standing::make_ready) {
            true => self.arrived(rank),
            false => Arrival::Waiting, // a request that was made again, because its answer was lost
        }
    }

    /// What follows when a member may have all that it needs.
    pub(super) fn arrived(&mut self, rank: u32) -> Arrival {
        if !self.waits_for_cut(rank) {
            return Arrival::Waiting;
        }
        match self.life {
            Life::Running => Arrival::Newcomer(rank),
            Life::Failed { .. } => Arrival::Waiting,
            Life::Gathering(_) => self.gathered(),
        }
    }

    /// Whether a member has all that it needs to take part.
    fn waits_for_cut(&self, rank: u32) -> bool {
        self.member(rank).is_some_and(|member| member.standing.waits_for_cut(self.cores.numbers.len()))
    }

    /// Publishes which ranks are missing in a job that has not begun.
    pub(in crate::registry) fn gathered(&mut self) -> Arrival {
        let waits_for_state = self.gathering().is_some_and(|gathering| gathering.brought != Brought::Nothing);
        let there = |rank: u32| (rank > 0 || !waits_for_state) && self.waits_for_cut(rank);
        let missing: Vec<u32> = (0..self.terms.workers).filter(|&rank| !there(rank)).collect();
        let complete = missing.is_empty();
        self.wait_for(missing, Vec::new());
        if complete { Arrival::Complete((0..self.terms.workers).collect()) } else { Arrival::Waiting }
    }

    /// All workers are here, and at the hubs above these machines are missing.
    pub fn wait_for_machines(&mut self, machines: Vec<u32>) {
        let differs = |now: &Gathering| !now.missing.is_empty() || now.machines != machines;
        if self.gathering().is_some_and(differs) {
            self.wait_for(Vec::new(), machines);
        }
    }

    fn wait_for(&mut self, missing: Vec<u32>, machines: Vec<u32>) {
        let Some(gathering) = self.gathering_mut() else { return };
        (gathering.missing, gathering.machines) = (missing, machines);
        self.publish(|_| {});
    }
}

#[cfg(test)]
mod tests {
    use crate::registry::test_bed;
    use pbox_core::JobId;

    #[test]
    fn a_connection_that_led_nowhere_leaves_the_token_good_for_another() {
        let (registry, mut core) = test_bed::registry();
        test_bed::runtime().block_on(async {
            let token = registry.join("job".into(), test_bed::request()).await.unwrap().token;
            core.obey();
            let token = authority::unhex(&token).unwrap();
            let admission = registry.admission(token).unwrap();
            assert!(registry.admission(token).unwrap_err().contains("connected already"));
            registry.readmit(&admission);
            assert!(registry.admission(token).is_ok());
            registry.of_job(JobId(0), |job| assert!(!job.failed())).unwrap();
        });
    }
}
