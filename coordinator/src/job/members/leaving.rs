//! Members that leave a job, and the end of a job.

use std::sync::Arc;
use std::time::Instant;

use pbox_core::JobTerms;
use pbox_core::control::{Left, LeftAt, missing};

use crate::job::{Effect, Gathering, Job, Life, Model, Standing};

/// The consequence of a member's leave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Leave {
    /// No effect, because the job has failed. Another job may have its name by now.
    Nothing,
    /// The leave is refused: no member of the job can have left at this round.
    Refused(String),
    /// The job fails for this reason, because it cannot begin without the worker.
    Fails(String),
    /// All cores must remove the worker. The job has other members.
    Left,
    /// The worker was the last member, and the job ends.
    Last,
}

impl Job {
    /// Lets a worker leave normally. `at` has the round before which the worker leaves, for each key. Returns the consequence.
    pub(crate) fn leave(&mut self, rank: u32, at: LeftAt) -> Leave {
        match &self.life {
            Life::Failed { .. } => return Leave::Nothing,
            Life::Gathering(Gathering { missing: ranks, machines, .. }) => {
                let missing = missing(ranks, machines, self.spec.terms.workers);
                return Leave::Fails(format!("{} gave up waiting for {missing}", self.spec.spoken(rank)));
            }
            Life::Running => {}
        }
        if let Err(why) = at.check(self.spec.terms.keys.len()) {
            return Leave::Refused(why);
        }
        self.members.worker(rank).into_iter().for_each(|worker| self.hubs.arrivals.forget(worker));
        if self.spec.goes_on() {
            self.members.lose(rank);
        } else {
            self.members.standing(rank).into_iter().for_each(|standing| *standing = Standing::Left);
            self.news.tell(&self.life, |news| {
                news.members.retain(|member| member.rank != rank);
                news.left.push(Left { rank, at });
            });
        }
        match self.members.present().next() {
            Some(_) => Leave::Left,
            None => Leave::Last,
        }
    }

    /// Notes that a core has removed a worker. When all cores have removed the worker, its rank is free, and heartbeat
    /// replies no longer list it.
    pub(crate) fn note_removed(&mut self, rank: u32) {
        if self.members.note_removed(rank) {
            self.news.tell(&self.life, |news| news.members.retain(|member| member.rank != rank));
        }
    }

    /// Ends the job for all its workers, because it failed or because the hub stops.
    pub(crate) fn fail(&mut self, reason: &str, hub_stops: bool, now: Instant) -> Vec<Effect> {
        self.life = Life::Failed { at: now, reason: reason.to_owned(), hub_stops };
        self.news.tell(&self.life, |_| {});
        self.checkpoints.end();
        self.cuts.end(&self.hubs, &self.members)
    }

    /// Removes the model of a failed job, and returns it so that it can be freed. Only the job's news is still needed.
    pub(crate) fn forget_model(&mut self) -> Option<Model> {
        if self.spec.terms.keys.is_empty() {
            return None;
        }
        let terms = Arc::new(JobTerms { keys: Vec::new(), ..*self.spec.terms });
        Some((std::mem::replace(&mut self.spec.terms, terms), std::mem::take(&mut self.hubs.pieces)))
    }
}
