//! The handshake's TCP connection. Each message has its length before it, and a timeout.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::net::sockopt;

use super::message::{MAX_BYTES, Message};

/// The idle time after which the kernel probes a peer.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(5);
/// The time between two probes.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(2);
/// The number of probes without an answer after which the peer counts as gone.
const KEEPALIVE_COUNT: u32 = 3;

/// One end of the connection.
#[derive(Debug)]
pub(in crate::verbs) struct MessageStream {
    stream: TcpStream,
    /// The timeout of each message, from its beginning to its end.
    timeout: Duration,
}

impl MessageStream {
    pub fn connect(address: SocketAddr, timeout: Duration) -> io::Result<Self> {
        Self::new(TcpStream::connect_timeout(&address, timeout)?, timeout)
    }

    pub fn new(stream: TcpStream, timeout: Duration) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        sockopt::set_socket_keepalive(&stream, true)?;
        sockopt::set_tcp_keepidle(&stream, KEEPALIVE_IDLE)?;
        sockopt::set_tcp_keepintvl(&stream, KEEPALIVE_INTERVAL)?;
        sockopt::set_tcp_keepcnt(&stream, KEEPALIVE_COUNT)?;
        Ok(MessageStream { stream, timeout })
    }

    /// Returns the timeout of each message.
    pub fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Multiplies the timeout of the messages that follow by `times`.
    pub fn take_time(&mut self, times: u32) {
        self.timeout *= times;
    }

    pub fn peer(&self) -> String {
        self.stream.peer_addr().map_or_else(|_| "a peer that is gone".into(), |peer| peer.to_string())
    }

    pub fn send(&mut self, message: &Message) -> io::Result<()> {
        let body = message.encode();
        let mut bytes = (body.len() as u32).to_le_bytes().to_vec();
        bytes.extend(body);
        let deadline = Instant::now() + self.timeout;
        let mut rest = bytes.as_slice();
        while !rest.is_empty() {
            self.stream.set_write_timeout(Some(self.left(deadline)?))?;
            match self.stream.write(rest) {
                Ok(0) => return Err(self.hung_up()),
                Ok(count) => rest = &rest[count..],
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(self.named(error)),
            }
        }
        Ok(())
    }

    /// Returns the next message. Bytes that are not a message are an error of kind `InvalidData`.
    pub fn receive(&mut self) -> io::Result<Message> {
        let deadline = Instant::now() + self.timeout;
        let mut length = [0; 4];
        self.fill(&mut length, deadline)?;
        let length = u32::from_le_bytes(length) as usize;
        let invalid = |what: String| io::Error::new(ErrorKind::InvalidData, what);
        if length > MAX_BYTES {
            return Err(invalid(format!(
                "a message of {length} bytes; expected at most {MAX_BYTES}: only workers of a parameter hub may connect to its data path"
            )));
        }
        // The body is read in pieces, so that a length alone allocates no memory.
        let mut body = Vec::new();
        while body.len() < length {
            let mut piece = [0; 4096];
            let piece = &mut piece[..(length - body.len()).min(4096)];
            self.fill(piece, deadline)?;
            body.extend_from_slice(piece);
        }
        Message::decode(&body).map_err(invalid)
    }

    fn fill(&mut self, mut into: &mut [u8], deadline: Instant) -> io::Result<()> {
        while !into.is_empty() {
            self.stream.set_read_timeout(Some(self.left(deadline)?))?;
            match self.stream.read(into) {
                Ok(0) => return Err(self.hung_up()),
                Ok(count) => into = &mut into[count..],
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(self.named(error)),
            }
        }
        Ok(())
    }

    fn left(&self, deadline: Instant) -> io::Result<Duration> {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(self.named(ErrorKind::TimedOut.into())) } else { Ok(left) }
    }

    fn named(&self, error: io::Error) -> io::Error {
        match error.kind() {
            ErrorKind::TimedOut | ErrorKind::WouldBlock => {
                let what =
                    format!("the other end did not send its part of the handshake within {:?}", self.timeout);
                io::Error::new(ErrorKind::TimedOut, what)
            }
            _ => error,
        }
    }

    fn hung_up(&self) -> io::Error {
        io::Error::new(ErrorKind::UnexpectedEof, "the other end hung up during the handshake")
    }

    /// Returns the socket. From now on, the end of the socket means the end of the links.
    pub fn into_socket(self) -> OwnedFd {
        self.stream.into()
    }
}
