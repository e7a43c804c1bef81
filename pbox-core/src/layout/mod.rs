//! The layout of a window: the span of each key, and the spans of the key's chunks. Pure functions, the same at both
//! ends.
//!
//! ```text
//!   key 0                      key 1      key 2
//!   [chunk 0][chunk 1][chunk 2][chunk 3 ] [chunk 4][chunk 5]
//!   each key starts at a multiple of 64 bytes; a key's chunks are contiguous, so that cutting it copies nothing
//! ```
//!
//! A *group* consists of neighbouring small keys that are together at most as long as a chunk. If the keys are pushed
//! together, one post carries them all. The ids of groups follow the ids of chunks.

mod chunk;
mod chunk_size;
mod key;
pub mod manifest;

use std::ops::Range;

use fabric::Span;

pub(crate) use chunk::LINES;
pub use chunk::{ChunkId, Content, Immediate, MAX_CHUNKS, Round};
pub use chunk_size::default_chunk_bytes;
pub use key::{Dtype, Key, KeyId};

/// The size of a chunk, except in [large models](default_chunk_bytes): 8192 f32, PHub's choice (section 2). It is small
/// enough to spread a layer over all cores, and large enough to keep a NIC busy.
pub const DEFAULT_CHUNK_BYTES: usize = 32 * 1024;

/// The alignment of keys, in bytes: a cache line, so that two owners never share a cache line.
const KEY_ALIGN: usize = 64;

/// One chunk: the unit that one core owns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// The key.
    pub key: KeyId,
    /// The bytes of the chunk, at the same offset in every window of the job.
    pub span: Span,
}

/// The keys of a job, cut into chunks and laid out in a window.
#[derive(Clone, Debug, PartialEq)]
pub struct Layout {
    keys: Vec<Key>,
    key_spans: Vec<Span>,
    key_chunks: Vec<Range<u32>>,
    chunks: Vec<Chunk>,
    /// The chunks of each group, ascending.
    groups: Vec<Range<u32>>,
    /// The span of each group, from its first chunk to the end of its last chunk.
    group_spans: Vec<Span>,
    chunk_bytes: usize,
    window_bytes: usize,
}

/// An error: the keys cannot be laid out.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum LayoutError {
    /// The chunk size is out of its range.
    #[error("chunk size {seen} bytes: expected a multiple of 64, from 64 to 1 GiB; 32768 is the default")]
    ChunkBytes {
        /// The size that was asked for.
        seen: usize,
    },
    /// The manifest has no keys.
    #[error("the manifest has no keys; give at least one tensor")]
    NoKeys,
    /// The size of a key is zero, or overflows.
    #[error(
        "key {name:?} of shape {shape:?} has no usable size; every extent must be at least 1 and the product must fit"
    )]
    KeySize {
        /// The key.
        name: String,
        /// The shape.
        shape: Vec<u64>,
    },
    /// There are more chunks than an immediate can number.
    #[error(
        "the model needs {chunks} chunks of {chunk_bytes} bytes, at most {MAX_CHUNKS} are allowed; use larger chunks"
    )]
    TooManyChunks {
        /// The number of chunks that were counted so far.
        chunks: u64,
        /// The chunk size.
        chunk_bytes: usize,
    },
}

impl Layout {
    /// Lays `keys` out in chunks of at most `chunk_bytes`.
    pub fn new(keys: Vec<Key>, chunk_bytes: usize) -> Result<Self, LayoutError> {
        if chunk_bytes == 0 || !chunk_bytes.is_multiple_of(KEY_ALIGN) || chunk_bytes > chunk_size::LARGEST {
            return Err(LayoutError::ChunkBytes { seen: chunk_bytes });
        }
        if keys.is_empty() {
            return Err(LayoutError::NoKeys);
        }
        let mut layout = Layout {
            key_spans: Vec::with_capacity(keys.len()),
            key_chunks: Vec::with_capacity(keys.len()),
            keys: Vec::new(),
            chunks: Vec::new(),
            groups: Vec::new(),
            group_spans: Vec::new(),
            chunk_bytes,
            window_bytes: 0,
        };
        for (index, key) in keys.iter().enumerate() {
            layout.append(KeyId(index as u32), key)?;
        }
        layout.keys = keys;
        layout.groups = layout.find_groups();
        layout.group_spans = layout.groups.iter().map(|chunks| layout.hull(chunks.clone())).collect();
        Ok(layout)
    }

