//! A hub, as a member of a job knows it: its control port, the member's token, and the hub's news of the job. A job has
//! one hub, or is spread over several hubs.

use std::io::Read;
use std::ops::Range;
use std::time::{Duration, Instant};

use pbox_core::control::{
    Answer, JobState, JoinReply, Late, Latest, LeaveRequest, Left, LeftAt, PrioritiesRequest, RelinkRequest,
    StateReply, missing,
};
use pbox_core::{Round, Share};
use serde::Serialize;

use crate::control::{Control, HubClock};
use crate::error::MemberError;
use crate::failure::{Cause, Failure, insist};
use crate::heartbeat::{Heartbeat, News};
use crate::join::LetIn;

/// The number of requests for a hub's clock. The quickest answer is used.
const CLOCK_TRIES: usize = 8;

/// The first version of the protocol in which a leave has a round for each key.
const LEAVES_BY_KEY: u32 = 12;

/// The first version of the protocol in which only one rank pushes the first weights.
const FIRST_OF_ONE: u32 = 13;

/// The first version of the protocol in which a member may set the priorities of its keys.
const PRIORITIES: u32 = 13;

/// A hub of the member's job.
#[derive(Debug)]
pub struct Hub {
    pub(crate) control: Control,
    pub(crate) share: Share,
    pub(crate) heartbeat: Heartbeat,
    /// The token of this member at the hub.
    pub token: String,
    /// The time for which a request is retried while its failure may be temporary.
    pub(crate) limit: Duration,
    /// The longest time that the hub needs to allocate its memory.
    pub(crate) for_memory: Duration,
    /// Whether the hub waits for this member after a loss of links, until the member [reconnects](Self::relink).
    pub relinks: bool,
    /// The version of the protocol that both ends use.
    pub(crate) protocol: u32,
    /// Whether the hub answers bytes ahead.
    pub answers_ahead: bool,
    /// The numbers of the hub's cores in the placement.
    pub cores: Range<usize>,
}

/// The members for which the hubs of a job still wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missing {
    /// The ranks of the missing members.
    pub ranks: Vec<u32>,
    /// The machines whose hub has not reported to the hubs above that it is ready. Known only if no rank is missing.
    pub machines: Vec<u32>,
    /// The last worker that was refused, with the reason.
    pub refused: Option<String>,
}

impl Missing {
    /// Describes for what a worker waits, in a job with `workers` workers.
    pub fn spoken(&self, workers: u32) -> String {
        let missing = missing(&self.ranks, &self.machines, workers);
        match &self.refused {
            Some(refused) => format!("{missing} (the hub has refused {refused})"),
            None => missing,
        }
    }
}

/// Returns the first round in which a rank takes part at all hubs of its job. Otherwise returns the members for which the
/// hubs still wait.
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

/// Returns the highest round that any worker had reached when it lost an earlier hub. `None` if no worker has joined again.
pub fn highest_reached(hubs: &[Hub]) -> Option<Round> {
    hubs.iter().filter_map(|hub| hub.heartbeat.news().reply.reached).max()
}

/// Returns the number of the job's rounds that were lost with earlier hubs, before the job began at these hubs.
pub fn lost_rounds(hubs: &[Hub]) -> u32 {
    hubs.iter().map(|hub| hub.heartbeat.news().reply.lost).max().unwrap_or(0)
}

/// Whether the hubs wait for a member that reconnects, according to their news.
pub fn wait_for_links(hubs: &[Hub]) -> bool {
    hubs.iter().all(|hub| hub.relinks && hub.end().is_none())
}

impl Hub {
    /// Returns the address of the hub's control port.
    pub fn address(&self) -> &str {
        &self.control.hub
    }

    /// Returns the ranks that take part now, ascending.
    pub fn members(&self) -> Vec<u32> {
        self.heartbeat.news().reply.members.iter().map(|member| member.rank).collect()
    }

    /// Returns the first worker that has left and for which `test` is true.
    pub fn find_left(&self, test: impl Fn(&Left) -> bool) -> Option<Left> {
        self.heartbeat.news().reply.left.iter().find(|left| test(left)).cloned()
    }

