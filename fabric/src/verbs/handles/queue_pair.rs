//! A reliable-connected queue pair, and its transitions from RESET to RTS.
//!
//! On the `unsafe` list. Made and connected by a handshake's thread, then used only by the port's thread.

use std::io;
use std::ptr::NonNull;
use std::sync::Arc;

use super::completion::CompletionQueue;
use super::domain::Domain;
use super::error::{CreateError, Made, ModifyError};
use super::ffi::*;
use crate::verbs::address::{Address, LinkLayer};
use crate::verbs::gid;
use crate::verbs::nic::Nic;

/// The time that the peer waits after the answer "not ready": 12 is 0.64 ms. It is not a setting, because within the
/// protocol the answer never occurs.
const MIN_RNR_TIMER: u8 = 12;
/// Routers that a packet may pass.
const HOP_LIMIT: u8 = 64;

const QUEUE_PAIR: Made = Made { what: "queue pair", call: "ibv_create_qp" };

/// The other end of a queue pair, as received in the handshake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::verbs) struct Peer {
    pub address: Address,
    pub number: u32,
    pub first_packet: u32,
}

/// An `ibv_qp`.
pub(in crate::verbs) struct QueuePair {
    raw: NonNull<ibv_qp>,
    domain: Arc<Domain>,
    _queue: Arc<CompletionQueue>,
}

// SAFETY: an ibv_qp may be used from every thread, and only this value destroys it.
unsafe impl Send for QueuePair {}

impl QueuePair {
    /// Creates a queue pair in RESET. Both its queues complete into `queue`; `sends` and `receives` are work requests.
    pub fn new(
        domain: &Arc<Domain>,
        queue: &Arc<CompletionQueue>,
        sends: u32,
        receives: u32,
    ) -> Result<Self, CreateError> {
        let context = &domain.context;
        let most = context.limits.work_requests;
        if sends.max(receives) > most {
            return Err(CreateError::too_large(QUEUE_PAIR, &context.device, sends.max(receives), most));
        }
        let mut init = ibv_qp_init_attr {
            send_cq: queue.raw(),
            recv_cq: queue.raw(),
            cap: ibv_qp_cap {
                max_send_wr: sends,
                max_recv_wr: receives,
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline_data: 0,
            },
            qp_type: IBV_QPT_RC,
            ..Default::default()
        };
        // SAFETY: domain and queue are alive, and stay so: the value below holds them; `init` is filled in.
        let raw = unsafe { context.verbs.ibv_create_qp(domain.raw(), &raw mut init) };
        let raw = NonNull::new(raw).ok_or_else(|| {
            let size =
                format!(" with {sends} sends and {receives} receives (the device's maximum is {most})");
            CreateError::new(QUEUE_PAIR, &context.device, size, io::Error::last_os_error())
        })?;
        Ok(QueuePair { raw, domain: Arc::clone(domain), _queue: Arc::clone(queue) })
    }

    /// Returns the number, which the peer addresses.
    pub fn number(&self) -> u32 {
        // SAFETY: alive as long as `self`; the number is set once.
        unsafe { self.raw.as_ref().qp_num }
    }

    /// Moves from RESET to INIT: receive requests can be posted.
    pub fn initialise(&self, nic: &Nic) -> Result<(), ModifyError> {
        let mut attr = ibv_qp_attr {
            qp_state: IBV_QPS_INIT,
            pkey_index: nic.settings.pkey_index,
            port_num: nic.port,
            qp_access_flags: IBV_ACCESS_REMOTE_WRITE,
            ..Default::default()
        };
        let mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
        self.modify(&mut attr, mask, IBV_QPS_RESET, nic, None)
    }

    /// Moves from INIT to RTR to RTS: joined with the peer.
    pub fn connect(&self, nic: &Nic, first_packet: u32, peer: &Peer) -> Result<(), ModifyError> {
        let mut attr = ibv_qp_attr {
            qp_state: IBV_QPS_RTR,
            path_mtu: u32::from(nic.address.mtu.min(peer.address.mtu).code()),
            dest_qp_num: peer.number,
            rq_psn: peer.first_packet,
            max_dest_rd_atomic: 1,
            min_rnr_timer: MIN_RNR_TIMER,
            ah_attr: path(nic, &peer.address),
            ..Default::default()
        };
        let mask = IBV_QP_STATE
            | IBV_QP_AV
            | IBV_QP_PATH_MTU
            | IBV_QP_DEST_QPN
            | IBV_QP_RQ_PSN
            | IBV_QP_MAX_DEST_RD_ATOMIC
            | IBV_QP_MIN_RNR_TIMER;
        self.modify(&mut attr, mask, IBV_QPS_INIT, nic, Some(&peer.address))?;
        let mut attr = ibv_qp_attr {
            qp_state: IBV_QPS_RTS,
            timeout: nic.settings.timeout,
            retry_cnt: nic.settings.retries,
            rnr_retry: nic.settings.rnr_retries,
            sq_psn: first_packet,
            max_rd_atomic: 1,
            ..Default::default()
        };
        let mask = IBV_QP_STATE
            | IBV_QP_TIMEOUT
            | IBV_QP_RETRY_CNT
            | IBV_QP_RNR_RETRY
            | IBV_QP_SQ_PSN
            | IBV_QP_MAX_QP_RD_ATOMIC;
        self.modify(&mut attr, mask, IBV_QPS_RTR, nic, Some(&peer.address))
    }

