//! The control of a hub as plain state: jobs, their members, their news, and the agreement of one job's hubs.
//!
//! | module | content |
//! | --- | --- |
//! | `hub` | a hub: all jobs, their names, tokens, quotas and promises |
//! | `job` | one job: its life, its members, its news |
//! | `input` | every request that changes a hub |
//! | `join` | the request of a worker to join a job |
//! | `hubs` | the hubs of one job, as one of the hubs knows them |
//! | `pace` | the speed of rounds and the lateness of ranks |
//! | `verdict` | the state of the rounds in one line |
//! | `progress` | the progress of a job at the last look at its cores |
//! | `record` | a record of all inputs, and its replay |
//! | `digests` | digests of the members' weights |
//! | `links` | the bytes that cross the links of members |
//! | `asker` | clients that send requests to a hub |
//! | `refused` | the reason why a job refuses a member |
//! | `tokens` | the tokens of members, and the use of each |
//!
//! This crate must never depend on threads, locks, clocks, files or sockets (`clippy.toml` lists what it
//! refuses). Time is an argument. The effects of an event are returned to the driver.

#![forbid(unsafe_code)]
// Tests read the clock for the time at which they begin.
#![cfg_attr(test, allow(clippy::disallowed_methods))]

mod asker;
mod digests;
mod hub;
mod hubs;
pub mod input;
mod job;
mod join;
mod links;
mod pace;
mod progress;
pub mod record;
mod refused;
mod tokens;
mod verdict;

pub use asker::Asker;
pub use digests::{Compared, Digests};
pub use hub::{
    End, Failed, Found, Hub, JobEnded, Memory, Names, NoRoom, Promise, Quotas, ROUND_AT_STOP, SAVED_WITHIN,
    STOPS, Settings, StopStep,
};
pub use hubs::{Files, Hubs, Secret, StaleCut, is_needed, may_write};
pub use input::{Input, MemberOf, Request};
pub use job::{
    AskedId, Blame, Cause, Change, Checkpoints, CutAt, CutId, Effect, Event, FollowId, Grant, Job, JobSpec,
    LastStep, LastStepped, LateLimits, Leave, Life, Made, Member, Model, News, NoState, NotBefore, NotCut,
    NotReleased, Parts, Purpose, REPORT_EVERY, Ranks, Saved, Standing, Step, Stepped, Use, WantId,
};
pub use join::{Differs, Join};
pub use pace::LastRounds;
pub use refused::Refused;
pub use tokens::{KEEP_FAILED, Token, Tokens, Unserved};
pub use verdict::{not_finite, verdict};