    /// Returns the late workers, for which other workers have waited too long.
    pub fn held_up_by(&self) -> Vec<Late> {
        self.heartbeat.news().reply.held_up_by.clone()
    }

    /// Sets the worker that delays this member's rounds. The next heartbeats report this worker.
    pub fn say_latest(&self, latest: Option<Latest>) {
        self.heartbeat.say_latest(latest);
    }

    /// Returns the error that ends the membership, if the news has such an error.
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

    /// Does the same as [`end`](Self::end), but waits for such an error in the news until `deadline`.
    pub fn wait_for_end(&self, deadline: Instant) -> Option<MemberError> {
        self.heartbeat.wait_for(deadline, |news| self.end_by(news))
    }

    /// Checks that the hub's control port answers within `limit`, and that workers can join.
    ///
    /// # Errors
    /// Returns an error if the hub is lost or is stopping.
    pub fn check_health(&self, limit: Duration) -> Result<(), MemberError> {
        self.control.within(limit).check_health().map_err(|failure| self.lost_if_unreachable(failure))
    }

    /// Returns the time of the hub's clock, from the quickest of several requests, each with the timeout `limit`. `None`
    /// if the hub does not give its time.
    pub fn clock(&self, limit: Duration) -> Option<HubClock> {
        let control = self.control.within(limit);
        let tries = std::iter::repeat_with(|| control.clock().ok()).map_while(|clock| clock);
        tries.take(CLOCK_TRIES).min_by_key(|clock| clock.within)
    }

    /// Returns the error for a lost hub.
    pub fn lost(&self, cause: String) -> MemberError {
        let Control { hub, job, .. } = &self.control;
        MemberError::HubLost { job: job.clone(), hub: hub.clone(), cause }
    }

    /// Posts a request. Retries it if the failure may be temporary, so the hub may get the request twice. A hub that cannot
    /// be reached counts as lost.
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

    /// Retries a request while its failure may be temporary and the job continues. The time limit is the heartbeat's
    /// time limit.
    fn insist<R>(&self, ask: impl FnMut() -> Result<R, Failure>) -> Result<R, MemberError> {
        let passes = |failure: &Failure| failure.passes_for_member() && self.end().is_none();
        insist(self.limit, passes, ask).map_err(|Failure { cause, error }| match (cause, error) {
            (Cause::Refused, error) => error,
            // The end of the job explains more than the failure of a request. For a lost hub, the heartbeat may find the
            // reason a moment later.
            (Cause::Gone, answer) => self.end().unwrap_or_else(|| self.lost(answer.to_string())),
            (cause, error) => match self.lost_if_unreachable(Failure { cause, error }) {
                lost @ MemberError::HubLost { .. } => lost,
                answer => self.end().unwrap_or(answer),
            },
        })
    }

    /// Returns the loss of the hub if the request has not reached the hub: there is no connection, or only a proxy answers.
    fn lost_if_unreachable(&self, Failure { cause, error }: Failure) -> MemberError {
        let why = match (cause, error) {
            (_, MemberError::Unreachable { cause, .. }) => cause,
            (Cause::Passing, page @ MemberError::Nonsense { .. }) => page.to_string(),
            (_, other) => return other,
        };
        self.end().unwrap_or_else(|| self.lost(why))
    }

    /// Reports that this member has lost its links, and asks for new links. The hub answers after it has released the old
    /// links.
    ///
    /// # Errors
    /// Returns the errors of [`post`](Self::post).
    pub fn relink(&self, why: String) -> Result<LetIn, MemberError> {
        let request = RelinkRequest { token: self.token.clone(), why };
        let control = self.control.within(self.limit);
        let reply: JoinReply = self.insist(|| control.post("relink", "make new links", &request))?;
        let token = reply.token.clone();
        let (protocol, relinks) = (self.protocol, self.relinks);
        let reply = JoinReply { protocol, relinks, token: self.token.clone(), ..reply };
        Ok(LetIn::again(self, reply, token))
    }

