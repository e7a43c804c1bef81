//! The chunks of a shard: where each chunk lies in the windows, in the memory that the hub keeps for it, and in a
//! snapshot.
//!
//! Plain data, made once. Does not depend on values.

use std::ops::Range;

use fabric::Span;

use crate::kernels::Tensors;
use crate::layout::{ChunkId, Dtype, KeyId};
use crate::wire::Wire;

/// One chunk of a shard.
#[derive(Debug)]
pub(crate) struct Chunk {
    pub id: ChunkId,
    /// The key. For neighbours that are joined into one chunk, the key of the first neighbour.
    pub key: KeyId,
    /// The place in gradient windows.
    pub push: Span,
    /// The place in weights windows.
    pub span: Span,
    /// The length of the chunk's values in a window, without frames.
    pub bytes: usize,
    pub elements: usize,
    /// The type of the weights at the hub.
    pub dtype: Dtype,
    /// The start of the chunk's kept values: its master weights and state, in f32.
    pub kept: usize,
    /// The range of the chunk's elements among all elements of the shard. A snapshot has the chunks in this order.
    pub of_shard: Range<usize>,
    /// The multipliers of the job's terms.
    pub lr_mult: f32,
    pub wd_mult: f32,
}

impl Chunk {
    /// Returns the chunks with these ids, in a shard that keeps these tensors.
    pub fn of_shard(tensors: &Tensors, wire: &Wire, ids: &[ChunkId]) -> Vec<Chunk> {
        let layout = wire.layout();
        let (mut kept, mut begin) = (0, 0);
        let chunk = |&id| {
            let chunk = layout.chunk(id);
            let (key, of) = (&layout.keys()[chunk.key.index()], chunk.key);
            let dtype = if wire.framing().is_some() { Dtype::F32 } else { key.dtype };
            let elements = chunk.span.bytes / key.dtype.bytes();
            let of_shard = begin..begin + elements;
            begin = of_shard.end;
            kept += elements * tensors.kept_per_element(dtype);
            Chunk {
                id,
                key: of,
                push: wire.gradient_span(id),
                span: wire.weights_span(id),
                bytes: chunk.span.bytes,
                elements,
                dtype,
                kept: kept - elements * tensors.kept_per_element(dtype),
                of_shard,
                lr_mult: key.lr_mult,
                wd_mult: key.wd_mult,
            }
        };
        ids.iter().map(chunk).collect()
    }

    /// Joins neighbouring chunks into one chunk of this id, if one step of the joined chunk has the same result as a
    /// step of each neighbour. The neighbours' values must lie side by side in every window and in the kept values,
    /// with one type and one learning rate. With several kept values per element, the values would lie chunk by chunk,
    /// so an element may have at most one kept value. A step must not depend on the number of steps, because the
    /// neighbours may have made different numbers of steps.
    pub fn joined(tensors: &Tensors, id: ChunkId, chunks: &[Chunk]) -> Option<Chunk> {
        let (first, last) = (chunks.first()?, chunks.last()?);
        let follows = |pair: &[Chunk]| {
            let (one, next) = (&pair[0], &pair[1]);
            one.push.end() == Some(next.push.offset)
                && one.span.end() == Some(next.span.offset)
                && one.of_shard.end == next.of_shard.start
                && (one.dtype, one.lr_mult, one.wd_mult) == (next.dtype, next.lr_mult, next.wd_mult)
        };
        let joins = tensors.kept_per_element(first.dtype) <= 1 && !tensors.optimizer().uses_steps();
        let joins = joins && chunks.windows(2).all(follows);
        joins.then(|| Chunk {
            id,
            push: first.push.to(last.push),
            span: first.span.to(last.span),
            bytes: chunks.iter().map(|chunk| chunk.bytes).sum(),
            elements: chunks.iter().map(|chunk| chunk.elements).sum(),
            of_shard: first.of_shard.start..last.of_shard.end,
            ..*first
        })
    }
}
