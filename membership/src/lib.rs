//! Membership in a job: the join at each of the job's hubs, the heartbeat, and the links to the hubs' cores. The members
//! of a job use this crate: workers, and hubs below other hubs.
//!
//! ```text
//!   addresses, request --Join--> [LetIn] --open--> DataPath (links to the member's ports, placement)
//!                                   |
//!                                   +--offer--> do the hubs want a state? --bring--> each gets its share
//!                                   +--keep--> [Hub] (control port, heartbeat, news of the job)
//! ```
//!
//! This crate must never depend on sessions, gradients, or the content of links.

#![forbid(unsafe_code)]

mod boolean;
mod control;
mod data_path;
mod encrypted;
mod environment;
mod error;
mod failure;
mod fetch;
mod heartbeat;
mod hub;
mod join;
mod lend;
mod member;
mod named;
mod nearest;
mod state;
mod way;

pub use authority::Credential;
pub use boolean::{NotABoolean, boolean};
pub use control::{HubClock, own_host, printable};
pub use data_path::{DataPath, NicSettings, Ports, may_share_memory, open};
pub use environment::{environment_warnings, known_variables, warn_of_environment};
pub use error::MemberError;
pub use fetch::{StateReader, Values, fetch_state};
pub use hub::{Hub, Missing, highest_reached, lost_rounds, takes_part, wait_for_links};
pub use join::{Join, LetIn, deadline, describe, hub_addresses, meet, placements, wait_for};
pub use lend::LoanNics;
pub use member::{End, Event, Failure, Limits, Member, Over, Step};
pub use named::{LOOKUP_LIMIT, Named, PeerList, look_up, look_up_with, no_answer, on_host};
pub use nearest::workers_here;
pub use state::{all_of, bring};
pub use way::{Way, say_made};
