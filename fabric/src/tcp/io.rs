//! The two system calls of a connection, its socket options that have no safe call, and checksums over bytes
//! of windows.
//!
//! This file is on the `unsafe` list. The calls move bytes between a socket and windows without a Rust
//! reference to the window's bytes. At the same time, another process or another core may access neighbouring
//! spans.

use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;

use super::frames::checksum;
use crate::ids::Span;
use crate::memory::{RecvWindow, SendWindow};

/// The number of unsent bytes of a connection that the kernel may hold. This number keeps the link busy, and
/// a larger number would delay urgent chunks.
pub(super) const UNSENT_BYTES: u32 = 256 << 10;
/// The most frames of one call. Each frame is a header and a span.
pub(super) const FRAMES: usize = PIECES / 2;
/// The most pieces of one call. The kernel accepts up to 1024, but a socket's buffer is full with fewer
/// pieces.
const PIECES: usize = 64;

/// The pieces that one call sends, in order.
pub(super) struct Gather<'a> {
    pieces: [libc::iovec; PIECES],
    count: usize,
    borrowed: std::marker::PhantomData<&'a [u8]>,
}

impl<'a> Gather<'a> {
    pub fn new() -> Self {
        let none = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
        Gather { pieces: [none; PIECES], count: 0, borrowed: std::marker::PhantomData }
    }

    pub fn has_room(&self) -> bool {
        self.count + 2 <= PIECES
    }

    /// Adds a header without its first `skip` bytes.
    pub fn header(&mut self, header: &'a [u8], skip: usize) {
        let rest = header.get(skip..).unwrap_or_default();
        self.push(rest.as_ptr(), rest.len());
    }

    /// Adds a span, which lies in the window, without its first `skip` bytes.
    pub fn span(&mut self, window: &'a SendWindow, span: Span, skip: usize) {
        let start = window.bytes_of(span).expect("checked when it was posted");
        let skip = skip.min(span.bytes);
        self.push(start.wrapping_add(skip), span.bytes - skip);
    }

    fn push(&mut self, start: *const u8, bytes: usize) {
        if bytes > 0 {
            self.pieces[self.count] = libc::iovec { iov_base: start.cast_mut().cast(), iov_len: bytes };
            self.count += 1;
        }
    }

    /// Sends as much as the socket takes.
    pub fn send(&self, socket: BorrowedFd) -> Result<usize, Errno> {
        // SAFETY: an all-zero msghdr is valid: it has no name, no pieces and no control bytes.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = self.pieces.as_ptr().cast_mut();
        message.msg_iovlen = self.count as _;
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        // SAFETY: the first `count` pieces are readable. They are slices and windows that `'a` keeps alive,
        // with the lengths that `header` and `span` took from them. The kernel only reads.
        let sent = unsafe { libc::sendmsg(socket.as_raw_fd(), &message, flags) };
        answer(sent)
    }
}

/// Receives bytes into a part of a window, and the bytes after that part into `beyond`.
pub(super) fn receive(
    socket: BorrowedFd,
    window: &RecvWindow,
    part: Span,
    beyond: &mut [u8],
) -> Result<usize, Errno> {
    let start = window.place(part).expect("checked when its header came");
    let pieces = [
        libc::iovec { iov_base: start.cast(), iov_len: part.bytes },
        libc::iovec { iov_base: beyond.as_mut_ptr().cast(), iov_len: beyond.len() },
    ];
    let first = usize::from(part.bytes == 0);
    // SAFETY: `place` checked that the part lies in this end's own memory that transports may write. By the
    // contract of `Port`, nobody reads the span before its immediate is shown. `beyond` is borrowed.
    let received = unsafe {
        libc::readv(socket.as_raw_fd(), pieces[first..].as_ptr(), (pieces.len() - first) as libc::c_int)
    };
    answer(received)
}

/// Copies buffered bytes to the beginning of a part of a window.
pub(super) fn fill(window: &RecvWindow, part: Span, bytes: &[u8]) {
    let span = Span { bytes: bytes.len().min(part.bytes), ..part };
    // SAFETY: the window is local, as `connect` made it, and the slice has that many bytes. By the contract
    // of `Port`, nobody reads the span before its immediate is shown.
    unsafe { window.write(span, bytes.as_ptr()) }.expect("checked when its header came");
}

/// Returns the checksum of a span that was posted.
pub(super) fn sum_of_post(window: &SendWindow, span: Span) -> u64 {
    let start = window.bytes_of(span).expect("checked when it was posted");
    // SAFETY: `bytes_of` checked the bounds. By the contract of `Port`, the owner does not change a posted
    // span until the peer has answered, and the peer cannot answer before the span was sent.
    checksum(unsafe { std::slice::from_raw_parts(start, span.bytes) })
}

/// Returns the checksum of a span. All its bytes must have arrived, and its immediate must not have been
/// shown.
pub(super) fn sum_of_arrival(window: &RecvWindow, span: Span) -> u64 {
    let start = window.place(span).expect("checked when its header came");
    // SAFETY: `place` checked the bounds, and that no owner at this end writes there. This link's thread
    // wrote the bytes, and nobody else accesses them before their immediate is shown.
    checksum(unsafe { std::slice::from_raw_parts(start, span.bytes) })
}

/// Returns the bytes of a window that has no links left.
pub(super) fn contents(window: Arc<RecvWindow>) -> Vec<u8> {
    let window = Arc::into_inner(window).expect("no link holds the window");
    let whole = Span { offset: 0, bytes: window.bytes() };
    // SAFETY: the window was taken from its `Arc`, so there is no link that could write it.
    unsafe { window.elements::<u8>(whole) }.expect("the whole window").to_vec()
}

/// Limits how many unsent bytes of a connection the kernel holds. The other bytes wait in the queue of the
/// layer above, which sends urgent chunks first.
pub(super) fn limit_unsent(socket: BorrowedFd, bytes: u32) -> Result<(), Errno> {
    let value = bytes as libc::c_int;
    // SAFETY: the kernel reads one int, which lives until the call returns.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_NOTSENT_LOWAT,
            (&raw const value).cast(),
            size_of_val(&value) as libc::socklen_t,
        )
    };
    answer(result as isize).map(|_| ())
}

/// Returns the smoothed round trip of a connection, or zero if the kernel does not know it yet.
pub(super) fn round_trip(socket: BorrowedFd) -> Result<Duration, Errno> {
    // SAFETY: the structure has only numbers, so all-zero is a valid value.
    let mut info: libc::tcp_info = unsafe { std::mem::zeroed() };
    let mut bytes = size_of_val(&info) as libc::socklen_t;
    // SAFETY: the kernel writes at most `bytes` bytes to `info`, and their number to `bytes`. Both live until
    // the call returns.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            (&raw mut info).cast(),
            &raw mut bytes,
        )
    };
    answer(result as isize).map(|_| Duration::from_micros(info.tcpi_rtt.into()))
}

fn answer(result: isize) -> Result<usize, Errno> {
    usize::try_from(result).map_err(|_| {
        let error = std::io::Error::last_os_error();
        Errno::from_io_error(&error).expect("the kernel gave a number")
    })
}
