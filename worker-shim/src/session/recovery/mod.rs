//! The recovery of a session: new links to a hub that lives, or a hub that comes back.

mod hold;
pub(super) mod relink;

pub use hold::Returns;
pub(super) use hold::TELL_LIMIT;
