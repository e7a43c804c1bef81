//! Asks a hub's control port: for another hub of a job, or for the doctor.
//!
//! A connection for each request: hubs ask each other seldom. Runs on the runtime of whoever asks. Must not know jobs.

use std::net::{SocketAddr, ToSocketAddrs};
use std::time::Duration;

use axum::body::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1;
use hyper::header::{CONTENT_TYPE, HOST};
use hyper::{Method, Request};
use hyper_util::rt::TokioIo;
use pbox_core::control::ErrorReply;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::net::TcpStream;

/// The longest answer: the rounds of a job's checkpoints, or all jobs of a hub.
const ANSWER_BYTES: usize = 4 << 20;

/// A hub's control port.
#[derive(Clone, Debug)]
pub(crate) struct Address {
    /// As the job's workers name it.
    pub name: String,
    /// Where that is, or why nobody knows.
    resolved: Result<SocketAddr, String>,
}

/// Why an answer did not come.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AskError {
    #[error("its address cannot be resolved here: {0}")]
    Address(String),
    #[error("it cannot be reached: {0}")]
    Unreachable(String),
    #[error("no answer came within {:.1} s: it hangs, was stopped, or was cut off", .0.as_secs_f64())]
    Silent(Duration),
    #[error("it refuses: {0}")]
    Refused(String),
    #[error("its answer makes no sense: {0}; install the same version everywhere")]
    Nonsense(String),
}

impl Address {
    /// Looks a `host:port` up. May wait for a name server: not on the control thread.
    pub fn resolve(name: &str) -> Self {
        let resolved = match name.to_socket_addrs() {
            Ok(mut addresses) => addresses.next().ok_or_else(|| "it has no address".to_owned()),
            Err(error) => Err(error.to_string()),
        };
        Address { name: name.to_owned(), resolved }
    }

    /// `POST`s a request, and waits so long for the answer.
    pub async fn post<R: DeserializeOwned>(
        &self,
        path: &str,
        request: &impl Serialize,
        limit: Duration,
    ) -> Result<R, AskError> {
        let body = serde_json::to_vec(request).expect("requests are plain data");
        self.ask(Method::POST, path, body, limit).await
    }

    /// `GET`s a page, and waits so long for it.
    pub async fn get<R: DeserializeOwned>(&self, path: &str, limit: Duration) -> Result<R, AskError> {
        self.ask(Method::GET, path, Vec::new(), limit).await
    }

    async fn ask<R: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Vec<u8>,
        limit: Duration,
    ) -> Result<R, AskError> {
        let address = self.resolved.clone().map_err(AskError::Address)?;
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(HOST, &self.name)
            .header(CONTENT_TYPE, "application/json")
            .body(Full::new(Bytes::from(body)));
        let request = request.map_err(|error| AskError::Address(error.to_string()))?;
        let answer = tokio::time::timeout(limit, send(address, request));
        let (is_success, body) = answer.await.map_err(|_| AskError::Silent(limit))??;
        let nonsense = |error: serde_json::Error| AskError::Nonsense(error.to_string());
        if is_success {
            return serde_json::from_slice(&body).map_err(nonsense);
        }
        let ErrorReply { error } = serde_json::from_slice(&body).map_err(nonsense)?;
        Err(AskError::Refused(error))
    }
}

/// Whether the answer is a success, and its body.
async fn send(address: SocketAddr, request: Request<Full<Bytes>>) -> Result<(bool, Bytes), AskError> {
    let unreachable = |error: &dyn std::fmt::Display| AskError::Unreachable(error.to_string());
    let stream = TcpStream::connect(address).await.map_err(|error| unreachable(&error))?;
    let (mut sender, connection) =
        http1::handshake(TokioIo::new(stream)).await.map_err(|error| unreachable(&error))?;
    // Ends with the sender.
    tokio::spawn(connection);
    let response = sender.send_request(request).await.map_err(|error| unreachable(&error))?;
    let is_success = response.status().is_success();
    let body = Limited::new(response.into_body(), ANSWER_BYTES).collect().await;
    Ok((is_success, body.map_err(|error| unreachable(&error))?.to_bytes()))
}
