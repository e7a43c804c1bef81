//! A hub as a member of a job knows it: its control port, the member's token there, and its news of the job. A job has
//! one hub, or is spread over several.

use std::io::Read;
use std::ops::Range;
use std::time::{Duration, Instant};

use pbox_core::control::{
    Answer, JobState, JoinReply, Late, Latest, LeaveRequest, Left, LeftAt, RelinkRequest, StateReply, missing,
};
use pbox_core::{Round, Share};
use serde::Serialize;

use crate::control::{Control, HubClock};
use crate::error::MemberError;
use crate::failure::{Cause, Failure, insist};
use crate::heartbeat::{Heartbeat, News};
use crate::join::LetIn;

/// Requests for a hub's clock. The quickest one counts.
const CLOCK_TRIES: usize = 8;

/// The first protocol version in which a leave has a round for each key.
const LEAVES_BY_KEY: u32 = 12;

/// The first protocol version in which only one rank pushes the first weights.
const FIRST_OF_ONE: u32 = 13;

/// A hub of the job.
#[derive(Debug)]
pub struct Hub {
    pub(crate) control: Control,
    pub(crate) share: Share,
    pub(crate) heartbeat: Heartbeat,
    /// The token of this member.
    pub token: String,
    /// The time for which a request is retried if its failure may be temporary.
    pub(crate) limit: Duration,
    /// Whether the hub waits for this member after it loses its links, until it [makes new ones](Self::relink).
    pub relinks: bool,
    /// The version of the protocol in use.
    pub(crate) protocol: u32,
    /// Whether the hub answers bytes ahead.
    pub answers_ahead: bool,
    /// The hub's cores, by their numbers in the placement.
    pub cores: Range<usize>,
}

/// The members that the hubs of a job still wait for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missing {
    /// The ranks of members of the hubs.
    pub ranks: Vec<u32>,
    /// The machines that lack a ready hub above, if no rank is missing.
    pub machines: Vec<u32>,
    /// A worker that was refused, with the reason.
    pub refused: Option<String>,
}

impl Missing {
    /// Describes what a worker of a job with `workers` workers waits for.
    pub fn spoken(&self, workers: u32) -> String {
        let missing = missing(&self.ranks, &self.machines, workers);
        match &self.refused {
            Some(refused) => format!("{missing} (the hub has refused {refused})"),
            None => missing,
        }
    }
}

/// Returns the round from which a rank takes part at all hubs of its job, or the members for which the hubs still wait.
pub fn takes_part(hubs: &[Hub], rank: u32) -> Result<Round, Missing> {
    let (mut from, mut waits_for) = (Round(0), None);
    for hub in hubs {
        let news = hub.heartbeat.news();
        match (news.reply.members.iter().find(|member| member.rank == rank), &news.reply.state) {
            (Some(member), _) => from = from.max(member.from),
            (None, JobState::Gathering { missing, machines }) => {
                let refused = news.reply.refused.clone();
                waits_for = Some(Missing { ranks: missing.clone(), machines: machines.clone(), refused });
            }
            (None, _) => {
                waits_for = Some(Missing { ranks: vec![rank], machines: Vec::new(), refused: None });
            }
        }
    }
    waits_for.map_or(Ok(from), Err)
}

/// Returns the highest round that a worker had reached when it lost its hub, if workers joined these hubs again.
pub fn reached(hubs: &[Hub]) -> Option<Round> {
    hubs.iter().filter_map(|hub| hub.heartbeat.news().reply.reached).max()
}

/// Returns how many rounds of the job were lost with hubs before it began at these hubs.
pub fn lost(hubs: &[Hub]) -> u32 {
    hubs.iter().map(|hub| hub.heartbeat.news().reply.lost).max().unwrap_or(0)
}

/// Whether the hubs wait for a member that makes new links, according to their news.
pub fn wait_for_links(hubs: &[Hub]) -> bool {
    hubs.iter().all(|hub| hub.relinks && hub.end().is_none())
}

impl Hub {
    /// Returns the address of its control port.
    pub fn address(&self) -> &str {
        &self.control.hub
    }

    /// Returns the ranks that take part now, ascending.
    pub fn members(&self) -> Vec<u32> {
        self.heartbeat.news().reply.members.iter().map(|member| member.rank).collect()
    }