    /// Lays `keys` out. The spans of keys do not depend on the chunk size.
    pub fn of_keys(keys: Vec<Key>) -> Result<Self, LayoutError> {
        Self::new(keys, 1 << 30)
    }

    /// Returns a layout without keys, for a job whose model was forgotten.
    pub fn none() -> Self {
        Layout {
            key_spans: Vec::new(),
            key_chunks: Vec::new(),
            keys: Vec::new(),
            chunks: Vec::new(),
            groups: Vec::new(),
            group_spans: Vec::new(),
            chunk_bytes: KEY_ALIGN,
            window_bytes: 0,
        }
    }

    fn append(&mut self, id: KeyId, key: &Key) -> Result<(), LayoutError> {
        let size_error = || LayoutError::KeySize { name: key.name.clone(), shape: key.shape.clone() };
        let bytes = key.bytes().filter(|&bytes| bytes > 0).ok_or_else(size_error)?;
        let chunk_bytes = self.chunk_bytes;
        let first = self.chunks.len() as u64;
        let chunks = first + bytes.div_ceil(chunk_bytes as u64);
        if chunks > u64::from(MAX_CHUNKS) {
            return Err(LayoutError::TooManyChunks { chunks, chunk_bytes });
        }
        // There are at most MAX_CHUNKS chunks of 1 GiB, so the sums below fit in 64 bits.
        let (offset, bytes) = (self.window_bytes, bytes as usize);
        for start in (0..bytes).step_by(chunk_bytes) {
            let span = Span { offset: offset + start, bytes: chunk_bytes.min(bytes - start) };
            self.chunks.push(Chunk { key: id, span });
        }
        self.key_spans.push(Span { offset, bytes });
        self.key_chunks.push(first as u32..chunks as u32);
        self.window_bytes = (offset + bytes).next_multiple_of(KEY_ALIGN);
        Ok(())
    }

    /// Finds the groups. A group has neighbouring keys of one chunk each, and as many of them as fit into one chunk
    /// together. The search begins at the first key.
    fn find_groups(&self) -> Vec<Range<u32>> {
        let mut groups: Vec<Range<u32>> = Vec::new();
        for chunks in self.key_chunks.iter().filter(|chunks| chunks.len() == 1) {
            let fits = |group: &&mut Range<u32>| {
                group.end == chunks.start && self.hull(group.start..chunks.end).bytes <= self.chunk_bytes
            };
            match groups.last_mut().filter(fits) {
                Some(group) => group.end = chunks.end,
                None => groups.push(chunks.clone()),
            }
        }
        groups.retain(|group| group.len() > 1);
        groups.truncate(MAX_CHUNKS as usize - self.chunks.len());
        groups
    }

    /// Returns the span from the start of the first chunk in this range to the end of the last chunk.
    fn hull(&self, Range { start, end }: Range<u32>) -> Span {
        self.chunk(ChunkId(start)).span.to(self.chunk(ChunkId(end - 1)).span)
    }

    /// Returns the keys, in the order of their ids.
    pub fn keys(&self) -> &[Key] {
        &self.keys
    }

    /// Returns a key's place in the window.
    pub fn key_span(&self, key: KeyId) -> Span {
        self.key_spans[key.index()]
    }

    /// Returns the chunks of a key, in order.
    pub fn key_chunks(&self, key: KeyId) -> Range<u32> {
        self.key_chunks[key.index()].clone()
    }

    /// Returns all chunks, in the order of their ids.
    pub fn chunks(&self) -> &[Chunk] {
        &self.chunks
    }

    /// Returns the chunk with this id. Panics if no chunk has this id.
    pub fn chunk(&self, chunk: ChunkId) -> Chunk {
        self.chunks[chunk.index()]
    }

    /// Returns the chunks of each group, by the group's number.
    pub fn groups(&self) -> &[Range<u32>] {
        &self.groups
    }

    /// Returns the id of a group with this number.
    pub fn group_id(&self, number: usize) -> ChunkId {
        ChunkId((self.chunks.len() + number) as u32)
    }

