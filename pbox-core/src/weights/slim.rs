//! Slim-DP. Workers push the significant set and the elements that they explored, and each worker gets its own answers.
//!
//! ```text
//!   push of worker 0 --+
//!   push of worker 1 --+-- sum --step--> weights in f32, which only the hub sees
//!                                           | significant set, and elements that worker 0 explored --> its window
//!                                           | significant set, and elements that worker 1 explored --> its window
//! ```

use std::ops::Range;
use std::sync::Arc;

use fabric::{MapError, Span, Spans};
use zerocopy::{FromBytes, IntoBytes};

use super::bare::{Push, Pushes};
use super::chunks::Chunk;
use super::frame_sum::{begin_raw, longest, with_sum};
use super::own::OwnWindows;
use super::private::HubWeights;
use super::{Read, Reply, Stepped, To};
use crate::job::JobTerms;
use crate::kernels::{Ablate, Element, Kernels, Slots, typed};
use crate::layout::{Content, Round};
use crate::slim::{self, Board, Drawer, Selector, SlimDp, answer, set};
use crate::wire::Framing;
use crate::wire::frame::{self, FrameError, HEADER_BYTES, Kind};

/// The reader of Slim-DP's pushes.
#[derive(Debug)]
pub(crate) struct SlimPushes {
    slim: SlimDp,
    framing: Arc<Framing>,
    /// The significant set of each chunk, in the order of the chunks.
    significant: Vec<Significant>,
    /// The words of the significant sets of all chunks.
    words: Vec<u64>,
    /// Whether only the first push is added, because the job leaves out the sum.
    only_first: bool,
    /// The sum of the chunk that is stepped.
    sum: Vec<f32>,
    /// The pushes that are in the sum.
    pushed: Vec<Pushed>,
    /// Scratch memory for values that the sum leaves out.
    ignored: Vec<f32>,
}

/// The significant set of a chunk.
#[derive(Debug)]
struct Significant {
    /// The range of this chunk's bitmap in [`SlimPushes::words`].
    words: Range<usize>,
    signature: u64,
    is_selected: bool,
}

/// One worker's push.
#[derive(Debug)]
struct Pushed {
    rank: u32,
    whole: bool,
    /// The pushed elements, unless the whole chunk was pushed.
    set: Vec<u64>,
}

impl SlimPushes {
    pub fn new(framing: &Arc<Framing>, slim: SlimDp, terms: &JobTerms, chunks: &[Chunk]) -> Self {
        let mut end = 0;
        let significant = |chunk: &Chunk| {
            let words = end..end + set::words(chunk.elements);
            end = words.end;
            Significant { words, signature: 0, is_selected: false }
        };
        let significant = chunks.iter().map(significant).collect();
        let longest = longest(chunks);
        let pushed = |_| Pushed { rank: 0, whole: false, set: vec![0; set::words(longest)] };
        let Ablate { aggregate: only_first, .. } = terms.ablate;
        SlimPushes {
            slim,
            framing: Arc::clone(framing),
            significant,
            words: vec![0; end],
            only_first,
            sum: vec![0.0; longest],
            pushed: (0..terms.workers).map(pushed).collect(),
            ignored: vec![0.0; if only_first { longest } else { 0 }],
        }
    }
}

impl Read for SlimPushes {
    fn takes(content: Content, is_first: bool) -> Result<(), &'static str> {
        match content {
            Content::Gradient => Ok(()),
            Content::Weights | Content::Nothing if is_first => Ok(()),
            _ => Err("Slim-DP takes gradients only: push zeros, or choose a codec or no compression"),
        }
    }

    /// Checks a push. Returns false if it was made with another significant set than the hub's.
    fn check(&self, chunk: &Chunk, place: usize, content: Content, push: Push) -> Result<bool, FrameError> {
        let frames = self.framing.frames(chunk.id);
        if content == Content::Nothing {
            return Ok(true); // in the broadcast, another rank's weights count
        }
        if Framing::kind(content) == Kind::Raw {
            return frames.raw(push.bytes()).map(|_| true);
        }
        let Significant { ref words, signature, is_selected } = self.significant[place];
        let significant = is_selected.then(|| (&self.words[words.clone()], signature));
        let payload = frames.coded(push.bytes())?;
        let push = self.slim.check_push(frames.elements, frames.dtype.bytes(), significant, payload)?;
        Ok(push != slim::Push::OtherSet)
    }

    fn begin<E: Element>(&mut self, chunk: &Chunk, push: Push, weights: &mut [E]) {
        begin_raw(&self.framing, chunk, push, weights);
    }

    fn sum<E: Element>(
        &mut self,
        _: &Kernels,
        chunk: &Chunk,
        place: usize,
        round: Round,
        pushes: Pushes<impl Iterator<Item = u32> + Clone>,
        then: impl FnOnce(&Slots<E>, u32),
    ) {
        let SlimPushes { slim, framing, significant, words, only_first, sum, pushed, ignored } = self;
        let frames = framing.frames(chunk.id);
        let significant = &words[significant[place].words.clone()];
        sum[..chunk.elements].fill(0.0);
        let mut workers = 0;
        for ((rank, bytes), pushed) in pushes.each().zip(pushed) {
            // The bytes may have changed after the check. The reader accepts any bytes.
            let payload = frames.coded(bytes).unwrap_or_default();
            let sum = if workers > 0 && *only_first { &mut *ignored } else { &mut *sum };
            let drawer = Drawer { seed: framing.seed(), rank, round, chunk: chunk.id };
            let set = &mut pushed.set[..significant.len()];
            pushed.rank = rank;
            pushed.whole = typed!(frames.dtype, T => {
                slim.add_push::<T>(significant, set, drawer, payload, &mut sum[..chunk.elements])
            });
            workers += 1;
        }
        with_sum(&sum[..chunk.elements], |slots| then(slots, workers));
    }
}

