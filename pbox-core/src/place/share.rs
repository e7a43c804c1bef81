//! A hub's share of a job that is spread over several hubs. First each chunk gets a hub, then a core of this hub. Pure
//! functions: every hub and every worker computes the same shares, whatever cores the hubs have.
//!
//! ```text
//!   two hubs     small keys        large ones
//!   by layer     key 0 -> hub 1    key 1: [ hub 0 | hub 1 ]    above 10^6 parameters
//!   by slices    key 0 -> hub 1    key 1: [ hub 0 | hub 1 ]    with a chunk for each hub; else parts of 4 chunks
//! ```
//!
//! If steps use the norms of keys, no key is split. So the hub that has a key also has its norms.
//!
//! If the share is by slices, all keys of a [group](Layout::group) go to one hub. A key with fewer chunks than there are
//! hubs is split into parts of at least four chunks, and each part goes to another hub. Otherwise one of 256 hubs could
//! get a layer of 255 chunks from all machines at the same time.
//!
//! The share by layer is that of the parameter server with which the papers compare (P3, section 4.1). There, tensors
//! of more than 10^6 parameters, by default, are split evenly over the servers. Every other tensor goes to one server,
//! here by LPT (the largest first, to the hub with the least load) and not at random. The share by slices spreads every
//! layer over all hubs, so that all their NICs carry the layer that is needed first. Parts are contiguous, so that a
//! hub touches only few pages of a window in addition to the pages of its own chunks.

use std::cmp::Reverse;
use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::runs::weights;
use crate::job::{JobTerms, SPLIT_ABOVE, Schedule};
use crate::layout::{ChunkId, Key, KeyId, Layout};

/// The least number of chunks in a part, for a key with fewer chunks than there are hubs.
const CHUNKS_OF_A_PART: u32 = 4;

/// One hub of a job, by its number, and the rule by which the job is split over its hubs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Share {
    /// The hub's number, from 0.
    pub hub: u32,
    /// The number of hubs.
    pub hubs: u32,
    /// The number of parameters above which a schedule by layer splits a tensor over the hubs. With `u64::MAX`, no schedule
    /// splits a tensor.
    pub split_above: u64,
}

/// The value of `split_above` with which each tensor goes to one hub as a whole.
pub const WHOLE_KEYS: u64 = u64::MAX;

impl Share {
    /// The share of a job's only hub.
    pub const WHOLE: Share = Share { hub: 0, hubs: 1, split_above: SPLIT_ABOVE };

    /// Returns the share of the hub with this number.
    pub fn of_hub(terms: &JobTerms, hub: u32) -> Self {
        Share { hub, hubs: terms.hubs, split_above: terms.splits_above() }
    }

    /// Whether the share is the whole job, because there is only one hub.
    pub fn is_whole(&self) -> bool {
        self.hubs == 1
    }
}

impl std::fmt::Display for Share {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "hub {} of {}", self.hub, self.hubs)
    }
}

/// A hub's part of one key: neighbouring chunks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Piece {
    /// The key.
    pub key: KeyId,
    /// The ids of the chunks.
    pub chunks: Range<u32>,
    /// The key's elements in these chunks.
    pub elements: Range<usize>,
}

impl Share {
    /// Returns the hub's part of each key, in the order of the keys. A hub has at most one piece of a key.
    pub fn pieces(self, layout: &Layout, schedule: Schedule) -> Vec<Piece> {
        let piece = |chunks: Range<u32>| {
            let key = layout.chunk(ChunkId(chunks.start)).key;
            let (of_key, bytes) = (layout.key_span(key), layout.keys()[key.index()].dtype.bytes());
            let (first, last) = (layout.chunk(ChunkId(chunks.start)), layout.chunk(ChunkId(chunks.end - 1)));
            let at = |offset: usize| (offset - of_key.offset) / bytes;
            let elements = at(first.span.offset)..at(last.span.offset + last.span.bytes);
            Piece { key, chunks, elements }
        };
        pieces(layout, schedule, self).into_iter().map(piece).collect()
    }
}

