//! The turn of a core: arrivals, the work that follows from them, and posts.

mod core;
mod layer_parts;
mod look;
mod made;
mod mode;
mod notice;
mod onlooker;
mod pace;
mod replies;
mod send_queue;
mod shard;
mod spec;
mod violation;
mod watch;

pub use core::{Core, later_lines};
pub use look::{Look, Waits};
pub use made::MadeShard;
pub use notice::{AnswersAbove, JobId, Notice, Tally};
pub use onlooker::{Nobody, Onlooker};
pub use send_queue::SendQueue;
pub use shard::Front;
pub use spec::{ShardSpec, WindowsBelow};
pub use violation::Violation;
pub use watch::Watched;
