//! A checkpoint file in the memory of a snapshot, which is sent to clients and never written to a disk. Its values may be rounded
//! to 16 bits.
//!
//! ```text
//!   a range as f32:   [ value 0 ][ value 1 ][ value 2 ][ value 3 ]
//!   the same as bf16: [  0 |  1 ][  2 |  3 ][      not sent      ]
//! ```
//!
//! The digest comes before the values, and bytes that were sent cannot be changed. So the digest is computed before the
//! first byte is sent.
//!
//! Owned by the thread that makes it. Must not depend on the clients.

use checkpoint_file::{DIGEST_AT, DIGEST_BYTES, Plan, UnusableKeys, digest_text};
use pbox_core::codec::round;
use pbox_core::kernels::Kernels;
use pbox_core::{Dtype, Share, Snapshot, SnapshotPart, ValueRange};
use xxhash_rust::xxh3::Xxh3;
use zerocopy::IntoBytes;

/// The number of values that are rounded at a time. They stay in the core's cache.
const ROUNDED: usize = 4096;

/// A checkpoint file whose values are a snapshot's.
#[derive(Debug)]
pub(crate) struct Image {
    plan: Plan,
    snapshot: Snapshot,
    /// The element type of the file.
    dtype: Dtype,
    /// The most values of a range.
    most: usize,
}

impl Image {
    /// Makes a file with the tensors of the snapshot, for the job of this name or for a hub's part of the job. In a
    /// part, `run` distinguishes this job from other jobs with the same name. A range has at most `most` values, or is
    /// one chunk. The values are rounded to `dtype`, unless a finite value would become infinite.
    pub fn new(
        job: &str,
        snapshot: Snapshot,
        (share, run): (Share, Option<String>),
        dtype: Dtype,
        most: usize,
    ) -> Result<Self, UnusableKeys> {
        let plan = Plan::new(job, &snapshot, share, run.clone(), dtype)?;
        let mut image = Image { plan, snapshot, dtype, most };
        let ranges: Vec<ValueRange> = image.ranges().collect();
        if !image.fits(&ranges) {
            image.plan = Plan::new(job, &image.snapshot, share, run, Dtype::F32)?;
            image.dtype = Dtype::F32;
        }
        let mut hash = Xxh3::new();
        hash.update(image.header());
        for range in ranges {
            image.round(&range);
            hash.update(image.values(&range));
        }
        image.plan.header[DIGEST_AT..][..DIGEST_BYTES].copy_from_slice(digest_text(&hash).as_bytes());
        Ok(image)
    }

    /// Whether the file's type has all finite values in these ranges.
    fn fits(&self, ranges: &[ValueRange]) -> bool {
        if self.dtype == Dtype::F32 {
            return true;
        }
        // The fold has no early end, so that the compiler uses vector instructions. A fold over the values' bits as
        // integers took four times as long.
        let size = |value: &f32| if value.is_finite() { value.abs() } else { 0.0 };
        let largest = |range| self.snapshot.values(range).iter().map(size).fold(0.0, f32::max);
        ranges.iter().all(|range| self.dtype.can_hold(largest(range)))
    }

    /// Rounds the values of a range to the file's type. The first bytes of the range get the elements.
    fn round(&mut self, range: &ValueRange) {
        if self.dtype == Dtype::F32 {
            return;
        }
        let values = self.snapshot.values_mut(range);
        let mut block = [0.0; ROUNDED];
        for at in (0..values.len()).step_by(ROUNDED) {
            let block = &mut block[..(values.len() - at).min(ROUNDED)];
            block.copy_from_slice(&values[at..][..block.len()]);
            // The elements are shorter than the values, so they replace no value of a later block.
            let elements = &mut values.as_mut_bytes()[at * self.dtype.bytes()..];
            round(Kernels::detect(), block, self.dtype, &mut elements[..block.len() * self.dtype.bytes()]);
        }
    }

    /// Returns the length of the file.
    pub fn bytes(&self) -> u64 {
        self.plan.file_bytes
    }

    /// Returns the length of all values in the file.
    pub fn value_bytes(&self) -> u64 {
        self.bytes() - self.header().len() as u64
    }

    /// Returns the beginning of the file, up to its first value.
    pub fn header(&self) -> &[u8] {
        &self.plan.header
    }

    /// Returns the digest of the file, which no other file has.
    pub fn digest(&self) -> [u8; DIGEST_BYTES] {
        self.header()[DIGEST_AT..][..DIGEST_BYTES].try_into().expect("as many bytes")
    }

    /// Returns the element type of the values.
    pub fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// Returns the ranges of values that follow the header, in their order. Neighbouring chunks are one range.
    pub fn ranges(&self) -> impl Iterator<Item = ValueRange> {
        let entries = self.plan.entries.iter();
        let mut chunks = entries
            .flat_map(|entry| self.snapshot.ranges(&self.snapshot.pieces()[entry.piece], entry.tensor))
            .peekable();
        std::iter::from_fn(move || {
            let mut range = chunks.next()?;
            while chunks.next_if(|next| range.append(next, self.most)).is_some() {}
            Some(range)
        })
    }

