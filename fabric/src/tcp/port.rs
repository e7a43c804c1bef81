//! The port over TCP: an epoll, its links, and detached links that still send.
//!
//! The port reads a socket only after the kernel reported an event for it (edge-triggered). So a busy port
//! makes a system call to read a frame, and none to look for frames.

use std::convert::Infallible;
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, epoll};
use rustix::io::Errno;

use super::link::{Endpoint, LINGER, Lingering, Link};
use crate::ids::{Imm, LinkId, Span};
use crate::links::{Attached, LinkState, Links};
use crate::port::{Arrival, CloseReason, Closed, Crossed, Posted, Until};
use crate::port_state::{EventBell, PortState};

/// The key of the waker's event. No link has such a high number.
const WAKER: u64 = u64::MAX;
/// The key of the events of other transports' descriptors.
const BESIDE: u64 = u64::MAX - 1;
/// The number of polls after which a port that always has something to read asks the kernel about its other
/// links.
const POLLS_PER_LOOK: u32 = 8;
/// The interval at which an idle port checks its detached links.
const LINGER_NAP: Duration = Duration::from_millis(10);
/// The most events that one call takes from the kernel. Later calls take further events.
const EVENTS_PER_LOOK: usize = 32;
const EDGES: epoll::EventFlags = epoll::EventFlags::IN
    .union(epoll::EventFlags::OUT)
    .union(epoll::EventFlags::RDHUP)
    .union(epoll::EventFlags::ET);

/// A port over TCP.
#[derive(Debug)]
pub struct Port {
    epoll: OwnedFd,
    state: Arc<PortState<EventBell>>,
    links: Links<Link>,
    /// Whether some link has frames that its socket did not accept.
    backlog: bool,
    /// Whether a link that had no room now has room again.
    relieved: bool,
    lingering: Vec<Lingering>,
    generation: u32,
    polls: u32,
}

