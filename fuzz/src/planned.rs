//! What follows from a machine: a plan and its pictures, for any machine that was accepted.

use topology::{Host, Request, place, render};

/// Larger machines are valid, and their pictures take their time.
const CPUS: usize = 128;

/// Places some weights on a machine, and draws it.
pub fn check(host: &Host) {
    assert!(!host.cpus.is_empty(), "a machine without cpus was accepted");
    if host.cpus.len() > CPUS || host.nics.len() > CPUS {
        return;
    }
    let weights = [4096, 1, 32768, 32768, 7];
    if let Ok(plan) = place(host, &Request::new(&weights)) {
        render::text(host, Some(&plan));
        render::svg(host, Some(&plan));
    }
    render::text(host, None);
}
