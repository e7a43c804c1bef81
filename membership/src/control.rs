//! The client of the control port. Each request is one blocking call.

use std::io::{self, Read};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use authority::{ALL_JOBS, Credential, Right, Trust, explain};
use pbox_core::Round;
use pbox_core::control::{
    Answer, ClockReply, ErrorReply, HOST_HEADER, HubReply, LeaveReply, LeaveRequest, OfferReply,
    OfferRequest, READER_HEADER,
};
use serde::Serialize;
use ureq::http::header::{AUTHORIZATION, CONTENT_TYPE, RETRY_AFTER};
use ureq::http::{Response, StatusCode};
use ureq::{Body, SendBody};

use crate::encrypted;
use crate::error::MemberError;
use crate::failure::{Cause, Failure, RETRY, insist, is_about_rights, passes};
use crate::named::Named;

/// The least speed at which a hub receives a state. A slower hub counts as stuck.
const SLOWEST_BYTES_PER_S: u64 = 1 << 20;

/// The requests that need a right to the job, but no membership.
const BY_RIGHT: [&str; 3] = ["join", "meet", "checkpoint"];

/// The limit on the bytes that this process keeps of a hub's refusal.
const LONGEST_REASON: usize = 4096;

/// Returns the name of this machine, for the logs and pages of hubs.
pub fn own_host() -> &'static str {
    static HOST: OnceLock<String> = OnceLock::new();
    HOST.get_or_init(|| {
        let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        let is_fit = |letter: char| letter.is_ascii_alphanumeric() || "-._".contains(letter);
        let name = name.trim();
        if !name.is_empty() && name.chars().all(is_fit) { name.to_owned() } else { "unnamed".to_owned() }
    })
}

/// One reading of a hub's clock.
#[derive(Clone, Debug)]
pub struct HubClock {
    /// The time on the hub's clock.
    pub reply: ClockReply,
    /// The time at which the hub read its clock, on this process's clock.
    pub at: Instant,
    /// The largest error of `at`.
    pub within: Duration,
}

/// A client for the requests about one job at a hub's control port.
#[derive(Clone, Debug)]
pub(crate) struct Control {
    agent: ureq::Agent,
    /// The timeout of each request.
    pub timeout: Duration,
    /// The secret or token that proves requests.
    credential: Option<Credential>,
    /// The origin of the address.
    pub named: Named,
    /// The token of the member, after the join.
    member: Option<String>,
    /// The certificates with which the client checks a hub. `None` for requests without TLS.
    trust: Option<Trust>,
    /// The address of the control port.
    pub hub: String,
    pub job: String,
}

impl Control {
    /// Creates a client for the requests about one job at a hub.
    ///
    /// # Errors
    /// Returns an error if the environment's settings for certificates cannot be used.
    pub fn new(
        hub: &str,
        job: &str,
        timeout: Duration,
        credential: Option<&Credential>,
        named: &Named,
    ) -> Result<Self, MemberError> {
        let trust = Trust::find().map_err(|error| MemberError::Trust(error.into()))?;
        let agent = agent_within(timeout, trust.as_ref(), named);
        let (credential, hub, job) = (credential.cloned(), hub.to_owned(), job.to_owned());
        Ok(Control { agent, timeout, credential, named: named.clone(), member: None, trust, hub, job })
    }

    /// Returns the same client with another timeout.
    pub fn within(&self, timeout: Duration) -> Self {
        let agent = agent_within(timeout, self.trust.as_ref(), &self.named);
        Control { agent, timeout, ..self.clone() }
    }

    /// Makes the client send requests as the member with this token.
    pub fn of_member(mut self, token: &str) -> Self {
        self.member = Some(token.to_owned());
        self
    }

    /// Whether the requests use TLS.
    pub fn is_encrypted(&self) -> bool {
        self.trust.is_some()
    }

    /// Returns the URL of a path.
    fn url(&self, path: &str) -> String {
        let scheme = if self.trust.is_some() { "https" } else { "http" };
        format!("{scheme}://{}{path}", self.hub)
    }

    /// Sends `POST /v1/jobs/{job}/{verb}`, without a retry.
    pub fn post<Q: Serialize, R: Answer>(
        &self,
        verb: &str,
        what: &'static str,
        request: &Q,
    ) -> Result<R, Failure> {
        let path = format!("/v1/jobs/{}/{verb}", self.job);
        let body = serde_json::to_vec(request).expect("requests are plain data");
        let post = self
            .agent
            .post(self.url(&path))
            .header(CONTENT_TYPE, "application/json")
            .header(HOST_HEADER, own_host());
        let shown = match &self.member {
            Some(member) if !BY_RIGHT.contains(&verb) => Some(by_member(member)),
            _ => self.proved(Right::Join, "POST", &path, &body)?,
        };
        let post = match shown {
            Some(shown) => post.header(AUTHORIZATION, shown),
            None => post,
        };
        let response = post.send(&body[..]);
        self.read_reply(what, response.map_err(|error| self.unreachable(error))?)
    }