    /// Returns the elements of a range, as the file has them.
    pub fn values(&self, range: &ValueRange) -> &[u8] {
        let values = self.snapshot.values(range);
        &values.as_bytes()[..values.len() * self.dtype.bytes()]
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

    use checkpoint_file::{ValuesFrom, decode, decode_as};
    use fabric::Slab;
    use half::{bf16, f16};
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

    /// Returns a snapshot of one key's weights, in chunks of 64 bytes.
    fn of_weights(weights: &[f32]) -> Snapshot {
        let optimizer = Optimizer::Sgd { learning_rate: 0.5, weight_decay: 0.0 };
        let layout = Arc::new(Layout::new(vec![Key::f32("a", [weights.len() as u64])], 64).unwrap());
        let mut values = Slab::zeroed("test", weights.len()).unwrap();
        values.as_mut_slice().copy_from_slice(weights);
        let chunks = layout.chunks().len();
        let chunks = (0..chunks as u32).map(ChunkId).collect();
        let steps = vec![2; layout.chunks().len()];
        let part = SnapshotPart { chunks, values, steps, squares: None, norm_mean: None };
        Snapshot::new(layout, optimizer, Round(3), vec![(Round(0), Numbers::new(optimizer))], vec![part])
            .unwrap()
    }

    fn bytes_of(image: &Image) -> Vec<u8> {
        let ranges: Vec<_> = image.ranges().collect();
        let ranges = ranges.iter().map(|range| image.values(range));
        let file = [image.header()].into_iter().chain(ranges).collect::<Vec<_>>().concat();
        assert_eq!(image.bytes(), file.len() as u64);
        file
    }

    /// Returns the whole file, put together from ranges of at most this number of values.
    fn file(selection: Selection, dtype: Dtype, most: usize) -> Vec<u8> {
        bytes_of(&Image::new("job", snapshot(selection), (Share::WHOLE, None), dtype, most).unwrap())
    }

    #[test]
    fn an_image_is_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let store = CheckpointStore::open(dir.path()).unwrap();
        store.save("job", Share::WHOLE, &snapshot(Selection::All)).unwrap();
        let written = std::fs::read(store.path("job").unwrap()).unwrap();
        for most in [0, 16, 1 << 20] {
            assert_eq!(file(Selection::All, Dtype::F32, most), written, "{most}");
        }
    }

    #[test]
    fn neighbouring_chunks_are_one_range() {
        let lengths = |selection, dtype, most| {
            let image = Image::new("job", snapshot(selection), (Share::WHOLE, None), dtype, most).unwrap();
            image.ranges().map(|range| image.values(&range).len()).collect::<Vec<_>>()
        };
        let weights = Selection::One(Tensor::Weights);
        assert_eq!(lengths(weights, Dtype::F32, 18), [72]);
        assert_eq!(lengths(weights, Dtype::F32, 17), [64, 8]);
        assert_eq!(lengths(weights, Dtype::BF16, 18), [36]);
        assert_eq!(
            lengths(Selection::All, Dtype::F32, 1 << 20),
            [64, 8, 64, 8],
            "each chunk has its momenta after its weights"
        );
    }

    #[test]
    fn an_image_of_one_tensor_has_its_values_alone() {
        let tensors = |selection| -> BTreeMap<String, Vec<f32>> {
            let file = file(selection, Dtype::F32, 1 << 20);
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

    /// Returns the type and the elements of the one tensor of a snapshot with these weights, as a client that wants
    /// this type gets them.
    fn sent(weights: &[f32], dtype: Dtype, most: usize) -> (Dtype, Vec<u8>) {
        let image = Image::new("job", of_weights(weights), (Share::WHOLE, None), dtype, most).unwrap();
        let file = bytes_of(&image);
        let bytes = file.len() as u64;
        let decoded = decode_as(std::io::Cursor::new(file), bytes, dtype, ValuesFrom::File).unwrap();
        let tensor = decoded.elements().map(|(tensor, bytes)| (tensor.dtype, bytes.to_vec())).next();
        tensor.unwrap()
    }

    #[test]
    fn values_are_rounded_in_place() {
        let values: Vec<f32> = (0..10_001).map(|n| (n as f32).sin() * 1.1_f32.powi(n % 100)).collect();
        let bf16s: Vec<u8> = values.iter().flat_map(|&value| bf16::from_f32(value).to_le_bytes()).collect();
        let f16s: Vec<u8> = values.iter().flat_map(|&value| f16::from_f32(value).to_le_bytes()).collect();
        let f32s: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        for (dtype, expected) in [(Dtype::BF16, &bf16s), (Dtype::F16, &f16s), (Dtype::F32, &f32s)] {
            for most in [0, 1000, 1 << 20] {
                let (of, elements) = sent(&values, dtype, most);
                assert!(of == dtype && elements == *expected, "{of:?} {most}");
            }
        }
    }

    #[test]
    fn values_that_would_become_infinite_are_sent_as_they_are() {
        let types = |weights: &[f32]| [Dtype::BF16, Dtype::F16].map(|dtype| sent(weights, dtype, 0).0);
        assert_eq!(types(&[f32::INFINITY, -65_519.0, f32::NAN]), [Dtype::BF16, Dtype::F16]);
        assert_eq!(types(&[1.0, -65_520.0]), [Dtype::BF16, Dtype::F32]);
        assert_eq!(types(&[1.0, f32::MAX]), [Dtype::F32; 2]);
        assert_eq!(sent(&[f32::MAX], Dtype::BF16, 0).1, f32::MAX.to_le_bytes());
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
