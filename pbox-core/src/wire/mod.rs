//! The wire: the span and the form of each chunk in a job's windows. Pure functions, the same at both ends.
//!
//! Without compression, a window has the layout of the model, and posts carry the bare values of chunks. With compression, each
//! chunk has room for two frames in both windows:
//!
//! ```text
//!   chunk 0                     chunk 1
//!   [coded frame  ][raw frame  ][coded frame  ][raw frame  ]     aligned to 64 bytes, sized for the longest
//! ```
//!
//! There are two frames because all workers of a machine read the same window. A worker that joins a running job gets a raw
//! frame, while other workers may still read the coded frame.
//!
//! If steps wait for the gradient norm, [lines](Wire::weights_line) with parts of the norm follow the chunks. Each hub that
//! steps has [`LINES`] lines, which its rounds use in turn. Gradient windows have these lines, too, if members have links
//! to several such hubs:
//!
//! ```text
//!   chunks   hub 0: [line][line][line][line]   hub 1: [line][line][line][line]     a line has 128 bytes
//! ```
//!
//! If the members of a level are hubs, a chunk of a gradient window has a sum, followed by its [count](counted):
//!
//! ```text
//!   chunk 0               chunk 1
//!   [values      ][count ][values      ][count ]     aligned to 64 bytes; a count has a cache line
//! ```

pub(crate) mod counted;
mod expected;
pub mod frame;
mod merge;

pub use expected::Expected;
pub(crate) use merge::difference;
pub use merge::{Answer, merge};

use std::ops::Range;
use std::sync::Arc;

use fabric::Span;
use zerocopy::FromBytes;

use crate::codec::{Codec, Draw};
use crate::job::{Compression, InvalidTerms, JobTerms, Members};
use crate::kernels::{Element, Tensors, typed};
use crate::layout::{ChunkId, Content, Dtype, Immediate, Key, KeyId, Layout, Round};
use crate::place::{Above, Share, first_chunks};
use crate::slim;
use crate::whole::{NormSum, Skips};
use frame::{FrameError, HEADER_BYTES, Kind};

/// Frames start on a cache line, as keys do.
const FRAME_ALIGN: usize = 64;

/// The number of lines of a hub in a window. The line of round `r` is written again only after round `r + 3` has begun.
/// By then all members that take part have read this line.
const LINES: usize = 4;

/// The rank that the hub uses for the random numbers of its answers. No worker has this rank.
const HUB: u32 = u32::MAX;

/// The spans of chunks in the windows of a job, and the form of their bytes.
#[derive(Clone, Debug)]
pub struct Wire {
    layout: Arc<Layout>,
    framing: Option<Arc<Framing>>,
    members: Members,
    has_own_weights: bool,
    has_groups: bool,
    broadcasts: bool,
    /// The first chunk of each hub that steps and owns chunks. Empty if steps wait only for the pushes of their own chunk.
    hubs: Arc<[ChunkId]>,
    /// Whether members pass each hub's part of the norm on to the other hubs.
    passes_on: bool,
    /// The rounds that are skipped because of their norm.
    skips: Skips,
}

/// The frames of a compressed job.
#[derive(Debug)]
pub struct Framing {
    compression: Compression,
    seed: u64,
    keeps_weights: bool,
    /// The number of different sets of weights that workers have: 1 if all workers have the same weights. Answers are
    /// differences from these weights.
    shadows: u32,
    codecs: Option<Codecs>,
    frames: Vec<Frames>,
    window_bytes: usize,
}

/// The codecs of a job that is compressed by codecs.
#[derive(Clone, Copy, Debug)]
pub struct Codecs {
    /// The codec of pushes.
    pub push: Codec,
    /// The codec of answers.
    pub answer: Codec,
}

/// The room for one chunk's frames, with the chunk's length and type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frames {
    /// The span of both frames, one after the other.
    pub span: Span,
    /// The length of the coded frame, which comes first, in bytes.
    pub coded_bytes: usize,
    /// The number of the chunk's values.
    pub elements: usize,
    /// The type of the values.
    pub dtype: Dtype,
}

