//! The control of a hub as plain state: jobs, their members, their news, and what the hubs of one job agree on.
//!
//! | module | what it has |
//! | --- | --- |
//! | `hub` | a hub: all jobs, their names, tokens, quotas and promises |
//! | `job` | one job: its life, its members, its news |
//! | `hubs` | the hubs of one job, as one of them knows them |
//! | `pace` | how rounds go |
//! | `verdict` | how they go in one line |
//! | `progress` | how far a job was at the last look |
//! | `digests` | digests of the members' weights |
//! | `links` | the bytes that cross the links of members |
//! | `asker` | clients that ask a hub for something |
//! | `refused` | why a job does not take a member |
//! | `tokens` | the tokens of members, and what each is good for |
//!
//! This crate must never know threads, locks, clocks, files or sockets: time is an argument, and what follows from an event is
//! returned to the one who drives.

#![forbid(unsafe_code)]

mod asker;
mod digests;
mod hub;
mod hubs;
mod job;
mod links;
mod pace;
mod progress;
mod refused;
mod tokens;
mod verdict;

pub use asker::Asker;
pub use digests::{Compared, Digests};
pub use hub::{Found, Hub, JobEnded, Memory, Names, Newcomer, NoRoom, Quotas, STOPS};
pub use hubs::{Arrivals, Files, Follower, Hubs, Secret, StaleCut, is_needed, may_write};
pub use job::{
    Arrival, Blame, Cause, Change, CutAt, CutId, Effect, Event, Grant, Job, LastStep, LastStepped,
    LateLimits, Leave, Made, Member, News, NotCut, NotReleased, Purpose, Saved, Saves, Standing, Step,
    Stepped, TOLD_EVERY, Unlinked,
};
pub use links::MemberLink;
pub use pace::{LastRounds, Rounds};
pub use progress::Progress;
pub use refused::Refused;
pub use tokens::{KEEP_FAILED, Tokens, Unserved};
pub use verdict::{not_finite, verdict};

/// A secret that a member shows with its requests: bytes that nobody foresees.
pub type Token = [u8; 16];
