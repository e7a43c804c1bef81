//! The requests that the hubs of a job send each other. The [`coordinator`] decides what the hubs agree on.
//!
//! ```text
//!   worker --join--> hub 0 --pass: secret, name, first round--> worker --join with the pass--> hub 1, hub 2, ...
//!   hub 0  --proof, secret--> hub 1, hub 2, ...      hold, release, written, lost
//!   hub 1  --proof, secret--> hub 0                  arrived, lost, checkpoint
//! ```
//!
//! The proof shows that the sender is a hub: the job's workers know the job's secret, too, but have no such
//! proof. The secret says which of several jobs with this name is meant.
//!
//! A task that asks other hubs has its own reference to [`Peers`].

mod last;
pub(crate) mod parts;
mod peers;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use authority::{Credential, Right, Token};
use coordinator::{SAVED_WITHIN, Secret};
use pbox_core::Round;
use pbox_core::control::{Answer, PartsReply};
use serde::Serialize;
use tokio::task::JoinSet;

use crate::client::Address;
pub(crate) use peers::held_too_long;

/// The other hubs of a job, and all that requests to these hubs need.
#[derive(Clone, Debug)]
pub(crate) struct Peers {
    pub job: String,
    pub secret: Secret,
    /// The secret that proves requests.
    pub credential: Option<Credential>,
    /// This hub.
    pub own: u32,
    /// All hubs, in the order of the shares; empty if this hub is the only hub.
    pub addresses: Vec<Address>,
    /// Whether each hub owns chunks. A hub without chunks has no part of a checkpoint.
    pub owners: Vec<bool>,
    pub limit: Duration,
}

impl Peers {
    /// Returns the numbers of all hubs except this one.
    pub fn others(&self) -> impl Iterator<Item = u32> {
        (0..self.addresses.len() as u32).filter(|&hub| hub != self.own)
    }

    /// Returns a hub's address, as the workers have given it.
    pub fn name(&self, hub: u32) -> &str {
        &self.addresses[hub as usize].name
    }

    fn token(&self, right: Right) -> Option<Token> {
        self.credential.as_ref().map(|credential| credential.token(right, &self.job))
    }

    /// Sends a request to one hub. `what` names the request in an error.
    pub async fn ask<R: Answer>(
        &self,
        hub: u32,
        verb: &str,
        what: &str,
        request: &impl Serialize,
    ) -> Result<R, String> {
        let path = format!("/v1/jobs/{}/peers/{verb}", self.job);
        let answer =
            self.addresses[hub as usize].post(&path, self.token(Right::Peer), request, self.limit).await;
        answer.map_err(|error| self.unanswered(hub, what, &error))
    }

    /// Returns which checkpoints another hub has.
    pub async fn parts(self: Arc<Self>, hub: u32) -> Result<PartsReply, String> {
        self.ask_for_parts(hub, "", self.limit).await
    }

    /// Asks another hub for its checkpoints. That hub first reads its part of a round, which may take long.
    pub async fn check_part(self: Arc<Self>, hub: u32, round: Round) -> Result<PartsReply, String> {
        self.ask_for_parts(hub, &format!("/{}", round.0), SAVED_WITHIN).await
    }

    async fn ask_for_parts(&self, hub: u32, check: &str, limit: Duration) -> Result<PartsReply, String> {
        let path = format!("/v1/jobs/{}/parts/{hub}/{}{check}", self.job, self.addresses.len());
        let answer = self.addresses[hub as usize].get(&path, self.token(Right::Read), limit).await;
        answer.map_err(|error| self.unanswered(hub, "say which checkpoints it has", &error))
    }

    /// Asks all other hubs at the same time; the answers are in the order of the hubs.
    pub async fn ask_all<R: Answer + Send + 'static>(
        self: &Arc<Self>,
        verb: &'static str,
        what: &'static str,
        request: impl Serialize + Clone + Send + Sync + 'static,
    ) -> Vec<Result<R, String>> {
        let ask = |peers: Arc<Self>, hub| {
            let request = request.clone();
            async move { peers.ask(hub, verb, what, &request).await }
        };
        self.at_once(self.others(), ask).await
    }

    /// Runs a task with several hubs at the same time. The results are in the order of the hubs.
    pub async fn at_once<R: Send + 'static, F: Future<Output = Result<R, String>> + Send + 'static>(
        self: &Arc<Self>,
        hubs: impl Iterator<Item = u32>,
        act: impl Fn(Arc<Self>, u32) -> F,
    ) -> Vec<Result<R, String>> {
        let mut acts = JoinSet::new();
        let mut results = Vec::new();
        for (place, hub) in hubs.enumerate() {
            let act = act(Arc::clone(self), hub);
            acts.spawn(async move { (place, act.await) });
            // If this hub stops, these requests end early.
            results.push(Err(format!("this hub stopped before hub {hub} of the job had answered")));
        }
        while let Some(ended) = acts.join_next().await {
            if let Ok((place, result)) = ended {
                results[place] = result;
            }
        }
        results
    }

    fn unanswered(&self, hub: u32, what: &str, error: &str) -> String {
        format!(
            "hub {hub} of the job, at {}, was asked to {what}: {error} (the hubs of a job must reach each other at the \
             addresses that its workers have)",
            self.name(hub)
        )
    }
}
