//! The members of a level.

use serde::{Deserialize, Serialize};

/// The kind of the members that push to the hubs of a level.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Members {
    /// Workers. A push is a gradient.
    #[default]
    Workers,
    /// Hubs below. A push is a sum of gradients, with their number.
    Hubs,
    /// Hubs below, each of which is also a hub of this level and owns a share. Its workers read all chunks in the window of
    /// that share, unless the hub decodes or copies answers for them.
    Mesh,
}

impl Members {
    /// Whether a push is a sum of gradients.
    pub fn are_hubs(self) -> bool {
        self != Members::Workers
    }
}
