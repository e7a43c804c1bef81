//! A checkpoint file in memory, which is sent to clients and never written to a disk.
//!
//! The digest comes before the values, and bytes that were sent cannot be changed. So the whole file is made
//! before its first byte is sent.
//!
//! Owned by the thread that makes it. Must not depend on the clients.

use checkpoint_file::{DIGEST_AT, DIGEST_BYTES, Plan, UnusableKeys, digest_text};
use pbox_core::{Share, Snapshot};

use super::write::stream;

/// The reason why there is no file in memory.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NoImage {
    #[error(transparent)]
    Keys(#[from] UnusableKeys),

    #[error("a copy needs {needed} bytes of memory, and this machine has {available} available")]
    Memory { needed: u64, available: u64 },
}

/// Returns a file with the tensors of the snapshot, for the job of this name or for a hub's part of the job. In a part, `run`
/// tells this job from other jobs with the same name.
pub(crate) fn image(
    job: &str,
    snapshot: &Snapshot,
    share: Share,
    run: Option<String>,
) -> Result<Vec<u8>, NoImage> {
    let plan = Plan::new(job, snapshot, share, run)?;
    let (needed, available) = (plan.file_bytes, fabric::available_bytes().unwrap_or(u64::MAX));
    let no_memory = NoImage::Memory { needed, available };
    let mut file = Vec::new();
    if available < needed || file.try_reserve_exact(needed as usize).is_err() {
        return Err(no_memory);
    }
    let (hash, _) = stream(&mut file, &plan, snapshot).expect("memory takes every byte");
    file[DIGEST_AT..][..DIGEST_BYTES].copy_from_slice(digest_text(&hash).as_bytes());
    Ok(file)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use checkpoint_file::decode;
    use fabric::Slab;
    use pbox_core::{
        ChunkId, Key, Layout, Numbers, Optimizer, Round, Schedule, Selection, SnapshotPart, Tensor,
    };

    use super::*;
    use crate::checkpoint::CheckpointStore;

    /// Returns a snapshot of 18 weights in two chunks, of their 18 momenta, or of weights and momenta. In each chunk the
    /// values count up.
    fn snapshot(selection: Selection) -> Snapshot {
        let optimizer = Optimizer::Momentum { learning_rate: 0.5, weight_decay: 0.0, momentum: 0.5 };
        let layout = Arc::new(Layout::new(vec![Key::f32("a", [18])], 64).unwrap());
        let [first, second] = [1..17, 33..35].map(|weights| {
            let elements = weights.len() as u16;
            let tensors = [(Tensor::Weights, weights.start), (Tensor::State(0), weights.start + elements)];
            let selected = tensors.into_iter().filter(move |(tensor, _)| selection.has(*tensor));
            selected.flat_map(move |(_, first)| first..first + elements)
        });
        let of_chunks = Vec::from_iter(first.chain(second).map(f32::from));
        let mut values = Slab::zeroed("test", of_chunks.len()).unwrap();
        values.as_mut_slice().copy_from_slice(&of_chunks);
        let parts = vec![SnapshotPart {
            chunks: vec![ChunkId(0), ChunkId(1)],
            values,
            steps: vec![2; 2],
            squares: None,
            norm_mean: None,
        }];
        let pieces = Share::WHOLE.pieces(&layout, Schedule::default());
        let (of, numbers) = ((optimizer.into(), selection), vec![(Round(0), Numbers::new(optimizer))]);
        Snapshot::of_share(layout, pieces, of, Round(3), numbers, parts).unwrap()
    }

    #[test]
    fn an_image_is_the_file() {
        let snapshot = snapshot(Selection::All);
        let dir = tempfile::tempdir().unwrap();
        let store = CheckpointStore::open(dir.path()).unwrap();
        store.save("job", Share::WHOLE, &snapshot).unwrap();
        let image = image("job", &snapshot, Share::WHOLE, None).unwrap();
        assert_eq!(image, std::fs::read(store.path("job").unwrap()).unwrap());
    }

    #[test]
    fn an_image_of_one_tensor_has_its_values_alone() {
        let tensors = |selection| -> BTreeMap<String, Vec<f32>> {
            let image = image("job", &snapshot(selection), Share::WHOLE, None).unwrap();
            let bytes = image.len() as u64;
            let decoded = decode(std::io::Cursor::new(image), bytes).unwrap();
            decoded.tensors().map(|(tensor, values)| (tensor.name.clone(), values.to_vec())).collect()
        };
        let mut all = tensors(Selection::All);
        assert_eq!(all.len(), 2);
        assert_eq!(
            all["a"],
            [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 33, 34].map(|n| n as f32)
        );
        let states = all.split_off("b");
        let one = |tensor| tensors(Selection::One(tensor));
        assert_eq!((one(Tensor::Weights), one(Tensor::State(0))), (all, states));
    }

    #[test]
    fn a_snapshot_of_one_tensor_becomes_no_checkpoint() {
        let dir = tempfile::tempdir().unwrap();
        let store = CheckpointStore::open(dir.path()).unwrap();
        let why = store.save("job", Share::WHOLE, &snapshot(Selection::One(Tensor::Weights))).unwrap_err();
        assert!(why.to_string().contains("has not all tensors"), "{why}");
        assert!(!store.path("job").unwrap().exists());
    }
}
