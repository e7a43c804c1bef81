//! Mappings: the RAII types behind windows, rings and private state.
//!
//! On the `unsafe` list. Each mapping has one owner that unmaps it on drop. The types that hold a mapping decide
//! which bytes are read or written, and when.

use std::ffi::c_void;
use std::num::NonZeroUsize;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::NonNull;

use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};

use crate::ids::Span;
use crate::ranges::Ranges;

/// Size of a huge page on x86-64, and on Arm with small pages of 4 KiB.
pub(crate) const HUGE_PAGE: usize = 2 << 20;

/// Windows, slabs and rings start on a boundary of this many bytes or more.
pub(crate) const ALIGN: usize = 64;

/// A mapping could not be made.
#[derive(Debug, thiserror::Error)]
#[error("cannot map {bytes} bytes of {what}: {errno}; {advice}")]
pub struct MapError {
    /// The purpose of the memory.
    pub what: &'static str,
    /// The bytes that were asked for.
    pub bytes: usize,
    /// The kernel's answer.
    pub errno: Errno,
    /// The remedy.
    pub advice: &'static str,
}

impl MapError {
    pub(crate) fn new(what: &'static str, bytes: usize, errno: Errno) -> Self {
        let advice = advice(errno);
        MapError { what, bytes, errno, advice }
    }
}

/// Returns advice for the user after the kernel refused memory or a descriptor.
pub(crate) fn advice(errno: Errno) -> &'static str {
    match errno {
        Errno::NOMEM => "free memory, raise the limit (ulimit -v, the container's), or use a smaller model",
        Errno::MFILE | Errno::NFILE => "raise the number of open files (ulimit -n)",
        Errno::PERM => "the other end sealed or protected this memory: both ends must be of one version",
        _ => "see mmap(2) for this error",
    }
}

/// The access of this process to shared pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    Read,
    ReadWrite,
}

/// Pages mapped into this process; unmapped on drop.
#[derive(Debug)]
pub(crate) struct Mapping {
    start: NonNull<u8>,
    bytes: NonZeroUsize,
}

