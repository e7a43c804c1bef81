//! Sleep: on the completion channels of a port's NICs, and on its bell.
//!
//! No wake-up is lost: the port arms a queue, and polls it once more after that. A later completion makes the
//! channel readable. Arrivals that are taken before the sleep go into the port's stash, which the next polls
//! show.

use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::Timespec;

use super::Port;
use crate::port::Until;

impl Port {
    /// Sleeps until `until` holds or the deadline has passed. Without a deadline, the sleep may last for
    /// ever.
    pub(in crate::verbs) fn sleep(&mut self, until: Until, deadline: Option<Instant>) {
        while !self.arm(until) && deadline.is_none_or(|at| Instant::now() < at) {
            self.nap(deadline);
        }
        self.relieved = false;
    }

    /// Sleeps once, after [`arm`](Self::arm).
    fn nap(&mut self, deadline: Option<Instant>) {
        let left = |at: Instant| timespec(at.saturating_duration_since(Instant::now()));
        let timeout = deadline.into_iter().chain(self.linger_deadline()).min().map(left);
        // After any result (readable, timeout, signal) the caller checks again.
        let _ = poll(&mut [PollFd::from_borrowed_fd(self.fd(), PollFlags::IN)], timeout.as_ref());
        self.slept();
    }

    /// Prepares a sleep. Returns true if there is already something to see. Otherwise the [`fd`](Self::fd)
    /// becomes readable when there is something to see, and the caller must call [`slept`](Self::slept) after
    /// the sleep.
    pub(crate) fn arm(&mut self, until: Until) -> bool {
        if self.poll_due(until) {
            return true;
        }
        self.take_all();
        if self.poll_due(until) {
            return true;
        }
        self.arm_queues();
        self.poll_due(until)
    }

    /// Arms the queues, so that the next completion of each makes its channel readable. Takes the completions
    /// that came before.
    fn arm_queues(&mut self) {
        let mut armed = false;
        for rail in 0..self.rails.len() {
            if !self.armed[rail] {
                match self.rails[rail].queue.arm() {
                    Ok(()) => self.armed[rail] = true,
                    Err(error) => self.fail_rail(rail, "ibv_req_notify_cq", &error.to_string()),
                }
                armed = true;
            }
        }
        if armed {
            self.take_all();
        }
    }

    /// Returns the descriptor that a sleeper must poll. It covers the bell and the channels of all NICs,
    /// including NICs that are opened later.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.state.own.sleeper()
    }

    /// Whether the port has no link, and no detached link with posts in flight.
    pub(crate) fn is_bare(&self) -> bool {
        self.lingering.is_empty() && self.links.is_empty()
    }

    /// Resets the bell and the channels that have ended a sleep.
    pub(crate) fn slept(&mut self) {
        self.relieved = false;
        self.state.own.bell.quieten();
        for (rail, armed) in self.rails.iter().zip(&mut self.armed) {
            if *armed && rail.queue.take_event() {
                *armed = false;
            }
        }
    }

    /// Takes new arrivals. Returns whether the wait for `until` is over.
    fn poll_due(&mut self, until: Until) -> bool {
        self.look();
        let arrived = match until {
            Until::Any => !self.stash.is_empty(),
            Until::Arrivals { link, count } => {
                let attached = self.links.get(link).map(|attached| &attached.link);
                attached.is_some_and(|link| link.stashed >= count.clamp(1, link.link.sure_unread()))
            }
        };
        arrived || self.ends > 0 || self.relieved || self.state.take_woken()
    }

    /// Waits until no detached link has posts in flight, or until the deadline.
    pub(in crate::verbs) fn part(&mut self, deadline: Instant) {
        self.take_all();
        self.look();
        while !self.lingering.is_empty() && Instant::now() < deadline {
            self.arm_queues();
            self.look();
            if !self.lingering.is_empty() {
                self.nap(Some(deadline));
                self.take_all();
                self.look();
            }
        }
    }
}

fn timespec(left: Duration) -> Timespec {
    Timespec { tv_sec: left.as_secs().min(i64::MAX as u64) as i64, tv_nsec: left.subsec_nanos().into() }
}
