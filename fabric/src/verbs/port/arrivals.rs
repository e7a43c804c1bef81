//! Completions: how a port takes them from the queues of its NICs, and handles them. A *route* is the number
//! that leads from a completion to its link.

use std::sync::Arc;

use super::{Owner, Port};
use crate::ids::{Imm, LinkId};
use crate::links::LinkState;
use crate::port::{Arrival, CloseReason};
use crate::verbs::handles::completion::immediate;
use crate::verbs::handles::ffi::{IBV_WC_RECV_RDMA_WITH_IMM, IBV_WC_SUCCESS, ibv_wc};
use crate::verbs::handles::words;
use crate::verbs::handles::work::{Work, WorkId};

/// The most completions that one call takes.
pub(in crate::verbs) const BATCH: usize = 64;

/// A completion of a link that is not attached yet. There are at most as many as the link has receive
/// requests, because no request is posted again before its arrival is shown.
pub(in crate::verbs) struct Early {
    route: usize,
    generation: u32,
    what: ibv_wc,
}

impl Port {
    /// Fills `into` from index `filled` on. Takes only as many completions from a queue as `into` has room
    /// for.
    pub(in crate::verbs) fn poll_queues(&mut self, into: &mut [Arrival], mut filled: usize) -> usize {
        let rails = self.rails.len();
        self.first = (self.first + 1) % rails.max(1);
        for turn in 0..rails {
            let rail = (self.first + turn) % rails;
            while filled < into.len() {
                let wanted = (into.len() - filled).min(BATCH);
                let count = self.take(rail, wanted);
                for index in 0..count {
                    let completion = self.batch[index];
                    if let Some(arrival) = self.complete(&completion) {
                        into[filled] = arrival;
                        filled += 1;
                        self.shown(arrival);
                    }
                }
                if count < wanted {
                    break;
                }
            }
        }
        filled
    }

    /// Takes all completions that were in the queues at the start of this call. Puts their arrivals into the
    /// stash, which the next polls show.
    #[cold]
    pub(in crate::verbs) fn take_all(&mut self) {
        for rail in 0..self.rails.len() {
            // Links may continue to complete during the loop. So the loop ends once it has taken as many
            // completions as the queue can hold.
            let mut left = self.rails[rail].queue.entries() as usize;
            loop {
                let count = self.take(rail, BATCH);
                for index in 0..count {
                    let completion = self.batch[index];
                    if let Some(arrival) = self.complete(&completion) {
                        self.stash(arrival);
                    }
                }
                left = left.saturating_sub(count);
                if count < BATCH || left == 0 {
                    break;
                }
            }
        }
    }

    /// Takes up to `wanted` completions of a rail into the batch.
    #[inline]
    fn take(&mut self, rail: usize, wanted: usize) -> usize {
        self.rails[rail].queue.poll(&mut self.batch[..wanted]).unwrap_or_else(|answer| {
            self.fail_rail(rail, "ibv_poll_cq", &format!("the driver answers {answer}"));
            0
        })
    }

    fn stash(&mut self, arrival: Arrival) {
        if let Some(attached) = self.links.get_mut(arrival.link) {
            attached.link.stashed += 1;
            self.stash.push_back(arrival);
        }
    }

    /// Notes that an arrival was shown, so that its receive request can be posted again.
    #[inline]
    pub(in crate::verbs) fn shown(&mut self, arrival: Arrival) {
        let Some(attached) = self.links.get_mut(arrival.link) else { return };
        if let Err(errno) = attached.link.link.shown(&mut self.tally) {
            self.fail_call(arrival.link, "ibv_post_recv", errno);
        }
    }

    /// Handles a completion. Returns the arrival, if the completion is an arrival and its link has not ended.
    #[inline]
    fn complete(&mut self, completion: &ibv_wc) -> Option<Arrival> {
        let WorkId { work, route, generation } = WorkId::decode(completion.wr_id);
        let route = route as usize;
        let owner = match self.routes.get(route) {
            Some(&(known, owner)) if known == generation => owner,
            _ => Owner::Nobody,
        };
        match owner {
            Owner::Link(id) => self.complete_link(id, work, completion),
            Owner::Lingering => {
                self.complete_lingering(route, work, completion.status == IBV_WC_SUCCESS);
                None
            }
            Owner::Nobody => {
                self.early.push(Early { route, generation, what: *completion });
                None
            }
        }
    }

