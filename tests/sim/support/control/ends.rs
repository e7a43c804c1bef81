//! The end of a job at a simulated hub, and the work that a hub does over time.

use coordinator::input::{self, Fail, Happened, Heard, Lose, Sweep};
use coordinator::{Blame, Cause, Differs, Event, Files, Join, KEEP_FAILED, Leave, Token, Unserved};
use membership::End;
use pbox_core::Round;
use pbox_core::control::{JobState, RefusalCode};

use super::{Command, Control, LIMIT, hub_of};
use crate::hubs::Letter;

impl Control {
    /// Lets the job, which gathers, begin with a round. `reached` has the rounds that members had reached
    /// when they lost their hubs, by rank.
    pub fn begin_again(&mut self, first: Round, files: &Files, reached: &[Option<Round>]) {
        let (named, job) = ((self.id, self.name.clone()), self.job());
        self.hub = hub_of(named, &job.spec.terms, job.hubs.share, job.spec.made.clone(), (first, files));
        self.reached = reached.to_vec();
    }

    /// Asks for a taken rank, or with other terms if `differs`. Returns whether the hub refuses.
    pub fn refuses(&mut self, rank: u32, differs: bool) -> bool {
        let job = self.job();
        let (is_taken, may_be_free) =
            (job.members.get(rank).is_some(), job.spec.goes_on() && job.life.runs());
        if self.failed.is_some() || !(differs || is_taken) {
            return false;
        }
        let (what, ours, theirs) = ("chunk_bytes".to_owned(), "64".to_owned(), "128".to_owned());
        let other = differs.then_some(Differs::Term { what, ours, theirs });
        let join = Join { differs: other, ..self.join_of(rank, 0, Token([0xff; 16])) };
        let expected = match (is_taken && may_be_free, differs) {
            (true, _) => RefusalCode::RankBusy,
            (false, true) => RefusalCode::TermsDiffer,
            (false, false) => RefusalCode::RankTaken,
        };
        assert_eq!(self.ask(join).map_err(|refused| refused.code), Err(expected), "rank {rank}");
        true
    }

    /// Kills the hub, so that its links close and nobody gets a reason.
    pub fn dies(&mut self) {
        let heard = self.heard.clone();
        self.fails("the hub is gone".to_owned(), Blame::Hub);
        (self.heard, self.is_dead) = (heard, true);
        self.letters.retain(|letter| matches!(letter, Letter::Held(..) | Letter::Released(..)));
    }

    /// Returns why the job has failed here, with the end of membership that follows. Members learn the
    /// reason, or see that nothing answers.
    pub fn failure(&self) -> Option<(&str, End)> {
        match &self.heard.state {
            JobState::Failed { reason, hub_stops: true } => Some((reason, End::HubLost)),
            JobState::Failed { reason, .. } => Some((reason, End::JobOver)),
            _ => self.failed.as_deref().filter(|_| self.is_dead).map(|reason| (reason, End::HubLost)),
        }
    }

    /// Ends the job for a reason.
    pub fn fails(&mut self, reason: String, blame: Blame) {
        if self.failed.is_some() {
            return;
        }
        self.tell(format!("the job fails: {reason}"));
        let fail = Fail { job: self.id, reason: reason.clone(), blame, saves: false };
        let failed = self.ask(fail).expect("it has not failed before");
        self.failed = Some(reason.clone());
        failed.effects.into_iter().for_each(|effect| self.carry_out(effect));
        for (of_lead, is_release) in std::mem::take(&mut self.follows).into_values() {
            let ended = "the job ended meanwhile".to_owned();
            self.letters.push(match is_release {
                true => Letter::Released(of_lead, Err(ended)),
                false => Letter::Held(of_lead, Err(ended)),
            });
        }
        if !self.job().hubs.share.is_whole() {
            self.letters.push(Letter::Failed(reason, blame));
        }
        if self.forgets {
            self.command(|| Command::End);
        }
        self.files.end();
        self.ends_without_state();
        self.wakes += 1;
        self.publish();
    }

    /// Forgets the job some time after its failure. From then on, no token is valid.
    pub fn forget(&mut self) {
        self.now += 2 * KEEP_FAILED;
        self.ask(Sweep);
        assert!(self.hub.job(self.id).is_none() && self.hub.names().job(&self.name).is_none());
        for &(token, rank) in &self.given {
            assert_eq!(self.hub.tokens().owner(token), Err(Unserved::Unknown), "a token of rank {rank}");
        }
    }

    /// Loses a member that has reported the loss of another hub of the job.
    pub fn loses_hub(&mut self, rank: u32, reason: &str) {
        if self.failed.is_none() && self.job().members.get(rank).is_some() {
            let (member, cause) = (self.member(rank), Cause::HubLost);
            let effects = self.ask(Lose { member, cause, reason: reason.to_owned() });
            self.carry_out_all(effects);
        }
    }

    /// Lets much time pass. Living members report that they live.
    pub fn time_passes(&mut self, lives: impl Fn(u32) -> bool) {
        self.now += 4 * LIMIT;
        self.heard_of(lives);
        self.report(Event::Swept(LIMIT));
    }

    /// Lets some time pass before living members report that they live. They have taken the earlier news, as
    /// heartbeats do at once.
    pub fn is_silent(&mut self, lives: impl Fn(u32) -> bool) {
        self.heard_of(&lives);
        self.now += LIMIT / 2;
        let effects = self.ask(Happened { job: self.id, event: Event::Swept(LIMIT) });
        self.carry_out_all(effects);
        self.heard_of(lives);
    }

    pub(super) fn heard_of(&mut self, lives: impl Fn(u32) -> bool) {
        for rank in (0..self.job().spec.terms.workers).filter(|&rank| lives(rank)) {
            let heard = Heard { member: self.member(rank), latest: None };
            self.ask(heard).expect("it says nothing of other workers");
        }
    }

    /// Lets a member leave while other members remain.
    pub fn leaves(&mut self, rank: u32) {
        let (member, owner) = (self.member(rank), Ok((self.id, rank)));
        let token =
            self.given.iter().map(|(token, _)| *token).find(|&of| self.hub.tokens().owner(of) == owner);
        let round = self.job().progress.round();
        if token.is_some()
            && self.ask(input::Leave { member, token, round, behind: Vec::new() }) == Leave::Left
        {
            self.tell(format!("worker {rank} leaves"));
            self.command(|| Command::Remove(rank));
            self.publish();
            self.check();
        }
    }
}
