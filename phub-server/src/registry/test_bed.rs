//! A test bed for the registry: a registry whose cores have no threads, and a worker's request.

use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

use coordinator::{LateLimits, Quotas, Settings};
use fabric::any;
use hub_threads::{Contention, CoreThread, Lane};
use pbox_core::control::JoinRequest;
use pbox_core::kernels::Kernels;
use pbox_core::{JobTerms, Key, Optimizer};
use tokio::sync::mpsc::unbounded_channel;

use super::{Parts, Registry, Up};

/// The most jobs of this registry.
pub const JOBS_LIMIT: usize = 4;

/// Returns a registry with one core, and the state of its core's thread.
pub fn registry() -> (Arc<Registry>, CoreThread) {
    let (registry, mut threads) = registry_of(&[1.0]);
    (registry, threads.remove(0))
}

/// Returns a registry, and the states of its cores' threads. Each core gets this part of its cpu's time.
pub fn registry_of(parts: &[f64]) -> (Arc<Registry>, Vec<CoreThread>) {
    let (group, ports) = any::group(parts.len(), None).unwrap();
    let (kernels, limit) = (Kernels::detect(), Duration::from_secs(30));
    let core = |(number, (port, &part)): (usize, (any::Port, &f64))| {
        let lane = Lane { cpu: number as u32, node: 0, nic: None };
        let (mut core, thread) =
            CoreThread::new(number, lane, port, kernels, unbounded_channel().0, channel().0);
        core.contention = Arc::new(Contention::of_part(part));
        (core, thread)
    };
    let (cores, threads) = ports.into_iter().zip(parts).enumerate().map(core).unzip();
    let up = Up {
        above: None,
        control: ([127, 0, 0, 1], 1).into(),
        credential: None,
        for_outside: None,
        peers: Default::default(),
        interface: None,
        limit,
        start_limit: limit,
        group,
        rdma: Ok(()),
    };
    let parts = Parts {
        id: "a test".into(),
        cores,
        kernels,
        transports: Vec::new(),
        heartbeat_limit: limit,
        decides: Settings {
            jobs_limit: JOBS_LIMIT,
            quotas: Quotas::default(),
            late: LateLimits { warning: limit, limit: None },
        },
        recorder: None,
        store: None,
        checkpoint_every: None,
        discard: channel().0,
        up,
        timeline: None,
        runtime: runtime().handle().clone(),
        gone: channel().0,
    };
    (Registry::new(parts), threads)
}

/// Returns the join of a job's only worker. The job has one chunk with 16 elements.
pub fn request() -> JoinRequest {
    let optimizer = Optimizer::Sgd { learning_rate: 0.5, weight_decay: 0.0 };
    let terms = JobTerms { chunk_bytes: 64, ..JobTerms::new(1, vec![Key::f32("a", [16])], optimizer) };
    JoinRequest::new(0, terms)
}

pub fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}
