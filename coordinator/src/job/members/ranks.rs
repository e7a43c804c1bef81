//! The ranks of a job at this hub. Each rank may have a member.

use std::time::Instant;

use pbox_core::control::{Latest, MemberReply};

use super::member::{Member, Standing, Unlinked};
use crate::job::Effect;
use crate::pace::LastRounds;
use crate::tokens::Token;
use crate::verdict::latest_below;

/// The members of a job, by rank.
#[derive(Debug)]
pub struct Ranks {
    all: Vec<Option<Member>>,
    /// The number of this hub's cores to which each member has a link.
    cores: usize,
}

impl Ranks {
    /// Creates this number of ranks without members. Each member will have links to this number of cores.
    pub(crate) fn new(ranks: u32, cores: usize) -> Self {
        Ranks { all: (0..ranks).map(|_| None).collect(), cores }
    }

    /// Returns the number of ranks.
    pub fn count(&self) -> u32 {
        self.all.len() as u32
    }

    /// Returns the member of a rank, if the rank has a member.
    pub fn get(&self, rank: u32) -> Option<&Member> {
        self.all.get(rank as usize)?.as_ref()
    }

    pub(crate) fn get_mut(&mut self, rank: u32) -> Option<&mut Member> {
        self.all.get_mut(rank as usize)?.as_mut()
    }

    /// Returns all members, in the order of their ranks.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (u32, &mut Member)> {
        (0..).zip(&mut self.all).filter_map(|(rank, member)| Some((rank, member.as_mut()?)))
    }

    /// Returns the members that have not left, in the order of their ranks.
    pub fn present(&self) -> impl Iterator<Item = (u32, &Member)> {
        let all = (0..).zip(&self.all).filter_map(|(rank, member)| Some((rank, member.as_ref()?)));
        all.filter(|(_, member)| member.standing.is_member())
    }

    /// Gives a rank to a member.
    pub(crate) fn add(&mut self, rank: u32, member: Member) {
        self.all[rank as usize] = Some(member);
    }

    /// Returns the state of the member of a rank, if the rank has a member.
    pub(crate) fn standing(&mut self, rank: u32) -> Option<&mut Standing> {
        self.get_mut(rank).map(|member| &mut member.standing)
    }

    /// Returns the number that names a rank's worker at all hubs of the job.
    pub(crate) fn worker(&self, rank: u32) -> Option<u64> {
        self.get(rank).map(|member| member.worker)
    }

    /// Returns the rank of the worker with this number at all hubs, if the worker is a member.
    pub fn rank(&self, worker: u64) -> Option<u32> {
        self.present().find(|(_, member)| member.worker == worker).map(|(rank, _)| rank)
    }

    /// Whether the worker is a member that has not left.
    pub fn has(&self, rank: u32) -> bool {
        self.get(rank).is_some_and(|member| member.standing.is_member())
    }

    /// Whether a worker other than `rank` takes part.
    pub fn has_others(&self, rank: u32) -> bool {
        (0..self.count()).any(|other| other != rank && self.takes_part(other))
    }

    /// Whether a worker takes part, with or without links.
    pub fn takes_part(&self, rank: u32) -> bool {
        self.get(rank).is_some_and(|member| member.standing.takes_part())
    }

    /// Whether the member of a rank is ready and has all its links, so that a cut may let it take part.
    pub(crate) fn waits_for_cut(&self, rank: u32) -> bool {
        self.get(rank).is_some_and(|member| member.standing.waits_for_cut(self.cores))
    }

    /// Notes that a worker of this job connects to the data path. A worker may connect only once, because a rank has
    /// one link to each core.
    ///
    /// # Errors
    /// Returns an error if the token is not valid for a connection now.
    pub(crate) fn connect(&mut self, rank: u32, token: Token, name: &str) -> Result<(), String> {
        if self.standing(rank).is_some_and(|standing| standing.connect(token)) {
            return Ok(());
        }
        Err(format!(
            "worker {rank} of job {name:?} is connected already, and a token is valid for one connection; join again under another rank or job name"
        ))
    }

    /// Notes that a core has a worker's link. Returns true after the last link of a worker that reconnects.
    pub(crate) fn attach(&mut self, rank: u32) -> bool {
        let cores = self.cores;
        self.standing(rank).is_some_and(|standing| standing.attach(cores))
    }

    /// Notes that a worker has lost its links. The job waits until the worker reconnects.
    pub(crate) fn unlink(&mut self, rank: u32, why: &str, now: Instant) -> Effect {
        let cores = self.cores;
        let token = self.standing(rank).and_then(|standing| standing.unlink(cores, why, now));
        Effect::DropLinks(rank, token)
    }

    /// Returns the record of the lost links of a worker that has not reconnected.
    pub(crate) fn unlinked(&mut self, rank: u32) -> Option<&mut Unlinked> {
        self.standing(rank)?.unlinked()
    }

    /// Notes that a worker is no longer a member, and that the job continues without it.
    pub(crate) fn lose(&mut self, rank: u32) {
        let cores = self.cores;
        self.standing(rank).into_iter().for_each(|standing| standing.lose(cores));
    }

    /// Frees the rank of a member that no core knows.
    pub(crate) fn free(&mut self, rank: u32) {
        self.all[rank as usize] = None;
    }

    /// Notes that a core has removed a worker. Returns true after the last core, when the rank is free.
    pub(crate) fn note_removed(&mut self, rank: u32) -> bool {
        let is_free = self.standing(rank).is_some_and(Standing::note_removed);
        if is_free {
            self.free(rank);
        }
        is_free
    }

    /// Returns the late worker of the last rounds, among all workers below this hub, if a worker is late.
    pub fn latest(&self, last: &LastRounds) -> Option<Latest> {
        latest_below(&last.reply()?, |rank| self.get(rank)?.latest.clone())
    }

    /// Describes the members that have not left.
    pub fn describe(&self, now: Instant) -> Vec<MemberReply> {
        self.present().map(|(rank, member)| member.describe(rank, now)).collect()
    }
}