    /// Sends `GET /v1/hub`.
    pub fn describe(&self) -> Result<HubReply, MemberError> {
        let reply = self.get("/v1/hub", &[]);
        reply
            .and_then(|response| self.read_reply("describe itself", response))
            .map_err(|failure| failure.error)
    }

    /// Sends `GET /v1/clock`. Also returns the time at which the hub read its clock, as exactly as one request can
    /// measure it.
    pub fn clock(&self) -> Result<HubClock, MemberError> {
        let asked = Instant::now();
        let reply = self.get("/v1/clock", &[]);
        let reply: ClockReply = reply
            .and_then(|response| self.read_reply("tell the time", response))
            .map_err(|failure| failure.error)?;
        let within = asked.elapsed() / 2;
        Ok(HubClock { reply, at: asked + within, within })
    }

    /// Sends `GET` for a page. Any status counts as success.
    pub fn get(&self, path: &str, more: &[(&str, String)]) -> Result<Response<Body>, Failure> {
        let get = self.agent.get(self.url(path)).header(HOST_HEADER, own_host());
        let get = get.header(READER_HEADER, std::process::id().to_string());
        let get = more.iter().fold(get, |get, (name, value)| get.header(*name, value));
        let get = match self.proved(Right::Read, "GET", path, b"")? {
            Some(shown) => get.header(AUTHORIZATION, shown),
            None => get,
        };
        get.call().map_err(|error| self.unreachable(error))
    }

    /// Returns the header that proves a right to this job, or to all jobs if there is no job.
    fn proved(&self, right: Right, method: &str, path: &str, body: &[u8]) -> Result<Option<String>, Failure> {
        let Some(credential) = &self.credential else { return Ok(None) };
        let job = if self.job.is_empty() { ALL_JOBS } else { &self.job };
        let proof = credential.token(right, job).prove(method, path, body);
        let proof =
            proof.map_err(|error| Failure { cause: Cause::Refused, error: MemberError::System(error) })?;
        Ok(Some(format!("Phub-Proof {proof}")))
    }

    /// Sends `POST /v1/jobs/{job}/join`. Retries the request if a proxy does not reach the hub, or if the hub asks for
    /// a retry.
    pub fn join<Q: Serialize, R: Answer>(&self, request: &Q) -> Result<R, Failure> {
        let begun = Instant::now();
        insist(self.timeout, Failure::passes_for_newcomer, || {
            // A retry may use only the time that is left.
            let left = self.timeout.saturating_sub(begun.elapsed()).max(RETRY);
            self.within(left).post("join", "join", request)
        })
        .map_err(Failure::of_first_request)
    }

    /// Sends `GET /v1/health`. Also returns an error if the hub is stopping.
    pub fn check_health(&self) -> Result<(), Failure> {
        let response = self.agent.get(self.url("/v1/health")).call();
        let response = response.map_err(|error| self.unreachable(error).of_first_request())?;
        match response.status() {
            StatusCode::SERVICE_UNAVAILABLE => {
                self.read_reply("let workers join", response).map(|_: serde_json::Value| ())
            }
            _ => Ok(()),
        }
    }

    /// Reports that a member leaves, and before which rounds. An error can also mean that the member has left, but the last
    /// checkpoint was not written.
    pub fn leave(&self, request: &LeaveRequest) -> Result<(), Failure> {
        match self.post("leave", "leave", request)? {
            LeaveReply { checkpoint_error: None } => Ok(()),
            LeaveReply { checkpoint_error: Some(why) } => {
                let (job, hub) = (self.job.clone(), self.hub.clone());
                Err(Failure { cause: Cause::Refused, error: MemberError::CheckpointLost { job, hub, why } })
            }
        }
    }

    /// Offers the hub the state before a round. `steps` has the number of steps of each key; it is needed only if some
    /// key has not made one step per round. If the hub wants the state, returns the number of bytes that it wants.
    /// Retries the request only as a join is retried, because a hub refuses a second offer.
    pub fn offer(
        &self,
        token: &str,
        state_before: Round,
        steps: Option<Vec<u32>>,
    ) -> Result<Option<u64>, Failure> {
        let request = OfferRequest { token: token.to_owned(), state_before, steps };
        let offered = insist(self.timeout, Failure::passes_for_newcomer, || {
            self.post("offer", "take a state", &request)
        });
        offered.map(|reply: OfferReply| reply.state_bytes)
    }

