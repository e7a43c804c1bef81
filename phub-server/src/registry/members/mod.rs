//! The members of jobs: how workers join, lose their links, reconnect and leave.
//!
//! | file | what it does |
//! | --- | --- |
//! | `join` | admits workers |
//! | `leave` | handles workers that leave, and ends jobs |
//! | `links` | the NICs of the members' links |
//! | `loss` | loses workers, fails jobs |
//! | `relink` | waits for workers that make new links |

pub(super) mod join;
pub(super) mod leave;
pub(super) mod links;
pub(super) mod loss;
pub(super) mod relink;
