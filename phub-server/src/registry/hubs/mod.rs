//! The hubs of a job, as one of them knows them. Hub 0 leads: it decides where the job is cut, and which workers take
//! part from there on. A job of one hub is led by it, and has nobody to ask.
//!
//! ```text
//!   worker --join--> hub 0 --pass: secret, name, first round--> worker --join with the pass--> hub 1, hub 2, ...
//!   hub 0  --proof, secret--> hub 1, hub 2, ...      hold, release, written, lost
//!   hub 1  --proof, secret--> hub 0                  arrived, lost, checkpoint
//! ```
//!
//! The proof says that who asks is a hub: its workers know the job's secret, too. The secret says which job of this name is meant.
//!
//! Owned by a job, under the registry's lock; [`Peers`] is what a task takes along to ask.

pub(crate) mod agreement;
mod last;
pub(crate) mod parts;
mod peers;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use authority::{Credential, Right, Token, hex, unhex};
use pbox_core::control::{Answer, PartsReply, Pass, ReleaseRequest, WholeRounds};
use pbox_core::job::MAX_WORKERS;
use pbox_core::{Piece, Round, Share};
use serde::Serialize;
use tokio::sync::OwnedMutexGuard;
use tokio::task::JoinSet;

use crate::client::Address;
use crate::registry::saved::checkpoint::DISK_LIMIT;
use agreement::{Arrivals, Files, Follower, StaleCut};
pub(crate) use last::{Ending, Order};

/// Names one of the jobs that have had a name: what hub 0 drew when it made the job. Its workers know it, too, so it proves nothing.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Secret(pub [u8; 16]);

impl Secret {
    /// Reads 32 hexadecimal digits.
    pub fn parse(text: &str) -> Option<Self> {
        unhex(text).map(Secret)
    }

    /// Whether a request shows the secret. The time does not depend on which digit is wrong.
    pub fn is(&self, shown: &str) -> bool {
        let Some(Secret(shown)) = Secret::parse(shown) else { return false };
        self.0.iter().zip(shown).fold(0, |differing, (ours, theirs)| differing | (ours ^ theirs)) == 0
    }

    /// As a request shows it.
    pub fn show(&self) -> String {
        hex(&self.0)
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret")
    }
}

/// The hubs of one job.
#[derive(Debug)]
pub(crate) struct Hubs {
    pub share: Share,
    /// What this hub owns of each key.
    pub pieces: Vec<Piece>,
    /// The others.
    pub peers: Arc<Peers>,
    /// The round of the checkpoint that the job goes on from, or 0.
    pub first_round: Round,
    /// The rounds of this hub's parts of checkpoints, ascending.
    pub rounds: Vec<Round>,
    /// Which rounds are whole, as far as this hub knows: hub 0 tells the others.
    pub whole: WholeRounds,
    /// At hub 0: the number of cuts that it has begun, and of workers that it has admitted.
    cuts: u64,
    workers: u64,
    /// At hub 0: which newcomers have arrived at which hubs.
    pub arrivals: Arrivals,
    /// At hub 0: which hub has which files.
    files: Files,
    /// At the other hubs: the cuts of hub 0, and the lock that keeps other cuts from beginning here meanwhile.
    pub held: Follower,
    lease: Option<OwnedMutexGuard<()>>,
    /// The highest round of this hub's chunks when hub 0 began the last cut.
    pub front: Option<Round>,
}

impl Hubs {
    /// The hubs of a job that begins. `files` are the rounds of the files of each hub that owns chunks; of another hub
    /// than hub 0, only its own.
    pub fn new(
        share: Share,
        pieces: Vec<Piece>,
        peers: Arc<Peers>,
        first_round: Round,
        files: Vec<(u32, Vec<Round>)>,
    ) -> Self {
        let own = files.iter().find(|(hub, _)| *hub == share.hub);
        let rounds = own.map(|(_, rounds)| rounds.clone()).unwrap_or_default();
        let files = Files::new(files);
        let whole = if share.hub == 0 { files.whole() } else { WholeRounds::default() };
        let (arrivals, held) = (Arrivals::default(), Follower::default());
        let (cuts, workers, lease, front) = (0, 0, None, None);
        Hubs {
            share,
            pieces,
            peers,
            first_round,
            rounds,
            whole,
            cuts,
            workers,
            arrivals,
            files,
            held,
            lease,
            front,
        }
    }

    /// Whether this hub leads.
    pub fn leads(&self) -> bool {
        self.share.hub == 0
    }