/// Returns the chunks of a hub's share as ranges of chunk ids, ascending. No range has chunks of two keys. In a small
/// model, a hub may have no chunks.
pub fn pieces(layout: &Layout, schedule: Schedule, share: Share) -> Vec<Range<u32>> {
    if share.is_whole() {
        return (0..layout.keys().len() as u32).map(|key| layout.key_chunks(KeyId(key))).collect();
    }
    let ours = shared(layout, schedule, share).into_iter().filter(|(hub, _)| *hub == share.hub as usize);
    let mut ours: Vec<Range<u32>> = ours.flat_map(|(_, range)| by_key(layout, range)).collect();
    ours.sort_unstable_by_key(|piece| piece.start);
    ours
}

/// Returns the [pieces] of all hubs, in the order of the hubs. `share` is the share of any of the hubs.
pub fn pieces_of_all(layout: &Layout, schedule: Schedule, share: Share) -> Vec<Vec<Range<u32>>> {
    if share.is_whole() {
        return vec![pieces(layout, schedule, share)];
    }
    let mut all = vec![Vec::new(); share.hubs as usize];
    for (hub, range) in shared(layout, schedule, share) {
        all[hub].extend(by_key(layout, range));
    }
    all.iter_mut().for_each(|pieces| pieces.sort_unstable_by_key(|piece| piece.start));
    all
}

/// Returns the first chunk of each hub that owns chunks, in the order of the hubs.
pub fn first_chunks(layout: &Layout, schedule: Schedule, share: Share) -> Vec<ChunkId> {
    let mut firsts = vec![u32::MAX; share.hubs as usize];
    for (hub, range) in shared(layout, schedule, share).into_iter().filter(|(_, range)| !range.is_empty()) {
        firsts[hub] = firsts[hub].min(range.start);
    }
    firsts.into_iter().filter(|&first| first < u32::MAX).map(ChunkId).collect()
}

/// Splits each key and each group into parts, and returns the chunks of each part with the index of its hub.
fn shared(layout: &Layout, schedule: Schedule, share: Share) -> Vec<(usize, Range<u32>)> {
    let keys = (0..layout.keys().len() as u32).map(|key| layout.key_chunks(KeyId(key)));
    let Share { hubs, split_above, .. } = share;
    let parts = |chunks: &Range<u32>, key: &Key| match schedule.by_layer() {
        _ if split_above == WHOLE_KEYS => 1,
        true if key.elements().is_some_and(|elements| elements > split_above) => hubs,
        true => 1,
        false if chunks.len() >= hubs as usize => hubs,
        false => (chunks.len() as u32 / CHUNKS_OF_A_PART).max(1),
    };
    // If the share is by slices, a group of keys is distributed as one unit, so that its keys can be sent together.
    let mut groups = if schedule.by_layer() { [].iter() } else { layout.groups().iter() }.peekable();
    let mut items: Vec<(u64, Vec<Range<u32>>)> = keys
        .zip(layout.keys())
        .filter_map(|(chunks, key)| {
            while groups.next_if(|group| group.end <= chunks.start).is_some() {}
            match groups.peek().filter(|group| group.contains(&chunks.start)) {
                Some(&group) => (group.start == chunks.start).then(|| vec![group.clone()]),
                None => {
                    let parts = parts(&chunks, key);
                    Some((0..parts).map(|index| part(chunks.clone(), index, parts)).collect())
                }
            }
        })
        .map(|item: Vec<Range<u32>>| (weights(layout, &item).iter().sum(), item))
        .collect();
    items.sort_by_key(|(bytes, _)| Reverse(*bytes));
    let (mut shared, mut loads) = (Vec::new(), vec![0; hubs as usize]);
    items.into_iter().for_each(|(_, item)| shared.extend(deal(layout, item, &mut loads)));
    shared
}

