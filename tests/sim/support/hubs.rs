//! The hubs of one job: the control of each, and the requests between them. Requests arrive late and in any
//! order.

use std::sync::Arc;
use std::time::Duration;

use coordinator::{Blame, CutId, Event, FollowId};
use pbox_core::control::{
    ArrivedRequest, FailedReply, FailedRequest, HoldRequest, LastReply, LastRequest, PartState,
    ReleaseRequest, WholeRounds,
};
use pbox_core::{JobTerms, Round, Share};

use crate::control::{Control, tell};
use crate::messages::{Messages, Question, Said};
use crate::simulated::JOB;
use crate::trouble::Dice;

/// A request to another hub, or its answer.
#[derive(Clone, Debug)]
pub enum HubMessage {
    /// Hub 0 asks to pause the job for its cut.
    Hold(CutId, HoldRequest),
    /// Hub 0 releases the job.
    Release(CutId, ReleaseRequest),
    /// The other hub has paused the job, or cannot pause it.
    Held(CutId, Result<Option<Round>, String>),
    /// The other hub has released the job, or has not.
    Released(CutId, Result<(), String>),
    /// A hub has all links of a worker that joins.
    Arrived(ArrivedRequest),
    /// A hub has lost a worker, and continues.
    Lost(u64, String),
    /// The job has failed at a hub, which saves no last state.
    Failed(String, Blame),
    /// The job has failed at a hub, which asks whether the other hub still has the job.
    Failing(FailedRequest),
    /// The answer to the hub with this number: whether the sender still has the job, and the job's rounds.
    Holds(usize, Result<FailedReply, String>),
    /// Hub 0 asks these hubs to write their parts of the last state.
    Save(Vec<u32>, LastRequest),
    /// The other hub has written its part of the last state, or has not.
    Saved(Result<LastReply, String>),
    /// A hub stops, and asks hub 0 to end the job at a cut. The round in flight may take this time.
    End(usize, Duration),
    /// The answer to the hub that stops: the job has ended at a cut. The flag says whether the job is saved.
    Ended(usize, bool),
    /// Hub 0 asks this hub for its part of the checkpoint before a round, and sends the rounds of complete checkpoints.
    HasPart(FollowId, u32, Round, WholeRounds),
    /// The other hub has files of these rounds, and this is the state of its part. An error means that the
    /// state is unknown.
    Part(FollowId, u32, Result<(Vec<Round>, PartState), String>),
}

impl HubMessage {
    /// Returns the question of the message, if its sender waits for answers.
    pub fn asks(&self, from: usize) -> Option<Question> {
        match self {
            HubMessage::Hold(cut, _) => Some(Question::Hold(*cut)),
            HubMessage::Release(cut, _) => Some(Question::Release(*cut)),
            HubMessage::Failing(_) => Some(Question::Holds(from)),
            HubMessage::Save(..) => Some(Question::Save),
            _ => None,
        }
    }
}

/// The hubs of a job.
pub struct Hubs {
    /// The control of each.
    pub hubs: Vec<Control>,
    /// The messages between them.
    pub messages: Messages,
    /// The number of workers that have joined.
    workers: u64,
    /// The number of the worker that joined last, by rank.
    names: Vec<u64>,
}

impl Hubs {
    /// Creates the hubs of a job that gathers its members, each with `cores` cores. `owners` has the number of shards
    /// that own chunks, by hub.
    pub fn new(terms: &Arc<JobTerms>, cores: usize, owners: &[usize]) -> Self {
        let hub = |hub| {
            let (job, share) = ((JOB, "the job".to_owned()), Share::of_hub(terms, hub));
            Control::with_owners(job, terms, share, (cores, false), owners)
        };
        let hubs = (0..terms.hubs).map(hub).collect();
        Hubs { hubs, messages: Messages::default(), workers: 0, names: vec![0; terms.workers as usize] }
    }

    /// Returns hub 0.
    pub fn lead(&mut self) -> &mut Control {
        &mut self.hubs[0]
    }

    /// Lets a worker join at all hubs.
    pub fn join(&mut self, rank: u32) {
        self.workers += 1;
        self.names[rank as usize] = self.workers;
        self.hubs.iter_mut().for_each(|hub| hub.join_as(rank, self.workers));
    }

    /// Whether a rank is free at all hubs.
    pub fn is_free(&self, rank: u32) -> bool {
        self.hubs.iter().all(|hub| hub.job().members.get(rank).is_none() && !hub.is_closed())
    }

    /// Whether a worker takes part at all hubs.
    pub fn takes_part(&self, rank: u32) -> bool {
        self.hubs.iter().all(|hub| hub.job().members.takes_part(rank))
    }

    /// Connects a worker that has asked all hubs for links, if all cores have dropped the old links.
    pub fn relink(&mut self, rank: u32) -> bool {
        let are_dropped = self.hubs.iter_mut().all(|hub| hub.has_dropped(rank));
        are_dropped && self.hubs.iter_mut().all(|hub| hub.relink(rank))
    }

    /// Whether the worker that joined last with this rank is a member at all hubs.
    pub fn have(&self, rank: u32) -> bool {
        let worker = self.names[rank as usize];
        self.hubs.iter().all(|hub| hub.job().members.rank(worker) == Some(rank))
    }

    /// Returns the number of times that waiting members were woken.
    pub fn wakes(&self) -> u64 {
        self.hubs.iter().map(|hub| hub.wakes).sum()
    }

