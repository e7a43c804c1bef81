//! Rings and bells in memfds that two processes write.
//!
//! This file is on the `unsafe` list. Only atomics are in this memory. A hostile peer can write any value at
//! any time: atomics allow that, and `ring` checks each value that it reads.
//!
//! ```text
//!   bells:  [asleep ....128][asleep ....128]...          one per port
//!   rings:  link 0: up [tail ..128][head ..128][wake_at ..128][slots ...]  down [...]
//!           link 1: ...
//! ```

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate, memfd_create};
use rustix::io::Errno;

use crate::memory::{Access, MapError, Mapping, check_plain};
use crate::plan::PlannedLink;
use crate::ring::AtomicU32;
use crate::ring::{Cells, MAX_CAPACITY};

/// The distance of words that different ends write: two cache lines, because processors fetch adjacent lines
/// in pairs.
const APART: usize = 128;

/// A sealed memfd of atomics, which both ends map writable.
#[derive(Debug)]
pub(super) struct Words {
    mapping: Mapping,
    /// The descriptor, or the reason why there is none. Without a descriptor, only this process can use the
    /// words.
    fd: Result<OwnedFd, Errno>,
}

impl Words {
    /// Allocates fresh words, all zero.
    pub fn new(what: &'static str, bytes: usize) -> Result<Arc<Self>, MapError> {
        let fail = |errno| MapError::new(what, bytes, errno);
        let fd = memfd_create("phub-words", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).map_err(fail)?;
        ftruncate(&fd, bytes as u64).map_err(fail)?;
        fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL).map_err(fail)?;
        let mapping = Mapping::shared(what, fd.as_fd(), bytes, Access::ReadWrite)?;
        Ok(Arc::new(Words { mapping, fd: Ok(fd) }))
    }

    /// Allocates fresh words. The words are private if this process is not allowed to make a memfd, as in
    /// some containers.
    pub fn new_or_own(what: &'static str, bytes: usize) -> Result<Arc<Self>, MapError> {
        match memfd_create("phub-words", MemfdFlags::CLOEXEC) {
            Err(errno @ (Errno::PERM | Errno::ACCESS | Errno::NOSYS)) => {
                Ok(Arc::new(Words { mapping: Mapping::private(what, bytes)?, fd: Err(errno) }))
            }
            _ => Self::new(what, bytes),
        }
    }

    /// Maps the peer's words, after a check of their size and seal.
    pub fn open(what: &'static str, fd: OwnedFd, bytes: usize) -> Result<Arc<Self>, String> {
        let seals = fcntl_get_seals(&fd).map_err(|errno| format!("{what}: reading seals: {errno}"))?;
        check_plain(fd.as_fd()).map_err(|error| format!("{what}: {error}"))?;
        let seen = fstat(&fd).map_err(|errno| format!("{what}: fstat: {errno}"))?.st_size;
        if !seals.contains(SealFlags::SHRINK) || seen != bytes as i64 {
            return Err(format!(
                "{what}: expected a memfd of {bytes} bytes sealed against shrinking, got {seen} bytes with seals {:#x}",
                seals.bits()
            ));
        }
        let mapping =
            Mapping::shared(what, fd.as_fd(), bytes, Access::ReadWrite).map_err(|error| error.to_string())?;
        Ok(Arc::new(Words { mapping, fd: Ok(fd) }))
    }

    /// Returns the descriptor to pass to a peer on this machine, or the reason why there is none.
    pub fn fd(&self) -> Result<BorrowedFd<'_>, String> {
        let why = |errno| format!("this process may not make shared memory (memfd_create: {errno})");
        self.fd.as_ref().map(AsFd::as_fd).map_err(why)
    }

    /// Returns the word at a byte offset.
    fn word(&self, offset: usize) -> *const AtomicU32 {
        assert!(offset.is_multiple_of(4) && offset + 4 <= self.mapping.bytes(), "word at {offset}");
        self.mapping.as_ptr().wrapping_add(offset).cast::<AtomicU32>().cast_const()
    }
}

/// One port's bell.
#[derive(Clone, Debug)]
pub(super) struct Bell {
    _words: Arc<Words>,
    asleep: *const AtomicU32,
}

