//! Versions of the protocol. The two ends of a connection use the highest version that both ends speak.
//!
//! `docs/protocol/README.md` has the rules for adding and removing fields.

use std::fmt;

/// The newest version of the protocol that this program speaks.
pub const PROTOCOL: u32 = 14;

/// The oldest version of the protocol that this program speaks.
pub const PROTOCOL_LOWEST: u32 = 11;

/// The range of versions that an end speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Versions {
    /// The oldest version.
    pub lowest: u32,
    /// The newest version.
    pub highest: u32,
}

impl Versions {
    /// The versions of this program.
    pub const OURS: Versions = Versions { lowest: PROTOCOL_LOWEST, highest: PROTOCOL };

    /// The first version whose members place chunks by the [speeds of cores](crate::JobCores).
    pub const SPEEDS: u32 = 14;

    /// Returns the versions that a message names. Without a lowest version, the sender speaks only one version.
    pub fn of(protocol: u32, lowest: Option<u32>) -> Self {
        Versions { lowest: lowest.map_or(protocol, |lowest| lowest.min(protocol)), highest: protocol }
    }

    /// Returns the highest version that both ends speak.
    pub fn common(self, other: Versions) -> Option<u32> {
        let highest = self.highest.min(other.highest);
        (highest >= self.lowest.max(other.lowest)).then_some(highest)
    }

    /// Returns the lowest version, for the field of a message. `None` if there is only one version, because messages
    /// then leave the field out.
    pub fn lowest_of_several(self) -> Option<u32> {
        (self.lowest < self.highest).then_some(self.lowest)
    }

    /// Whether the sender knows that the cores of a hub may have different speeds.
    pub fn know_speeds(self) -> bool {
        self.highest >= Self::SPEEDS
    }

    /// Whether this version is in the range.
    pub fn contains(self, version: u32) -> bool {
        (self.lowest..=self.highest).contains(&version)
    }
}

impl fmt::Display for Versions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Versions { lowest, highest } if lowest == highest => write!(f, "{highest}"),
            Versions { lowest, highest } => write!(f, "{lowest} to {highest}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_ends_use_the_highest_version_that_both_speak() {
        let range = |lowest, highest| Versions { lowest, highest };
        for (ours, theirs, common) in [
            (range(9, 9), range(9, 9), Some(9)),
            (range(9, 9), range(9, 10), Some(9)),
            (range(9, 10), range(9, 9), Some(9)),
            (range(9, 11), range(10, 12), Some(11)),
            (range(9, 9), range(10, 10), None),
            (range(8, 9), range(10, 11), None),
        ] {
            assert_eq!((ours.common(theirs), theirs.common(ours)), (common, common), "{ours}, {theirs}");
        }
        assert_eq!(Versions::of(10, Some(9)).to_string(), "9 to 10");
        assert_eq!(Versions::of(10, None).to_string(), "10");
        assert_eq!(Versions::of(9, Some(12)), range(9, 9), "nonsense from outside");
    }
}
