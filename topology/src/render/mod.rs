//! A host and a plan for people: as text for a terminal, and as SVG for a page. Also machines on a network,
//! as SVG.
//!
//! All functions return strings and do no input or output. They must not depend on how plans are made, or on what an
//! item is. The caller gives the noun for an item in the singular. The plural is made with an s.

mod svg;
mod text;

pub use svg::{NetworkBox, NetworkPicture, machine_svg, svg};
pub use text::text;
