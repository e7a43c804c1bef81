//! The port over shared memory: rings in, rings out, one bell.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Waker;
use std::time::Duration;

use super::cells::{Bell, MappedCells};
use super::futex;
use super::group::{Group, PortState};
use crate::connection::Connection;
use crate::ids::{Imm, LinkId, Span};
use crate::port::{Arrival, CloseReason, Closed, Posted, Until};
use crate::ring::bell;
use crate::ring::{Consumer, Corrupt, Producer};

/// A `wake_at` that no ring reaches while its consumer sleeps: beyond any ring's capacity.
const NEVER: u32 = 1 << 30;

/// A connected link that no port polls yet.
pub struct Endpoint {
    connection: Arc<Connection>,
    /// The port whose bell the peer rings for this link.
    port: Arc<PortState>,
    pub(super) producer: Producer<MappedCells>,
    pub(super) consumer: Consumer<MappedCells>,
    peer_bell: Bell,
}

impl std::fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("shm::Endpoint").field("connection", &self.connection.number).finish()
    }
}

impl Endpoint {
    pub(super) fn new(
        connection: Arc<Connection>,
        port: Arc<PortState>,
        outgoing: MappedCells,
        incoming: MappedCells,
        peer_bell: Bell,
    ) -> Self {
        Endpoint {
            connection,
            port,
            producer: Producer::new(outgoing),
            consumer: Consumer::new(incoming),
            peer_bell,
        }
    }
}

/// Dropped in whatever way, by `detach`, with its port or unattached, it is a peer that left.
impl Drop for Endpoint {
    fn drop(&mut self) {
        self.connection.shut();
    }
}

enum LinkState {
    Open,
    /// Closed and not yet reported by `closed`.
    Closing(CloseReason),
    Reported,
}

struct Link {
    endpoint: Endpoint,
    state: LinkState,
    /// Posted to since the last flush.
    dirty: bool,
}

impl Link {
    fn corrupt(&mut self, corrupt: Corrupt) {
        self.state = LinkState::Closing(CloseReason::Corrupt(corrupt.to_string()));
        self.endpoint.connection.shut();
    }

    /// Unread arrivals; a ring that lies has one event to see: its closing.
    fn unread(&mut self) -> u32 {
        match self.state {
            LinkState::Open => self.endpoint.consumer.unread().unwrap_or(u32::MAX),
            _ => 0,
        }
    }
}

/// A port over shared memory.
pub struct Port {
    _group: Arc<Group>,
    pub(super) state: Arc<PortState>,
    links: Vec<Option<Link>>,
    /// Links posted to since the last flush.
    dirty: Vec<LinkId>,
    /// The link that the next poll looks at first.
    first: usize,
    deaths_seen: u32,
}

impl Port {
    pub(super) fn new(group: Arc<Group>, state: Arc<PortState>) -> Self {
        Port { _group: group, state, links: Vec::new(), dirty: Vec::new(), first: 0, deaths_seen: 0 }
    }

    /// Marks links whose connection ended. They close once their arrivals are read.
    fn look_for_deaths(&mut self) {
        let deaths = self.state.deaths.load(Ordering::Acquire); // [death]
        if deaths == self.deaths_seen {
            return;
        }
        self.deaths_seen = deaths;
        for link in self.links.iter_mut().flatten() {
            // A link that still has arrivals is looked at again: keep the count behind.
            if matches!(link.state, LinkState::Open) && link.endpoint.connection.is_dead() {
                if link.unread() == 0 {
                    link.state = LinkState::Closing(CloseReason::PeerGone);
                } else {
                    self.deaths_seen = deaths.wrapping_sub(1);
                }
            }
        }
    }

    /// As `wait`; sleeps only if `others`, asked once the marks for the sleep are set, have nothing to see. From
    /// then on the waker ends the sleep.
    pub(crate) fn wait_beside(&mut self, until: Until, timeout: Duration, others: impl FnOnce() -> bool) {
        for (index, link) in self.links.iter().enumerate() {
            if let Some(link) = link {
                link.endpoint.consumer.wake_when(wanted(until, index));
            }
        }
        let state = Arc::clone(&self.state);
        let asleep = state.bell.asleep();
        bell::announce(asleep);
        if !self.ready(until) && !others() {
            futex::sleep(asleep, timeout);
        }
        bell::awake(asleep);
    }

    /// Whether it has no link.
    pub(crate) fn is_bare(&self) -> bool {
        self.links.iter().all(Option::is_none)
    }

