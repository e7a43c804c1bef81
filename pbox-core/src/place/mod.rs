//! The owner of each chunk: first a hub, then a core. The slices follow from it.

mod below;
mod placement;
mod share;
mod slices;

pub use below::{Above, Below};
pub use placement::{Placement, runs};
pub use share::{Piece, Share};
pub use slices::{Slice, Slices};
