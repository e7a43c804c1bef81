//! Waits of requests: for a cut of a job, for its state, for its last state, and for the answers of cores. A cut is a
//! pause between two rounds.

use std::collections::HashMap;
use std::hash::Hash;

use coordinator::{CutId, JobEnded, NotCut};
use pbox_core::Round;
use pbox_core::control::{FailedReply, LastReply};
use tokio::sync::oneshot;

/// The result of a cut: the first round after the cut, or the round that the chunks of a paused job have reached. An
/// error says why there is no cut.
pub(crate) type CutResult = Result<Option<Round>, NotCut>;

/// The requests that wait for the end of a cut, or until the job is paused for hub 0.
pub(crate) type WaitForCuts = Waiting<CutId, CutResult>;

/// Requests that wait for an answer of the coordinator, by number.
#[derive(Debug)]
pub(crate) struct Waiting<K, T>(HashMap<K, oneshot::Sender<T>>);

impl<K, T> Default for Waiting<K, T> {
    fn default() -> Self {
        Waiting(HashMap::new())
    }
}

impl<K: Eq + Hash, T> Waiting<K, T> {
    /// Adds a request, and returns the channel of its answer. The channel closes without an answer if the job
    /// ends.
    pub fn wait_for(&mut self, number: K) -> oneshot::Receiver<T> {
        let (done, answer) = oneshot::channel();
        self.0.insert(number, done);
        answer
    }

    /// Sends the answer to the waiting request, if there is one.
    pub fn tell(&mut self, number: &K, answer: T) {
        if let Some(done) = self.0.remove(number) {
            let _ = done.send(answer); // the request may have ended
        }
    }
}

/// The hubs that wait for this hub's answer about the last state.
#[derive(Debug, Default)]
pub(crate) struct WaitForLast {
    /// The hubs that ask whether this hub still has the job.
    pub holds: Vec<oneshot::Sender<FailedReply>>,
    /// The request that waits until this hub's part is saved.
    pub part: Option<oneshot::Sender<Result<LastReply, String>>>,
}

impl WaitForLast {
    /// Answers all hubs that have asked whether this hub still has the job.
    pub fn tell_holds(&mut self, holds: &FailedReply) {
        self.holds.drain(..).for_each(|done| drop(done.send(holds.clone()))); // a request may have ended
    }

    /// Sends hub 0 the result of saving this hub's part, if hub 0 waits for it.
    pub fn tell_part(&mut self, part: Result<LastReply, String>) {
        self.part.take().into_iter().for_each(|done| drop(done.send(part.clone())));
    }
}

/// Returns the answers of all cores that were asked. Returns an error if a core stops without an answer.
pub(crate) async fn answers<T>(asked: Vec<oneshot::Receiver<T>>) -> Result<Vec<T>, JobEnded> {
    let mut answers = Vec::with_capacity(asked.len());
    for answer in asked {
        answers.push(answer.await.map_err(|_| JobEnded)?);
    }
    Ok(answers)
}
