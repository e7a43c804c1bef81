//! The bytes that may arrive over a link: for each chunk, only the span that the chunk has in the layout. TCP applies
//! these rules before it writes a byte ([`FrameRule`]). RDMA applies the rules after the NIC has written, when only the
//! length is known.
//!
//! | bytes of | must be |
//! | --- | --- |
//! | bare values, or a sum with its count | all bytes of the chunk or group, at its offset |
//! | a raw frame of a compressed job | all bytes of the chunk, at the frame's offset |
//! | a coded frame | at most the frame's room, at its offset |
//! | a gradient or its answer without bytes | a notice, the pull after a notice, or the end of bytes that were sent ahead in this round |
//! | a hub's part of the gradient norm | that hub's whole line; a hub sends only its own line, and gets only other hubs' lines |
//! | a push or answer with nothing | empty; from a hub below, the count of its workers |
//!
//! If a hub below other hubs broadcasts first weights, only those of the first machine count. Another machine sends no values.
//!
//! Each link has one [`Expected`], on the thread of its port. An [`Expected`] does not know the round in flight. It
//! keeps at most one notice, and one round of bytes ahead, for each chunk.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use fabric::{FrameRule, Imm, Span};

use super::Wire;
use super::counted;
use super::frame::{HEADER_BYTES, Kind};
use crate::job::Schedule;
use crate::layout::{ChunkId, Content, Immediate, Round};
use crate::place::Placement;

/// The bytes that one end of a link expects from the other end.
#[derive(Debug)]
pub struct Expected {
    wire: Wire,
    end: End,
    /// The round bits of the bytes that were sent ahead and whose push or answer has not arrived, by chunk.
    ahead: HashMap<ChunkId, u8>,
    /// The core to which the link leads, in this placement. Only this core's chunks may cross the link.
    core: Option<(Arc<Placement>, usize)>,
    /// The index of the run that has the chunk of the previous check, for [`Placement::owner_near`].
    near: u32,
}

#[derive(Debug)]
enum End {
    /// This end is a hub, and receives pushes.
    Hub {
        /// The round bits of the notices that were not pulled yet, by chunk.
        noticed: HashMap<ChunkId, u8>,
        /// Whether the other end is a hub whose first weights do not count.
        may_keep_first: bool,
        /// The chunks for which the other end has sent its push of first weights without values.
        kept: HashSet<ChunkId>,
    },
    /// This end is a member of a job, and receives answers.
    Member {
        /// Whether the hub may send notices, or requests to repeat a push.
        has_notices: bool,
    },
}

impl Expected {
    /// Returns the rules of a hub for bytes from member `rank`.
    pub fn of_member(wire: &Wire, rank: u32) -> Self {
        let may_keep_first = wire.members.are_hubs() && rank > 0;
        let (noticed, kept) = (HashMap::new(), HashSet::new());
        Self::new(wire, End::Hub { noticed, may_keep_first, kept })
    }

    /// Returns the rules of a member for bytes from a hub.
    pub fn of_hub(wire: &Wire, schedule: Schedule) -> Self {
        let asks_again = wire.framing().is_some_and(|framing| framing.codecs().is_none());
        Self::new(wire, End::Member { has_notices: schedule.pulls() || asks_again })
    }

    fn new(wire: &Wire, end: End) -> Self {
        Expected { wire: wire.clone(), end, ahead: HashMap::new(), core: None, near: 0 }
    }

    /// Limits the link to the chunks of the core to which it leads. All links of a member lead to one window. Without this
    /// limit, bytes over another core's link could be written while the chunk's own core reads them.
    pub fn on_core(self, placement: &Arc<Placement>, core: usize) -> Self {
        Expected { core: Some((Arc::clone(placement), core)), ..self }
    }

    /// Whether a chunk, or each chunk of a group, may cross the link.
    fn is_of_core(&mut self, chunk: ChunkId) -> bool {
        let Expected { wire, core: Some((placement, core)), near, .. } = self else { return true };
        let mut chunks = wire.group(chunk).unwrap_or(chunk.0..chunk.0 + 1);
        chunks.all(|chunk| placement.owner_near(ChunkId(chunk), near) == *core)
    }

