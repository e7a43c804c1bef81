//! A host and a plan for people: as text for a terminal, as SVG for a page. Also machines on a network, as SVG.
//!
//! Pure functions that return strings. Must not know how plans are made, nor what an item is. The caller gives the
//! noun, in the singular; its plural has an s.

mod svg;
mod text;

pub use svg::{NetworkBox, NetworkPicture, machine_svg, svg};
pub use text::text;
