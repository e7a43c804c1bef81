//! The ids of work requests, by which a completion finds its link, and counts of work requests.

/// The purpose of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::verbs) enum Work {
    /// A receive request. Its completion is an arrival.
    Receive,
    /// A signalled post. Its completion shows that this post and the posts before it are done.
    Send,
    /// A write without bytes, which completes after all posts before it.
    Fence,
}

/// A `wr_id`: two bits for the kind, 30 for the number by which the port finds the link (its route), 32 for
/// the route's generation. A completion that is still in the queue after its link was detached names a
/// generation that no link has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::verbs) struct WorkId {
    pub work: Work,
    pub route: u32,
    pub generation: u32,
}

/// The most routes of a port.
pub(in crate::verbs) const MAX_ROUTES: u32 = 1 << 30;

impl WorkId {
    pub fn encode(self) -> u64 {
        let kind = match self.work {
            Work::Receive => 0,
            Work::Send => 1,
            Work::Fence => 2,
        };
        kind << 62 | u64::from(self.route) << 32 | u64::from(self.generation)
    }

    pub fn decode(id: u64) -> Self {
        let work = match id >> 62 {
            0 => Work::Receive,
            1 => Work::Send,
            _ => Work::Fence,
        };
        WorkId { work, route: (id >> 32) as u32 & (MAX_ROUTES - 1), generation: id as u32 }
    }
}

/// The counts of the work that the NICs have done for a port since the port was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Send requests: one per post, or two if immediates are separate writes.
    pub sends: u64,
    /// Calls of `ibv_post_send` for these requests.
    pub send_calls: u64,
    /// Completions of signalled sends.
    pub send_completions: u64,
    /// Receive requests that were posted again. The first requests, which the handshake posts, do not count.
    pub receives: u64,
    /// Calls of `ibv_post_recv` for these requests.
    pub receive_calls: u64,
    /// Completions of receive requests: arrivals.
    pub arrivals: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_survives_the_nic() {
        for work in [Work::Receive, Work::Send, Work::Fence] {
            for (route, generation) in [(0, 0), (MAX_ROUTES - 1, u32::MAX), (17, 4)] {
                let id = WorkId { work, route, generation };
                assert_eq!(WorkId::decode(id.encode()), id);
            }
        }
    }
}
