//! The end of links: a peer left or died, a NIC failed, or the layer above detached a link.
//!
//! ```text
//!   Open --(socket ended, error, event)--> Ending --(all arrivals shown)--> Closing --(closed())--> Reported
//!     |                                       |                               |                       |
//!     +------------- detach: lingers until its last posts are out, then its queue pair is destroyed --+
//!                    and its route cleared: nothing of it is left in the completion queue
//! ```

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::rails::{Abandoned, MAX_RAILS, Rail};
use super::{Endpoint, Owner, Port};
use crate::ids::LinkId;
use crate::links::{Attached, LinkState};
use crate::port::CloseReason;
use crate::verbs::handles::context::{Context, NicEvent};
use crate::verbs::handles::work::Work;

/// The time after which unsent posts are given up. The NIC of a live peer takes microseconds for each post.
const LINGER: Duration = Duration::from_secs(2);

/// The longest time for which `detach` itself waits until the last posts are sent. It waits so that the peer
/// sees the end even if this port is never polled again. The limit is for a peer that does not take its
/// arrivals: such a peer can block a core only for this time. Several such peers together cannot block the core
/// for longer, because `detach` does not wait while an earlier link lingers.
pub(in crate::verbs) const GRACE: Duration = Duration::from_millis(50);

/// A detached link with posts that may be in flight.
pub(in crate::verbs) struct Linger {
    endpoint: Endpoint,
    deadline: Instant,
    /// Whether the queue pair failed, so that nothing more is sent.
    failed: bool,
}

impl Port {
    /// Handles the reports of other threads, the links that are ending, and the detached links.
    #[inline]
    pub(in crate::verbs) fn look(&mut self) {
        let changes = self.state.changes();
        if changes != self.changes_seen {
            self.changes_seen = changes;
            self.look_at_changes();
        }
        if self.ends > 0 {
            self.settle();
        }
        if !self.lingering.is_empty() {
            self.sweep();
        }
    }

    #[cold]
    fn look_at_changes(&mut self) {
        self.take_up_rails();
        let (events, abandoned) = self.state.own.take_changes();
        for id in self.links.ids() {
            let Some(attached) = self.links.get(id) else { continue };
            let Endpoint { connection, link, ends_with_port, .. } = &attached.link;
            let ends = |context: &Arc<Context>, event: &NicEvent| {
                event.concerns(context, &link.route.rail, link.number())
                    && (*ends_with_port || !event.is_of_a_port())
            };
            let event = events.iter().find(|(context, event)| ends(context, event));
            if let Some((context, event)) = event {
                self.end(id, CloseReason::Failed(event.words(context)));
            } else if let Some(reason) = connection.end() {
                self.end(id, reason);
            }
        }
        self.clear(&abandoned);
    }

    /// Takes over the rails that are open now, which are NICs with their completion queues. The links on
    /// other NICs have ended or will end.
    fn take_up_rails(&mut self) {
        let open = self.state.own.open();
        let is_same = |(ours, open): (&Arc<Rail>, &Arc<Rail>)| Arc::ptr_eq(ours, open);
        if self.rails.len() != open.len() || !self.rails.iter().zip(&open).all(is_same) {
            self.take_all();
            (self.rails, self.armed) = (open, [false; MAX_RAILS]);
        }
    }

    /// Ends an open link: the link closes once its arrivals are shown. Ends its connection, so the peer sees
    /// the end, too.
    #[cold]
    pub(in crate::verbs) fn end(&mut self, id: LinkId, reason: CloseReason) {
        let Some(attached) = self.links.get_mut(id) else { return };
        match &mut attached.state {
            LinkState::Open => {
                attached.link.connection.fail(&reason);
                attached.state = LinkState::Ending(reason);
                self.ends += 1;
            }
            // If a NIC fails at both ends, the peer's socket may end before this end's NIC reports the
            // failure.
            LinkState::Ending(known) | LinkState::Closing(known) if *known == CloseReason::PeerGone => {
                *known = reason;
            }
            LinkState::Ending(_) | LinkState::Closing(_) | LinkState::Reported => {}
        }
    }

