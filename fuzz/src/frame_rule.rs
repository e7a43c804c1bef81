//! The rule of frames on a TCP link: which span may come with which immediate. The first byte chooses the job and the end, and
//! each 8 bytes after it are a frame, or an immediate that this end posts without bytes.
//!
//! Whatever bytes the rule takes lie in the window and belong to a chunk of the job. Without a codec it is the whole chunk at its
//! place, or nothing. Each notice asks for one pull, and each chunk's first weights are left out once.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, LazyLock};

use fabric::{FrameRule, Imm, Span};
use pbox_core::{ChunkId, Expected, JobTerms, Key, Layout, LevelTerms, Members, Optimizer, Schedule, Wire};

const SGD: Optimizer = Optimizer::Sgd { learning_rate: 0.1, weight_decay: 0.0 };

/// A plain job, one with pulls, a codec, Slim-DP, and hubs as members. Four chunks; the last two are a group.
static JOBS: LazyLock<Vec<(Wire, LevelTerms)>> = LazyLock::new(|| {
    let keys = vec![Key::f32("a", [35]), Key::f32("b", [2]), Key::f32("c", [1])];
    let layout = Arc::new(Layout::new(keys, 128).expect("a layout"));
    let coded = |text: &str| LevelTerms {
        compression: Some(text.parse().expect("a codec")),
        ..LevelTerms::default()
    };
    let levels = [
        LevelTerms::default(),
        LevelTerms { schedule: Schedule::KvStore, ..LevelTerms::default() },
        coded("topk:0.25"),
        LevelTerms { members: Members::Hubs, ..LevelTerms::default() },
    ];
    let wire =
        |level| Wire::new(Arc::clone(&layout), &JobTerms { level, ..JobTerms::new(2, Vec::new(), SGD) });
    levels.into_iter().map(|level| (wire(level), level)).collect()
});

/// Reads the frames.
pub fn run(bytes: &[u8]) {
    let Some((choice, frames)) = bytes.split_first() else { return };
    let (wire, level) = &JOBS[usize::from(*choice) % JOBS.len()];
    let (at_hub, rank) = (choice & 0x80 == 0, u32::from(choice & 0x40 != 0));
    let window = if at_hub { wire.gradient_window_bytes() } else { wire.weights_window_bytes() };
    let mut rule =
        if at_hub { Expected::of_member(wire, rank) } else { Expected::of_hub(wire, level.schedule) };
    let (mut notices, mut left_out) = (HashMap::new(), HashSet::new());
    for frame in frames.chunks_exact(8) {
        let number = |at: usize| usize::from(u16::from_le_bytes([frame[at], frame[at + 1]]));
        // A little more than what there is of each.
        let (chunk, round) = (u32::from(frame[4]) % 8, u32::from(frame[5]));
        let imm = Imm(round << 24 | chunk);
        let exists = chunk < 4 || wire.group(ChunkId(chunk)).is_some();
        if frame[6] == 0 {
            rule.posted_empty(imm);
            notices.insert(chunk, round);
            continue;
        }
        let span = match frame[6] {
            1 => Span { offset: 0, bytes: 0 },
            2 if exists && at_hub => wire.gradient_span(ChunkId(chunk)),
            2 if exists => wire.weights_span(ChunkId(chunk)),
            _ => Span { offset: number(0) % (window + 8), bytes: number(2) % (window + 8) },
        };
        let has_codec = wire.framing().is_some();
        let taken = match rule.check(span, imm) {
            Ok(()) => true,
            Err(error) => {
                assert!(error.len() < 300, "{error}");
                false
            }
        };
        if !taken {
            let right = match at_hub {
                true => |wire: &Wire, chunk| wire.gradient_span(chunk),
                false => |wire: &Wire, chunk| wire.weights_span(chunk),
            };
            assert!(
                has_codec || !exists || span != right(wire, ChunkId(chunk)),
                "the right frame is refused"
            );
            if span.bytes == 0 && notices.get(&chunk) != Some(&round) {
                notices.remove(&chunk);
            }
            continue;
        }
        // The link itself looks whether an empty frame is beyond the window.
        let is_in_window = span.bytes == 0 || span.offset + span.bytes <= window;
        assert!(exists && is_in_window, "{span:?} of chunk {chunk}, in {window} bytes");
        if span.bytes == 0 && at_hub {
            let noticed = notices.remove(&chunk) == Some(round);
            let first = level.members.are_hubs() && rank > 0 && round == 0;
            assert!(noticed || (first && left_out.insert(chunk)), "nobody asked for an empty frame");
        }
    }
}
