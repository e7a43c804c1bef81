//! Cuts: a running job pauses between two rounds, for new members and for snapshots. The pause is called a hold.
//!
//! | a cut | its steps |
//! | --- | --- |
//! | lets all members of a job begin | the hubs above begin, if there are any; hold; release |
//! | lets a newcomer take part | hold; the other hubs hold; release of the other hubs; release |
//! | takes a snapshot | hold; the other hubs hold; the cores take the snapshot; release of the other hubs; release |
//! | takes a snapshot of this hub alone, now or before a later round | hold; the cores take the snapshot; release |
//! | follows a cut of hub 0 | hold; wait until hub 0 releases; the cores take a snapshot, if hub 0 requests one; release |
//!
//! ```text
//!   hold ----> every core: finish no round, report the rounds in flight
//!        <---- fronts: chunk a is in round 7, chunk b in round 8: the cut is before round 8
//!   release -> every core: admitted workers take part from round 8 on, and get the weights of round 7:
//!              a chunk that has these weights sends them now, any other chunk when it has them; likewise for a snapshot
//! ```
//!
//! A job has one cut at a time, and further cuts wait. A hold lasts as long as two messages to every core, and two
//! messages to every other hub. A hold never waits for a worker.

mod events;
mod flow;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use pbox_core::control::{HoldRequest, ReleaseRequest};
use pbox_core::{Occasion, Round};
use serde::{Deserialize, Serialize};

use crate::hubs::StaleCut;

/// The limit on how many rounds ahead of the furthest chunk a client may ask for the state.
const AHEAD: u32 = 1024;

/// The number of a cut at this hub.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct CutId(u64);

/// The reason for a cut.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub enum Purpose {
    /// Workers take part from the cut on. Each worker is given by its number at all hubs, because another worker may have its
    /// rank when the cut takes place.
    Admit(Arc<[u64]>),
    /// The cores take a snapshot.
    Snapshot(CutAt),
    /// This hub follows a cut of hub 0, which has this number at hub 0.
    Follow(u64),
}

/// The round of a cut for a snapshot, and the hubs that take part in the cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub enum CutAt {
    /// All hubs of the job take part, before the same round. Hub 0 leads the cut.
    AllHubs,
    /// This hub alone takes part, before the round of its furthest chunk.
    ThisHub,
    /// This hub alone takes the snapshot before this round, which may be in the future. A client that reads the state
    /// asks each hub for the same round.
    Before(Round),
    /// All hubs of the job take part, because the job is about to end. The job's workers make no round after the cut: that
    /// round would be lost.
    LastRound,
}

/// A step of a cut, which the driver carries out. The driver reports the result of each step except `TakeSnapshot`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Join the job at the hubs above.
    BeginAbove,
    /// Let all cores begin with this round of the hubs above.
    BeginBelow(Round),
    /// Hold the job on all cores.
    Hold,
    /// Ask the other hubs to pause the job.
    HoldOthers(HoldRequest),
    /// Ask all cores for each worker's line: the first round in which no chunk has stepped the worker's push.
    Lines,
    /// Let no chunk pass this round. If workers step alone (SSP, ASP), the limit is not this round: each worker has its
    /// own limit in the list.
    EndBefore(Round, Arc<[Option<Round>]>),
    /// Let all cores take a snapshot before this round.
    TakeSnapshot(Occasion, Round),
    /// Ask the other hubs to release the job.
    ReleaseOthers(ReleaseRequest),
    /// Release the job on all cores.
    Release {
        /// The round from which the admitted ranks take part.
        from: Round,
        /// The admitted ranks.
        admitted: Arc<[u32]>,
        /// Each rank's lead over the slowest worker, in rounds.
        ahead: Arc<[u32]>,
    },
}