    /// Returns the first rank that left and for which `test` is true.
    pub fn find_left(&self, test: impl Fn(&Left) -> bool) -> Option<Left> {
        self.heartbeat.news().reply.left.iter().find(|left| test(left)).cloned()
    }

    /// Returns the workers for which other workers have waited too long.
    pub fn held_up_by(&self) -> Vec<Late> {
        self.heartbeat.news().reply.held_up_by.clone()
    }

    /// Sets the late one of this member's own workers, which the next heartbeats report.
    pub fn say_latest(&self, latest: Option<Latest>) {
        self.heartbeat.say_latest(latest);
    }

    /// Returns the error that ends the membership, if the news have one.
    pub fn end(&self) -> Option<MemberError> {
        self.end_by(&self.heartbeat.news())
    }

    fn end_by(&self, news: &News) -> Option<MemberError> {
        if let JobState::Failed { reason, hub_stops } = &news.reply.state {
            let (job, reason, hub_stops) = (self.control.job.clone(), reason.clone(), *hub_stops);
            return Some(MemberError::JobFailed { job, reason, hub_stops });
        }
        news.lost.clone().map(|cause| self.lost(cause))
    }

    /// Works like [`end`](Self::end), and waits for news with such an error until `deadline`.
    pub fn wait_for_end(&self, deadline: Instant) -> Option<MemberError> {
        self.heartbeat.wait_for(deadline, |news| self.end_by(news))
    }

    /// Checks that the hub's control port answers within `limit`, and that workers can join.
    ///
    /// # Errors
    /// Returns an error if the hub is lost, or stops.
    pub fn check_health(&self, limit: Duration) -> Result<(), MemberError> {
        self.control.within(limit).check_health().map_err(|failure| self.lost_if_unreachable(failure.error))
    }

    /// Returns the time of the hub's clock: the quickest of some requests, each within `limit`. `None` if the hub
    /// does not tell it.
    pub fn clock(&self, limit: Duration) -> Option<HubClock> {
        let control = self.control.within(limit);
        let tries = std::iter::repeat_with(|| control.clock().ok()).map_while(|clock| clock);
        tries.take(CLOCK_TRIES).min_by_key(|clock| clock.within)
    }

    /// Returns the error that says that the hub is lost.
    pub fn lost(&self, cause: String) -> MemberError {
        let Control { hub, job, .. } = &self.control;
        MemberError::HubLost { job: job.clone(), hub: hub.clone(), cause }
    }

    /// Posts a request, which the hub may get twice: it is retried if its failure may be temporary. The hub is lost if it
    /// cannot be reached.
    ///
    /// # Errors
    /// Returns an error if the hub is lost, the job has failed, or the hub refuses.
    pub fn post<Q: Serialize, R: Answer>(
        &self,
        verb: &str,
        what: &'static str,
        request: &Q,
    ) -> Result<R, MemberError> {
        self.insist(|| self.control.post(verb, what, request))
    }

    /// Retries a request while its failure may be temporary and the job continues, at most for the heartbeat's limit.
    fn insist<R>(&self, ask: impl FnMut() -> Result<R, Failure>) -> Result<R, MemberError> {
        let passes = |failure: &Failure| failure.passes_for_member() && self.end().is_none();
        insist(self.limit, passes, ask).map_err(|Failure { cause, error }| match (cause, error) {
            (Cause::Refused, error) => error,
            // The end of a job explains more than the failure of a request. The heartbeat may notice a lost hub a moment later.
            (_, MemberError::Unreachable { cause, .. }) => self.end().unwrap_or_else(|| self.lost(cause)),
            (Cause::Gone, answer) => self.end().unwrap_or_else(|| self.lost(answer.to_string())),
            (_, answer) => self.end().unwrap_or(answer),
        })
    }

    fn lost_if_unreachable(&self, error: MemberError) -> MemberError {
        match error {
            MemberError::Unreachable { cause, .. } => self.end().unwrap_or_else(|| self.lost(cause)),
            other => other,
        }
    }

    /// Reports that this member has lost its links, and asks for new ones. When the hub answers, it has released the old links.
    ///
    /// # Errors
    /// Returns the errors of [`post`](Self::post).
    pub fn relink(&self, why: String) -> Result<LetIn, MemberError> {
        let request = RelinkRequest { token: self.token.clone(), why };
        let control = self.control.within(self.limit);
        let reply: JoinReply = self.insist(|| control.post("relink", "make new links", &request))?;
        let token = reply.token.clone();
        let reply = JoinReply { relinks: self.relinks, token: self.token.clone(), ..reply };
        Ok(LetIn::again(self, reply, token))
    }

