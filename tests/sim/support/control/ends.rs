//! The end of a job at a simulated hub, and events that need time to pass.

use coordinator::input::{
    self, Compare, CountJoin, Drain, Fail, Find, Happened, Heard, Judge, StoodStill, Sweep, TellAbove, Told,
    ToldAbove, UndoJoin,
};
use coordinator::{
    Blame, Cause, Compared, Differs, Effect, Event, Files, Join, KEEP_FAILED, Leave, Token, Unserved,
};
use membership::End;
use pbox_core::control::{JobState, RefusalCode};
use pbox_core::{Look, NumbersByRound, Round};

use super::make::LATE;
use super::{Command, Control, Harm, LIMIT, hub_of};
use crate::hubs::HubMessage;

impl Control {
    /// Lets the job, which gathers its members, begin with a round. `reached` has the rounds that members had
    /// reached when they lost their hubs, by rank.
    pub fn begin_again(&mut self, from: (Round, NumbersByRound), files: &Files, reached: &[Option<Round>]) {
        let (named, job) = ((self.id, self.name.clone()), self.job());
        self.hub =
            hub_of(named, &job.spec.terms, job.hubs.share, job.spec.made.clone(), (from, files), self.now);
        self.reached = reached.to_vec();
    }

    /// Asks to join with a taken rank, or with other terms if `differs`. Returns true if the hub has refused, and false
    /// if there was nothing to refuse.
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
        let refused = self.ask(join).expect_err("the rank is taken, or the terms differ");
        assert_eq!(refused.code, expected, "rank {rank}");
        let (name, why) = (self.name.clone(), Some(refused.why.clone()));
        self.ask(CountJoin { name, rank, from: None, refused: why });
        self.publish();
        let named = self.last_news.refused.as_ref().map(|why| why.starts_with(&format!("rank {rank}: ")));
        let expected = self.job().life.gathers().then_some(true);
        assert_eq!(named, expected, "members that wait for rank {rank} hear why it was refused");
        true
    }

    /// Lets a client join with this rank and die before it has the answer. Returns false if the rank is not free.
    pub fn joins_in_vain(&mut self, rank: u32) -> bool {
        if self.failed.is_some() || self.is_closed() || self.job().members.get(rank).is_some() {
            return false;
        }
        let gathers = self.job().life.gathers();
        let token = self.token(rank);
        self.ask(self.join_of(rank, self.given.len() as u64, token)).expect("its rank is free");
        self.harms[rank as usize] = vec![Harm::Killed];
        let effects = self.ask(UndoJoin { member: self.member(rank), token });
        assert!(!gathers || effects.is_empty(), "members that wait do not notice: {effects:?}");
        self.carry_out_all(effects);
        assert!(self.hub.tokens().owner(token).is_err(), "nobody knows the token of rank {rank}");
        let members = &self.job().members;
        assert!(self.failed.is_some() || !members.has(rank), "rank {rank} has nobody");
        assert!(!gathers || members.get(rank).is_none(), "rank {rank} is free at once");
        true
    }

    /// Kills the hub. Its links close, and members get no reason.
    pub fn dies(&mut self) {
        let last_news = self.last_news.clone();
        self.saves = false;
        self.fails("the hub is gone".to_owned(), Blame::Hub);
        self.messages.retain(|message| matches!(message, HubMessage::Held(..) | HubMessage::Released(..)));
        self.last_dies();
        (self.last_news, self.is_dead) = (last_news, true);
    }

    /// Whether the hub has died.
    pub fn is_dead(&self) -> bool {
        self.is_dead
    }

    /// Returns why the job has failed here, and what the failure means for its members. Members learn the reason from
    /// the news, or see that the hub does not answer.
    pub fn failure(&self) -> Option<(&str, End)> {
        match &self.last_news.state {
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
        tell!(self, "the job fails: {reason}");
        let fail = Fail { job: self.id, reason: reason.clone(), blame, saves: self.saves };
        let failed = self.ask(fail).expect("it has not failed before");
        self.failed = Some(reason.clone());
        self.last.has_trouble |= !failed.is_being_saved;
        if self.job().spec.made.is_below {
            self.ask(TellAbove { job: self.id });
        }
        failed.effects.into_iter().for_each(|effect| self.carry_out(effect));
        for (of_lead, is_release) in std::mem::take(&mut self.follows).into_values() {
            let ended = "the job ended meanwhile".to_owned();
            self.messages.push(match is_release {
                true => HubMessage::Released(of_lead, Err(ended)),
                false => HubMessage::Held(of_lead, Err(ended)),
            });
        }
        if !self.job().hubs.share.is_whole() && !failed.is_being_saved {
            self.messages.push(HubMessage::Failed(reason, blame));
        }
        if self.forgets && !failed.is_being_saved {
            self.command(|| Command::End);
        }
        self.brings = None;
        self.files.end();
        self.ends_without_state();
        self.wakes += 1;
        self.publish();
    }

    /// Notes that the hubs above have been notified of the failure.
    pub fn note_notified_above(&mut self) {
        assert!(self.has_unnotified(), "the hubs above must be notified");
        self.ask(ToldAbove { job: self.id });
        assert!(!self.has_unnotified());
    }

    /// Forgets the job some time after its failure. From then on, no token is valid.
    pub fn forget(&mut self) {
        self.now += 2 * KEEP_FAILED;
        self.ask(Sweep);
        if self.is_dead {
            return; // nobody asks a hub that is gone
        }
        assert!(self.hub.job(self.id).is_none() && self.hub.names().job(&self.name).is_none());
        for &(token, rank) in &self.given {
            assert_eq!(self.hub.tokens().owner(token), Err(Unserved::Unknown), "a token of rank {rank}");
        }
    }

    /// Loses a member that has reported the loss of another hub of the job.
    pub fn loses_hub(&mut self, rank: u32, reason: &str) {
        if self.failed.is_none() && self.job().members.get(rank).is_some() {
            self.loses(rank, Cause::HubLost, reason);
        }
    }

    /// Lets much time pass. Living members report that they live.
    pub fn time_passes(&mut self, lives: impl Fn(u32) -> bool) {
        self.now += 4 * LIMIT;
        self.send_heartbeats(lives);
        self.report(Event::Swept(LIMIT));
    }

    /// Lets half of the limit pass, in which no member sends a heartbeat. Living members send one before this time, as
    /// they do after news, and one after it.
    pub fn make_silent(&mut self, lives: impl Fn(u32) -> bool) {
        self.send_heartbeats(&lives);
        self.now += LIMIT / 2;
        let effects = self.ask(Happened { job: self.id, event: Event::Swept(LIMIT) });
        self.carry_out_all(effects);
        self.send_heartbeats(lives);
    }

    /// Suspends the hub for longer than a member may be silent. The hub must not lose a member because of its own
    /// silence.
    pub fn stands_still(&mut self) {
        self.now += 4 * LIMIT;
        self.ask(StoodStill);
        let effects = self.ask(Happened { job: self.id, event: Event::Swept(LIMIT) });
        let is_blamed = |effect: &Effect| match effect {
            Effect::Lost { cause, .. } => *cause == Cause::Silent,
            effect => matches!(effect, Effect::HeldTooLong(_)),
        };
        assert!(!effects.iter().any(is_blamed), "only this hub was silent: {effects:?}");
        self.carry_out_all(effects);
    }

    /// Lets much time pass between two equal looks at the cores, so that nothing seems to have moved. Living members
    /// report that they live.
    pub fn hold_up(&mut self, look: &Look, lives: impl Fn(u32) -> bool) {
        let judge = Judge { job: self.id, look: look.clone(), above: Vec::new() };
        let first = self.ask(judge.clone());
        self.carry_out_all(first);
        self.now += 2 * LATE;
        self.send_heartbeats(lives);
        let effects = self.ask(judge);
        self.carry_out_all(effects);
    }

    /// Takes no more jobs.
    pub fn drains(&mut self) {
        let jobs = self.ask(Drain);
        assert_eq!(jobs.contains(&self.name), self.failed.is_none(), "{jobs:?}");
        let refused = self.ask(Find { name: "another job".to_owned(), owner: None });
        let expected = if self.is_closed() { RefusalCode::HubStops } else { RefusalCode::Draining };
        assert_eq!(refused.map_err(|refused| refused.code), Err(expected));
    }

    /// Answers a member's heartbeat with the failure of the job.
    pub fn answers(&mut self, rank: u32) {
        self.ask(Told { member: self.member(rank) });
    }

    /// Whether somebody must still be notified that the job has failed.
    pub fn has_unnotified(&self) -> bool {
        self.hub.end().has_unnotified()
    }

    /// Compares the digest of a member's weights before a round with the digests of the other members.
    pub fn compares(&mut self, rank: u32, round: Round, digest: u64) {
        let compared = Compared { round, written: false };
        let compare = Compare { member: self.member(rank), compared, digest };
        self.ask(compare).expect("all members have the same weights");
    }

    pub(super) fn send_heartbeats(&mut self, lives: impl Fn(u32) -> bool) {
        for rank in (0..self.job().spec.terms.workers).filter(|&rank| lives(rank)) {
            let heard = Heard { member: self.member(rank), latest: None };
            self.ask(heard).expect("it says nothing of other workers");
        }
    }

    /// Lets a member leave. The last member ends the job.
    pub fn leaves(&mut self, rank: u32) {
        let (member, owner) = (self.member(rank), Ok((self.id, rank)));
        let tokens = || self.given.iter().map(|(token, _)| *token);
        let Some(token) = tokens().find(|&of| self.hub.tokens().owner(of) == owner) else { return };
        let round = self.job().progress.round();
        match self.ask(input::Leave { member, token: Some(token), round, behind: Vec::new() }) {
            Leave::Left => {
                tell!(self, "worker {rank} leaves");
                self.command(|| Command::Remove(rank));
                self.publish();
                self.check();
            }
            Leave::Last => {
                self.ask(input::End { job: self.id }).expect("all workers have left");
                assert!(self.hub.names().is_empty() && self.hub.jobs().next().is_none(), "nothing is left");
                for &(token, rank) in &self.given {
                    assert!(self.hub.tokens().owner(token).is_err(), "a token of rank {rank}");
                }
            }
            leave => assert!(self.failed.is_some(), "rank {rank}: {leave:?}"),
        }
    }
}