    /// Takes the arrival of a frame without bytes. Returns false if the frame may not arrive now.
    fn take_empty(&mut self, Immediate { chunk, round_bits, content }: Immediate) -> bool {
        let is_of = |bits: u8| bits == round_bits;
        let mut came = || self.ahead.remove(&chunk).is_some_and(is_of);
        match (&mut self.end, content) {
            (End::Member { has_notices }, Content::Gradient) => came() || *has_notices,
            (End::Member { .. }, content) => content == Content::Nothing,
            (End::Hub { noticed, .. }, Content::Gradient) => {
                came() || noticed.remove(&chunk).is_some_and(is_of)
            }
            (End::Hub { .. }, Content::Nothing) => !self.wire.members.are_hubs(),
            (End::Hub { may_keep_first, kept, .. }, Content::Weights) => {
                let first = round_bits == Round(0).low_bits();
                *may_keep_first && first && kept.insert(chunk)
            }
            (End::Hub { .. }, Content::Ahead) => false,
        }
    }

    /// Notes bytes that may arrive. Either they are sent ahead of a push or answer, or they use up earlier bytes ahead.
    fn note_bytes(&mut self, Immediate { chunk, round_bits, content }: Immediate) {
        match content {
            Content::Ahead => _ = self.ahead.insert(chunk, round_bits),
            _ if !self.ahead.is_empty() => _ = self.ahead.remove(&chunk),
            _ => {}
        }
    }

    /// Checks that `bytes` bytes may arrive with this immediate, at this offset if the offset is known.
    fn take(&mut self, offset: Option<usize>, bytes: usize, imm: Imm) -> Result<(), String> {
        let immediate = Immediate::decode(imm);
        if let Some(hub) = immediate.hub() {
            return self.takes_line(hub, immediate, offset, bytes);
        }
        let (chunk, chunks) = (immediate.chunk, self.wire.layout().chunks().len());
        if chunk.index() >= chunks && self.wire.group(chunk).is_none() {
            return Err(format!("a frame for chunk {}, where the job has {chunks} chunks", chunk.0));
        }
        if !self.is_of_core(chunk) {
            return Err(format!("a frame for chunk {}, which another core owns", chunk.0));
        }
        if bytes == 0 && self.take_empty(immediate) {
            self.note_bytes(immediate);
            return Ok(());
        }
        let placed = self.is_place(immediate, offset, bytes).map_err(|expected| {
            let goes = offset.map_or_else(String::new, |offset| format!(" for offset {offset}"));
            let of = match immediate.content {
                Content::Gradient => String::new(),
                content => format!(" of {}", content.name()),
            };
            format!("a frame{of} of {bytes} bytes{goes} with chunk {}: expected {expected}", chunk.0)
        });
        placed.inspect(|()| self.note_bytes(immediate))
    }

    /// Checks a line with a hub's part of the gradient norm. The core of the hub's first chunk posts the line to members,
    /// and the members pass the line on to the other hubs.
    fn takes_line(
        &mut self,
        hub: usize,
        immediate: Immediate,
        offset: Option<usize>,
        bytes: usize,
    ) -> Result<(), String> {
        let Some(&first) = self.wire.hubs().get(hub) else {
            return Err(format!(
                "a part of the gradient's norm from hub {hub}; expected a hub number below {}",
                self.wire.hubs().len()
            ));
        };
        let round = Round(immediate.round_bits.into());
        let is_of_core = self.is_of_core(first);
        let (line, is_allowed) = match self.end {
            End::Hub { .. } => (self.wire.gradient_line(hub, round), self.wire.passes_on() && !is_of_core),
            End::Member { .. } => (self.wire.weights_line(hub, round), is_of_core),
        };
        let is_line = bytes == line.bytes && offset.is_none_or(|offset| offset == line.offset);
        match is_line && is_allowed && immediate.content == Content::Gradient {
            true => Ok(()),
            false => Err(format!(
                "a part of the gradient's norm from hub {hub} over a wrong link, or at a wrong offset"
            )),
        }
    }

