//! Every change to a hub: requests, each with its answer and its time.
//!
//! | file | requests |
//! | --- | --- |
//! | `jobs` | reserve names and memory; begin, fail and end a job |
//! | `members` | a member joins, connects, sends heartbeats, reconnects, leaves, is lost |
//! | `rounds` | observations of rounds, hyperparameters of optimizers, digests of weights |
//! | `cuts` | cuts that hub 0 of a job requests |
//! | `states` | a state that rank 0 brings, requests for a state, files of states, the last state |
//! | `ends` | the hub ends, and its members are notified |
//!
//! A request is plain data. Random numbers, measurements and the time are part of the input. So an [`Input`] can be
//! recorded, and the same inputs have the same answers.

mod cuts;
mod ends;
mod jobs;
mod members;
mod rounds;
mod states;

use std::fmt;
use std::time::Instant;

use pbox_core::JobId;
use serde::{Deserialize, Serialize};

pub use cuts::*;
pub use ends::*;
pub use jobs::*;
pub use members::*;
pub use rounds::*;
pub use states::*;

use crate::hub::{Hub, Promise};
use crate::job::{Effect, Event};
use crate::join::Join;

/// A request to a hub.
pub trait Request: Clone + Into<Input> {
    /// The answer to the request.
    type Answer: fmt::Debug;

    /// Carries the request out, and answers it.
    fn apply(self, hub: &mut Hub, now: Instant) -> Self::Answer;
}

impl Hub {
    /// Carries a request out, and answers it. Only requests change a hub.
    pub fn ask<R: Request>(&mut self, request: R, now: Instant) -> R::Answer {
        request.apply(self, now)
    }
}

/// A report of an event of a job.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Happened {
    /// The job.
    pub job: JobId,
    /// The event.
    pub event: Event,
}

impl Request for Happened {
    type Answer = Vec<Effect>;

    fn apply(self, hub: &mut Hub, now: Instant) -> Vec<Effect> {
        let effects = hub.job_mut(self.job).map_or_else(Vec::new, |job| job.handle(self.event, now));
        hub.noted(self.job, effects, now)
    }
}

macro_rules! inputs {
    ($($request:ident,)*) => {
        /// Any request.
        #[derive(Clone, Debug, Serialize, Deserialize)]
        #[allow(missing_docs, reason = "each is the request of its name")]
        pub enum Input {
            $($request($request),)*
        }

        impl Input {
            /// The names of all requests in a record.
            pub const NAMES: &[&str] = &[$(stringify!($request),)*];

            /// Carries the request out. Returns the answer in words.
            pub fn apply(self, hub: &mut Hub, now: Instant) -> String {
                match self {
                    $(Input::$request(request) => format!("{:?}", hub.ask(request, now)),)*
                }
            }
        }

        $(impl From<$request> for Input {
            fn from(request: $request) -> Self {
                Input::$request(request)
            }
        })*
    };
}

inputs! {
    // Jobs.
    Find, Reserve, Release, Promise, PromiseJoin, EndJoin, Begin, Fail, End, Sweep, Happened,
    // Members.
    Join, CountJoin, UndoJoin, Connect, Disconnect, Attach, Ready, Heard, AskForLinks, GrantLinks, Leave, Lose,
    // Rounds.
    Judge, Crossed, ChangeNumbers, ForgetNumbers, Compare, StoodStill,
    // Cuts.
    HeldByLead, ReleasedByLead, Arrived,
    // States.
    Offer, Wanted, Comes, BeginWith, MissMachines, MachinesReached, WantState, BeginFile, EndFile,
    HasFiles, AskForWritten, AskToHold, AskForPart,
    // Ends.
    Drain, BeginStop, SavedAtStop, Stop, Told, TellAbove, ToldAbove,
}
