//! The extra work of the core that owns its hub's first chunk. This core sends the hub's part of the gradient norm to
//! the workers. It also takes the parts of the other hubs, and finds the result of the round.

use fabric::{Span, Spans};

use crate::layout::{Immediate, Round};
use crate::whole::{NormSum, Part, Parts, Skips, WholeGradient};

/// The sender of a hub's part of the gradient norm. It also takes the parts of other hubs.
#[derive(Debug)]
pub(super) struct NormSender {
    /// The number of this hub among the hubs of the job.
    hub: usize,
    /// The spans of this hub's lines, the messages with its parts, in the window that workers read.
    lines: Spans,
    parts: Parts,
    /// The last round with a result, and the number of rounds that were skipped.
    found: NormSum,
    /// Whether any round has a result.
    has_any: bool,
    skips: Skips,
    /// The round of this hub's part, if the part is complete and must still be posted.
    unsent: Option<Round>,
}

/// The reason why a line (a message with a part of the norm) from a worker is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// The line names a hub that has no part.
    NotOfHub,
    /// The line has no valid sum, or its round is not the round of the post.
    NoPart,
    /// No hub can have reached this round.
    NoSuchRound,
    /// Another worker has passed on a different part.
    Other,
}

impl Refused {
    /// Returns the fault, in words.
    pub fn why(self) -> &'static str {
        match self {
            Refused::NotOfHub => "no other hub of the job has this number, or it owns no chunks",
            Refused::NoPart => "the part is not a sum of squares of this round",
            Refused::NoSuchRound => "no hub can have reached this round",
            Refused::Other => "another worker has passed on another sum",
        }
    }
}

impl NormSender {
    /// Creates the sender. `hubs` is the number of hubs that have parts.
    pub fn new(hub: usize, hubs: usize, skips: Skips, lines: Spans) -> Self {
        let found = NormSum::default();
        NormSender { hub, lines, parts: Parts::new(hubs), found, has_any: false, skips, unsent: None }
    }

    /// Takes this hub's part of a round from `whole`, once it is complete. Once the parts of all hubs have arrived, finds the
    /// result.
    pub fn add(&mut self, round: Round, whole: &WholeGradient) {
        let Some(sum) = whole.part(round).filter(|_| !self.has_found(round)) else { return };
        let part = NormSum { round, skipped: self.found.skipped, mean: whole.mean_before(round), sum };
        if self.parts.take(self.hub, part) == Part::New {
            part.write(self.lines.elements_mut(self.place(round)));
            self.unsent = Some(round);
        }
        if let Some(whole_sum) = self.parts.whole(round, self.skips) {
            (self.found, self.has_any) = (whole_sum, true);
            if whole.found(round).is_none() {
                whole.find(&whole_sum);
            }
        }
    }

    /// Takes another hub's part of the norm from its line (a message). `open` is the last round in which this core has
    /// gathered a chunk.
    pub fn take(&mut self, line: Immediate, words: &[u64], open: Round) -> Result<(), Refused> {
        let hub = line.hub().filter(|&hub| hub != self.hub && hub < self.parts.hubs());
        let hub = hub.ok_or(Refused::NotOfHub)?;
        let part = NormSum::read(words).filter(|part| part.round.low_bits() == line.round_bits);
        let part = part.ok_or(Refused::NoPart)?;
        // Another hub can enter the next round only after it has got this hub's part of the previous round.
        if part.round.0 > open.0.wrapping_add(1) {
            return Err(Refused::NoSuchRound);
        }
        match self.parts.take(hub, part) {
            Part::New | Part::Known => Ok(()),
            Part::Other => Err(Refused::Other),
        }
    }

    /// Returns the line with this hub's part of the norm, if the line must now be sent to all workers. Returns each line
    /// once.
    pub fn next_line_down(&mut self) -> Option<(Immediate, Span)> {
        self.unsent.take().map(|round| self.line(round))
    }

    /// Returns the lines with this hub's parts of the norm that workers may still need, the older line first.
    pub fn lines(&self) -> impl Iterator<Item = (Immediate, Span)> {
        self.parts.of_hub(self.hub).map(|part| self.line(part.round))
    }

    /// Returns the last round whose result is known.
    pub fn last_found(&self) -> Option<NormSum> {
        self.has_any.then_some(self.found)
    }

    /// Whether this core has the result of a round.
    pub fn has_found(&self, round: Round) -> bool {
        self.has_any && self.found.round == round
    }

    fn line(&self, round: Round) -> (Immediate, Span) {
        (Immediate::line(self.hub, round), self.lines.span(self.place(round)))
    }

    fn place(&self, round: Round) -> usize {
        round.0 as usize % self.lines.len()
    }
}
