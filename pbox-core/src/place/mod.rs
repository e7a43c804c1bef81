//! The owner of each chunk: first a hub, then a NUMA node, then a core. The slices follow from the owners.

mod below;
mod cores;
mod nodes;
mod placement;
mod runs;
mod share;
mod slices;

pub use below::{Above, Below};
pub use cores::JobCores;
pub use placement::Placement;
pub(crate) use share::first_chunks;
pub use share::{Piece, Share, WHOLE_KEYS};
pub use slices::{Slice, Slices};
