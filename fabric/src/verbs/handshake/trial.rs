//! The trial of a pair of NICs before links use the pair: whether packets cross from one end to the other.
//! The trial is a write without bytes, which the other NIC acknowledges. Addresses do not show whether
//! packets cross: by default, all InfiniBand is in fe80::/64, and addresses of /32 have no common subnet.
//!
//! The handshake's threads run the trial on separate queue pairs, which end with the trial: only the port may
//! take the completions of links.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::message::LinkEnd;
use crate::verbs::address::Address;
use crate::verbs::error::VerbsError;
use crate::verbs::handles::chain::SendChain;
use crate::verbs::handles::completion::CompletionQueue;
use crate::verbs::handles::domain::Domain;
use crate::verbs::handles::ffi::{IBV_WC_SUCCESS, ibv_wc};
use crate::verbs::handles::queue_pair::{Peer, QueuePair};
use crate::verbs::handles::words;
use crate::verbs::handles::work::Work;
use crate::verbs::nic::Nic;
use crate::verbs::port::link::random_packet;

/// The time limit of a trial. A write without bytes takes microseconds. By default, the NIC retries the write
/// after half a second. The limit is shorter than a step of the handshake, because the other end waits.
const WITHIN: Duration = Duration::from_secs(2);

/// This end of a pair of NICs in a trial.
pub(super) struct TrialEnd {
    qp: QueuePair,
    queue: Arc<CompletionQueue>,
    nic: Arc<Nic>,
    first_packet: u32,
}

impl TrialEnd {
    pub fn new(nic: &Arc<Nic>) -> Result<Self, VerbsError> {
        let queue = CompletionQueue::new(&nic.context, 0)?;
        let qp = QueuePair::new(&Domain::new(&nic.context)?, &queue, 1, 1)?;
        qp.initialise(nic)?;
        let first_packet = random_packet().map_err(VerbsError::system("drawing a packet number"))?;
        Ok(TrialEnd { qp, queue, nic: Arc::clone(nic), first_packet })
    }

    /// Returns what the other end needs to know of this end. `nic` is the index of the NIC in the message.
    pub fn name(&self, nic: u16) -> LinkEnd {
        LinkEnd { nic, number: self.qp.number(), first_packet: self.first_packet, keys: Vec::new() }
    }

    /// Connects this end, which then acknowledges the other end's write. For a RoCE NIC, the kernel resolves
    /// the address in this call.
    pub fn connect(&self, address: &Address, end: &LinkEnd) -> Result<(), String> {
        let peer = Peer { address: address.clone(), number: end.number, first_packet: end.first_packet };
        self.qp.connect(&self.nic, self.first_packet, &peer).map_err(|error| error.to_string())
    }

    /// Posts a write without bytes to the other end. Returns the time of the post.
    pub fn write(&self) -> Result<Instant, String> {
        let fail = |errno| format!("ibv_post_send: {}", std::io::Error::from_raw_os_error(errno));
        SendChain::post_fence(&self.qp, 0).map_err(fail).map(|()| Instant::now())
    }

    /// Waits until the write that was posted at `written` is acknowledged.
    pub fn acknowledged(&self, written: Instant) -> Result<(), String> {
        let mut one = [ibv_wc::default()];
        loop {
            // The queue is armed before it is polled: a completion after the poll makes the channel readable.
            self.queue.arm().map_err(|error| format!("ibv_req_notify_cq: {error}"))?;
            let count = self.queue.poll(&mut one).map_err(|answer| format!("ibv_poll_cq: {answer}"))?;
            if count == 1 {
                return match one[0].status {
                    IBV_WC_SUCCESS => Ok(()),
                    status => Err(words::status(status, Work::Fence)),
                };
            }
            let left = WITHIN.saturating_sub(written.elapsed());
            if left.is_zero() {
                return Err(format!("a write was not acknowledged within {WITHIN:?}"));
            }
            let left = Timespec::try_from(left).expect("two seconds at most");
            let _ = poll(&mut [PollFd::new(&self.queue.events_fd(), PollFlags::IN)], Some(&left));
            self.queue.take_event();
        }
    }
}
