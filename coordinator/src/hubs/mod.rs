//! The hubs of a job, as one of the hubs knows them. Hub 0 leads: it decides at which round a cut pauses the job, and which
//! workers take part after the cut. In a job of one hub, this hub leads alone.
//!
//! Plain state. Sends no requests.

mod agreement;

use authority::{hex, unhex};
use pbox_core::control::{Pass, RefusalCode, ReleaseRequest, WholeRounds};
use pbox_core::job::MAX_WORKERS;
use pbox_core::{JobTerms, Piece, Round, Share};
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

pub use agreement::{Arrivals, Files, Follower, StaleCut, is_needed, may_write};

use crate::join::Join;
use crate::refused::Refused;

/// A random number that distinguishes a job from all other jobs with the same name. Hub 0 draws the number when it
/// makes the job. The job's workers know the number, too. So a request that shows the number does not prove that a hub
/// sent it.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(pub [u8; 16]);

impl Secret {
    /// Reads 32 hexadecimal digits.
    pub fn parse(text: &str) -> Option<Self> {
        unhex(text).map(Secret)
    }

    /// Whether a request shows this secret. The time of the comparison does not depend on which digit is wrong.
    pub fn is(&self, shown: &str) -> bool {
        let Some(Secret(shown)) = Secret::parse(shown) else { return false };
        self.0.iter().zip(shown).fold(0, |differing, (ours, theirs)| differing | (ours ^ theirs)) == 0
    }

    /// Returns the digits of the secret, for a request.
    pub fn show(&self) -> String {
        hex(&self.0)
    }
}

impl Serialize for Secret {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.show())
    }
}

impl<'de> Deserialize<'de> for Secret {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Secret::parse(&text).ok_or_else(|| D::Error::custom("expected a secret of 32 hexadecimal digits"))
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret")
    }
}

/// The hubs of one job, and what this hub knows of them.
#[derive(Debug)]
pub struct Hubs {
    /// The number of this hub, and the number of hubs.
    pub share: Share,
    /// The names of all hubs, if there are several.
    names: Vec<String>,
    /// The pieces of keys that this hub owns.
    pub pieces: Vec<Piece>,
    /// The number that distinguishes this job from other jobs with the same name.
    pub secret: Secret,
    /// The round of the checkpoint that the job continues from, or 0.
    pub first_round: Round,
    /// The rounds of this hub's parts of checkpoints, ascending.
    pub rounds: Vec<Round>,
    /// The rounds of complete checkpoints that this hub knows. Hub 0 notifies the other hubs of these rounds.
    pub whole: WholeRounds,
    numbered: Numbered,
    /// The newcomers that have links at some hubs, as reported to hub 0.
    pub arrivals: Arrivals,
    /// The files of each hub, as reported to hub 0.
    files: Files,
    /// The cuts of hub 0 of which this hub was notified, if this hub is not hub 0.
    pub held: Follower,
    /// The highest round of this hub's chunks in the current or last cut of hub 0.
    pub front: Option<Round>,
}

/// The counters from which hub 0 numbers its cuts and workers. At other hubs the counters stay 0.
#[derive(Debug, Default)]
struct Numbered {
    /// The number of cuts that hub 0 has begun.
    cuts: u64,
    /// The number of workers that hub 0 has admitted.
    workers: u64,
}

impl Hubs {
    /// Creates the hubs of a job that begins. `files` has, for each hub that owns chunks, the rounds of its files. At hubs
    /// other than hub 0, `files` has only the hub's own rounds.
    pub(crate) fn new(
        (share, names): (Share, Vec<String>),
        pieces: Vec<Piece>,
        secret: Secret,
        first_round: Round,
        files: Files,
    ) -> Self {
        let own = files.of_hubs().find(|(hub, _)| *hub == share.hub);
        let rounds = own.map(|(_, rounds)| rounds.to_vec()).unwrap_or_default();
        // At hubs other than hub 0, the last of the hub's own rounds is complete at all hubs. Hub 0 begins a job only with
        // such a round, and the hub's files of later rounds no longer count.
        let whole = files.whole();
        let (arrivals, held) = (Arrivals::default(), Follower::default());
        let (numbered, front) = (Numbered::default(), None);
        Hubs {
            share,
            names,
            pieces,
            secret,
            first_round,
            rounds,
            whole,
            numbered,
            arrivals,
            files,
            held,
            front,
        }
    }