    /// Offers the hub the state before a round, with which a new job can begin. `steps` has the number of steps of each
    /// key; it is needed only if some key has not made one step per round. If the hub wants the state, returns the
    /// number of bytes that it wants.
    ///
    /// # Errors
    /// Returns the errors of [`post`](Self::post).
    pub fn offer(&self, state_before: Round, steps: Option<Vec<u32>>) -> Result<Option<u64>, MemberError> {
        self.control
            .offer(&self.token, state_before, steps)
            .map_err(|failure| self.lost_if_unreachable(failure))
    }

    /// Sends the state for which the hub waits. Its length is `bytes` bytes.
    ///
    /// # Errors
    /// Returns the errors of [`post`](Self::post), and an error if the state has another length.
    pub(crate) fn send_state(&self, values: Box<dyn Read + Send>, bytes: u64) -> Result<(), MemberError> {
        let reply = self.control.send_state("bring a state", &self.token, values, bytes);
        reply.map(|_: StateReply| ()).map_err(|failure| self.lost_if_unreachable(failure))
    }

    /// Reports, within `limit`, that this member's own job has failed, and why.
    ///
    /// # Errors
    /// Returns the errors of [`post`](Self::post).
    pub fn fail(&self, reason: &str, limit: Duration) -> Result<(), MemberError> {
        self.leave_because(reason, LeaveRequest::default(), limit)
    }

    /// Reports, within `limit`, that another hub of the job is lost or stops. `lost` says how. The job then ends at
    /// this hub. It begins again after the other hub was restarted.
    ///
    /// # Errors
    /// Returns the errors of [`post`](Self::post).
    pub fn fail_without_hub(&self, lost: &str, limit: Duration) -> Result<(), MemberError> {
        self.leave_because(lost, LeaveRequest { hub_lost: true, ..LeaveRequest::default() }, limit)
    }

    /// Reports that this member is a hub that is stopping. The job then ends at the hub above, between two rounds. It begins
    /// again after this member was restarted. Waits at most for `limit`.
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

    /// Leaves a trial job before this round. When the last worker leaves a trial job, the hub writes no checkpoint.
    pub fn leave_trial(&self, round: Round) -> Result<(), MemberError> {
        let request =
            LeaveRequest { token: self.token.clone(), round, was_trial: true, ..LeaveRequest::default() };
        self.control.within(self.limit).leave(&request).map_err(|failure| failure.error)
    }

    /// Whether the hub takes the first weights only of rank 0, so that other ranks need not push theirs.
    pub fn takes_first_of_one(&self) -> bool {
        self.protocol >= FIRST_OF_ONE
    }

    /// Sets the priority of each key in the hub's answers to this member. The lowest number is sent first. An older hub keeps
    /// the order of the job.
    ///
    /// # Errors
    /// Returns the errors of [`post`](Self::post).
    pub fn set_priorities(&self, keys: &[u32]) -> Result<(), MemberError> {
        if self.protocol < PRIORITIES {
            return Ok(());
        }
        let request = PrioritiesRequest { token: self.token.clone(), keys: keys.to_vec() };
        self.post("priorities", "set the priorities of this worker's keys", &request)
            .map(|_: serde_json::Value| ())
    }

    /// Leaves the job at this hub. `at` has, for each key, the round before which the member leaves.
    ///
    /// # Errors
    /// Returns the errors of [`post`](Self::post). Also returns [`MemberError::CheckpointLost`] if the member has left, but
    /// the trained state is not saved.
    pub fn leave(&self, at: &LeftAt) -> Result<(), MemberError> {
        let knows_keys = self.protocol >= LEAVES_BY_KEY;
        let behind = if knows_keys { at.behind.clone() } else { Vec::new() };
        let request =
            LeaveRequest { token: self.token.clone(), round: at.round, behind, ..LeaveRequest::default() };
        // A loss in the news does not end the retries. If only the answer to the first try was lost, the member has
        // already left, and the hub refuses its heartbeat.
        let left = insist(self.limit, Failure::passes_for_member, || self.control.leave(&request));
        left.map_err(|failure| self.lost_if_unreachable(failure))
    }
}