impl Wire {
    /// Creates a wire of bare values. Windows have the layout of the model.
    pub fn plain(layout: Arc<Layout>) -> Self {
        Wire {
            layout,
            framing: None,
            members: Members::Workers,
            has_own_weights: false,
            has_groups: true,
            broadcasts: true,
            hubs: Arc::new([]),
            passes_on: false,
            skips: Skips::Never,
        }
    }

    /// Creates the wire of a job with these terms and a model of this layout.
    pub fn new(layout: Arc<Layout>, terms: &JobTerms) -> Self {
        let framing = |compression| Arc::new(Framing::new(&layout, terms, compression));
        let framing = terms.level.compression.map(framing);
        let share = Share::of_hub(terms, 0);
        let hubs = terms.finds_norms().then(|| first_chunks(&layout, terms.level.schedule, share));
        let hubs: Arc<[ChunkId]> = hubs.unwrap_or_default().into();
        Wire {
            layout,
            framing,
            members: terms.level.members,
            has_own_weights: terms.has_own_weights(),
            has_groups: terms.level.posts_groups(),
            broadcasts: terms.optimizer.keeps_weights(),
            passes_on: hubs.len() > 1,
            hubs,
            skips: Skips::of_terms(terms),
        }
    }

    /// Returns the wire for the members of a hub below other hubs. `above` says how the top hubs place chunks. A top hub
    /// sends its part of the norm in a line. This hub passes the line on to its members and to the other top hubs.
    ///
    /// # Errors
    /// Returns an error if a level above has no hub or too many hubs.
    pub fn below(self, above: &Above) -> Result<Self, String> {
        let firsts = above.first_chunks(&self.layout)?;
        let hubs = if self.hubs.is_empty() { Arc::default() } else { firsts.into() };
        Ok(Wire { hubs, passes_on: false, ..self })
    }

    /// Creates a wire like [`new`](Self::new), with the layout that the terms give.
    pub fn of_terms(terms: &JobTerms) -> Result<Self, InvalidTerms> {
        let layout = Layout::new(terms.keys.clone(), terms.chunk_bytes)?;
        if let Some(compression) = &terms.level.compression {
            compression.check_layout(&layout)?;
        }
        Ok(Wire::new(Arc::new(layout), terms))
    }

    /// Whether each worker has its own weights window.
    pub fn has_own_weights(&self) -> bool {
        self.has_own_weights
    }

    /// Whether round 0 is a broadcast of the first weights.
    pub fn broadcasts(&self) -> bool {
        self.broadcasts
    }

    /// Returns the immediate of a push in a round: of weights in the broadcast, otherwise of a gradient.
    pub fn push(&self, chunk: ChunkId, round: Round) -> Immediate {
        let is_first = self.broadcasts && round == Round(0);
        Immediate::new(chunk, round).with(if is_first { Content::Weights } else { Content::Gradient })
    }

    /// Returns the layout of the model: its keys and chunks.
    pub fn layout(&self) -> &Arc<Layout> {
        &self.layout
    }

    /// Returns the frames, if the job is compressed.
    pub fn framing(&self) -> Option<&Arc<Framing>> {
        self.framing.as_ref()
    }

    /// Returns the size of a weights window.
    pub fn weights_window_bytes(&self) -> usize {
        line(self.chunks_bytes(), self.hubs.len(), Round(0)).offset
    }

    /// Returns the size of the part of a window that has the chunks.
    fn chunks_bytes(&self) -> usize {
        self.framing.as_ref().map_or(self.layout.window_bytes(), |framing| framing.window_bytes)
    }

    /// Returns the first chunk of each hub that steps and owns chunks, if steps need the norm of a round. At each hub,
    /// the core with the hub's first chunk sends the hub's part.
    pub fn hubs(&self) -> &Arc<[ChunkId]> {
        &self.hubs
    }

