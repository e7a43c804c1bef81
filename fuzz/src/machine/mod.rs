//! Descriptions of machines. On every accepted machine, items can be placed, and the machine can be drawn.

pub mod text;
pub mod xml;

use topology::{Host, Request, place, render};

/// The most parts of a machine that is drawn. Larger machines are valid, but drawing them takes long.
const DRAWN_PARTS_LIMIT: usize = 128;

/// Places some weights on a machine, and draws the machine and the plan.
fn check_placement(host: &Host) {
    assert!(!host.cpus.is_empty(), "a machine without cpus was accepted");
    if host.cpus.len() > DRAWN_PARTS_LIMIT || host.nics.len() > DRAWN_PARTS_LIMIT {
        return;
    }
    let weights = [4096, 1, 32768, 32768, 7];
    if let Ok(plan) = place(host, &Request::new(&weights)) {
        render::text(host, Some(&plan), "item");
        render::svg(host, Some(&plan), "item");
    }
    render::text(host, None, "item");
}
