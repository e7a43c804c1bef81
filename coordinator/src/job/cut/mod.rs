//! Cuts: a running job is stopped between two rounds, for new members and for snapshots.
//!
//! | a cut | its steps |
//! | --- | --- |
//! | lets all members of a job begin | the hubs above begin, if there are any; hold; release |
//! | lets a newcomer take part | hold; the other hubs hold; the other hubs are released; release |
//! | takes a snapshot | the same, and the cores take the snapshot before a release |
//! | takes a snapshot of this hub alone, now or before a later round | hold; the cores take it; release |
//! | is led by hub 0 | hold; wait until hub 0 releases; the cores take a snapshot, if hub 0 requests one; release |
//!
//! ```text
//!   hold ----> every core: finish no round, say which are in flight
//!        <---- fronts: chunk a is in round 7, chunk b in round 8: the cut is before round 8
//!   release -> every core: admitted workers take part from round 8 on, and get the weights of round 7:
//!              the chunks that have them are sent now, the rest when they do; likewise a snapshot
//! ```
//!
//! There is one cut at a time, and the next one waits. A hold lasts as long as two messages to each core, and two to each hub.
//! No hold waits for a worker.

mod events;
mod flow;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use pbox_core::control::{HoldRequest, ReleaseRequest};
use pbox_core::{Occasion, Round};
use serde::{Deserialize, Serialize};

use crate::hubs::StaleCut;

/// The furthest round that a reader may name, counted from the round of the furthest chunk.
const AHEAD: u32 = 1024;

/// The number of a cut at this hub.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct CutId(u64);

/// The reason for a cut.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub enum Purpose {
    /// Workers, by their numbers at all hubs, take part from the cut on. By then a rank may have another worker.
    Admit(Arc<[u64]>),
    /// The cores take a snapshot.
    Snapshot(CutAt),
    /// Hub 0 cuts the job; the number is hub 0's number of the cut.
    Follow(u64),
}

/// The place of a cut for a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub enum CutAt {
    /// All hubs of the job are cut before the same round: hub 0 leads.
    AllHubs,
    /// This hub is cut before its own round. The other hubs are not notified.
    ThisHub,
    /// This hub takes the snapshot before this round, which may be in the future. The other hubs are not notified: a reader
    /// names the same round to each hub.
    Before(Round),
    /// All hubs of the job are cut, and the job is about to end. Its workers make no round after the cut, because that round
    /// would be lost.
    LastRound,
}

/// A step of a cut, which the driver takes. The driver answers each step except the snapshot with its result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Join the job at the hubs above.
    BeginAbove,
    /// Have all cores begin with the round of the hubs above.
    BeginBelow(Round),
    /// Hold the job on all cores.
    Hold,
    /// Have the other hubs hold the job.
    HoldOthers(HoldRequest),
    /// Ask all cores how far each worker has come.
    Lines,
    /// Let no chunk pass this round, or the line of each worker.
    EndBefore(Round, Arc<[Option<Round>]>),
    /// Have all cores take a snapshot before this round.
    TakeSnapshot(Occasion, Round),
    /// Have the other hubs release the job.
    ReleaseOthers(ReleaseRequest),
    /// Release the job on all cores.
    Release {
        /// The round that admitted ranks begin with.
        from: Round,
        /// The admitted ranks.
        admitted: Arc<[u32]>,
        /// The rounds that each rank is ahead by.
        ahead: Arc<[u32]>,
    },
}

/// The result of a step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub enum Stepped {
    /// The hubs above have begun with this round. There may be none.
    Above(Result<Option<Round>, String>),
    /// All cores begin with the round of the hubs above.
    Below,
    /// All cores hold the job. Their chunks have reached this round; `None` if they have no chunks.
    Held(Option<Round>),
    /// The other hubs hold the job, with the round that the chunks of each have reached.
    OthersHeld(Result<Vec<Option<Round>>, String>),
    /// The round that each worker has reached.
    Lines(Arc<[Option<Round>]>),
    /// No chunk can pass the end.
    Ends,
    /// The other hubs have released the job.
    OthersReleased(Result<(), String>),
    /// All cores have released the job.
    Released,
}

/// The reason why a cut is impossible.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotCut {
    /// There is no state for a snapshot.
    #[error(
        "its state is not there: it has no weights yet, because no round is over; try again after the first round"
    )]
    NoWeights,
    /// No snapshot can be taken before the round that a reader named.
    #[error(transparent)]
    Before(#[from] NotBefore),
    /// Hub 0 has ended the cut already.
    #[error(transparent)]
    Stale(#[from] StaleCut),
    /// Another hub did not do its part of the cut.
    #[error("{0}")]
    Hub(String),
}

/// The reason why there will be no state before a round that a reader named.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotBefore {
    /// The job is past that round.
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
    /// The job would need too long to reach the round.
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
    /// Checks that a job which has reached `front` can give the state before the round `asked`.
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

/// The reason why hub 0 cannot release a job at this hub.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotReleased {
    /// The cut does not hold the job.
    #[error(transparent)]
    Stale(#[from] StaleCut),
    /// Hub 0 names an impossible place for the cut.
    #[error("{0}")]
    Wrong(String),
}

/// The cuts of a job.
#[derive(Debug, Default)]
pub struct Cuts {
    last: u64,
    waiting: VecDeque<(CutId, Purpose)>,
    now: Option<Cut>,
}

/// The current cut.
#[derive(Debug)]
struct Cut {
    id: CutId,
    purpose: Purpose,
    waits_for: WaitsFor,
    /// Whether the job begins with the cut.
    begins: bool,
    /// The round that the furthest chunk has reached.
    front: Option<Round>,
    /// The number of the cut by which other hubs hold the job.
    others: Option<u64>,
    /// The cut is before this round, once that is decided.
    before: Round,
    /// The time at which the hold began, at another hub than hub 0.
    since: Instant,
    /// The release by hub 0, at another hub than hub 0.
    release: Option<ReleaseRequest>,
    /// The reason why the cut changes nothing.
    failed: Option<NotCut>,
    /// The reason why another hub may hold the job forever.
    unreleased: Option<String>,
}

/// The result that a cut waits for.
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
