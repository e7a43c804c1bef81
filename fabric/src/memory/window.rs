//! The window that an end writes and its peer reads.
//!
//! A window is split once. Its spans are disjoint, and each has one owner. This module must not depend on
//! what the bytes mean.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::io::Errno;

use super::dma_buf::{DmaBuf, DmaBufError};
use super::mapping::{Access, MapError, Mapping, advice};
use super::spans::{SpanError, Spans, check};
use crate::ids::Span;
use crate::ranges::Ranges;

/// The seals of a window: its size is final, and only its owner has a writable mapping.
const SEALS: SealFlags =
    SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::FUTURE_WRITE).union(SealFlags::SEAL);

/// The error of a window that could not be made or opened.
#[derive(Debug, thiserror::Error)]
pub enum WindowError {
    /// Mapping failed.
    #[error(transparent)]
    Map(#[from] MapError),
    /// A system call on the memfd failed.
    #[error("{call} on the memfd of a {bytes}-byte window failed: {errno}; {}", advice(*errno))]
    Memfd {
        /// The call that failed.
        call: &'static str,
        /// Size of the window.
        bytes: usize,
        /// The kernel's answer.
        errno: Errno,
    },
    /// The descriptor is not a dma-buf, or the memory is too small.
    #[error(transparent)]
    DmaBuf(#[from] DmaBufError),
    /// The peer's window is smaller than the layout.
    #[error(
        "the peer's window has {seen} bytes where the layout needs {expected}; start all workers with the same list of \
         parameters (names, shapes, types)"
    )]
    TooSmall {
        /// Bytes that the layout needs.
        expected: usize,
        /// Bytes that the peer gave.
        seen: u64,
    },
    /// The peer's window has pages of another kind than plain memory.
    #[error(
        "the peer's window is not plain shared memory (its file system is {seen:#x}); install the same version at both \
         ends"
    )]
    NotPlain {
        /// The magic number of the file's file system.
        seen: u64,
    },
    /// The peer's window could still shrink while this process reads it.
    #[error(
        "the peer's window lacks the seal against shrinking (its seals: {seen:#x}); install the same version at both \
         ends"
    )]
    NotSealed {
        /// The seals that were found.
        seen: u32,
    },
}

/// The window that this end writes and the peer reads.
#[derive(Debug)]
pub struct SendWindow {
    memory: Memory,
    bytes: usize,
    /// The spans that owners at this end write, ascending.
    owned: Box<[Span]>,
}

/// The memory of a window.
#[derive(Debug)]
enum Memory {
    /// The bytes are in a memfd that this process has mapped.
    Memfd(Arc<Mapping>, OwnedFd),
    /// The bytes are in private memory of this process. The error is the reason why the process cannot make a
    /// memfd.
    Own(Arc<Mapping>, Errno),
    /// The bytes are in a dma-buf, which only NICs can access.
    DmaBuf(DmaBuf),
}

impl SendWindow {
    /// Creates a zeroed window of `bytes` bytes, in a sealed memfd. The memfd has no name in any file system,
    /// and is freed when its last holder ends. If this process is not allowed to make a memfd, as in some
    /// containers, the memory is private.
    pub fn new(bytes: usize) -> Result<Self, WindowError> {
        let window = Self::sparse(bytes)?;
        window.mapping().collapse_on_one_node();
        Ok(window)
    }

    /// Works like [`new`](Self::new), for a window of which only parts are used. Its pages are small, and
    /// pages that nobody touches take no memory.
    pub fn sparse(bytes: usize) -> Result<Self, WindowError> {
        let memfd = |call| move |errno| WindowError::Memfd { call, bytes, errno };
        let fd = match memfd_create("phub-window", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING) {
            Err(errno @ (Errno::PERM | Errno::ACCESS | Errno::NOSYS)) => {
                let mapping = Arc::new(Mapping::private("a window", bytes)?);
                return Ok(SendWindow { memory: Memory::Own(mapping, errno), bytes, owned: Box::default() });
            }
            fd => fd.map_err(memfd("memfd_create"))?,
        };
        ftruncate(&fd, bytes.max(1) as u64).map_err(memfd("ftruncate"))?;
        let mapping = Arc::new(Mapping::shared("a window", fd.as_fd(), bytes, Access::ReadWrite)?);
        fcntl_add_seals(&fd, SEALS).map_err(memfd("adding seals"))?;
        Ok(SendWindow { memory: Memory::Memfd(mapping, fd), bytes, owned: Box::default() })
    }

    /// Returns a window of `bytes` bytes in a dma-buf. Only links over RDMA can use it: any other access to
    /// its bytes panics. A device such as a GPU writes the bytes, not this process.
    ///
    /// # Errors
    /// Returns an error if the descriptor is not a dma-buf, or if the window does not fit into it.
    pub fn in_dma_buf(dma_buf: &DmaBuf, bytes: usize) -> Result<Self, WindowError> {
        dma_buf.check(bytes)?;
        let memory = Memory::DmaBuf(dma_buf.clone());
        Ok(SendWindow { memory, bytes, owned: Box::default() })
    }

