//! The posts of one end of a link, on their way to the other end.
//!
//! ```text
//!   post -> [held] -- launch: rules, due tick --> [in flight, by due tick] -- take --> arrival
//! ```
//!
//! This module has one direction of one link. It does not depend on the port that polls the link.

use std::collections::{BTreeMap, VecDeque};

use super::delivery::Path;
use super::faults::Faults;
use super::random::Random;
use crate::credit::Credit;
use crate::ids::{Imm, Span};

/// The conditions that all links of a net share: virtual time, rules and random numbers.
#[derive(Debug)]
pub(super) struct Conditions {
    pub now: u64,
    pub faults: Faults,
    pub random: Random,
}

/// The fault that applies to one post, set by an event of the net.
#[derive(Clone, Copy, Debug)]
pub(super) enum Exception {
    Drop,
    Duplicate,
    Delay(u64),
}

#[derive(Clone, Copy, Debug)]
struct Message {
    span: Span,
    imm: Imm,
    /// Whether this is the second arrival of a duplicated post, which takes no room.
    copy: bool,
    /// The bytes that the post counts against the link's credit.
    counted: usize,
}

#[derive(Debug)]
pub(super) struct Traffic {
    path: Path,
    capacity: u32,
    /// The number of accepted posts that the peer has not polled yet, without second arrivals.
    unpolled: u32,
    pub credit: Credit,
    /// Whether a post found no room.
    refused: bool,
    /// Whether a post was delivered or lost since another post found no room.
    pub relieved: bool,
    held: Vec<Message>,
    /// The messages in flight, by due tick, then by order of launch.
    in_flight: BTreeMap<(u64, u64), Message>,
    launched: u64,
    latest_due: u64,
    exceptions: VecDeque<Exception>,
    /// Offsets of bytes to flip, each in the next post that covers it.
    flips: Vec<usize>,
}

impl Traffic {
    pub fn new(path: Path, capacity: u32) -> Self {
        Traffic {
            path,
            capacity: capacity.max(1),
            unpolled: 0,
            credit: Credit::default(),
            refused: false,
            relieved: false,
            held: Vec::new(),
            in_flight: BTreeMap::new(),
            launched: 0,
            latest_due: 0,
            exceptions: VecDeque::new(),
            flips: Vec::new(),
        }
    }

    /// Holds a post back until the next launch. Returns false if there is no room.
    pub fn post(&mut self, span: Span, imm: Imm) -> bool {
        assert!(self.path.holds(span), "posted {span:?}, which ends beyond the window");
        let room = self.unpolled < self.capacity;
        let Some(counted) = room.then(|| self.credit.take(span.bytes)).flatten() else {
            self.refused = true;
            return false;
        };
        self.unpolled += 1;
        self.held.push(Message { span, imm, copy: false, counted });
        true
    }

    /// Notes that a post has been delivered, or lost.
    fn left(&mut self, counted: usize) {
        self.unpolled -= 1;
        self.credit.give(counted);
        self.relieved |= std::mem::take(&mut self.refused);
    }

    pub fn except_next(&mut self, exception: Exception) {
        self.exceptions.push_back(exception);
    }

    pub fn flip_next(&mut self, offset: usize) {
        self.flips.push(offset);
    }

    /// Sends the posts that are held back. Returns whether there was anything.
    pub fn launch(&mut self, conditions: &mut Conditions) -> bool {
        let held = std::mem::take(&mut self.held);
        for &message in &held {
            self.launch_one(message, conditions);
        }
        !held.is_empty()
    }

    fn launch_one(&mut self, message: Message, conditions: &mut Conditions) {
        let Conditions { now, faults, random } = conditions;
        let exception = self.exceptions.pop_front();
        if matches!(exception, Some(Exception::Drop)) || faults.drop.strikes(random) {
            self.left(message.counted);
            return;
        }
        let copies = matches!(exception, Some(Exception::Duplicate)) || faults.duplicate.strikes(random);
        let mut times = [None; 2];
        for time in times.iter_mut().take(1 + usize::from(copies)) {
            let delay = match exception {
                Some(Exception::Delay(ticks)) => ticks,
                _ => faults.draw_delay(random),
            };
            let mut due = *now + delay;
            if !faults.reorder {
                due = due.max(self.latest_due);
                self.latest_due = due;
            }
            self.launched += 1;
            *time = Some((due, self.launched));
        }
        // A duplicated post arrives twice. The earlier arrival frees the post's room. The later arrival is
        // the copy.
        let first = times.iter().flatten().min().copied();
        for time in times.into_iter().flatten() {
            self.in_flight.insert(time, Message { copy: Some(time) != first, ..message });
        }
    }

    /// Returns the next arrival that is due.
    pub fn next(&self, now: u64) -> Option<(Span, Imm)> {
        let (_, first) = self.in_flight.first_key_value().filter(|(at, _)| at.0 <= now)?;
        Some((first.span, first.imm))
    }

    /// Delivers the next arrival that is due: its bytes are then in the peer's window.
    pub fn take(&mut self, now: u64) -> Option<Imm> {
        let first = self.in_flight.first_entry().filter(|first| first.key().0 <= now)?;
        let Message { span, imm, copy, counted } = first.remove();
        if !copy {
            self.left(counted);
        }
        self.path.deliver(span);
        let is_posted = |at: &mut usize| (span.offset..span.offset + span.bytes).contains(at);
        self.flips.extract_if(.., is_posted).for_each(|offset| self.path.flip(offset));
        Some(imm)
    }

    /// Returns the tick at which `count` arrivals can be taken, if at least `count` are in flight.
    pub fn due(&self, count: u32) -> Option<u64> {
        let last = count.max(1) as usize - 1;
        self.in_flight.keys().nth(last).map(|&(due, _)| due)
    }

    pub fn is_empty(&self) -> bool {
        self.in_flight.is_empty()
    }

    /// Drops the posts that a dead sender had not flushed.
    pub fn lose_held(&mut self) {
        self.held.clear();
    }

    /// Drops all posts, because nobody will poll them.
    pub fn lose_all(&mut self) {
        self.held.clear();
        self.in_flight.clear();
    }
}
