//! Heartbeats of members, and the reconnect of living members that have lost their links.

use std::time::Instant;

use pbox_core::control::{Latest, RefusalCode};

use super::{Member, Ranks};
use crate::job::{Effect, Job, JobSpec, Life, News};
use crate::refused::Refused;
use crate::tokens::Token;

/// The answer to a worker that has asked for new links.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grant {
    /// The worker must wait: some cores have not dropped the old links.
    Waits,
    /// The worker may connect.
    Connection {
        /// The token from an earlier answer to the same request, if that answer was lost. The token is no longer valid.
        former: Option<Token>,
    },
}

impl Member {
    /// Notes a heartbeat of a member. If the member is a hub, also notes its report about its own workers.
    ///
    /// # Errors
    /// Returns the fault of the report, in words.
    pub(crate) fn note_heartbeat(
        &mut self,
        latest: Option<Latest>,
        is_hub: bool,
        now: Instant,
    ) -> Result<(), String> {
        match &latest {
            Some(_) if !is_hub => {
                return Err(
                    "a worker must not send `latest`, because only a hub has workers; leave the field out"
                        .to_owned(),
                );
            }
            Some(latest) => latest.check()?,
            None => {}
        }
        (self.last_heartbeat, self.hung_up, self.latest) = (now, None, latest);
        Ok(())
    }
}

impl Job {
    /// Notes that a worker has lost its links and asks for new links. Returns the effect, if there is one.
    ///
    /// # Errors
    /// Returns an error if the worker cannot reconnect.
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
            member.hung_up = None;
            member.may_relink()
        });
        if !may_relink || !self.life.runs() {
            let why = format!(
                "{who} of job {name:?} cannot reconnect: its join did not set `relinks`, or it takes no part, or its heartbeat has \
                 ended; join again"
            );
            return Err(Refused::new(RefusalCode::NoRelink, why));
        }
        // If the cores are already dropping the links, nothing is left to do. Perhaps the worker does not know this.
        let is_dropping = self.members.get(rank).is_some_and(|member| member.standing.is_dropping());
        let why = format!("{who} is gone: {why}");
        Ok((!is_dropping).then(|| self.members.unlink(rank, &why, now)))
    }
}

impl Ranks {
    /// Grants one connection by this token to a worker that has asked for new links. Until all cores have dropped the old
    /// links, the worker must wait.
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
                format!("job {name:?} ended while the hub's cores dropped the old links; join again"),
            )),
        }
    }

    /// Returns the members that have no links and are dead, each with the reason for its loss. Makes the news change, so
    /// that a living member without links answers with a new heartbeat.
    pub(crate) fn unlinked_dead(&mut self, life: &Life, news: &mut News, now: Instant) -> Vec<(u32, String)> {
        let (mut dead, mut is_news) = (Vec::new(), false);
        for (rank, Member { standing, last_heartbeat, .. }) in self.iter_mut() {
            let Some(unlinked) = standing.unlinked() else { continue };
            is_news |= unlinked.notify_if_due(now);
            if unlinked.is_dead(*last_heartbeat, now) {
                dead.push((rank, unlinked.why.clone()));
            }
        }
        if is_news {
            news.tell(life, |_| {});
        }
        dead
    }
}
