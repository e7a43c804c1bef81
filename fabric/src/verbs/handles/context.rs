//! An opened device, from which all other handles are made.
//!
//! This file is on the `unsafe` list. Any thread may use the context: libibverbs locks where necessary. This
//! module does not depend on links.

use std::ffi::CStr;
use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

use super::error::DeviceError;
use super::ffi::*;
use super::library::{Ibverbs, library};

/// An `ibv_context`.
pub(in crate::verbs) struct Context {
    raw: NonNull<ibv_context>,
    pub verbs: &'static Ibverbs,
    pub device: String,
    pub limits: Limits,
    /// Whether the device has failed. Then nothing more can be made on this context.
    lost: AtomicBool,
}

/// The device's limits that this program uses.
#[derive(Clone, Copy, Debug)]
pub(in crate::verbs) struct Limits {
    pub ports: u8,
    /// The most work requests of a queue.
    pub work_requests: u32,
    /// The most entries of a completion queue.
    pub completions: u32,
}

/// An event of a NIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::verbs) struct NicEvent {
    pub kind: ibv_event_type,
    pub about: About,
}

/// The object that an event concerns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::verbs) enum About {
    /// A queue pair, by its number.
    QueuePair(u32),
    /// A completion queue, by its address.
    CompletionQueue(usize),
    Port(u8),
    Device,
}

