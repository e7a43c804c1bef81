//! The rule for frames on a TCP link: the spans that are allowed with each immediate. The first byte chooses the job,
//! and which end of the link is tested. Each further 8 bytes are a chunk's frame, or a frame with a hub's part of the
//! gradient norm. Eight bytes may also be an immediate that this end posts without bytes.
//!
//! All bytes that the rule accepts lie in the window and belong to a chunk of the job. Without a codec, a frame has the
//! whole chunk at its span, or no bytes. Each notice allows one pull. The first weights of each chunk may be left out,
//! but only once. Bytes that were sent ahead of their push are not sent again with it.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, LazyLock};

use fabric::{FrameRule, Imm, Span};
use pbox_core::{
    ChunkId, Content, Expected, Immediate, JobTerms, Key, Layout, LevelTerms, Members, Optimizer, Placement,
    Round, Schedule, Share, Wire,
};

const SGD: Optimizer = Optimizer::Sgd { learning_rate: 0.1, weight_decay: 0.0 };

/// The jobs: a plain job, one with pulls, one with a codec, one with hubs as members, one with Slim-DP, and one
/// of two hubs that clip by the norm of all gradients. Each has four chunks, of which the last two are a group.
static JOBS: LazyLock<Vec<(Wire, JobTerms)>> = LazyLock::new(|| {
    let keys = vec![Key::f32("a", [35]), Key::f32("b", [2]), Key::f32("c", [1])];
    let layout = Arc::new(Layout::new(keys, 128).expect("a layout"));
    let job = |level| JobTerms { level, ..JobTerms::new(2, Vec::new(), SGD) };
    let coded = |text: &str| {
        job(LevelTerms { compression: Some(text.parse().expect("a codec")), ..LevelTerms::default() })
    };
    let jobs = [
        job(LevelTerms::default()),
        job(LevelTerms { schedule: Schedule::KvStore, ..LevelTerms::default() }),
        coded("topk:0.25"),
        job(LevelTerms { members: Members::Hubs, ..LevelTerms::default() }),
        coded("slim:0.2:0.1:50:none:keys"),
        JobTerms { clip_norm: Some(1.0), hubs: 2, ..job(LevelTerms::default()) },
    ];
    jobs.into_iter().map(|terms| (Wire::new(Arc::clone(&layout), &terms), terms)).collect()
});

/// Returns the placement of a job's chunks on its hubs, with a core each.
fn placement(wire: &Wire, hubs: u32) -> Arc<Placement> {
    let shares = (0..hubs).map(|hub| Share { hubs, hub, ..Share::WHOLE });
    let placed = shares.map(|share| Placement::of_share(wire.layout(), Schedule::Sliced, share, 1));
    Arc::new(Placement::over_hubs(&placed.collect::<Vec<_>>()))
}

