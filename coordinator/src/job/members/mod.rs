//! The members of a job, from their join until all cores have removed them.
//!
//! | file | what it does |
//! | --- | --- |
//! | `member` | has the states of a member |
//! | `ranks` | has the members by rank |
//! | `arriving` | leads members from their join until they take part |
//! | `reached` | has the rounds that members had reached when they lost their hub |
//! | `late` | decides which members delay rounds |
//! | `relink` | lets members that lost their links reconnect |
//! | `leaving` | lets members leave, and ends the job |
//! | `loss` | handles the loss of members |

mod arriving;
mod late;
mod leaving;
mod loss;
mod member;
mod ranks;
mod relink;
mod rounds_reached;

pub use arriving::Arrival;
pub use late::LateLimits;
pub use leaving::Leave;
pub(crate) use loss::undo_join;
pub use member::{Member, Standing};
pub use ranks::Ranks;
pub use relink::Grant;
