//! The words of members and cores on the job's rounds.

use fabric::Crossed;
use fabric::any::Transport;
use pbox_core::Members;
use pbox_core::control::Latest;

use crate::digests::Compared;
use crate::job::Job;
use crate::links::MemberLink;
use crate::pace::LastRounds;
use crate::verdict::latest_below;

impl Job {
    /// Takes in the digest of weights that a member has, or writes. Returns whether all members are known to have the same weights.
    ///
    /// # Errors
    /// When they have not, in words.
    pub(crate) fn compare(&mut self, rank: u32, compared: Compared, digest: u64) -> Result<bool, String> {
        let members: Vec<u32> = (0..self.spec.terms.workers).filter(|&rank| self.has(rank)).collect();
        let who = match self.spec.terms.level.members {
            Members::Workers => "workers",
            Members::Hubs | Members::Mesh => "machines",
        };
        self.digests.compare((rank, compared, digest), &members, who)
    }

    /// Returns which of all workers below this hub is late here, if one is, in its last rounds.
    pub fn latest(&self, last: &LastRounds) -> Option<Latest> {
        latest_below(&last.reply()?, |rank| self.member(rank)?.latest.clone())
    }

    /// Notes that a member has links, and their transport.
    pub(crate) fn has_links(&mut self, rank: u32, transport: Option<Transport>, links: Vec<MemberLink>) {
        if let Some(member) = self.members.get_mut(rank as usize).and_then(Option::as_mut) {
            (member.transport, member.links) = (transport, links);
        }
    }

    /// Notes how many bytes have crossed a member's link to one of the job's cores.
    pub(crate) fn note_crossed(&mut self, rank: u32, core: usize, crossed: Crossed) {
        let member = self.members.get_mut(rank as usize).and_then(Option::as_mut);
        if let Some(link) = member.and_then(|member| member.links.get_mut(core)) {
            link.crossed = Some(crossed);
        }
    }
}