    /// Returns the rounds that are skipped because of their norm.
    pub fn skips(&self) -> Skips {
        self.skips
    }

    /// Returns the span of a line in a weights window. In this line a hub sends its part of the gradient norm in a round.
    pub fn weights_line(&self, hub: usize, round: Round) -> Span {
        line(self.chunks_bytes(), hub, round)
    }

    /// Returns the span of a line in a gradient window. In this line a member passes on another hub's part.
    pub fn gradient_line(&self, hub: usize, round: Round) -> Span {
        line(self.gradients_bytes(), hub, round)
    }

    /// Returns all [lines](Self::gradient_line) of a gradient window: hub by hub, and by round. There are none if members
    /// do not [pass on](Self::passes_on) parts.
    pub fn gradient_lines(&self) -> impl Iterator<Item = Span> {
        (0..self.hubs.len()).flat_map(|hub| self.gradient_lines_of(hub))
    }

    /// Returns the [lines](Self::gradient_line) of one hub in a gradient window, by round.
    pub fn gradient_lines_of(&self, hub: usize) -> impl Iterator<Item = Span> {
        let rounds = if self.passes_on { LINES as u32 } else { 0 };
        (0..rounds).map(move |round| self.gradient_line(hub, Round(round)))
    }

    /// Returns the [lines](Self::weights_line) of one hub in a weights window, by round.
    pub fn weights_lines_of(&self, hub: usize) -> impl Iterator<Item = Span> {
        (0..LINES as u32).map(move |round| self.weights_line(hub, Round(round)))
    }

    /// Returns the spans of a core's chunks in a gradient window, followed by the spans of the lines that the core receives.
    pub fn gradient_spans(&self, chunks: &[ChunkId]) -> Vec<Span> {
        let lines = self.hub_of(chunks).into_iter().flat_map(|_| self.gradient_lines());
        chunks.iter().map(|&chunk| self.gradient_span(chunk)).chain(lines).collect()
    }

    /// Whether members pass each hub's part of the norm on to the other hubs. They do this if they have links to several
    /// hubs: the hubs have no links to each other.
    pub fn passes_on(&self) -> bool {
        self.passes_on
    }

    /// Returns the hub whose first chunk is the first of these chunks, if there is one.
    pub fn hub_of(&self, chunks: &[ChunkId]) -> Option<usize> {
        let first = chunks.first()?;
        self.hubs.iter().position(|of_hub| of_hub == first)
    }

    /// Returns the hubs whose first chunk is one of these chunks, which must be ascending. At a hub below other hubs, one
    /// core may own the first chunks of several hubs.
    pub fn hubs_of<'a>(&'a self, chunks: &'a [ChunkId]) -> impl Iterator<Item = usize> + 'a {
        let is_here = |(_, first): &(usize, &ChunkId)| chunks.binary_search(first).is_ok();
        self.hubs.iter().enumerate().filter(is_here).map(|(hub, _)| hub)
    }

    /// Returns the spans of a core's chunks in a weights window, followed by the [lines](Self::weights_line) that
    /// the core sends.
    pub fn weights_spans(&self, chunks: &[ChunkId]) -> Vec<Span> {
        let lines = self.hubs_of(chunks).flat_map(|hub| self.weights_lines_of(hub));
        chunks.iter().map(|&chunk| self.weights_span(chunk)).chain(lines).collect()
    }

    /// Returns the number of posts that the link of a core with this number of chunks must hold. In addition to the
    /// answers, three lines of each hub may wait: two when a member begins, and the line of its first round.
    pub fn posts(&self, chunks: usize) -> u32 {
        (chunks.max(1) + 3 * self.hubs.len()) as u32
    }

    /// Whether each chunk of a gradient window is followed by a cache line with the number of gradients. With frames, the number
    /// is in the frame's header.
    fn has_counts(&self) -> bool {
        self.members.are_hubs() && self.framing.is_none()
    }

