//! A completion queue, with the channel that wakes a sleeper.
//!
//! On the `unsafe` list. Polled by the thread that owns the port; handshakes make room in it from theirs.
//! Plain `ibv_poll_cq`: extended completion queues show stale entries on soft-RoCE with rdma-core 44.

use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

use super::context::Context;
use super::error::{CreateError, Made};
use super::ffi::{ibv_comp_channel, ibv_cq, ibv_wc};

/// The number of entries with which a queue begins. It grows with the links.
const FIRST_ENTRIES: u32 = 1024;
/// The number of entries of a queue that its device cannot resize, if the device can make that many. Libraries before
/// rdma-core 46 cannot resize queues of bnxt_re, and iWARP drivers cannot either. 64 links of 4000 completions have room.
/// It takes 8 MiB if an entry has 32 bytes.
const FIXED_ENTRIES: u32 = 1 << 18;
/// The number of events that are acknowledged at once, because each call takes a lock.
const ACKNOWLEDGE: u32 = 64;

const CHANNEL: Made = Made { what: "completion channel", call: "ibv_create_comp_channel" };
const QUEUE: Made = Made { what: "completion queue", call: "ibv_create_cq" };
const LARGER_QUEUE: Made = Made { what: "completion queue", call: "ibv_resize_cq" };

/// An `ibv_cq` and its `ibv_comp_channel`.
pub(in crate::verbs) struct CompletionQueue {
    queue: NonNull<ibv_cq>,
    channel: NonNull<ibv_comp_channel>,
    pub context: Arc<Context>,
    room: Mutex<Room>,
    /// The number of events that were taken and not acknowledged.
    taken: AtomicU32,
}

#[derive(Debug)]
struct Room {
    entries: u32,
    /// The most entries that all links together may need.
    reserved: u32,
}

// SAFETY: an ibv_cq and its channel may be used from every thread (libibverbs locks), and only this value
// destroys them.
unsafe impl Send for CompletionQueue {}
// SAFETY: as above.
unsafe impl Sync for CompletionQueue {}

impl CompletionQueue {
    /// Creates a queue. Its interrupts go to the completion vector of this number; the device's vectors are used one
    /// after another.
    pub fn new(context: &Arc<Context>, vector: u32) -> Result<Arc<Self>, CreateError> {
        let most = context.limits.completions;
        let fail = |made| CreateError::new(made, &context.device, String::new(), io::Error::last_os_error());
        // SAFETY: the context is open, and stays so: the value below holds it.
        let channel = unsafe { context.verbs.ibv_create_comp_channel(context.raw()) };
        let channel = NonNull::new(channel).ok_or_else(|| fail(CHANNEL))?;
        let no_context = std::ptr::null_mut();
        let vector = (vector % context.completion_vectors()) as i32;
        let make = |entries: u32| {
            // SAFETY: as above; the channel was made just now.
            NonNull::new(unsafe {
                context.verbs.ibv_create_cq(
                    context.raw(),
                    entries as i32,
                    no_context,
                    channel.as_ptr(),
                    vector,
                )
            })
        };
        let (first, second) = (FIRST_ENTRIES.min(most), (2 * FIRST_ENTRIES).min(most));
        let resizable = |queue: NonNull<ibv_cq>| {
            // SAFETY: the queue was made just now, and nothing uses it.
            second == first || unsafe { context.verbs.ibv_resize_cq(queue.as_ptr(), second as i32) } == 0
        };
        let queue = make(first).and_then(|queue| {
            if resizable(queue) {
                return Some(queue);
            }
            // SAFETY: as above.
            unsafe { context.verbs.ibv_destroy_cq(queue.as_ptr()) };
            make(FIXED_ENTRIES.min(most))
        });
        let Some(queue) = queue else {
            let error = fail(QUEUE);
            // SAFETY: made above, and nothing uses it.
            unsafe { context.verbs.ibv_destroy_comp_channel(channel.as_ptr()) };
            return Err(error);
        };
        // SAFETY: the queue lives; `cqe` is the number of entries that it really holds.
        let entries = u32::try_from(unsafe { queue.as_ref().cqe }).unwrap_or(first);
        let room = Mutex::new(Room { entries, reserved: 0 });
        let made =
            CompletionQueue { queue, channel, context: Arc::clone(context), room, taken: AtomicU32::new(0) };
        let not_blocking = |fd| fcntl_setfl(fd, fcntl_getfl(fd)? | OFlags::NONBLOCK);
        not_blocking(made.events_fd())
            .map_err(|errno| CreateError::new(CHANNEL, &context.device, String::new(), errno.into()))?;
        Ok(Arc::new(made))
    }

