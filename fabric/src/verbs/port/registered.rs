//! The ranges of a connection's two windows that its links on one NIC carry. They are registered in a
//! separate protection domain.
//!
//! A handshake's thread registers the ranges. They stay registered as long as a link uses them.

use std::sync::Arc;

use crate::ids::Span;
use crate::memory::{RecvWindow, SendWindow};
use crate::ranges::Ranges;
use crate::verbs::error::VerbsError;
use crate::verbs::handles::domain::Domain;
use crate::verbs::handles::region::{Region, RegisterError};
use crate::verbs::nic::Nic;

/// The ranges of the windows that a link carries, as one end sees it.
pub(in crate::verbs) struct Carried {
    /// The ranges of the window that this end writes.
    pub sent: Ranges,
    /// The ranges of the window that the peer writes.
    pub received: Ranges,
}

/// The ranges that the links on one NIC carry, registered in a separate protection domain.
pub(in crate::verbs) struct Registered {
    pub nic: Arc<Nic>,
    pub domain: Arc<Domain>,
    sent: Regions,
    received: Regions,
}

/// Ranges of a window, and the memory region of each.
struct Regions {
    ranges: Ranges,
    regions: Vec<Region>,
}

impl Regions {
    fn new<'a>(
        carried: impl Iterator<Item = &'a Ranges>,
        register: impl Fn(Span) -> Result<Region, RegisterError>,
    ) -> Result<Self, RegisterError> {
        let ranges: Ranges = carried.flat_map(Ranges::iter).collect();
        // An error of one range names the bytes of all ranges, because the memory limit must allow their sum.
        let bytes = ranges.iter().map(|range| range.bytes).sum();
        let register = |range| register(range).map_err(|error| RegisterError { bytes, ..error });
        let regions = ranges.iter().map(register).collect::<Result<_, _>>()?;
        Ok(Regions { ranges, regions })
    }

    /// Returns the regions of a link's ranges. The regions were made from the ranges of all links, so each
    /// range of a link lies in one region.
    fn of<'a>(&'a self, carried: &'a Ranges) -> impl Iterator<Item = &'a Region> {
        let region = |range| &self.regions[self.ranges.holding(range).expect("the range of a link")];
        carried.iter().map(region)
    }
}

impl Registered {
    /// Registers the ranges of these links. Ports on the same NIC share the registration.
    pub fn new<'a>(
        nic: &Arc<Nic>,
        ours: &Arc<SendWindow>,
        theirs: &RecvWindow,
        links: impl Iterator<Item = &'a Carried> + Clone,
    ) -> Result<Self, VerbsError> {
        let domain = Domain::new(&nic.context)?;
        let sent = links.clone().map(|link| &link.sent);
        let sent = Regions::new(sent, |range| Region::send(&domain, ours, range))?;
        theirs.mapping().keep_from_children();
        let received = links.map(|link| &link.received);
        let received = Regions::new(received, |range| {
            Region::receive(&domain, theirs, range, nic.settings.relaxed_ordering)
        })?;
        Ok(Registered { nic: Arc::clone(nic), domain, sent, received })
    }

    /// Returns this NIC's keys for the ranges that a link sends, one for each range.
    pub fn local_keys(&self, link: &Carried) -> Vec<u32> {
        self.sent.of(&link.sent).map(Region::local_key).collect()
    }

    /// Returns this NIC's keys for the ranges that a link receives, one for each range. The peer needs them.
    pub fn remote_keys(&self, link: &Carried) -> Vec<u32> {
        self.received.of(&link.received).map(Region::remote_key).collect()
    }
}
