//! The members of a level.

use serde::{Deserialize, Serialize};

/// The kind of the members that push to the hubs of a level.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Members {
    /// Workers. A push is a gradient.
    #[default]
    Workers,
    /// Hubs below. A push is a sum of gradients, and the number of these gradients.
    Hubs,
    /// Hubs of a mesh: they push to each other. Each hub owns a share, but its window has room for all chunks. The workers of
    /// the hub's machine read all chunks in that window, unless the hub decodes or copies answers for these workers.
    Mesh,
}

impl Members {
    /// Whether a push is a sum of gradients.
    pub fn are_hubs(self) -> bool {
        self != Members::Workers
    }
}
