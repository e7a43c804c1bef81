//! A client of a hub's control port. Another hub of a job uses it, or the doctor.
//!
//! Each request has a connection of its own, because hubs ask each other seldom. Runs on the caller's runtime. Must not
//! depend on jobs.

use std::error::Error;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use authority::{Token, Trust};
use axum::body::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST};
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use membership::{LOOKUP_LIMIT, Named, look_up_with, no_answer, printable};
use pbox_core::control::{Answer, ErrorReply, HOST_HEADER, host_of};
use rustls::pki_types::ServerName;
use serde::Serialize;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::{OnceCell, Semaphore, oneshot};
use tokio_rustls::TlsConnector;

/// The length limit of an answer. The longest answers have the rounds of a job's checkpoints, or all jobs of a hub.
const ANSWER_BYTES: usize = 4 << 20;
/// The longest wait for an address that does not answer, if the hub's name has further addresses.
const CONNECT: Duration = Duration::from_secs(5);
/// The most names of one job that are looked up at the same time.
const LOOKUPS: usize = 4;

/// A hub's control port.
#[derive(Clone, Debug)]
pub struct Address {
    /// The name of the hub, as the job's workers use it.
    pub name: String,
    /// The origin of the name.
    named: Named,
    /// The IP addresses with the port, once they were looked up. `localhost` often has an IPv6 address before its IPv4 address.
    found: Arc<OnceCell<Vec<SocketAddr>>>,
    /// The permits to look up an address. All addresses that were named together share these permits.
    lookups: Arc<Semaphore>,
}

impl Address {
    /// Creates the address of a `host:port` that a setting or a message named. The name is looked up before
    /// the first request.
    pub fn new(name: &str, named: Named) -> Self {
        Address { name: name.to_owned(), named, found: Arc::default(), lookups: Arc::new(Semaphore::new(1)) }
    }

    /// Creates the addresses of several hubs, which were named together. Only `LOOKUPS` of them are looked
    /// up at a time, so that other lookups find a thread.
    pub fn several<'a>(names: impl IntoIterator<Item = &'a String>, named: &Named) -> Vec<Self> {
        let lookups = Arc::new(Semaphore::new(LOOKUPS));
        let address =
            |name: &String| Address { lookups: Arc::clone(&lookups), ..Self::new(name, named.clone()) };
        names.into_iter().map(address).collect()
    }

    /// Looks up the IP addresses. A thread for blocking calls waits for the name server.
    async fn resolve(&self) -> Result<&[SocketAddr], String> {
        let look_up = || async {
            let permit =
                Arc::clone(&self.lookups).acquire_owned().await.map_err(|error| error.to_string())?;
            let (done, found) = oneshot::channel();
            look_up_with(&self.name, &self.named, move |result| {
                // The permit is held until the thread ends, even if the caller has stopped waiting.
                drop(permit);
                drop(done.send(result));
            });
            let found = tokio::time::timeout(LOOKUP_LIMIT, found).await;
            let found = found.map_err(|_| no_answer(LOOKUP_LIMIT))?;
            let found = found.map_err(|_| {
                "no thread could be started for the look-up; raise the limit on threads (ulimit -u)"
                    .to_owned()
            })?;
            found.map_err(|error| error.to_string())
        };
        self.found.get_or_try_init(look_up).await.map(Vec::as_slice)
    }

    /// Sends a `POST` with a proof by the token `by`, and waits for the answer at most for `limit`. An error says
    /// why no answer came.
    pub async fn post<R: Answer>(
        &self,
        path: &str,
        by: Option<Token>,
        request: &impl Serialize,
        limit: Duration,
    ) -> Result<R, String> {
        let body = serde_json::to_vec(request).expect("requests are plain data");
        self.ask(Method::POST, path, by, body, limit).await
    }

    /// Sends a `GET` with a token, and waits for the answer at most for `limit`.
    pub async fn get<R: Answer>(&self, path: &str, by: Option<Token>, limit: Duration) -> Result<R, String> {
        self.ask(Method::GET, path, by, Vec::new(), limit).await
    }

    /// Sends an empty `POST` with a token, and waits for the answer at most for `limit`.
    pub async fn order<R: Answer>(
        &self,
        path: &str,
        by: Option<Token>,
        limit: Duration,
    ) -> Result<R, String> {
        self.ask(Method::POST, path, by, Vec::new(), limit).await
    }

    async fn ask<R: Answer>(
        &self,
        method: Method,
        path: &str,
        by: Option<Token>,
        body: Vec<u8>,
        limit: Duration,
    ) -> Result<R, String> {
        let proof = by.map(|token| token.prove(method.as_str(), path, &body)).transpose();
        let proof = proof.map_err(|error| format!("cannot make the proof of the request: {error}"))?;
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(HOST, &self.name)
            .header(CONTENT_TYPE, "application/json")
            .header(HOST_HEADER, membership::own_host());
        let request = match proof {
            Some(proof) => request.header(AUTHORIZATION, format!("Phub-Proof {proof}")),
            None => request,
        };
        let request = request.body(Full::new(Bytes::from(body))).map_err(|error| error.to_string())?;
        let trust = Trust::find().map_err(|error| format!("the TLS settings of this process: {error}"))?;
        let unresolved = |error| format!("this machine cannot resolve the hub's address: {error}");
        let sent = async {
            let addresses = self.resolve().await.map_err(unresolved)?;
            let sent = self.send(addresses, trust, request, limit).await;
            sent.map_err(|error| match of_tls(&*error) {
                Some(why) => format!("no TLS with the hub: {why}"),
                None => format!(
                    "the hub cannot be reached: {error}; see whether `phub-server serve` runs there, and listens at \
                     this address"
                ),
            })
        };
        let silent = |_| {
            let seconds = limit.as_secs_f64();
            format!("no answer came within {seconds:.1} s: the hub hangs, was stopped, or was cut off")
        };
        let (status, body) = tokio::time::timeout(limit, sent).await.map_err(silent)??;
        let nonsense = |why: String| {
            format!("the hub's answer is not valid: {why}; install the same version at both ends")
        };
        let unread = |error: serde_json::Error| match self.named.is_outside() {
            // The address came from outside, so any server may have answered. The client that gave the address must not
            // learn this answer.
            true => nonsense("the answer is not that of a hub".into()),
            false => nonsense(error.to_string()),
        };
        if status.is_success() {
            let reply: R = serde_json::from_slice(&body).map_err(unread)?;
            return reply.check().map(|()| reply).map_err(nonsense);
        }
        let ErrorReply { error, .. } = serde_json::from_slice(&body).map_err(|error| match self.named.is_outside() {
            true => unread(error),
            false => format!(
                "the server answers {status}, and not as a hub: check that the address is a hub's control port, and that no proxy is in between"
            ),
        })?;
        Err(format!("the hub refuses: {}", printable(&error)))
    }

    /// Sends a request to the first of these addresses that takes a connection. Returns the status of the answer, and its body.
    async fn send(
        &self,
        addresses: &[SocketAddr],
        trust: Option<Trust>,
        request: Request<Full<Bytes>>,
        limit: Duration,
    ) -> Result<(StatusCode, Bytes), Box<dyn Error + Send + Sync>> {
        let stream = connect(addresses, limit).await?;
        match trust {
            None => exchange(stream, request).await,
            Some(trust) => {
                let host = host_of(&self.name).to_owned();
                let connector = TlsConnector::from(trust.config());
                exchange(connector.connect(ServerName::try_from(host)?, stream).await?, request).await
            }
        }
    }
}

