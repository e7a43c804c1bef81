//! The credit of a link: how many bytes of the link's posts the transport may hold, and how many it holds.
//!
//! The port's thread owns the credit. This module only counts: it does not depend on the link, or on the
//! time at which the transport sends bytes.

/// The limit of the bytes that a transport may hold of a link, and the number that it holds. Without a limit,
/// nothing is counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Credit {
    limit: Option<usize>,
    held: usize,
}

impl Credit {
    /// Changes the limit. Bytes that the transport holds now stay counted.
    pub fn limit_to(&mut self, limit: Option<usize>) {
        self.limit = limit;
    }

    /// Admits a post. Returns the number of bytes that the post adds to the count, or `None` if the post must
    /// wait. If the link holds nothing, a post of any size is admitted. A post without bytes never waits.
    #[inline]
    pub fn take(&mut self, bytes: usize) -> Option<usize> {
        let Some(limit) = self.limit else { return Some(0) };
        if bytes > 0 && self.held > 0 && self.held.saturating_add(bytes) > limit {
            return None;
        }
        self.held += bytes;
        Some(bytes)
    }

    /// Subtracts the bytes of a post that the transport no longer holds. `counted` is the number that
    /// [`take`](Self::take) returned.
    #[inline]
    pub fn give(&mut self, counted: usize) {
        self.held -= counted;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_holds_its_credit_and_always_one_post() {
        let mut credit = Credit::default();
        assert_eq!(credit.take(1 << 40), Some(0), "without a limit nothing is counted");
        credit.limit_to(Some(100));
        assert_eq!(credit.take(1000), Some(1000), "nothing is held");
        assert_eq!(credit.take(1), None);
        assert_eq!(credit.take(0), Some(0), "a post without bytes needs no room");
        credit.give(1000);
        assert_eq!([60, 40, 1].map(|bytes| credit.take(bytes)), [Some(60), Some(40), None]);
        credit.limit_to(Some(200));
        assert_eq!(credit.take(100), Some(100));
        credit.limit_to(None);
        assert_eq!(credit.take(1 << 40), Some(0));
        credit.give(200);
        assert_eq!(credit, Credit::default(), "what was counted came back");
    }
}
