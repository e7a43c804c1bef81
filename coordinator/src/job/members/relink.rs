//! Signs that members live, and members that lose their links and live.

use std::time::{Duration, Instant};

use fabric::any::Transport;
use pbox_core::Members;
use pbox_core::control::{Latest, RefusalCode};

use super::member::{Member, Unlinked};
use crate::job::{Effect, Job, Life};
use crate::refused::Refused;
use crate::tokens::Token;

/// How often a hub tells those above it which of its workers is late, and how long they hold its heartbeats.
pub const TOLD_EVERY: Duration = Duration::from_secs(1);

/// The answer to a worker that has asked for other links.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grant {
    /// Nothing yet: some cores have not dropped the former links.
    Waits,
    /// A connection.
    Connection {
        /// The token of the same request before, whose answer was lost. It is good for nothing now.
        former: Option<Token>,
    },
}

impl Job {
    /// Notes that a member lives, and what it says of its own workers. Returns how long the hub may hold a heartbeat that brings
    /// news.
    ///
    /// # Errors
    /// When it cannot say so, in words.
    pub(crate) fn heard_of(
        &mut self,
        rank: u32,
        latest: Option<Latest>,
        now: Instant,
    ) -> Result<Option<Duration>, String> {
        let is_hub = self.spec.terms.level.members != Members::Workers;
        match &latest {
            Some(_) if !is_hub => {
                return Err("it is a worker, and only a hub has workers; leave it out".to_owned());
            }
            Some(latest) => latest.check()?,
            None => {}
        }
        if let Some(member) = &mut self.members[rank as usize] {
            (member.heard, member.hung_up, member.latest) = (now, false, latest);
        }
        Ok(is_hub.then_some(TOLD_EVERY))
    }

    /// Whether a worker whose link ended by itself may make its links again. Then it is not lost yet.
    pub(crate) fn waits_for_links(&self, rank: u32) -> bool {
        // Nothing but a death ends a link on shared memory that its worker has not given up. One that makes its links again gives
        // up those to this hub, if it cannot have those to another.
        let lives =
            |member: &Member| member.transport != Some(Transport::Shm) || member.standing.has_relinked();
        self.may_relink(rank) && self.member(rank).is_some_and(lives)
    }

    /// Notes that a worker has lost its links, as it says, and asks for new ones. Returns what follows.
    ///
    /// # Errors
    /// When it cannot have new ones.
    pub(crate) fn ask_for_links(
        &mut self,
        rank: u32,
        why: &str,
        now: Instant,
    ) -> Result<Option<Effect>, Refused> {
        if let Life::Failed { reason, .. } = &self.life {
            let why = format!("job {:?} failed: {reason}", self.spec.name);
            return Err(Refused::new(RefusalCode::JobFailed, why));
        }
        if let Some(member) = &mut self.members[rank as usize] {
            member.hung_up = false;
        }
        if !self.may_relink(rank) {
            let why = format!(
                "{} of job {:?} cannot make its links again: it said in its join that it would not, it takes no part, or it has \
                 hung up",
                self.spoken(rank),
                self.spec.name
            );
            return Err(Refused::new(RefusalCode::NoRelink, why));
        }
        // The cores may be about to drop them, and the worker was not told yet that they have.
        let is_dropping = self.member(rank).is_some_and(|member| member.standing.is_dropping());
        let why = format!("{} is gone: {why}", self.spoken(rank));
        Ok((!is_dropping).then(|| self.unlink(rank, &why, now)))
    }

    /// Grants a worker that has asked for other links one connection by this token, once all cores have dropped the former links.
    ///
    /// # Errors
    /// When the job has ended.
    pub(crate) fn grant_links(&mut self, rank: u32, token: Token) -> Result<Grant, Refused> {
        match self.unlinked(rank) {
            Some(unlinked) if unlinked.is_dropped() => {
                Ok(Grant::Connection { former: unlinked.grant(token) })
            }
            Some(_) => Ok(Grant::Waits),
            None => Err(Refused::new(
                RefusalCode::JobFailed,
                format!("job {:?} ended while its cores dropped the links", self.spec.name),
            )),
        }
    }

    /// Notes that a worker has lost its links, and that its job waits until it makes others.
    pub(crate) fn unlink(&mut self, rank: u32, why: &str, now: Instant) -> Effect {
        let cores = self.spec.made.cores;
        let token = self.standing(rank).and_then(|standing| standing.unlink(cores, why, now));
        Effect::DropLinks(rank, token)
    }

    /// Whether a worker may make its links again now.
    pub(crate) fn may_relink(&self, rank: u32) -> bool {
        let may = |member: &Member| member.relinks && member.transport.is_some() && !member.hung_up;
        self.runs() && self.takes_part(rank) && self.member(rank).is_some_and(may)
    }

    /// Returns what is known of the lost links of a worker that has no others.
    pub(crate) fn unlinked(&mut self, rank: u32) -> Option<&mut Unlinked> {
        self.standing(rank)?.unlinked()
    }

    /// Returns the workers that have no links and do not live: each with why it is lost. There are news of those that may live.
    pub(crate) fn unlinked_dead(&mut self, now: Instant) -> Vec<(u32, String)> {
        let (mut dead, mut is_news) = (Vec::new(), false);
        for (rank, member) in (0..).zip(&mut self.members) {
            let Some(Member { standing, heard, .. }) = member else { continue };
            let Some(unlinked) = standing.unlinked() else { continue };
            is_news |= unlinked.is_to_be_told(now);
            if unlinked.is_dead(*heard, now) {
                dead.push((rank, unlinked.why.clone()));
            }
        }
        if is_news {
            self.tell(|_| {});
        }
        dead
    }

    /// Notes that a member's heartbeat ended without an answer. Returns why the member is lost, if its links are.
    pub(crate) fn hangs_up(&mut self, rank: u32) -> Option<String> {
        let member = self.members.get_mut(rank as usize)?.as_mut()?;
        member.hung_up = true;
        member.standing.unlinked().map(|unlinked| unlinked.why.clone())
    }
}