    /// Offers the state before a round, with which a new job then begins. `steps` are the steps of each key, if they differ
    /// from one per round. If the hub wants the state, returns how many of its bytes.
    ///
    /// # Errors
    /// Returns the errors of [`post`](Self::post).
    pub fn offer(&self, state_before: Round, steps: Option<Vec<u32>>) -> Result<Option<u64>, MemberError> {
        self.control.offer(&self.token, state_before, steps).map_err(|error| self.lost_if_unreachable(error))
    }

    /// Sends the state that the hub waits for, of `bytes` bytes.
    ///
    /// # Errors
    /// Returns the errors of [`post`](Self::post), and an error if the state has another length.
    pub(crate) fn send_state(&self, values: Box<dyn Read + Send>, bytes: u64) -> Result<(), MemberError> {
        let reply = self.control.send_state("bring a state", &self.token, values, bytes);
        reply.map(|_: StateReply| ()).map_err(|error| self.lost_if_unreachable(error))
    }

    /// Reports within `limit` that this member's own job has failed, with the reason.
    ///
    /// # Errors
    /// Returns the errors of [`post`](Self::post).
    pub fn fail(&self, reason: &str, limit: Duration) -> Result<(), MemberError> {
        self.leave_because(reason, LeaveRequest::default(), limit)
    }

    /// Reports within `limit` how another hub of the job is lost or stops. The job ends at this hub until the other hub is
    /// back.
    ///
    /// # Errors
    /// Returns the errors of [`post`](Self::post).
    pub fn fail_without_hub(&self, lost: &str, limit: Duration) -> Result<(), MemberError> {
        self.leave_because(lost, LeaveRequest { hub_lost: true, ..LeaveRequest::default() }, limit)
    }

    /// Reports that this member is a hub that stops. The job ends at the hub above between two rounds, until this member is
    /// back. Waits at most for `limit`.
    ///
    /// # Errors
    /// Returns the errors of [`post`](Self::post).
    pub fn stop(&self, why: &str, limit: Duration) -> Result<(), MemberError> {
        self.leave_because(
            why,
            LeaveRequest { hub_lost: true, stops: true, ..LeaveRequest::default() },
            limit,
        )
    }

    fn leave_because(&self, why: &str, request: LeaveRequest, limit: Duration) -> Result<(), MemberError> {
        let request = LeaveRequest { token: self.token.clone(), failed: Some(why.to_owned()), ..request };
        self.control.within(limit).leave(&request).map_err(|failure| failure.error)
    }

    /// Leaves a trial job from this round on. If no other worker is in it, the job leaves no checkpoint.
    ///
    /// # Errors
    /// Returns the errors of [`post`](Self::post).
    pub fn leave_trial(&self, round: Round) -> Result<(), MemberError> {
        let request =
            LeaveRequest { token: self.token.clone(), round, was_trial: true, ..LeaveRequest::default() };
        self.control.within(self.limit).leave(&request).map_err(|failure| failure.error)
    }

    /// Whether the hub takes the first weights of rank 0, and no first weights of other ranks.
    pub fn takes_first_of_one(&self) -> bool {
        self.protocol >= FIRST_OF_ONE
    }

    /// Leaves the job at this hub: each key from a round on.
    ///
    /// # Errors
    /// Returns the errors of [`post`](Self::post), and [`MemberError::CheckpointLost`] if the member has left and the
    /// trained state is not saved.
    pub fn leave(&self, at: &LeftAt) -> Result<(), MemberError> {
        let knows_keys = self.protocol >= LEAVES_BY_KEY;
        let behind = if knows_keys { at.behind.clone() } else { Vec::new() };
        let request =
            LeaveRequest { token: self.token.clone(), round: at.round, behind, ..LeaveRequest::default() };
        // The news do not matter: if the leave succeeded and its answer was lost, the hub no longer knows the heartbeat.
        let left = insist(self.limit, Failure::passes_for_member, || self.control.leave(&request));
        left.map_err(|failure| self.lost_if_unreachable(failure.error))
    }
}