// SAFETY: a mapping is an address range that only this value unmaps; the range is valid from every thread,
// and access to its bytes is governed by the owning types.
unsafe impl Send for Mapping {}
// SAFETY: as above; `&Mapping` only hands out the address.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps zeroed private pages, which stay on the node where they are touched first.
    pub fn private(what: &'static str, bytes: usize) -> Result<Self, MapError> {
        let len = at_least_one(bytes);
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        let mapping = Self::aligned(what, len, |start, flags| {
            // SAFETY: `aligned` asks for a part of its reservation, or for an address that the kernel chooses: no memory that
            // anybody has.
            unsafe { mmap_anonymous(start, len.get(), prot, MapFlags::PRIVATE | flags) }
        })?;
        mapping.stay();
        Ok(mapping)
    }

    /// Stops the kernel's NUMA balancing for private pages. Balancing takes pages out of the page table now and then,
    /// to see which node touches them, so that cores fault. It also tries to move them, which fails for a NIC's pages.
    /// It concerns memory without a policy. The policy set here keeps the default: pages lie where they are touched
    /// first.
    fn stay(&self) {
        let none = std::ptr::null::<libc::c_ulong>();
        // SAFETY: the range is this mapping's own, and its contents stay as they are. If the kernel refuses (containers), nothing
        // changes.
        let _ = unsafe {
            libc::syscall(
                libc::SYS_mbind,
                self.as_ptr(),
                self.bytes(),
                libc::MPOL_LOCAL,
                none,
                0_usize,
                0_usize,
            )
        };
    }

    /// Maps pages of a file shared with other processes, from its start.
    pub fn shared(
        what: &'static str,
        fd: BorrowedFd,
        bytes: usize,
        access: Access,
    ) -> Result<Self, MapError> {
        let len = at_least_one(bytes);
        let prot = match access {
            Access::Read => ProtFlags::READ,
            Access::ReadWrite => ProtFlags::READ | ProtFlags::WRITE,
        };
        Self::aligned(what, len, |start, flags| {
            // SAFETY: `aligned` asks for a part of its reservation, or for an address that the kernel chooses: no memory
            // that anybody has. The callers have checked that the file is sealed against shrinking.
            unsafe { mmap(start, len.get(), prot, MapFlags::SHARED | flags, fd.as_fd(), 0) }
        })
    }

    /// Returns the mapping that `map` makes. A mapping as long as a huge page begins at a multiple of a huge page's size. Only
    /// there can the kernel map a huge page. By default the kernel chooses such an address only if huge pages are switched on,
    /// or in later versions. So a larger range of addresses is reserved first, and the rest is given back.
    fn aligned(
        what: &'static str,
        len: NonZeroUsize,
        map: impl FnOnce(*mut c_void, MapFlags) -> Result<*mut c_void, Errno>,
    ) -> Result<Self, MapError> {
        if len.get() < HUGE_PAGE {
            return Self::checked(what, len, map(std::ptr::null_mut(), MapFlags::empty()));
        }
        let reserved = len.get() + HUGE_PAGE;
        // SAFETY: a fresh mapping at an address that the kernel chooses; nothing can be accessed there.
        let start = unsafe {
            mmap_anonymous(
                std::ptr::null_mut(),
                reserved,
                ProtFlags::empty(),
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )
        };
        let start = start.map_err(|errno| MapError::new(what, len.get(), errno))?.cast::<u8>();
        let before = start.align_offset(HUGE_PAGE);
        let aligned = start.wrapping_add(before);
        // The mapping takes the place of `len` bytes of the reservation from `aligned` on.
        let mapped = map(aligned.cast(), MapFlags::FIXED);
        let pages = len.get().next_multiple_of(rustix::param::page_size());
        let after = reserved.next_multiple_of(rustix::param::page_size()) - before - pages;
        let whole = if mapped.is_ok() {
            [(start, before), (aligned.wrapping_add(pages), after)]
        } else {
            [(start, reserved), (start, 0)]
        };
        for (start, bytes) in whole.into_iter().filter(|&(_, bytes)| bytes > 0) {
            // SAFETY: the range is the rest of the reservation on either side of the mapping, or all of it if
            // there is no mapping; nobody has it.
            let result = unsafe { munmap(start.cast(), bytes) };
            debug_assert!(result.is_ok(), "munmap of our own reservation: {result:?}");
        }
        Self::checked(what, len, mapped)
    }

    /// Replaces this mapping's pages by the pages of another file, at the same addresses and read-only. If the kernel refuses,
    /// the range reads as zeros, because the kernel may have removed the old pages before it failed.
    pub fn replace(&self, what: &'static str, fd: BorrowedFd) -> Result<(), MapError> {
        let (start, bytes) = (self.start.as_ptr().cast(), self.bytes.get());
        // SAFETY: the range is this mapping's own and remains so. Its bytes are shared memory, which readers read
        // as bytes that may change at any time. The callers have checked that the file is sealed against
        // shrinking.
        let replaced =
            unsafe { mmap(start, bytes, ProtFlags::READ, MapFlags::SHARED | MapFlags::FIXED, fd, 0) };
        if let Err(errno) = replaced {
            // SAFETY: as above. A hole in the range would be an address that somebody else may get from the kernel.
            let filled =
                unsafe { mmap_anonymous(start, bytes, ProtFlags::READ, MapFlags::PRIVATE | MapFlags::FIXED) };
            if filled.is_err() {
                std::process::abort(); // this value, and all that borrow from it, would name other memory
            }
            return Err(MapError::new(what, bytes, errno));
        }
        self.advise_huge_pages();
        Ok(())
    }

    /// Makes huge pages if all memory is on one node. With several nodes, one huge page would hold chunks of cores on several
    /// nodes.
    pub fn collapse_on_one_node(&self) {
        if one_node() {
            self.collapse(&Ranges::default(), Access::Read);
        }
    }

    /// Collapses to huge pages, on their node, the pages in ranges of one node. Pages elsewhere stay small, on the node where
    /// they are touched first. `nodes` has the ranges of each node, and `go_to` moves the calling thread to a node by its place
    /// there. Returns how many bytes have huge pages. `access` is as for [`collapse`](Self::collapse).
    pub fn collapse_by_node(&self, nodes: &[Ranges], access: Access, mut go_to: impl FnMut(usize)) -> usize {
        let mut collapsed = 0;
        for (node, ranges) in nodes.iter().enumerate() {
            go_to(node);
            collapsed += self.collapse(ranges, access);
        }
        if nodes.len() > 1 {
            // The advice is for all ranges: advice for some would cut the mapping in pieces, and a process may have
            // 65,530 at most. SAFETY: the range is this mapping's own; the advice changes no contents.
            let _ = unsafe { madvise(self.start.as_ptr().cast(), self.bytes(), Advice::LinuxNoHugepage) };
        }
        collapsed
    }

    /// Makes pages huge, on the node of the calling thread, if almost all of the page lies in one range. It works with any
    /// setting of the machine for huge pages (Linux 6.1). Returns how many bytes have huge pages. `access` is how missing pages
    /// are made: a file's pages by reading, private pages also by writing. The contents stay as they are.
    fn collapse(&self, ranges: &Ranges, access: Access) -> usize {
        /// The constant of linux/mman.h; not in every libc yet.
        const MADV_COLLAPSE: i32 = 25;
        /// The number of tries: the kernel returns EAGAIN while another thread holds a page.
        const TRIES: u32 = 3;
        let collapse = |part: Span| {
            let start = self.start.as_ptr().wrapping_add(part.offset);
            for offset in (0..part.bytes).step_by(HUGE_PAGE) {
                // The first small page of each huge page must exist before the kernel can collapse it. The huge page then lies on
                // the node of most of its small pages.
                let page = start.wrapping_add(offset);
                match access {
                    // SAFETY: inside this mapping, which is readable.
                    Access::Read => drop(unsafe { page.read_volatile() }),
                    Access::ReadWrite => self.populate(Span { offset: part.offset + offset, bytes: 1 }),
                }
            }
            for _ in 0..TRIES {
                // SAFETY: the range is this mapping's own; contents stay as they are.
                if unsafe { libc::madvise(start.cast(), part.bytes, MADV_COLLAPSE) } == 0 {
                    return part.bytes;
                }
                if std::io::Error::last_os_error().raw_os_error() != Some(libc::EAGAIN) {
                    break;
                }
            }
            0
        };
        ranges.huge_pages(self.bytes()).into_iter().map(collapse).sum()
    }

    /// Makes the kernel allocate the pages of a span for writing (Linux 5.14). The contents do not change, even if other
    /// threads read and write them meanwhile.
    ///
    /// # Panics
    /// Panics if the span ends beyond the mapping.
    pub fn populate(&self, span: Span) {
        assert!(span.end().is_some_and(|end| end <= self.bytes()), "{span:?} of {} bytes", self.bytes());
        let begin = span.offset - span.offset % rustix::param::page_size();
        let bytes = span.offset + span.bytes - begin;
        if bytes > 0 {
            let start = self.start.as_ptr().wrapping_add(begin);
            // SAFETY: the range is this mapping's own, and the kernel changes no contents.
            let _ = unsafe { madvise(start.cast(), bytes, Advice::LinuxPopulateWrite) };
        }
    }

    /// Leaves this memory out of forked processes. Otherwise private pages that a NIC uses would be copied for each child.
    pub fn keep_from_children(&self) {
        // SAFETY: the range is this mapping's own; this process has it as before.
        let _ = unsafe { madvise(self.start.as_ptr().cast(), self.bytes(), Advice::LinuxDontFork) };
    }

    fn checked(
        what: &'static str,
        bytes: NonZeroUsize,
        start: Result<*mut c_void, Errno>,
    ) -> Result<Self, MapError> {
        let start = start.map_err(|errno| MapError::new(what, bytes.get(), errno))?;
        let start = NonNull::new(start.cast::<u8>()).expect("the kernel maps page zero only on request");
        let mapping = Mapping { start, bytes };
        mapping.advise_huge_pages();
        Ok(mapping)
    }

    /// Asks for huge pages: a 32 KiB chunk is 8 small pages, and each
    /// worker's slot is another stream of them through the TLB.
    fn advise_huge_pages(&self) {
        // SAFETY: the range is this mapping's own; the advice changes no contents. Refusal is fine.
        let _ = unsafe { madvise(self.start.as_ptr().cast(), self.bytes.get(), Advice::LinuxHugepage) };
    }

    /// Returns the first byte.
    pub fn as_ptr(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// Returns the length in bytes; at least one.
    pub fn bytes(&self) -> usize {
        self.bytes.get()
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range came from mmap in `checked`, nobody else unmaps it, and whoever borrowed
        // from it borrowed from `self`.
        let result = unsafe { munmap(self.start.as_ptr().cast(), self.bytes.get()) };
        debug_assert!(result.is_ok(), "munmap of our own mapping: {result:?}");
    }
}

/// Returns free pages of the heap to the machine. The C library keeps free pages that lie below a live allocation.
pub fn trim_heap() {
    // SAFETY: it takes the allocator's own locks, and touches only memory that nobody has.
    #[cfg(target_env = "gnu")]
    let _ = unsafe { libc::malloc_trim(0) };
}

/// Makes the C library use two heaps for all threads of this process. Must be called before they begin. The default is
/// eight heaps per core, and each heap keeps pages around a few live bytes. Without this call, a hub with many threads that
/// save checkpoints grew for hours.
pub fn few_heaps() {
    // SAFETY: it sets a number of the allocator, which takes its own lock.
    #[cfg(target_env = "gnu")]
    let _ = unsafe { libc::mallopt(libc::M_ARENA_MAX, 2) };
}

fn at_least_one(bytes: usize) -> NonZeroUsize {
    NonZeroUsize::new(bytes).unwrap_or(NonZeroUsize::MIN)
}

/// Whether all memory is on one NUMA node.
fn one_node() -> bool {
    // A list of ranges, "0" or "0-1"; absent in kernels that know no nodes.
    std::fs::read_to_string("/sys/devices/system/node/online").map_or(true, |nodes| nodes.trim() == "0")
}
