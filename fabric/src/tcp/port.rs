//! The port over TCP: an epoll, its links, and those that linger.
//!
//! Sockets are looked at where the kernel has said that there is something (edges), so that a busy port
//! makes a system call for a frame, and none to find out where the frames are.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Wake, Waker};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, epoll, eventfd};

use super::link::{Endpoint, LINGER, Lingering, Link, State};
use crate::ids::{Imm, LinkId, Span};
use crate::port::{Arrival, Closed, Posted, Until};

/// Key of the waker's event; no link has so high a number.
const WAKER: u64 = u64::MAX;
/// A port that always has something to read asks the kernel for other links after so many polls.
const POLLS_PER_LOOK: u32 = 8;
/// How often links that linger are looked at by a port that has nothing else to do.
const LINGER_NAP: Duration = Duration::from_millis(10);
/// The kernel deals further ones out in later looks, in turn.
const EVENTS_PER_LOOK: usize = 32;
const EDGES: epoll::EventFlags = epoll::EventFlags::IN
    .union(epoll::EventFlags::OUT)
    .union(epoll::EventFlags::RDHUP)
    .union(epoll::EventFlags::ET);

/// Ends a wait from any thread.
#[derive(Debug)]
struct Doorbell {
    event: OwnedFd,
    rung: AtomicBool,
}

impl Wake for Doorbell {
    fn wake(self: Arc<Self>) {
        self.rung.store(true, Ordering::Release); // [rung]
        // A full counter is one that is not zero: the wait ends all the same.
        let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
    }
}

/// A port over TCP.
#[derive(Debug)]
pub struct Port {
    epoll: OwnedFd,
    doorbell: Arc<Doorbell>,
    links: Vec<Option<Link>>,
    /// Links posted to since the last flush.
    dirty: Vec<LinkId>,
    /// Links that have something that the socket did not take.
    backlog: bool,
    /// A link that had no room has some again.
    relieved: bool,
    lingering: Vec<Lingering>,
    /// The link that the next poll looks at first.
    first: usize,
    generation: u32,
    polls: u32,
}

impl Port {
    /// A port without links.
    ///
    /// # Errors
    /// When descriptors run out.
    pub fn new() -> std::io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        epoll::add(&epoll, &event, epoll::EventData::new_u64(WAKER), epoll::EventFlags::IN)?;
        Ok(Port {
            epoll,
            doorbell: Arc::new(Doorbell { event, rung: AtomicBool::new(false) }),
            links: Vec::new(),
            dirty: Vec::new(),
            backlog: false,
            relieved: false,
            lingering: Vec::new(),
            first: 0,
            generation: 0,
            polls: 0,
        })
    }

    /// Asks the kernel which links have something, for at most `timeout`.
    fn look(&mut self, timeout: Duration) {
        let mut events = [const { MaybeUninit::uninit() }; EVENTS_PER_LOOK];
        let timeout =
            Timespec { tv_sec: timeout.as_secs() as i64, tv_nsec: i64::from(timeout.subsec_nanos()) };
        // Interrupted: what there is, is seen in the next look.
        let Ok((events, _)) = epoll::wait(&self.epoll, &mut events, Some(&timeout)) else { return };
        for event in events {
            let key = event.data.u64();
            if key == WAKER {
                let _ = rustix::io::read(&self.doorbell.event, &mut [0u8; 8]);
                continue;
            }
            let link = self.links.get_mut((key & u64::from(u32::MAX)) as usize).and_then(Option::as_mut);
            let Some(link) = link.filter(|link| u64::from(link.generation) == key >> 32) else { continue };
            let ends = epoll::EventFlags::RDHUP | epoll::EventFlags::HUP | epoll::EventFlags::ERR;
            let flags = event.flags;
            link.incoming.ended |= flags.intersects(ends);
            link.incoming.readable |= flags.intersects(ends | epoll::EventFlags::IN);
            link.outgoing.writable |= flags.intersects(ends | epoll::EventFlags::OUT);
        }
    }

    /// Sends what was left over, where there is room now.
    fn pump(&mut self) {
        if self.backlog {
            self.backlog = false;
            for link in self.links.iter_mut().flatten().filter(|link| !link.outgoing.is_empty()) {
                link.pump();
                self.relieved |= std::mem::take(&mut link.outgoing.relieved);
                self.backlog |= link.takes_posts() && !link.outgoing.is_empty();
            }
        }
        self.lingering.retain_mut(|lingering| !lingering.is_over());
    }

    /// Prepares a sleep on [`fd`](Self::fd): whether there is something to see already.
    pub(crate) fn arm(&mut self) -> bool {
        self.look(Duration::ZERO);
        self.pump();
        self.is_promising() || std::mem::take(&mut self.relieved)
    }

    /// Readable when a look finds something.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// Whether it has no link, not even one that lingers.
    pub(crate) fn is_bare(&self) -> bool {
        self.lingering.is_empty() && self.links.iter().all(Option::is_none)
    }

    fn is_promising(&self) -> bool {
        self.links.iter().flatten().any(Link::is_promising)
    }
}

impl crate::Port for Port {
    type Endpoint = Endpoint;

