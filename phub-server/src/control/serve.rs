//! The connections of the control port: accepted up to a bound, and closed when a client exceeds the limits. Runs on the
//! control thread. Must not know the requests.

use std::io;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use rustix::net::sockopt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::limits::ControlLimits;
use crate::seldom::Seldom;

/// The buffer of a connection for headers, which have some hundred bytes.
const BUFFER_BYTES: usize = 64 << 10;
/// The pause when descriptors have run out. No event says when there are some again.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// How long a stop waits for open requests.
const STOP_LIMIT: Duration = Duration::from_secs(3);

const TURNED_AWAY: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\n\
connection: close\r\nretry-after: 1\r\ncontent-length: 83\r\n\r\n\
{\"error\": \"the hub's control port has all the connections it can have; try again\"}\n";

type Connection = http1::Connection<TokioIo<TcpStream>, TowerToHyperService<Router>>;

/// Serves until `stopped`, and then until open requests are answered.
pub(crate) async fn serve(
    socket: TcpListener,
    router: Router,
    limits: ControlLimits,
    mut stopped: oneshot::Receiver<()>,
) {
    let connections = GracefulShutdown::new();
    let (turned_away, failed) = (Seldom::default(), Seldom::default());
    loop {
        tokio::select! {
            accepted = socket.accept() => match accepted {
                Ok((stream, _)) if connections.count() < limits.connections => {
                    let connection = connections.watch(connection(stream, router.clone(), limits));
                    tokio::spawn(async {
                        if let Err(error) = connection.await {
                            tracing::debug!(%error, "a connection to the control port ended");
                        }
                    });
                }
                Ok((stream, _)) => {
                    // The hub sends what the socket takes at once. It does not wait for a refused client.
                    let _ = stream.try_write(TURNED_AWAY);
                    if let Some(times) = turned_away.count() {
                        tracing::warn!(
                            times,
                            "control port: {} connections are open, the most there may be; others are turned away",
                            limits.connections
                        );
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
            // Shutdown requested, also if the sender is gone.
            _ = &mut stopped => break,
        }
    }
    drop(socket);
    if timeout(STOP_LIMIT, connections.shutdown()).await.is_err() {
        tracing::warn!("some requests did not end in {STOP_LIMIT:?}");
    }
}

fn connection(stream: TcpStream, router: Router, limits: ControlLimits) -> Connection {
    // Answers are right without these options, and a socket that refuses them is about to close.
    let _ = stream.set_nodelay(true);
    let _ = sockopt::set_tcp_user_timeout(&stream, limits.unread.as_millis() as u32);
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
        let text = std::str::from_utf8(TURNED_AWAY).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert!(head.contains(&format!("content-length: {}", body.len())), "the body has {}", body.len());
        let reply: pbox_core::control::ErrorReply = serde_json::from_str(body).unwrap();
        assert!(reply.error.contains("try again"));
    }
}
