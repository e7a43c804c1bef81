//! A group: the ports of one process or one hub, the NICs they use, and the watch over connections and NICs.

use std::sync::Arc;

use super::error::VerbsError;
use super::events::NicWatch;
use super::handles::context::Context;
use super::nic::{Nic, NicOptions};
use super::port::rails::{MAX_RAILS, PortState, Rails};
use crate::watch::Watch;

/// The ports of one end, as the handshake sees them.
#[derive(Debug)]
pub struct Group {
    pub(super) ports: Vec<Arc<PortState>>,
    pub(super) watch: Watch,
    _nics: Vec<Arc<NicWatch>>,
}

impl Group {
    /// A group with one port for each entry of `ports`, on the NICs of that entry.
    pub(super) fn new(ports: &[&[NicOptions]]) -> Result<Arc<Self>, VerbsError> {
        assert!(!ports.is_empty(), "a group has at least one port");
        let mut contexts: Vec<Arc<Context>> = Vec::new();
        let mut opened: Vec<(NicOptions, Arc<Nic>)> = Vec::new();
        let mut states = Vec::new();
        for options in ports {
            assert!((1..=MAX_RAILS).contains(&options.len()), "a port has 1 to {MAX_RAILS} NICs");
            let nics: Result<Vec<Arc<Nic>>, VerbsError> =
                options.iter().map(|options| nic(options, &mut contexts, &mut opened)).collect();
            states.push(PortState::new(Rails::new(&nics?)?));
        }
        let watch = Watch::start().map_err(VerbsError::system("starting the watch over connections"))?;
        let watches: Result<Vec<Arc<NicWatch>>, VerbsError> =
            contexts.iter().map(|context| NicWatch::start(&watch, context, &states)).collect();
        Ok(Arc::new(Group { ports: states, watch, _nics: watches? }))
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
