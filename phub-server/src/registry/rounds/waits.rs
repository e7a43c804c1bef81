//! Waits for a cut of a job, and for its last state, which the job owns; and for the answers of cores.

use std::collections::HashMap;

use coordinator::{CutId, JobEnded, NotCut};
use pbox_core::Round;
use pbox_core::control::{FailedReply, LastReply};
use tokio::sync::oneshot;

use crate::registry::saved::collected::Collects;

/// The round before which a cut is, or to which a held job's chunks have come; or why there is no cut.
pub(crate) type Came = Result<Option<Round>, NotCut>;

/// The requests that wait for a cut to end, or to hold the job for hub 0; each perhaps with the way of a snapshot.
#[derive(Debug, Default)]
pub(crate) struct WaitForCuts(HashMap<CutId, (oneshot::Sender<Came>, Option<Collects>)>);

impl WaitForCuts {
    /// Waits for a cut, which may be for a snapshot.
    pub fn wait_for(&mut self, cut: CutId, collects: Option<Collects>) -> oneshot::Receiver<Came> {
        let (done, came) = oneshot::channel();
        self.0.insert(cut, (done, collects));
        came
    }

    /// Returns the way of the snapshot that a cut is for, if somebody here has asked for it.
    pub fn collects(&mut self, cut: CutId) -> Option<Collects> {
        self.0.get_mut(&cut)?.1.take()
    }

    /// Tells the one who waits, if somebody does.
    pub fn tell(&mut self, cut: CutId, came: Came) {
        if let Some((done, _)) = self.0.remove(&cut) {
            let _ = done.send(came);
        }
    }
}

/// Other hubs that wait for an answer about the last state.
#[derive(Debug, Default)]
pub(crate) struct WaitForLast {
    /// Whether this hub holds the job.
    pub holds: Vec<oneshot::Sender<FailedReply>>,
    /// The one who waits for this hub's part.
    pub part: Option<oneshot::Sender<Result<LastReply, String>>>,
}

impl WaitForLast {
    /// Tells all hubs that ask whether this one holds the job.
    pub fn tell_holds(&mut self, holds: &FailedReply) {
        self.holds.drain(..).for_each(|done| drop(done.send(holds.clone()))); // they may have hung up
    }

    /// Tells hub 0 what came of this hub's part, if it asks.
    pub fn tell_part(&mut self, part: Result<LastReply, String>) {
        self.part.take().into_iter().for_each(|done| drop(done.send(part.clone())));
    }
}

/// Returns the answers of all cores that were asked. A core that stops gives none.
pub(crate) async fn answers<T>(asked: Vec<oneshot::Receiver<T>>) -> Result<Vec<T>, JobEnded> {
    let mut answers = Vec::with_capacity(asked.len());
    for answer in asked {
        answers.push(answer.await.map_err(|_| JobEnded)?);
    }
    Ok(answers)
}
