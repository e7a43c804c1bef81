//! What a port shares with the other threads of its process: its NICs with their completion queues, and the
//! routes that completions find their links by.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::connection::Alarm;
use crate::port_state::{self, EventBell, Ring};
use crate::verbs::error::VerbsError;
use crate::verbs::handles::completion::CompletionQueue;
use crate::verbs::handles::context::{Context, NicEvent};
use crate::verbs::handles::work::{MAX_ROUTES, Work, WorkId};
use crate::verbs::nic::Nic;

/// NICs of one port.
pub(in crate::verbs) const MAX_RAILS: usize = 32;

/// One NIC of a port, with the completions of the port's links on it.
#[derive(Debug)]
pub(in crate::verbs) struct Rail {
    pub nic: Arc<Nic>,
    pub queue: Arc<CompletionQueue>,
}

/// What a port shares with the other threads of its process. Its changes are connections that ended, events of
/// NICs, and routes to be cleared.
pub(in crate::verbs) type PortState = port_state::PortState<Rails>;

/// The NICs of a port, and what other threads tell the port about them.
#[derive(Debug)]
pub(in crate::verbs) struct Rails {
    pub rails: Vec<Rail>,
    pub bell: EventBell,
    shared: Mutex<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    events: Vec<(Arc<Context>, NicEvent)>,
    abandoned: Vec<Abandoned>,
    free: Vec<u32>,
    routes: u32,
    generations: u32,
}

/// A route, the rail of its completions, and how many there is room for.
#[derive(Clone, Copy, Debug)]
pub(in crate::verbs) struct Abandoned {
    pub route: u32,
    pub rail: usize,
    pub completions: u32,
}

impl Rails {
    /// `vector` is that of the completions.
    pub fn new(nics: &[Arc<Nic>], vector: u32) -> Result<Self, VerbsError> {
        let rails: Result<Vec<Rail>, VerbsError> = nics
            .iter()
            .map(|nic| Ok(Rail { nic: Arc::clone(nic), queue: CompletionQueue::new(&nic.context, vector)? }))
            .collect();
        let bell = EventBell::new().map_err(|errno| VerbsError::system("making an eventfd")(errno.into()))?;
        Ok(Rails { rails: rails?, bell, shared: Mutex::default() })
    }

    fn lock(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the port has to look at: events of NICs, and routes whose queue pairs are destroyed. Completions of
    /// such routes may still be in the queue.
    pub fn take_changes(&self) -> (Vec<(Arc<Context>, NicEvent)>, Vec<Abandoned>) {
        let mut shared = self.lock();
        (std::mem::take(&mut shared.events), std::mem::take(&mut shared.abandoned))
    }

    /// Nothing of the route is in the completion queue any more: another link may have the route.
    pub fn clear(&self, route: Abandoned) {
        self.rails[route.rail].queue.release(route.completions);
        self.lock().free.push(route.route);
    }
}

impl Ring for Rails {
    fn ring(&self) {
        self.bell.ring();
    }
}

impl PortState {
    /// Takes an event of a NIC of the port.
    pub fn take_event(&self, context: &Arc<Context>, event: NicEvent) {
        self.own.lock().events.push((Arc::clone(context), event));
        self.ended();
    }
}

/// A number that finds the link of a completion. The link has it from before it is attached until nothing of the link
/// is left in the completion queue.
#[derive(Debug)]
pub(in crate::verbs) struct Route {
    port: Arc<PortState>,
    pub number: u32,
    pub generation: u32,
    pub rail: usize,
    completions: u32,
}

impl Route {
    /// A route with room for `completions`, which the caller has reserved in the rail's queue.
    pub fn new(port: &Arc<PortState>, rail: usize, completions: u32) -> Self {
        let mut shared = port.own.lock();
        let number = shared.free.pop().unwrap_or_else(|| {
            assert!(shared.routes < MAX_ROUTES, "more links than a port has routes");
            shared.routes += 1;
            shared.routes - 1
        });
        shared.generations = shared.generations.wrapping_add(1);
        let generation = shared.generations;
        drop(shared);
        Route { port: Arc::clone(port), number, generation, rail, completions }
    }

    /// The name of a request of this link.
    pub fn id(&self, work: Work) -> WorkId {
        WorkId { work, route: self.number, generation: self.generation }
    }
}

impl Drop for Route {
    fn drop(&mut self) {
        let Route { number: route, rail, completions, .. } = *self;
        self.port.own.lock().abandoned.push(Abandoned { route, rail, completions });
        self.port.count_change();
    }
}
