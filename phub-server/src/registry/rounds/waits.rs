//! Waits for a cut of a job, for its state and for its last state, which the job owns; and for the answers of cores.

use std::collections::HashMap;
use std::hash::Hash;

use coordinator::{CutId, JobEnded, NotCut};
use pbox_core::Round;
use pbox_core::control::{FailedReply, LastReply};
use tokio::sync::oneshot;

/// The round before which a cut is, or the round that a held job's chunks have reached; or why there is no
/// cut.
pub(crate) type Came = Result<Option<Round>, NotCut>;

/// The requests that wait for a cut to end, or to hold the job for hub 0.
pub(crate) type WaitForCuts = Waiting<CutId, Came>;

/// Requests that wait for answers of the coordinator, by their numbers.
#[derive(Debug)]
pub(crate) struct Waiting<K, T>(HashMap<K, oneshot::Sender<T>>);

impl<K, T> Default for Waiting<K, T> {
    fn default() -> Self {
        Waiting(HashMap::new())
    }
}

impl<K: Eq + Hash, T> Waiting<K, T> {
    /// Waits for an answer. It never comes if the job ends.
    pub fn wait_for(&mut self, number: K) -> oneshot::Receiver<T> {
        let (done, answer) = oneshot::channel();
        self.0.insert(number, done);
        answer
    }

    /// Notifies the waiting thread, if there is one.
    pub fn tell(&mut self, number: &K, answer: T) {
        if let Some(done) = self.0.remove(number) {
            let _ = done.send(answer); // it may have hung up
        }
    }
}

/// Other hubs that wait for an answer about the last state.
#[derive(Debug, Default)]
pub(crate) struct WaitForLast {
    /// Whether this hub holds the job.
    pub holds: Vec<oneshot::Sender<FailedReply>>,
    /// The thread that waits for this hub's part.
    pub part: Option<oneshot::Sender<Result<LastReply, String>>>,
}

impl WaitForLast {
    /// Answers all hubs that ask whether this hub holds the job.
    pub fn tell_holds(&mut self, holds: &FailedReply) {
        self.holds.drain(..).for_each(|done| drop(done.send(holds.clone()))); // they may have hung up
    }

    /// Sends hub 0 the result of this hub's part, if hub 0 asks for it.
    pub fn tell_part(&mut self, part: Result<LastReply, String>) {
        self.part.take().into_iter().for_each(|done| drop(done.send(part.clone())));
    }
}

/// Returns the answers of all cores that were asked, without those of cores that stop.
pub(crate) async fn answers<T>(asked: Vec<oneshot::Receiver<T>>) -> Result<Vec<T>, JobEnded> {
    let mut answers = Vec::with_capacity(asked.len());
    for answer in asked {
        answers.push(answer.await.map_err(|_| JobEnded)?);
    }
    Ok(answers)
}
