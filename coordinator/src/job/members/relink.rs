//! Heartbeats of members, and new links for living members that have lost theirs.

use std::time::{Duration, Instant};

use pbox_core::control::{Latest, RefusalCode};

use super::{Member, Ranks};
use crate::job::{Effect, Job, JobSpec, Life, News};
use crate::refused::Refused;
use crate::tokens::Token;

/// The interval at which a hub reports to the hubs above which of its workers is late. The hubs above hold its heartbeats
/// for this time.
pub const TOLD_EVERY: Duration = Duration::from_secs(1);

/// The answer to a worker that has asked for other links.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grant {
    /// No effect yet: some cores have not dropped the old links.
    Waits,
    /// The worker gets a connection.
    Connection {
        /// The token of an earlier try of this request, if its answer was lost. It is no longer valid.
        former: Option<Token>,
    },
}

impl Member {
    /// Notes a heartbeat of a member and, if the member is a hub, its report about its own workers. Returns how long this hub
    /// may hold a heartbeat back until it has news.
    ///
    /// # Errors
    /// Returns the fault of the report, in words.
    pub(crate) fn hear(
        &mut self,
        latest: Option<Latest>,
        is_hub: bool,
        now: Instant,
    ) -> Result<Option<Duration>, String> {
        match &latest {
            Some(_) if !is_hub => {
                return Err("it is a worker, and only a hub has workers; leave it out".to_owned());
            }
            Some(latest) => latest.check()?,
            None => {}
        }
        (self.heard, self.hung_up, self.latest) = (now, false, latest);
        Ok(is_hub.then_some(TOLD_EVERY))
    }
}

impl Job {
    /// Notes that a worker reports lost links, and asks for new ones. Returns the effects.
    ///
    /// # Errors
    /// Returns an error if the worker cannot have new ones.
    pub(crate) fn ask_for_links(
        &mut self,
        rank: u32,
        why: &str,
        now: Instant,
    ) -> Result<Option<Effect>, Refused> {
        let (JobSpec { name, .. }, who) = (&self.spec, self.spec.spoken(rank));
        if let Life::Failed { reason, .. } = &self.life {
            return Err(Refused::new(RefusalCode::JobFailed, format!("job {name:?} failed: {reason}")));
        }
        let member = self.members.get_mut(rank);
        let may_relink = member.is_some_and(|member| {
            member.hung_up = false;
            member.may_relink()
        });
        if !may_relink || !self.life.runs() {
            let why = format!(
                "{who} of job {name:?} cannot reconnect: its join did not ask for that, it takes no part, or its heartbeat has \
                 ended; join again"
            );
            return Err(Refused::new(RefusalCode::NoRelink, why));
        }
        // The cores may be about to drop the links, and the worker has not been notified of the drop.
        let is_dropping = self.members.get(rank).is_some_and(|member| member.standing.is_dropping());
        let why = format!("{who} is gone: {why}");
        Ok((!is_dropping).then(|| self.members.unlink(rank, &why, now)))
    }
}

impl Ranks {
    /// Grants one connection by this token to a worker that has asked for new links. All cores must have dropped the old links.
    ///
    /// # Errors
    /// Returns an error if the job has ended.
    pub(crate) fn grant_links(&mut self, rank: u32, token: Token, name: &str) -> Result<Grant, Refused> {
        match self.unlinked(rank) {
            Some(unlinked) if unlinked.is_dropped() => {
                Ok(Grant::Connection { former: unlinked.grant(token) })
            }
            Some(_) => Ok(Grant::Waits),
            None => Err(Refused::new(
                RefusalCode::JobFailed,
                format!("job {name:?} ended while its cores dropped the links"),
            )),
        }
    }

    /// Returns the workers that have no links and are dead, each with the reason for its loss. Notifies the workers that may be
    /// alive.
    pub(crate) fn unlinked_dead(&mut self, life: &Life, news: &mut News, now: Instant) -> Vec<(u32, String)> {
        let (mut dead, mut is_news) = (Vec::new(), false);
        for (rank, Member { standing, heard, .. }) in self.iter_mut() {
            let Some(unlinked) = standing.unlinked() else { continue };
            is_news |= unlinked.is_to_be_told(now);
            if unlinked.is_dead(*heard, now) {
                dead.push((rank, unlinked.why.clone()));
            }
        }
        if is_news {
            news.tell(life, |_| {});
        }
        dead
    }
}
