//! However a snapshot ends, the cores hear of it.

use fabric::Slab;
use pbox_core::ChunkId;

use super::*;
use crate::registry::bed::{self, Inbox};

/// A hub without a directory for checkpoints, with one job.
fn registry() -> (Arc<Registry>, Inbox) {
    let (registry, inbox) = bed::registry();
    bed::runtime().block_on(registry.join("job".into(), bed::request())).unwrap();
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
    bed::runtime().block_on(registry.save(collected))
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