/// Reads the frames.
pub fn run(bytes: &[u8]) {
    let Some((choice, frames)) = bytes.split_first() else { return };
    let (wire, JobTerms { level, hubs, .. }) = &JOBS[usize::from(*choice) % JOBS.len()];
    let (at_hub, rank) = (choice & 0x80 == 0, u32::from(choice & 0x40 != 0));
    let window = if at_hub { wire.gradient_window_bytes() } else { wire.weights_window_bytes() };
    let rule = if at_hub { Expected::of_member(wire, rank) } else { Expected::of_hub(wire, level.schedule) };
    let (placement, core) = (placement(wire, *hubs), usize::from(*hubs > 1 && choice & 0x20 != 0));
    let mut rule = rule.on_core(&placement, core);
    let is_of_core = |chunk: ChunkId| {
        let mut chunks = wire.group(chunk).unwrap_or(chunk.0..chunk.0 + 1);
        chunks.all(|chunk| placement.owner(ChunkId(chunk)) == core)
    };
    let (mut notices, mut ahead, mut left_out) = (HashMap::new(), HashMap::new(), HashSet::new());
    for frame in frames.chunks_exact(8) {
        let number = |at: usize| usize::from(u16::from_le_bytes([frame[at], frame[at + 1]]));
        // The numbers may be a little too large for existing chunks and rounds.
        let (chunk, round) = (u32::from(frame[4]) % 8, u32::from(frame[5]));
        let line = (frame[4] & 0x80 != 0).then_some(chunk as usize);
        let imm = match line {
            None => Imm(round << 24 | chunk),
            Some(hub) => Immediate::line(hub, Round(round)).encode(),
        };
        let Immediate { round_bits, content, .. } = Immediate::decode(imm);
        let exists = line.is_none() && (chunk < 4 || wire.group(ChunkId(chunk)).is_some());
        if frame[6] == 0 {
            rule.posted_empty(imm);
            if content == Content::Gradient && line.is_none() {
                notices.insert(chunk, round_bits);
            }
            continue;
        }
        let of_line = line.map(|hub| match at_hub {
            true => wire.gradient_line(hub, Round(round)),
            false => wire.weights_line(hub, Round(round)),
        });
        let span = match (frame[6], of_line) {
            (1, _) => Span { offset: 0, bytes: 0 },
            (2, Some(line)) => line,
            (2, None) if exists && at_hub => wire.gradient_span(ChunkId(chunk)),
            (2, None) if exists => wire.weights_span(ChunkId(chunk)),
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
        if let Some(hub) = line {
            // A hub sends its part of the norm over its own links, and members pass the part on over the links to the
            // other hubs.
            let may_come = wire.hubs().get(hub).is_some_and(|&first| is_of_core(first) != at_hub);
            assert_eq!(
                taken,
                may_come && Some(span) == of_line,
                "the part of hub {hub} over a link of hub {core}"
            );
            continue;
        }
        if !taken {
            let right = match at_hub {
                true => |wire: &Wire, chunk| wire.gradient_span(chunk),
                false => |wire: &Wire, chunk| wire.weights_span(chunk),
            };
            // The content `Nothing` has no bytes. In these jobs, no sum and no answer is sent ahead of a push.
            let may_come = match content {
                Content::Gradient | Content::Weights => true,
                Content::Nothing => false,
                Content::Ahead => at_hub && !level.members.are_hubs(),
            };
            assert!(
                has_codec
                    || !exists
                    || !is_of_core(ChunkId(chunk))
                    || !may_come
                    || span != right(wire, ChunkId(chunk)),
                "the right frame is refused"
            );
            if span.bytes == 0 && at_hub && content == Content::Gradient {
                // A refused empty frame removes the state that does not fit the frame: bytes that arrived before
                // their push, and a notice of another round.
                ahead.remove(&chunk);
                if notices.get(&chunk) != Some(&round_bits) {
                    notices.remove(&chunk);
                }
            }
            continue;
        }
        // The link itself checks whether an empty frame is beyond the window.
        let is_in_window = span.bytes == 0 || span.offset + span.bytes <= window;
        assert!(exists && is_in_window, "{span:?} of chunk {chunk}, in {window} bytes");
        assert!(is_of_core(ChunkId(chunk)), "chunk {chunk}, which another core owns");
        if !at_hub {
            continue;
        }
        match (content, span.bytes) {
            (Content::Gradient, 0) => {
                let was_ahead = ahead.remove(&chunk) == Some(round_bits);
                assert!(
                    was_ahead || notices.remove(&chunk) == Some(round_bits),
                    "nobody asked for an empty frame"
                );
            }
            (Content::Weights, 0) => {
                let first = level.members.are_hubs() && rank > 0 && round_bits == 0;
                assert!(first && left_out.insert(chunk), "weights come with their bytes");
            }
            (Content::Nothing, bytes) => {
                assert!(bytes == 0 || level.members.are_hubs(), "nothing has no bytes")
            }
            (Content::Ahead, bytes) => {
                assert!(bytes > 0 && !has_codec && !level.members.are_hubs(), "only bare gradients");
                ahead.insert(chunk, round_bits);
            }
            _ => {}
        }
        if content != Content::Ahead {
            ahead.remove(&chunk);
        }
    }
}