    /// Returns the size of a gradient window.
    pub fn gradient_window_bytes(&self) -> usize {
        self.gradient_lines().last().and_then(Span::end).unwrap_or(self.gradients_bytes())
    }

    /// Returns the size of the part of a gradient window that has the chunks.
    fn gradients_bytes(&self) -> usize {
        match self.has_counts() {
            false => self.chunks_bytes(),
            true => counted::window_bytes(&self.layout),
        }
    }

    /// Returns the span of a chunk, or of a group of bare chunks, in weights windows. Panics beyond the last chunk.
    pub fn weights_span(&self, chunk: ChunkId) -> Span {
        match &self.framing {
            None => self.layout.span(chunk),
            Some(framing) => framing.frames(chunk).span,
        }
    }

    /// Returns the span of a chunk, or of a group of bare chunks, in gradient windows.
    pub fn gradient_span(&self, chunk: ChunkId) -> Span {
        let counted = |chunk| counted::span(&self.layout, ChunkId(chunk));
        match (self.has_counts(), self.layout.group(chunk)) {
            (false, _) => self.weights_span(chunk),
            (true, None) => counted(chunk.0),
            (true, Some(group)) => counted(group.start).to(counted(group.end - 1)),
        }
    }

    /// Returns the chunks of the group with this id. `None` if it is not the id of a group, or the job does not post
    /// groups.
    pub fn group(&self, id: ChunkId) -> Option<Range<u32>> {
        if self.has_groups { self.layout.group(id) } else { None }
    }

    /// Returns the number of bytes that the hub keeps in addition to the windows. They are the optimizer state, and weights
    /// that no window has. With compression there is also a copy of the workers' weights.
    pub fn kept_bytes(&self, tensors: &Tensors) -> u64 {
        let Some(framing) = &self.framing else {
            let of_key = |(key, bytes): (&Key, usize)| {
                bytes / key.dtype.bytes() * tensors.kept_per_element(key.dtype) * size_of::<f32>()
            };
            let keys = self.layout.keys().iter().zip(0..);
            let bytes = keys.map(|(key, id)| (key, self.layout.key_span(KeyId(id)).bytes));
            return bytes.map(|both| of_key(both) as u64).sum();
        };
        let of_an_element = (1 + tensors.state_per_element()) * size_of::<f32>();
        let parameters = self.layout.parameters();
        let beside = match framing.compression {
            Compression::Codec(_) => u64::from(framing.shadows) * self.layout.model_bytes(),
            // The significance of each parameter, and one bit for each parameter for the significant set.
            Compression::Slim(_) => parameters * 4 + parameters / 8,
        };
        parameters * of_an_element as u64 + beside
    }
}

/// Returns a hub's line for a round, in a window whose chunks end at `chunks_end`.
fn line(chunks_end: usize, hub: usize, round: Round) -> Span {
    let number = hub * LINES + round.0 as usize % LINES;
    Span { offset: chunks_end + number * NormSum::BYTES, bytes: NormSum::BYTES }
}

impl Framing {
    fn new(layout: &Layout, terms: &JobTerms, compression: Compression) -> Self {
        let codecs = match compression {
            Compression::Codec(push) => Some(Codecs { push, answer: push.answer_codec(terms.workers) }),
            Compression::Slim(_) => None,
        };
        let mut framing = Framing {
            compression,
            seed: terms.seed,
            keeps_weights: terms.optimizer.keeps_weights(),
            shadows: if terms.level.consistency.steps_alone() { terms.workers } else { 1 },
            codecs,
            frames: Vec::new(),
            window_bytes: 0,
        };
        for chunk in layout.chunks() {
            let dtype = layout.keys()[chunk.key.index()].dtype;
            let elements = chunk.span.bytes / dtype.bytes();
            let payload = match &codecs {
                Some(Codecs { push, answer }) => {
                    push.payload_bytes(elements).max(answer.payload_bytes(elements))
                }
                None => slim::payload_bytes(elements, dtype.bytes()),
            };
            let room = |payload: usize| (HEADER_BYTES + payload).next_multiple_of(FRAME_ALIGN);
            let coded_bytes = room(payload);
            let span = Span { offset: framing.window_bytes, bytes: coded_bytes + room(chunk.span.bytes) };
            framing.frames.push(Frames { span, coded_bytes, elements, dtype });
            framing.window_bytes += span.bytes;
        }
        framing
    }

