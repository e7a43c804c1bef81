//! Members that come to take part: they connect, cores get their links, and when all that a job needs is there, it begins.

use std::sync::Arc;

use pbox_core::control::JobState;

use super::offered::Brought;
use super::{Job, Member, Standing};

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
        match &mut self.members[rank as usize] {
            Some(member) if member.standing == Standing::Joined => {
                member.standing = Standing::Coming;
                Ok(())
            }
            Some(Member { unlinked: Some(unlinked), .. }) if unlinked.token == Some(token) => {
                unlinked.token = None;
                Ok(())
            }
            _ => Err(format!(
                "worker {rank} of job {:?} is connected already, and a token is good for one connection; join again under another rank or job name",
                self.name
            )),
        }
    }

    /// A connection of a worker, by this token, came to nothing: it may connect again.
    pub fn not_connected(&mut self, rank: u32, token: [u8; 16]) {
        match &mut self.members[rank as usize] {
            Some(member) if member.standing == Standing::Coming => member.standing = Standing::Joined,
            Some(Member { unlinked: Some(unlinked), .. }) => unlinked.token = Some(token),
            _ => {}
        }
    }

    /// A core has a worker's link.
    pub fn attached(&mut self, rank: u32) -> Arrival {
        let cores = self.cores.numbers.len();
        if let Some(member) = &mut self.members[rank as usize] {
            match &member.unlinked {
                // A link that is lost again already.
                Some(unlinked) if unlinked.cores > 0 => {}
                _ => member.cores += 1,
            }
            if member.cores >= cores && member.unlinked.take().is_some() {
                tracing::info!(job = self.name, rank, "a worker has made its links again");
            }
        }
        self.arrived(rank)
    }

    /// All members of a hub below are there.
    pub fn ready(&mut self, rank: u32) -> Arrival {
        match &mut self.members[rank as usize] {
            // A request that was made again, because its answer was lost.
            Some(member) if member.ready => return Arrival::Waiting,
            Some(member) => member.ready = true,
            None => {}
        }
        self.arrived(rank)
    }

    /// What follows when a member may have all that it needs.
    pub(super) fn arrived(&mut self, rank: u32) -> Arrival {
        let cores = self.cores.numbers.len();
        let is_there =
            |member: &Member| member.ready && member.standing == Standing::Coming && member.cores >= cores;
        if !self.members[rank as usize].as_ref().is_some_and(is_there) {
            return Arrival::Waiting;
        }
        match self.state() {
            JobState::Running => Arrival::Newcomer(rank),
            JobState::Failed { .. } => Arrival::Waiting,
            JobState::Gathering { .. } => self.gathered(),
        }
    }

    /// Publishes which ranks are missing in a job that has not begun.
    pub(in crate::registry) fn gathered(&mut self) -> Arrival {
        let cores = self.cores.numbers.len();
        let there = |rank: u32, member: &Option<Member>| {
            let with_state = rank > 0 || self.brought == Brought::Nothing;
            with_state && member.as_ref().is_some_and(|m| m.ready && m.cores >= cores)
        };
        let ranks = (0u32..).zip(&self.members);
        let missing: Vec<u32> = ranks.filter(|&(rank, m)| !there(rank, m)).map(|(rank, _)| rank).collect();
        let complete = missing.is_empty();
        self.publish(|news| news.state = JobState::Gathering { missing, machines: Vec::new() });
        if complete { Arrival::Complete((0..self.terms.workers).collect()) } else { Arrival::Waiting }
    }

    /// All workers are here, and at the hubs above these machines are missing.
    pub fn wait_for_machines(&self, machines: Vec<u32>) {
        let state = JobState::Gathering { missing: Vec::new(), machines };
        if self.state() != state {
            self.publish(|news| news.state = state);
        }
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