    pub fn raw(&self) -> *mut ibv_cq {
        self.queue.as_ptr()
    }

    /// Makes room for the completions of one more link. The queue grows if it must.
    pub fn reserve(&self, completions: u32) -> Result<(), CreateError> {
        let mut room = self.room.lock().unwrap_or_else(PoisonError::into_inner);
        let wanted = room.reserved.saturating_add(completions);
        if wanted > room.entries {
            let most = self.context.limits.completions;
            if wanted > most {
                return Err(CreateError::too_large(QUEUE, &self.context.device, wanted, most));
            }
            // The size doubles, so that a thousand workers cost ten steps.
            let entries = wanted.max(room.entries.saturating_mul(2)).min(most);
            // SAFETY: the queue lives; libibverbs locks against a poll of another thread while the queue
            // grows.
            let errno = unsafe { self.context.verbs.ibv_resize_cq(self.raw(), entries as i32) };
            if errno != 0 {
                let size = format!(" of {entries} entries (the device's maximum is {most})");
                let error = io::Error::from_raw_os_error(errno.abs());
                return Err(CreateError::new(LARGER_QUEUE, &self.context.device, size, error));
            }
            room.entries = entries;
        }
        room.reserved = wanted;
        Ok(())
    }

    /// Gives back the room of a link that has no completions in the queue any more.
    pub fn release(&self, completions: u32) {
        let mut room = self.room.lock().unwrap_or_else(PoisonError::into_inner);
        room.reserved = room.reserved.saturating_sub(completions);
    }

    /// Returns the most completions that can be in the queue.
    pub fn entries(&self) -> u32 {
        self.room.lock().unwrap_or_else(PoisonError::into_inner).entries
    }

    /// Takes as many completions as are present and fit. The error is the driver's error number: the queue overran, or the
    /// device is gone.
    pub fn poll(&self, into: &mut [ibv_wc]) -> Result<usize, i32> {
        let poll = self.context.ops().poll_cq.expect("every driver can poll");
        // SAFETY: the queue lives; `into` has room for as many as are asked for.
        let count = unsafe { poll(self.raw(), into.len() as i32, into.as_mut_ptr()) };
        usize::try_from(count).map_err(|_| count)
    }

    /// Asks that the next completion makes the channel readable.
    pub fn arm(&self) -> io::Result<()> {
        let notify = self.context.ops().req_notify_cq.expect("every driver can notify");
        // SAFETY: the queue lives.
        match unsafe { notify(self.raw(), 0) } {
            0 => Ok(()),
            errno => Err(io::Error::from_raw_os_error(errno.abs())),
        }
    }

    /// Returns the descriptor that is readable when an armed queue has a completion.
    pub fn events_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel lives as long as `self`, and its descriptor with it.
        unsafe { BorrowedFd::borrow_raw(self.channel.as_ref().fd) }
    }

    /// Takes an event, and returns whether there was one. After an event the queue is not armed.
    pub fn take_event(&self) -> bool {
        let mut queue = std::ptr::null_mut();
        let mut context = std::ptr::null_mut();
        // SAFETY: the channel lives; both places are there to be filled.
        let result = unsafe {
            self.context.verbs.ibv_get_cq_event(self.channel.as_ptr(), &raw mut queue, &raw mut context)
        };
        if result != 0 {
            return false;
        }
        if self.taken.fetch_add(1, Ordering::Relaxed) + 1 >= ACKNOWLEDGE {
            self.acknowledge();
        }
        true
    }

    fn acknowledge(&self) {
        let taken = self.taken.swap(0, Ordering::Relaxed);
        // SAFETY: the queue lives; this number of events was taken from its channel, which has no other
        // queue.
        unsafe { self.context.verbs.ibv_ack_cq_events(self.raw(), taken) };
    }
}

impl Drop for CompletionQueue {
    fn drop(&mut self) {
        // The destruction waits until all events are acknowledged.
        self.acknowledge();
        // SAFETY: made by `new`, destroyed once, the queue before its channel; queue pairs hold an `Arc`.
        unsafe {
            self.context.verbs.ibv_destroy_cq(self.raw());
            self.context.verbs.ibv_destroy_comp_channel(self.channel.as_ptr());
        }
    }
}

impl std::fmt::Debug for CompletionQueue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CompletionQueue").field("context", &self.context).field("room", &self.room).finish()
    }
}

/// Returns the immediate that a completion of a write brought.
pub(in crate::verbs) fn immediate(completion: &ibv_wc) -> u32 {
    u32::from_be(completion.imm_data)
}