    /// Returns the compression with which frames are written.
    pub fn compression(&self) -> Compression {
        self.compression
    }

    /// Returns the seed for the random numbers of the compression.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Whether first weights are broadcast, and answers are differences of weights.
    pub fn keeps_weights(&self) -> bool {
        self.keeps_weights
    }

    /// Returns the codecs that write values, if values are written by a codec.
    pub fn codecs(&self) -> Option<Codecs> {
        self.codecs
    }

    /// Returns a chunk's frames. Panics beyond the last chunk.
    pub fn frames(&self, chunk: ChunkId) -> &Frames {
        &self.frames[chunk.index()]
    }

    /// Returns the kind of frame for a push or an answer of this content. New weights are sent raw.
    pub fn kind(content: Content) -> Kind {
        if content == Content::Weights { Kind::Raw } else { Kind::Coded }
    }

    /// Returns the kind of frame for the answer of a round, to a worker that takes part from round `first` on. The frame is
    /// raw if the worker has no weights to which a difference could be added.
    pub fn answer_kind(content: Content, round: Round, first: Round) -> Kind {
        if round < first { Kind::Raw } else { Self::kind(content) }
    }

    /// Returns the source of random numbers for a worker's encoding of a chunk.
    pub fn draw(&self, rank: u32, round: Round, chunk: ChunkId) -> Draw {
        Draw { seed: self.seed, rank, round, chunk }
    }

    /// Returns the source of random numbers for the hub's answers.
    pub fn answer_draw(&self, round: Round, chunk: ChunkId) -> Draw {
        self.draw(HUB, round, chunk)
    }
}

impl Frames {
    /// Returns the number of bytes of the values.
    pub fn value_bytes(&self) -> usize {
        self.elements * self.dtype.bytes()
    }

    /// Returns the span of the frame of a kind in a window, if its payload has this many bytes.
    pub fn frame(&self, kind: Kind, payload_bytes: usize) -> Span {
        let before = if kind == Kind::Raw { self.coded_bytes } else { 0 };
        Span { offset: self.span.offset + before, bytes: HEADER_BYTES + payload_bytes }
    }

