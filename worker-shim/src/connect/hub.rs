//! A hub as one of its workers knows it: its control port, the worker's token there, and its news of the job.
//! A job has one, or is spread over several.

use std::ops::Range;
use std::task::Waker;
use std::time::{Duration, Instant};

use pbox_core::Round;
use pbox_core::Share;
use pbox_core::control::{JobState, JoinReply, JoinRequest, LeaveRequest, PROTOCOL, StateReply};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::control::Control;
use super::heartbeat::{Heartbeat, News};
use crate::session::{SessionConfig, SessionError, State};

/// How long a hub that let this worker in is told that nothing will come of it.
const FAREWELL_LIMIT: Duration = Duration::from_secs(2);

/// A hub that let this worker in, before the data path is made. When this goes, it is told so, and with it the
/// workers that wait there.
#[derive(Debug)]
pub(crate) struct LetIn {
    pub address: String,
    pub reply: JoinReply,
    /// Whether the hub hears of an end: alone, it knows by its data path.
    tell: Option<Control>,
    control: Control,
}

impl LetIn {
    /// Joins the job at each of its hubs.
    pub fn join_all(config: &SessionConfig, state: Option<Round>) -> Result<Vec<LetIn>, SessionError> {
        let addresses = config.hubs()?;
        let hubs = addresses.len() as u32;
        let share = |hub| Share { hub, hubs, split_above: config.split_above };
        let join = |(address, hub): (&str, u32)| LetIn::join(config, address, share(hub), state);
        addresses.into_iter().zip(0..).map(join).collect()
    }

    fn join(
        config: &SessionConfig,
        address: &str,
        share: Share,
        state: Option<Round>,
    ) -> Result<Self, SessionError> {
        let control = Control::new(address, &config.job, config.join_limit);
        let reply: JoinReply = control.post("join", "join", &join_request(config, share, state))?;
        let tell = (!share.is_whole()).then(|| Control::new(address, &config.job, FAREWELL_LIMIT));
        Ok(LetIn { address: address.to_owned(), reply, tell, control })
    }

    /// The data path is made: from here on the hub is told that this worker lives. `cores` are the hub's in the
    /// placement.
    pub fn keep(mut self, cores: Range<usize>, job: &str, waker: Waker) -> Result<Hub, SessionError> {
        let limit = Duration::from_millis(self.reply.heartbeat_limit_ms);
        let heartbeat = Heartbeat::start(
            // The hub holds a heartbeat for a third of the limit: two thirds are silence, and leave
            // time to ask again.
            Control::new(&self.address, job, limit * 2 / 3),
            self.reply.token.clone(),
            limit,
            waker,
        )?;
        self.tell = None;
        let (address, token) = (self.address.clone(), self.reply.token.clone());
        let state_bytes = self.reply.state_bytes;
        Ok(Hub {
            address,
            job: job.to_owned(),
            control: self.control.clone(),
            token,
            heartbeat,
            cores,
            state_bytes,
        })
    }
}

impl Drop for LetIn {
    fn drop(&mut self) {
        if let Some(control) = &self.tell {
            let request = LeaveRequest { token: self.reply.token.clone(), round: Round(0) };
            let _: Result<serde_json::Value, _> = control.post("leave", "leave", &request);
        }
    }
}

/// A hub of the job.
#[derive(Debug)]
pub(crate) struct Hub {
    pub address: String,
    pub token: String,
    /// Its cores, by their number in the placement.
    pub cores: Range<usize>,
    /// Length of the state that it waits for.
    pub state_bytes: Option<u64>,
    job: String,
    control: Control,
    heartbeat: Heartbeat,
}

impl Hub {
    /// What it says of the job.
    pub fn news(&self) -> News {
        self.heartbeat.news().clone()
    }

    /// The error that ends the session, if its news hold one.
    pub fn ended(&self) -> Option<SessionError> {
        self.ended_by(&self.heartbeat.news())
    }

    fn ended_by(&self, news: &News) -> Option<SessionError> {
        if let JobState::Failed { reason } = &news.state {
            return Some(SessionError::JobFailed { job: self.job.clone(), reason: reason.clone() });
        }
        news.lost.clone().map(|cause| self.lost(cause))
    }

    /// It is lost.
    pub fn lost(&self, cause: String) -> SessionError {
        SessionError::HubLost { job: self.job.clone(), hub: self.address.clone(), cause }
    }

    /// As [`ended`](Self::ended), after at most so long.
    pub fn ended_until(&self, deadline: Instant) -> Option<SessionError> {
        let known = |news: &News| news.lost.is_some() || matches!(news.state, JobState::Failed { .. });
        self.ended_by(&self.heartbeat.wait_until(deadline, known))
    }

    /// Asks it for something once this worker takes part: a hub that cannot be reached then is one that was lost.
    pub fn ask<Q: Serialize, R: DeserializeOwned>(
        &self,
        verb: &str,
        what: &'static str,
        request: &Q,
    ) -> Result<R, SessionError> {
        self.control.post(verb, what, request).map_err(|error| self.lost_where_unreachable(error))
    }

    fn lost_where_unreachable(&self, error: SessionError) -> SessionError {
        match error {
            SessionError::Unreachable { cause, .. } => self.ended().unwrap_or_else(|| self.lost(cause)),
            other => other,
        }
    }

    /// Brings the state that it waits for.
    pub fn bring(&self, state: State, bytes: u64) -> Result<(), SessionError> {
        let State { values, .. } = state;
        let reply = self.control.send("bring a state", &self.token, values, bytes);
        reply.map(|_: StateReply| ()).map_err(|error| self.lost_where_unreachable(error))
    }

    /// Leaves the job there, from this round on.
    pub fn leave(&self, round: Round) -> Result<(), SessionError> {
        let request = LeaveRequest { token: self.token.clone(), round };
        self.ask::<_, serde_json::Value>("leave", "leave", &request).map(|_| ())
    }
}

fn join_request(config: &SessionConfig, share: Share, state_before: Option<Round>) -> JoinRequest {
    JoinRequest {
        protocol: PROTOCOL,
        rank: config.rank,
        workers: config.workers,
        chunk_bytes: config.chunk_bytes,
        compression: config.compression,
        seed: config.seed,
        optimizer: config.optimizer,
        ablate: config.ablate,
        consistency: config.consistency,
        on_loss: config.on_loss,
        schedule: config.schedule,
        credit_bytes: config.credit().at_first().map(|bytes| bytes as u64),
        share,
        cores: config.cores,
        state_before,
        keys: config.keys.clone(),
    }
}