/// The reply of Slim-DP. It answers each worker with the elements that the worker pushed, and selects the significant set.
#[derive(Debug)]
pub(crate) struct SlimReply {
    framing: Arc<Framing>,
    own: OwnWindows,
    selector: Selector,
    /// The number of payload bytes of the last answer, by chunk, then by rank.
    answers: Vec<Vec<u32>>,
    /// Room for a chunk's weights in the type of its key.
    rounded: Vec<u64>,
    /// The weights of the chunk that the selection looks at.
    scratch: Vec<f32>,
}

impl SlimReply {
    /// Creates the reply. Allocates and touches memory: call it on the core's NUMA node. `first` is the first round with
    /// training.
    pub fn new(
        framing: &Arc<Framing>,
        slim: SlimDp,
        board: Arc<Board>,
        first: Round,
        workers: u32,
        chunks: &[Chunk],
    ) -> Result<Self, MapError> {
        let of_chunks = chunks.iter().map(|chunk| (chunk.id.index(), chunk.elements));
        let longest = longest(chunks);
        Ok(SlimReply {
            framing: Arc::clone(framing),
            own: OwnWindows::new(workers),
            selector: Selector::new(slim, first, board, of_chunks)?,
            answers: vec![vec![0; workers as usize]; chunks.len()],
            rounded: vec![0; longest.div_ceil(2)],
            scratch: Vec::with_capacity(longest),
        })
    }
}

impl Reply<SlimPushes, HubWeights> for SlimReply {
    fn prepare(&mut self, stepped: Stepped, read: &mut SlimPushes, weights: &HubWeights) {
        let SlimReply { framing, own, selector, answers, rounded, .. } = self;
        let Stepped { kernels, chunk, place, round, content, workers } = stepped;
        let (frames, weights) = (framing.frames(chunk.id), weights.of(place));
        if Framing::kind(content) == Kind::Raw {
            return own.all().for_each(|own| frames.write_raw(weights, own.elements_mut(place)));
        }
        let mean = &mut read.sum[..chunk.elements];
        let share = 1.0 / workers as f32;
        mean.iter_mut().for_each(|sum| *sum *= share);
        let Significant { ref words, ref mut signature, ref mut is_selected } = read.significant[place];
        let significant = &mut read.words[words.clone()];
        let is_new = selector.stepped(place, round, weights, mean, significant);
        if is_new {
            (*signature, *is_selected) = (set::signature(significant), true);
        }
        typed!(frames.dtype, E => {
            let rounded = rounded_mut::<E>(rounded, chunk.elements);
            kernels.narrow(weights, rounded);
            for Pushed { rank, whole, set } in &read.pushed[..workers as usize] {
                let Some(own) = own.of(*rank) else { continue };
                let window = own.elements_mut::<u8>(place);
                let set = (!whole).then_some(&set[..significant.len()]);
                // A worker may push the whole chunk because it has no significant set. So the answer to a whole push
                // has the set.
                let brought = if *is_selected && (is_new || *whole) { &*significant } else { &[] };
                let room = &mut window[HEADER_BYTES..frames.coded_bytes];
                let bytes = answer::<E>(set, *signature, brought, rounded, room);
                frame::write_header(window, Kind::Coded, bytes);
                answers[place][*rank as usize] = bytes as u32;
            }
        });
    }

    fn answer(&mut self, _: &Kernels, chunk: &Chunk, place: usize, _: &HubWeights, to: To) -> Span {
        let frames = self.framing.frames(chunk.id);
        match Framing::answer_kind(to.content, to.round, to.first) {
            Kind::Raw => frames.frame(Kind::Raw, frames.value_bytes()),
            Kind::Coded => frames.frame(Kind::Coded, self.answers[place][to.rank as usize] as usize),
        }
    }

    /// Adds a worker, and writes `weights` into its window. They are its first answer if the job continues from a checkpoint.
    fn add_worker(&mut self, chunks: &[Chunk], weights: &HubWeights, rank: u32, own: Option<Spans>) {
        let own = self.own.add(chunks, rank, own);
        for (place, chunk) in chunks.iter().enumerate() {
            self.framing.frames(chunk.id).write_raw(weights.of(place), own.elements_mut(place));
        }
    }

    fn take_over(&mut self, rank: u32, former: &Spans) {
        self.own.take_over(rank, former);
    }

    fn remove_worker(&mut self, rank: u32) -> Option<Spans> {
        self.own.remove(rank)
    }

    fn restore(&mut self, chunks: &[Chunk], weights: &HubWeights, first: Round) {
        for own in self.own.all() {
            for (place, chunk) in chunks.iter().enumerate() {
                self.framing.frames(chunk.id).write_raw(weights.of(place), own.elements_mut(place));
            }
        }
        self.selector.begin_at(first.max(Round(1)));
    }

    #[inline]
    fn awaits_task(&self, round: Round) -> bool {
        self.selector.is_awaited(round)
    }

    #[inline]
    fn has_task(&self) -> bool {
        self.selector.is_selecting()
    }

    fn work(&mut self, weights: &HubWeights) -> bool {
        let read = |place: usize, values: &mut Vec<f32>| {
            values.clear();
            values.extend_from_slice(weights.of(place));
        };
        self.selector.go_on(read, &mut self.scratch)
    }
}

fn rounded_mut<E: Element>(words: &mut [u64], elements: usize) -> &mut [E] {
    let bytes = &mut words.as_mut_bytes()[..elements * size_of::<E>()];
    <[E]>::mut_from_bytes(bytes).expect("whole elements, at a multiple of 8 bytes")
}
