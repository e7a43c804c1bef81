//! The members of a job, from their join until nothing is left of them.
//!
//! | file | what it does |
//! | --- | --- |
//! | `member` | has the states of a member |
//! | `ranks` | has the members by rank |
//! | `arriving` | lets members come to take part |
//! | `reached` | knows how far members were before they lost their hub |
//! | `late` | judges who holds rounds up |
//! | `relink` | lets members that lose their links make others |
//! | `leaving` | lets members leave, and ends the job |
//! | `loss` | loses members |

mod arriving;
mod late;
mod leaving;
mod loss;
mod member;
mod ranks;
mod reached;
mod relink;

pub use arriving::Arrival;
pub use late::LateLimits;
pub use leaving::Leave;
pub use member::{Member, Standing};
pub use ranks::Ranks;
pub use relink::{Grant, TOLD_EVERY};
