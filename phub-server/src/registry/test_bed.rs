//! For the registry's tests: a registry whose only core has no thread, and a worker's request.

use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::Duration;

use fabric::any;
use pbox_core::control::{JoinRequest, PROTOCOL};
use pbox_core::kernels::Kernels;
use pbox_core::{JobTerms, Key, Optimizer};

use super::Registry;
use crate::cores::{Command, CoreHandle};

/// The core's commands.
pub type Inbox = Receiver<Command<any::Endpoint>>;

pub fn registry() -> (Arc<Registry>, Inbox) {
    let (core, inbox) = CoreHandle::idle(0);
    let limit = Duration::from_secs(30);
    let registry = Registry::new(vec![core], Kernels::detect(), Vec::new(), limit, None, None);
    (Arc::new(registry), inbox)
}

/// The only worker of a job of one chunk with 16 elements.
pub fn request() -> JoinRequest {
    let optimizer = Optimizer::Sgd { learning_rate: 0.5, weight_decay: 0.0 };
    let terms = JobTerms { chunk_bytes: 64, ..JobTerms::new(1, vec![Key::f32("a", [16])], optimizer) };
    JoinRequest { protocol: PROTOCOL, rank: 0, hub: 0, peers: None, state_before: None, terms }
}

pub fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}
