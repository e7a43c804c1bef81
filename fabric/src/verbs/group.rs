//! A group: the ports of one process or one hub, the NICs they use, and the watch over connections and NICs.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::error::VerbsError;
use super::events::NicWatch;
use super::handles::context::Context;
use super::nic::{Nic, NicOptions};
use super::port::rails::{MAX_RAILS, PortState, Rails};
use super::rail_map::RailMap;
use crate::watch::Watch;

/// What a group is told beside its NICs.
#[derive(Clone, Debug, Default)]
pub struct GroupOptions {
    /// Which of its NICs go with which of a hub's. The rest is paired by rule.
    pub rails: RailMap,
    /// The completion vector of the first port; the next port has the next. A worker's number on its machine, so that the
    /// interrupts of its workers go to different cpus.
    pub first_vector: u32,
}

/// The ports of one end, as the handshake sees them.
#[derive(Debug)]
pub struct Group {
    pub(super) ports: Vec<Arc<PortState>>,
    pub(super) watch: Watch,
    pub(super) options: GroupOptions,
    /// Links of each NIC, in the order of the ports' rails, that this group has asked hubs for.
    loads: Mutex<Vec<u32>>,
    _nics: Vec<Arc<NicWatch>>,
}

impl Group {
    /// A group with one port for each entry of `ports`, on the NICs of that entry.
    pub(super) fn new(ports: &[&[NicOptions]], options: GroupOptions) -> Result<Arc<Self>, VerbsError> {
        assert!(!ports.is_empty(), "a group has at least one port");
        let mut contexts: Vec<Arc<Context>> = Vec::new();
        let mut opened: Vec<(NicOptions, Arc<Nic>)> = Vec::new();
        let mut states = Vec::new();
        for (nics, vector) in ports.iter().zip(options.first_vector..) {
            assert!((1..=MAX_RAILS).contains(&nics.len()), "a port has 1 to {MAX_RAILS} NICs");
            let nics: Result<Vec<Arc<Nic>>, VerbsError> =
                nics.iter().map(|options| nic(options, &mut contexts, &mut opened)).collect();
            states.push(PortState::new(Rails::new(&nics?, vector)?));
        }
        let watch = Watch::start().map_err(VerbsError::system("starting the watch over connections"))?;
        let watches: Result<Vec<Arc<NicWatch>>, VerbsError> =
            contexts.iter().map(|context| NicWatch::start(&watch, context, &states)).collect();
        Ok(Arc::new(Group { ports: states, watch, options, loads: Mutex::default(), _nics: watches? }))
    }

    pub(super) fn loads(&self) -> MutexGuard<'_, Vec<u32>> {
        self.loads.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The NICs of a port: one of a hub's, several of a worker's.
    pub fn nics(&self, port: usize) -> impl Iterator<Item = &Nic> {
        self.ports[port].own.rails.iter().map(|rail| &*rail.nic)
    }
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
