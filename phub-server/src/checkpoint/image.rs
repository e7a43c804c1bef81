//! A checkpoint file in memory, which is sent to clients and never written to a disk.
//!
//! The digest comes before the values, and bytes that were sent cannot be changed. So the whole file is made
//! before its first byte is sent.
//!
//! Owned by the thread that makes it. Must not know the clients.

use pbox_core::{Share, Snapshot, Tensor};

use super::error::UnusableKeys;
use super::format::{DIGEST_AT, DIGEST_BYTES, Plan, digest_text};
use super::write::stream;

/// The reason why there is no file in memory.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NoImage {
    #[error(transparent)]
    Keys(#[from] UnusableKeys),

    #[error("a copy needs {needed} bytes of memory, this machine has {available} available")]
    Memory { needed: u64, available: u64 },
}

/// Returns the file of a job with this name, or of one hub's part of the job. The file has all tensors, or
/// with `only` one tensor of each key. `run` tells the job from other jobs of this name.
pub(crate) fn image(
    job: &str,
    snapshot: &Snapshot,
    only: Option<Tensor>,
    share: Share,
    run: Option<String>,
) -> Result<Vec<u8>, NoImage> {
    let plan = Plan::new(job, snapshot, only, share, run)?;
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

    use fabric::Slab;
    use pbox_core::{ChunkId, Key, Layout, Numbers, Optimizer, Round, SnapshotPart};

    use super::*;
    use crate::checkpoint::{CheckpointStore, decode};

    /// Returns a snapshot of 18 weights with values 1 to 18 in the order of the chunks, and a momentum for
    /// each weight.
    fn snapshot() -> Snapshot {
        let optimizer = Optimizer::Momentum { learning_rate: 0.5, weight_decay: 0.0, momentum: 0.5 };
        let layout = Arc::new(Layout::new(vec![Key::f32("a", [18])], 64).unwrap());
        let mut values = Slab::zeroed("test", 36).unwrap();
        values.as_mut_slice().iter_mut().zip(1u16..).for_each(|(value, n)| *value = n.into());
        let parts = vec![SnapshotPart {
            chunks: vec![ChunkId(0), ChunkId(1)],
            values,
            steps: vec![2; 2],
            squares: None,
            norm_mean: None,
        }];
        Snapshot::new(layout, optimizer, Round(3), vec![(Round(0), Numbers::new(optimizer))], parts).unwrap()
    }

    #[test]
    fn an_image_is_the_file() {
        let snapshot = snapshot();
        let dir = tempfile::tempdir().unwrap();
        let store = CheckpointStore::open(dir.path()).unwrap();
        store.save("job", Share::WHOLE, &snapshot).unwrap();
        let image = image("job", &snapshot, None, Share::WHOLE, None).unwrap();
        assert_eq!(image, std::fs::read(store.path("job").unwrap()).unwrap());
    }

    #[test]
    fn an_image_of_one_tensor_has_its_values_alone() {
        let snapshot = snapshot();
        let tensors = |only| -> BTreeMap<String, Vec<f32>> {
            let image = image("job", &snapshot, only, Share::WHOLE, None).unwrap();
            let bytes = image.len() as u64;
            let decoded = decode(std::io::Cursor::new(image), bytes).unwrap();
            decoded.tensors().map(|(tensor, values)| (tensor.name.clone(), values.to_vec())).collect()
        };
        let mut all = tensors(None);
        assert_eq!(all.len(), 2);
        assert_eq!(
            all["a"],
            [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 33, 34].map(|n| n as f32)
        );
        let states = all.split_off("b");
        assert_eq!((tensors(Some(Tensor::Weights)), tensors(Some(Tensor::State(0)))), (all, states));
    }
}
