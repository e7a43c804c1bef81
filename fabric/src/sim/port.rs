//! The port over the simulated network.

use std::sync::Arc;
use std::task::{Wake, Waker};
use std::time::{Duration, Instant};

use super::net::{EndId, Net, State};
use crate::ids::{Imm, LinkId, Span};
use crate::port::{Arrival, CloseReason, Closed, Posted, Until};

/// A connected link that no port polls yet. Dropped, it is a peer that left.
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

    /// Names this end of the link to the net's events, also once it is attached.
    pub fn id(&self) -> EndId {
        self.end
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        if !self.attached {
            self.net.lock().leave(self.end);
        }
    }
}

struct Link {
    end: EndId,
    /// Its closing was shown.
    reported: bool,
}

/// A port over the simulated network. Dropped, it detaches all its links.
pub struct Port {
    net: Net,
    number: usize,
    links: Vec<Option<Link>>,
    /// The link that the next poll looks at first.
    first: usize,
}

impl Port {
    pub(super) fn new(net: Net, number: usize) -> Self {
        Port { net, number, links: Vec::new(), first: 0 }
    }

    /// The tick from which on there is something to see for a sleeper, if anything is under way.
    fn next_event(&self, state: &State, until: Until) -> Option<u64> {
        let event = |(index, link): (usize, &Option<Link>)| {
            let link = link.as_ref().filter(|link| !link.reported)?;
            let end = &state.ends[link.end.0];
            if !end.alive {
                return None;
            }
            let arrivals =
                wanted(until, index).and_then(|count| state.ends[link.end.peer().0].sent.due(count));
            arrivals.into_iter().chain(end.gone_at).min()
        };
        self.links.iter().enumerate().filter_map(event).min()
    }
}

/// How many unread arrivals of link `index` end a wait, if any number does.
fn wanted(until: Until, index: usize) -> Option<u32> {
    match until {
        Until::Any => Some(1),
        Until::Arrivals { link, count } => (link.index() == index).then_some(count),
    }
}

impl crate::Port for Port {
    type Endpoint = Endpoint;

    fn attach(&mut self, mut endpoint: Endpoint) -> LinkId {
        assert!(self.net.is(&endpoint.net), "an endpoint is attached to a port of its own net");
        endpoint.attached = true;
        self.net.lock().ends[endpoint.end.0].port = Some(self.number);
        let link = Some(Link { end: endpoint.end, reported: false });
        let index = self.links.iter().position(Option::is_none).unwrap_or(self.links.len());
        match self.links.get_mut(index) {
            Some(free) => *free = link,
            None => self.links.push(link),
        }
        LinkId(index as u32)
    }

    fn detach(&mut self, link: LinkId) {
        if let Some(link) = self.links.get_mut(link.index()).and_then(Option::take) {
            let mut state = self.net.lock();
            state.flush(link.end);
            state.leave(link.end);
        }
    }

    fn post(&mut self, link: LinkId, span: Span, imm: Imm) -> Posted {
        let Some(Link { end, reported: false }) = self.links.get(link.index()).and_then(Option::as_ref)
        else {
            return Posted::Closed;
        };
        let mut state = self.net.lock();
        if state.knows_closed(*end) {
            return Posted::Closed;
        }
        if state.ends[end.0].sent.post(span, imm) { Posted::Accepted } else { Posted::Full }
    }

    fn set_credit(&mut self, link: LinkId, bytes: Option<usize>) {
        if let Some(Link { end, .. }) = self.links.get(link.index()).and_then(Option::as_ref) {
            self.net.lock().ends[end.0].sent.credit.limit_to(bytes);
        }
    }

    fn flush(&mut self) {
        let mut state = self.net.lock();
        for link in self.links.iter().flatten() {
            state.flush(link.end);
        }
    }

    fn poll(&mut self, into: &mut [Arrival]) -> usize {
        let mut state = self.net.lock();
        let now = state.conditions.now;
        let links = self.links.len();
        let share = into.len().div_ceil(links.max(1));
        let mut filled = 0;
        self.first = (self.first + 1) % links.max(1);
        for index in (0..links).map(|turn| (self.first + turn) % links) {
            let Some(link) = &self.links[index] else { continue };
            if !state.ends[link.end.0].alive {
                continue;
            }
            let limit = into.len().min(filled + share);
            while filled < limit
                && let Some(imm) = state.ends[link.end.peer().0].sent.take(now)
            {
                into[filled] = Arrival { link: LinkId(index as u32), imm };
                filled += 1;
            }
            if state.ends[link.end.peer().0].sent.relieved {
                state.wake(link.end.peer());
            }
        }
        if filled == 0 {
            state.conditions.now += 1;
        }
        filled
    }

    fn closed(&mut self) -> Option<Closed> {
        let state = self.net.lock();
        for (index, link) in self.links.iter_mut().enumerate() {
            let Some(link) = link.as_mut().filter(|link| !link.reported) else { continue };
            let drained = state.ends[link.end.peer().0].sent.is_empty();
            if state.ends[link.end.0].alive && state.knows_closed(link.end) && drained {
                link.reported = true;
                return Some(Closed { link: LinkId(index as u32), reason: CloseReason::PeerGone });
            }
        }
        None
    }

    fn wait(&mut self, until: Until, timeout: Duration) {
        // The one look at a wall clock: other threads' posts do not come in virtual time.
        let deadline = Instant::now().checked_add(timeout);
        let mut state = self.net.lock();
        let bell = Arc::clone(&state.sleepers[self.number].bell);
        loop {
            let mut over = std::mem::take(&mut state.sleepers[self.number].woken);
            for link in self.links.iter().flatten() {
                over |= std::mem::take(&mut state.ends[link.end.0].sent.relieved);
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
            state = bell.wait_timeout(state, left).unwrap_or_else(|poisoned| poisoned.into_inner()).0;
        }
    }

    fn waker(&self) -> Waker {
        Waker::from(Arc::new(Alarm { net: self.net.clone(), port: self.number }))
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        for link in 0..self.links.len() {
            crate::Port::detach(self, LinkId(link as u32));
        }
    }
}

/// Wakes a port.
struct Alarm {
    net: Net,
    port: usize,
}

impl Wake for Alarm {
    fn wake(self: Arc<Self>) {
        let sleeper = &mut self.net.lock().sleepers[self.port];
        sleeper.woken = true;
        sleeper.bell.notify_all();
    }
}
