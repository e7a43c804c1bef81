//! The waiting room: connections of the data path that have not said who they are.
//!
//! Anybody who reaches the port can open connections and send nothing. The number of places for such connections is bounded.
//! When all are taken, the oldest connection that sent nothing gives its place to the new one. A worker sends its hello right
//! after it connects, so it does not wait for strangers. It loses its place only if it is silent while new connections take
//! all places. There is no bound for each address: all workers may have one address, behind a NAT or on one machine.
//!
//! Shared by the accepting thread and the threads of handshakes.

use std::collections::VecDeque;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{Shutdown, shutdown};

use crate::seldom::Seldom;

/// Connections of one transport without a hello.
const PLACES: usize = 64;
/// The time until the next look at the room, if all connections have sent bytes that their threads have not read.
const LOOK_AGAIN: Duration = Duration::from_millis(10);

#[derive(Debug, Default)]
pub(crate) struct WaitingRoom {
    guests: Mutex<VecDeque<Guest>>,
    left: Condvar,
    sent_away: Seldom,
}

/// A connection without a hello.
#[derive(Debug)]
struct Guest {
    number: u64,
    socket: OwnedFd,
    /// The place is wanted, and its thread is about to leave.
    sent_away: bool,
}

/// A place in the room, until it is dropped.
#[derive(Debug)]
pub(crate) struct Place {
    room: Arc<WaitingRoom>,
    number: u64,
}

impl WaitingRoom {
    /// Takes a place, of the oldest connection that sent nothing if there is no other.
    ///
    /// # Errors
    /// Returns an error if the hub has no descriptor for it.
    pub fn enter(self: &Arc<Self>, socket: BorrowedFd) -> std::io::Result<Place> {
        let socket = socket.try_clone_to_owned()?;
        let mut guests = self.lock();
        while guests.len() >= PLACES {
            if let Some(oldest) =
                guests.iter_mut().find(|guest| !guest.sent_away && has_sent_nothing(&guest.socket))
            {
                oldest.sent_away = true;
                // The connection's thread reads the end of the stream, and can still say why.
                let _ = shutdown(&oldest.socket, Shutdown::Read);
                if let Some(times) = self.sent_away.count() {
                    tracing::warn!(
                        times,
                        "data path: {PLACES} connections have not said who they are, the most there may be; the oldest are \
                         closed for new ones"
                    );
                }
            }
            let waited = self.left.wait_timeout(guests, LOOK_AGAIN);
            guests = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        let number = guests.back().map_or(0, |last| last.number + 1);
        guests.push_back(Guest { number, socket, sent_away: false });
        Ok(Place { room: Arc::clone(self), number })
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Guest>> {
        self.guests.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.room.lock().retain(|guest| guest.number != self.number);
        self.room.left.notify_one();
    }
}

/// Whether nothing waits to be read. A connection has its end to be read if its peer hung up.
fn has_sent_nothing(socket: &OwnedFd) -> bool {
    let mut socket = [PollFd::new(socket, PollFlags::IN)];
    matches!(poll(&mut socket, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })), Ok(0))
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;
    use std::thread;

    use super::*;

    #[test]
    fn the_oldest_who_sent_nothing_goes() {
        let room = Arc::new(WaitingRoom::default());
        let mut pairs: Vec<(UnixStream, UnixStream)> =
            (0..=PLACES).map(|_| UnixStream::pair().unwrap()).collect();
        let (mut new, _peer) = pairs.pop().unwrap();
        let mut places: VecDeque<Place> =
            pairs.iter().map(|(here, _)| room.enter(here.as_fd()).unwrap()).collect();
        pairs[0].1.write_all(b"h").unwrap();
        thread::scope(|scope| {
            let second = scope.spawn(|| {
                // A handshake's thread does the same.
                assert_eq!(pairs[1].0.try_clone().unwrap().read(&mut [0]).unwrap(), 0, "it is sent away");
                drop(places.remove(1));
            });
            let _place = room.enter(new.as_fd()).unwrap();
            second.join().unwrap();
        });
        assert_eq!(pairs[0].0.read(&mut [0; 2]).unwrap(), 1, "who sent something stays");
        new.set_nonblocking(true).unwrap();
        assert!(new.read(&mut [0]).is_err(), "the new one stays");
        let numbers: Vec<u64> = room.lock().iter().map(|guest| guest.number).collect();
        assert_eq!(numbers.len(), PLACES - 1, "its place was given back");
        assert!(!numbers.contains(&1));
    }
}
