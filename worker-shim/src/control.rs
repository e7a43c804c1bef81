//! The client of the control port: one blocking call a request.

use std::time::Duration;

use pbox_core::control::ErrorReply;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::SessionError;

/// Speaks to one job's part of a hub's control port.
#[derive(Clone, Debug)]
pub(crate) struct Control {
    agent: ureq::Agent,
    hub: String,
    job: String,
}

impl Control {
    pub fn new(hub: &str, job: &str, timeout: Duration) -> Self {
        let agent = ureq::Agent::config_builder()
            .timeout_global(Some(timeout))
            .http_status_as_error(false)
            .build()
            .new_agent();
        Control { agent, hub: hub.to_owned(), job: job.to_owned() }
    }

    /// `POST /v1/jobs/{job}/{verb}`.
    pub fn post<Q: Serialize, R: DeserializeOwned>(
        &self,
        verb: &str,
        what: &'static str,
        request: &Q,
    ) -> Result<R, SessionError> {
        let url = format!("http://{}/v1/jobs/{}/{verb}", self.hub, self.job);
        let mut response = self
            .agent
            .post(&url)
            .send_json(request)
            .map_err(|error| SessionError::Unreachable { hub: self.hub.clone(), cause: error.to_string() })?;
        let status = response.status();
        let body = response.body_mut().read_to_string().map_err(|error| SessionError::Unreachable {
            hub: self.hub.clone(),
            cause: format!("reading its answer: {error}"),
        })?;
        let nonsense = || SessionError::Nonsense {
            hub: self.hub.clone(),
            what,
            saw: format!("{status}, {:?}", body.chars().take(200).collect::<String>()),
        };
        if status.is_success() {
            return serde_json::from_str(&body).map_err(|_| nonsense());
        }
        let ErrorReply { error } = serde_json::from_str(&body).map_err(|_| nonsense())?;
        Err(SessionError::Refused { hub: self.hub.clone(), what, why: error })
    }
}