    /// Closes each ending link whose arrivals have all been shown.
    #[cold]
    fn settle(&mut self) {
        if !self.links.iter().any(|(_, attached)| matches!(attached.state, LinkState::Ending(_))) {
            return;
        }
        // All writes that the peer's NIC delivered before the socket ended have completed, so the call takes
        // their completions.
        self.take_all();
        for (_, attached) in self.links.iter_mut() {
            if let LinkState::Ending(reason) = &attached.state
                && attached.link.stashed == 0
            {
                attached.state = LinkState::Closing(reason.clone());
            }
        }
    }

    /// Keeps a detached link until its last posts have been sent, and then destroys its queue pair. The
    /// socket and the other links of the connection end at that time, after the other links' posts have been
    /// sent, too.
    pub(in crate::verbs) fn linger(&mut self, attached: Attached<Endpoint>) {
        let Attached { link: mut endpoint, state, .. } = attached;
        let route = &endpoint.link.route;
        self.routes[route.number as usize] = (route.generation, Owner::Lingering);
        let open = match state {
            LinkState::Open => !endpoint.connection.is_dead(),
            LinkState::Ending(_) | LinkState::Closing(_) => {
                self.ends -= 1;
                false
            }
            LinkState::Reported => false,
        };
        if !open {
            return; // dropping the endpoint destroys the queue pair
        }
        let connection = endpoint.connection.number;
        let link = &mut endpoint.link;
        let failed = link.flush(&mut self.tally).and_then(|()| link.fence()).is_err();
        for (_, neighbour) in self.links.iter_mut() {
            let Endpoint { connection: other, link, .. } = &mut neighbour.link;
            if other.number == connection && !link.is_fenced() {
                // If the fence fails, the posts of the other link cannot be sent anyway.
                let _ = link.fence();
            }
        }
        let deadline = Instant::now() + LINGER;
        self.lingering.push(Linger { endpoint, deadline, failed });
    }

    pub(in crate::verbs) fn complete_lingering(&mut self, route: usize, work: Work, success: bool) {
        let of_route = |linger: &&mut Linger| linger.endpoint.link.route.number as usize == route;
        let Some(linger) = self.lingering.iter_mut().find(of_route) else { return };
        let link = &mut linger.endpoint.link;
        match work {
            _ if !success => linger.failed = true,
            Work::Send => linger.failed |= link.sent(&mut self.tally).is_err(),
            Work::Fence => link.fence_passed(),
            Work::Receive => {}
        }
    }

    /// Drops detached links whose posts have been sent, or cannot be sent.
    #[cold]
    fn sweep(&mut self) {
        let now = Instant::now();
        for index in (0..self.lingering.len()).rev() {
            let Linger { endpoint, deadline, failed } = &self.lingering[index];
            if *failed || now >= *deadline || endpoint.connection.is_dead() || !self.has_fences(endpoint) {
                self.lingering.swap_remove(index);
            }
        }
    }

    /// Whether the connection has posts on this port that may still be in flight.
    fn has_fences(&self, endpoint: &Endpoint) -> bool {
        let attached = self.links.iter().map(|(_, attached)| &attached.link);
        let lingering = self.lingering.iter().map(|linger| &linger.endpoint);
        attached
            .chain(lingering)
            .any(|other| other.connection.number == endpoint.connection.number && other.link.is_fenced())
    }

    /// Frees abandoned routes, whose queue pairs are destroyed. First takes their completions out of the
    /// queues, so that other links can use the routes.
    fn clear(&mut self, abandoned: &[Abandoned]) {
        if abandoned.is_empty() {
            return;
        }
        self.take_all();
        for route in abandoned {
            let number = route.route as usize;
            if let Some((_, owner)) = self.routes.get_mut(number) {
                *owner = Owner::Nobody;
            }
            self.forget_early(number);
            self.state.own.clear(route.clone());
        }
    }

    /// Waits until all posts of detached links have been sent or given up. Called when the port is dropped.
    pub(in crate::verbs) fn part_from_all(&mut self) {
        if let Some(last) = self.lingering.iter().map(|linger| linger.deadline).max() {
            self.part(last);
        }
    }

    /// Returns the deadline of the detached link that is given up first.
    pub(in crate::verbs) fn linger_deadline(&self) -> Option<Instant> {
        self.lingering.iter().map(|linger| linger.deadline).min()
    }
}
