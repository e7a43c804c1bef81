//! The waiting room: connections of the data path that have not sent their hello.
//!
//! Anybody who reaches the port can open connections and send nothing, so the number of places for such connections is
//! bounded. When all places are taken, the oldest connection that has sent nothing loses its place to the new
//! connection. A worker sends its hello right after it connects. So it loses its place only if it is silent while new
//! connections take all places. There is no bound for each address: all workers may have one address, behind a NAT or
//! on one machine.
//!
//! The accepting thread and the threads of handshakes share it.

use std::collections::VecDeque;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{Shutdown, shutdown};

use crate::log_limiter::LogLimiter;

/// The number of connections of one transport that may be without a hello.
const PLACES: usize = 64;
/// The time until the next check of the room, if all connections have sent bytes that their threads have not
/// read yet.
const LOOK_AGAIN: Duration = Duration::from_millis(10);

#[derive(Debug, Default)]
pub(crate) struct WaitingRoom {
    guests: Mutex<VecDeque<Guest>>,
    left: Condvar,
    sent_away: LogLimiter,
}

/// A connection without a hello.
#[derive(Debug)]
struct Guest {
    number: u64,
    socket: OwnedFd,
    /// Whether the connection must give its place up. Its thread is about to end.
    sent_away: bool,
}

/// A place in the room. Dropping it frees the place.
#[derive(Debug)]
pub(crate) struct Place {
    room: Arc<WaitingRoom>,
    number: u64,
}

impl WaitingRoom {
    /// Takes a place. If all places are taken, the oldest connection that has sent nothing loses its place.
    ///
    /// # Errors
    /// Returns an error if the hub has no free descriptor.
    pub fn enter(self: &Arc<Self>, socket: BorrowedFd) -> std::io::Result<Place> {
        let socket = socket.try_clone_to_owned()?;
        let mut guests = self.lock();
        while guests.len() >= PLACES {
            if let Some(oldest) =
                guests.iter_mut().find(|guest| !guest.sent_away && has_sent_nothing(&guest.socket))
            {
                oldest.sent_away = true;
                // The connection's thread then reads the end of the stream, and can still send the reason.
                let _ = shutdown(&oldest.socket, Shutdown::Read);
                if let Some(times) = self.sent_away.count() {
                    tracing::warn!(
                        times,
                        "data path: {PLACES} connections have shown no token yet, the maximum; the hub closes the oldest of \
                         these connections for new connections"
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

/// Whether there are no bytes to read. If the peer has hung up, the end of the stream counts as something to
/// read.
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
                // The thread of a handshake reads the end of the stream, too, and frees its place.
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
