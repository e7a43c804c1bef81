//! The life of a job: its states, and every transition between two of them.
//!
//! | state | event | next state |
//! | --- | --- | --- |
//! | (a free name) | a worker's join makes the job | `Gathering` |
//! | `Gathering` | rank 0 offers a state; the job wants it, or not; a wanted state arrives | `Gathering`, see [`StateOffer`] |
//! | `Gathering` | a member has all that it needs to take part | `Gathering`, with fewer ranks missing |
//! | `Gathering` | the hubs above name machines that are missing | `Gathering`, with these machines missing |
//! | `Gathering` | a cut lets all members take part | `Running` |
//! | `Running` | the last member leaves | (a free name) |
//! | `Gathering`, `Running` | the job fails, or its hub stops | `Failed` |
//! | `Failed` | a minute is over, or too many jobs have failed since | (forgotten) |
//!
//! A pause for a cut is not a state: a job may pause while it gathers, when it begins, and while it runs. The news
//! shows the state to the workers.

use std::time::Instant;

use pbox_core::Round;
use pbox_core::control::JobState;

/// The state of a job.
#[derive(Debug)]
pub enum Life {
    /// The job has not begun.
    Gathering(Gathering),
    /// The job has begun, and its workers make rounds.
    Running,
    /// The job has failed, or its hub stops. The hub keeps the job for a while, so that workers can read its news.
    Failed {
        /// The time of the failure.
        at: Instant,
        /// The reason.
        reason: String,
        /// Whether its hub stops.
        hub_stops: bool,
    },
}

/// The state that rank 0 offers to a job that has not begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StateOffer {
    /// There is no offer, or the job does not want the state.
    None,
    /// Rank 0 has offered a state, and this hub asks the hubs above whether they want the state.
    Made,
    /// The job waits for the state before this round, which has this length in bytes.
    Wanted(Round, u64),
    /// The state is arriving.
    Arriving,
}

/// A job that has not begun.
#[derive(Debug)]
pub struct Gathering {
    /// The ranks that are missing.
    pub(super) missing: Vec<u32>,
    /// The machines that are missing at the hubs above. Known once all ranks have joined this hub.
    pub(super) machines: Vec<u32>,
    /// The state that rank 0 offers.
    pub(super) offer: StateOffer,
    /// The number of steps that each key has made in rank 0's state, if rank 0 reports it.
    pub(super) offered_steps: Vec<Option<u32>>,
    /// The round that each worker of this hub had reached when it lost a hub, by rank.
    pub(super) reached: Vec<Option<Round>>,
}

impl Life {
    /// Begins the life of a job of this many workers.
    pub(super) fn new(workers: u32) -> Self {
        Life::Gathering(Gathering {
            missing: (0..workers).collect(),
            machines: Vec::new(),
            offer: StateOffer::None,
            offered_steps: Vec::new(),
            reached: vec![None; workers as usize],
        })
    }

    /// Returns the state for the news.
    pub fn state(&self) -> JobState {
        match self {
            Life::Gathering(Gathering { missing, machines, .. }) => {
                JobState::Gathering { missing: missing.clone(), machines: machines.clone() }
            }
            Life::Running => JobState::Running,
            Life::Failed { reason, hub_stops, .. } => {
                JobState::Failed { reason: reason.clone(), hub_stops: *hub_stops }
            }
        }
    }

    /// Whether the job has not begun.
    pub fn gathers(&self) -> bool {
        matches!(self, Life::Gathering(_))
    }

    /// Whether the job has begun, and has not failed.
    pub fn runs(&self) -> bool {
        matches!(self, Life::Running)
    }

    /// Whether the job has failed, or its hub stops.
    pub fn failed(&self) -> bool {
        self.failed_at().is_some()
    }

    /// Returns when the job failed.
    pub(crate) fn failed_at(&self) -> Option<Instant> {
        match self {
            Life::Failed { at, .. } => Some(*at),
            _ => None,
        }
    }

    pub(super) fn gathering(&self) -> Option<&Gathering> {
        match self {
            Life::Gathering(gathering) => Some(gathering),
            _ => None,
        }
    }

    pub(super) fn gathering_mut(&mut self) -> Option<&mut Gathering> {
        match self {
            Life::Gathering(gathering) => Some(gathering),
            _ => None,
        }
    }
}
