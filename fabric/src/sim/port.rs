//! The port over the simulated network.

use std::sync::Arc;
use std::task::{Wake, Waker};
use std::time::{Duration, Instant};

use super::net::{EndId, Net, State};
use crate::ids::{Imm, LinkId, Span};
use crate::links::{Attached, LinkState, Links};
use crate::port::{Arrival, CloseReason, Closed, FrameRule, Posted, Until};

/// A connected link that no port polls yet. If it is dropped, the peer sees that this end left.
#[derive(Debug)]
pub struct Endpoint {
    net: Net,
    end: EndId,
    attached: bool,
}

impl Endpoint {
    pub(super) fn new(net: Net, end: EndId) -> Self {
        Endpoint { net, end, attached: false }
    }

    /// Returns the name of this end for the net's events. The name stays the same after the end is attached.
    pub fn id(&self) -> EndId {
        self.end
    }

    /// Sets the rule that closes the link when it refuses a frame.
    pub fn obey(&mut self, rule: Box<dyn FrameRule>) {
        self.net.lock().ends[self.end.0].rule = Some(rule);
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        if !self.attached {
            self.net.lock().leave(self.end);
        }
    }
}

/// A port over the simulated network. Dropping the port detaches all its links.
pub struct Port {
    net: Net,
    number: usize,
    links: Links<EndId>,
}

impl Port {
    pub(super) fn new(net: Net, number: usize) -> Self {
        Port { net, number, links: Links::default() }
    }

    /// Returns the first tick at which a sleeping port sees something, if anything is in flight.
    fn next_event(&self, state: &State, until: Until) -> Option<u64> {
        let event = |(id, attached): (LinkId, &Attached<EndId>)| {
            let end = &state.ends[attached.link.0];
            if matches!(attached.state, LinkState::Reported) || !end.alive {
                return None;
            }
            let arrivals =
                wanted(until, id).and_then(|count| state.ends[attached.link.peer().0].sent.due(count));
            arrivals.into_iter().chain(end.gone_at).min()
        };
        self.links.iter().filter_map(event).min()
    }
}

/// Returns how many unread arrivals of a link end the wait, if arrivals of the link can end it.
fn wanted(until: Until, id: LinkId) -> Option<u32> {
    match until {
        Until::Any => Some(1),
        Until::Arrivals { link, count } => (link == id).then_some(count),
    }
}

impl crate::Port for Port {
    type Endpoint = Endpoint;

    fn attach(&mut self, mut endpoint: Endpoint) -> LinkId {
        assert!(self.net.is(&endpoint.net), "an endpoint is attached to a port of its own net");
        endpoint.attached = true;
        self.net.lock().ends[endpoint.end.0].port = Some(self.number);
        self.links.insert(endpoint.end)
    }

    fn detach(&mut self, id: LinkId) {
        if let Some(Attached { link: end, .. }) = self.links.remove(id) {
            let mut state = self.net.lock();
            state.flush(end);
            state.leave(end);
        }
    }

    fn post(&mut self, id: LinkId, span: Span, imm: Imm) -> Posted {
        let Some(&Attached { link: end, state: LinkState::Open, .. }) = self.links.get(id) else {
            return Posted::Closed;
        };
        let mut state = self.net.lock();
        if state.knows_closed(end) {
            return Posted::Closed;
        }
        if !state.ends[end.0].sent.post(span, imm) {
            return Posted::Full;
        }
        if let Some(rule) = state.ends[end.0].rule.as_mut().filter(|_| span.bytes == 0) {
            rule.posted_empty(imm);
        }
        Posted::Accepted
    }

    fn set_credit(&mut self, id: LinkId, bytes: Option<usize>) {
        if let Some(Attached { link: end, .. }) = self.links.get(id) {
            self.net.lock().ends[end.0].sent.credit.limit_to(bytes);
        }
    }

    /// Does nothing, like a NIC's port. A caller that relies on an early flush therefore fails in a simulated
    /// run.
    fn flush_early(&mut self) {}

    fn flush(&mut self) {
        let mut state = self.net.lock();
        // The links are visited in the order of their ids, not of their posts. So a seed always gives the
        // same random draws.
        for (_, attached) in self.links.iter() {
            state.flush(attached.link);
        }
    }

    fn poll(&mut self, into: &mut [Arrival]) -> usize {
        let mut state = self.net.lock();
        let now = state.conditions.now;
        let filled = self.links.poll(into, |attached, room| {
            let end = attached.link;
            if !state.ends[end.0].alive || !attached.is_open() {
                return;
            }
            while room.left() > 0
                && let Some((span, imm)) = state.ends[end.peer().0].sent.next(now)
            {
                let refused = state.ends[end.0].rule.as_mut().map(|rule| rule.check(span, imm));
                if let Some(Err(why)) = refused {
                    attached.state = LinkState::Closing(CloseReason::Corrupt(why));
                    return;
                }
                room.show(state.ends[end.peer().0].sent.take(now).expect("an arrival is due"));
            }
            if state.ends[end.peer().0].sent.relieved {
                state.wake(end.peer());
            }
        });
        if filled == 0 {
            state.conditions.now += 1;
        }
        filled
    }

    fn closed(&mut self) -> Option<Closed> {
        let state = self.net.lock();
        for (_, attached) in self.links.iter_mut().filter(|(_, attached)| attached.is_open()) {
            let end = attached.link;
            let drained = state.ends[end.peer().0].sent.is_empty();
            if state.ends[end.0].alive && state.knows_closed(end) && drained {
                attached.state = LinkState::Closing(CloseReason::PeerGone);
            }
        }
        self.links.report_closed()
    }

    fn wait(&mut self, until: Until, timeout: Duration) {
        // This is the only use of a wall clock: posts of other threads do not arrive in virtual time.
        let deadline = Instant::now().checked_add(timeout);
        let mut state = self.net.lock();
        let bell = Arc::clone(&state.sleepers[self.number].bell);
        loop {
            let mut over = std::mem::take(&mut state.sleepers[self.number].woken);
            for (_, attached) in self.links.iter() {
                over |= std::mem::take(&mut state.ends[attached.link.0].sent.relieved);
            }
            if over {
                return;
            }
            if let Some(tick) = self.next_event(&state, until) {
                state.conditions.now = state.conditions.now.max(tick);
                return;
            }
            let left = deadline.map_or(timeout, |at| at.saturating_duration_since(Instant::now()));
            if left.is_zero() {
                return;
            }
            state.sleepers[self.number].sleeps = true;
            state = bell.wait_timeout(state, left).unwrap_or_else(|poisoned| poisoned.into_inner()).0;
            state.sleepers[self.number].sleeps = false;
        }
    }

    fn waker(&self) -> Waker {
        Waker::from(Arc::new(Alarm { net: self.net.clone(), port: self.number }))
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        for id in self.links.ids() {
            crate::Port::detach(self, id);
        }
    }
}

/// The waker's state: it can end the port's sleep.
struct Alarm {
    net: Net,
    port: usize,
}

impl Wake for Alarm {
    fn wake(self: Arc<Self>) {
        let sleeper = &mut self.net.lock().sleepers[self.port];
        sleeper.woken = true;
        sleeper.ring();
    }
}
