//! The port over all transports: it asks those that have links, in turn.

use std::sync::Arc;
use std::task::{Wake, Waker};
use std::time::Duration;

use super::sleeping::Alarm;
use crate::ids::{Imm, LinkId, Span};
use crate::port::{Arrival, Closed, Posted, Until};
use crate::{shm, tcp};

/// A link's transport, and the remainder of its number.
const SHM: u32 = 0;
const TCP: u32 = 1;
const TRANSPORTS: u32 = 2;

/// A connected link that no port polls yet.
#[derive(Debug)]
pub enum Endpoint {
    /// On this machine.
    Shm(shm::Endpoint),
    /// Over TCP.
    Tcp(tcp::Endpoint),
}

/// A port over all transports.
pub struct Port {
    pub(super) shm: shm::Port,
    pub(super) tcp: tcp::Port,
    pub(super) alarm: Alarm,
    /// The transport that the next poll asks first.
    first: u32,
}

impl Port {
    pub(super) fn new(shm: shm::Port, tcp: tcp::Port, alarm: Alarm) -> Self {
        Port { shm, tcp, alarm, first: SHM }
    }
}

/// The number of a transport's link at this port.
fn outer(transport: u32, LinkId(inner): LinkId) -> LinkId {
    LinkId(inner * TRANSPORTS + transport)
}

/// The transport of a link, and its number there.
fn inner(LinkId(outer): LinkId) -> (u32, LinkId) {
    (outer % TRANSPORTS, LinkId(outer / TRANSPORTS))
}

impl crate::Port for Port {
    type Endpoint = Endpoint;

    fn attach(&mut self, endpoint: Endpoint) -> LinkId {
        match endpoint {
            Endpoint::Shm(endpoint) => outer(SHM, self.shm.attach(endpoint)),
            Endpoint::Tcp(endpoint) => outer(TCP, self.tcp.attach(endpoint)),
        }
    }

    fn detach(&mut self, link: LinkId) {
        match inner(link) {
            (SHM, link) => self.shm.detach(link),
            (_, link) => self.tcp.detach(link),
        }
    }

    #[inline]
    fn post(&mut self, link: LinkId, span: Span, imm: Imm) -> Posted {
        match inner(link) {
            (SHM, link) => self.shm.post(link, span, imm),
            (_, link) => self.tcp.post(link, span, imm),
        }
    }

    #[inline]
    fn flush(&mut self) {
        self.shm.flush();
        self.tcp.flush();
    }

    fn poll(&mut self, into: &mut [Arrival]) -> usize {
        self.first = (self.first + 1) % TRANSPORTS;
        let mut filled = 0;
        for turn in 0..TRANSPORTS {
            let transport = (self.first + turn) % TRANSPORTS;
            let room = &mut into[filled..];
            let count = match transport {
                SHM => self.shm.poll(room),
                _ if self.tcp.is_bare() => 0,
                _ => self.tcp.poll(room),
            };
            room[..count].iter_mut().for_each(|arrival| arrival.link = outer(transport, arrival.link));
            filled += count;
        }
        filled
    }

    fn closed(&mut self) -> Option<Closed> {
        let of = |transport| move |closed: Closed| Closed { link: outer(transport, closed.link), ..closed };
        self.shm.closed().map(of(SHM)).or_else(|| self.tcp.closed().map(of(TCP)))
    }

    fn wait(&mut self, until: Until, timeout: Duration) {
        let within = |transport| match until {
            Until::Arrivals { link, count } if inner(link).0 == transport => {
                Until::Arrivals { link: inner(link).1, count }
            }
            // What is waited for comes over another transport: an arrival here wakes early, which is allowed.
            _ => Until::Any,
        };
        if self.tcp.is_bare() {
            self.shm.wait(within(SHM), timeout);
        } else if self.shm.is_bare() {
            self.tcp.wait(within(TCP), timeout);
        } else {
            self.wait_for_all(within(SHM), timeout);
        }
    }

    fn waker(&self) -> Waker {
        Waker::from(Arc::new(Wakers([self.shm.waker(), self.tcp.waker()])))
    }
}

/// Wakes a port whichever transport it sleeps on.
struct Wakers([Waker; TRANSPORTS as usize]);

impl Wake for Wakers {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.iter().for_each(Waker::wake_by_ref);
    }
}