    /// Returns whether the job has failed at any hub, and whether it has failed at all hubs.
    pub fn has_failed(&self) -> (bool, bool) {
        let failed = self.hubs.iter().filter(|hub| hub.failed.is_some()).count();
        (failed > 0, failed == self.hubs.len())
    }

    /// Whether reports or messages are in flight.
    pub fn is_busy(&self) -> bool {
        self.messages.is_busy() || self.hubs.iter().any(Control::is_busy)
    }

    /// Whether no message, report or command is in flight and no write is due, so that nothing happens until time
    /// passes.
    pub fn only_waits(&self) -> bool {
        self.messages.is_empty() && self.hubs.iter().all(|hub| !hub.has_work() && hub.last_due().is_none())
    }

    /// Whether something other than the job has failed, so that the job's last state is possibly not saved.
    pub fn has_trouble_with_last(&self) -> bool {
        self.messages.has_disturbed_last || self.hubs.iter().any(|hub| hub.last.has_trouble)
    }

    /// Lets every control take in its next report, and delivers every message. With dice, handles only some reports and
    /// messages.
    pub fn work(&mut self, mut dice: Option<&mut Dice>) {
        let mut is_due = |one_in: u64| dice.as_deref_mut().is_none_or(|dice| dice.below(one_in) == 0);
        for hub in &mut self.hubs {
            if is_due(2) {
                hub.work();
            }
        }
        self.collect();
        for (from, to, message) in self.messages.due(|| is_due(4)) {
            self.deliver(from, to, message);
            self.collect();
        }
        if let Some(dice) = dice {
            let (known, given_up) = self.messages.trouble(dice);
            if let Some((asker, event)) = known.filter(|(asker, _)| !self.hubs[*asker].is_dead()) {
                self.hubs[asker].report(event);
            }
            if let Some((from, HubMessage::Arrived(request))) = given_up {
                let hub = &mut self.hubs[from];
                if let Some(rank) = hub.job().members.rank(request.worker) {
                    hub.lose(rank, "it could not be let in");
                }
            }
            if let Some((follow, hub)) = self.messages.loses_part(dice) {
                let said = Err("no answer came".to_owned());
                self.lead().report(Event::Part { follow, hub, said });
            }
        }
    }

    /// Takes the messages that the hubs have written.
    fn collect(&mut self) {
        let hubs = self.hubs.len();
        for from in 0..hubs {
            for message in std::mem::take(&mut self.hubs[from].messages) {
                self.messages.take(from, message, hubs);
            }
        }
    }

    /// Gives a hub the answer of another hub.
    fn answered(&mut self, asker: usize, from: usize, question: Question, said: Result<Said, String>) {
        let event = self.messages.answered(from, question, said);
        if let Some(event) = event.filter(|_| !self.hubs[asker].is_dead()) {
            self.hubs[asker].report(event);
        }
    }

    fn deliver(&mut self, from: usize, to: usize, message: HubMessage) {
        let hub = &mut self.hubs[to];
        tell!(hub, "gets {message:?}");
        let ended = || Err("the job ended meanwhile".to_owned());
        match message {
            HubMessage::Hold(cut, _) if hub.failed.is_some() => {
                hub.messages.push(HubMessage::Held(cut, ended()))
            }
            HubMessage::Release(cut, _) if hub.failed.is_some() => {
                hub.messages.push(HubMessage::Released(cut, ended().map(|_: Option<Round>| ())));
            }
            HubMessage::End(of, _) if hub.failed.is_some() => hub.messages.push(HubMessage::Ended(of, false)),
            HubMessage::End(of, limit) => hub.ends_at_cut(of, limit),
            HubMessage::Ended(_, is_saved) => hub.answered_at_stop(is_saved),
            HubMessage::HasPart(..) | HubMessage::Part(..) if hub.failed.is_some() => {}
            HubMessage::HasPart(follow, _, before, whole) => hub.part_asked(follow, before, whole),
            HubMessage::Part(follow, hub_of, said) => hub.report(Event::Part { follow, hub: hub_of, said }),
            HubMessage::Hold(cut, request) => hub.follow(cut, request.cut),
            HubMessage::Release(cut, request) => hub.released_by_lead(cut, request),
            HubMessage::Held(cut, front) => {
                self.answered(to, from, Question::Hold(cut), front.map(Said::Front))
            }
            HubMessage::Released(cut, done) => {
                self.answered(to, from, Question::Release(cut), done.map(|()| Said::Done));
            }
            HubMessage::Failing(_) if hub.is_dead() => {
                hub.messages.push(HubMessage::Holds(from, Err("it died".to_owned())));
            }
            HubMessage::Failing(request) => hub.failed_elsewhere(from, &request),
            HubMessage::Holds(_, holds) => {
                self.answered(to, from, Question::Holds(to), holds.map(Said::Holds))
            }
            HubMessage::Save(..) if hub.is_dead() => {
                hub.messages.push(HubMessage::Saved(Err("it died".to_owned())))
            }
            HubMessage::Save(_, request) => hub.part_of_last_asked(request),
            HubMessage::Saved(part) => self.answered(to, from, Question::Save, part.map(Said::Part)),
            HubMessage::Failed(reason, blame) => hub.fails(reason, blame),
            HubMessage::Arrived(request) => hub.arrived(&request),
            HubMessage::Lost(worker, reason) => {
                if let Some(rank) = hub.job().members.rank(worker) {
                    hub.lose(rank, &reason);
                }
            }
        }
    }
}
