//! A connection: the socket of one handshake, which lives as long as its links.
//!
//! The watch is the thread that sees the socket end. It shares the connection with the ports of the
//! connection's links. A connection does not depend on the transport or on a link: the end of the socket ends
//! all links.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use rustix::net::Shutdown;

use crate::port::CloseReason;
use crate::watch::{Register, SocketEvents, Watch, Watched};

/// The part of a port's state through which the watch notifies the port.
pub(crate) trait Alarm: Send + Sync + std::fmt::Debug {
    /// Counts that a connection of the port ended, and wakes the port.
    fn ended(&self);
}

#[derive(Debug)]
pub(crate) struct Connection {
    pub number: u64,
    socket: OwnedFd,
    /// The ports of this end that have a link of the connection.
    ports: Vec<Arc<dyn Alarm>>,
    register: Arc<Register>,
    dead: AtomicBool,
    /// The failure at this end that ended the connection, if there was one.
    failure: OnceLock<CloseReason>,
}

impl Connection {
    /// Returns a connection over `socket`. The watch observes the connection from now on.
    pub fn watched(watch: &Watch, socket: OwnedFd, ports: Vec<Arc<dyn Alarm>>) -> std::io::Result<Arc<Self>> {
        Self::with_events(watch, socket, ports, SocketEvents::Any)
    }

    /// Returns a connection over a socket that this end may have shut for reading. The watch reports only the
    /// end of both directions.
    pub fn watched_to_its_end(
        watch: &Watch,
        socket: OwnedFd,
        ports: Vec<Arc<dyn Alarm>>,
    ) -> std::io::Result<Arc<Self>> {
        Self::with_events(watch, socket, ports, SocketEvents::HangUp)
    }

    fn with_events(
        watch: &Watch,
        socket: OwnedFd,
        ports: Vec<Arc<dyn Alarm>>,
        events: SocketEvents,
    ) -> std::io::Result<Arc<Self>> {
        let register = Arc::clone(watch.register());
        let number = register.number();
        let connection = Arc::new(Connection {
            number,
            socket,
            ports,
            register,
            dead: false.into(),
            failure: OnceLock::new(),
        });
        let watched: Arc<dyn Watched> = connection.clone();
        watch.add_socket(number, &connection.socket, &watched, events)?;
        Ok(connection)
    }

    /// Whether the socket ended. A port calls this after the watch has notified the port.
    pub fn is_dead(&self) -> bool {
        self.dead.load(Ordering::Acquire) // [death]
    }

    /// Fails the connection for both ends, because one of its links failed at this end. Other ports of this
    /// end may see the end of the socket before the port of the failed link reports the failure. `fail`
    /// stores the reason that [`end`](Self::end) returns to these ports.
    pub fn fail(&self, why: &CloseReason) {
        if *why != CloseReason::PeerGone {
            let _ = self.failure.set(why.clone()); // keeps the first failure: it caused the later failures
        }
        self.shut();
    }

    /// Returns the reason why the links close, if the connection is dead.
    pub fn end(&self) -> Option<CloseReason> {
        self.is_dead().then(|| self.failure.get().cloned().unwrap_or(CloseReason::PeerGone))
    }

    /// Ends the connection for both sides. The peer sees its links close.
    pub fn shut(&self) {
        let _ = rustix::net::shutdown(&self.socket, Shutdown::Both);
    }
}

impl Watched for Connection {
    /// Notes that the socket ended, and notifies every port that has a link of the connection.
    fn ready(&self) {
        self.dead.store(true, Ordering::Release); // [death]: before `ended` makes the ports look
        self.ports.iter().for_each(|port| port.ended());
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.register.leave(self.number);
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;
    use std::sync::Mutex;
    use std::sync::mpsc::{Sender, channel};

    use super::*;

    #[derive(Debug)]
    struct Port(Mutex<Sender<()>>);

    impl Alarm for Port {
        fn ended(&self) {
            self.0.lock().unwrap().send(()).unwrap();
        }
    }

    #[test]
    fn all_ports_of_the_end_that_failed_have_the_cause_and_the_other_end_has_not() {
        let watch = Watch::start().unwrap();
        let (ended, ends) = channel();
        let port = || -> Arc<dyn Alarm> { Arc::new(Port(Mutex::new(ended.clone()))) };
        let (here, there) = UnixStream::pair().unwrap();
        let [here, there] = [here, there]
            .map(|socket| Connection::watched(&watch, socket.into(), vec![port(), port()]).unwrap());
        assert_eq!((here.end(), there.end()), (None, None));
        let failed = |what: &str| CloseReason::Failed(what.to_owned());
        here.fail(&failed("the NIC is down"));
        here.fail(&failed("and so is all else"));
        (0..4).for_each(|_| ends.recv().unwrap());
        there.fail(&CloseReason::PeerGone);
        assert_eq!(here.end(), Some(failed("the NIC is down")));
        assert_eq!(there.end(), Some(CloseReason::PeerGone));
    }
}
