//! Mappings: the RAII types behind windows, rings and private state.
//!
//! This file is on the `unsafe` list. Each mapping has one owner, which unmaps it on drop. The types that
//! hold a mapping decide which bytes are read or written, and when.

use std::ffi::c_void;
use std::num::NonZeroUsize;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::NonNull;

use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};

use crate::ids::Span;
use crate::ranges::Ranges;

/// The size of a huge page on x86-64, and on Arm with pages of 4 KiB.
pub(crate) const HUGE_PAGE: usize = 2 << 20;

/// The alignment of windows, slabs and rings, in bytes: they start at a multiple of it.
pub(crate) const ALIGN: usize = 64;

/// The error of a mapping that could not be made.
#[derive(Debug, thiserror::Error)]
#[error("cannot map {bytes} bytes of {what}: {errno}; {advice}")]
pub struct MapError {
    /// The purpose of the memory.
    pub what: &'static str,
    /// The requested number of bytes.
    pub bytes: usize,
    /// The kernel's answer.
    pub errno: Errno,
    /// The advice for the user.
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
        Errno::FBIG => "raise the limit on the size of files (ulimit -f)",
        Errno::PERM => "the other end sealed or protected this memory: install the same version at both ends",
        _ => "see mmap(2) for this error",
    }
}

/// The access of this process to shared pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    Read,
    ReadWrite,
}

/// Pages that are mapped into this process until the value is dropped.
#[derive(Debug)]
pub(crate) struct Mapping {
    start: NonNull<u8>,
    bytes: NonZeroUsize,
}

