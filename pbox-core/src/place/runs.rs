//! Runs: neighbouring chunks that one core owns. Pure functions.

use std::ops::Range;

use crate::layout::{ChunkId, Layout};

/// The longest run, in bytes. This length is enough for the memory's full speed. Runs are not longer, so that a layer
/// is spread over the cores.
pub(super) const RUN_BYTES: u64 = 512 * 1024;

/// The least number of runs for each core. With fewer runs, LPT cannot balance the cores. So a small model has shorter
/// runs.
const RUNS_PER_CORE: usize = 64;

/// Cuts pieces of a layout into runs for `cores` cores.
pub(super) fn cut(layout: &Layout, cores: usize, pieces: Vec<Range<u32>>) -> Vec<Range<u32>> {
    let all: u64 = weights(layout, &pieces).iter().sum();
    let longest = (all / (cores * RUNS_PER_CORE) as u64).min(RUN_BYTES);
    let mut runs: Vec<Range<u32>> = Vec::new();
    let mut room = 0;
    for unit in units(layout, pieces) {
        let needed = bytes(layout, &unit);
        match runs.last_mut().filter(|run| run.end == unit.start && needed <= room) {
            Some(run) => run.end = unit.end,
            None => {
                runs.push(unit);
                room = longest;
            }
        }
        room = room.saturating_sub(needed);
    }
    runs
}

/// Returns the groups and single chunks of these pieces.
pub(super) fn units(layout: &Layout, pieces: Vec<Range<u32>>) -> impl Iterator<Item = Range<u32>> {
    let mut groups = layout.groups().iter().peekable();
    let mut chunks = pieces.into_iter().flatten().peekable();
    std::iter::from_fn(move || {
        let start = chunks.next()?;
        while groups.next_if(|group| group.end <= start).is_some() {}
        let group = groups.peek().filter(|group| group.contains(&start));
        let (mut end, longest) = (start + 1, group.map_or(start + 1, |group| group.end));
        while chunks.next_if(|&next| next == end && next < longest).is_some() {
            end += 1;
        }
        Some(start..end)
    })
}

/// Returns the bytes of each of these ranges of chunks.
pub(super) fn weights(layout: &Layout, ranges: &[Range<u32>]) -> Vec<u64> {
    ranges.iter().map(|range| bytes(layout, range)).collect()
}

pub(super) fn bytes(layout: &Layout, range: &Range<u32>) -> u64 {
    range.clone().map(|id| layout.chunk(ChunkId(id)).span.bytes as u64).sum()
}