    fn attach(&mut self, endpoint: Endpoint) -> LinkId {
        let index = self.links.iter().position(Option::is_none).unwrap_or(self.links.len());
        if index == self.links.len() {
            self.links.push(None);
            self.dirty.reserve(self.links.len());
        }
        self.generation = self.generation.wrapping_add(1);
        let key = u64::from(self.generation) << 32 | index as u64;
        let mut link = Link::new(endpoint, self.generation);
        if let Err(errno) = epoll::add(&self.epoll, &link.socket, epoll::EventData::new_u64(key), EDGES) {
            // The kernel is out of memory, or of watches: to whoever polls, a link that failed.
            let reason = format!("watching its socket: {errno}");
            link.state = State::Closing(crate::port::CloseReason::Failed(reason));
        }
        self.links[index] = Some(link);
        LinkId(index as u32)
    }

    fn detach(&mut self, id: LinkId) {
        self.dirty.retain(|&dirty| dirty != id);
        let Some(link) = self.links.get_mut(id.index()).and_then(Option::take) else { return };
        let _ = epoll::delete(&self.epoll, &link.socket);
        self.lingering.extend(Lingering::new(link));
        self.lingering.retain_mut(|lingering| !lingering.is_over());
    }

    fn post(&mut self, id: LinkId, span: Span, imm: Imm) -> Posted {
        let Some(link) = self.links.get_mut(id.index()).and_then(Option::as_mut) else {
            return Posted::Closed;
        };
        if !link.takes_posts() {
            return Posted::Closed;
        }
        if !link.outgoing.push(span, imm) {
            return Posted::Full;
        }
        if !link.dirty {
            link.dirty = true;
            self.dirty.push(id);
        }
        Posted::Accepted
    }

    fn set_credit(&mut self, id: LinkId, bytes: Option<usize>) {
        if let Some(link) = self.links.get_mut(id.index()).and_then(Option::as_mut) {
            link.set_credit(bytes);
        }
    }

    fn flush(&mut self) {
        if self.backlog {
            self.look(Duration::ZERO);
            self.pump();
        }
        for id in self.dirty.drain(..) {
            let Some(link) = &mut self.links[id.index()] else { continue };
            link.dirty = false;
            link.pump();
            self.relieved |= std::mem::take(&mut link.outgoing.relieved);
            self.backlog |= !link.outgoing.is_empty();
        }
    }

    fn poll(&mut self, into: &mut [Arrival]) -> usize {
        let links = self.links.len();
        if links == 0 {
            self.pump();
            return 0;
        }
        self.polls = self.polls.wrapping_add(1);
        if self.polls.is_multiple_of(POLLS_PER_LOOK) || !self.is_promising() {
            self.look(Duration::ZERO);
        }
        self.pump();
        let share = into.len().div_ceil(links);
        let mut filled = 0;
        self.first = (self.first + 1) % links;
        for turn in 0..links {
            let index = (self.first + turn) % links;
            let Some(link) = &mut self.links[index] else { continue };
            let limit = (filled + share).min(into.len());
            while filled < limit
                && let Some(imm) = link.next()
            {
                into[filled] = Arrival { link: LinkId(index as u32), imm };
                filled += 1;
            }
        }
        filled
    }

    fn closed(&mut self) -> Option<Closed> {
        for (index, link) in self.links.iter_mut().enumerate() {
            let Some(link) = link else { continue };
            if let State::Closing(reason) = &link.state {
                let closed = Closed { link: LinkId(index as u32), reason: reason.clone() };
                link.state = State::Reported;
                return Some(closed);
            }
        }
        None
    }

    fn wait(&mut self, _until: Until, timeout: Duration) {
        let begun = Instant::now();
        loop {
            if self.doorbell.rung.swap(false, Ordering::Acquire) /* [rung] */
                || self.is_promising()
                || std::mem::take(&mut self.relieved)
            {
                return;
            }
            let mut left = timeout.saturating_sub(begun.elapsed());
            if !self.lingering.is_empty() {
                left = left.min(LINGER_NAP);
            }
            self.look(left);
            self.pump();
            if begun.elapsed() >= timeout {
                return;
            }
        }
    }

    fn waker(&self) -> Waker {
        Waker::from(Arc::clone(&self.doorbell))
    }
}

/// What was posted is still sent, for a bounded time.
impl Drop for Port {
    fn drop(&mut self) {
        let links = self.links.iter_mut().filter_map(Option::take);
        self.lingering.extend(links.filter_map(Lingering::new));
        let begun = Instant::now();
        self.lingering.retain_mut(|lingering| !lingering.is_over() && !lingering.has_sent());
        while !self.lingering.is_empty() && begun.elapsed() < LINGER {
            let nap = Timespec { tv_sec: 0, tv_nsec: LINGER_NAP.subsec_nanos().into() };
            let sockets = self.lingering.iter().map(Lingering::socket);
            let mut sockets: Vec<_> = sockets.map(|socket| PollFd::new(socket, PollFlags::OUT)).collect();
            let _ = rustix::event::poll(&mut sockets, Some(&nap));
            self.lingering.retain_mut(|lingering| !lingering.is_over() && !lingering.has_sent());
        }
    }
}
