//! Who looks on at the turns of a core: nobody, or a timeline. A turn is compiled for each, and nobody costs nothing.
//!
//! ```text
//!   polled -> (sum + step) -> posted, posted -> arrived -> done -> (sum + step) -> posted ...
//! ```
//!
//! Must not read clocks: an onlooker does, if it wants to know the time.

use fabric::{Imm, LinkId, Port, Posted, Span};

use super::notice::JobId;
use crate::layout::{ChunkId, Immediate, Round};

/// What an onlooker is told, as it happens. It does nothing with what it does not care for.
pub trait Onlooker {
    /// A poll has brought arrivals, which are told next.
    fn polled(&mut self) {}

    /// One of them. What followed from it has been told, but for its end.
    fn arrived(&mut self, _: JobId, _rank: u32, _: Immediate) {}

    /// An answer is about to be posted.
    fn posted(&mut self) {}

    /// What followed is over: a chunk was stepped in this round, if `steps` is not 0, and answers that were due are posted.
    fn done(&mut self, _: JobId, _: ChunkId, _: Round, _steps: u32) {}

    /// Answers that had waited for room were posted.
    fn caught_up(&mut self, _: JobId) {}
}

/// Looks away.
#[derive(Clone, Copy, Debug)]
pub struct Nobody;

impl Onlooker for Nobody {}

/// A port whose posts an onlooker sees.
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
