//! The port over all transports. It polls the transports that have links, one after another.

use std::net::IpAddr;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::task::{Wake, Waker};
use std::time::Duration;

use super::transport::Transport;
use crate::ids::{Imm, LinkId, Span};
use crate::port::{Arrival, Closed, Crossed, FrameRule, Posted, Until};
use crate::{shm, tcp, verbs};

/// The numbers of the transports. A link's transport is its id modulo [`TRANSPORTS`].
const SHM: u32 = 0;
const TCP: u32 = 1;
const VERBS: u32 = 2;
const TRANSPORTS: u32 = 3;

/// A connected link that no port polls yet.
#[derive(Debug)]
pub enum Endpoint {
    /// An endpoint on this machine.
    Shm(shm::Endpoint),
    /// An endpoint over TCP.
    Tcp(tcp::Endpoint),
    /// An endpoint over RDMA.
    Verbs(verbs::Endpoint),
}

impl Endpoint {
    /// Returns the transport of the link.
    pub fn transport(&self) -> Transport {
        match self {
            Endpoint::Shm(_) => Transport::Shm,
            Endpoint::Tcp(_) => Transport::Tcp,
            Endpoint::Verbs(_) => Transport::Verbs,
        }
    }

    /// Whether the owner may post a span, write other bytes to the span at once, and post it again. Shared memory
    /// forbids that, because it copies no bytes. TCP with checksums forbids that, because the checksum would be
    /// wrong.
    pub fn carries_drafts(&self) -> bool {
        match self {
            Endpoint::Shm(_) => false,
            Endpoint::Tcp(endpoint) => !endpoint.is_summed(),
            Endpoint::Verbs(_) => true,
        }
    }

    /// Returns the device that the link's bytes cross at this end. Shared memory has none.
    pub fn device(&self) -> Option<Device> {
        match self {
            Endpoint::Shm(_) => None,
            Endpoint::Tcp(endpoint) => endpoint.local_address().map(Device::At),
            Endpoint::Verbs(endpoint) => Some(Device::Nic(endpoint.device())),
        }
    }

    /// Sets the rule for frames. The link closes when the rule refuses a frame. With RDMA the NIC writes at
    /// the address that the peer names, so the rule only sees the length. With shared memory no bytes move,
    /// and the rule is not used.
    pub fn obey(&mut self, rule: impl FnOnce() -> Box<dyn FrameRule>) {
        match self {
            Endpoint::Shm(_) => {}
            Endpoint::Tcp(endpoint) => endpoint.obey(rule()),
            Endpoint::Verbs(endpoint) => endpoint.obey(rule()),
        }
    }

    /// Makes a link over RDMA end when its NIC's port goes down, even if the link is idle. The link ends when
    /// the port was down for the time for which a NIC retries packets. The caller replaces a lost link.
    pub fn end_with_port(&mut self) {
        if let Endpoint::Verbs(endpoint) = self {
            endpoint.end_with_port();
        }
    }
}

/// The device that the bytes of a link cross at one end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Device {
    /// The interface that has this address.
    At(IpAddr),
    /// The RDMA device of this name.
    Nic(String),
}

/// A port over all transports.
pub struct Port {
    pub(super) shm: shm::Port,
    pub(super) tcp: tcp::Port,
    /// The port for RDMA, if there is one.
    pub(super) verbs: Option<verbs::Port>,
    /// The transport with which the last poll began.
    first: u32,
}

impl Port {
    pub(super) fn new(shm: shm::Port, tcp: tcp::Port, verbs: Option<verbs::Port>) -> Self {
        Port { shm, tcp, verbs, first: SHM }
    }

    /// Returns the bytes that crossed an attached link. Shared memory moves none.
    pub fn crossed(&self, link: LinkId) -> Option<Crossed> {
        match inner(link) {
            (SHM, _) => None,
            (TCP, link) => self.tcp.crossed(link),
            (_, link) => self.verbs.as_ref()?.crossed(link),
        }
    }
}

/// Returns the id that this port gives to a link of a transport.
fn outer(transport: u32, LinkId(inner): LinkId) -> LinkId {
    LinkId(inner * TRANSPORTS + transport)
}

/// Returns the transport of a link, and the link's id at that transport.
fn inner(LinkId(outer): LinkId) -> (u32, LinkId) {
    (outer % TRANSPORTS, LinkId(outer / TRANSPORTS))
}

impl crate::Port for Port {
    type Endpoint = Endpoint;