    /// Checks that the bytes are those of a chunk, for this content. The error names the expected bytes.
    fn is_place(
        &self,
        Immediate { chunk, content, round_bits }: Immediate,
        offset: Option<usize>,
        bytes: usize,
    ) -> Result<(), String> {
        let is_at = |place: usize| offset.is_none_or(|offset| offset == place);
        let is = |place: Span| is_at(place.offset) && bytes == place.bytes;
        let of_hubs = self.wire.members.are_hubs();
        match (content, &self.end) {
            (Content::Nothing, End::Hub { .. }) if of_hubs => {
                let count = match self.wire.framing() {
                    Some(framing) => framing.frames(chunk).frame(Kind::Coded, 0),
                    None => counted::line(self.wire.gradient_span(chunk)),
                };
                let expected = || format!("{} bytes for offset {}", count.bytes, count.offset);
                return if is(count) { Ok(()) } else { Err(expected()) };
            }
            (Content::Nothing, _) => return Err("no bytes".into()),
            (Content::Ahead, _) if !of_hubs && self.wire.framing().is_none() => {}
            (Content::Ahead, _) => return Err("the bytes together with the push".into()),
            (Content::Gradient | Content::Weights, _) => {}
        }
        if let Some(framing) = self.wire.framing() {
            let frames = framing.frames(chunk);
            let (coded, raw) = (frames.span.offset, frames.frame(Kind::Raw, frames.value_bytes()));
            let header = frames.frame(Kind::Raw, 0);
            let keeps = matches!(self.end, End::Hub { may_keep_first: true, .. });
            let may_keep = keeps && content == Content::Weights && round_bits == Round(0).low_bits();
            let may_be_coded = content == Content::Gradient;
            let is_coded = is_at(coded) && (HEADER_BYTES..=frames.coded_bytes).contains(&bytes);
            if (may_be_coded && is_coded) || is(raw) || (may_keep && is(header)) {
                return Ok(());
            }
            let of_raw = format!("{} bytes for offset {}", raw.bytes, raw.offset);
            return Err(match may_be_coded {
                true => format!("at most {} bytes for offset {coded}, or {of_raw}", frames.coded_bytes),
                false => of_raw,
            });
        }
        let place = match self.end {
            End::Hub { .. } => self.wire.gradient_span(chunk),
            End::Member { .. } => self.wire.weights_span(chunk),
        };
        match is(place) {
            true => Ok(()),
            false => Err(format!("{} bytes for offset {}", place.bytes, place.offset)),
        }
    }
}

impl FrameRule for Expected {
    fn posted_empty(&mut self, imm: Imm) {
        if let End::Hub { noticed, .. } = &mut self.end {
            let Immediate { chunk, round_bits, content } = Immediate::decode(imm);
            // An answer without weights is not a notice, so no pull follows.
            if content == Content::Gradient {
                noticed.insert(chunk, round_bits);
            }
        }
    }

    fn check(&mut self, span: Span, imm: Imm) -> Result<(), String> {
        self.take(Some(span.offset), span.bytes, imm)
    }

    fn check_length(&mut self, bytes: usize, imm: Imm) -> Result<(), String> {
        self.take(None, bytes, imm)
    }

