//! The port over shared memory: its links' rings, and one bell.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Waker;
use std::time::Duration;

use super::bells::PeerBell;
use super::cells::MappedCells;
use super::futex;
use super::group::{Group, PortState};
use super::waking::WokenBy;
use crate::connection::Connection;
use crate::ids::{Imm, LinkId, Span};
use crate::links::{Attached, LinkState, Links};
use crate::port::{Arrival, CloseReason, Closed, Posted, Until};
use crate::ring::bell::{self, Place};
use crate::ring::{AtomicU32, Consumer, Corrupt, Producer};

/// A `wake_at` that no ring reaches while its consumer sleeps: it lies beyond the capacity of any ring.
const NEVER: u32 = 1 << 30;

/// A connected link that no port polls yet.
pub struct Endpoint {
    connection: Arc<Connection>,
    /// The state of this end's port, whose bell the peer rings for this link.
    port: Arc<PortState>,
    pub(super) producer: Producer<MappedCells>,
    pub(super) consumer: Consumer<MappedCells>,
    peer_bell: PeerBell,
    /// The descriptor by which the peer ends this port's sleep. All links that a connection has at one port
    /// share the descriptor.
    woken_by: Arc<WokenBy>,
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
        peer_bell: PeerBell,
        woken_by: Arc<WokenBy>,
    ) -> Self {
        Endpoint {
            connection,
            port,
            producer: Producer::new(outgoing),
            consumer: Consumer::new(incoming),
            peer_bell,
            woken_by,
        }
    }

    pub(crate) fn woken_by(&self) -> &Arc<WokenBy> {
        &self.woken_by
    }
}

/// Shuts the connection, so the peer sees that this end left: after `detach`, when the port is dropped, and
/// when an unattached endpoint is dropped.
impl Drop for Endpoint {
    fn drop(&mut self) {
        self.connection.shut();
    }
}

impl Attached<Endpoint> {
    #[cold]
    fn corrupt(&mut self, corrupt: Corrupt) {
        self.state = LinkState::Closing(CloseReason::Corrupt(corrupt.to_string()));
        self.link.connection.shut();
    }

    /// Returns the number of unread arrivals. A corrupt ring counts as full of arrivals, so the port wakes
    /// and closes the link.
    fn unread(&mut self) -> u32 {
        if self.is_open() { self.link.consumer.unread().unwrap_or(u32::MAX) } else { 0 }
    }
}

/// A port over shared memory.
pub struct Port {
    /// The group, whose thread `phub-watch` must run as long as the port lives.
    _group: Arc<Group>,
    pub(super) state: Arc<PortState>,
    links: Links<Endpoint>,
    changes_seen: u32,
}

/// Makes `ports` ports that connect together, for example one for each core of a hub.
///
/// # Errors
/// Returns an error if memory, file descriptors or threads run out.
pub fn group(ports: usize) -> std::io::Result<(Arc<Group>, Vec<Port>)> {
    let group = Group::new(ports)?;
    let port = |state: &Arc<PortState>| Port {
        _group: Arc::clone(&group),
        state: Arc::clone(state),
        links: Links::default(),
        changes_seen: 0,
    };
    let ports = group.ports.iter().map(port).collect();
    Ok((group, ports))
}

impl Port {
    /// Finds links whose connection ended. Such a link closes once its arrivals are read.
    fn look_for_deaths(&mut self) {
        let changes = self.state.changes();
        if changes == self.changes_seen {
            return;
        }
        self.changes_seen = changes;
        for (_, attached) in self.links.iter_mut() {
            if attached.is_open() && attached.link.connection.is_dead() {
                if attached.unread() == 0 {
                    attached.state = LinkState::Closing(CloseReason::PeerGone);
                } else {
                    // The link still has arrivals: the next call must look at the link again.
                    self.changes_seen = changes.wrapping_sub(1);
                }
            }
        }
    }

    /// Waits like `wait`, but sleeps at descriptors. If nothing has happened, calls `sleep`, which waits for
    /// the descriptors that wake the [links](Endpoint::woken_by) and for other transports.
    /// [`sleep_beside`](Self::sleep_beside) must have set the waker for such a sleep.
    pub(crate) fn wait_beside(&mut self, until: Until, sleep: impl FnOnce()) {
        self.wait_at(Place::Descriptors, until, |_| sleep());
    }

    fn wait_at(&mut self, place: Place, until: Until, sleep: impl FnOnce(&AtomicU32)) {
        for (id, attached) in self.links.iter() {
            attached.link.consumer.wake_when(wanted(until, id));
        }
        let state = Arc::clone(&self.state);
        let asleep = state.own.asleep();
        bell::announce(asleep, place);
        if !self.ready(until) {
            sleep(asleep);
        }
        bell::awake(asleep);
    }