    #[inline]
    fn complete_link(&mut self, id: LinkId, work: Work, completion: &ibv_wc) -> Option<Arrival> {
        let attached = self.links.get_mut(id)?;
        if completion.status != IBV_WC_SUCCESS {
            attached.link.link.give_up();
            self.fail_completion(id, work, completion);
            return None;
        }
        match work {
            Work::Receive => {
                self.tally.arrivals += 1;
                if completion.opcode != IBV_WC_RECV_RDMA_WITH_IMM {
                    let what =
                        format!("a message of opcode {} is not a write with immediate", completion.opcode);
                    self.end(id, CloseReason::Corrupt(what));
                    return None;
                }
                if !matches!(attached.state, LinkState::Open | LinkState::Ending(_)) {
                    return None;
                }
                let imm = Imm(immediate(completion));
                let bytes = completion.byte_len as usize;
                attached.link.link.crossed.received += bytes as u64;
                let is_unknown = bytes == 0 && attached.link.link.peer_writes_apart;
                if let Some(rule) = attached.link.rule.as_mut().filter(|_| !is_unknown)
                    && let Err(what) = rule.check_length(bytes, imm)
                {
                    self.end(id, CloseReason::Corrupt(what));
                    return None;
                }
                Some(Arrival { link: id, imm })
            }
            Work::Send => {
                self.tally.send_completions += 1;
                let sent = attached.link.link.sent(&mut self.tally);
                self.relieved |= std::mem::take(&mut attached.link.refused);
                if let Err(errno) = sent {
                    self.fail_call(id, "ibv_post_send", errno);
                }
                None
            }
            Work::Fence => {
                attached.link.link.fence_passed();
                None
            }
        }
    }

    /// Handles the completions of a link from the time before it was attached.
    pub(in crate::verbs) fn take_early(&mut self, route: usize, generation: u32, id: LinkId) {
        let early = std::mem::take(&mut self.early);
        for early in early {
            if (early.route, early.generation) != (route, generation) {
                self.early.push(early);
            } else if let Some(arrival) =
                self.complete_link(id, WorkId::decode(early.what.wr_id).work, &early.what)
            {
                self.stash(arrival);
            }
        }
    }

    /// Drops early completions of a route, because another link may get the route now.
    pub(in crate::verbs) fn forget_early(&mut self, route: usize) {
        self.early.retain(|early| early.route != route);
    }

    #[cold]
    fn fail_completion(&mut self, id: LinkId, work: Work, completion: &ibv_wc) {
        let Some(attached) = self.links.get(id) else { return };
        let what = match work {
            Work::Receive => "a receive request",
            Work::Send | Work::Fence => "an RDMA write",
        };
        let nic = &attached.link.link.route.rail.nic;
        let words = format!(
            "{what} with {}, by NIC {}, completed with {} (vendor error {:#x})",
            attached.link.peer,
            nic.address.device,
            words::status(completion.status, work),
            completion.vendor_err
        );
        self.end(id, CloseReason::Failed(words));
    }

    /// Fails a link, because a call of the data path failed.
    #[cold]
    pub(in crate::verbs) fn fail_call(&mut self, id: LinkId, call: &str, errno: i32) {
        self.fail_with(id, call, &std::io::Error::from_raw_os_error(errno).to_string());
    }

    /// Fails all links on a rail, because a call that all of them need failed.
    #[cold]
    pub(in crate::verbs) fn fail_rail(&mut self, rail: usize, call: &str, error: &str) {
        let rail = Arc::clone(&self.rails[rail]);
        for id in self.links.ids() {
            if self.links.get(id).is_some_and(|attached| Arc::ptr_eq(&attached.link.link.route.rail, &rail)) {
                self.fail_with(id, call, error);
            }
        }
    }

    fn fail_with(&mut self, id: LinkId, call: &str, error: &str) {
        let Some(attached) = self.links.get(id) else { return };
        let device = &attached.link.link.route.rail.nic.address.device;
        let words = format!("{call} on {device} for {}: {error}", attached.link.peer);
        self.end(id, CloseReason::Failed(words));
    }
}
