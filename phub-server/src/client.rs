//! Asks a hub's control port: for another hub of a job, or for the doctor.
//!
//! Each request has a connection of its own, because hubs ask each other seldom. Runs on the caller's runtime. Must not
//! know jobs.

use std::error::Error;
use std::net::{SocketAddr, ToSocketAddrs};
use std::time::Duration;

use authority::{Token, Trust};
use axum::body::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST};
use hyper::{Method, Request};
use hyper_util::rt::TokioIo;
use pbox_core::control::{ErrorReply, HOST_HEADER};
use rustls::pki_types::ServerName;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

/// The longest answer: the rounds of a job's checkpoints, or all jobs of a hub.
const ANSWER_BYTES: usize = 4 << 20;

/// A hub's control port.
#[derive(Clone, Debug)]
pub struct Address {
    /// As the job's workers name it.
    pub name: String,
    /// Where that is, or why nobody knows.
    resolved: Result<SocketAddr, String>,
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

    /// `POST`s a request, and waits for the answer at most for `limit`. An error says why no answer came.
    pub async fn post<R: DeserializeOwned>(
        &self,
        path: &str,
        request: &impl Serialize,
        limit: Duration,
    ) -> Result<R, String> {
        let body = serde_json::to_vec(request).expect("requests are plain data");
        self.ask(Method::POST, path, None, body, limit).await
    }

    /// `GET`s a page with a token, and waits so long for it.
    pub async fn get<R: DeserializeOwned>(
        &self,
        path: &str,
        shown: Option<Token>,
        limit: Duration,
    ) -> Result<R, String> {
        self.ask(Method::GET, path, shown, Vec::new(), limit).await
    }

    /// `POST`s nothing with a token, and waits so long for the answer.
    pub async fn order<R: DeserializeOwned>(
        &self,
        path: &str,
        shown: Option<Token>,
        limit: Duration,
    ) -> Result<R, String> {
        self.ask(Method::POST, path, shown, Vec::new(), limit).await
    }

    async fn ask<R: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        shown: Option<Token>,
        body: Vec<u8>,
        limit: Duration,
    ) -> Result<R, String> {
        let unresolved = |error: &String| format!("its address cannot be resolved here: {error}");
        let address = *self.resolved.as_ref().map_err(unresolved)?;
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(HOST, &self.name)
            .header(CONTENT_TYPE, "application/json")
            .header(HOST_HEADER, membership::own_host());
        let request = match shown {
            Some(token) => request.header(AUTHORIZATION, format!("Bearer {token}")),
            None => request,
        };
        let request =
            request.body(Full::new(Bytes::from(body))).map_err(|error| unresolved(&error.to_string()))?;
        let sent = tokio::time::timeout(limit, self.send(address, request)).await;
        let silent = |_| {
            let seconds = limit.as_secs_f64();
            format!("no answer came within {seconds:.1} s: it hangs, was stopped, or was cut off")
        };
        let (is_success, body) =
            sent.map_err(silent)?.map_err(|error| format!("it cannot be reached: {}", in_words(&*error)))?;
        let nonsense = |error: serde_json::Error| {
            format!("its answer makes no sense: {error}; install the same version everywhere")
        };
        if is_success {
            return serde_json::from_slice(&body).map_err(nonsense);
        }
        let ErrorReply { error } = serde_json::from_slice(&body).map_err(nonsense)?;
        Err(format!("it refuses: {error}"))
    }

    /// Whether the answer is a success, and its body.
    async fn send(
        &self,
        address: SocketAddr,
        request: Request<Full<Bytes>>,
    ) -> Result<(bool, Bytes), Box<dyn Error + Send + Sync>> {
        let stream = TcpStream::connect(address).await?;
        match Trust::find()? {
            None => exchange(stream, request).await,
            Some(trust) => {
                let host = self.name.rsplit_once(':').map_or(&*self.name, |(host, _)| host);
                let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
                let connector = TlsConnector::from(trust.config());
                exchange(connector.connect(ServerName::try_from(host)?, stream).await?, request).await
            }
        }
    }
}

async fn exchange(
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    request: Request<Full<Bytes>>,
) -> Result<(bool, Bytes), Box<dyn Error + Send + Sync>> {
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    // Ends with the sender.
    tokio::spawn(connection);
    let response = sender.send_request(request).await?;
    let is_success = response.status().is_success();
    let body = Limited::new(response.into_body(), ANSWER_BYTES).collect().await?;
    Ok((is_success, body.to_bytes()))
}

/// The words for an error of TLS, which may be the cause of others, or else its own.
fn in_words(error: &(dyn Error + 'static)) -> String {
    let mut cause = Some(error);
    while let Some(this) = cause {
        if let Some(words) = this.downcast_ref().and_then(authority::explain) {
            return words;
        }
        cause = this.source();
    }
    error.to_string()
}