    /// Lets this port sleep at descriptors, together with another port. `waker` ends that sleep from this
    /// process.
    pub(crate) fn sleep_beside(&self, waker: Waker) {
        self.state.own.set_beside(waker);
    }

    /// Reads from the links' descriptors the datagrams that have ended a sleep.
    pub(crate) fn quieten(&mut self) {
        let mut last: Option<*const WokenBy> = None;
        for (_, attached) in self.links.iter_mut() {
            let woken_by = Arc::as_ptr(&attached.link.woken_by);
            if last.replace(woken_by) != Some(woken_by) {
                attached.link.woken_by.quieten();
            }
        }
    }

    /// Detaches a link. Returns the descriptor by which the peer woke the port, if no other link uses that
    /// descriptor.
    pub(crate) fn take_off(&mut self, link: LinkId) -> Option<Arc<WokenBy>> {
        let woken_by = Arc::clone(&self.links.remove(link)?.link.woken_by);
        let is_others = self.links.iter().any(|(_, other)| Arc::ptr_eq(&other.link.woken_by, &woken_by));
        (!is_others).then_some(woken_by)
    }

    /// Whether the port has no link.
    pub(crate) fn is_bare(&self) -> bool {
        self.links.is_empty()
    }

    /// Whether the port has a reason not to sleep: an arrival, a closed link, a change, or a use of the
    /// waker.
    fn ready(&mut self, until: Until) -> bool {
        self.state.take_woken()
            || self.state.changes() != self.changes_seen
            || self
                .links
                .iter_mut()
                .any(|(id, attached)| attached.is_closing() || attached.unread() >= wanted(until, id))
    }
}

/// Returns how many unread arrivals of a link end the wait.
fn wanted(until: Until, id: LinkId) -> u32 {
    match until {
        Until::Any => 1,
        Until::Arrivals { link, count } if link == id => count.clamp(1, NEVER),
        Until::Arrivals { .. } => NEVER,
    }
}

impl crate::Port for Port {
    type Endpoint = Endpoint;

    fn attach(&mut self, endpoint: Endpoint) -> LinkId {
        assert!(
            Arc::ptr_eq(&self.state, &endpoint.port),
            "an endpoint belongs to the port that its connection was made for"
        );
        // The next poll looks for an ended connection: the new link's connection may have ended before the
        // port had the link.
        self.changes_seen = self.changes_seen.wrapping_sub(1);
        self.links.insert(endpoint)
    }

    fn detach(&mut self, link: LinkId) {
        self.take_off(link);
    }

    fn post(&mut self, id: LinkId, _span: Span, imm: Imm) -> Posted {
        // The span's bytes are in the peer's window already: both windows are the same pages.
        let posted = self.links.post(id, |endpoint| {
            if endpoint.connection.is_dead() {
                return Ok(Posted::Closed);
            }
            let pushed = endpoint.producer.push(imm.0)?;
            Ok(if pushed { Posted::Accepted } else { Posted::Full })
        });
        posted.unwrap_or_else(|corrupt| {
            if let Some(attached) = self.links.get_mut(id) {
                attached.corrupt(corrupt);
            }
            Posted::Closed
        })
    }

    /// Does nothing: the bytes of a post are in the peer's window already, so this transport holds none.
    fn set_credit(&mut self, _link: LinkId, _bytes: Option<usize>) {}

    fn flush(&mut self) {
        if !self.links.is_dirty() {
            return;
        }
        bell::published();
        self.links.flush(|_, Attached { link: endpoint, .. }| {
            let asleep = endpoint.peer_bell.word.asleep();
            // This check is first because it is the cheapest: the word of a peer that is awake stays in this
            // core's cache.
            if asleep.load(Ordering::Relaxed) != 0 && endpoint.producer.due() {
                endpoint.peer_bell.ring();
            }
        });
    }

    fn poll(&mut self, into: &mut [Arrival]) -> usize {
        self.look_for_deaths();
        self.links.poll(into, |attached, room| {
            if !attached.is_open() {
                return;
            }
            let taken = attached.link.consumer.take(room.left(), |imm| room.show(Imm(imm)));
            if let Err(corrupt) = taken {
                attached.corrupt(corrupt);
            }
        })
    }

    fn closed(&mut self) -> Option<Closed> {
        self.look_for_deaths();
        self.links.report_closed()
    }

    fn wait(&mut self, until: Until, timeout: Duration) {
        self.wait_at(Place::Futex, until, |asleep| futex::sleep(asleep, timeout));
    }

    fn waker(&self) -> Waker {
        Waker::from(Arc::clone(&self.state))
    }
}
