//! The state of a job's links to the hubs above: whether they are lost, and how many cores have dropped them. Owned by the
//! job.

use std::time::{Duration, Instant};

use membership::{Event, Limits, Member, Step};
use pbox_core::AnswersAbove;

/// A job's links to the hubs above.
#[derive(Debug, Default)]
pub(crate) struct RelinksAbove {
    /// The state machine of the job as a member at the hubs above. `None` until a link is first lost.
    member: Option<Member>,
    /// The number of cores that have not dropped the old links yet, and the number of answers that had
    /// arrived over the dropped links.
    unlinked: (usize, AnswersAbove),
}

impl RelinksAbove {
    /// Notes that a link ended, in a job that takes part at `hubs` hubs above and may replace links within
    /// `limit`. Returns the first step; `None` if another link ended before.
    pub fn link_ended(&mut self, may_relink: bool, hubs: usize, limit: Duration) -> Option<Step> {
        // If a hub above is lost, the job fails at once. The workers join again when the hub returns.
        let limits = Limits { hubs, links: limit, hub: Duration::ZERO };
        let member = self.member.get_or_insert_with(|| Member::linked(limits));
        member.handle(Event::LinkEnded { may_relink }, Instant::now())
    }

    /// Notes the end of a step. Returns the next step.
    pub fn handle(&mut self, event: Event) -> Step {
        let member = self.member.as_mut().expect("a link was lost before");
        member.handle(event, Instant::now()).expect("the end of a step")
    }

    /// Notes that `cores` cores must drop their links.
    pub fn unlink(&mut self, cores: usize) {
        self.unlinked = (cores, AnswersAbove::default());
    }

    pub fn core_unlinked(&mut self, of_core: AnswersAbove) {
        let (cores, answers) = &mut self.unlinked;
        *cores -= 1;
        answers.came += of_core.came;
        answers.awaited += of_core.awaited;
    }

    /// Returns the event that all cores have dropped their links; `None` until the last core has dropped its links.
    pub fn unlinked(&self) -> Option<Event> {
        let (cores, AnswersAbove { came, awaited }) = self.unlinked;
        (cores == 0).then_some(Event::Dropped { came, is_awaited: awaited > 0 })
    }
}