    /// A pass for the next worker that hub 0 lets in.
    pub fn next_pass(&mut self, checkpoints: bool) -> Pass {
        self.workers += 1;
        let (secret, worker, first_round) = (self.peers.secret.show(), self.workers, self.first_round);
        Pass { secret, worker, first_round, checkpoints }
    }

    /// Hub 0 begins a cut. Returns the cut's number.
    pub fn next_cut(&mut self) -> u64 {
        self.cuts += 1;
        self.cuts
    }

    /// Hub 0 has begun a cut, and nothing else here stops the job meanwhile.
    pub fn hold(&mut self, cut: u64, lease: OwnedMutexGuard<()>) -> Result<(), StaleCut> {
        if self.leads() {
            return Err(StaleCut { asked: cut, last: self.cuts });
        }
        self.held.hold(cut)?;
        self.lease = Some(lease);
        Ok(())
    }

    /// The cut is over. Returns the lock that kept other cuts from beginning: drop it when the job goes on.
    pub fn release(&mut self, cut: u64) -> Result<Option<OwnedMutexGuard<()>>, StaleCut> {
        self.held.release(cut)?;
        Ok(self.lease.take())
    }

    /// Whether the cut that hub 0 ends can be where it says, and lets in no more workers than the job has.
    pub fn check_release(
        &self,
        ReleaseRequest { from, admitted, snapshot, ends, .. }: &ReleaseRequest,
    ) -> Result<(), String> {
        let does_something = *snapshot || *ends || !admitted.is_empty();
        if admitted.len() > MAX_WORKERS as usize {
            return Err(format!("{} workers are admitted: a job has at most {MAX_WORKERS}", admitted.len()));
        }
        match self.front {
            Some(front) if !from.is_near(front) || does_something && *from < front => Err(format!(
                "a cut before round {}: this hub's chunks have come to round {}, and those of all hubs are at most {} rounds apart",
                from.0,
                front.0,
                Round::APART
            )),
            _ => Ok(()),
        }
    }

    /// The job has failed: nobody waits for the end of a cut any more.
    pub fn end_hold(&mut self) {
        self.lease = None;
    }

    /// Notes which files a hub has now.
    pub fn has_files(&mut self, hub: u32, rounds: Vec<Round>) {
        if hub == self.share.hub {
            self.rounds.clone_from(&rounds);
        }
        if self.leads() {
            self.files.report(hub, rounds);
            self.whole = self.files.whole();
        }
    }
}

/// Asks the other hubs of a job.
#[derive(Clone, Debug)]
pub(crate) struct Peers {
    pub job: String,
    pub secret: Secret,
    /// The secret that proves requests.
    pub credential: Option<Credential>,
    /// This hub.
    pub own: u32,
    /// All hubs, in the order of the shares; empty if this hub is the only one.
    pub addresses: Vec<Address>,
    /// Which hubs own chunks: the others have no part of a checkpoint.
    pub owners: Vec<bool>,
    /// How long to wait for an answer.
    pub limit: Duration,
}

impl Peers {
    /// The numbers of the other hubs.
    pub fn others(&self) -> impl Iterator<Item = u32> {
        (0..self.addresses.len() as u32).filter(|&hub| hub != self.own)
    }

    /// A hub's address, as the workers name it.
    pub fn name(&self, hub: u32) -> &str {
        &self.addresses[hub as usize].name
    }

    fn token(&self, right: Right) -> Option<Token> {
        self.credential.as_ref().map(|credential| credential.token(right, &self.job))
    }

    /// Asks one hub. `what` says in an error what the hub was asked to do.
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

    /// Which checkpoints another hub has.
    pub async fn parts(self: Arc<Self>, hub: u32) -> Result<PartsReply, String> {
        self.ask_for_parts(hub, "", self.limit).await
    }

    /// The same after the hub has read its part of a round, which may take long.
    pub async fn check_part(self: Arc<Self>, hub: u32, round: Round) -> Result<PartsReply, String> {
        self.ask_for_parts(hub, &format!("/{}", round.0), DISK_LIMIT).await
    }

    async fn ask_for_parts(&self, hub: u32, check: &str, limit: Duration) -> Result<PartsReply, String> {
        let path = format!("/v1/jobs/{}/parts/{hub}/{}{check}", self.job, self.addresses.len());
        let answer = self.addresses[hub as usize].get(&path, self.token(Right::Read), limit).await;
        answer.map_err(|error| self.unanswered(hub, "say which checkpoints it has", &error))
    }

    /// Asks all others at the same time; the answers are in the order of the hubs.
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

    /// Does something with several hubs at the same time; the results are in the order of the hubs.
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
            // What a stop of this hub cuts short.
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
