//! The shapes that a job on several machines can have, the bytes on each link in a round, and the shortest time of a round.
//! All functions are pure: formulas over bytes and speeds, for `topology`, for the log of a hub and for
//! tests.
//!
//! ```text
//!   flat     every worker sends its own gradient to the owner of each chunk, and gets the answer from it
//!   mesh     every machine sends one sum to the owner of each chunk; the owners are the machines' hubs
//!   above    every machine sends one sum to the owner of each chunk; the owners are dedicated hubs
//! ```
//!
//! A link carries both ways at once, and all links work at the same time. So a round takes as long as its busiest link, in one
//! direction (PHub's full paper, SoCC'18, section 3.4). Work on shared memory is not counted: a hub may be slower than its
//! links.
//!
//! `docs/figures/levels.md` has measured rates: 0.98 to 1.00 of the rates that these formulas give. `tests.rs`
//! compares these rates with the formulas.

mod formula;
mod level;

use std::cmp::Reverse;
use std::fmt;

use topology::{Nic, SpeedSource};

pub use formula::RackSpeeds;
pub use level::{Level, Shapes, Volume};

/// The part of a link's speed that is left for bytes of frames. Ethernet, IP and TCP with time stamps use the rest, if
/// packets have 9000 bytes (jumbo frames).
const GOODPUT: f64 = (9000.0 - 52.0) / (9000.0 + 14.0);

/// The factor of speed below which two shapes count as equally fast.
const ALIKE: f64 = 1.02;

/// A link that a round crosses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Link {
    /// The link of a machine with workers, which may also have a hub.
    Machine(u32),
    /// The link of a dedicated upper hub.
    HubAbove(u32),
    /// The link of a worker in a rack.
    Worker,
    /// The link of a rack's hub to the workers.
    RackHub,
    /// The link of a rack to the other racks.
    Uplink,
}

impl fmt::Display for Link {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Link::Machine(number) => write!(out, "machine {number}"),
            Link::HubAbove(number) => write!(out, "hub above {number}"),
            Link::Worker => out.write_str("a worker"),
            Link::RackHub => out.write_str("a rack's hub"),
            Link::Uplink => out.write_str("a rack to others"),
        }
    }
}

/// The bytes that a link carries in a round.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Load {
    /// The link.
    pub link: Link,
    /// Bytes out of it.
    pub sends: u64,
    /// Bytes into it.
    pub receives: u64,
    /// The speed in Gb/s, each way, if it is known.
    pub gbps: Option<f64>,
}

impl Load {
    /// Returns the number of bytes in its busier direction.
    pub fn bytes(&self) -> u64 {
        self.sends.max(self.receives)
    }

    /// Returns the least time of a round in seconds, if the speed is known.
    pub fn round_s(&self) -> Option<f64> {
        self.gbps.map(|gbps| self.bytes() as f64 * 8.0 / (gbps * 1e9 * GOODPUT))
    }

    /// Returns the value by which links are compared: time, or bytes if no speed is known.
    fn cost(&self) -> f64 {
        self.round_s().unwrap_or(self.bytes() as f64)
    }
}

/// A way to lay out a job over machines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// All workers push to all hubs.
    Flat,
    /// Workers push to the hub of their machine or rack; these hubs own a share each.
    Mesh,
    /// Workers push to the hub of their machine, which pushes to dedicated upper hubs.
    Above,
}

impl fmt::Display for Kind {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Kind::Flat => "flat",
            Kind::Mesh => "mesh",
            Kind::Above => "above",
        })
    }
}

/// A shape, and the bytes on its links.
#[derive(Clone, Debug, PartialEq)]
pub struct Shape {
    /// The kind of shape.
    pub kind: Kind,
    /// The loads, at least one.
    pub loads: Vec<Load>,
}

impl Shape {
    /// Returns the link that a round waits for; if several links are equally slow, the first.
    pub fn bottleneck(&self) -> Load {
        let slower = |slowest: Load, load: Load| if load.cost() > slowest.cost() { load } else { slowest };
        self.loads.iter().copied().reduce(slower).expect("a shape has a link")
    }

    /// Returns the least time of a round in seconds, if the speeds are known.
    pub fn round_s(&self) -> Option<f64> {
        self.bottleneck().round_s()
    }

    fn cost(&self) -> f64 {
        self.bottleneck().cost()
    }
}

/// Returns the speed of the fastest of these NICs in Gb/s, and its name; `None` if no speed is known. The
/// speed of a NIC's PCI link does not count.
pub fn fastest<'a>(nics: impl Iterator<Item = &'a Nic>) -> Option<(f64, &'a str)> {
    let speed = |nic: &'a Nic| nic.speed.filter(|speed| speed.source != SpeedSource::PciLink);
    let up = nics.filter(|nic| nic.link_up != Some(false));
    let known = up.filter_map(|nic| Some((speed(nic)?.bits_per_s, nic.name.as_str())));
    let (bits_per_s, name) = known.min_by_key(|(bits_per_s, _)| Reverse(*bits_per_s))?;
    Some((bits_per_s as f64 / 1e9, name))
}

/// The shape to use.
#[derive(Clone, Debug, PartialEq)]
pub struct Choice<'a> {
    /// The shape.
    pub best: &'a Shape,
    /// The reason, in one sentence.
    pub why: String,
}

/// Chooses the fastest of these shapes, or the first in the list that is slower by less than 2%. The list has
/// at least one shape, and begins with the simplest. If speeds are not known, all links count as equally
/// fast.
pub fn choose(shapes: &[Shape]) -> Choice<'_> {
    let by_cost = |a: &&Shape, b: &&Shape| a.cost().total_cmp(&b.cost());
    let least = shapes.iter().min_by(by_cost).expect("a shape to choose").cost();
    let best = shapes.iter().find(|shape| shape.cost() <= ALIKE * least).expect("the fastest is one");
    let rival = shapes.iter().filter(|shape| shape.kind != best.kind).min_by(by_cost);
    let waits = |shape: &Shape| {
        let load = shape.bottleneck();
        format!("{:.1} MB on the link of {}", load.bytes() as f64 / 1e6, load.link)
    };
    let why = match rival {
        _ if least == 0.0 => "nothing crosses a link".to_owned(),
        None => "no other shape is possible".to_owned(),
        Some(rival) if rival.cost() < ALIKE * best.cost() => {
            format!("it is the simplest, and {} is not faster by 2% or more", rival.kind)
        }
        Some(rival) => format!(
            "it is {:.2} times as fast as {}: a round waits for {}; with {}, a round waits for {}",
            rival.cost() / best.cost(),
            rival.kind,
            waits(best),
            rival.kind,
            waits(rival)
        ),
    };
    Choice { best, why }
}

#[cfg(test)]
mod tests;