/// Returns a range of chunks, which is a part of a key or a group, as ranges of one key each.
fn by_key(layout: &Layout, range: Range<u32>) -> impl Iterator<Item = Range<u32>> {
    let key = |id: u32| layout.chunk(ChunkId(id)).key;
    let longest = if range.is_empty() || key(range.start) == key(range.end - 1) { range.len() } else { 1 };
    range.clone().step_by(longest.max(1)).map(move |start| start..start + longest as u32)
}

/// Chooses a different hub for each part of one key. If one hub had two parts of a layer, the layer would wait for that
/// hub's link. The largest part goes to the hub with the least load.
fn deal(
    layout: &Layout,
    item: Vec<Range<u32>>,
    loads: &mut [u64],
) -> impl Iterator<Item = (usize, Range<u32>)> {
    let mut parts: Vec<(u64, Range<u32>)> = weights(layout, &item).into_iter().zip(item).collect();
    parts.sort_by_key(|(bytes, _)| Reverse(*bytes));
    let mut hubs: Vec<usize> = (0..loads.len()).collect();
    if parts.len() > 1 {
        hubs.sort_by_key(|&hub| loads[hub]);
    } else {
        hubs = hubs.into_iter().min_by_key(|&hub| loads[hub]).into_iter().collect();
    }
    let dealt: Vec<_> =
        parts.into_iter().zip(hubs).map(|((bytes, piece), hub)| (bytes, hub, piece)).collect();
    dealt.iter().for_each(|(bytes, hub, _)| loads[*hub] += bytes);
    dealt.into_iter().map(|(_, hub, piece)| (hub, piece))
}

