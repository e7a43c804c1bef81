//! A memory region: a window, registered in one protection domain.
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

/// A window could not be registered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "cannot register {bytes} bytes of {window} with {device} (ibv_reg_mr: {error}); locked memory is limited to {limit}: {}",
    advice(*out_of_memory)
)]
pub struct RegisterError {
    /// Which window.
    pub window: &'static str,
    /// Its size.
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
    pub address: u64,
    pub bytes: usize,
    _memory: Memory,
}

// SAFETY: an ibv_mr may be used from every thread, and this value alone deregisters it.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    /// A window that the NIC reads for posts of this end. The peer cannot reach it.
    pub fn send(domain: &Arc<Domain>, window: &Arc<SendWindow>) -> Result<Arc<Self>, RegisterError> {
        let whole = Span { offset: 0, bytes: window.bytes() };
        let start = window.bytes_of(whole).expect("a window holds itself").cast_mut();
        Self::new(domain, "the window that this end writes", start, window.bytes(), 0, || {
            Memory::Send(Arc::clone(window))
        })
    }

    /// A window that the peer's posts are written to.
    pub fn receive(domain: &Arc<Domain>, window: &RecvWindow) -> Result<Arc<Self>, RegisterError> {
        assert!(window.is_local(), "a NIC writes memory of this end's own");
        let access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
        let start = window.mapping().as_ptr();
        Self::new(domain, "the window that the peer writes", start, window.bytes(), access, || {
            Memory::Receive(Arc::clone(window.mapping()))
        })
    }

    fn new(
        domain: &Arc<Domain>,
        window: &'static str,
        start: *mut u8,
        bytes: usize,
        access: u32,
        memory: impl FnOnce() -> Memory,
    ) -> Result<Arc<Self>, RegisterError> {
        let verbs = domain.context.verbs;
        // Zero bytes cannot be registered. A mapping has at least a page.
        let length = bytes.max(1);
        // SAFETY: the domain is alive; the memory is mapped, and stays so: `memory` holds it as long as the
        // region. A NIC writes it only where `access` says so, and such memory is read by address alone.
        let raw = unsafe { verbs.ibv_reg_mr(domain.raw(), start.cast(), length, access as i32) };
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
        Ok(Arc::new(Region {
            raw,
            domain: Arc::clone(domain),
            address: start as u64,
            bytes,
            _memory: memory(),
        }))
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
        // SAFETY: made by `new`, deregistered once; queue pairs that post from it hold an `Arc` of it.
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