// SAFETY: a mapping is an address range that only this value unmaps; the range is valid from every thread,
// and access to its bytes is governed by the owning types.
unsafe impl Send for Mapping {}
// SAFETY: as for `Send`. In addition, `&Mapping` only returns the address.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps zeroed private pages, which stay on the node where they are touched first.
    pub fn private(what: &'static str, bytes: usize) -> Result<Self, MapError> {
        let len = at_least_one(bytes);
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        let mapping = Self::aligned(what, len, |start, flags| {
            // SAFETY: `aligned` asks for a part of its reservation, or for an address that the kernel
            // chooses. No other owner has that memory.
            unsafe { mmap_anonymous(start, len.get(), prot, MapFlags::PRIVATE | flags) }
        })?;
        mapping.stay();
        Ok(mapping)
    }

    /// Stops the kernel's NUMA balancing for private pages. Balancing sometimes removes pages from the page
    /// table to see which node accesses them, so cores get page faults. It also tries to move the pages,
    /// which fails for pages that a NIC uses. Balancing applies only to memory without a policy. The policy
    /// that is set here is the default one: a page lies on the node that touches it first.
    fn stay(&self) {
        let none = std::ptr::null::<libc::c_ulong>();
        // SAFETY: the range is this mapping's own, and its contents do not change. If the kernel refuses (as
        // in containers), nothing changes.
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

    /// Maps the start of a file whose pages other processes share.
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
            // SAFETY: `aligned` asks for a part of its reservation, or for an address that the kernel
            // chooses. No other owner has that memory. The callers have checked that the file is sealed
            // against shrinking.
            unsafe { mmap(start, len.get(), prot, MapFlags::SHARED | flags, fd.as_fd(), 0) }
        })
    }

    /// Maps the start of a file that nobody can change. The pages that this process writes become its own.
    pub fn of_sealed(what: &'static str, file: BorrowedFd, bytes: usize) -> Result<Self, MapError> {
        let len = at_least_one(bytes);
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        let mapping = Self::aligned(what, len, |start, flags| {
            // SAFETY: `aligned` asks for a part of its reservation, or for an address that the kernel
            // chooses. No other owner has that memory. The caller has sealed the file against writes and
            // against shrinking.
            unsafe { mmap(start, len.get(), prot, MapFlags::PRIVATE | flags, file, 0) }
        })?;
        // This one call maps all pages. Without the call, the first read of each page would cause a page fault. SAFETY:
        // the range is this mapping's own, and the kernel changes no contents.
        let _ = unsafe { madvise(mapping.start.as_ptr().cast(), bytes, Advice::LinuxPopulateRead) };
        Ok(mapping)
    }

    /// Returns the mapping that `map` makes. A mapping that is at least as large as a huge page begins at a
    /// multiple of the size of a huge page. The kernel can map huge pages only there. Older kernels choose
    /// such an address only if huge pages are switched on. So the function reserves a larger range of
    /// addresses first, and then releases the rest.
    fn aligned(
        what: &'static str,
        len: NonZeroUsize,
        map: impl FnOnce(*mut c_void, MapFlags) -> Result<*mut c_void, Errno>,
    ) -> Result<Self, MapError> {
        if len.get() < HUGE_PAGE {
            return Self::checked(what, len, map(std::ptr::null_mut(), MapFlags::empty()));
        }
        let reserved = len.get() + HUGE_PAGE;
        // SAFETY: the kernel chooses the address of this fresh mapping, and nothing can be accessed there.
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
        // The mapping replaces `len` bytes of the reservation from `aligned` on.
        let mapped = map(aligned.cast(), MapFlags::FIXED);
        let pages = len.get().next_multiple_of(rustix::param::page_size());
        let after = reserved.next_multiple_of(rustix::param::page_size()) - before - pages;
        let whole = if mapped.is_ok() {
            [(start, before), (aligned.wrapping_add(pages), after)]
        } else {
            [(start, reserved), (start, 0)]
        };
        for (start, bytes) in whole.into_iter().filter(|&(_, bytes)| bytes > 0) {
            // SAFETY: the range is the part of the reservation on one side of the mapping, or the whole
            // reservation if there is no mapping. No other owner has it.
            let result = unsafe { munmap(start.cast(), bytes) };
            debug_assert!(result.is_ok(), "munmap of our own reservation: {result:?}");
        }
        Self::checked(what, len, mapped)
    }

    /// Replaces this mapping's pages by the pages of another file, read-only at the same addresses. If the
    /// kernel refuses, the range reads as zeros, because the kernel may have removed the old pages before it
    /// failed.
    pub fn replace(&self, what: &'static str, fd: BorrowedFd) -> Result<(), MapError> {
        let (start, bytes) = (self.start.as_ptr().cast(), self.bytes.get());
        // SAFETY: the range is this mapping's own, and it stays so. Its bytes are shared memory, which
        // readers treat as bytes that may change at any time. The callers have checked that the file is
        // sealed against shrinking.
        let replaced =
            unsafe { mmap(start, bytes, ProtFlags::READ, MapFlags::SHARED | MapFlags::FIXED, fd, 0) };
        if let Err(errno) = replaced {
            // SAFETY: as above. Without this call, the kernel could give the free range to another mapping.
            let filled =
                unsafe { mmap_anonymous(start, bytes, ProtFlags::READ, MapFlags::PRIVATE | MapFlags::FIXED) };
            if filled.is_err() {
                std::process::abort(); // this value and its borrowers would point to foreign memory
            }
            return Err(MapError::new(what, bytes, errno));
        }
        self.advise_huge_pages();
        Ok(())
    }

    /// Makes huge pages if the machine has one node only. With several nodes, one huge page would hold chunks
    /// of cores on different nodes.
    pub fn collapse_on_one_node(&self) {
        if self.bytes() >= HUGE_PAGE && one_node() {
            self.collapse(&Ranges::default(), Access::Read);
        }
    }

    /// Makes huge pages where a whole page belongs to one node, and places each of them on that node. Other
    /// pages stay small, on the node that touches them first. `nodes` has the ranges of each node. `go_to`
    /// moves the calling thread to a node, by its index in `nodes`. Returns how many bytes have huge pages.
    /// `access` has the meaning that it has in [`collapse`](Self::collapse).
    pub fn collapse_by_node(&self, nodes: &[Ranges], access: Access, mut go_to: impl FnMut(usize)) -> usize {
        let mut collapsed = 0;
        for (node, ranges) in nodes.iter().enumerate() {
            go_to(node);
            collapsed += self.collapse(ranges, access);
        }
        if nodes.len() > 1 {
            // The call covers the whole mapping: calls for single ranges would split the mapping, and a
            // process may have at most 65,530 mappings. SAFETY: the range is this mapping's own, and the
            // advice does not change contents.
            let _ = unsafe { madvise(self.start.as_ptr().cast(), self.bytes(), Advice::LinuxNoHugepage) };
        }
        collapsed
    }

    /// Makes each page huge, on the node of the calling thread, if almost all of the page lies in one range.
    /// The call works with any setting of the machine for huge pages (Linux 6.1). Returns how many bytes have
    /// huge pages. `access` says how missing pages are made: a file's pages by reading, private pages also by
    /// writing. Contents do not change.
    fn collapse(&self, ranges: &Ranges, access: Access) -> usize {
        /// The constant of linux/mman.h, which some C libraries do not have yet.
        const MADV_COLLAPSE: i32 = 25;
        /// The number of tries: the kernel returns EAGAIN while another thread holds a page.
        const TRIES: u32 = 3;
        let collapse = |part: Span| {
            let start = self.start.as_ptr().wrapping_add(part.offset);
            for offset in (0..part.bytes).step_by(HUGE_PAGE) {
                // The first small page of each huge page must exist, or the kernel cannot make the huge page.
                // The huge page then lies on the node of most of its small pages.
                let page = start.wrapping_add(offset);
                match access {
                    // SAFETY: the address is inside this mapping, which is readable.
                    Access::Read => drop(unsafe { page.read_volatile() }),
                    Access::ReadWrite => self.populate(Span { offset: part.offset + offset, bytes: 1 }),
                }
            }
            for _ in 0..TRIES {
                // SAFETY: the range is this mapping's own, and its contents do not change.
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

    /// Makes the kernel allocate the pages of a span for writing (Linux 5.14). The contents do not change,
    /// even if other threads access them at the same time.
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

    /// Excludes this memory from forked processes. Otherwise the kernel would copy the private pages that a
    /// NIC uses, once for each child.
    pub fn keep_from_children(&self) {
        // SAFETY: the range is this mapping's own, and this process keeps it.
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

    /// Asks the kernel for huge pages if the mapping is at least as large as a huge page. Huge pages save TLB
    /// entries: with small pages, a chunk of 32 KiB takes 8 entries for each worker.
    fn advise_huge_pages(&self) {
        if self.bytes() < HUGE_PAGE {
            return;
        }
        // SAFETY: the range is this mapping's own, and the advice does not change contents. The kernel may
        // refuse.
        let _ = unsafe { madvise(self.start.as_ptr().cast(), self.bytes.get(), Advice::LinuxHugepage) };
    }

    /// Returns the first byte.
    pub fn as_ptr(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// Returns the length in bytes, which is at least one.
    pub fn bytes(&self) -> usize {
        self.bytes.get()
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: `checked` got the range from mmap, no other code unmaps it, and every borrower of the range
        // borrows `self`.
        let result = unsafe { munmap(self.start.as_ptr().cast(), self.bytes.get()) };
        debug_assert!(result.is_ok(), "munmap of our own mapping: {result:?}");
    }
}

/// Returns free pages of the heap to the kernel. Without this call, the C library keeps free pages that lie
/// below a live allocation.
pub fn trim_heap() {
    // SAFETY: the call takes the allocator's locks, and accesses only memory that is free.
    #[cfg(target_env = "gnu")]
    let _ = unsafe { libc::malloc_trim(0) };
}

/// Makes the C library use two heaps for all threads of this process. Must be called before the threads
/// start. The default is eight heaps per core, and each heap keeps pages around a few live bytes. Without
/// this call, the memory of a hub whose many threads save checkpoints grew for hours.
pub fn few_heaps() {
    // SAFETY: the call sets a number of the allocator, which takes its own lock.
    #[cfg(target_env = "gnu")]
    let _ = unsafe { libc::mallopt(libc::M_ARENA_MAX, 2) };
}

fn at_least_one(bytes: usize) -> NonZeroUsize {
    NonZeroUsize::new(bytes).unwrap_or(NonZeroUsize::MIN)
}

fn one_node() -> bool {
    // The file has a list of ranges, such as "0" or "0-1". It is absent in kernels without NUMA.
    std::fs::read_to_string("/sys/devices/system/node/online").map_or(true, |nodes| nodes.trim() == "0")
}
