//! A host and a plan for people: as text for a terminal, as SVG for a page.
//!
//! Pure functions that return strings. Must not know how plans are made, nor what an item is: the caller gives the
//! noun, whose plural has an s.

mod svg;
mod text;

pub use svg::svg;
pub use text::text;
