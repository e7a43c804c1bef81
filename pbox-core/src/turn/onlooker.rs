//! The observer of a core's turns: none, or a timeline. A turn is compiled for each kind. The observer that does nothing
//! costs nothing.
//!
//! ```text
//!   polled -> (sum + step) -> posted, posted -> arrived -> done -> (sum + step) -> posted ...
//! ```
//!
//! Must not read clocks: an onlooker does, if it wants to know the time.

use fabric::{Imm, LinkId, Port, Posted, Span};

use super::notice::JobId;
use crate::layout::{ChunkId, Immediate, Round};

/// The events that an onlooker receives, as they happen. An onlooker may ignore events.
pub trait Onlooker {
    /// Reports that a poll has brought arrivals. A call of [`arrived`](Self::arrived) for each arrival follows.
    fn polled(&mut self) {}

    /// Reports one arrival. All work after the previous arrival has been reported, except for its end.
    fn arrived(&mut self, _: JobId, _rank: u32, _: Immediate) {}

    /// Reports that an answer is about to be posted.
    fn posted(&mut self) {}

    /// Reports that the work on an arrival is over. If `steps` is not 0, a chunk was stepped in this round. Due answers are
    /// posted.
    fn done(&mut self, _: JobId, _: ChunkId, _: Round, _steps: u32) {}

    /// Reports that answers which had waited for room were posted.
    fn caught_up(&mut self, _: JobId) {}
}

/// Looks away.
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
