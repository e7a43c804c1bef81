//! Host and plan as a picture: a complete SVG document that refers to no other file.
//!
//! ```text
//!   machine (what is where) ──> figures: Frame, Flow, Stack, CoreGroup, tiles ──> canvas (SVG elements)
//! ```
//!
//! Every figure knows its size before it is drawn, so figures cannot overlap. The document uses attributes
//! and no style sheet, so several pictures can be in one HTML page. This module must not depend on how plans
//! are made.

mod canvas;
mod core_group;
mod figure;
mod legend;
mod machine;
mod network;
mod palette;
mod tile;

use crate::amount;
use crate::host::Host;
use crate::place::Plan;
use canvas::{Anchor, Canvas, Text, Weight};
use figure::{Figure, Point, Stack};

pub use network::{NetworkBox, NetworkPicture};

const MARGIN: f64 = 24.0;
/// The width of a page. The two sockets of a PBox, with five NICs each, fit side by side.
const PAGE_WIDTH: f64 = 1560.0;
/// The least width of a page. A narrower page has no room for the legend and the reasons.
const PAGE_WIDTH_LEAST: f64 = 720.0;

/// Returns the machine as a picture. Sockets are side by side, cores are tiles filled by their loads, and
/// NICs are below them. Lines lead from each core to its NICs. The result is a complete SVG document that
/// refers to no other file. `noun` is the caller's word for an item.
pub fn svg(host: &Host, plan: Option<&Plan>, noun: &str) -> String {
    let machine = machine::figure(host, plan, noun, PAGE_WIDTH - 2.0 * MARGIN);
    let width = machine.size().width.max(PAGE_WIDTH_LEAST - 2.0 * MARGIN);
    let page = Stack::new(
        18.0,
        vec![
            Box::new(heading(host, plan, noun, width)),
            Box::new(machine),
            Box::new(legend::figure(host, plan, noun, width)),
            Box::new(legend::reasons(host, plan, width)),
        ],
    );
    let size = page.size();
    let mut canvas = Canvas::default();
    page.draw(&mut canvas, Point { x: MARGIN, y: MARGIN });
    canvas.finish(width + 2.0 * MARGIN, size.height + 2.0 * MARGIN, &host.summary())
}

/// Returns a picture of the machine alone, with the cores and NICs of a plan that may have no items yet. It
/// is for a page that shows the cores' work. A core's tile is the first rectangle of the group with the
/// core's number in `data-cpu`.
pub fn machine_svg(host: &Host, plan: &Plan) -> String {
    let machine = machine::figure(host, Some(plan), "item", PAGE_WIDTH - 2.0 * MARGIN);
    let size = machine.size();
    let mut canvas = Canvas::default();
    machine.draw(&mut canvas, Point { x: MARGIN, y: MARGIN });
    canvas.finish(size.width + 2.0 * MARGIN, size.height + 2.0 * MARGIN, &host.summary())
}

fn heading(host: &Host, plan: Option<&Plan>, noun: &str, width: f64) -> Stack {
    let line = |size: f64, weight: Weight, colour: &'static str, text: String| {
        Box::new(figure::Paragraph::new(text, size, weight, colour, width)) as Box<dyn Figure>
    };
    let mut lines = vec![
        line(19.0, Weight::Bold, palette::INK, host.summary()),
        line(12.0, Weight::Regular, palette::FAINT_INK, host.source.to_string()),
    ];
    if let Some(plan) = plan {
        let count = |n: usize, word: &str| format!("{n} {word}{}", if n == 1 { "" } else { "s" });
        let mut text = format!(
            "{}, {}, on {}",
            amount::count(plan.owners().len(), noun),
            amount::bytes(plan.total_bytes()),
            count(plan.cores().len(), "core")
        );
        if !plan.nics().is_empty() {
            text += &format!(" over {}", count(plan.nics().len(), "NIC"));
        }
        text += &format!(". Fullest over mean: cores {:.3}", plan.core_balance().max_over_mean);
        if let Some(nics) = plan.nic_balance() {
            text += &format!(", NICs {:.3}", nics.max_over_mean);
        }
        lines.push(line(13.0, Weight::Regular, palette::INK, text));
    }
    Stack::new(5.0, lines)
}