    fn attach(&mut self, endpoint: Endpoint) -> LinkId {
        match endpoint {
            Endpoint::Shm(endpoint) => {
                // If the call fails, the peer cannot end this port's sleep, but the sleep has a timeout.
                let _ = self.tcp.sleep_beside_edges(endpoint.woken_by().as_fd());
                outer(SHM, self.shm.attach(endpoint))
            }
            Endpoint::Tcp(endpoint) => outer(TCP, self.tcp.attach(endpoint)),
            Endpoint::Verbs(endpoint) => {
                let port = self.verbs.as_mut().expect("only a group with RDMA makes such endpoints");
                outer(VERBS, port.attach(endpoint))
            }
        }
    }

    fn detach(&mut self, link: LinkId) {
        match inner(link) {
            (SHM, link) => {
                let left = self.shm.take_off(link);
                // Without this call, the epoll would keep its entry for a descriptor that the peer keeps
                // open.
                left.into_iter().for_each(|woken_by| self.tcp.sleep_without(woken_by.as_fd()));
            }
            (TCP, link) => self.tcp.detach(link),
            (_, link) => self.verbs.iter_mut().for_each(|port| port.detach(link)),
        }
    }

    #[inline]
    fn post(&mut self, link: LinkId, span: Span, imm: Imm) -> Posted {
        match inner(link) {
            (SHM, link) => self.shm.post(link, span, imm),
            (TCP, link) => self.tcp.post(link, span, imm),
            (_, link) => self.verbs.as_mut().map_or(Posted::Closed, |port| port.post(link, span, imm)),
        }
    }

    fn set_credit(&mut self, link: LinkId, bytes: Option<usize>) {
        match inner(link) {
            (SHM, link) => self.shm.set_credit(link, bytes),
            (TCP, link) => self.tcp.set_credit(link, bytes),
            (_, link) => self.verbs.iter_mut().for_each(|port| port.set_credit(link, bytes)),
        }
    }

    #[inline]
    fn flush(&mut self) {
        self.shm.flush();
        self.tcp.flush();
        if let Some(port) = &mut self.verbs {
            port.flush();
        }
    }

    #[inline]
    fn flush_early(&mut self) {
        self.shm.flush_early();
        self.tcp.flush_early();
        // The port over verbs is left out, because its posts wait for `flush`.
    }

    fn poll(&mut self, into: &mut [Arrival]) -> usize {
        self.first = (self.first + 1) % TRANSPORTS;
        let mut filled = 0;
        for turn in 0..TRANSPORTS {
            let transport = (self.first + turn) % TRANSPORTS;
            let room = &mut into[filled..];
            let count = match transport {
                SHM => self.shm.poll(room),
                TCP if self.tcp.is_bare() => 0,
                TCP => self.tcp.poll(room),
                _ => self.verbs.as_mut().map_or(0, |port| port.poll(room)),
            };
            room[..count].iter_mut().for_each(|arrival| arrival.link = outer(transport, arrival.link));
            filled += count;
        }
        filled
    }

    fn closed(&mut self) -> Option<Closed> {
        let of = |transport| move |closed: Closed| Closed { link: outer(transport, closed.link), ..closed };
        let verbs = &mut self.verbs;
        (self.shm.closed().map(of(SHM)))
            .or_else(|| self.tcp.closed().map(of(TCP)))
            .or_else(|| verbs.as_mut()?.closed().map(of(VERBS)))
    }

    fn wait(&mut self, until: Until, timeout: Duration) {
        let within = |transport| match until {
            Until::Arrivals { link, count } if inner(link).0 == transport => {
                Until::Arrivals { link: inner(link).1, count }
            }
            // The awaited arrivals come over another transport. An arrival of this transport may wake the
            // port early, which `wait` allows.
            _ => Until::Any,
        };
        let (no_shm, no_tcp) = (self.shm.is_bare(), self.tcp.is_bare());
        match self.verbs.as_mut().filter(|port| !port.is_bare()) {
            None if no_tcp => self.shm.wait(within(SHM), timeout),
            Some(verbs) if no_shm && no_tcp => verbs.wait(within(VERBS), timeout),
            _ => self.wait_for_all(within(SHM), within(VERBS), timeout),
        }
    }

    fn waker(&self) -> Waker {
        let verbs = self.verbs.as_ref().map(crate::Port::waker);
        Waker::from(Arc::new(Wakers([Some(self.shm.waker()), verbs])))
    }
}

/// The wakers of a port, one for each transport on which the port may sleep. If the port sleeps on all
/// transports, the waker of shared memory also wakes the sleep in TCP's epoll.
struct Wakers([Option<Waker>; 2]);

impl Wake for Wakers {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.iter().flatten().for_each(Waker::wake_by_ref);
    }
}
