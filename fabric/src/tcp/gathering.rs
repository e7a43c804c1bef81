//! Gathering: the connections of a worker arrive one by one, each with its hello. The hub admits the worker
//! when all have arrived.
//!
//! The threads that do handshakes share this state. The thread of a worker's first connection refuses the
//! worker if not all connections arrive within a time limit. This module depends on tokens, but not on their owners.

use std::collections::HashMap;
use std::net::TcpStream;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TryRecvError, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use super::connect::{ConnectError, Hello, refuse};
use super::message::HelloMessage;
use crate::plan::LinkPorts;

/// The most workers that may have missing connections at the same time.
const MAX_GATHERING: usize = 1024;
/// The most links that an error names.
const NAMED: usize = 16;

/// A connection whose hello was read, and the ports that it joins.
pub(super) type Said = (TcpStream, LinkPorts);

/// The workers with missing connections, by token.
#[derive(Debug, Default)]
pub(super) struct Gathering(Mutex<HashMap<[u8; 16], Partial>>);

#[derive(Debug)]
struct Partial {
    message: HelloMessage,
    links: Vec<Option<Said>>,
    /// The sender of the channel on which the worker's [`Pending`] waits. The sender is dropped when all
    /// connections of the worker have arrived, which ends this wait.
    _whole: SyncSender<()>,
}

/// The result of adding a connection to a worker.
#[derive(Debug)]
pub enum Gathered {
    /// All connections of the worker have arrived.
    Whole(Hello),
    /// Connections of the worker are missing. The caller that added the first connection gets a `Pending`,
    /// with which it must wait for the missing connections.
    Waits(Option<Pending>),
}

/// A worker whose first connection has arrived. The caller must [`wait`](Self::wait) for the other
/// connections.
#[derive(Debug)]
pub struct Pending {
    token: [u8; 16],
    whole: Receiver<()>,
    gathering: Arc<Gathering>,
}

impl Gathering {
    /// Adds a connection.
    ///
    /// # Errors
    /// Returns an error if the hello contradicts the worker's other connections, or too many workers are
    /// waiting. The peer is notified of the error.
    pub fn add(self: Arc<Self>, hello: Hello) -> Result<Gathered, ConnectError> {
        let message = hello.message;
        let (token, link, links) = (hello.token, message.link(), message.links());
        let mut partials = self.lock();
        let known = partials.get(&token);
        let why = if known.is_none() && partials.len() >= MAX_GATHERING {
            format!(
                "{MAX_GATHERING} other workers, the maximum, do not have all their connections yet; try again"
            )
        } else if known.is_some_and(|known| !known.message.is_of_the_same_worker(&message)) {
            "the hello of this connection does not fit the hello of the worker's other connections".into()
        } else if known.is_some_and(|known| known.links[link].is_some()) {
            format!("link {link} of the same worker has a connection already")
        } else {
            String::new()
        };
        if !why.is_empty() {
            drop(partials);
            hello.refuse(&why);
            return Err(ConnectError::Nonsense(why));
        }
        let mut pending = None;
        let partial = partials.entry(token).or_insert_with(|| {
            let (_whole, whole) = sync_channel(0);
            pending = Some(Pending { token, whole, gathering: Arc::clone(&self) });
            Partial { message, links: (0..links).map(|_| None).collect(), _whole }
        });
        partial.links[link] = hello.links.into_iter().next();
        if partial.links.iter().any(Option::is_none) {
            return Ok(Gathered::Waits(pending));
        }
        let whole = partials.remove(&token).expect("it was just there");
        let links = whole.links.into_iter().flatten().collect();
        Ok(Gathered::Whole(Hello { token, message, links, gathering: hello.gathering }))
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<[u8; 16], Partial>> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl Pending {
    /// Returns the token of the worker that owns the connections.
    pub fn token(&self) -> [u8; 16] {
        self.token
    }

    /// Waits until all of the worker's connections have arrived.
    ///
    /// # Errors
    /// Returns an error if some connections have not arrived after `limit`. The peers of the connections that
    /// arrived are notified, and these connections are closed.
    pub fn wait(self, limit: Duration) -> Result<(), ConnectError> {
        if self.whole.recv_timeout(limit) != Err(RecvTimeoutError::Timeout) {
            return Ok(());
        }
        let mut partials = self.gathering.lock();
        // The last connection may have arrived after the timeout. Then the entry of this token may belong to
        // a later worker.
        if self.whole.try_recv() != Err(TryRecvError::Empty) {
            return Ok(());
        }
        let partial = partials.remove(&self.token).expect("its sender lives there");
        drop(partials);
        let numbered = || partial.links.iter().enumerate();
        let came = numbered().filter(|(_, link)| link.is_some()).map(|(number, _)| number);
        let lack = numbered().filter(|(_, link)| link.is_none()).map(|(number, _)| number);
        let error = ConnectError::Incomplete {
            links: partial.links.len(),
            came: named(came),
            lack: named(lack),
            limit,
        };
        let why = error.to_string();
        partial.links.into_iter().flatten().for_each(|(mut socket, _)| refuse(&mut socket, &why));
        Err(error)
    }
}

/// Lists numbers of links, and shortens a long list.
fn named(links: impl Iterator<Item = usize>) -> String {
    let links: Vec<String> = links.map(|link| link.to_string()).collect();
    let first = links[..links.len().min(NAMED)].join(", ");
    match links.len().saturating_sub(NAMED) {
        0 => first,
        more => format!("{first} and {more} more"),
    }
}
