//! The words of members and cores on the job's rounds.

use std::time::Duration;

use fabric::Crossed;
use pbox_core::control::{Late, Latest};
use pbox_core::{Look, Members};

use super::Job;
use crate::digests::Compared;
use crate::verdict::latest_below;

impl Job {
    /// Takes in the digest of weights that a member has, or writes. Returns whether all members are known to have the same weights.
    ///
    /// # Errors
    /// When they have not, in words.
    pub fn compare(&mut self, rank: u32, compared: Compared, digest: u64) -> Result<bool, String> {
        let members: Vec<u32> = (0..self.terms.workers).filter(|&rank| self.has(rank)).collect();
        let who = match self.terms.level.members {
            Members::Workers => "workers",
            Members::Hubs | Members::Mesh => "machines",
        };
        self.rounds.digests.compare((rank, compared, digest), &members, who)
    }

    /// Returns which of all workers below this hub is late here, if one is.
    pub fn latest(&self) -> Option<Latest> {
        latest_below(&self.rounds.last.reply()?, |rank| self.member(rank)?.latest.clone())
    }

    /// Says who is waited for: on another machine the worker that its hub waits for, if it says so.
    fn awaited(&self, rank: u32) -> String {
        let latest = self.members[rank as usize].as_ref().and_then(|member| member.latest.as_ref());
        match latest.filter(|latest| latest.waited_us > 0) {
            Some(latest) => latest.of_machine(rank),
            None => self.spoken(rank),
        }
    }

    /// Returns the workers that have been late for so long.
    pub fn late(&self, look: &Look, time: Duration) -> Vec<Late> {
        let late = look.late().map(|(rank, waits)| Late {
            rank,
            who: self.awaited(rank),
            round: waits.round.unwrap_or(look.round),
            chunks: waits.owes,
            seconds: time.as_secs(),
        });
        late.collect()
    }

    /// Notes how many bytes have crossed a member's link to one of the job's cores.
    pub fn note_crossed(&mut self, rank: u32, core: usize, crossed: Crossed) {
        let member = self.members.get_mut(rank as usize).and_then(Option::as_mut);
        if let Some(link) = member.and_then(|member| member.links.get_mut(core)) {
            link.crossed = Some(crossed);
        }
    }
}
