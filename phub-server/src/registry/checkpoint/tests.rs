//! However a snapshot ends, the cores hear of it.

use std::sync::mpsc::Receiver;

use fabric::{Slab, shm};
use pbox_core::control::{JoinRequest, OnLoss, PROTOCOL};
use pbox_core::kernels::Kernels;
use pbox_core::{Ablate, ChunkId, Consistency, Key, Optimizer};

use super::*;
use crate::core_thread::CoreHandle;

type Inbox = Receiver<Command<shm::Endpoint>>;

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

/// A hub that has no directory for checkpoints, with one job of one chunk of 16 elements.
fn registry() -> (Arc<Registry>, Inbox) {
    let (core, inbox) = CoreHandle::idle(0);
    let limit = Duration::from_secs(30);
    let registry = Registry::new(vec![core], Kernels::detect(), "test".into(), limit, None, None);
    let request = JoinRequest {
        protocol: PROTOCOL,
        rank: 0,
        workers: 1,
        chunk_bytes: 64,
        optimizer: Optimizer::Sgd { learning_rate: 0.5, weight_decay: 0.0 },
        ablate: Ablate::default(),
        consistency: Consistency::Bsp,
        on_loss: OnLoss::Stop,
        cores: None,
        keys: vec![Key::f32("a", [16])],
    };
    let registry = Arc::new(registry);
    runtime().block_on(registry.join("job".into(), request)).unwrap();
    (registry, inbox)
}

fn collected(registry: &Arc<Registry>, values: usize) -> Collected {
    let mut collected = registry.collecting(JobId(0), Occasion::Asked(1), Round(1), None).collected;
    collected.cores.push(0);
    let values = Slab::zeroed("test", values).unwrap();
    collected.parts.push(SnapshotPart { chunks: vec![ChunkId(0)], values });
    collected
}

/// Values that a core has got back, if it has heard of any.
fn given_back(inbox: &Inbox) -> Option<Option<usize>> {
    inbox.try_iter().find_map(|command| match command {
        Command::GiveBack { job: JobId(0), values } => Some(values.map(|slab| slab.as_slice().len())),
        _ => None,
    })
}

fn save(registry: &Arc<Registry>, collected: Collected) -> Result<CheckpointReply, String> {
    runtime().block_on(registry.save(collected))
}

#[test]
fn a_core_hears_of_a_snapshot_that_nobody_writes() {
    let (registry, inbox) = registry();
    drop(collected(&registry, 16));
    assert_eq!(given_back(&inbox), Some(Some(16)));
}

#[test]
fn a_core_hears_of_a_snapshot_that_is_none() {
    let (registry, inbox) = registry();
    assert!(save(&registry, collected(&registry, 15)).unwrap_err().contains("15 values"));
    assert_eq!(given_back(&inbox), Some(None));
}

#[test]
fn a_core_hears_of_a_snapshot_whose_writer_panicked() {
    let (registry, inbox) = registry();
    let why = save(&registry, collected(&registry, 16)).unwrap_err(); // there is no store
    assert_eq!(given_back(&inbox), Some(None));
    assert_eq!(registry.of_job(JobId(0), |job| job.checkpoints.error.clone()).unwrap(), Some(why));
}
