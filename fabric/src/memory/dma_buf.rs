//! Memory that a dma-buf describes, such as a GPU's. NICs access the memory by the descriptor of the dma-buf.
//! This process needs no address of the memory.
//!
//! This file is on the `unsafe` list, because a descriptor may come as a number from another language.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::str::FromStr;
use std::sync::Arc;

use rustix::fs::{SeekFrom, fstatfs, seek};

/// The file system type of dma-bufs: its magic number (linux/magic.h).
const DMA_BUF_FS: u64 = 0x444d_4142;

/// The part of a dma-buf from a byte offset on. Its text form is `DESCRIPTOR` or `DESCRIPTOR:OFFSET`.
#[derive(Clone, Debug)]
pub struct DmaBuf {
    fd: Arc<OwnedFd>,
    offset: u64,
}

/// The error of a dma-buf that cannot be a window.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DmaBufError {
    /// The text is not a descriptor's number and an offset.
    #[error("expected a descriptor and, if it is not 0, the offset of the first byte: DESCRIPTOR:OFFSET")]
    Text,
    /// The process has no such descriptor.
    #[error("this process has no descriptor {fd}: {error}")]
    NotOpen {
        /// The number.
        fd: RawFd,
        /// The kernel's answer.
        error: String,
    },
    /// The descriptor does not belong to a dma-buf.
    #[error(
        "the descriptor does not belong to a dma-buf (its file system is {seen:#x}); CUDA makes a dma-buf by cuMemGetHandleForAddressRange"
    )]
    OtherFile {
        /// The magic number of its file system.
        seen: u64,
    },
    /// The dma-buf ends before the window does.
    #[error(
        "the dma-buf has {seen} bytes, and the window of {bytes} bytes at byte {offset} does not fit into it"
    )]
    TooSmall {
        /// The size.
        seen: u64,
        /// The window's first byte.
        offset: u64,
        /// The window's size.
        bytes: usize,
    },
}

impl DmaBuf {
    /// Creates the part of a descriptor's dma-buf from byte `offset` on.
    pub fn new(fd: OwnedFd, offset: u64) -> Self {
        DmaBuf { fd: Arc::new(fd), offset }
    }

    /// Works like [`new`](Self::new), but duplicates the descriptor, so that the caller keeps its own
    /// descriptor.
    ///
    /// # Errors
    /// Returns an error if the process has no such descriptor.
    pub fn of_number(fd: RawFd, offset: u64) -> Result<Self, DmaBufError> {
        // SAFETY: the call accesses no memory, and the kernel checks the number.
        let own = unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 0) };
        if own < 0 {
            let error = std::io::Error::last_os_error().to_string();
            return Err(DmaBufError::NotOpen { fd, error });
        }
        // SAFETY: the descriptor was made above, and nothing else owns it.
        Ok(DmaBuf::new(unsafe { OwnedFd::from_raw_fd(own) }, offset))
    }

    /// Checks that a window of `bytes` bytes fits in the dma-buf.
    pub(super) fn check(&self, bytes: usize) -> Result<(), DmaBufError> {
        let seen = fstatfs(&self.fd).map_or(0, |found| found.f_type as u64);
        if seen != DMA_BUF_FS {
            return Err(DmaBufError::OtherFile { seen });
        }
        let seen = seek(&self.fd, SeekFrom::End(0)).unwrap_or(0);
        let (offset, end) = (self.offset, self.offset.checked_add(bytes as u64));
        if end.is_some_and(|end| end <= seen) {
            Ok(())
        } else {
            Err(DmaBufError::TooSmall { seen, offset, bytes })
        }
    }

    /// Returns the offset in the dma-buf at which the window begins.
    pub(crate) fn offset(&self) -> u64 {
        self.offset
    }
}

impl AsFd for DmaBuf {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl FromStr for DmaBuf {
    type Err = DmaBufError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (fd, offset) = text.split_once(':').unwrap_or((text, "0"));
        match (fd.parse(), offset.parse()) {
            (Ok(fd), Ok(offset)) => DmaBuf::of_number(fd, offset),
            _ => Err(DmaBufError::Text),
        }
    }
}

impl fmt::Display for DmaBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a dma-buf from byte {}", self.offset)
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use rustix::fs::{MemfdFlags, memfd_create};

    use super::*;

    #[test]
    fn a_text_names_a_descriptor_that_stays_open_and_an_offset() {
        let file = memfd_create("test", MemfdFlags::CLOEXEC).unwrap();
        let named: DmaBuf = format!("{}:4096", file.as_raw_fd()).parse().unwrap();
        assert_eq!(named.offset(), 4096);
        assert_ne!(named.as_fd().as_raw_fd(), file.as_raw_fd());
        drop(named);
        rustix::fs::ftruncate(&file, 1).expect("the caller's descriptor is open");
        for text in ["", "x", "3:", "3:x", "3:-1", "-"] {
            assert_eq!(text.parse::<DmaBuf>().err(), Some(DmaBufError::Text), "{text:?}");
        }
        let closed = "1000000".parse::<DmaBuf>().unwrap_err().to_string();
        assert!(
            closed.starts_with("this process has no descriptor 1000000: Bad file descriptor"),
            "{closed}"
        );
    }

    #[test]
    fn another_file_is_no_dma_buf() {
        let file = memfd_create("test", MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&file, 4096).unwrap();
        let error = DmaBuf::new(file, 0).check(64).unwrap_err();
        assert_eq!(error, DmaBufError::OtherFile { seen: 0x0102_1994 });
    }
}