// SAFETY: every thread may use an ibv_context (ibv_open_device(3): libibverbs is thread-safe), and only this
// value closes it.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl Context {
    /// Returns the names of all RDMA devices of this machine.
    pub fn names() -> Result<Vec<String>, DeviceError> {
        let list = List::get()?;
        // SAFETY: the list's devices live as long as the list, and so do their names.
        let name = |&device: &*mut ibv_device| unsafe {
            let name = list.verbs.ibv_get_device_name(device);
            CStr::from_ptr(name).to_string_lossy().into_owned()
        };
        Ok(list.devices().iter().map(name).collect())
    }

    /// Opens the device of this name.
    pub fn open(device: &str) -> Result<Arc<Self>, DeviceError> {
        let list = List::get()?;
        let names = Self::names()?;
        let Some(index) = names.iter().position(|name| name == device) else {
            return Err(DeviceError::Unknown { device: device.into(), there_are: names });
        };
        let Some(&found) = list.devices().get(index) else {
            return Err(DeviceError::Unknown { device: device.into(), there_are: names });
        };
        // SAFETY: `found` is a device of a list that is not freed yet.
        let raw = NonNull::new(unsafe { list.verbs.ibv_open_device(found) })
            .ok_or_else(|| DeviceError::open(device))?;
        let limits = Limits { ports: 0, work_requests: 0, completions: 0 };
        let mut context =
            Context { raw, verbs: list.verbs, device: device.into(), limits, lost: false.into() };
        context.limits = context.query()?;
        let events = context.events_fd();
        let flags = fcntl_getfl(events).map_err(|errno| context.failed("fcntl", errno.into()))?;
        fcntl_setfl(events, flags | OFlags::NONBLOCK)
            .map_err(|errno| context.failed("fcntl", errno.into()))?;
        Ok(Arc::new(context))
    }

    fn query(&self) -> Result<Limits, DeviceError> {
        let mut attr = ibv_device_attr::default();
        // SAFETY: the context is open, and `attr` has the size that the function fills.
        let errno = unsafe { self.verbs.ibv_query_device(self.raw(), &raw mut attr) };
        if errno != 0 {
            return Err(self.failed("ibv_query_device", io::Error::from_raw_os_error(errno)));
        }
        let count = |number: i32| u32::try_from(number).unwrap_or(0);
        Ok(Limits {
            ports: attr.phys_port_cnt,
            work_requests: count(attr.max_qp_wr),
            completions: count(attr.max_cqe),
        })
    }

    /// Returns the driver's description of a port.
    pub fn port(&self, number: u8) -> Result<ibv_port_attr, DeviceError> {
        let mut attr = ibv_port_attr::default();
        // The exported function knows an older, shorter structure, and fills the fields that both structures
        // have.
        // SAFETY: the context is open, and `attr` begins with the structure that the function fills.
        let errno = unsafe { self.verbs.ibv_query_port(self.raw(), number, &raw mut attr) };
        if errno != 0 {
            return Err(self.failed("ibv_query_port", io::Error::from_raw_os_error(errno)));
        }
        Ok(attr)
    }

    /// Returns an entry of a port's table of partition keys. Empty entries are 0. Returns `None` if the
    /// driver does not show the entry.
    pub fn partition_key(&self, port: u8, index: u16) -> Option<u16> {
        let mut key = 0;
        // SAFETY: the context is open, and the function fills `key`, an integer in network byte order.
        let answer = unsafe { self.verbs.ibv_query_pkey(self.raw(), port, index.into(), &raw mut key) };
        (answer == 0).then(|| u16::from_be(key))
    }

    /// Whether the device has reported its failure.
    pub fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Relaxed)
    }

    /// Notes that the device has reported its failure.
    pub fn lose(&self) {
        self.lost.store(true, Ordering::Relaxed);
    }

    pub fn raw(&self) -> *mut ibv_context {
        self.raw.as_ptr()
    }

    /// Returns the functions of the data path, which belong to the driver.
    pub fn ops(&self) -> &ibv_context_ops {
        // SAFETY: the context is open as long as `self`, and ibv_open_device set its table once.
        unsafe { &self.raw.as_ref().ops }
    }

    /// Returns how many interrupts of the device can signal completions, at least 1.
    pub fn completion_vectors(&self) -> u32 {
        // SAFETY: the context is open as long as `self`, and ibv_open_device set the field once.
        u32::try_from(unsafe { self.raw.as_ref().num_comp_vectors }).unwrap_or(0).max(1)
    }

    /// Returns the descriptor that is readable when there is an event. Reading it does not block.
    pub fn events_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the context is open as long as `self`, and so is its descriptor.
        unsafe { BorrowedFd::borrow_raw(self.raw.as_ref().async_fd) }
    }

    /// Returns the next event, if there is one.
    pub fn next_event(&self) -> Option<NicEvent> {
        let mut event = ibv_async_event::default();
        // SAFETY: the context is open, and `event` has the size that the function fills.
        if unsafe { self.verbs.ibv_get_async_event(self.raw(), &raw mut event) } != 0 {
            return None;
        }
        let about = match event.event_type {
            IBV_EVENT_QP_FATAL | IBV_EVENT_QP_REQ_ERR | IBV_EVENT_QP_ACCESS_ERR => {
                // SAFETY: for these kinds, the element is a queue pair. It cannot be destroyed before the
                // event is acknowledged.
                About::QueuePair(unsafe { (*event.element.qp).qp_num })
            }
            // SAFETY: for this kind, the element is a completion queue. Only its address is taken.
            IBV_EVENT_CQ_ERR => About::CompletionQueue(unsafe { event.element.cq } as usize),
            IBV_EVENT_PORT_ERR | IBV_EVENT_PORT_ACTIVE => {
                // SAFETY: for these kinds, the element is a port's number.
                About::Port(u8::try_from(unsafe { event.element.port_num }).unwrap_or(0))
            }
            _ => About::Device,
        };
        // SAFETY: ibv_get_async_event returned the event, which is acknowledged once.
        unsafe { self.verbs.ibv_ack_async_event(&raw mut event) };
        Some(NicEvent { kind: event.event_type, about })
    }

    fn failed(&self, call: &'static str, error: io::Error) -> DeviceError {
        DeviceError::Call { device: self.device.clone(), call, error: error.to_string() }
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: `open` opened the context, and it is closed once. Everything that was made from it holds an
        // `Arc` of it.
        unsafe { self.verbs.ibv_close_device(self.raw()) };
    }
}

impl std::fmt::Debug for Context {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Context").field(&self.device).finish()
    }
}

/// The list of devices that libibverbs returns.
struct List {
    verbs: &'static Ibverbs,
    start: NonNull<*mut ibv_device>,
    count: usize,
}

impl List {
    fn get() -> Result<Self, DeviceError> {
        let verbs = library()?;
        let mut count = 0;
        // SAFETY: the function fills `count`.
        let start = unsafe { verbs.ibv_get_device_list(&raw mut count) };
        let start = NonNull::new(start).ok_or_else(|| DeviceError::list(io::Error::last_os_error()))?;
        Ok(List { verbs, start, count: usize::try_from(count).unwrap_or(0) })
    }

    fn devices(&self) -> &[*mut ibv_device] {
        // SAFETY: the function returned an array of `count` devices, which lives until `drop` frees it.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.count) }
    }
}

impl Drop for List {
    fn drop(&mut self) {
        // SAFETY: ibv_get_device_list returned the list, which is freed once.
        unsafe { self.verbs.ibv_free_device_list(self.start.as_ptr()) };
    }
}
