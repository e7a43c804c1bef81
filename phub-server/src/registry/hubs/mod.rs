//! The hubs of a job that is spread over several, as one of them knows them. Hub 0 leads: it decides where the job is
//! cut, and which workers take part from there on.
//!
//! ```text
//!   worker --join--> hub 0 --pass: secret, name, first round--> worker --join with the pass--> hub 1, hub 2, ...
//!   hub 0  --secret--> hub 1, hub 2, ...      hold, release, written, lost
//!   hub 1  --secret--> hub 0                  arrived, lost, checkpoint
//! ```
//!
//! Owned by a job, under the registry's lock; [`Peers`] is what a task takes along to ask.

pub(crate) mod agreement;
pub(crate) mod parts;
mod peers;

use std::sync::Arc;
use std::time::Duration;

use pbox_core::control::{Pass, Peers as PeersOfJoin, WholeRounds};
use pbox_core::{Piece, Round, Share};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::OwnedMutexGuard;
use tokio::task::JoinSet;

use crate::client::Address;
use agreement::{Arrivals, Files, Follower, StaleCut};

/// What proves that a request is of a hub of the job. Only its workers and hubs know it.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Secret([u8; 16]);

impl Secret {
    pub fn new(random: [u8; 16]) -> Self {
        Secret(random)
    }

    /// From 32 hexadecimal digits.
    pub fn parse(text: &str) -> Option<Self> {
        let is_hex = text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let number = is_hex.then(|| u128::from_str_radix(text, 16).ok()).flatten()?;
        Some(Secret(number.to_be_bytes()))
    }

    /// Whether a request shows it. Takes as long whichever digit is wrong.
    pub fn is(&self, shown: &str) -> bool {
        let Some(Secret(shown)) = Secret::parse(shown) else { return false };
        self.0.iter().zip(shown).fold(0, |differing, (ours, theirs)| differing | (ours ^ theirs)) == 0
    }

    /// As a request shows it.
    pub fn show(&self) -> String {
        format!("{:032x}", u128::from_be_bytes(self.0))
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
    pub(crate) secret: Secret,
    /// The round of the checkpoint that the job goes on from, or 0.
    pub first_round: Round,
    /// The rounds of this hub's checkpoint files, ascending.
    pub rounds: Vec<Round>,
    addresses: Arc<Vec<Address>>,
    /// Which hubs own chunks: the others have no part of a checkpoint.
    owners: Vec<bool>,
    pub(crate) role: Role,
}

/// What a hub is to the others.
#[derive(Debug)]
pub(crate) enum Role {
    /// Hub 0.
    Lead(Lead),
    /// Every other hub.
    Follower {
        cuts: Follower,
        /// While the job is held: no other cut begins.
        lease: Option<OwnedMutexGuard<()>>,
        /// What hub 0 last said of all hubs' files.
        whole: WholeRounds,
    },
}

/// What only hub 0 keeps.
#[derive(Debug)]
pub(crate) struct Lead {
    cuts: u64,
    workers: u64,
    pub arrivals: Arrivals,
    pub files: Files,
}

/// What a hub of several begins a job with.
#[derive(Debug)]
pub(crate) struct Beginning {
    pub secret: Secret,
    pub first_round: Round,
    /// The rounds of the files of each hub that owns chunks; of another hub than hub 0, only its own.
    pub files: Vec<(u32, Vec<Round>)>,
}

impl Hubs {
    pub fn new(
        share: Share,
        pieces: Vec<Piece>,
        owners: Vec<bool>,
        addresses: Arc<Vec<Address>>,
        beginning: Beginning,
    ) -> Self {
        let Beginning { secret, first_round, files } = beginning;
        let rounds = files.iter().find(|(hub, _)| *hub == share.hub).map(|(_, rounds)| rounds.clone());
        let role = match share.hub {
            0 => Role::Lead(Lead {
                cuts: 0,
                workers: 0,
                arrivals: Arrivals::default(),
                files: Files::new(files),
            }),
            _ => Role::Follower { cuts: Follower::default(), lease: None, whole: WholeRounds::default() },
        };
        let rounds = rounds.unwrap_or_default();
        Hubs { share, pieces, secret, first_round, rounds, addresses, owners, role }
    }

    /// Whether this hub leads.
    pub fn leads(&self) -> bool {
        matches!(self.role, Role::Lead(_))
    }

    /// A pass for the next worker that hub 0 lets in.
    pub fn next_pass(&mut self, checkpoints: bool) -> Option<Pass> {
        let Role::Lead(lead) = &mut self.role else { return None };
        lead.workers += 1;
        let (secret, worker, first_round) = (self.secret.show(), lead.workers, self.first_round);
        Some(Pass { secret, worker, first_round, checkpoints })
    }

    /// Hub 0 begins a cut; its number.
    pub fn next_cut(&mut self) -> Option<u64> {
        let Role::Lead(lead) = &mut self.role else { return None };
        lead.cuts += 1;
        Some(lead.cuts)
    }