    /// Returns the payload of the coded frame among the chunk's bytes.
    pub fn coded<'a>(&self, bytes: &'a [u8]) -> Result<&'a [u8], FrameError> {
        frame::payload(&bytes[..self.coded_bytes], Kind::Coded)
    }

    /// Returns the values of the raw frame among the chunk's bytes.
    pub fn raw<'a>(&self, bytes: &'a [u8]) -> Result<&'a [u8], FrameError> {
        frame::raw(&bytes[self.coded_bytes..], self.value_bytes())
    }

    /// Reads the values of the raw frame among the chunk's bytes. The frame was checked when it arrived, but its memory
    /// belongs to another process. If the header is no longer valid, `weights` stay unchanged.
    pub fn read_raw(&self, bytes: &[u8], weights: &mut [f32]) {
        let Ok(values) = self.raw(bytes) else { return };
        typed!(self.dtype, E => {
            let values = <[E]>::ref_from_bytes(values).expect("whole elements, after a header of 8 bytes");
            weights.iter_mut().zip(values).for_each(|(weight, value)| *weight = value.to_f32());
        });
    }

    /// Writes a raw frame of these weights, rounded to the key's type, among the chunk's bytes.
    pub fn write_raw(&self, weights: &[f32], bytes: &mut [u8]) {
        typed!(self.dtype, E => {
            let values = <[E]>::mut_from_bytes(self.begin_raw(bytes)).expect("whole elements, after a header");
            values.iter_mut().zip(weights).for_each(|(value, &weight)| *value = E::from_f32(weight));
        });
    }

    /// Begins a raw frame among the chunk's bytes. Returns the bytes for its values.
    pub fn begin_raw<'a>(&self, bytes: &'a mut [u8]) -> &'a mut [u8] {
        let frame = &mut bytes[self.coded_bytes..];
        frame::write_header(frame, Kind::Raw, self.value_bytes());
        &mut frame[HEADER_BYTES..][..self.value_bytes()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::{Consistency, LevelTerms};
    use crate::kernels::Optimizer;
    use crate::layout::Key;
    use proptest::prelude::*;

    const SGD: Optimizer = Optimizer::Sgd { learning_rate: 0.1, weight_decay: 0.0 };

    fn terms(codec: Codec, optimizer: Optimizer, consistency: Consistency) -> JobTerms {
        let level = LevelTerms { compression: Some(codec.into()), consistency, ..LevelTerms::default() };
        JobTerms { level, ..JobTerms::new(3, Vec::new(), optimizer) }
    }

    #[test]
    fn without_compression_a_window_is_the_layout() {
        let layout = Arc::new(Layout::new(vec![Key::f32("a", [3]), Key::f32("b", [100])], 128).unwrap());
        let wire = Wire::plain(Arc::clone(&layout));
        assert_eq!(wire.weights_window_bytes(), layout.window_bytes());
        assert_eq!(wire.gradient_window_bytes(), layout.window_bytes());
        let bare =
            |chunk| [wire.weights_span(chunk), wire.gradient_span(chunk)] == [layout.chunk(chunk).span; 2];
        assert!((0..5).map(ChunkId).all(bare));
    }

    #[test]
    fn frames_of_weights_are_raw_and_those_of_newcomers() {
        let (raw, coded) = (Kind::Raw, Kind::Coded);
        let (weights, gradient) = (Content::Weights, Content::Gradient);
        assert_eq!([weights, gradient].map(Framing::kind), [raw, coded]);
        let answer = |content, round| Framing::answer_kind(content, Round(round), Round(5));
        assert_eq!([4, 5].map(|round| answer(gradient, round)), [raw, coded]);
        assert_eq!([4, 5].map(|round| answer(weights, round)), [raw, raw]);
    }

    proptest! {
        #[test]
        fn frames_are_disjoint_and_have_room_for_the_longest(
            sizes in proptest::collection::vec((1u64..3000, 0..3usize), 1..10),
            chunk_lines in 1usize..64,
        ) {
            let dtypes = [Dtype::F32, Dtype::F16, Dtype::BF16];
            let key = |(i, &(n, dtype)): (usize, &(u64, usize))| Key::new(dtypes[dtype], format!("k{i}"), [n]);
            let keys = sizes.iter().enumerate().map(key).collect();
            let layout = Arc::new(Layout::new(keys, chunk_lines * 64).unwrap());
            let wire = Wire::new(Arc::clone(&layout), &terms(Codec::F16, SGD, Consistency::Bsp));
            let framing = wire.framing().unwrap();
            let mut end = 0;
            for (index, chunk) in layout.chunks().iter().enumerate() {
                let frames = framing.frames(ChunkId(index as u32));
                prop_assert_eq!(frames.value_bytes(), chunk.span.bytes);
                for (kind, payload) in [(Kind::Coded, 2 * frames.elements), (Kind::Raw, chunk.span.bytes)] {
                    let frame = frames.frame(kind, payload);
                    prop_assert!(frame.offset >= end && frame.offset.is_multiple_of(64));
                    end = frame.end().unwrap();
                }
                prop_assert!(end <= frames.span.end().unwrap());
            }
            prop_assert!(end <= wire.weights_window_bytes());
        }
    }
}
