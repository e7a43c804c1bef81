//! A job as this hub runs it: the coordinator's job, and what it has here of memory, cores, files and connections.
//!
//! Owned by the registry, under its lock, which publishes the news.

#[cfg(test)]
mod tests;

use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::time::Instant;

use coordinator::{Blame, Effect, Saves, not_finite, verdict};
use fabric::{PlannedLink, SendWindow};
use pbox_core::control::{HeartbeatReply, JobReply};
use pbox_core::{Discarded, Layout, Placement, Round, Wire};
use tokio::sync::watch;

use super::above::{JoinedAbove, RelinksAbove};
use super::hubs::Peers;
use super::saved::collected::Checkpoints;
use super::waits::{WaitForCuts, WaitForLast};

/// The hub's cores that own a job's chunks.
#[derive(Debug)]
pub(crate) struct Cores {
    /// Their numbers, in the order of the placement.
    pub numbers: Vec<usize>,
    /// The placement of the hub's chunks on these cores.
    pub placement: Placement,
    /// The links of each worker to them.
    pub links: Vec<PlannedLink>,
    /// How many of the cores own chunks: all, unless the job has fewer chunks than cores.
    pub owners: usize,
}

/// The load that a job which is being made will be for cores.
#[derive(Debug, Default)]
pub(crate) struct Load {
    pub cores: Vec<usize>,
    /// The load on each of them.
    pub bytes: u64,
}

/// One job. Its state is that of the coordinator's job.
#[derive(Debug)]
pub(crate) struct Job {
    state: coordinator::Job,
    pub wire: Wire,
    /// How many keys it has, and their bytes.
    model: (usize, u64),
    pub cores: Arc<Cores>,
    /// The weights: the window of all workers, or with SSP and ASP the hub's own. `None` once the job has failed.
    pub weights: Option<Arc<SendWindow>>,
    pub(super) wait_for_cuts: WaitForCuts,
    pub checkpoints: Checkpoints,
    /// Asks the other hubs of the job.
    pub peers: Arc<Peers>,
    /// The hubs above, until the job fails.
    pub above: Option<Arc<JoinedAbove>>,
    /// Whether the links to them are lost, and made again.
    pub(super) relinks_above: RelinksAbove,
    pub(super) wait_for_last: WaitForLast,
    /// The news that were published last.
    pub told: watch::Sender<HeartbeatReply>,
}

impl Deref for Job {
    type Target = coordinator::Job;

    fn deref(&self) -> &coordinator::Job {
        &self.state
    }
}

impl DerefMut for Job {
    fn deref_mut(&mut self) -> &mut coordinator::Job {
        &mut self.state
    }
}

impl Job {
    pub fn new(
        state: coordinator::Job,
        wire: Wire,
        cores: Arc<Cores>,
        weights: Arc<SendWindow>,
        peers: Arc<Peers>,
    ) -> Self {
        Job {
            told: watch::Sender::new(state.news.now().clone()),
            state,
            model: (wire.layout().keys().len(), wire.layout().model_bytes()),
            wire,
            cores,
            weights: Some(weights),
            wait_for_cuts: WaitForCuts::default(),
            checkpoints: Checkpoints::default(),
            peers,
            above: None,
            relinks_above: RelinksAbove::default(),
            wait_for_last: WaitForLast::default(),
        }
    }

    /// Publishes the news, if they have changed.
    pub fn publish(&mut self) {
        if let Some(news) = self.state.news.take() {
            self.told.send_if_modified(|told| {
                let is_news = told.version != news.version;
                told.clone_from(news);
                is_news
            });
        }
    }

    /// Ends the job for all its workers: on its own account, or because the hub stops. Nobody waits for the end of a cut any more.
    pub fn fail(&mut self, reason: &str, blame: Blame, saves: Option<Saves>) -> Vec<Effect> {
        (self.weights, self.wait_for_cuts) = (None, WaitForCuts::default());
        match saves {
            Some(saves) => self.state.fail_and_save(reason, blame, saves, Instant::now()),
            None => self.state.fail(reason, blame == Blame::Hub, Instant::now()),
        }
    }

    /// Gives back what a failed job knows of its keys and chunks: it is there for its news alone.
    pub fn forget_model(&mut self) -> Option<Discarded> {
        let model = self.state.forget_model()?;
        let wire = std::mem::replace(&mut self.wire, Wire::plain(Arc::new(Layout::none())));
        Some(Discarded::of((model, wire)))
    }

    pub fn describe(&self) -> JobReply {
        let (news, rounds) = (self.news.now(), self.rounds.last.reply());
        let round = rounds.as_ref().map_or(Round(0), |rounds| rounds.round).max(self.rounds.progress.round());
        // A checkpoint may be newer than the hub's last look.
        let saved = self.checkpoints.last.as_ref().map_or(Round(0), |checkpoint| checkpoint.round);
        let round = round.max(saved);
        let members = self.describe_members(Instant::now());
        let gradients = self.rounds.last.gradients();
        let mut verdict = verdict(&news.state, round, &news.held_up_by, rounds.as_ref(), &members);
        verdict += &gradients.as_ref().map_or_else(String::new, not_finite);
        JobReply {
            name: self.name.clone(),
            state: news.state.clone(),
            workers: self.terms.workers,
            members,
            round,
            equal_before: self.rounds.digests.equal,
            promised_bytes: self.made.promised,
            above: self.above.as_ref().map_or_else(Vec::new, |above| above.addresses()),
            keys: self.model.0,
            model_bytes: self.model.1,
            checkpoint: self.checkpoints.last.clone(),
            checkpoint_error: self.checkpoints.error.clone(),
            held_up_by: news.held_up_by.clone(),
            checkpoint_warning: self.checkpoints.warning.clone(),
            verdict,
            rounds,
            gradients,
        }
    }
}