    /// Returns the chunks of the group with this id. `None` if it is not the id of a group.
    pub fn group(&self, id: ChunkId) -> Option<Range<u32>> {
        self.groups.get(id.index().checked_sub(self.chunks.len())?).cloned()
    }

    /// Returns the span of a chunk or group. Panics if no chunk or group has this id.
    pub fn span(&self, id: ChunkId) -> Span {
        match self.chunks.get(id.index()) {
            Some(chunk) => chunk.span,
            None => self.group_spans[id.index() - self.chunks.len()],
        }
    }

    /// Returns the size of the largest chunk.
    pub fn chunk_bytes(&self) -> usize {
        self.chunk_bytes
    }

    /// Returns the size of a window.
    pub fn window_bytes(&self) -> usize {
        self.window_bytes
    }

    /// Returns the size of all keys in bytes, without the padding between them.
    pub fn model_bytes(&self) -> u64 {
        self.key_spans.iter().map(|span| span.bytes as u64).sum()
    }

    /// Returns the number of elements of all keys.
    pub fn parameters(&self) -> u64 {
        self.keys.iter().zip(&self.key_spans).map(|(key, span)| (span.bytes / key.dtype.bytes()) as u64).sum()
    }

    /// Returns the largest number of elements that a chunk has.
    pub fn max_chunk_elements(&self) -> usize {
        let of_key = |(key, span): (&Key, &Span)| span.bytes.min(self.chunk_bytes) / key.dtype.bytes();
        self.keys.iter().zip(&self.key_spans).map(of_key).max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_key_is_cut_into_contiguous_chunks() {
        let layout = Layout::new(vec![Key::f32("a", [3]), Key::f32("b", [100])], 128).unwrap();
        assert_eq!(layout.key_span(KeyId(0)), Span { offset: 0, bytes: 12 });
        assert_eq!(layout.key_span(KeyId(1)), Span { offset: 64, bytes: 400 });
        assert_eq!(layout.key_chunks(KeyId(1)), 1..5);
        assert_eq!(layout.chunk(ChunkId(4)).span, Span { offset: 448, bytes: 16 });
        assert_eq!(layout.window_bytes(), 512);
    }

    #[test]
    fn impossible_sizes_are_refused() {
        let one = || vec![Key::f32("a", [1])];
        assert_eq!(Layout::new(one(), 100), Err(LayoutError::ChunkBytes { seen: 100 }));
        assert_eq!(Layout::new(one(), 0), Err(LayoutError::ChunkBytes { seen: 0 }));
        assert_eq!(Layout::new(vec![], 64), Err(LayoutError::NoKeys));
        let empty = Layout::new(vec![Key::f32("a", [4, 0])], 64).unwrap_err();
        assert!(matches!(empty, LayoutError::KeySize { .. }));
        let overflow = Layout::new(vec![Key::f32("a", [u64::MAX, 2])], 64).unwrap_err();
        assert!(matches!(overflow, LayoutError::KeySize { .. }));
        let many = Layout::new(vec![Key::f32("a", [1 << 40])], 64).unwrap_err();
        assert!(matches!(many, LayoutError::TooManyChunks { .. }));
    }

    proptest! {
        #[test]
        fn chunks_tile_the_keys(
            sizes in proptest::collection::vec(1u64..5000, 1..20),
            chunk_lines in 1usize..64,
        ) {
            let keys: Vec<Key> =
                sizes.iter().enumerate().map(|(i, &n)| Key::f32(format!("k{i}"), [n])).collect();
            let layout = Layout::new(keys, chunk_lines * 64).unwrap();
            let mut end = 0;
            for (index, size) in sizes.iter().enumerate() {
                let key = KeyId(index as u32);
                let span = layout.key_span(key);
                prop_assert!(span.offset >= end && span.offset.is_multiple_of(64));
                prop_assert_eq!(span.bytes as u64, size * 4);
                let mut at = span.offset;
                for chunk in layout.key_chunks(key) {
                    let chunk = layout.chunk(ChunkId(chunk));
                    prop_assert_eq!((chunk.key, chunk.span.offset), (key, at));
                    prop_assert!(chunk.span.bytes <= layout.chunk_bytes());
                    at += chunk.span.bytes;
                }
                end = span.offset + span.bytes;
                prop_assert_eq!(at, end);
            }
            prop_assert!(layout.window_bytes() >= end);
        }
    }
}
