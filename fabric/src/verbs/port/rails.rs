//! The state that a port shares with the other threads of its process. It has the port's NICs with their
//! completion queues, and the routes from completions to links.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::event::epoll;

use crate::connection::Alarm;
use crate::port_state::{self, EventBell, Ring};
use crate::verbs::error::VerbsError;
use crate::verbs::handles::completion::CompletionQueue;
use crate::verbs::handles::context::{Context, NicEvent};
use crate::verbs::handles::work::{MAX_ROUTES, Work, WorkId};
use crate::verbs::nic::Nic;

/// The most NICs of one port.
pub(crate) const MAX_RAILS: usize = 32;

/// One NIC of a port, with the queue for completions of the port's links on that NIC. A NIC that was opened
/// again is another rail.
#[derive(Debug)]
pub(in crate::verbs) struct Rail {
    pub nic: Arc<Nic>,
    pub queue: Arc<CompletionQueue>,
}

/// The state that a port shares with the other threads of its process. Its changes are ended connections,
/// events of NICs, and routes to clear.
pub(in crate::verbs) type PortState = port_state::PortState<Rails>;

/// The NICs of a port, and the reports of other threads to the port.
#[derive(Debug)]
pub(in crate::verbs) struct Rails {
    /// The open rails, in the order of the port's NICs. The port has a copy of the list.
    open: Mutex<Vec<Arc<Rail>>>,
    /// The completion vector of the rails' completion queues.
    vector: u32,
    pub bell: EventBell,
    /// A descriptor that is readable when the bell or a completion channel is readable.
    sleeper: OwnedFd,
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

/// A route whose queue pair is destroyed, the rail of its completions, and the number of completions reserved
/// for it.
#[derive(Clone, Debug)]
pub(in crate::verbs) struct Abandoned {
    pub route: u32,
    pub rail: Arc<Rail>,
    pub completions: u32,
}

impl Rails {
    /// Creates the state of a port without rails. `vector` is the completion vector.
    pub fn new(vector: u32) -> Result<Self, VerbsError> {
        let make = || -> rustix::io::Result<(EventBell, OwnedFd)> {
            let (bell, sleeper) = (EventBell::new()?, epoll::create(epoll::CreateFlags::CLOEXEC)?);
            epoll::add(&sleeper, &bell, epoll::EventData::new_u64(0), epoll::EventFlags::IN)?;
            Ok((bell, sleeper))
        };
        let fail =
            |errno: rustix::io::Errno| VerbsError::system("making an eventfd in an epoll")(errno.into());
        let (bell, sleeper) = make().map_err(fail)?;
        Ok(Rails { open: Mutex::default(), vector, bell, sleeper, shared: Mutex::default() })
    }

    /// Returns the current rails.
    pub fn open(&self) -> Vec<Arc<Rail>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Whether a rail is on this device.
    pub fn uses(&self, context: &Arc<Context>) -> bool {
        self.open().iter().any(|rail| Arc::ptr_eq(&rail.nic.context, context))
    }

    /// Returns the descriptor on which a port sleeps.
    pub fn sleeper(&self) -> BorrowedFd<'_> {
        self.sleeper.as_fd()
    }

    /// Gives the port one rail on each of these NICs. A NIC that already has a rail keeps it.
    fn replace(&self, nics: &[Arc<Nic>]) -> Result<(), VerbsError> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let rail = |nic: &Arc<Nic>| -> Result<Arc<Rail>, VerbsError> {
            if let Some(rail) = open.iter().find(|rail| Arc::ptr_eq(&rail.nic, nic)) {
                return Ok(Arc::clone(rail));
            }
            let queue = CompletionQueue::new(&nic.context, self.vector)?;
            epoll::add(&self.sleeper, queue.events_fd(), epoll::EventData::new_u64(0), epoll::EventFlags::IN)
                .map_err(|errno| VerbsError::system("watching a completion channel")(errno.into()))?;
            Ok(Arc::new(Rail { nic: Arc::clone(nic), queue }))
        };
        let rails = nics.iter().map(rail).collect::<Result<_, _>>()?;
        *open = rails;
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the reports for the port: events of NICs, and routes whose queue pairs are destroyed.
    /// Completions of such routes may still be in the queue.
    pub fn take_changes(&self) -> (Vec<(Arc<Context>, NicEvent)>, Vec<Abandoned>) {
        let mut shared = self.lock();
        (std::mem::take(&mut shared.events), std::mem::take(&mut shared.abandoned))
    }

    /// Frees a route whose completions have all left the queue. Another link may then get the route.
    pub fn clear(&self, route: Abandoned) {
        route.rail.queue.release(route.completions);
        self.lock().free.push(route.route);
    }
}

impl Ring for Rails {
    fn ring(&self) {
        self.bell.ring();
    }
}

impl PortState {
    /// Sets the NICs of the port. The port starts to use them at its next call of `look`.
    pub fn use_nics(&self, nics: &[Arc<Nic>]) -> Result<(), VerbsError> {
        self.own.replace(nics)?;
        self.ended();
        Ok(())
    }

    /// Reports an event of a NIC to the port.
    pub fn take_event(&self, context: &Arc<Context>, event: NicEvent) {
        self.own.lock().events.push((Arc::clone(context), event));
        self.ended();
    }
}

/// A number that leads from a completion to its link. The link has the number from before it is attached
/// until none of its completions is left in the queue.
#[derive(Debug)]
pub(in crate::verbs) struct Route {
    port: Arc<PortState>,
    pub number: u32,
    pub generation: u32,
    pub rail: Arc<Rail>,
    completions: u32,
}

impl Route {
    /// Creates a route. The caller has reserved `completions` in the rail's queue.
    pub fn new(port: &Arc<PortState>, rail: &Arc<Rail>, completions: u32) -> Self {
        let mut shared = port.own.lock();
        let number = shared.free.pop().unwrap_or_else(|| {
            assert!(shared.routes < MAX_ROUTES, "more links than a port has routes");
            shared.routes += 1;
            shared.routes - 1
        });
        shared.generations = shared.generations.wrapping_add(1);
        let generation = shared.generations;
        drop(shared);
        Route { port: Arc::clone(port), number, generation, rail: Arc::clone(rail), completions }
    }

    /// Returns the id of a request of this link.
    pub fn id(&self, work: Work) -> WorkId {
        WorkId { work, route: self.number, generation: self.generation }
    }
}

impl Drop for Route {
    fn drop(&mut self) {
        let Route { number: route, ref rail, completions, .. } = *self;
        let rail = Arc::clone(rail);
        self.port.own.lock().abandoned.push(Abandoned { route, rail, completions });
        self.port.count_change();
    }
}
