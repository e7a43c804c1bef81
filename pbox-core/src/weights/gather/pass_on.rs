//! Lines at a hub below other hubs. A line has one top hub's part of the gradient norm. This hub sends the line down to all
//! its members, and up to the other top hubs.
//!
//! ```text
//!   hub 0 at the top --its part--> a core here --> members
//!                                  a core here --> hub 1 at the top
//! ```
//!
//! A line is sent down by the core that owns the first chunk of the line's top hub. This core has the link over which
//! the top hub sends its line. The answers that need the line are sent over the same link, after the line. If the hubs
//! above write the window that members read, the line is already in that window. If there is only one hub above, this
//! hub sends no line up: the hub above passes parts on itself, or has all parts.

use std::sync::Arc;
use std::task::Waker;

use fabric::{Span, Spans};

use super::{Gather, Refused};
use crate::layout::{ChunkId, Immediate, Round};
use crate::whole::{Crossing, LastTwo, NormSum};
use crate::wire::Wire;

/// The inputs of [`PassOn`]: how a core of a hub below other hubs sends lines down and up.
#[derive(Debug)]
pub(crate) struct PassSpec {
    /// The wire format of the links to hubs above.
    pub above: Wire,
    /// The shared memory in which the hub's cores publish the rounds of lines, and the number of this core.
    pub crossing: (Arc<Crossing>, usize),
    /// The lines of the hubs at the top that this core sends down, in the window that members read, hub by hub. `None` if the
    /// hubs above write this window.
    pub shown: Option<Spans>,
}

/// The sender of a core that passes the lines of top hubs on to this hub's members and to the other top hubs.
#[derive(Debug)]
pub(crate) struct PassOn {
    spec: PassSpec,
    /// The wire of the links to members.
    wire: Wire,
    /// The top hubs whose first chunk this core owns.
    top_hubs: Vec<TopHub>,
    /// The lines of the hubs in `top_hubs`, in the window of sums, hub by hub. Empty if lines are not passed on.
    sums: Spans,
    /// A line that must go down to the members: the index of its top hub in `top_hubs`, and its round.
    unsent: Option<(usize, Round)>,
    /// Whether lines of other top hubs are missing in a round for which one of this core's top hubs has sent its line.
    awaits: bool,
}

/// A top hub, and the progress of lines from it and to it.
#[derive(Debug)]
struct TopHub {
    hub: usize,
    /// The number of the link to the hub.
    link: u32,
    /// The last rounds for which the hub's part has arrived.
    received: LastTwo,
    /// For each other top hub, the last round whose line was passed on to this hub.
    passed: Vec<Option<Round>>,
}

impl PassOn {
    /// Creates the sender without any line. `chunks` are the core's chunks, whose sums go up over the links of these
    /// numbers. `sums` has the core's lines in the window of sums.
    pub fn new(
        spec: PassSpec,
        wire: &Wire,
        chunks: &[ChunkId],
        links: &[u32],
        sums: Spans,
        waker: Waker,
    ) -> Self {
        let hubs = wire.hubs();
        let top = |hub: usize| {
            let place = chunks.binary_search(&hubs[hub]).expect("its first chunk is here");
            TopHub { hub, link: links[place], received: [None; 2], passed: vec![None; hubs.len()] }
        };
        let top_hubs: Vec<TopHub> = wire.hubs_of(chunks).map(top).collect();
        let (crossing, core) = &spec.crossing;
        if !top_hubs.is_empty() {
            crossing.wake(*core, waker);
        }
        PassOn { spec, wire: wire.clone(), top_hubs, sums, unsent: None, awaits: false }
    }

    fn line(&self, hub: usize, round: Round) -> (Immediate, Span) {
        (Immediate::line(hub, round), self.wire.weights_line(hub, round))
    }

    /// Whether one of this core's top hubs has sent its line (a message) of a round, and still lacks another top hub's line.
    fn awaits_parts(&self) -> bool {
        let awaits = |top: &TopHub| {
            let mut others = top.passed.iter().enumerate().filter(|(hub, _)| *hub != top.hub);
            others.any(|(_, &passed)| passed < top.received[1])
        };
        self.spec.above.passes_on() && self.top_hubs.iter().any(awaits)
    }
}

/// Returns the index of a round's line (a message) among the lines of all hubs.
fn place(lines: &Spans, top_hubs: usize, top: usize, round: Round) -> usize {
    let of_hub = lines.len() / top_hubs;
    top * of_hub + round.0 as usize % of_hub
}

impl Gather for PassOn {
    const WAITS: bool = false;

    fn handles_lines(&self) -> bool {
        !self.top_hubs.is_empty()
    }

    fn next_line_down(&mut self) -> Option<(Immediate, Span)> {
        let (top, round) = self.unsent.take()?;
        Some(self.line(self.top_hubs[top].hub, round))
    }

    fn lines(&self) -> Vec<(Immediate, Span)> {
        let lines_of = |top: &TopHub| {
            top.received.into_iter().flatten().map(|round| self.line(top.hub, round)).collect()
        };
        self.top_hubs.iter().flat_map(|top| -> Vec<_> { lines_of(top) }).collect()
    }