    fn named(&self, imm: Imm) -> String {
        let Immediate { chunk, round_bits, .. } = Immediate::decode(imm);
        format!("chunk {}, round {round_bits} modulo 64,", chunk.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::{JobTerms, LevelTerms, Members};
    use crate::kernels::Optimizer;
    use crate::layout::{Key, Layout};
    use crate::place::Share;

    const SGD: Optimizer = Optimizer::Sgd { learning_rate: 0.1, weight_decay: 0.0 };

    /// Returns a wire with chunks of 64, 64, 12 and 8 bytes.
    fn wire(level: LevelTerms) -> Wire {
        let layout = Layout::new(vec![Key::f32("a", [35]), Key::f32("b", [2])], 64).unwrap();
        Wire::new(Arc::new(layout), &JobTerms { level, ..JobTerms::new(2, Vec::new(), SGD) })
    }

    fn imm(chunk: u32, round: u32) -> Imm {
        Immediate::new(ChunkId(chunk), Round(round)).encode()
    }

    fn of(chunk: u32, round: u32, content: Content) -> Imm {
        Immediate::new(ChunkId(chunk), Round(round)).with(content).encode()
    }

    fn control(chunk: u32, round: u32) -> Imm {
        Immediate::control(ChunkId(chunk), Round(round)).encode()
    }

    fn span(offset: usize, bytes: usize) -> Span {
        Span { offset, bytes }
    }

    #[test]
    fn a_part_comes_in_its_line_from_its_hub_and_to_the_others() {
        let layout = Arc::new(Layout::new(vec![Key::f32("a", [35]), Key::f32("b", [2])], 64).unwrap());
        let terms = JobTerms { clip_norm: Some(1.0), hubs: 2, ..JobTerms::new(2, Vec::new(), SGD) };
        let wire = Wire::new(Arc::clone(&layout), &terms);
        let shares = [0, 1].map(|hub| {
            Placement::of_share(&layout, Schedule::Sliced, Share { hubs: 2, hub, ..Share::WHOLE }, 1)
        });
        let placement = Arc::new(Placement::over_hubs(&shares));
        let imm = |hub, round| Immediate::line(hub, Round(round)).encode();
        let line = span(256 + (4 + 7 % 4) * 128, 128);
        assert!(wire.weights_spans(&shares[1].chunks_by_core()[0]).ends_with(&[line]));
        assert_eq!(wire.gradient_window_bytes(), 256 + 8 * 128);
        let from_hub = |core| Expected::of_hub(&wire, Schedule::Sliced).on_core(&placement, core);
        let to_hub = |core| Expected::of_member(&wire, 0).on_core(&placement, core);
        assert_eq!(from_hub(1).check(line, imm(1, 7)), Ok(()));
        assert_eq!(to_hub(0).check(line, imm(1, 7)), Ok(()));
        assert!(
            from_hub(0).check(line, imm(1, 7)).unwrap_err().contains("norm from hub 1 over a wrong link")
        );
        assert!(to_hub(1).check(line, imm(1, 7)).is_err(), "its own");
        for other in [span(256, 128), span(line.offset, 64), span(line.offset, 0)] {
            assert!(from_hub(1).check(other, imm(1, 7)).is_err(), "{other:?}");
        }
        let beyond = from_hub(1).check(span(256 + 8 * 128, 128), imm(2, 0)).unwrap_err();
        assert_eq!(beyond, "a part of the gradient's norm from hub 2; expected a hub number below 2");
        let plain = Wire::plain(layout);
        assert!(Expected::of_hub(&plain, Schedule::Sliced).check(line, imm(1, 7)).is_err());
    }

    #[test]
    fn a_chunk_comes_whole_and_at_its_place() {
        let wire = wire(LevelTerms::default());
        for mut end in [Expected::of_member(&wire, 1), Expected::of_hub(&wire, Schedule::Sliced)] {
            for round in [0, 1, 77] {
                assert_eq!(end.check(span(128, 12), imm(2, round)), Ok(()));
                assert_eq!(end.check(span(192, 8), imm(3, round)), Ok(()));
                assert_eq!(end.check_length(12, imm(2, round)), Ok(()));
            }
            for bytes in [0, 8, 11, 13, 64] {
                let error = end.check_length(bytes, imm(2, 1)).unwrap_err();
                let expected =
                    format!("a frame of {bytes} bytes with chunk 2: expected 12 bytes for offset 128");
                assert_eq!(error, expected);
            }
            for (offset, bytes) in
                [(128, 11), (128, 13), (128, 0), (0, 0), (132, 8), (0, 12), (192, 8), (64, 64)]
            {
                let error = end.check(span(offset, bytes), imm(2, 1)).unwrap_err();
                let expected = format!(
                    "a frame of {bytes} bytes for offset {offset} with chunk 2: expected 12 bytes for offset 128"
                );
                assert_eq!(error, expected);
            }
            let error = end.check(span(0, 64), imm(4, 1)).unwrap_err();
            assert_eq!(error, "a frame for chunk 4, where the job has 4 chunks");
        }
    }

    #[test]
    fn a_chunk_comes_by_the_link_of_its_core() {
        let wire = wire(LevelTerms::default());
        let placement = Arc::new(Placement::new(wire.layout(), 2));
        let place = |chunk| wire.gradient_span(ChunkId(chunk));
        for core in 0..2 {
            for end in [Expected::of_member(&wire, 1), Expected::of_hub(&wire, Schedule::Sliced)] {
                let mut end = end.on_core(&placement, core);
                for chunk in 0..4 {
                    let crosses = placement.owner(ChunkId(chunk)) == core;
                    let expected = format!("a frame for chunk {chunk}, which another core owns");
                    let expected = if crosses { Ok(()) } else { Err(expected) };
                    assert_eq!(end.check(place(chunk), imm(chunk, 1)), expected);
                    assert_eq!(end.check_length(place(chunk).bytes, imm(chunk, 1)), expected);
                }
            }
        }
    }

    #[test]
    fn a_pull_answers_a_notice_once() {
        let wire = wire(LevelTerms { schedule: Schedule::KvStore, ..LevelTerms::default() });
        let mut hub = Expected::of_member(&wire, 0);
        let empty = span(0, 0);
        assert!(hub.check(empty, control(0, 7)).is_err(), "there was no notice");
        hub.posted_empty(control(0, 7));
        assert!(hub.check(empty, imm(0, 7)).is_err(), "an empty push is no pull");
        hub.posted_empty(control(0, 7));
        assert!(hub.check(empty, control(1, 7)).is_err(), "another chunk's");
        assert_eq!(hub.check(empty, control(0, 7)), Ok(()));
        assert!(hub.check(empty, control(0, 7)).is_err(), "a second time");
        hub.posted_empty(control(1, 7));
        assert_eq!(hub.check_length(0, control(1, 7)), Ok(()));
        assert!(hub.check_length(0, control(1, 7)).is_err(), "a second time");
        let mut member = Expected::of_hub(&wire, Schedule::KvStore);
        assert_eq!(member.check(empty, control(0, 7)), Ok(()), "a notice");
    }

    #[test]
    fn a_push_without_bytes_has_sent_them_ahead_or_has_none() {
        let mut hub = Expected::of_member(&wire(LevelTerms::default()), 0);
        let (empty, whole) = (span(0, 0), span(128, 12));
        assert!(hub.check(empty, imm(2, 5)).is_err(), "nothing was sent ahead");
        for _ in 0..2 {
            assert_eq!(hub.check(whole, of(2, 5, Content::Ahead)), Ok(()));
        }
        assert!(hub.check(empty, imm(1, 5)).is_err(), "another chunk's");
        assert_eq!(hub.check(empty, imm(2, 5)), Ok(()));
        assert!(hub.check(empty, imm(2, 5)).is_err(), "a second time");
        assert_eq!(hub.check(whole, of(2, 5, Content::Ahead)), Ok(()));
        assert!(hub.check(empty, imm(2, 6)).is_err(), "another round's");
        for push in [imm(2, 6), of(2, 6, Content::Weights)] {
            assert_eq!(hub.check(whole, of(2, 6, Content::Ahead)), Ok(()));
            assert_eq!(hub.check(whole, push), Ok(()), "rewritten");
            assert!(hub.check(empty, imm(2, 6)).is_err(), "it was pushed");
        }
        assert_eq!(hub.check(empty, of(2, 7, Content::Nothing)), Ok(()));
        let error = hub.check(whole, of(2, 7, Content::Nothing)).unwrap_err();
        assert!(error.starts_with("a frame of nothing of 12 bytes"), "{error}");
        assert!(hub.check(empty, of(2, 7, Content::Weights)).is_err());
        assert!(hub.check(empty, of(2, 7, Content::Ahead)).is_err());
        let mut member = Expected::of_hub(&wire(LevelTerms::default()), Schedule::Sliced);
        assert_eq!(member.check(empty, of(2, 7, Content::Nothing)), Ok(()));
        assert_eq!(member.check(whole, of(2, 7, Content::Weights)), Ok(()));
        assert!(member.check(empty, imm(2, 7)).is_err(), "no weights came ahead");
        assert_eq!(member.check(whole, of(2, 7, Content::Ahead)), Ok(()));
        assert_eq!(member.check(empty, imm(2, 7)), Ok(()));
        assert!(member.check(empty, imm(2, 7)).is_err(), "a second time");
    }

    #[test]
    fn no_frame_of_a_codec_comes_ahead_and_weights_are_raw() {
        let wire = wire(LevelTerms { compression: Some("f16".parse().unwrap()), ..LevelTerms::default() });
        let frames = *wire.framing().unwrap().frames(ChunkId(2));
        let (coded, raw) = (span(frames.span.offset, HEADER_BYTES), frames.frame(Kind::Raw, 12));
        let mut hub = Expected::of_member(&wire, 0);
        assert!(hub.check(coded, of(2, 1, Content::Ahead)).is_err());
        assert!(hub.check(coded, of(2, 1, Content::Weights)).is_err());
        assert_eq!(hub.check(raw, of(2, 1, Content::Weights)), Ok(()));
        assert_eq!(hub.check(span(0, 0), of(2, 1, Content::Nothing)), Ok(()));
    }

    #[test]
    fn frames_have_their_rooms() {
        let compression = Some("topk:0.25".parse().unwrap());
        let wire = wire(LevelTerms { compression, ..LevelTerms::default() });
        let frames = *wire.framing().unwrap().frames(ChunkId(2));
        let (coded, raw) = (frames.span.offset, frames.frame(Kind::Raw, 12));
        for mut end in [Expected::of_member(&wire, 0), Expected::of_hub(&wire, Schedule::Sliced)] {
            for good in [span(coded, HEADER_BYTES), span(coded, frames.coded_bytes), raw] {
                assert_eq!(end.check(good, imm(2, 1)), Ok(()));
                assert_eq!(end.check_length(good.bytes, imm(2, 1)), Ok(()));
            }
            assert!(end.check_length(frames.coded_bytes.max(raw.bytes) + 1, imm(2, 1)).is_err());
            assert!(end.check_length(HEADER_BYTES - 1, imm(2, 1)).is_err());
            let header = frames.frame(Kind::Raw, 0);
            let long = span(coded, frames.coded_bytes + 1);
            for bad in [span(coded, HEADER_BYTES - 1), long, frames.span, header, span(0, 16), span(coded, 0)]
            {
                let error = end.check(bad, imm(2, 1)).unwrap_err();
                let room = format!("at most {} bytes for offset {coded}, or 20 bytes", frames.coded_bytes);
                assert!(error.contains(&room), "{error}");
            }
        }
    }

    #[test]
    fn hubs_below_send_counts_and_keep_their_first_weights() {
        let wire = wire(LevelTerms { members: Members::Hubs, ..LevelTerms::default() });
        let place = wire.gradient_span(ChunkId(2));
        assert_eq!(place.bytes, 128, "the values in a line, and the count");
        let mut first = Expected::of_member(&wire, 0);
        let mut second = Expected::of_member(&wire, 1);
        for end in [&mut first, &mut second] {
            assert_eq!(end.check(place, imm(2, 1)), Ok(()));
            assert!(end.check(span(128, 12), imm(2, 1)).is_err());
            assert!(end.check(span(0, 0), imm(2, 1)).is_err());
        }
        let first_weights = |round| of(2, round, Content::Weights);
        assert!(first.check(span(0, 0), first_weights(0)).is_err(), "its first weights count");
        assert!(second.check(span(0, 0), first_weights(1)).is_err(), "later weights come with their bytes");
        assert_eq!(second.check(span(0, 0), first_weights(0)), Ok(()));
        assert!(second.check(span(0, 0), first_weights(0)).is_err(), "a first time comes once");
        assert_eq!(second.check(counted::line(place), of(2, 3, Content::Nothing)), Ok(()));
        assert!(second.check(span(0, 0), of(2, 3, Content::Nothing)).is_err(), "how many workers?");
        assert_eq!(Expected::of_hub(&wire, Schedule::Sliced).check(span(128, 12), imm(2, 1)), Ok(()));
    }
}
