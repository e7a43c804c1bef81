//! Commands: work that a core thread does between two turns, as data that can be printed.
//!
//! A command names its job by number, and a worker by its rank. Windows, links and shards have no numbers
//! yet, so a command carries them. This module does not depend on cores: [`obey`](super::obey) carries
//! commands out.

use std::fmt;
use std::sync::Arc;
use std::sync::mpsc::Sender;

use fabric::{Crossed, RecvWindow, Slab, Spans, any};
use pbox_core::{
    Front, Gauged, JobId, KeyId, Layout, LevelTerms, Look, MadeShard, Numbers, Occasion, Restored, Round,
    SnapshotPart, Watched,
};
use tokio::sync::oneshot;

use crate::Event;

/// Work for a core thread between two turns.
#[derive(Debug)]
#[allow(missing_docs)] // each variant says what its fields are for
pub enum Command {
    /// Do nothing. If the thread takes this command, the hub knows that the thread does not hang.
    Nothing,
    /// End the thread.
    Stop,
    /// Return the last events.
    Events(Carried<Sender<LastEvents>>),
    /// Own the chunks of a new job.
    AddShard { job: JobId, shard: Box<MadeShard> },
    /// Give a new job its state, before any worker takes part in it.
    Restore { job: JobId, layout: Carried<Arc<Layout>>, state: Carried<Arc<Restored>> },
    /// Take a worker's link. A weights window is the memory into which the hub writes weights. `weights` is the core's
    /// part of this worker's own window; `None` if the workers share a window.
    AddWorker {
        job: JobId,
        rank: u32,
        gradients: Carried<Arc<RecvWindow>>,
        weights: Carried<Option<Spans>>,
        link: Box<any::Endpoint>,
    },
    /// Drop the lost link of a worker. The worker makes a new link.
    UnlinkWorker { job: JobId, rank: u32 },
    /// Remove a worker.
    RemoveWorker { job: JobId, rank: u32 },
    /// Take the links to hubs above.
    AddAbove { job: JobId, level: LevelTerms, links: Carried<CoreLinksAbove> },
    /// Drop the links to hubs above.
    UnlinkAbove { job: JobId },
    /// Begin with the round that the hubs above have begun with.
    BeginBelow { job: JobId, first: Round, reply: Reply<()> },
    /// Pause a job: finish no more rounds, and return the rounds in flight.
    Hold { job: JobId, reply: Reply<Option<Front>> },
    /// Return the round that each worker has reached in a paused job.
    Lines { job: JobId, reply: Reply<Vec<Option<Round>>> },
    /// End a paused job: let no chunk pass the round `before`. If workers step alone (SSP, ASP), the limit is not
    /// `before`: each worker has its own limit in `lines`.
    EndBefore { job: JobId, before: Round, lines: Arc<[Option<Round>]>, reply: Reply<()> },
    /// Copy the state that a paused job has before a round.
    TakeSnapshot { job: JobId, occasion: Occasion, before: Round },
    /// Take back the memory of a snapshot's part; `None` if the memory is lost, or used by clients. After
    /// that, the next snapshot may be taken.
    GiveBack { job: JobId, values: Option<Slab> },
    /// Keep memory for the next snapshot of a job: the memory of a part that clients have read. `None` if no client
    /// reads any more. Memory is then kept only for checkpoints that will be due.
    Keep { job: JobId, values: Option<Slab> },
    /// Let a paused job continue. The admitted ranks take part from the round `from` on. `ahead` has the
    /// number of rounds that is added to `from`, for each rank.
    Release { job: JobId, from: Round, admitted: Arc<[u32]>, ahead: Arc<[u32]>, reply: Reply<()> },
    /// Change the optimizer's hyperparameters from a round on, and set the state of keys to zero. Return the oldest
    /// round in flight.
    SetNumbers { job: JobId, from: Round, numbers: Numbers, reset: Arc<[KeyId]>, reply: Reply<Option<Round>> },
    /// Set the order of the answers to a worker, by the priority of each key.
    SetPriorities { job: JobId, rank: u32, priorities: Arc<[u32]>, reply: Reply<()> },
    /// Return whether rounds progress, and for which workers they wait.
    Look { job: JobId, reply: Reply<Look> },
    /// Return the measurements of the last rounds.
    Measure { job: JobId, reply: Reply<Measured> },
    /// Return the last state of a job that has failed while it was paused; `None` if the core has no chunks of
    /// the job.
    LastState { job: JobId, before: Round, reply: Reply<Option<Result<SnapshotPart, String>>> },
    /// End a job.
    RemoveJob { job: JobId },
}

/// A core's links to the hubs above. Each link has the window that the hub above writes, unless the workers read that
/// window themselves.
pub type CoreLinksAbove = Vec<(any::Endpoint, Option<Arc<RecvWindow>>)>;

/// A core's number, its last events, and the number of earlier events. There are no events without a
/// timeline.
pub type LastEvents = (usize, (Vec<Event>, u64));

/// The measurements of a core in a job's last rounds.
#[derive(Debug)]
pub struct Measured {
    /// The round of the chunk that the core checked last.
    pub round: Round,
    /// The time for which the core waited for each worker.
    pub watched: Watched,
    /// The norms and other measurements of the gradients.
    pub gauged: Gauged,
    /// The bytes that crossed the workers' links to this core, by rank; none on shared memory.
    pub crossed: Vec<(u32, Crossed)>,
}

/// The channel for a core's answer. If the core ends, the channel closes without an answer.
pub struct Reply<T>(oneshot::Sender<T>);

impl<T> Reply<T> {
    /// Creates the sender for the core and the receiver for the thread that asks.
    pub fn new() -> (Self, oneshot::Receiver<T>) {
        let (reply, answer) = oneshot::channel();
        (Reply(reply), answer)
    }

    /// Sends the answer, unless the receiver has been dropped.
    pub fn send(self, answer: T) {
        let _ = self.0.send(answer);
    }
}

impl<T> fmt::Debug for Reply<T> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Reply")
    }
}

/// A value that has no number, such as a window. It may be as large as a model, so only its type is printed.
pub struct Carried<T>(pub T);

impl<T> fmt::Debug for Carried<T> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(std::any::type_name::<T>())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_printed_in_a_line() {
        let (job, (reply, _answer)) = (JobId(3), Reply::new());
        let release = Command::Release { job, from: Round(8), admitted: [1].into(), ahead: [].into(), reply };
        let said = "Release { job: JobId(3), from: Round(8), admitted: [1], ahead: [], reply: Reply }";
        assert_eq!(format!("{release:?}"), said);
        let layout = Carried(Arc::new(Layout::none()));
        assert!(format!("{layout:?}").contains("Layout"));
    }
}
