//! A host and a plan for people: as text for a terminal, as SVG for a page.
//!
//! Pure functions that return strings. Must not know how plans are made, nor what an item is: the caller gives
//! the noun.

mod svg;
mod text;

use crate::amount;
use crate::host::Host;
use crate::place::Plan;

/// The caller's words for an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Labels<'a> {
    /// The singular.
    pub item: &'a str,
    /// The plural.
    pub items: &'a str,
}

impl Default for Labels<'_> {
    fn default() -> Self {
        Self { item: "item", items: "items" }
    }
}

impl Labels<'_> {
    fn count(&self, n: usize) -> String {
        format!("{} {}", amount::grouped(n as u64), if n == 1 { self.item } else { self.items })
    }
}

/// The machine as an indented tree, then the plan core by core.
pub fn text(host: &Host, plan: Option<&Plan>) -> String {
    text_with(host, plan, Labels::default())
}

/// As [`text`], in the caller's words.
pub fn text_with(host: &Host, plan: Option<&Plan>, labels: Labels<'_>) -> String {
    text::draw(host, plan, labels)
}

/// The machine as a picture: sockets side by side, cores as tiles filled by their loads, NICs below them, and lines
/// from each core to its NICs. A complete SVG document that refers to nothing outside.
pub fn svg(host: &Host, plan: Option<&Plan>) -> String {
    svg_with(host, plan, Labels::default())
}

/// As [`svg`], in the caller's words.
pub fn svg_with(host: &Host, plan: Option<&Plan>, labels: Labels<'_>) -> String {
    svg::draw(host, plan, labels)
}
