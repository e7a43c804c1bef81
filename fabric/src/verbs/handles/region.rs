//! A memory region: a range of a window, registered in one protection domain.
//!
//! This file is on the `unsafe` list. Any thread may use the region, which keeps its window mapped.

use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::ptr::NonNull;
use std::sync::Arc;

use rustix::process::{Resource, getrlimit};

use super::domain::Domain;
use super::ffi::{IBV_ACCESS_LOCAL_WRITE, IBV_ACCESS_RELAXED_ORDERING, IBV_ACCESS_REMOTE_WRITE, ibv_mr};
use crate::ids::Span;
use crate::memory::{DmaBuf, Mapping, RecvWindow, SendWindow};
use crate::verbs::path_settings::RelaxedOrdering;

/// The error of a range of a window that could not be registered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot register {bytes} bytes of {window} with {device} ({error}); {advice}")]
pub struct RegisterError {
    /// The window.
    pub window: &'static str,
    /// The number of bytes of the window that the NIC carries.
    pub bytes: usize,
    /// The NIC.
    pub device: String,
    /// The call that failed, and the kernel's answer.
    pub error: String,
    /// The advice for the user.
    pub advice: String,
}

/// Returns the advice after `ibv_reg_mr` failed.
fn advice(errno: i32) -> String {
    let advice = match errno {
        libc::ENOMEM => {
            "raise the limit (ulimit -l unlimited; docker run --ulimit memlock=-1; LimitMEMLOCK=infinity in a systemd unit), or give the capability IPC_LOCK"
        }
        _ => "the limit is not the cause; see ibv_reg_mr(3), and dmesg for the driver's messages",
    };
    format!("locked memory is limited to {}: {advice}", memlock_limit())
}

/// Returns the advice after `ibv_reg_dmabuf_mr` failed.
fn advice_on_dma_bufs(errno: i32) -> String {
    let why = match errno {
        libc::ENOSYS => "libibverbs is older than rdma-core 34: install a newer libibverbs",
        // The library and the kernel return these codes if the driver has no such call.
        libc::EOPNOTSUPP | libc::EPROTONOSUPPORT => {
            "this device's driver takes no dma-bufs (mlx5's does from Linux 5.12 on, soft-RoCE's does not): leave the device out of the list of NICs"
        }
        libc::ENOMEM => {
            "the device that made the dma-buf has no address space left to map the dma-buf for NICs (for example, the BAR1 of a GPU is full)"
        }
        _ => "dmesg may have messages of the NIC's driver, or of the driver that made the dma-buf",
    };
    format!("{why}; or use a window in host memory, without a dma-buf")
}

/// Returns the advice after `ibv_reg_mr_iova2` failed.
fn advice_on_ordering(errno: i32) -> String {
    match errno {
        libc::ENOSYS => "libibverbs is older than rdma-core 28: install a newer libibverbs, or allow strict ordering (PHUB_RDMA_RELAXED_ORDERING=2)".into(),
        libc::EINVAL | libc::EOPNOTSUPP => "the driver may not take relaxed ordering: allow strict ordering (PHUB_RDMA_RELAXED_ORDERING=2)".into(),
        _ => advice(errno),
    }
}

const OWN: &str = "the window that this end writes";
const PEERS: &str = "the window that the peer writes";

