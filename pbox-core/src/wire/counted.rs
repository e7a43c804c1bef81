//! Sums that a hub pushes to a hub above. A sum has a chunk's values, then a cache line with the number of gradients
//! in the sum.
//!
//! Pure functions of the layout and of bytes, used at both ends. The bytes belong to another process, and may change during
//! a read.

use fabric::Span;

use crate::layout::{ChunkId, Layout};

/// The length of a count in bytes: a cache line, so that the next chunk's values are aligned.
const LINE: usize = 64;

/// The limit on the gradients in a sum.
pub const MAX_GRADIENTS: u32 = 1 << 20;

/// Returns the size of a gradient window for sums.
pub(super) fn window_bytes(layout: &Layout) -> usize {
    layout.window_bytes() + layout.chunks().len() * LINE
}

/// Returns a chunk's span in a gradient window for sums: its values, and the cache line after them.
pub(super) fn span(layout: &Layout, chunk: ChunkId) -> Span {
    let values = layout.chunk(chunk).span;
    let before = chunk.index() * LINE;
    Span { offset: values.offset + before, bytes: values.bytes.next_multiple_of(LINE) + LINE }
}

/// Returns the part of a chunk's span that holds its count.
pub fn line(span: Span) -> Span {
    Span { offset: span.offset + span.bytes - LINE, bytes: LINE }
}

/// Reads the number of gradients from a chunk's bytes.
///
/// # Errors
/// Returns the number, if it is above the limit of a sum.
pub fn read(bytes: &[u8]) -> Result<u32, u32> {
    let line = bytes.last_chunk::<LINE>().expect("the bytes of a sum end in a cache line");
    let count = u32::from_le_bytes(*line.first_chunk().expect("a cache line has more bytes"));
    if (1..=MAX_GRADIENTS).contains(&count) { Ok(count) } else { Err(count) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::Key;

    #[test]
    fn sums_are_disjoint_and_aligned() {
        let keys = vec![Key::f32("a", [3]), Key::f32("b", [100]), Key::f32("c", [1])];
        let layout = Layout::new(keys, 128).unwrap();
        let mut end = 0;
        for (id, chunk) in (0..).zip(layout.chunks()) {
            let span = span(&layout, ChunkId(id));
            assert!(span.offset >= end && span.offset.is_multiple_of(64), "{id}");
            assert!(
                line(span).offset >= span.offset + chunk.span.bytes,
                "{id}: the line is behind the values"
            );
            end = span.end().unwrap();
            assert_eq!(line(span).end(), Some(end));
        }
        assert_eq!(end, window_bytes(&layout));
    }

    #[test]
    fn a_count_that_no_sum_can_have_is_seen() {
        let bytes = |count: u32| [&[9; 64], &count.to_le_bytes()[..], &[7; 60]].concat();
        assert_eq!(
            [1, 77, MAX_GRADIENTS].map(|count| read(&bytes(count))),
            [Ok(1), Ok(77), Ok(MAX_GRADIENTS)]
        );
        assert_eq!([0, MAX_GRADIENTS + 1].map(|count| read(&bytes(count))), [Err(0), Err(MAX_GRADIENTS + 1)]);
    }
}
