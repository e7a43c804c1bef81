//! A checkpoint file in the memory of a snapshot, which is sent to clients and never written to a disk.
//!
//! The digest comes before the values, and bytes that were sent cannot be changed. So the digest is computed before the
//! first byte is sent.
//!
//! Owned by the thread that makes it. Must not depend on the clients.

use checkpoint_file::{DIGEST_AT, DIGEST_BYTES, Plan, UnusableKeys, digest_text};
use pbox_core::{Share, Snapshot, SnapshotPart, ValueRange};
use xxhash_rust::xxh3::Xxh3;
use zerocopy::IntoBytes;

/// The most bytes of a call of the hash function.
const HASHED_BYTES: usize = 1 << 20;

/// A checkpoint file whose values are a snapshot's.
#[derive(Debug)]
pub(crate) struct Image {
    plan: Plan,
    snapshot: Snapshot,
}

impl Image {
    /// Makes a file with the tensors of the snapshot, for the job of this name or for a hub's part of the job. In a part,
    /// `run` tells this job from other jobs with the same name.
    pub fn new(
        job: &str,
        snapshot: Snapshot,
        share: Share,
        run: Option<String>,
    ) -> Result<Self, UnusableKeys> {
        let mut image = Image { plan: Plan::new(job, &snapshot, share, run)?, snapshot };
        let mut hash = Xxh3::new();
        hash.update(image.header());
        image.ranges(HASHED_BYTES).for_each(|range| hash.update(image.values(&range)));
        image.plan.header[DIGEST_AT..][..DIGEST_BYTES].copy_from_slice(digest_text(&hash).as_bytes());
        Ok(image)
    }

    /// Returns the length of the file.
    pub fn bytes(&self) -> u64 {
        self.plan.file_bytes
    }

    /// Returns the beginning of the file, up to its first value.
    pub fn header(&self) -> &[u8] {
        &self.plan.header
    }

    /// Returns the ranges of values that follow the header, in their order. Neighbouring chunks are one range, as long as it has
    /// at most `most` bytes.
    pub fn ranges(&self, most: usize) -> impl Iterator<Item = ValueRange> {
        let entries = self.plan.entries.iter();
        let mut chunks = entries
            .flat_map(|entry| self.snapshot.ranges(&self.snapshot.pieces()[entry.piece], entry.tensor))
            .peekable();
        std::iter::from_fn(move || {
            let mut range = chunks.next()?;
            while chunks.next_if(|next| range.append(next, most / size_of::<f32>())).is_some() {}
            Some(range)
        })
    }

    /// Returns the bytes of a range of values.
    pub fn values(&self, range: &ValueRange) -> &[u8] {
        self.snapshot.values(range).as_bytes()
    }

    /// Returns the snapshot's parts. The file then has no values.
    pub fn take_parts(&mut self) -> Vec<SnapshotPart> {
        self.snapshot.take_parts()
    }
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

    /// Returns the whole file, put together from ranges of at most this length.
    fn file(selection: Selection, most: usize) -> Vec<u8> {
        let image = Image::new("job", snapshot(selection), Share::WHOLE, None).unwrap();
        let ranges = image.ranges(most).map(|range| image.values(&range));
        let file = [image.header()].into_iter().chain(ranges).collect::<Vec<_>>().concat();
        assert_eq!(image.bytes(), file.len() as u64);
        file
    }

    #[test]
    fn an_image_is_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let store = CheckpointStore::open(dir.path()).unwrap();
        store.save("job", Share::WHOLE, &snapshot(Selection::All)).unwrap();
        let written = std::fs::read(store.path("job").unwrap()).unwrap();
        for most in [0, 64, 1 << 20] {
            assert_eq!(file(Selection::All, most), written, "{most}");
        }
    }

    #[test]
    fn neighbouring_chunks_are_one_range() {
        let lengths = |selection, most| {
            let image = Image::new("job", snapshot(selection), Share::WHOLE, None).unwrap();
            image.ranges(most).map(|range| image.values(&range).len()).collect::<Vec<_>>()
        };
        let weights = Selection::One(Tensor::Weights);
        assert_eq!(lengths(weights, 72), [72]);
        assert_eq!(lengths(weights, 71), [64, 8]);
        assert_eq!(
            lengths(Selection::All, 1 << 20),
            [64, 8, 64, 8],
            "each chunk has its momenta after its weights"
        );
    }

    #[test]
    fn an_image_of_one_tensor_has_its_values_alone() {
        let tensors = |selection| -> BTreeMap<String, Vec<f32>> {
            let file = file(selection, 1 << 20);
            let bytes = file.len() as u64;
            let decoded = decode(std::io::Cursor::new(file), bytes).unwrap();
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
