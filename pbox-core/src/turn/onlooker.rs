//! Observers of a core's turns: a timeline, or an observer that does nothing. A turn is compiled for each kind of
//! observer, so the observer that does nothing costs nothing.
//!
//! ```text
//!   polled -> (sum + step) -> posted, posted -> arrived -> done -> (sum + step) -> posted ...
//! ```
//!
//! A core's turn reads no clock. An onlooker that needs the time reads a clock itself.

use fabric::{Imm, LinkId, Port, Posted, Span};

use super::notice::JobId;
use crate::layout::{ChunkId, Immediate, Round};

/// The events that an onlooker receives, as they happen. An onlooker may ignore events.
pub trait Onlooker {
    /// Reports that a poll has brought arrivals. A call of [`arrived`](Self::arrived) for each arrival follows.
    fn polled(&mut self) {}

    /// Reports which arrival has caused the posts that were reported before. [`done`](Self::done) follows if the arrival
    /// caused work.
    fn arrived(&mut self, _: JobId, _rank: u32, _: Immediate) {}

    /// Reports that an answer is about to be posted.
    fn posted(&mut self) {}

    /// Reports that the work on an arrival or a chunk is over, and that its due answers were posted. `steps` is the number
    /// of steps made in the round.
    fn done(&mut self, _: JobId, _: ChunkId, _: Round, _steps: u32) {}

    /// Reports that answers which waited for room in a link were posted.
    fn caught_up(&mut self, _: JobId) {}
}

/// An onlooker that ignores every event.
#[derive(Clone, Copy, Debug)]
pub struct Nobody;

impl Onlooker for Nobody {}

/// A port that reports its posts to an onlooker.
pub(super) struct Seen<'a, P, O> {
    pub port: &'a mut P,
    pub onlooker: &'a mut O,
}

impl<P: Port, O: Onlooker> Seen<'_, P, O> {
    #[inline(always)]
    pub fn post(&mut self, link: LinkId, span: Span, imm: Imm) -> Posted {
        self.onlooker.posted();
        self.port.post(link, span, imm)
    }
}
