//! Reconnects of workers that lose their links and live: they make new links, and the job continues. Under the
//! registry's lock, except for the wait for the cores.
//!
//! ```text
//!   a link ended by itself, or its worker reports it
//!     -> every core drops the worker's links; its pushes that are not stepped do not count
//!     -> the worker asks; when all cores have dropped them, it has the answer of a join, with a token for a connection
//!     -> a connection -> every core has a link -> the worker pushes again what has no answer
//! ```
//!
//! A worker that died asks nothing. Its heartbeat, which is a request that the hub holds, ends with it. If it does not,
//! there are news, which the heartbeat of a living worker takes at once. No heartbeat within two seconds is a death,
//! too.

use std::sync::Arc;

use coordinator::input::{AskForLinks, GrantLinks};
use coordinator::{Event, MemberOf, Token};
use fabric::any::Transport;
use pbox_core::control::{JoinReply, PROTOCOL, RefusalCode, RelinkRequest};

use crate::cores::Command;
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
            "worker lost its links; its job waits until the worker reconnects"
        );
        self.command(job, || Command::UnlinkWorker { job: id, rank });
    }

    /// Lets a worker that has lost its links make new ones. Answers when all cores have dropped the old links.
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
            let freed = self.freed.notified(); // before the look, so that no wake-up is missed
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

    /// Grants a worker that waits for new links one connection by the token `own`, unless it has to wait longer.
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

    /// Notes that a member's heartbeat ended without its answer.
    pub fn hung_up(self: &Arc<Self>, name: &str, token: &str) {
        let mut inner = self.lock();
        let member = inner.member(name, token).map(|(member, _)| member);
        if let Ok(MemberOf { job, rank }) = member {
            self.happens(&mut inner, job, Event::HungUp(rank));
        }
    }
}