/// Returns part `index` of `parts` even parts of a range.
fn part(Range { start, end }: Range<u32>, index: u32, parts: u32) -> Range<u32> {
    let at = |index: u32| start + (u64::from(end - start) * u64::from(index) / u64::from(parts)) as u32;
    at(index)..at(index + 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::Optimizer;
    use crate::models::model;
    use crate::place::{JobCores, Placement};
    use proptest::prelude::*;

    fn shares(hubs: u32) -> impl Iterator<Item = Share> {
        (0..hubs).map(move |hub| Share { hub, hubs, ..Share::WHOLE })
    }

    #[test]
    fn the_first_chunk_of_each_hub_is_the_least_of_its_pieces() {
        let keys = [3u64, 100, 8, 70, 90].map(|n| Key::f32(format!("of {n}"), [n])).to_vec();
        let layout = Layout::new(keys, 128).unwrap();
        for (hubs, schedule) in [1, 2, 3, 40].into_iter().flat_map(|hubs| Schedule::ALL.map(|s| (hubs, s))) {
            let least = |share| pieces(&layout, schedule, share).first().map(|piece| ChunkId(piece.start));
            let expected: Vec<ChunkId> = shares(hubs).filter_map(least).collect();
            let share = Share { hubs, ..Share::WHOLE };
            assert_eq!(first_chunks(&layout, schedule, share), expected, "{hubs} hubs, {schedule}");
        }
    }

    #[test]
    fn a_key_whose_norms_are_used_is_at_one_hub() {
        let terms = |optimizer| JobTerms { hubs: 3, ..JobTerms::new(2, Vec::new(), optimizer) };
        let lars = Optimizer::Lars { learning_rate: 1.0, weight_decay: 0.0, momentum: 0.0, trust: 1.0 };
        let split = |optimizer, schedule, key: KeyId, layout: &Layout| {
            let shares = (0..3).map(|hub| Share::of_hub(&terms(optimizer), hub));
            shares.flat_map(|share| share.pieces(layout, schedule)).filter(|piece| piece.key == key).count()
        };
        let keys = [2_000_000u64, 3, 100_000, 8].map(|n| Key::f32(format!("of {n}"), [n])).to_vec();
        let layout = Layout::new(keys, 1 << 15).unwrap();
        for schedule in Schedule::ALL {
            let whole = (0..4).map(|key| split(lars, schedule, KeyId(key), &layout));
            assert!(whole.eq([1; 4]), "{schedule}");
            let sgd = Optimizer::Sgd { learning_rate: 1.0, weight_decay: 0.0 };
            assert_eq!(split(sgd, schedule, KeyId(0), &layout), 3, "{schedule}");
        }
    }

    #[test]
    fn published_models_are_balanced_over_hubs() {
        for (name, schedule) in
            crate::models::MODELS.iter().flat_map(|name| Schedule::ALL.map(|s| (*name, s)))
        {
            let layout = Layout::new(model(name).unwrap().keys, 32 * 1024).unwrap();
            for hubs in [2, 4, 8] {
                let bytes = |share| weights(&layout, &pieces(&layout, schedule, share)).iter().sum::<u64>();
                let loads: Vec<u64> = shares(hubs).map(bytes).collect();
                let mean = loads.iter().sum::<u64>() as f64 / f64::from(hubs);
                let ratio = *loads.iter().max().unwrap() as f64 / mean;
                assert!(ratio < 1.06, "{name}, {schedule}, {hubs} hubs: max/mean {ratio}");
            }
        }
    }

    /// Returns the keys of a transformer with the shape of GPT-2.
    fn transformer(vocabulary: u64, positions: u64, width: u64, layers: u64) -> Vec<Key> {
        let key = |name: String, shape: &[u64]| Key::f32(name, shape);
        let norm = |name: &str| ["weight", "bias"].map(|of| key(format!("{name}.{of}"), &[width]));
        let linear = |name: &str, from: u64, to: u64| {
            [key(format!("{name}.weight"), &[from, to]), key(format!("{name}.bias"), &[to])]
        };
        let layer = |layer: u64| {
            let [n1, n2] = ["ln_1", "ln_2"].map(|name| norm(&format!("h.{layer}.{name}")));
            let of = [("attn", 1, 3), ("proj", 1, 1), ("fc", 1, 4), ("out", 4, 1)];
            let of =
                of.map(|(name, from, to)| linear(&format!("h.{layer}.{name}"), from * width, to * width));
            n1.into_iter().chain(n2).chain(of.into_iter().flatten())
        };
        let ends = [key("wte".into(), &[vocabulary, width]), key("wpe".into(), &[positions, width])];
        ends.into_iter().chain((0..layers).flat_map(layer)).chain(norm("ln_f")).collect()
    }

    #[test]
    fn many_hubs_are_balanced() {
        let published = ["resnet50", "vgg19"].map(|name| (name, model(name).unwrap().keys));
        let shaped = [
            ("BERT-large's shape", transformer(30_522, 512, 1024, 24)),
            ("GPT-2 small", transformer(50_257, 1024, 768, 12)),
            ("GPT-2 XL", transformer(50_257, 1024, 1600, 48)),
        ];
        for (name, keys) in published.into_iter().chain(shaped) {
            let layout = Layout::new(keys, 32 * 1024).unwrap();
            let with_twelve_chunks = |hubs: &u32| layout.chunks().len() as u32 >= 12 * hubs;
            for hubs in [16, 64, 128, 256, 512, 1024].into_iter().filter(with_twelve_chunks) {
                let bytes =
                    |share| weights(&layout, &pieces(&layout, Schedule::P3, share)).iter().sum::<u64>();
                let most = shares(hubs).map(bytes).max().unwrap() as f64;
                let mean = layout.chunks().iter().map(|chunk| chunk.span.bytes as f64).sum::<f64>()
                    / f64::from(hubs);
                println!("{name} over {hubs} hubs: the busiest has {:.2} of the mean", most / mean);
                assert!(most < 1.15 * mean, "{name}, {hubs} hubs: {}", most / mean);
            }
        }
    }

    #[test]
    fn groups_are_dealt_as_one_and_small_models_are_balanced() {
        let keys = (0..1000).map(|key| Key::f32(format!("k{key}"), [200 + key % 100])).collect();
        let layout = Layout::new(keys, 32 * 1024).unwrap();
        let bytes = |share| weights(&layout, &pieces(&layout, Schedule::P3, share)).iter().sum::<u64>();
        let (most, least) =
            (shares(4).map(bytes).max().unwrap() as f64, shares(4).map(bytes).min().unwrap() as f64);
        assert!(most < 1.15 * least, "{most} and {least}: at most a group apart");
        for share in shares(4) {
            let ours: Vec<u32> = pieces(&layout, Schedule::P3, share)
                .into_iter()
                .inspect(|piece| assert_eq!(piece.len(), 1))
                .flatten()
                .collect();
            for group in layout.groups() {
                let here = group.clone().filter(|id| ours.contains(id)).count();
                assert!(here == 0 || here == group.len(), "{here} of group {group:?} at {share}");
            }
        }
    }

    #[test]
    fn the_baseline_splits_what_is_large_and_nothing_else() {
        assert_eq!(Share::WHOLE.split_above, 1_000_000);
        splits_above(1_000_000);
        splits_above(20_000);
    }

    fn splits_above(split_above: u64) {
        let keys = vec![Key::f32("small", [split_above]), Key::f32("large", [split_above + 1])];
        let layout = Layout::new(keys, 4096).unwrap();
        let hubs_with = |key| {
            let chunks = layout.key_chunks(KeyId(key));
            let has = |share: &Share| {
                let share = Share { split_above, ..*share };
                pieces(&layout, Schedule::KvStore, share).iter().any(|p| chunks.contains(&p.start))
            };
            shares(4).filter(has).count()
        };
        assert_eq!((hubs_with(0), hubs_with(1)), (1, 4));
    }

    #[test]
    fn a_key_that_is_split_lies_on_every_hub() {
        let layout = Layout::new(model("sockeye").unwrap().keys, 200_000 / 64 * 64).unwrap();
        for (key, hubs) in (0..layout.keys().len() as u32).flat_map(|key| [(key, 2), (key, 4), (key, 8)]) {
            let chunks = layout.key_chunks(KeyId(key));
            let on = |share: &Share| {
                let pieces = pieces(&layout, Schedule::P3, *share);
                pieces.iter().filter(|piece| chunks.contains(&piece.start)).count()
            };
            let counts: Vec<usize> = shares(hubs).map(|share| on(&share)).collect();
            let expected = if chunks.len() >= hubs as usize { hubs as usize } else { 1 };
            assert!(counts.iter().all(|&count| count <= 1), "key {key}: {counts:?}");
            assert_eq!(counts.iter().sum::<usize>(), expected, "key {key}: {counts:?}");
        }
    }

    proptest! {
        #[test]
        fn every_chunk_is_one_hubs_and_one_cores(
            sizes in proptest::collection::vec(1u64..50_000, 1..30),
            large in proptest::option::of(1_000_001u64..2_000_000),
            chunk_lines in 1usize..600,
            cores in proptest::collection::vec(1usize..6, 1..6),
            schedule in 0..4usize,
        ) {
            let keys = sizes.iter().chain(&large).enumerate().map(|(i, &n)| Key::f32(format!("k{i}"), [n])).collect();
            let layout = Layout::new(keys, chunk_lines * 64).unwrap();
            let schedule = Schedule::ALL[schedule];
            let of = |(share, &cores)| Placement::of_share(&layout, schedule, share, cores);
            let parts: Vec<Placement> = shares(cores.len() as u32).zip(&cores).map(of).collect();
            let nodes: Vec<JobCores> = cores.iter().map(|&cores| cores.into()).collect();
            let share = Share { hubs: cores.len() as u32, ..Share::WHOLE };
            prop_assert_eq!(&Placement::of_shares(&layout, schedule, share, &nodes), &parts);
            let all = Placement::over_hubs(&parts); // panics if a chunk does not have exactly one owner
            prop_assert_eq!(all.cores(), cores.iter().sum::<usize>());
            prop_assert_eq!(all.capacities(), parts.iter().flat_map(Placement::capacities).collect::<Vec<_>>());
            for id in (0..layout.chunks().len() as u32).map(ChunkId) {
                prop_assert!(all.owner(id) < all.cores());
            }
        }
    }
}
