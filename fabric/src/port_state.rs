//! The state that a port shares with other threads of its process. They are the thread that watches sockets,
//! the threads of handshakes, and threads that wake the port.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::task::Wake;

use rustix::event::{EventfdFlags, eventfd};

use crate::connection::Alarm;

/// A bell that can wake a sleeping port.
pub(crate) trait Ring: Send + Sync + std::fmt::Debug {
    /// Rings the bell. The caller must have stored the reason for the wake-up before.
    fn ring(&self);
}

/// The shared state of one port. `own` is the transport's part of the state, with the bell on which the port
/// sleeps.
#[derive(Debug)]
pub(crate) struct PortState<T> {
    pub own: T,
    /// Whether a thread has used the port's waker since the port last slept.
    woken: AtomicBool,
    /// The count of changes that the port must look at, such as connections that ended.
    changes: AtomicU32,
}

impl<T> PortState<T> {
    pub fn new(own: T) -> Arc<Self> {
        Arc::new(PortState { own, woken: AtomicBool::new(false), changes: AtomicU32::new(0) })
    }

    /// Whether a thread used the waker since the last call.
    pub fn take_woken(&self) -> bool {
        self.woken.swap(false, Ordering::Acquire) // [woken]
    }

    /// Returns the count of changes. If it differs from the last count, the port must look for a change.
    #[inline]
    pub fn changes(&self) -> u32 {
        self.changes.load(Ordering::Acquire) // [change]
    }

    /// Counts a change that the port must look at. The call does not wake the port.
    pub fn count_change(&self) {
        self.changes.fetch_add(1, Ordering::Release); // [change]
    }
}

impl<T: Ring> Alarm for PortState<T> {
    fn ended(&self) {
        self.count_change();
        self.own.ring();
    }
}

impl<T: Ring + 'static> Wake for PortState<T> {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.woken.store(true, Ordering::Release); // [woken]
        self.own.ring();
    }
}

/// A bell that a sleeper polls with its other descriptors.
#[derive(Debug)]
pub(crate) struct EventBell(OwnedFd);

impl EventBell {
    pub fn new() -> rustix::io::Result<Self> {
        Ok(EventBell(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
    }

    /// Resets a bell that has rung.
    pub fn quieten(&self) {
        let _ = rustix::io::read(&self.0, &mut [0; 8]);
    }
}

impl Ring for EventBell {
    fn ring(&self) {
        // If the counter is full, the write fails. A full counter is not zero, so it ends the sleep, too.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }
}

impl AsFd for EventBell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