/// Connects to the first of these addresses that takes a connection. An address that does not answer uses only a part
/// of `limit`. The last address may use the rest.
async fn connect(addresses: &[SocketAddr], limit: Duration) -> io::Result<TcpStream> {
    let part = (limit / (addresses.len() as u32 + 1)).min(CONNECT);
    let Some((last, others)) = addresses.split_last() else { return TcpStream::connect(addresses).await };
    for address in others {
        if let Ok(Ok(stream)) = tokio::time::timeout(part, TcpStream::connect(address)).await {
            return Ok(stream);
        }
    }
    TcpStream::connect(last).await
}

async fn exchange(
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    request: Request<Full<Bytes>>,
) -> Result<(StatusCode, Bytes), Box<dyn Error + Send + Sync>> {
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    // The task ends when `sender` is dropped.
    tokio::spawn(connection);
    let response = sender.send_request(request).await?;
    let status = response.status();
    let body = Limited::new(response.into_body(), ANSWER_BYTES).collect().await?;
    Ok((status, body.to_bytes()))
}

/// Returns the text of the TLS error that caused this error, if there is such a cause.
fn of_tls(error: &(dyn Error + 'static)) -> Option<String> {
    let mut causes = std::iter::successors(Some(error), |&error| error.source());
    causes.find_map(|cause| cause.downcast_ref().and_then(authority::explain))
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;

    use pbox_core::control::DrainReply;

    use super::*;

    /// A name may have several addresses, and the hub may listen at only one of these addresses.
    async fn is_found_behind(first: SocketAddr, listener: TcpListener) {
        let second = listener.local_addr().unwrap();
        let hub = std::thread::spawn(move || {
            let (mut client, _) = listener.accept().unwrap();
            assert!(client.read(&mut [0; 4096]).unwrap() > 0);
            client.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 11\r\n\r\n{\"jobs\":[]}").unwrap();
        });
        let found = Arc::new(OnceCell::new_with(Some(vec![first, second])));
        let address = Address { found, ..Address::new("two.example:7077", Named::Here) };
        let answer = address.order::<DrainReply>("/v1/drain", None, Duration::from_secs(9)).await;
        assert_eq!(answer.map(|drained| drained.jobs.len()), Ok(0));
        hub.join().unwrap();
    }

    #[tokio::test]
    async fn a_hub_is_found_at_the_second_address_of_its_name() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let first = SocketAddr::from(([127, 0, 0, 2], listener.local_addr().unwrap().port()));
        is_found_behind(first, listener).await;
    }

    /// Checks that an address behind which packets are dropped, as by a firewall, does not use the whole time limit.
    #[tokio::test]
    async fn a_hub_is_found_behind_an_address_that_does_not_answer() {
        let full = TcpListener::bind("127.0.0.1:0").unwrap();
        rustix::net::listen(&full, 0).unwrap();
        let first = full.local_addr().unwrap();
        // The queue of the socket has one connection. The kernel drops packets of more connections.
        let _waits = std::net::TcpStream::connect(first).unwrap();
        is_found_behind(first, TcpListener::bind("127.0.0.1:0").unwrap()).await;
    }
}
