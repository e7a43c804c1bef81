//! Who owns a chunk: first a hub, then a core; and the slices that follow from it.

mod placement;
mod share;
mod slices;

pub use placement::{Placement, runs};
pub use share::{Piece, Share};
pub use slices::{Slice, Slices};