    /// Sets the marks for a sleep, and says whether there is already something to see.
    fn ready(&mut self, until: Until) -> bool {
        if self.state.woken.swap(false, Ordering::Acquire) /* [woken] */
            || self.state.deaths.load(Ordering::Acquire) != self.deaths_seen
        {
            return true;
        }
        self.links.iter_mut().enumerate().any(|(index, link)| {
            link.as_mut().is_some_and(|link| {
                matches!(link.state, LinkState::Closing(_)) || link.unread() >= wanted(until, index)
            })
        })
    }
}

/// How many unread arrivals of link `index` end a wait.
fn wanted(until: Until, index: usize) -> u32 {
    match until {
        Until::Any => 1,
        Until::Arrivals { link, count } if link.index() == index => count.clamp(1, NEVER),
        Until::Arrivals { .. } => NEVER,
    }
}

impl crate::Port for Port {
    type Endpoint = Endpoint;

    fn attach(&mut self, endpoint: Endpoint) -> LinkId {
        assert!(
            Arc::ptr_eq(&self.state, &endpoint.port),
            "link i of a handshake belongs to port i of its group"
        );
        let link = Link { endpoint, state: LinkState::Open, dirty: false };
        // The connection may have died before this port had the link.
        self.deaths_seen = self.deaths_seen.wrapping_sub(1);
        let index = match self.links.iter().position(Option::is_none) {
            Some(free) => {
                self.links[free] = Some(link);
                free
            }
            None => {
                self.links.push(Some(link));
                self.dirty.reserve(self.links.len());
                self.links.len() - 1
            }
        };
        LinkId(index as u32)
    }

    fn detach(&mut self, link: LinkId) {
        drop(self.links.get_mut(link.index()).and_then(Option::take));
        self.dirty.retain(|&dirty| dirty != link);
    }

    fn post(&mut self, id: LinkId, _span: Span, imm: Imm) -> Posted {
        // The span's bytes are in the peer's window already: both windows are the same pages.
        let Some(link) = self.links.get_mut(id.index()).and_then(Option::as_mut) else {
            return Posted::Closed;
        };
        if !matches!(link.state, LinkState::Open) || link.endpoint.connection.is_dead() {
            return Posted::Closed;
        }
        match link.endpoint.producer.push(imm.0) {
            Ok(true) => {
                if !link.dirty {
                    link.dirty = true;
                    self.dirty.push(id);
                }
                Posted::Accepted
            }
            Ok(false) => Posted::Full,
            Err(corrupt) => {
                link.corrupt(corrupt);
                Posted::Closed
            }
        }
    }

    /// Bytes of a post are at the peer before it is made: there is nothing that this transport could hold.
    fn set_credit(&mut self, _link: LinkId, _bytes: Option<usize>) {}

    fn flush(&mut self) {
        if self.dirty.is_empty() {
            return;
        }
        bell::published();
        for id in self.dirty.drain(..) {
            let Some(link) = &mut self.links[id.index()] else { continue };
            link.dirty = false;
            let asleep = link.endpoint.peer_bell.asleep();
            // Cheapest question first: an awake peer's word stays in this core's cache.
            if asleep.load(Ordering::Relaxed) != 0 && link.endpoint.producer.due() && bell::claim_wake(asleep)
            {
                futex::wake(asleep);
            }
        }
    }

    fn poll(&mut self, into: &mut [Arrival]) -> usize {
        self.look_for_deaths();
        let links = self.links.len();
        if links == 0 {
            return 0;
        }
        let share = into.len().div_ceil(links);
        let mut filled = 0;
        self.first = (self.first + 1) % links;
        for turn in 0..links {
            let index = (self.first + turn) % links;
            let Some(link) = &mut self.links[index] else { continue };
            if !matches!(link.state, LinkState::Open) {
                continue;
            }
            let limit = share.min(into.len() - filled);
            let taken = link.endpoint.consumer.take(limit, |imm| {
                into[filled] = Arrival { link: LinkId(index as u32), imm: Imm(imm) };
                filled += 1;
            });
            if let Err(corrupt) = taken {
                link.corrupt(corrupt);
            }
        }
        filled
    }

    fn closed(&mut self) -> Option<Closed> {
        self.look_for_deaths();
        for (index, link) in self.links.iter_mut().enumerate() {
            let Some(link) = link else { continue };
            if let LinkState::Closing(reason) = &link.state {
                let closed = Closed { link: LinkId(index as u32), reason: reason.clone() };
                link.state = LinkState::Reported;
                return Some(closed);
            }
        }
        None
    }

    fn wait(&mut self, until: Until, timeout: Duration) {
        self.wait_beside(until, timeout, || false);
    }

    fn waker(&self) -> Waker {
        Waker::from(Arc::clone(&self.state))
    }
}