    /// Moves back to RESET: in this state a NIC answers no packet, as if this machine had vanished.
    #[cfg(test)]
    pub fn vanish(&self, nic: &Nic) {
        let mut attr = ibv_qp_attr { qp_state: IBV_QPS_RESET, ..Default::default() };
        self.modify(&mut attr, IBV_QP_STATE, IBV_QPS_RTS, nic, None).unwrap();
    }

    fn modify(
        &self,
        attr: &mut ibv_qp_attr,
        mask: ibv_qp_attr_mask,
        from: ibv_qp_state,
        nic: &Nic,
        peer: Option<&Address>,
    ) -> Result<(), ModifyError> {
        // SAFETY: the queue pair lives; the fields of `attr` that `mask` names are filled in.
        let errno = unsafe { self.domain.context.verbs.ibv_modify_qp(self.raw.as_ptr(), attr, mask as i32) };
        if errno == 0 {
            return Ok(());
        }
        // The function answers a positive errno; its manual page says -1.
        let errno = errno.abs();
        Err(ModifyError {
            from,
            to: attr.qp_state,
            mask,
            ours: format!("{} port {} GID index {}", nic.address, nic.port, nic.gid_index),
            peer: peer.map_or_else(|| "nobody yet".into(), Address::to_string),
            error: io::Error::from_raw_os_error(errno).to_string(),
            advice: advice(errno, nic),
        })
    }

    /// Hands a chain of sends to the NIC; returns the errno if it does not take them all.
    ///
    /// # Safety
    /// `first` begins a chain of valid requests, ended by a null `next`.
    pub unsafe fn post_sends(&self, first: *mut ibv_send_wr) -> Result<(), i32> {
        let post = self.domain.context.ops().post_send.expect("every driver can post sends");
        let mut bad = std::ptr::null_mut();
        // SAFETY: the queue pair lives; the chain is the caller's word.
        match unsafe { post(self.raw.as_ptr(), first, &raw mut bad) } {
            0 => Ok(()),
            errno => Err(errno.abs()),
        }
    }

    /// Hands a chain of receive requests to the NIC.
    ///
    /// # Safety
    /// `first` begins a chain of valid requests without buffers, ended by a null `next`.
    pub unsafe fn post_receives(&self, first: *mut ibv_recv_wr) -> Result<(), i32> {
        let post = self.domain.context.ops().post_recv.expect("every driver can post receives");
        let mut bad = std::ptr::null_mut();
        // SAFETY: the queue pair lives; the chain is the caller's word.
        match unsafe { post(self.raw.as_ptr(), first, &raw mut bad) } {
            0 => Ok(()),
            errno => Err(errno.abs()),
        }
    }
}

/// Returns how packets get there.
fn path(nic: &Nic, peer: &Address) -> ibv_ah_attr {
    let mut path = ibv_ah_attr {
        dlid: peer.lid,
        sl: nic.settings.service_level,
        port_num: nic.port,
        ..Default::default()
    };
    let subnet = |address: &Address| address.gid.0[..8].to_vec();
    // RoCE has no other address than the GID; InfiniBand needs it beyond the subnet, and if a port requires it.
    if nic.address.link_layer == LinkLayer::Ethernet
        || nic.needs_global_route
        || subnet(&nic.address) != subnet(peer)
    {
        path.is_global = 1;
        path.grh.dgid = ibv_gid { raw: peer.gid.0 };
        path.grh.sgid_index = nic.gid_index;
        path.grh.hop_limit = HOP_LIMIT;
        path.grh.traffic_class = nic.settings.traffic_class;
    }
    path
}

fn advice(errno: i32, nic: &Nic) -> String {
    let why = match errno {
        libc::ETIMEDOUT | libc::EHOSTUNREACH | libc::ENETUNREACH => {
            "the peer's address does not resolve from this GID's interface: does the peer answer a ping over it, and is this the right GID? Another one is chosen by its index"
        }
        libc::EINVAL => "the driver rejects one of these values, most often the GID index or the MTU",
        _ => return String::new(),
    };
    format!("; {why}. The GID table of {}:\n{}", nic.address.device, gid::table(&nic.gids))
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        // SAFETY: made by `new`, destroyed once; nothing completes for it afterwards.
        unsafe { self.domain.context.verbs.ibv_destroy_qp(self.raw.as_ptr()) };
    }
}
