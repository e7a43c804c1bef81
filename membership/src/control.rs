//! The client of the control port: one blocking call a request.

use std::io::{self, Read};
use std::time::Duration;

use pbox_core::Round;
use pbox_core::control::{ErrorReply, LeaveReply, LeaveRequest, OfferReply, OfferRequest};
use serde::Serialize;
use serde::de::DeserializeOwned;
use ureq::http::Response;
use ureq::{Body, SendBody};

use crate::error::MemberError;

/// A hub that takes a state more slowly than this is stuck.
const SLOWEST_BYTES_PER_S: u64 = 1 << 20;

/// Speaks to one job's part of a hub's control port.
#[derive(Clone, Debug)]
pub(crate) struct Control {
    agent: ureq::Agent,
    timeout: Duration,
    /// The address of the control port.
    pub hub: String,
    pub job: String,
}

impl Control {
    pub fn new(hub: &str, job: &str, timeout: Duration) -> Self {
        let agent = ureq::Agent::config_builder()
            .timeout_global(Some(timeout))
            .http_status_as_error(false)
            .build()
            .new_agent();
        Control { agent, timeout, hub: hub.to_owned(), job: job.to_owned() }
    }

    /// The same control port, asked with another time limit.
    pub fn within(&self, timeout: Duration) -> Self {
        Self::new(&self.hub, &self.job, timeout)
    }

    /// `POST /v1/jobs/{job}/{verb}`.
    pub fn post<Q: Serialize, R: DeserializeOwned>(
        &self,
        verb: &str,
        what: &'static str,
        request: &Q,
    ) -> Result<R, MemberError> {
        let url = format!("http://{}/v1/jobs/{}/{verb}", self.hub, self.job);
        let response = self.agent.post(&url).send_json(request);
        self.read_reply(what, response.map_err(|error| self.unreachable(error))?)
    }

    /// `GET /v1/health`.
    pub fn check_health(&self) -> Result<(), MemberError> {
        let response = self.agent.get(format!("http://{}/v1/health", self.hub)).call();
        response.map(|_| ()).map_err(|error| self.unreachable(error))
    }

    /// Says that the member with this token leaves from a round on: in good order, or because of a failure. The error may be
    /// that it has left, and that the last checkpoint was not written.
    pub fn leave(&self, token: &str, round: Round, failed: Option<String>) -> Result<(), MemberError> {
        let request = LeaveRequest { token: token.to_owned(), round, failed };
        match self.post("leave", "leave", &request)? {
            LeaveReply { checkpoint_error: None } => Ok(()),
            LeaveReply { checkpoint_error: Some(why) } => {
                Err(MemberError::CheckpointLost { job: self.job.clone(), hub: self.hub.clone(), why })
            }
        }
    }

    /// Offers the state before a round. Returns how many bytes of it the hub wants, if it wants it.
    pub fn offer(&self, token: &str, state_before: Round) -> Result<Option<u64>, MemberError> {
        let request = OfferRequest { token: token.to_owned(), state_before };
        self.post("offer", "take a state", &request).map(|reply: OfferReply| reply.state_bytes)
    }

    /// `POST /v1/jobs/{job}/state?token=...`: so many bytes of `values`, which may take longer than other requests.
    pub fn send_state<R: DeserializeOwned>(
        &self,
        what: &'static str,
        token: &str,
        values: Box<dyn Read + Send>,
        bytes: u64,
    ) -> Result<R, MemberError> {
        let url = format!("http://{}/v1/jobs/{}/state?token={token}", self.hub, self.job);
        let while_sending = self.timeout + Duration::from_secs(bytes / SLOWEST_BYTES_PER_S);
        let request = self.agent.post(&url).config().timeout_global(Some(while_sending)).build();
        // The hub compares the length with what comes.
        let request = request.header("content-length", bytes.to_string());
        let mut values = Exactly { values, left: bytes, wrong: None };
        let response = request.send(SendBody::from_reader(&mut values));
        if let Some(why) = values.wrong {
            return Err(MemberError::State { job: self.job.clone(), why, bytes });
        }
        self.read_reply(what, response.map_err(|error| self.unreachable(error))?)
    }

    fn unreachable(&self, cause: impl ToString) -> MemberError {
        MemberError::Unreachable { hub: self.hub.clone(), cause: cause.to_string() }
    }

    fn read_reply<R: DeserializeOwned>(
        &self,
        what: &'static str,
        mut response: Response<Body>,
    ) -> Result<R, MemberError> {
        let status = response.status();
        let body = response.body_mut().read_to_string();
        let body = body.map_err(|error| self.unreachable(format!("reading its answer: {error}")))?;
        let nonsense = || MemberError::Nonsense {
            hub: self.hub.clone(),
            what,
            saw: format!("{status}, {:?}", body.chars().take(200).collect::<String>()),
        };
        if status.is_success() {
            return serde_json::from_str(&body).map_err(|_| nonsense());
        }
        let ErrorReply { error } = serde_json::from_str(&body).map_err(|_| nonsense())?;
        Err(MemberError::Refused { hub: self.hub.clone(), what, why: error })
    }
}

/// Exactly so many bytes, or an error: a body cannot end before the length that its header says.
struct Exactly {
    values: Box<dyn Read + Send>,
    left: u64,
    /// What is wrong with the values.
    wrong: Option<String>,
}

impl Read for Exactly {
    fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        let most = room.len().min(usize::try_from(self.left).unwrap_or(usize::MAX));
        if most == 0 {
            return Ok(0);
        }
        let mut wrong = |why: String| {
            self.wrong = Some(why);
            io::Error::other("the values are wrong")
        };
        let count =
            self.values.read(&mut room[..most]).map_err(|error| wrong(format!("cannot be read: {error}")))?;
        self.left -= count as u64;
        let left = self.left;
        if count == 0 {
            return Err(wrong(format!("ends {left} bytes too early")));
        }
        if left == 0 && self.values.read(&mut [0]).is_ok_and(|more| more > 0) {
            return Err(wrong("is too long".into()));
        }
        Ok(count)
    }
}
