//! The credit of a link: how many bytes a transport may hold of it, and how many it holds.
//!
//! Owned by the port's thread. Plain counting; knows neither the link nor when bytes leave it.

/// The number of bytes a link may hold, and how many it holds. Without a limit nothing is counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Credit {
    limit: Option<usize>,
    held: usize,
}

impl Credit {
    /// Changes the limit. Bytes that are held now are still counted.
    pub fn limit_to(&mut self, limit: Option<usize>) {
        self.limit = limit;
    }

    /// Takes a post. Returns the number of bytes that it counts for, or `None` if the post has to wait. A link that holds
    /// nothing takes any post, and a post without bytes never waits.
    #[inline]
    pub fn take(&mut self, bytes: usize) -> Option<usize> {
        let Some(limit) = self.limit else { return Some(0) };
        if bytes > 0 && self.held > 0 && self.held.saturating_add(bytes) > limit {
            return None;
        }
        self.held += bytes;
        Some(bytes)
    }

    /// Gives back the credit of a post that left the transport. It had counted for this many bytes.
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
        assert_eq!(credit.take(0), Some(0), "no bytes wait for no room");
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
