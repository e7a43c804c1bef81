//! Work requests, which are prepared once and then patched: a chain of sends, and a chain of receives.
//!
//! This file is on the `unsafe` list. The port's thread owns the chains, together with the link. A chain
//! allocates nothing after it is made.
//! ```text
//!   sends:     [wr 0] -> [wr 1] -> ... -> [wr 31]      the first `held` are filled in; posting cuts the
//!                |         |                 |         chain after the last of them for the time of the call
//!              [sge 0]   [sge 1]           [sge 31]
//!   receives:  [wr 0] -> [wr 1] -> ... -> [wr 15]      all alike; posting n posts the last n
//! ```

use super::ffi::*;
use super::queue_pair::QueuePair;

/// The number of sends in one call of `ibv_post_send`. Each call costs a doorbell, which is little with 32
/// sends per call. The sends take 4.6 KB for each link.
pub(in crate::verbs) const SENDS: usize = 32;
/// The number of receive requests in one call.
pub(in crate::verbs) const RECEIVES: u32 = 16;

#[repr(C)]
struct Send {
    request: ibv_send_wr,
    piece: ibv_sge,
}

/// An address, and the key of the memory there.
#[derive(Clone, Copy, Debug)]
pub(in crate::verbs) struct Place {
    pub address: u64,
    pub key: u32,
}

/// A chain of RDMA writes, from memory of this end to memory of the peer.
pub(in crate::verbs) struct SendChain {
    sends: Box<[Send; SENDS]>,
    held: usize,
}

// SAFETY: the pointers in the requests only lead to this value's own box.
unsafe impl std::marker::Send for SendChain {}

impl Place {
    /// The place of a request without bytes.
    pub const NONE: Place = Place { address: 0, key: 0 };
}

impl SendChain {
    pub fn new() -> Self {
        let empty = || Send { request: ibv_send_wr::default(), piece: ibv_sge::default() };
        let mut sends = Box::new(std::array::from_fn(|_| empty()));
        let start: *mut Send = sends.as_mut_ptr();
        for (index, send) in sends.iter_mut().enumerate() {
            let this = start.wrapping_add(index);
            // SAFETY: `this` points to this element of the box, to which no other reference is in use. Only
            // the address of its field is taken.
            send.request.sg_list = unsafe { &raw mut (*this).piece };
            send.request.next = start.wrapping_add(index + 1).cast();
        }
        SendChain { sends, held: 0 }
    }

    pub fn is_empty(&self) -> bool {
        self.held == 0
    }

    pub fn is_full(&self) -> bool {
        self.held == SENDS
    }

    /// Returns the number of sends that are held back.
    pub fn held(&self) -> usize {
        self.held
    }

    /// Fills in one more send of `bytes` bytes from `from` to `to`, with or without an immediate. The
    /// completion shows `id`.
    ///
    /// # Panics
    /// Panics if the chain is full.
    pub fn push(&mut self, id: u64, signalled: bool, from: Place, to: Place, bytes: u32, imm: Option<u32>) {
        let Send { request, piece } = &mut self.sends[self.held];
        (piece.addr, piece.lkey) = (from.address, from.key);
        piece.length = bytes;
        request.wr_id = id;
        request.num_sge = i32::from(bytes > 0);
        request.send_flags = if signalled { IBV_SEND_SIGNALED } else { 0 };
        request.opcode = if imm.is_some() { IBV_WR_RDMA_WRITE_WITH_IMM } else { IBV_WR_RDMA_WRITE };
        request.imm_data = imm.unwrap_or_default().to_be();
        (request.remote_addr, request.rkey) = (to.address, to.key);
        self.held += 1;
    }

    /// Hands the held sends to the NIC. The NIC only reads memory that is registered under the local keys,
    /// and only writes memory that the peer registered under the remote keys. The NIC checks both keys.
    pub fn post(&mut self, qp: &QueuePair) -> Result<(), i32> {
        let Some(last) = self.held.checked_sub(1) else { return Ok(()) };
        let next = std::mem::replace(&mut self.sends[last].request.next, std::ptr::null_mut());
        self.held = 0;
        // A pointer to the first field of the first element. It is valid for the whole box, into which the
        // chain's other pointers lead.
        let first = self.sends.as_mut_ptr().cast::<ibv_send_wr>();
        // SAFETY: `push` filled in the chain's requests. The chain ends after the last of these requests.
        let posted = unsafe { qp.post_sends(first) };
        self.sends[last].request.next = next;
        posted
    }

    /// Hands over a message that is not a write, as no correct peer does.
    #[cfg(test)]
    pub fn post_plain(qp: &QueuePair) -> Result<(), i32> {
        let mut send = ibv_send_wr { opcode: IBV_WR_SEND, ..Default::default() };
        // SAFETY: the chain has one request, which reads no memory.
        unsafe { qp.post_sends(&raw mut send) }
    }

    /// Hands over a write without bytes, which completes after everything that was posted before it.
    pub fn post_fence(qp: &QueuePair, id: u64) -> Result<(), i32> {
        let mut fence = ibv_send_wr {
            wr_id: id,
            opcode: IBV_WR_RDMA_WRITE,
            send_flags: IBV_SEND_SIGNALED,
            ..Default::default()
        };
        // SAFETY: the chain has one request, which reads and writes no memory.
        unsafe { qp.post_sends(&raw mut fence) }
    }
}

/// A chain of receive requests without buffers. Each write with immediate uses up one request. The write
/// itself says where its bytes go.
pub(in crate::verbs) struct ReceiveChain {
    receives: Box<[ibv_recv_wr; RECEIVES as usize]>,
}

// SAFETY: as for `SendChain`.
unsafe impl std::marker::Send for ReceiveChain {}

impl ReceiveChain {
    pub fn new(id: u64) -> Self {
        let mut receives = Box::new([ibv_recv_wr { wr_id: id, ..Default::default() }; RECEIVES as usize]);
        let start: *mut ibv_recv_wr = receives.as_mut_ptr();
        for (index, receive) in receives.iter_mut().enumerate().take(RECEIVES as usize - 1) {
            receive.next = start.wrapping_add(index + 1);
        }
        ReceiveChain { receives }
    }

    /// Hands over `count` receive requests, at most [`RECEIVES`].
    pub fn post(&mut self, qp: &QueuePair, count: u32) -> Result<(), i32> {
        let Some(first) = RECEIVES.checked_sub(count).filter(|&first| first < RECEIVES) else {
            return Ok(());
        };
        let first = self.receives.as_mut_ptr().wrapping_add(first as usize);
        // SAFETY: these are the last `count` requests of the box. The `next` of the last one is null, and
        // they have no buffers.
        unsafe { qp.post_receives(first) }
    }
}
