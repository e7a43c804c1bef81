//! A memory region: a range of a window, registered in one protection domain.
//!
//! On the `unsafe` list. Any thread. A region keeps its window mapped.

use std::io;
use std::ptr::NonNull;
use std::sync::Arc;

use rustix::process::{Resource, getrlimit};

use super::domain::Domain;
use super::ffi::{IBV_ACCESS_LOCAL_WRITE, IBV_ACCESS_REMOTE_WRITE, ibv_mr};
use crate::ids::Span;
use crate::memory::Mapping;
use crate::memory::{RecvWindow, SendWindow};

/// A range of a window could not be registered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "cannot register {bytes} bytes of {window} with {device} (ibv_reg_mr: {error}); locked memory is limited to {limit}: {}",
    advice(*out_of_memory)
)]
pub struct RegisterError {
    /// Which window.
    pub window: &'static str,
    /// What the NIC carries of it.
    pub bytes: usize,
    /// The NIC.
    pub device: String,
    /// RLIMIT_MEMLOCK of this process, in words.
    pub limit: String,
    /// The kernel's answer.
    pub error: String,
    /// Whether that was ENOMEM.
    pub out_of_memory: bool,
}

fn advice(out_of_memory: bool) -> &'static str {
    if out_of_memory {
        "raise the limit (ulimit -l unlimited; docker run --ulimit memlock=-1; LimitMEMLOCK=infinity in a systemd unit; or the capability IPC_LOCK)"
    } else {
        "that is not the limit's fault; see ibv_reg_mr(3), and dmesg for what the driver says"
    }
}

/// What a region keeps mapped.
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

// SAFETY: an ibv_mr may be used from every thread, and this value alone deregisters it.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    /// A range of a window that the NIC reads for posts of this end. The peer cannot reach it.
    ///
    /// # Panics
    /// When it sticks out of the window.
    pub fn send(domain: &Arc<Domain>, window: &Arc<SendWindow>, range: Span) -> Result<Self, RegisterError> {
        let start = window.bytes_of(range).expect("a range inside the window").cast_mut();
        let memory = Memory::Send(Arc::clone(window));
        Self::new(domain, "the window that this end writes", start, range.bytes, 0, memory)
    }

    /// A range of a window that the peer's posts are written to.
    ///
    /// # Panics
    /// When it sticks out of the window.
    pub fn receive(domain: &Arc<Domain>, window: &RecvWindow, range: Span) -> Result<Self, RegisterError> {
        assert!(window.is_local(), "a NIC writes memory of this end's own");
        assert!(range.end().is_some_and(|end| end <= window.bytes()), "a range inside the window");
        let access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
        let start = window.mapping().as_ptr().wrapping_add(range.offset);
        let memory = Memory::Receive(Arc::clone(window.mapping()));
        Self::new(domain, "the window that the peer writes", start, range.bytes, access, memory)
    }

    fn new(
        domain: &Arc<Domain>,
        window: &'static str,
        start: *mut u8,
        bytes: usize,
        access: u32,
        memory: Memory,
    ) -> Result<Self, RegisterError> {
        let verbs = domain.context.verbs;
        // SAFETY: the domain is alive; the memory is mapped, and stays so: `memory` holds it as long as the
        // region. A NIC writes it only where `access` says so, and such memory is read by address alone.
        let raw = unsafe { verbs.ibv_reg_mr(domain.raw(), start.cast(), bytes, access as i32) };
        let raw = NonNull::new(raw).ok_or_else(|| {
            let error = io::Error::last_os_error();
            RegisterError {
                window,
                bytes,
                device: domain.context.device.clone(),
                limit: memlock_limit(),
                out_of_memory: error.raw_os_error() == Some(libc::ENOMEM),
                error: error.to_string(),
            }
        })?;
        Ok(Region { raw, domain: Arc::clone(domain), _memory: memory })
    }

    /// The key with which a NIC of this end finds the memory.
    pub fn local_key(&self) -> u32 {
        // SAFETY: registered as long as `self`; the keys are set once.
        unsafe { self.raw.as_ref().lkey }
    }

    /// The key with which the peer's NIC finds the memory.
    pub fn remote_key(&self) -> u32 {
        // SAFETY: as above.
        unsafe { self.raw.as_ref().rkey }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: made by `new`, deregistered once; a link holds the regions of its queue pair.
        unsafe { self.domain.context.verbs.ibv_dereg_mr(self.raw.as_ptr()) };
    }
}

/// How much memory this process may lock, in words.
pub(in crate::verbs) fn memlock_limit() -> String {
    match getrlimit(Resource::Memlock).current {
        Some(bytes) => format!("{bytes} bytes (RLIMIT_MEMLOCK)"),
        None => "nothing (RLIMIT_MEMLOCK is unlimited)".into(),
    }
}
