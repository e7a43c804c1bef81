//! A group: the ports of one process or one hub, the NICs they use, and the watch over connections and NICs.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Wake;

use rustix::event::{EventfdFlags, eventfd};

use super::error::VerbsError;
use super::events::NicWatch;
use super::handles::completion::CompletionQueue;
use super::handles::context::{Context, NicEvent};
use super::nic::{Nic, NicOptions};
use super::port::Port;
use super::port::work::{MAX_ROUTES, Work, WorkId};
use crate::connection::Alarm;
use crate::watch::Watch;

/// NICs of one port.
pub(super) const MAX_RAILS: usize = 32;

/// One NIC of a port, with the completions of the port's links on it.
#[derive(Debug)]
pub(super) struct Rail {
    pub nic: Arc<Nic>,
    pub queue: Arc<CompletionQueue>,
}

/// What a port shares with the other threads of its process.
#[derive(Debug)]
pub(super) struct PortState {
    pub rails: Vec<Rail>,
    /// An eventfd that a sleeper sleeps on.
    bell: OwnedFd,
    /// Somebody woke the port's waker since it last slept.
    pub woken: AtomicBool,
    /// Counts what the port has to look at: connections that ended, events, routes to be cleared.
    pub changes: AtomicU32,
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
pub(super) struct Abandoned {
    pub route: u32,
    pub rail: usize,
    pub completions: u32,
}

impl PortState {
    fn new(nics: &[Arc<Nic>]) -> Result<Arc<Self>, VerbsError> {
        let rails: Result<Vec<Rail>, VerbsError> = nics
            .iter()
            .map(|nic| Ok(Rail { nic: Arc::clone(nic), queue: CompletionQueue::new(&nic.context)? }))
            .collect();
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|errno| VerbsError::system("making an eventfd")(errno.into()))?;
        Ok(Arc::new(PortState {
            rails: rails?,
            bell,
            woken: AtomicBool::new(false),
            changes: AtomicU32::new(0),
            shared: Mutex::default(),
        }))
    }

    fn lock(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn bell(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    /// The bell rang: makes it quiet again.
    pub fn quieten(&self) {
        let _ = rustix::io::read(&self.bell, &mut [0; 8]);
    }

    /// Wakes the port if it sleeps; the caller has stored its reason before.
    fn ring(&self) {
        let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
    }

    /// A NIC that one of the rails is on said something.
    pub fn nic_said(&self, context: &Arc<Context>, event: NicEvent) {
        self.lock().events.push((Arc::clone(context), event));
        self.ended();
    }

    /// What the port has to look at: what NICs said of themselves, and routes whose queue pairs are
    /// destroyed, of which completions may still be in the queue.
    pub fn take_changes(&self) -> (Vec<(Arc<Context>, NicEvent)>, Vec<Abandoned>) {
        let mut shared = self.lock();
        (std::mem::take(&mut shared.events), std::mem::take(&mut shared.abandoned))
    }

    /// Nothing of the route is in the completion queue any more: it may be another link's.
    pub fn clear(&self, route: Abandoned) {
        self.rails[route.rail].queue.release(route.completions);
        self.lock().free.push(route.route);
    }
}

impl Alarm for PortState {
    fn ended(&self) {
        self.changes.fetch_add(1, Ordering::Release); // [change]
        self.ring();
    }
}

impl Wake for PortState {
    fn wake(self: Arc<Self>) {
        self.woken.store(true, Ordering::Release); // [woken]
        self.ring();
    }
}

/// What finds the link of a completion: a number that is the link's from before it is attached until nothing
/// of it is left in the completion queue.
#[derive(Debug)]
pub(super) struct Route {
    port: Arc<PortState>,
    pub number: u32,
    pub generation: u32,
    pub rail: usize,
    completions: u32,
}

impl Route {
    /// A route with room for `completions`, which the caller has reserved in the rail's queue.
    pub fn new(port: &Arc<PortState>, rail: usize, completions: u32) -> Self {
        let mut shared = port.lock();
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
        self.port.lock().abandoned.push(Abandoned { route, rail, completions });
        self.port.changes.fetch_add(1, Ordering::Release); // [change]; nobody needs to wake for it
    }
}

/// The ports of one end, as the handshake sees them.
#[derive(Debug)]
pub struct Group {
    pub(super) ports: Vec<Arc<PortState>>,
    pub(super) watch: Watch,
    _nics: Vec<Arc<NicWatch>>,
}

impl Group {
    /// The NICs of a port: one of a hub's, several of a worker's.
    pub fn nics(&self, port: usize) -> impl Iterator<Item = &Nic> {
        self.ports[port].rails.iter().map(|rail| &*rail.nic)
    }
}

/// Makes the ports of a hub: one for each entry, each on its NIC. Several may be on one.
///
/// # Errors
/// When libibverbs, a device, an active port or a GID is missing, or something runs out.
pub fn group(nics: &[NicOptions]) -> Result<(Arc<Group>, Vec<Port>), VerbsError> {
    let ports: Vec<&[NicOptions]> = nics.chunks(1).collect();
    make(&ports)
}

/// Makes a worker's one port, over all of its NICs.
///
/// # Errors
/// As [`group`].
pub fn worker_group(nics: &[NicOptions]) -> Result<(Arc<Group>, Port), VerbsError> {
    let (group, mut ports) = make(&[nics])?;
    Ok((group, ports.remove(0)))
}

fn make(ports: &[&[NicOptions]]) -> Result<(Arc<Group>, Vec<Port>), VerbsError> {
    assert!(!ports.is_empty(), "a group has at least one port");
    let mut contexts: Vec<Arc<Context>> = Vec::new();
    let mut opened: Vec<(NicOptions, Arc<Nic>)> = Vec::new();
    let mut states = Vec::new();
    for options in ports {
        assert!((1..=MAX_RAILS).contains(&options.len()), "a port has 1 to {MAX_RAILS} NICs");
        let nics: Result<Vec<Arc<Nic>>, VerbsError> =
            options.iter().map(|options| nic(options, &mut contexts, &mut opened)).collect();
        states.push(PortState::new(&nics?)?);
    }
    let watch = Watch::start().map_err(VerbsError::system("starting the watch over connections"))?;
    let watches: Result<Vec<Arc<NicWatch>>, VerbsError> =
        contexts.iter().map(|context| NicWatch::start(&watch, context, &states)).collect();
    let group = Arc::new(Group { ports: states, watch, _nics: watches? });
    let ports = group.ports.iter().map(|state| Port::new(Arc::clone(&group), Arc::clone(state))).collect();
    Ok((group, ports))
}

/// The NIC of these options, opened if it is not: ports share what they have in common.
fn nic(
    options: &NicOptions,
    contexts: &mut Vec<Arc<Context>>,
    opened: &mut Vec<(NicOptions, Arc<Nic>)>,
) -> Result<Arc<Nic>, VerbsError> {
    if let Some((_, nic)) = opened.iter().find(|(other, _)| other == options) {
        return Ok(Arc::clone(nic));
    }
    let context = match contexts.iter().find(|context| context.device == options.device) {
        Some(context) => Arc::clone(context),
        None => {
            let context = Context::open(&options.device)?;
            contexts.push(Arc::clone(&context));
            context
        }
    };
    let nic = Arc::new(Nic::open(&context, options)?);
    opened.push((options.clone(), Arc::clone(&nic)));
    Ok(nic)
}