/// The result of a step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub enum Stepped {
    /// The hubs above have begun with this round. `None` without hubs above.
    Above(Result<Option<Round>, String>),
    /// All cores begin with the round of the hubs above.
    Below,
    /// All cores have paused the job. The round is the furthest chunk's round; `None` without chunks.
    Held(Option<Round>),
    /// The other hubs have paused the job. Each reports the round of its furthest chunk.
    OthersHeld(Result<Vec<Option<Round>>, String>),
    /// The line of each worker, see [`Step::Lines`].
    Lines(Arc<[Option<Round>]>),
    /// No chunk can pass the end.
    Ends,
    /// The other hubs have released the job.
    OthersReleased(Result<(), String>),
    /// All cores have released the job.
    Released,
}

/// The reason why a cut failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotCut {
    /// There is no state for a snapshot, because no round is over.
    #[error(
        "the state is not there: the job has no weights yet, because no round is over; try again after the first round"
    )]
    NoWeights,
    /// No snapshot can be taken before the round that a client named.
    #[error(transparent)]
    Before(#[from] NotBefore),
    /// Hub 0 has already ended the cut.
    #[error(transparent)]
    Stale(#[from] StaleCut),
    /// Another hub did not do its part of the cut.
    #[error("{0}")]
    Hub(String),
}

/// The reason why no state can be taken before a round that a client named.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotBefore {
    /// The job has passed the named round.
    #[error(
        "the state before round {} is gone, because the job has reached round {}; ask for a later round",
        asked.0,
        front.0
    )]
    Passed {
        /// The named round.
        asked: Round,
        /// The round that the furthest chunk has reached.
        front: Round,
    },
    /// The named round is too far in the future.
    #[error(
        "round {} is too far ahead, because the job has reached round {}; ask for at most {AHEAD} rounds more",
        asked.0,
        front.0
    )]
    TooFar {
        /// The named round.
        asked: Round,
        /// The round that the furthest chunk has reached.
        front: Round,
    },
}

impl NotBefore {
    /// Checks that a job whose furthest chunk is in round `front` can give the state before the round `asked`.
    fn check(asked: Round, front: Round) -> Result<(), Self> {
        match asked.0.checked_sub(front.0) {
            None => Err(NotBefore::Passed { asked, front }),
            Some(ahead) if ahead > AHEAD => Err(NotBefore::TooFar { asked, front }),
            Some(_) => Ok(()),
        }
    }

    /// Returns the round that the furthest chunk has reached.
    pub fn front(&self) -> Round {
        match *self {
            NotBefore::Passed { front, .. } | NotBefore::TooFar { front, .. } => front,
        }
    }
}

/// The reason why this hub refuses hub 0's release of a job.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotReleased {
    /// The cut does not hold the job.
    #[error(transparent)]
    Stale(#[from] StaleCut),
    /// Hub 0 names an impossible round for the cut.
    #[error("{0}")]
    Wrong(String),
}

/// The cuts of a job.
#[derive(Debug, Default)]
pub struct Cuts {
    last: u64,
    waiting: VecDeque<(CutId, Purpose)>,
    now: Option<Cut>,
    /// Whether the job has ended at a cut. No newcomer takes part after this cut, because the newcomer's rounds would be lost.
    are_over: bool,
}

/// The current cut.
#[derive(Debug)]
struct Cut {
    id: CutId,
    purpose: Purpose,
    waits_for: WaitsFor,
    /// Whether this is the cut with which the job begins.
    begins: bool,
    /// The round of the furthest chunk.
    front: Option<Round>,
    /// Hub 0's number of the cut. `None` until the other hubs are asked to pause the job.
    lead_cut: Option<u64>,
    /// The round before which the job is cut, once it is decided.
    before: Round,
    /// The time at which this hub began to wait for hub 0's release. Used only at hubs other than hub 0.
    since: Instant,
    /// The release by hub 0, once it has arrived. Used only at hubs other than hub 0.
    release: Option<ReleaseRequest>,
    /// The reason why the cut failed, if the cut failed. The job is then released unchanged.
    failed: Option<NotCut>,
    /// The error, if the release of another hub failed. The job is perhaps still paused at that hub.
    unreleased: Option<String>,
}

/// The result for which a cut waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WaitsFor {
    Above,
    Below,
    Hold,
    Others,
    /// Hub 0 releases the job.
    Lead,
    Lines,
    End,
    OthersRelease,
    Release,
}
