//! The net: its links, its clock, and the events that a test makes happen.
//!
//! One lock protects the whole net, because the net is only for tests. Any thread may hold a [`Net`].

use std::sync::{Arc, Condvar, Mutex, MutexGuard};

use super::delivery::Path;
use super::faults::Faults;
use super::port::{Endpoint, Port};
use super::random::Random;
use super::traffic::{Conditions, Exception, Traffic};
use crate::memory::{RecvWindow, SendWindow};
use crate::port::FrameRule;

/// A simulated network of ports and links. Clones are handles to the same network.
#[derive(Clone, Debug)]
pub struct Net {
    state: Arc<Mutex<State>>,
}

/// The windows of one end of a link.
#[derive(Clone, Debug)]
pub struct Windows {
    /// The window from which this end sends.
    pub send: Arc<SendWindow>,
    /// The window into which this end receives: made by [`RecvWindow::local`], as large as the peer's `send`.
    pub recv: Arc<RecvWindow>,
}

/// One end of a link, as the methods for events name it; see [`Endpoint::id`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct EndId(pub(super) usize);

impl EndId {
    /// Returns the other end of the link. Ends are numbered in pairs: 0 and 1, 2 and 3.
    pub fn peer(self) -> EndId {
        EndId(self.0 ^ 1)
    }
}

impl Net {
    /// Creates an empty net. When one thread drives it, the same seed gives the same run.
    pub fn new(seed: u64, faults: Faults) -> Net {
        let conditions = Conditions { now: 0, faults, random: Random::new(seed) };
        Net { state: Arc::new(Mutex::new(State { conditions, ends: Vec::new(), sleepers: Vec::new() })) }
    }

    /// Returns a port without links.
    pub fn port(&self) -> Port {
        let mut state = self.lock();
        state.sleepers.push(Sleeper::default());
        Port::new(self.clone(), state.sleepers.len() - 1)
    }

    /// Joins two ends by a link with room for `capacity` posts in each direction, at least one.
    ///
    /// # Panics
    /// Panics if the send window of one end and the receive window of the other differ in size.
    /// Panics if a receive window was not made by [`RecvWindow::local`].
    pub fn link(&self, a: Windows, b: Windows, capacity: u32) -> (Endpoint, Endpoint) {
        let mut state = self.lock();
        let first = EndId(state.ends.len());
        for path in [Path::new(&a, &b), Path::new(&b, &a)] {
            state.ends.push(End {
                sent: Traffic::new(path, capacity),
                port: None,
                alive: true,
                rule: None,
                gone_at: None,
            });
        }
        (Endpoint::new(self.clone(), first), Endpoint::new(self.clone(), first.peer()))
    }

    /// Returns the virtual time, in ticks.
    pub fn now(&self) -> u64 {
        self.lock().conditions.now
    }

    /// Kills the process at this end of the link, as `kill -9` does. The posts that it flushed still arrive,
    /// and its other posts are lost. Then its peer sees the link closed. The killed process's port shows
    /// nothing more of the link. For a process with several links, call this once per link.
    pub fn kill(&self, end: EndId) {
        let mut state = self.lock();
        state.ends[end.0].sent.lose_held();
        state.leave(end);
    }

    /// Cuts the link, as when a cable, switch or NIC fails: both ends see it closed, and all posts in flight
    /// are lost. An orderly close loses no posts.
    pub fn cut(&self, end: EndId) {
        let mut state = self.lock();
        let now = state.conditions.now;
        for end in [end, end.peer()] {
            state.ends[end.0].sent.lose_all();
            state.ends[end.0].gone_at.get_or_insert(now);
            state.wake(end);
        }
    }

    /// Drops the next post that this end flushes. Several events of one end wait in a queue, and each applies
    /// to one post.
    pub fn drop_next(&self, end: EndId) {
        self.lock().ends[end.0].sent.except_next(Exception::Drop);
    }

    /// Duplicates the next post that this end flushes.
    pub fn duplicate_next(&self, end: EndId) {
        self.lock().ends[end.0].sent.except_next(Exception::Duplicate);
    }

    /// Delays the next post that this end flushes by `ticks` ticks. Unless the net reorders, later posts wait
    /// for the delayed post.
    pub fn delay_next(&self, end: EndId, ticks: u64) {
        self.lock().ends[end.0].sent.except_next(Exception::Delay(ticks));
    }

    /// Inverts the byte at `offset` of the window, in the next post of this end that covers the byte. No
    /// reliable link does this, but faulty memory or a faulty program can.
    pub fn flip_next(&self, end: EndId, offset: usize) {
        self.lock().ends[end.0].sent.flip_next(offset);
    }

    /// Locks the state. A thread that panics inside the net fails only its own test.
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    pub(super) fn is(&self, other: &Net) -> bool {
        Arc::ptr_eq(&self.state, &other.state)
    }
}

#[derive(Debug)]
pub(super) struct State {
    pub conditions: Conditions,
    pub ends: Vec<End>,
    /// The sleeper of each port, by number.
    pub sleepers: Vec<Sleeper>,
}

/// One end of a link.
#[derive(Debug)]
pub(super) struct End {
    /// The posts of this end.
    pub sent: Traffic,
    /// The port that polls this end.
    pub port: Option<usize>,
    /// Whether the end is neither detached nor killed.
    pub alive: bool,
    /// The rule that the owner of this end has set for arrivals from the peer, if any.
    pub rule: Option<Box<dyn FrameRule>>,
    /// The tick at which this end learns that the link closed.
    pub gone_at: Option<u64>,
}

/// The means by which other threads wake a port.
#[derive(Debug, Default)]
pub(super) struct Sleeper {
    pub bell: Arc<Condvar>,
    /// Whether a thread waits for the bell. If no thread waits, ringing the bell would only cost a system
    /// call.
    pub sleeps: bool,
    pub woken: bool,
}

impl Sleeper {
    /// Wakes the thread that waits, if there is one.
    pub fn ring(&self) {
        if self.sleeps {
            self.bell.notify_all();
        }
    }
}

impl State {
    /// Sends the posts that an end made since its last flush.
    pub fn flush(&mut self, end: EndId) {
        let State { conditions, ends, .. } = self;
        if !ends[end.0].sent.launch(conditions) {
            return;
        }
        if ends[end.peer().0].alive {
            self.wake(end.peer());
        } else {
            self.ends[end.0].sent.lose_all();
        }
    }

    /// Notes that an end detached or died. Its peer sees the link closed after the delay of a post.
    pub fn leave(&mut self, end: EndId) {
        if !std::mem::replace(&mut self.ends[end.0].alive, false) {
            return;
        }
        self.ends[end.peer().0].sent.lose_all();
        let Conditions { now, faults, random } = &mut self.conditions;
        let at = *now + faults.draw_delay(random);
        self.ends[end.peer().0].gone_at.get_or_insert(at);
        self.wake(end.peer());
    }

    /// Whether this end knows at the current tick that its link closed.
    pub fn knows_closed(&self, end: EndId) -> bool {
        let End { alive, gone_at, .. } = self.ends[end.0];
        !alive || gone_at.is_some_and(|tick| tick <= self.conditions.now)
    }

    /// Ends the wait of the port that polls this end.
    pub fn wake(&self, end: EndId) {
        if let Some(port) = self.ends[end.0].port {
            self.sleepers[port].ring();
        }
    }
}