    /// Sends `POST /v1/jobs/{job}/state`, with `bytes` bytes of `values`. This request may take longer than other requests.
    pub fn send_state<R: Answer>(
        &self,
        what: &'static str,
        token: &str,
        values: Box<dyn Read + Send>,
        bytes: u64,
    ) -> Result<R, Failure> {
        let url = self.url(&format!("/v1/jobs/{}/state", self.job));
        let while_sending = self.timeout + Duration::from_secs(bytes / SLOWEST_BYTES_PER_S);
        let request = self.agent.post(&url).config().timeout_global(Some(while_sending)).build();
        // The hub compares this length with the number of bytes that arrive.
        let request = request.header("content-length", bytes.to_string());
        let request = request.header(AUTHORIZATION, by_member(token));
        let mut values = Exactly { values, left: bytes, wrong: None };
        let response = request.send(SendBody::from_reader(&mut values));
        if let Some(why) = values.wrong {
            return Err(MemberError::State { job: self.job.clone(), why, bytes }.into());
        }
        self.read_reply(what, response.map_err(|error| self.unreachable(error))?)
    }

    fn unreachable(&self, error: ureq::Error) -> Failure {
        use io::ErrorKind::{
            BrokenPipe, ConnectionAborted, ConnectionReset, PermissionDenied, UnexpectedEof,
        };
        let ends = [BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof];
        if let ureq::Error::Io(error) = &error
            && let Some(why) = explain(error)
        {
            let error = MemberError::NoTls { hub: self.hub.clone(), why };
            return Failure { cause: Cause::Refused, error };
        }
        let cause = match &error {
            ureq::Error::Io(error) if error.kind() == PermissionDenied => Cause::Refused,
            ureq::Error::Io(error) if ends.contains(&error.kind()) => Cause::Cut,
            ureq::Error::Protocol(_) => Cause::Cut,
            _ => Cause::Unreachable,
        };
        let cause_in_words = match &error {
            ureq::Error::Timeout(_) => format!("no answer came within {:.1} s", self.timeout.as_secs_f64()),
            other => other.to_string(),
        };
        let error = MemberError::Unreachable { hub: self.hub.clone(), cause: cause_in_words };
        Failure { cause, error }
    }

    pub fn read_reply<R: Answer>(
        &self,
        what: &'static str,
        mut response: Response<Body>,
    ) -> Result<R, Failure> {
        let status = response.status();
        let asks_again = response.headers().contains_key(RETRY_AFTER);
        let body = response.body_mut().read_to_string().map_err(|error| self.unreachable(error))?;
        let nonsense = || Failure {
            cause: if passes(status) { Cause::Passing } else { Cause::Strange },
            error: MemberError::Nonsense {
                hub: self.hub.clone(),
                what,
                saw: match self.named.is_outside() {
                    // A user may give the address of any server. The error must not show this user the server's answer.
                    true => format!("{status}, which is no answer of a hub"),
                    false => format!("{status}, {:?}", body.chars().take(200).collect::<String>()),
                },
            },
        };
        if status.is_success() {
            let reply: R = serde_json::from_str(&body).map_err(|_| nonsense())?;
            let strange = |saw| Failure {
                cause: Cause::Strange,
                error: MemberError::Nonsense { hub: self.hub.clone(), what, saw },
            };
            return reply.check().map(|()| reply).map_err(strange);
        }
        let ErrorReply { code, error: why, round } = serde_json::from_str(&body).map_err(|_| nonsense())?;
        let why = printable(&why);
        let hub = self.hub.clone();
        let error = if is_about_rights(code, status) {
            let shown = self.credential.as_ref().map_or("nothing".to_owned(), |it| it.source().to_owned());
            MemberError::NotAllowed { hub, what, code, why, shown }
        } else {
            MemberError::Refused { hub, what, code, why, round }
        };
        Err(Failure { cause: Cause::of_refusal(code, status, asks_again), error })
    }
}

/// Returns a refusal with printable characters only. The server is perhaps no hub, and the text is printed on a terminal.
pub fn printable(why: &str) -> String {
    let why = &why[..why.floor_char_boundary(LONGEST_REASON)];
    why.chars().map(|letter| if letter.is_control() { ' ' } else { letter }).collect()
}

/// Creates the agent that sends the requests. It connects to the hub directly, without the proxies of the environment, and
/// follows no redirects.
fn agent_within(timeout: Duration, trust: Option<&Trust>, named: &Named) -> ureq::Agent {
    let config = ureq::Agent::config_builder()
        .timeout_global(Some(timeout))
        .http_status_as_error(false)
        .proxy(None)
        .max_redirects(0)
        .build();
    encrypted::agent(config, trust, named.clone())
}

/// Returns the header that identifies a member.
fn by_member(token: &str) -> String {
    format!("Phub-Member {token}")
}

/// A reader of exactly `left` bytes. The request's header announces this length, so the reader returns an error if the
/// values end earlier.
struct Exactly {
    values: Box<dyn Read + Send>,
    left: u64,
    /// The reason why the values are invalid, once it is known.
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
