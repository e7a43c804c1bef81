//! Asynchronous events of a NIC. The watch's thread reads them and tells the ports that use the NIC.

use std::sync::{Arc, Weak};

use super::error::VerbsError;
use super::handles::context::{About, Context, NicEvent};
use super::handles::ffi::*;
use super::handles::words;
use super::port::rails::{PortState, Rail};
use crate::watch::{Register, Watch, Watched};

/// The watch over one device.
#[derive(Debug)]
pub(super) struct NicWatch {
    context: Arc<Context>,
    ports: Vec<Weak<PortState>>,
    number: u64,
    register: Arc<Register>,
}

impl NicWatch {
    /// Watches a device for these ports.
    pub fn start(
        watch: &Watch,
        context: &Arc<Context>,
        ports: &[Arc<PortState>],
    ) -> Result<Arc<Self>, VerbsError> {
        let register = Arc::clone(watch.register());
        let nic_watch = Arc::new(NicWatch {
            context: Arc::clone(context),
            ports: ports.iter().map(Arc::downgrade).collect(),
            number: register.number(),
            register,
        });
        let watched: Arc<dyn Watched> = nic_watch.clone();
        watch
            .add_events(nic_watch.number, context.events_fd(), &watched)
            .map_err(VerbsError::system("watching a NIC's events"))?;
        Ok(nic_watch)
    }

    /// Whether its device failed, and nobody has anything of it any more.
    pub fn is_over(&self) -> bool {
        self.context.is_lost() && Arc::strong_count(&self.context) == 1
    }
}

impl Watched for NicWatch {
    fn ready(&self) {
        while let Some(event) = self.context.next_event() {
            if event.kind == IBV_EVENT_DEVICE_FATAL {
                self.context.lose();
            }
            if ends_links(event.kind) {
                let ports = self.ports.iter().filter_map(Weak::upgrade);
                ports
                    .filter(|port| port.own.uses(&self.context))
                    .for_each(|port| port.take_event(&self.context, event));
            }
        }
    }
}

impl Drop for NicWatch {
    fn drop(&mut self) {
        self.register.leave(self.number);
    }
}

/// Other events change nothing. A port that is down comes back, or its queue pairs give up after their retries: that is its
/// period of grace. A link that sends nothing meanwhile loses nothing.
fn ends_links(kind: ibv_event_type) -> bool {
    matches!(
        kind,
        IBV_EVENT_CQ_ERR
            | IBV_EVENT_QP_FATAL
            | IBV_EVENT_QP_REQ_ERR
            | IBV_EVENT_QP_ACCESS_ERR
            | IBV_EVENT_DEVICE_FATAL
    )
}

impl NicEvent {
    /// Whether it is about a link with a queue pair of this number, on this rail.
    pub fn concerns(&self, context: &Arc<Context>, rail: &Rail, number: u32) -> bool {
        if !Arc::ptr_eq(&rail.nic.context, context) {
            return false;
        }
        match self.about {
            About::QueuePair(other) => other == number,
            About::CompletionQueue(address) => rail.queue.raw() as usize == address,
            About::Port(port) => rail.nic.port == port,
            About::Device => true,
        }
    }

    /// In words, with the NIC's name.
    pub fn words(&self, context: &Context) -> String {
        format!("{} says {}", context.device, words::event(self.kind))
    }
}
