//! A completion queue, with the channel that wakes a sleeper.
//!
//! This file is on the `unsafe` list. The thread that owns the port polls the queue, and the threads of
//! handshakes reserve room in it. Polling is by plain `ibv_poll_cq`, because extended completion queues show
//! stale entries on soft-RoCE with rdma-core 44.

use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

use super::context::Context;
use super::error::{CreateError, Made};
use super::ffi::{ibv_comp_channel, ibv_cq, ibv_wc};

/// The number of entries of a new queue. The queue grows with the links.
const FIRST_ENTRIES: u32 = 1024;
/// The number of entries of a queue that cannot be resized, if its device can make that many. Libraries
/// before rdma-core 46 cannot resize queues of bnxt_re, and iWARP drivers cannot resize any queue. Such a
/// queue is enough for 64 links with 4000 completions each. It takes 8 MiB if an entry has 32 bytes.
const FIXED_ENTRIES: u32 = 1 << 18;
/// The number of events that one call acknowledges, because each call takes a lock.
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
    /// The number of events that were taken and not yet acknowledged.
    taken: AtomicU32,
}

#[derive(Debug)]
struct Room {
    entries: u32,
    /// The most entries that all links together may need at once.
    reserved: u32,
}

// SAFETY: every thread may use an ibv_cq and its channel (libibverbs locks), and only this value destroys
// them.
unsafe impl Send for CompletionQueue {}
// SAFETY: as above.
unsafe impl Sync for CompletionQueue {}

impl CompletionQueue {
    /// Creates a queue. Its interrupts go to the completion vector `vector`, modulo the number of the
    /// device's vectors.
    pub fn new(context: &Arc<Context>, vector: u32) -> Result<Arc<Self>, CreateError> {
        let most = context.limits.completions;
        let fail = |made| CreateError::new(made, &context.device, String::new(), io::Error::last_os_error());
        // SAFETY: the context is open, and the value below keeps it open.
        let channel = unsafe { context.verbs.ibv_create_comp_channel(context.raw()) };
        let channel = NonNull::new(channel).ok_or_else(|| fail(CHANNEL))?;
        let no_context = std::ptr::null_mut();
        let vector = (vector % context.completion_vectors()) as i32;
        let make = |entries: u32| {
            // SAFETY: the context is open, as for the channel, which was just made.
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
            // SAFETY: the queue was just made, and nothing uses it.
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
            // SAFETY: the channel was made above, and nothing uses it.
            unsafe { context.verbs.ibv_destroy_comp_channel(channel.as_ptr()) };
            return Err(error);
        };
        // SAFETY: the queue lives. `cqe` is the number of entries that it has.
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

    /// Reserves room for the completions of one more link. Enlarges the queue if necessary.
    pub fn reserve(&self, completions: u32) -> Result<(), CreateError> {
        let mut room = self.room.lock().unwrap_or_else(PoisonError::into_inner);
        let wanted = room.reserved.saturating_add(completions);
        if wanted > room.entries {
            let most = self.context.limits.completions;
            if wanted > most {
                return Err(CreateError::too_large(QUEUE, &self.context.device, wanted, most));
            }
            // The size at least doubles, so a thousand workers cost ten steps.
            let entries = wanted.max(room.entries.saturating_mul(2)).min(most);
            // SAFETY: the queue lives. libibverbs locks the queue, so another thread may poll during the
            // call.
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

    /// Releases the room of a link. The queue must hold no completion of the link any more.
    pub fn release(&self, completions: u32) {
        let mut room = self.room.lock().unwrap_or_else(PoisonError::into_inner);
        room.reserved = room.reserved.saturating_sub(completions);
    }

    /// Returns the most completions that the queue can hold.
    pub fn entries(&self) -> u32 {
        self.room.lock().unwrap_or_else(PoisonError::into_inner).entries
    }

    /// Takes the completions that are in the queue, as many as fit in `into`. The error is the driver's error
    /// number: the queue overran, or the device is gone.
    pub fn poll(&self, into: &mut [ibv_wc]) -> Result<usize, i32> {
        let poll = self.context.ops().poll_cq.expect("every driver can poll");
        // SAFETY: the queue lives, and `into` has room for the requested number of completions.
        let count = unsafe { poll(self.raw(), into.len() as i32, into.as_mut_ptr()) };
        usize::try_from(count).map_err(|_| count)
    }

    /// Makes the next completion wake the channel.
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

    /// Takes an event from the channel. Returns whether there was one. After an event, the queue must be
    /// armed again.
    pub fn take_event(&self) -> bool {
        let mut queue = std::ptr::null_mut();
        let mut context = std::ptr::null_mut();
        // SAFETY: the channel lives, and the call fills both variables.
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
        // SAFETY: the queue lives. This number of events was taken from its channel, which has no other
        // queue.
        unsafe { self.context.verbs.ibv_ack_cq_events(self.raw(), taken) };
    }
}

impl Drop for CompletionQueue {
    fn drop(&mut self) {
        // The call that destroys the queue waits until all events are acknowledged.
        self.acknowledge();
        // SAFETY: `new` made the queue and its channel. Each is destroyed once, the queue first. Queue pairs
        // hold an `Arc` of this value.
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

/// Returns the immediate in a write's completion.
pub(in crate::verbs) fn immediate(completion: &ibv_wc) -> u32 {
    u32::from_be(completion.imm_data)
}
