//! This hub's own data of a job: memory, cores, files and connections. The coordinator has all other data of the job.
//!
//! The registry owns this data, under its lock, and publishes the news.

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Instant;

use coordinator::{LastRounds, News, not_finite, verdict};
use fabric::{PlannedLink, SendWindow};
use pbox_core::control::JobReply;
use pbox_core::{JobCores, JobId, Layout, Placement, Round, Wire};
use tokio::sync::watch;

use super::above::{JoinedAbove, RelinksAbove};
use super::hubs::Peers;
use super::saved::collected::Checkpoints;
use crate::registry::rounds::waits::{WaitForCuts, WaitForLast};

/// The hub's cores that own a job's chunks.
#[derive(Debug)]
pub(crate) struct Cores {
    /// The numbers of the cores, in the order of the placement.
    pub numbers: Vec<usize>,
    /// The NUMA nodes and the speeds of the cores.
    pub job_cores: JobCores,
    /// The placement of the hub's chunks on these cores.
    pub placement: Placement,
    /// The links of each worker to these cores.
    pub links: Vec<PlannedLink>,
}

/// The load that a job will put on its cores, while the job is being made.
#[derive(Debug, Default)]
pub(crate) struct Load {
    pub cores: Vec<usize>,
    /// The bytes of the model on each of the cores.
    pub bytes: u64,
}

/// This hub's own data of a job. The coordinator has all other data of the job.
#[derive(Debug)]
pub(crate) struct Job {
    pub id: JobId,
    pub name: String,
    pub wire: Wire,
    /// The number of the model's keys, and their bytes.
    model: (usize, u64),
    pub cores: Arc<Cores>,
    /// The window of weights. All workers share this window; with SSP and ASP, only the hub uses it. `None` once the
    /// job has failed.
    pub weights: Option<Arc<SendWindow>>,
    pub(super) wait_for_cuts: WaitForCuts,
    pub checkpoints: Checkpoints,
    /// The other hubs of the job.
    pub peers: Arc<Peers>,
    /// The hubs above, until the job fails.
    pub above: Option<Arc<JoinedAbove>>,
    /// The state of the links to the hubs above: lost, or being replaced.
    pub(super) relinks_above: RelinksAbove,
    pub(super) wait_for_last: WaitForLast,
    /// The round that the cores reported last. It is known even in a job of one worker, whose `last_rounds` stay empty
    /// because no core waits for another worker.
    pub round: Round,
    /// The last rounds, as the cores reported them.
    pub last_rounds: LastRounds,
    /// The news that was published last.
    pub published: watch::Sender<News>,
}

impl Job {
    pub fn new(
        state: &coordinator::Job,
        wire: Wire,
        cores: Arc<Cores>,
        weights: Arc<SendWindow>,
        peers: Arc<Peers>,
    ) -> Self {
        Job {
            id: state.spec.id,
            name: state.spec.name.to_owned(),
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
            round: Round(0),
            last_rounds: LastRounds::default(),
            published: watch::Sender::new(state.news.clone()),
        }
    }

    /// Publishes the news, if it has changed.
    pub fn publish(&mut self, state: &coordinator::Job) {
        if self.published.borrow().edition() != state.news.edition() {
            self.published.send_if_modified(|published| {
                let is_news = state.news.is_after(published.now().version);
                published.clone_from(&state.news);
                is_news
            });
        }
    }

    /// Drops the parts that only a running job has. This ends the requests that wait for a cut.
    pub fn fail(&mut self) {
        (self.weights, self.wait_for_cuts) = (None, WaitForCuts::default());
        self.checkpoints.end();
    }

    /// Removes the wire format of a failed job, and returns it. Only the news of a failed job is still needed.
    pub fn forget_wire(&mut self) -> Option<Wire> {
        let is_known = !self.wire.layout().keys().is_empty();
        is_known.then(|| std::mem::replace(&mut self.wire, Wire::plain(Arc::new(Layout::none()))))
    }

    pub fn describe(&self, state: &coordinator::Job) -> JobReply {
        let (news, rounds) = (state.news.now(), self.last_rounds.reply());
        let round = rounds.as_ref().map_or(self.round, |rounds| rounds.round).max(state.progress.round());
        // A checkpoint may be of a later round than the last report of the cores.
        let checkpoints = &state.checkpoints;
        let saved = checkpoints.last.as_ref().map_or(Round(0), |checkpoint| checkpoint.round);
        let round = round.max(saved);
        let members = state.members.describe(Instant::now());
        let gradients = self.last_rounds.gradients();
        let mut verdict = verdict(&news.state, round, &news.held_up_by, rounds.as_ref(), &members);
        verdict += &gradients.as_ref().map_or_else(String::new, not_finite);
        JobReply {
            name: self.name.clone(),
            state: news.state.clone(),
            workers: state.spec.terms.workers,
            members,
            round,
            equal_before: state.digests.equal,
            promised_bytes: if state.life.failed() { 0 } else { state.spec.made.promised },
            above: self.above.as_ref().map_or_else(Vec::new, |above| above.addresses()),
            keys: self.model.0,
            model_bytes: self.model.1,
            checkpoint: checkpoints.last.clone(),
            checkpoint_error: checkpoints.error.clone(),
            held_up_by: news.held_up_by.clone(),
            checkpoint_warning: self.checkpoints.warning.clone(),
            verdict,
            rounds,
            gradients,
            readers: self.checkpoints.reads.reply(),
        }
    }
}
