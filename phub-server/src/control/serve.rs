//! The connections of the control port. They are accepted up to a bound, and closed when a client exceeds the limits.
//! Runs on the control thread. Must not depend on the requests.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::{Extension, Router};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use pbox_core::control::{ErrorReply, RefusalCode};
use rustix::net::sockopt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, watch};
use tokio::time::timeout;

use super::crowd::{ClientAddress, Crowd};
use super::encryption::{Encryption, Stream};
use super::limits::ControlLimits;
use crate::log_limiter::LogLimiter;

/// The bytes of a connection's buffer. Headers take some hundred bytes.
const BUFFER_BYTES: usize = 64 << 10;
/// The pause before the next accept when the process has no free descriptors. No event says when a descriptor
/// is free again.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// The time that a stop waits for open requests.
const STOP_LIMIT: Duration = Duration::from_secs(3);

/// Returns the HTTP answer for a connection that gets no place.
fn turned_away(why: &str) -> String {
    let (code, error) = (RefusalCode::NoConnection, format!("{why}; try again"));
    let body = serde_json::to_string(&ErrorReply { code, error, round: None })
        .expect("replies are plain data")
        + "\n";
    format!(
        "HTTP/1.1 {} Service Unavailable\r\ncontent-type: application/json\r\nconnection: close\r\n\
         retry-after: 1\r\n\
         content-length: {}\r\n\r\n{body}",
        code.status(),
        body.len()
    )
}

/// A handle that closes a client's connection. It serves requests whose answer the client does not take.
#[derive(Clone, Debug, Default)]
pub(super) struct ClientConnection {
    closes: Arc<Notify>,
}

impl ClientConnection {
    pub fn close(&self) {
        self.closes.notify_one();
    }
}

type Connection = http1::Connection<TokioIo<Box<dyn Stream>>, TowerToHyperService<Router>>;

/// Serves requests until `stopped` is true, and then until the open requests are answered.
pub(crate) async fn serve(
    socket: TcpListener,
    router: Router,
    limits: ControlLimits,
    encryption: Arc<Encryption>,
    mut stopped: watch::Receiver<bool>,
) {
    let (connections, crowd) = (GracefulShutdown::new(), Crowd::default());
    let (refused, given_up, failed) = (LogLimiter::default(), LogLimiter::default(), LogLimiter::default());
    loop {
        tokio::select! {
            accepted = socket.accept() => match accepted {
                Ok((stream, from)) => {
                    match crowd.enter(from, &limits) {
                        Ok((mut place, was_anothers)) => {
                            if was_anothers && let Some(times) = given_up.count() {
                                tracing::warn!(
                                    times, %from,
                                    "control port: too many connections; the oldest connections without a token are closed to make room (at \
                                     most {} without a token, {} in all, {} of one address)",
                                    limits.strangers, limits.connections, limits.of_an_address
                                );
                            }
                            let handle = ClientConnection::default();
                            let client = (
                                Extension(ClientAddress::new(from)),
                                Extension(handle.clone()),
                                Extension(place.newcomer()),
                            );
                            let router = router.clone().layer(client);
                            let watcher = connections.watcher();
                            let encryption = Arc::clone(&encryption);
                            tokio::spawn(async move {
                                tune(&stream, limits);
                                let served = async {
                                    let opened = timeout(limits.headers, encryption.open(stream, router)).await;
                                    match opened.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())) {
                                        Ok((stream, router)) => {
                                            if let Err(error) = watcher.watch(connection(stream, router, limits)).await {
                                                tracing::debug!(%error, "a connection to the control port ended");
                                            }
                                        }
                                        Err(error) => tracing::debug!(%error, %from, "control port: the TLS handshake with a client failed"),
                                    }
                                };
                                tokio::select! {
                                    () = served => {}
                                    () = place.wait_until_gone() => {}
                                    () = handle.closes.notified() => {}
                                }
                            });
                        }
                        Err(who) => {
                            // The hub sends only the bytes that the socket takes at once, and does not wait
                            // for a refused client.
                            let why = turned_away(&format!("{who} has the maximum number of connections"));
                            let _ = stream.try_write(why.as_bytes());
                            if let Some(times) = refused.count() {
                                tracing::warn!(
                                    times, %from,
                                    "control port: {who} has the maximum number of connections ({}, {} of one address); \
                                     more connections are refused",
                                    limits.connections, limits.of_an_address
                                );
                            }
                        }
                    }
                }
                // The client hung up between its connect and this accept.
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(error) => {
                    if let Some(times) = failed.count() {
                        tracing::warn!(times, %error, "control port: cannot accept a connection");
                    }
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            },
            // The hub stops, or the sender is gone.
            () = is_told(&mut stopped) => break,
        }
    }
    drop(socket);
    if timeout(STOP_LIMIT, connections.shutdown()).await.is_err() {
        tracing::warn!("control port: some requests did not end within {STOP_LIMIT:?}, and are cut off");
    }
}

async fn is_told(stopped: &mut watch::Receiver<bool>) {
    let _ = stopped.wait_for(|stops| *stops).await;
}

fn tune(stream: &TcpStream, limits: ControlLimits) {
    // The options only make answers faster. A socket that refuses them is about to close.
    let _ = stream.set_nodelay(true);
    let _ = sockopt::set_tcp_user_timeout(stream, limits.unread.as_millis() as u32);
}

fn connection(stream: Box<dyn Stream>, router: Router, limits: ControlLimits) -> Connection {
    http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.headers)
        .max_buf_size(BUFFER_BYTES)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_refusal_is_complete_http() {
        let text = turned_away("there is no place");
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert!(head.contains(&format!("content-length: {}", body.len())), "the body has {}", body.len());
        let reply: ErrorReply = serde_json::from_str(body).unwrap();
        assert!(reply.error.contains("try again"));
        assert_eq!(reply.code, RefusalCode::NoConnection);
    }
}