    /// Hub 0 has begun a cut, and nothing else here stops the job meanwhile.
    pub fn hold(&mut self, cut: u64, lease: OwnedMutexGuard<()>) -> Result<(), StaleCut> {
        let Role::Follower { cuts, lease: of_cut, .. } = &mut self.role else {
            return Follower::default().release(cut);
        };
        cuts.hold(cut)?;
        *of_cut = Some(lease);
        Ok(())
    }

    /// The cut is over; what kept others from beginning is to be dropped when the job goes on.
    pub fn release(&mut self, cut: u64) -> Result<Option<OwnedMutexGuard<()>>, StaleCut> {
        let Role::Follower { cuts, lease, .. } = &mut self.role else {
            return Follower::default().release(cut).map(|()| None);
        };
        cuts.release(cut)?;
        Ok(lease.take())
    }

    /// Whether a cut has begun here and not ended.
    pub fn is_held_by(&self, cut: u64) -> bool {
        matches!(&self.role, Role::Follower { cuts, .. } if cuts.is_held_by(cut))
    }

    /// A worker is not expected at any hub any more.
    pub fn forget(&mut self, worker: u64) {
        if let Role::Lead(lead) = &mut self.role {
            lead.arrivals.forget(worker);
        }
    }

    /// Which rounds are whole, as far as this hub knows.
    pub fn whole(&self) -> WholeRounds {
        match &self.role {
            Role::Lead(lead) => lead.files.whole(),
            Role::Follower { whole, .. } => whole.clone(),
        }
    }

    /// This hub's files are these now.
    pub fn has_files(&mut self, rounds: Vec<Round>) {
        if let Role::Lead(lead) = &mut self.role {
            lead.files.report(self.share.hub, rounds.clone());
        }
        self.rounds = rounds;
    }

    /// Another hub's files are these now.
    pub fn hears_of_files(&mut self, hub: u32, rounds: Vec<Round>) {
        if let Role::Lead(lead) = &mut self.role {
            lead.files.report(hub, rounds);
        }
    }

    /// Asks the others; `job` is the job's name.
    pub fn peers(&self, job: &str, limit: Duration) -> Peers {
        Peers {
            job: job.to_owned(),
            secret: self.secret.clone(),
            own: self.share.hub,
            addresses: Arc::clone(&self.addresses),
            owners: self.owners.clone(),
            limit,
        }
    }
}

/// The addresses in a join. May wait for a name server.
pub(crate) fn addresses(peers: &PeersOfJoin) -> Arc<Vec<Address>> {
    Arc::new(peers.hubs.iter().map(|hub| Address::resolve(hub)).collect())
}

/// Asks the other hubs of a job.
#[derive(Clone, Debug)]
pub(crate) struct Peers {
    pub job: String,
    secret: Secret,
    own: u32,
    addresses: Arc<Vec<Address>>,
    owners: Vec<bool>,
    /// How long to wait for an answer.
    pub limit: Duration,
}

impl Peers {
    /// The secret, to be shown.
    pub fn secret(&self) -> String {
        self.secret.show()
    }

    /// The numbers of the other hubs.
    pub fn others(&self) -> impl Iterator<Item = u32> {
        (0..self.addresses.len() as u32).filter(|&hub| hub != self.own)
    }

    /// The numbers of the other hubs that own chunks.
    pub fn other_owners(&self) -> impl Iterator<Item = u32> {
        self.others().filter(|&hub| self.owners[hub as usize])
    }

    /// A hub's address, as the workers name it.
    pub fn name(&self, hub: u32) -> &str {
        &self.addresses[hub as usize].name
    }

    /// Asks one hub; `what` it is asked to do, for the error.
    pub async fn ask<R: DeserializeOwned>(
        &self,
        hub: u32,
        verb: &str,
        what: &str,
        request: &impl Serialize,
    ) -> Result<R, String> {
        let path = format!("/v1/jobs/{}/peers/{verb}", self.job);
        let answer = self.addresses[hub as usize].post(&path, request, self.limit).await;
        answer.map_err(|error| unanswered(hub, self.name(hub), what, &error))
    }

    /// Asks all others at the same time; the answers are in the order of the hubs.
    pub async fn ask_all<R: DeserializeOwned + Send + 'static>(
        &self,
        verb: &'static str,
        what: &'static str,
        request: impl Serialize + Clone + Send + Sync + 'static,
    ) -> Vec<Result<R, String>> {
        let mut asked = JoinSet::new();
        for hub in self.others() {
            let (peers, request) = (self.clone(), request.clone());
            asked.spawn(async move { (hub, peers.ask::<R>(hub, verb, what, &request).await) });
        }
        let mut answers = asked.join_all().await;
        answers.sort_by_key(|(hub, _)| *hub);
        answers.into_iter().map(|(_, answer)| answer).collect()
    }
}

/// What is said of a hub that did not answer.
pub(crate) fn unanswered(hub: u32, address: &str, what: &str, error: &crate::client::AskError) -> String {
    format!(
        "hub {hub} of the job, at {address}, was asked to {what}: {error} (the hubs of a job must reach each other at the \
         addresses that its workers have)"
    )
}