// SAFETY: `asleep` points to an atomic inside `_words`, which this value keeps mapped.
unsafe impl Send for Bell {}
// SAFETY: as above.
unsafe impl Sync for Bell {}

impl Bell {
    pub fn bytes(ports: usize) -> usize {
        ports * APART
    }

    /// Creates the bell of port `index`. Panics if `words` ends before this port's word.
    pub fn new(words: &Arc<Words>, index: usize) -> Self {
        Bell { _words: Arc::clone(words), asleep: words.word(index * APART) }
    }

    pub fn asleep(&self) -> &AtomicU32 {
        // SAFETY: `Words::word` checked bounds and alignment, the mapping lives as long as `self._words`, and
        // any thread or process may write an atomic at any time.
        unsafe { &*self.asleep }
    }
}

/// One ring of a link.
#[derive(Debug)]
pub(super) struct MappedCells {
    _words: Arc<Words>,
    tail: *const AtomicU32,
    head: *const AtomicU32,
    wake_at: *const AtomicU32,
    slots: *const AtomicU32,
    capacity: usize,
}

// SAFETY: the pointers lead to atomics inside `_words`, which this value keeps mapped.
unsafe impl Send for MappedCells {}

/// Returns the number of slots of a ring that holds at least `posts`.
fn slots(posts: u32) -> usize {
    posts.clamp(1, MAX_CAPACITY).next_power_of_two() as usize
}

fn ring_bytes(posts: u32) -> usize {
    3 * APART + (slots(posts) * 4).next_multiple_of(APART)
}

/// Returns the size of the words that hold the ring pairs of these links.
pub(super) fn rings_bytes(plan: &[PlannedLink]) -> usize {
    plan.iter().map(|link| 2 * ring_bytes(link.capacity)).sum()
}

/// Returns the (up, down) rings of each link. Panics if the words are smaller than [`rings_bytes`].
pub(super) fn rings(words: &Arc<Words>, plan: &[PlannedLink]) -> Vec<(MappedCells, MappedCells)> {
    let mut offset = 0;
    let mut next = |posts| {
        let capacity = slots(posts);
        let first = offset + 3 * APART;
        words.word(first + (capacity - 1) * 4); // checks the bounds of all slots
        let cells = MappedCells {
            _words: Arc::clone(words),
            tail: words.word(offset),
            head: words.word(offset + APART),
            wake_at: words.word(offset + 2 * APART),
            slots: words.word(first),
            capacity,
        };
        offset += ring_bytes(posts);
        cells
    };
    plan.iter().map(|link| (next(link.capacity), next(link.capacity))).collect()
}

impl Cells for MappedCells {
    fn tail(&self) -> &AtomicU32 {
        // SAFETY: `rings` made the pointer by `Words::word`: it is in bounds, aligned, and mapped as long as
        // `_words`.
        unsafe { &*self.tail }
    }
    fn head(&self) -> &AtomicU32 {
        // SAFETY: as for `tail`.
        unsafe { &*self.head }
    }
    fn wake_at(&self) -> &AtomicU32 {
        // SAFETY: as for `tail`.
        unsafe { &*self.wake_at }
    }
    fn slots(&self) -> &[AtomicU32] {
        // SAFETY: as for `tail`; `rings` checked that the last of `capacity` slots is in bounds.
        unsafe { std::slice::from_raw_parts(self.slots, self.capacity) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_huge_pages_are_refused() {
        const BYTES: usize = 1 << 30;
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | MemfdFlags::HUGETLB;
        // A kernel without huge pages has no such file.
        let Ok(fd) = memfd_create("test", flags) else { return };
        if ftruncate(&fd, BYTES as u64).is_err() {
            return;
        }
        fcntl_add_seals(&fd, SealFlags::SHRINK).unwrap();
        let error = Words::open("rings", fd, BYTES).unwrap_err();
        assert!(error.contains("rings: the peer's window is not plain shared memory"), "{error}");
    }

    #[test]
    fn words_of_this_process_alone_have_no_descriptor_and_say_why() {
        let mapping = Mapping::private("test", 128).unwrap();
        let words = Words { mapping, fd: Err(Errno::PERM) };
        assert!(words.fd().unwrap_err().contains("memfd_create: "));
        assert!(Words::new_or_own("test", 128).unwrap().fd().is_ok());
    }
}
