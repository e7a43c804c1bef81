//! A host and a plan for people: as text for a terminal, as SVG for a page. Also machines on a network, as SVG.
//!
//! Pure functions that return strings. Must not know how plans are made, nor what an item is: the caller gives the
//! noun, whose plural has an s.

mod svg;
mod text;

pub use svg::{NetworkBox, NetworkPicture, machine_svg, svg};
pub use text::text;