impl Port {
    /// Creates a port without links.
    ///
    /// # Errors
    /// Returns an error if descriptors run out.
    pub fn new() -> std::io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let bell = EventBell::new()?;
        epoll::add(&epoll, &bell, epoll::EventData::new_u64(WAKER), epoll::EventFlags::IN)?;
        Ok(Port {
            epoll,
            state: PortState::new(bell),
            links: Links::default(),
            backlog: false,
            relieved: false,
            lingering: Vec::new(),
            generation: 0,
            polls: 0,
        })
    }

    /// Takes the events of links from the kernel, and waits for at most `timeout`. Returns whether a
    /// descriptor of another transport has an event.
    fn take_events(&mut self, timeout: Duration) -> bool {
        let mut beside = false;
        let mut events = [const { MaybeUninit::uninit() }; EVENTS_PER_LOOK];
        let timeout =
            Timespec { tv_sec: timeout.as_secs() as i64, tv_nsec: i64::from(timeout.subsec_nanos()) };
        // After an interrupted call, the next call sees the events.
        let Ok((events, _)) = epoll::wait(&self.epoll, &mut events, Some(&timeout)) else { return false };
        for event in events {
            let key = event.data.u64();
            if key == WAKER {
                self.state.own.quieten();
                continue;
            }
            if key == BESIDE {
                beside = true;
                continue;
            }
            let Some(Attached { link, .. }) = self.links.get_mut(LinkId(key as u32)) else { continue };
            if u64::from(link.generation) != key >> 32 {
                continue;
            }
            let ends = epoll::EventFlags::RDHUP | epoll::EventFlags::HUP | epoll::EventFlags::ERR;
            let flags = event.flags;
            link.incoming.ended |= flags.intersects(ends);
            link.incoming.readable |= flags.intersects(ends | epoll::EventFlags::IN);
            link.outgoing.writable |= flags.intersects(ends | epoll::EventFlags::OUT);
        }
        beside
    }

    /// Sends queued frames, if the sockets have room now.
    fn pump(&mut self) {
        if self.backlog {
            self.backlog = false;
            for (_, attached) in self.links.iter_mut() {
                if attached.takes_posts() && !attached.link.outgoing.is_empty() {
                    attached.link.pump();
                    self.relieved |= std::mem::take(&mut attached.link.outgoing.relieved);
                    self.backlog |= attached.takes_posts() && !attached.link.outgoing.is_empty();
                }
            }
        }
        self.lingering.retain_mut(|lingering| !lingering.advance());
    }

    /// Adds `fd` to the descriptors that end a [`sleep`](Self::sleep) when they are readable.
    pub(crate) fn sleep_beside(&self, fd: BorrowedFd) -> std::io::Result<()> {
        epoll::add(&self.epoll, fd, epoll::EventData::new_u64(BESIDE), epoll::EventFlags::IN)?;
        Ok(())
    }

    /// Works like [`sleep_beside`](Self::sleep_beside), for a descriptor that this process does not read:
    /// each write to it ends one sleep. Adding a descriptor twice does no harm.
    pub(crate) fn sleep_beside_edges(&self, fd: BorrowedFd) -> std::io::Result<()> {
        let edges = epoll::EventFlags::IN | epoll::EventFlags::ET;
        match epoll::add(&self.epoll, fd, epoll::EventData::new_u64(BESIDE), edges) {
            Ok(()) | Err(Errno::EXIST) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Stops watching `fd`: the reverse of [`sleep_beside`](Self::sleep_beside).
    pub(crate) fn sleep_without(&self, fd: BorrowedFd) {
        let _ = epoll::delete(&self.epoll, fd);
    }

    /// Works like `wait`, but a readable descriptor of [`sleep_beside`](Self::sleep_beside) also ends the
    /// sleep. Returns whether such a descriptor is readable.
    pub(crate) fn sleep(&mut self, timeout: Duration) -> bool {
        let begun = Instant::now();
        loop {
            if self.state.take_woken() || self.is_promising() || std::mem::take(&mut self.relieved) {
                return false;
            }
            let mut left = timeout.saturating_sub(begun.elapsed());
            if !self.lingering.is_empty() {
                left = left.min(LINGER_NAP);
            }
            let beside = self.take_events(left);
            self.pump();
            if beside || begun.elapsed() >= timeout {
                return beside;
            }
        }
    }

    /// Returns the bytes that crossed a link.
    pub(crate) fn crossed(&self, id: LinkId) -> Option<Crossed> {
        Some(self.links.get(id)?.link.crossed())
    }

    /// Whether the port has no link, and no detached link that still sends.
    pub(crate) fn is_bare(&self) -> bool {
        self.lingering.is_empty() && self.links.is_empty()
    }

    fn is_promising(&self) -> bool {
        self.links.iter().any(|(_, attached)| attached.is_promising())
    }
}

impl crate::Port for Port {
    type Endpoint = Endpoint;

    fn attach(&mut self, endpoint: Endpoint) -> LinkId {
        self.generation = self.generation.wrapping_add(1);
        let key = u64::from(self.generation) << 32 | u64::from(self.links.next_id().0);
        let link = Link::new(endpoint, self.generation);
        let watched = epoll::add(&self.epoll, &link.socket, epoll::EventData::new_u64(key), EDGES);
        let id = self.links.insert(link);
        if let (Err(errno), Some(attached)) = (watched, self.links.get_mut(id)) {
            // The kernel has no more memory or no more watches, so the link fails.
            let reason = CloseReason::Failed(format!("watching its socket: {errno}"));
            attached.state = LinkState::Closing(reason);
        }
        id
    }

    fn detach(&mut self, id: LinkId) {
        let Some(attached) = self.links.remove(id) else { return };
        let _ = epoll::delete(&self.epoll, &attached.link.socket);
        self.lingering.extend(Lingering::new(attached));
        self.lingering.retain_mut(|lingering| !lingering.advance());
    }

    fn post(&mut self, id: LinkId, span: Span, imm: Imm) -> Posted {
        let Ok(posted) = self.links.post::<Infallible>(id, |link| {
            Ok(if link.broken {
                Posted::Closed
            } else if link.push(span, imm) {
                Posted::Accepted
            } else {
                Posted::Full
            })
        });
        posted
    }

    fn set_credit(&mut self, id: LinkId, bytes: Option<usize>) {
        if let Some(attached) = self.links.get_mut(id) {
            attached.link.set_credit(bytes);
        }
    }

    fn flush(&mut self) {
        if self.backlog {
            self.take_events(Duration::ZERO);
            self.pump();
        }
        let Port { links, relieved, backlog, .. } = self;
        links.flush(|_, attached| {
            if attached.is_open() {
                attached.link.pump();
            }
            *relieved |= std::mem::take(&mut attached.link.outgoing.relieved);
            *backlog |= !attached.link.outgoing.is_empty();
        });
    }

    fn poll(&mut self, into: &mut [Arrival]) -> usize {
        self.polls = self.polls.wrapping_add(1);
        if self.polls.is_multiple_of(POLLS_PER_LOOK) || !self.is_promising() {
            self.take_events(Duration::ZERO);
        }
        self.pump();
        self.links.poll(into, |attached, room| {
            while room.left() > 0
                && let Some(imm) = attached.next()
            {
                room.show(imm);
            }
        })
    }

    fn closed(&mut self) -> Option<Closed> {
        self.links.report_closed()
    }

    fn wait(&mut self, _until: Until, timeout: Duration) {
        self.sleep(timeout);
    }

    fn waker(&self) -> Waker {
        Waker::from(Arc::clone(&self.state))
    }
}

/// Sends the accepted posts that are still queued, for a bounded time.
impl Drop for Port {
    fn drop(&mut self) {
        for id in self.links.ids() {
            self.lingering.extend(self.links.remove(id).and_then(Lingering::new));
        }
        let begun = Instant::now();
        self.lingering.retain_mut(|lingering| !lingering.advance() && !lingering.has_sent());
        while !self.lingering.is_empty() && begun.elapsed() < LINGER {
            let nap = Timespec { tv_sec: 0, tv_nsec: LINGER_NAP.subsec_nanos().into() };
            let sockets = self.lingering.iter().map(Lingering::socket);
            let mut sockets: Vec<_> = sockets.map(|socket| PollFd::new(socket, PollFlags::OUT)).collect();
            let _ = rustix::event::poll(&mut sockets, Some(&nap));
            self.lingering.retain_mut(|lingering| !lingering.advance() && !lingering.has_sent());
        }
    }
}