    /// Returns the name of a hub of the job, for an error.
    pub(crate) fn name(&self, hub: u32) -> String {
        match self.names.get(hub as usize) {
            Some(name) => format!("hub {hub} of the job, at {name},"),
            None => format!("hub {hub} of the job"),
        }
    }

    /// Returns the other hubs that own chunks, and so have files. Only hub 0 knows these hubs; at all other hubs the list
    /// is empty.
    pub(crate) fn others_with_files(&self) -> Vec<u32> {
        let hubs = self.files.of_hubs().map(|(hub, _)| hub);
        hubs.filter(|&hub| self.leads() && hub != self.share.hub).collect()
    }

    /// Whether this hub leads.
    pub fn leads(&self) -> bool {
        self.share.hub == 0
    }

    /// Returns a pass for the next worker that hub 0 admits.
    pub(crate) fn next_pass(&mut self, checkpoints: bool) -> Pass {
        self.numbered.workers += 1;
        let (secret, worker, first_round) = (self.secret.show(), self.numbered.workers, self.first_round);
        Pass { secret, worker, first_round, checkpoints }
    }

    /// Begins a cut of hub 0. Returns the cut's number.
    pub(crate) fn next_cut(&mut self) -> u64 {
        self.numbered.cuts += 1;
        self.numbered.cuts
    }

    /// Notes that hub 0 pauses the job for a cut.
    ///
    /// # Errors
    /// Returns an error if the cut is over, or if this hub is hub 0.
    pub(crate) fn hold(&mut self, cut: u64) -> Result<(), StaleCut> {
        if self.leads() {
            return Err(StaleCut { asked: cut, last: self.numbered.cuts });
        }
        self.held.hold(cut)
    }

    /// Checks, in hub 0's release of a cut, that the cut's round is possible, and that the number of admitted workers
    /// is not above the limit.
    ///
    /// # Errors
    /// Returns the fault, in words, if the cut is not possible.
    pub fn check_release(&self, request: &ReleaseRequest) -> Result<(), String> {
        let ReleaseRequest { from, admitted, .. } = request;
        if admitted.len() > MAX_WORKERS as usize {
            return Err(format!(
                "hub 0 admits {} workers, but a job has at most {MAX_WORKERS}",
                admitted.len()
            ));
        }
        match self.front {
            Some(front) if !from.is_near(front) || !request.asks_for_nothing() && *from < front => {
                Err(format!(
                    "a cut before round {} is not possible: this hub's chunks are at round {}, and the \
                     chunks of all hubs must be at most {} rounds apart",
                    from.0,
                    front.0,
                    Round::APART
                ))
            }
            _ => Ok(()),
        }
    }

    /// Returns the length in bytes of this hub's part of a job's state: weights and optimizer state, in f32.
    pub fn state_bytes(&self, terms: &JobTerms) -> u64 {
        let elements: u64 = self.pieces.iter().map(|piece| piece.elements.len() as u64).sum();
        4 * elements * terms.tensors().saved_per_element() as u64
    }

    /// Checks that a worker's pass is of this job, and not of a later job of the same name.
    pub(crate) fn check_pass(
        &self,
        join: &Join,
        rank_of: impl FnOnce(u64) -> Option<u32>,
    ) -> Result<(), Refused> {
        let (Some((lead, pass)), Join { name, rank, .. }) = (&join.lead, join) else { return Ok(()) };
        if let Some(other) = pass.as_ref().and_then(|pass| rank_of(pass.worker)) {
            let why = format!(
                "job {name:?}: worker {rank} shows the pass of worker {other}, which has already \
                 joined; join hub 0 again, which gives a new pass for each join"
            );
            return Err(Refused::new(RefusalCode::JobDiffers, why));
        }
        let is_ours = |pass: &Pass| self.secret.is(&pass.secret) && self.first_round == pass.first_round;
        if pass.as_ref().is_none_or(is_ours) {
            return Ok(());
        }
        let why = format!(
            "job {name:?} at hub 0, at {lead}, is not the job of this hub; if hub 0 was started again, this hub's job ends soon: \
             try again; otherwise use another job name"
        );
        Err(Refused::new(RefusalCode::JobDiffers, why))
    }

    /// Notes which files a hub has now.
    pub(crate) fn note_files(&mut self, hub: u32, rounds: Vec<Round>) {
        if hub == self.share.hub {
            self.rounds.clone_from(&rounds);
        }
        if self.leads() {
            self.files.report(hub, rounds);
            self.whole = self.files.whole();
        }
    }
}
