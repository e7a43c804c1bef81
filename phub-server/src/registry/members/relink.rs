//! Reconnects of workers that have lost their links and are alive: they make new links, and the job
//! continues. All steps run under the registry's lock, except for the wait for the cores.
//!
//! ```text
//!   a link ended by itself, or its worker reports a lost link
//!     -> every core drops the worker's links; the pushes that no step has used are dropped, too
//!     -> the worker asks for links; when no core has the old links, it gets the reply of a join, with a new token
//!     -> the worker connects -> every core has a link -> the worker repeats its pushes without an answer
//! ```
//!
//! A dead worker is detected in two ways. The hub holds the worker's last heartbeat, and the connection of this heartbeat
//! ends with the worker's process. If the connection does not end, the hub answers the heartbeat with news, and a living
//! worker sends the next heartbeat at once. If no heartbeat arrives within two seconds, the worker counts as dead.

use std::sync::Arc;

use coordinator::input::{AskForLinks, GrantLinks};
use coordinator::{Event, MemberOf, Token};
use fabric::any::Transport;
use hub_threads::Command;
use pbox_core::control::{JoinReply, PROTOCOL, RefusalCode, RelinkRequest};

use crate::registry::job::Job;
use crate::registry::members::join::new_token;
use crate::registry::{Because, Refusal, Registry};

impl Registry {
    /// Makes all cores drop a worker's links.
    pub(in crate::registry) fn drop_links(&self, state: &coordinator::Job, job: &Job, rank: u32) {
        let (id, why) = (job.id, state.members.get(rank).and_then(|member| member.standing.why_unlinked()));
        tracing::warn!(
            job = job.name,
            rank,
            why,
            "a worker lost its links; its job waits until the worker reconnects"
        );
        self.command(job, || Command::UnlinkWorker { job: id, rank });
    }

    /// Lets a worker make new links after it has lost its links. Answers when all cores have dropped the old
    /// links.
    pub async fn relink(self: &Arc<Self>, name: &str, request: RelinkRequest) -> Result<JoinReply, Refusal> {
        let (RelinkRequest { token, why }, own) = (request, new_token()?);
        {
            let mut inner = self.lock();
            let (member, _) = inner.member(name, &token)?;
            let effects = inner.ask(AskForLinks { member, why })?;
            self.carry_out(&mut inner, member.job, effects);
        }
        let limit = tokio::time::Instant::now() + self.heartbeat_limit;
        loop {
            let freed = self.freed.notified(); // before the check, so that no wake-up is missed
            if let Some(answer) = self.grant_links(name, &token, own)? {
                return Ok(answer);
            }
            if tokio::time::timeout_at(limit, freed).await.is_err() {
                return Err(RefusalCode::CoreSilent.because(format!(
                    "job {name:?}: a core of the hub did not drop the old links in {} s",
                    self.heartbeat_limit.as_secs_f64()
                )));
            }
        }
    }

    /// Makes the token `own` valid for one connection of a worker that waits for new links. Returns `None` if
    /// the worker has to wait longer.
    fn grant_links(&self, name: &str, token: &str, own: Token) -> Result<Option<JoinReply>, Refusal> {
        let mut inner = self.lock();
        let (member, _) = inner.member(name, token)?;
        if !inner.ask(GrantLinks { member, token: own })? {
            return Ok(None);
        }
        let (_, (state, job)) = inner.member(name, token)?;
        let mut answer = self.answer_of_join(state, job, own, PROTOCOL);
        let by_rdma = self.up.group.rdma().is_some_and(|rdma| !rdma.up().is_empty());
        answer.transports.retain(|offer| by_rdma || offer.transport() != Transport::Verbs);
        Ok(Some(answer))
    }

    /// Notes that the connection of a member's heartbeat ended before the answer.
    pub fn hung_up(self: &Arc<Self>, name: &str, token: &str) {
        let mut inner = self.lock();
        let member = inner.member(name, token).map(|(member, _)| member);
        if let Ok(MemberOf { job, rank }) = member {
            self.happens(&mut inner, job, Event::HungUp(rank));
        }
    }
}
