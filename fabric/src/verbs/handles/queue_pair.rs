//! A reliable-connected queue pair, and its transitions from RESET to RTS.
//!
//! This file is on the `unsafe` list. A handshake's thread makes and connects the queue pair. After that,
//! only the port's thread uses it.

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

/// The time that the peer waits after the answer "not ready". The code 12 means 0.64 ms. The time is not a
/// setting, because within the protocol the answer never occurs.
const MIN_RNR_TIMER: u8 = 12;
/// The most routers that a packet may pass.
const HOP_LIMIT: u8 = 64;

const QUEUE_PAIR: Made = Made { what: "queue pair", call: "ibv_create_qp" };

/// The other end of a queue pair, as the handshake received it.
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

// SAFETY: every thread may use an ibv_qp, and only this value destroys it.
unsafe impl Send for QueuePair {}

impl QueuePair {
    /// Creates a queue pair in RESET. Its sends and receives complete into `queue`. `sends` and `receives`
    /// are the most work requests of each kind.
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
        // SAFETY: domain and queue are alive, and the value below keeps them alive. `init` is filled in.
        let raw = unsafe { context.verbs.ibv_create_qp(domain.raw(), &raw mut init) };
        let raw = NonNull::new(raw).ok_or_else(|| {
            let size =
                format!(" with {sends} sends and {receives} receives (the device's maximum is {most})");
            CreateError::new(QUEUE_PAIR, &context.device, size, io::Error::last_os_error())
        })?;
        Ok(QueuePair { raw, domain: Arc::clone(domain), _queue: Arc::clone(queue) })
    }

    /// Returns the queue pair's number, which the peer uses as its address.
    pub fn number(&self) -> u32 {
        // SAFETY: the queue pair is alive as long as `self`, and its number never changes.
        unsafe { self.raw.as_ref().qp_num }
    }

    /// Moves from RESET to INIT, where receive requests can be posted.
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

    /// Moves from INIT to RTR, and then to RTS. The queue pair is then connected to the peer.
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

    /// Moves back to RESET. In this state, a NIC answers no packet, as if this machine had vanished.
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
        // SAFETY: the queue pair lives, and the fields of `attr` that `mask` names are filled in.
        let errno = unsafe { self.domain.context.verbs.ibv_modify_qp(self.raw.as_ptr(), attr, mask as i32) };
        if errno == 0 {
            return Ok(());
        }
        // The function returns a positive errno, although its manual page says -1.
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

    /// Hands a chain of sends to the NIC. Returns the errno if the NIC does not accept all of them.
    ///
    /// # Safety
    /// `first` must begin a chain of valid requests that ends with a null `next`.
    pub unsafe fn post_sends(&self, first: *mut ibv_send_wr) -> Result<(), i32> {
        let post = self.domain.context.ops().post_send.expect("every driver can post sends");
        let mut bad = std::ptr::null_mut();
        // SAFETY: the queue pair lives, and the caller guarantees that the chain is valid.
        match unsafe { post(self.raw.as_ptr(), first, &raw mut bad) } {
            0 => Ok(()),
            errno => Err(errno.abs()),
        }
    }

    /// Hands a chain of receive requests to the NIC.
    ///
    /// # Safety
    /// `first` must begin a chain of valid requests without buffers that ends with a null `next`.
    pub unsafe fn post_receives(&self, first: *mut ibv_recv_wr) -> Result<(), i32> {
        let post = self.domain.context.ops().post_recv.expect("every driver can post receives");
        let mut bad = std::ptr::null_mut();
        // SAFETY: the queue pair lives, and the caller guarantees that the chain is valid.
        match unsafe { post(self.raw.as_ptr(), first, &raw mut bad) } {
            0 => Ok(()),
            errno => Err(errno.abs()),
        }
    }
}

/// Returns the path of packets to the peer.
fn path(nic: &Nic, peer: &Address) -> ibv_ah_attr {
    let mut path = ibv_ah_attr {
        dlid: peer.lid,
        sl: nic.settings.service_level,
        port_num: nic.port,
        ..Default::default()
    };
    let subnet = |address: &Address| address.gid.0[..8].to_vec();
    // RoCE has only GIDs as addresses. InfiniBand needs the GID only for a peer outside of the subnet, or if
    // a port requires it.
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
            "the peer's address does not resolve from this GID's interface: does the peer answer a ping over that interface, and \
             is this the right GID? Choose another GID by its index"
        }
        libc::EINVAL => "the driver rejects one of the values above, most often the GID index or the MTU",
        _ => return String::new(),
    };
    format!("; {why}. The GID table of {}:\n{}", nic.address.device, gid::table(&nic.gids))
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        // SAFETY: `new` made the queue pair, and it is destroyed once. After that, none of its requests
        // completes.
        unsafe { self.domain.context.verbs.ibv_destroy_qp(self.raw.as_ptr()) };
    }
}
