//! The end of a job at a simulated hub, and what a hub does in the course of time.

use std::time::Duration;

use coordinator::{Cause, Event, KEEP_FAILED, Unserved};
use pbox_core::Round;
use pbox_core::control::JobState;

use super::{Command, Control};
use crate::hubs::Letter;

/// How long members and hubs may be silent.
const LIMIT: Duration = Duration::from_secs(10);

impl Control {
    /// Has the job, which gathers, begin with a round. Its members had reached these rounds when they lost their hubs, by rank.
    pub fn begin_again(&mut self, first: Round, reached: &[Option<Round>]) {
        (self.job.first_round, self.job.hubs.first_round) = (first, first);
        for (rank, &reached) in (0..).zip(reached) {
            reached.into_iter().for_each(|reached| self.job.worker_has_reached(rank, reached));
        }
    }

    /// Ends the job because its hub stops.
    pub fn stops(&mut self) {
        self.end_for("the hub is stopping".to_owned(), true);
    }

    /// The hub dies: its links close, and nobody is told why.
    pub fn dies(&mut self) {
        let heard = self.heard.clone();
        self.end_for("the hub is gone".to_owned(), false);
        (self.heard, self.is_dead) = (heard, true);
        self.letters.retain(|letter| matches!(letter, Letter::Held(..) | Letter::Released(..)));
    }

    /// Returns why the job has failed here, as members hear it, or see that nothing answers.
    pub fn failure(&self) -> Option<&str> {
        match &self.heard.state {
            JobState::Failed { reason, .. } => Some(reason),
            _ => self.failed.as_deref().filter(|_| self.is_dead),
        }
    }

    /// Ends the job because a hub of it has failed.
    pub fn fails(&mut self, reason: String) {
        self.end_for(reason, false);
    }

    fn end_for(&mut self, reason: String, stops: bool) {
        if self.failed.is_some() {
            return;
        }
        self.tell(format!("the job fails: {reason}"));
        let effects = self.job.fail(&reason, stops, self.now);
        self.failed = Some(reason.clone());
        effects.into_iter().for_each(|effect| self.carry_out(effect));
        for (of_lead, is_release) in std::mem::take(&mut self.follows).into_values() {
            let ended = "the job ended meanwhile".to_owned();
            self.letters.push(match is_release {
                true => Letter::Released(of_lead, Err(ended)),
                false => Letter::Held(of_lead, Err(ended)),
            });
        }
        if !self.job.hubs.share.is_whole() {
            self.letters.push(Letter::Failed(reason));
        }
        if self.forgets {
            self.command(|| Command::End);
        }
        self.wakes += 1;
        self.publish();
    }

    /// Forgets the job, some time after its failure: no token serves anybody.
    pub fn forget(&mut self) {
        self.tokens.sweep(|_| false, self.now + KEEP_FAILED);
        for &(token, rank) in &self.given {
            assert_eq!(self.tokens.owner(token), Err(Unserved::Unknown), "a token of rank {rank}");
        }
    }

    /// Loses a member that has lost another hub of the job, and says so.
    pub fn loses_hub(&mut self, rank: u32, reason: &str) {
        if self.failed.is_none() && self.job.member(rank).is_some() {
            let effects = self.job.lose(rank, Cause::HubLost, reason);
            self.carry_out_all(effects);
        }
    }

    /// Much time passes. Members that live have said so.
    pub fn time_passes(&mut self, lives: impl Fn(u32) -> bool) {
        self.now += 4 * LIMIT;
        for rank in (0..self.job.terms.workers).filter(|&rank| lives(rank)) {
            self.job.heard_of(rank, None, self.now).expect("it says nothing of other workers");
        }
        self.report(Event::Swept(LIMIT));
    }
}
