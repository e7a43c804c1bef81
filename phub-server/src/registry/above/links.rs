//! The links that carry a job's sums up, and the windows: memory that links write or read. The links are made when this
//! hub joins at the hubs above, and replaced when they are lost.

use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use fabric::{Receive, RecvWindow, SendWindow};
use hub_threads::CoreLinksAbove;
use membership::{LetIn, MemberError, Ports, Way};
use pbox_core::{LevelTerms, Wire};

/// A job's links to the hubs above, by core of this hub. If this hub reads the window that the hub above writes, the
/// link has that window.
pub(crate) type LinksAbove = Vec<CoreLinksAbove>;

/// The parts that are needed to make the links to the hubs above.
pub(super) struct LinkSpec {
    pub level: LevelTerms,
    /// The wire of the job above.
    pub wire: Wire,
    /// The window that the hubs above read.
    pub sums: Arc<SendWindow>,
    /// The window that the workers read.
    pub shown: Arc<RecvWindow>,
    /// Whether the links carry encoded frames instead of plain values. If so, each hub above writes into a window of
    /// its own.
    pub is_coded: bool,
    /// The number of this hub among the hubs above, in a mesh.
    pub own: Option<usize>,
    pub ports: Ports,
    /// The numbers of the links that each core of this hub uses, by core.
    pub by_core: Vec<Vec<usize>>,
}

/// The links that were made.
pub(super) struct Linked {
    pub links: LinksAbove,
    /// The range of cores of each hub above.
    pub cores: Vec<Range<usize>>,
    /// The path to each hub above.
    pub paths: Vec<Way>,
}

impl LinkSpec {
    /// Returns the terms of the links, if the hubs above have these cores.
    pub fn level_of(&self, cores: &[Range<usize>]) -> LevelTerms {
        self.level.with_links(cores.iter().map(ExactSizeIterator::len).max().unwrap_or(1))
    }

    /// Makes all links to hubs that have admitted this hub.
    pub fn make(&self, hubs: &[LetIn], deadline: Instant) -> Result<Linked, MemberError> {
        let LinkSpec { level, wire, sums, shown, ports, .. } = self;
        let receive = |hub| match self.is_coded || self.own == Some(hub) {
            // A new window is needed for frames, or for the link to this hub itself. In the second case the weights are
            // already in the pages that the workers read.
            true => Receive::New(wire.weights_window_bytes()),
            false => Receive::Into(Arc::clone(shown)),
        };
        let path = membership::open(hubs, level.schedule, wire, sums, receive, ports, deadline)?;
        let is_read = self.is_coded || !wire.hubs().is_empty();
        let received = path.received.into_iter().map(|window| is_read.then_some(window));
        let mut links: Vec<_> = path.endpoints.into_iter().zip(received).map(Some).collect();
        let of_core =
            |numbers: &Vec<usize>| numbers.iter().filter_map(|&number| links[number].take()).collect();
        let by_core = self.by_core.iter().map(of_core).collect();
        Ok(Linked { links: by_core, cores: path.cores, paths: path.ways })
    }
}

impl std::fmt::Debug for LinkSpec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LinkSpec").field("by_core", &self.by_core).finish_non_exhaustive()
    }
}