    /// Makes huge pages where a whole page belongs to one NUMA node; other pages stay small. `nodes` has the
    /// ranges of each node. `go_to` moves the calling thread to a node, by its index in `nodes`. Call this
    /// method before the owners touch their pages, and before a NIC registers them. Returns how many bytes
    /// have huge pages.
    pub fn collapse_by_node(&self, nodes: &[Ranges], go_to: impl FnMut(usize)) -> usize {
        self.mapping().collapse_by_node(nodes, Access::Read, go_to)
    }

    /// Returns the size in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the descriptor to pass to a peer on this machine, or the reason why there is none.
    pub fn fd(&self) -> Result<BorrowedFd<'_>, String> {
        match &self.memory {
            Memory::Memfd(_, fd) => Ok(fd.as_fd()),
            Memory::Own(_, errno) => {
                Err(format!("this process may not make shared memory (memfd_create: {errno})"))
            }
            Memory::DmaBuf(dma_buf) => Ok(dma_buf.as_fd()),
        }
    }

    /// Returns the dma-buf that holds the window, if it is in one.
    pub fn dma_buf(&self) -> Option<&DmaBuf> {
        match &self.memory {
            Memory::Memfd(..) | Memory::Own(..) => None,
            Memory::DmaBuf(dma_buf) => Some(dma_buf),
        }
    }

    /// Returns the mapping. Panics if the window is in a dma-buf.
    pub(super) fn mapping(&self) -> &Arc<Mapping> {
        match &self.memory {
            Memory::Memfd(mapping, _) | Memory::Own(mapping, _) => mapping,
            Memory::DmaBuf(_) => panic!("a window in a dma-buf has no address here"),
        }
    }

    /// Returns the value by which a NIC finds the first byte: its address, or its offset in the dma-buf.
    pub(crate) fn start_for_nics(&self) -> u64 {
        self.dma_buf().map_or_else(|| self.start() as u64, DmaBuf::offset)
    }

    /// Whether an owner at this end writes a part of a span.
    pub(super) fn owns(&self, span: Span) -> bool {
        let next = self.owned.partition_point(|owned| owned.offset + owned.bytes <= span.offset);
        span.bytes > 0 && self.owned.get(next).is_some_and(|owned| owned.offset < span.offset + span.bytes)
    }

    /// Returns the address of the first byte, for the owners of spans.
    pub(super) fn start(&self) -> *mut u8 {
        self.mapping().as_ptr()
    }

    /// Returns the address of a span's first byte, for a transport that sends it. Returns `None` if the span
    /// is out of bounds.
    pub(crate) fn bytes_of(&self, span: Span) -> Option<*const u8> {
        (span.end()? <= self.bytes).then(|| self.start().wrapping_add(span.offset).cast_const())
    }

    /// Gives each owner its own spans: one list of spans per owner, all disjoint. This method alone checks
    /// that spans are disjoint, so writing a span needs no check. It consumes the window, so a window cannot
    /// be split twice.
    pub fn split(mut self, owners: Vec<Vec<Span>>) -> Result<(Arc<Self>, Vec<Spans>), SpanError> {
        let mut all: Vec<Span> = owners.iter().flatten().copied().collect();
        for &span in &all {
            check(span, self.bytes)?;
        }
        all.sort_unstable();
        let mut highest: Option<Span> = None;
        for &span in all.iter().filter(|span| span.bytes > 0) {
            if let Some(first) = highest
                && span.offset < first.offset + first.bytes
            {
                return Err(SpanError::Overlap { first, second: span });
            }
            highest = Some(span);
        }
        all.retain(|span| span.bytes > 0);
        self.owned = all.into();
        let window = Arc::new(self);
        let owned = owners.into_iter().map(|spans| Spans::new(&window, spans)).collect();
        Ok((window, owned))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(offset: usize, bytes: usize) -> Span {
        Span { offset, bytes }
    }

    #[test]
    fn split_refuses_overlap_misalignment_and_what_sticks_out() {
        let split = |spans| SendWindow::new(4096).unwrap().split(spans).map(|_| ()).unwrap_err();
        assert!(matches!(split(vec![vec![span(0, 128)], vec![span(64, 64)]]), SpanError::Overlap { .. }));
        assert!(matches!(split(vec![vec![span(4, 64)]]), SpanError::Misaligned { .. }));
        assert!(matches!(split(vec![vec![span(4032, 128)]]), SpanError::OutOfBounds { .. }));
        assert!(matches!(split(vec![vec![span(64, usize::MAX - 3)]]), SpanError::OutOfBounds { .. }));
    }
}