/// The memory that a region keeps mapped.
enum Memory {
    Send(#[expect(dead_code, reason = "held")] Arc<SendWindow>),
    Receive(#[expect(dead_code, reason = "held")] Arc<Mapping>),
}

/// An `ibv_mr`.
pub(in crate::verbs) struct Region {
    raw: NonNull<ibv_mr>,
    domain: Arc<Domain>,
    _memory: Memory,
}

// SAFETY: every thread may use an ibv_mr, and only this value deregisters it.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    /// Registers a range of a window that the NIC reads for posts of this end. The peer cannot access it.
    ///
    /// # Panics
    /// Panics if the range ends beyond the window.
    pub fn send(domain: &Arc<Domain>, window: &Arc<SendWindow>, range: Span) -> Result<Self, RegisterError> {
        assert!(range.end().is_some_and(|end| end <= window.bytes()), "a range inside the window");
        let memory = Memory::Send(Arc::clone(window));
        match window.dma_buf() {
            Some(dma_buf) => Self::in_dma_buf(domain, dma_buf, range, memory),
            None => {
                let start = window.bytes_of(range).expect("checked above").cast_mut();
                // SAFETY: `memory` keeps the range mapped, and the NIC only reads it.
                let raw = unsafe { register(domain, start, range.bytes, 0) };
                let raw =
                    raw.map_err(|error| refused(domain, OWN, range.bytes, "ibv_reg_mr", error, advice))?;
                Ok(Region { raw, domain: Arc::clone(domain), _memory: memory })
            }
        }
    }

    /// Registers a range of a window in a dma-buf, which the NIC reads. The kernel requires that the offset
    /// in the dma-buf and the address for posts have the same offset within a page. Here the two are equal.
    fn in_dma_buf(
        domain: &Arc<Domain>,
        dma_buf: &DmaBuf,
        range: Span,
        memory: Memory,
    ) -> Result<Self, RegisterError> {
        let (offset, fd) = (dma_buf.offset() + range.offset as u64, dma_buf.as_fd().as_raw_fd());
        let raw = match domain.context.verbs.ibv_reg_dmabuf_mr {
            // SAFETY: the domain is alive. The kernel checks the range and the descriptor, which `memory`
            // holds. The NIC only reads the range.
            Some(register) => made(unsafe { register(domain.raw(), offset, range.bytes, offset, fd, 0) }),
            None => Err(io::Error::from_raw_os_error(libc::ENOSYS)),
        };
        let raw = raw.map_err(|error| {
            let call = format!("ibv_reg_dmabuf_mr, from byte {offset} of its dma-buf");
            refused(domain, OWN, range.bytes, &call, error, advice_on_dma_bufs)
        })?;
        Ok(Region { raw, domain: Arc::clone(domain), _memory: memory })
    }

    /// Registers a range of a window that the peer's posts write. With relaxed ordering, posts may reach
    /// memory in any order. A completion still comes after all bytes of its write and of earlier writes
    /// (ibv_reg_mr(3)). No other order is needed.
    ///
    /// # Panics
    /// Panics if the range ends beyond the window.
    pub fn receive(
        domain: &Arc<Domain>,
        window: &RecvWindow,
        range: Span,
        ordering: RelaxedOrdering,
    ) -> Result<Self, RegisterError> {
        assert!(window.is_local(), "a NIC writes only memory of this end");
        assert!(range.end().is_some_and(|end| end <= window.bytes()), "a range inside the window");
        let start = window.mapping().as_ptr().wrapping_add(range.offset);
        let access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
        let relaxed = access | IBV_ACCESS_RELAXED_ORDERING;
        // SAFETY: `_memory` below keeps the range mapped, and the program reads such memory only by its
        // address.
        let register = |access| unsafe { register(domain, start, range.bytes, access) };
        let (raw, call, advice): (_, _, fn(i32) -> String) = match ordering {
            RelaxedOrdering::Off => (register(access), "ibv_reg_mr", advice),
            RelaxedOrdering::On => (register(relaxed), "ibv_reg_mr_iova2", advice_on_ordering),
            RelaxedOrdering::IfTaken => match register(relaxed) {
                Err(error) if is_not_taken(&error) => (register(access), "ibv_reg_mr", advice),
                raw => (raw, "ibv_reg_mr_iova2", advice),
            },
        };
        let raw = raw.map_err(|error| refused(domain, PEERS, range.bytes, call, error, advice))?;
        let _memory = Memory::Receive(Arc::clone(window.mapping()));
        Ok(Region { raw, domain: Arc::clone(domain), _memory })
    }

    /// Returns the key by which NICs of this end access the memory.
    pub fn local_key(&self) -> u32 {
        // SAFETY: the region is registered as long as `self`, and its keys never change.
        unsafe { self.raw.as_ref().lkey }
    }

    /// Returns the key by which the peer's NIC accesses the memory.
    pub fn remote_key(&self) -> u32 {
        // SAFETY: as above.
        unsafe { self.raw.as_ref().rkey }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: `new` made the region, and it is deregistered once. A link holds the regions of its queue
        // pair.
        unsafe { self.domain.context.verbs.ibv_dereg_mr(self.raw.as_ptr()) };
    }
}

/// Checks that a device's driver accepts dma-bufs. Otherwise returns the reason. The driver gets a descriptor
/// that is no dma-buf: a driver without support does not look at the descriptor.
pub(in crate::verbs) fn takes_dma_bufs(domain: &Domain) -> Result<(), String> {
    let answer = match domain.context.verbs.ibv_reg_dmabuf_mr {
        // SAFETY: the domain is alive, and the descriptor leads to no memory.
        Some(register) => made(unsafe { register(domain.raw(), 0, 1, 0, -1, 0) }).map(|_| ()),
        None => Err(io::Error::from_raw_os_error(libc::ENOSYS)),
    };
    match answer.map_err(|error| (error.raw_os_error().unwrap_or(0), error)) {
        Ok(()) | Err((libc::EBADF, _)) => Ok(()),
        Err((errno, error)) => Err(format!("ibv_reg_dmabuf_mr: {error}; {}", advice_on_dma_bufs(errno))),
    }
}

/// Registers memory by the call that `infiniband/verbs.h` would choose. Only `ibv_reg_mr_iova2` drops relaxed
/// ordering for a kernel that does not know it.
///
/// # Safety
/// The memory must stay mapped as long as the region lives. While a NIC may write bytes by `access`, nobody
/// may hold references to these bytes.
unsafe fn register(
    domain: &Domain,
    start: *mut u8,
    bytes: usize,
    access: u32,
) -> io::Result<NonNull<ibv_mr>> {
    let verbs = domain.context.verbs;
    if access & IBV_ACCESS_RELAXED_ORDERING == 0 {
        // SAFETY: the domain is alive, and the caller guarantees the state of the memory.
        return made(unsafe { verbs.ibv_reg_mr(domain.raw(), start.cast(), bytes, access as i32) });
    }
    match verbs.ibv_reg_mr_iova2 {
        // SAFETY: as for `ibv_reg_mr`. The address for posts is the memory's own address.
        Some(register) => made(unsafe { register(domain.raw(), start.cast(), bytes, start as u64, access) }),
        None => Err(io::Error::from_raw_os_error(libc::ENOSYS)),
    }
}

/// Whether the error may mean that a library or driver does not support relaxed ordering.
fn is_not_taken(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::EINVAL | libc::EOPNOTSUPP))
}

/// Returns the region that a call has just made, or the call's error.
fn made(raw: *mut ibv_mr) -> io::Result<NonNull<ibv_mr>> {
    NonNull::new(raw).ok_or_else(io::Error::last_os_error)
}

fn refused(
    domain: &Domain,
    window: &'static str,
    bytes: usize,
    call: &str,
    error: io::Error,
    advice: fn(i32) -> String,
) -> RegisterError {
    let (device, advice) = (domain.context.device.clone(), advice(error.raw_os_error().unwrap_or(0)));
    RegisterError { window, bytes, device, error: format!("{call}: {error}"), advice }
}

/// Returns how much memory this process may lock, in words.
pub(in crate::verbs) fn memlock_limit() -> String {
    match getrlimit(Resource::Memlock).current {
        Some(bytes) => format!("{bytes} bytes (RLIMIT_MEMLOCK)"),
        None => "nothing (RLIMIT_MEMLOCK is unlimited)".into(),
    }
}