    fn lines_above(&self, link: u32) -> Vec<Span> {
        let top_hubs = self.top_hubs.iter().filter(|top| top.link == link);
        top_hubs.flat_map(|top| self.spec.above.weights_lines_of(top.hub)).collect()
    }

    fn line_above(&self, link: u32, line: Immediate) -> Option<Span> {
        let top = self.top_hubs.iter().find(|top| Some(top.hub) == line.hub() && top.link == link)?;
        Some(self.spec.above.weights_line(top.hub, Round(line.round_bits.into())))
    }

    fn take_line(&mut self, line: Immediate, words: &[u64]) -> Result<(), Refused> {
        let top =
            self.top_hubs.iter().position(|top| Some(top.hub) == line.hub()).ok_or(Refused::NotOfHub)?;
        let part = NormSum::read(words).filter(|part| part.round.low_bits() == line.round_bits);
        let part = part.ok_or(Refused::NoPart)?;
        let (round, count) = (part.round, self.top_hubs.len());
        if self.top_hubs[top].received[1] >= Some(round) {
            return Ok(()); // the hub sent it again, over new links
        }
        // A round may have no part, because workers were lost in it. The former part's place in the window may then soon have
        // another part, and nobody needs it any more.
        let former = self.top_hubs[top].received[1].filter(|former| former.next() == round);
        self.top_hubs[top].received = [former, Some(round)];
        self.unsent = Some((top, round));
        if let Some(shown) = &mut self.spec.shown {
            part.write(shown.elements_mut(place(shown, count, top, round)));
        }
        if self.spec.above.passes_on() {
            part.write(self.sums.elements_mut(place(&self.sums, count, top, round)));
            let (crossing, core) = &self.spec.crossing;
            crossing.publish(*core, self.top_hubs[top].hub, self.top_hubs[top].received);
        }
        Ok(())
    }

    fn next_line_up(&mut self) -> Option<(u32, (Immediate, Span))> {
        let PassSpec { above, crossing: (crossing, _), .. } = &self.spec;
        let hubs = if above.passes_on() { above.hubs().len() } else { 0 };
        for top in &mut self.top_hubs {
            for hub in (0..hubs).filter(|&hub| hub != top.hub) {
                let passed = &mut top.passed[hub];
                if let Some(round) =
                    crossing.published(hub).into_iter().flatten().find(|&round| *passed < Some(round))
                {
                    *passed = Some(round);
                    return Some((top.link, (Immediate::line(hub, round), above.gradient_line(hub, round))));
                }
            }
        }
        self.awaits = self.awaits_parts();
        None
    }

    fn pass_again(&mut self) {
        self.top_hubs.iter_mut().for_each(|top| top.passed.fill(None));
    }

    #[inline]
    fn awaits_others(&self) -> bool {
        self.awaits
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::JobTerms;
    use crate::kernels::Optimizer;
    use crate::layout::Key;
    use fabric::SendWindow;

    /// Returns the sender of a core at a hub that is below the only top hub.
    fn below_one_hub() -> PassOn {
        let terms = JobTerms::new(1, vec![Key::f32("a", [16])], Optimizer::Average);
        let wire = Wire::of_terms(&JobTerms { clip_norm: Some(1.0), ..terms }).unwrap();
        let (_, mut no_lines) = SendWindow::new(64).unwrap().split(vec![Vec::new()]).unwrap();
        let crossing = (Arc::new(Crossing::new(1, 1)), 0);
        let spec = PassSpec { above: wire.clone(), crossing, shown: None };
        PassOn::new(spec, &wire, &[ChunkId(0)], &[1], no_lines.remove(0), Waker::noop().clone())
    }

    #[test]
    fn a_line_has_the_words_of_the_round_that_its_post_says() {
        let mut pass_on = below_one_hub();
        let mut take = |hub, posted, words_of| {
            let mut line = [0; NormSum::WORDS];
            NormSum { round: Round(words_of), ..NormSum::default() }.write(&mut line);
            pass_on.take_line(Immediate::line(hub, Round(posted)), &line)
        };
        assert_eq!(take(0, 5, 5), Ok(()));
        assert_eq!(take(0, 6, 5), Err(Refused::NoPart), "the line of the round before");
        assert_eq!(take(0, 6, 7), Err(Refused::NoPart), "the line of the next round");
        assert_eq!(take(1, 6, 6), Err(Refused::NotOfHub));
        assert_eq!(take(0, 6, 6), Ok(()));
        let lines = |pass_on: &PassOn| pass_on.lines().into_iter().map(|(line, _)| line).collect::<Vec<_>>();
        let of_rounds = |rounds: &[u32]| -> Vec<Immediate> {
            rounds.iter().map(|&round| Immediate::line(0, Round(round))).collect()
        };
        assert_eq!(lines(&pass_on), of_rounds(&[5, 6]), "no other line was taken");
        let mut line = [0; NormSum::WORDS];
        NormSum { round: Round(8), ..NormSum::default() }.write(&mut line);
        assert_eq!(pass_on.take_line(Immediate::line(0, Round(8)), &line), Ok(()));
        assert_eq!(lines(&pass_on), of_rounds(&[8]), "round 7 has no part, and nobody needs round 6's");
    }
}
