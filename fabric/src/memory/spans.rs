//! Spans of windows, as memory that this process reads and writes. This end owns spans of the window that it
//! writes, and reads spans of the window that the peer writes.
//!
//! This file is on the `unsafe` list. On shared memory, the window that the peer writes is a read-only view
//! of the peer's pages. On other transports it is memory of this end, which the transport writes.

use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use rustix::fs::{SealFlags, fcntl_get_seals, fstat, fstatfs};
use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::mapping::{ALIGN, Access, Mapping};
use super::window::{SendWindow, WindowError};
use crate::ids::Span;
use crate::ranges::Ranges;

/// The spans of one owner of a [`SendWindow`]. Nobody else in this process writes them.
#[derive(Debug)]
pub struct Spans {
    window: Arc<SendWindow>,
    spans: Vec<Span>,
}

impl Spans {
    /// Creates the spans of one owner. `split` has checked the spans, and that no other owner has them.
    pub(super) fn new(window: &Arc<SendWindow>, spans: Vec<Span>) -> Self {
        Spans { window: Arc::clone(window), spans }
    }

    /// Returns the window of these spans.
    pub fn window(&self) -> &Arc<SendWindow> {
        &self.window
    }

    /// Returns the number of spans.
    pub fn len(&self) -> usize {
        self.spans.len()
    }

    /// Whether there are no spans.
    pub fn is_empty(&self) -> bool {
        self.spans.is_empty()
    }

    /// Returns the span as a byte range of the window.
    pub fn span(&self, index: usize) -> Span {
        self.spans[index]
    }

    /// Adds a span that covers `spans`, and returns its index. Returns `None` if a span does not begin where
    /// the previous one ends.
    pub fn join(&mut self, spans: Range<usize>) -> Option<usize> {
        let joined = self.spans.get(spans).filter(|spans| !spans.is_empty())?;
        let follows = |pair: &[Span]| pair[0].end() == Some(pair[1].offset);
        let whole = joined.windows(2).all(follows).then(|| joined[0].to(joined[joined.len() - 1]))?;
        self.spans.push(whole);
        Some(self.spans.len() - 1)
    }

    /// Removes the spans from `index` on, and returns them for another owner.
    pub fn split_off(&mut self, index: usize) -> Spans {
        Spans { window: Arc::clone(&self.window), spans: self.spans.split_off(index) }
    }

    /// Returns the span's elements.
    ///
    /// # Panics
    /// Panics if the span does not hold whole elements, or if the window is in a dma-buf.
    pub fn elements<T: Plain>(&self, index: usize) -> &[T] {
        let (start, elements) = self.start(index);
        // SAFETY: `split` checked bounds, alignment and disjointness of the span, or `join` made it from such
        // spans. `&self` excludes `elements_mut`, the only writer. The kernel initialised the pages, and any
        // bits are a valid `T`.
        unsafe { std::slice::from_raw_parts(start, elements) }
    }

    /// Returns the span's elements for writing. The peer reads them. The protocol above separates writing and
    /// reading in time: the owner posts after it has written, and writes again only after the peer's answer.
    ///
    /// # Panics
    /// Panics like [`elements`](Self::elements).
    pub fn elements_mut<T: Plain>(&mut self, index: usize) -> &mut [T] {
        let (start, elements) = self.start(index);
        // SAFETY: as in `elements`. `&mut self` makes this the only reference into the span, because `split`
        // gave the span's bytes to this value alone.
        unsafe { std::slice::from_raw_parts_mut(start, elements) }
    }

    fn start<T: Plain>(&self, index: usize) -> (*mut T, usize) {
        let span = self.spans[index];
        let start = self.window.start().wrapping_add(span.offset);
        let elements = elements::<T>(span).expect("a span of a type's whole elements");
        (start.cast::<T>(), elements)
    }
}

/// The file system type of memfds: its magic number (statfs(2)).
const TMPFS: u64 = 0x0102_1994;

/// The window that the peer writes and this end reads.
#[derive(Debug)]
pub struct RecvWindow {
    /// The mapping. Registered regions share it: it must stay mapped while a NIC may write it.
    mapping: Arc<Mapping>,
    bytes: usize,
    /// Whether the window is memory of this end, which a transport may write. Otherwise it is a read-only
    /// view.
    local: bool,
    /// The window that shows this memory to other peers. Each core writes the spans that it owns.
    shown: Option<Arc<SendWindow>>,
}

impl RecvWindow {
    /// Maps a peer's [`SendWindow`](crate::SendWindow) on this machine as a read-only view. The file comes
    /// from outside, so this function checks its size and its seal against shrinking. Without the seal, a
    /// read could raise SIGBUS.
    pub fn open(fd: BorrowedFd, bytes: usize) -> Result<Self, WindowError> {
        check_file(fd, bytes)?;
        let mapping = Mapping::shared("a peer's window", fd, bytes, Access::Read)?;
        Ok(RecvWindow { mapping: Arc::new(mapping), bytes, local: false, shown: None })
    }

    /// Maps another peer's window at the addresses of this view. The bytes change, so nobody may be reading
    /// them.
    ///
    /// # Errors
    /// Returns the errors of [`open`](Self::open). If the pages could not be mapped, the view reads as zeros.
    ///
    /// # Panics
    /// Panics if the window is memory of this end.
    pub(crate) fn reopen(&self, fd: BorrowedFd) -> Result<(), WindowError> {
        assert!(!self.local, "only a view can be mapped again, not memory of this end");
        check_file(fd, self.bytes)?;
        Ok(self.mapping.replace("a peer's window", fd)?)
    }

    /// Allocates memory of this end, for transports that copy the bytes.
    pub fn local(bytes: usize) -> Result<Self, WindowError> {
        let mapping = Arc::new(Mapping::private("a receive window", bytes)?);
        Ok(RecvWindow { mapping, bytes, local: true, shown: None })
    }

    /// Returns a receive window in the memory of `window`, whose other readers then see the received bytes. A
    /// hub between upper hubs and its own workers needs such a window. A transport does not receive into
    /// spans that an owner at this end writes.
    pub fn shown(window: &Arc<SendWindow>) -> Self {
        let (mapping, bytes) = (Arc::clone(window.mapping()), window.bytes());
        RecvWindow { mapping, bytes, local: true, shown: Some(Arc::clone(window)) }
    }

    /// Returns the size in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether the window is memory of this end. Only then may a transport `write` it.
    pub fn is_local(&self) -> bool {
        self.local
    }

    /// Returns the memory itself, for a transport whose NIC writes it.
    pub(crate) fn mapping(&self) -> &Arc<Mapping> {
        &self.mapping
    }

    /// Returns a span's address and number of elements. Checks bounds and alignment, but the caller must
    /// check that it may read.
    pub fn elements_ptr<T: Plain>(&self, span: Span) -> Result<(*const T, usize), SpanError> {
        check(span, self.bytes)?;
        let start = self.mapping.as_ptr().wrapping_add(span.offset).cast_const();
        Ok((start.cast::<T>(), elements::<T>(span)?))
    }

    /// Returns the elements of a span.
    ///
    /// # Safety
    /// While the slice lives, the peer must not write the span. By the protocol, the peer does not write the
    /// span after the caller has seen the peer's post of the span, until the caller answers.
    pub unsafe fn elements<T: Plain>(&self, span: Span) -> Result<&[T], SpanError> {
        let (start, elements) = self.elements_ptr(span)?;
        // SAFETY: `elements_ptr` checked bounds and alignment, any bits are a valid `T`, the kernel
        // initialised the pages, and the caller guarantees that the peer does not write.
        Ok(unsafe { std::slice::from_raw_parts(start, elements) })
    }

    /// Makes huge pages, as [`SendWindow::collapse_by_node`] does.
    pub fn collapse_by_node(&self, nodes: &[Ranges], go_to: impl FnMut(usize)) -> usize {
        let access = if self.local { Access::ReadWrite } else { Access::Read };
        self.mapping.collapse_by_node(nodes, access, go_to)
    }

    /// Allocates every page of a span that has no page yet, on the node of the calling core. Call this method
    /// only for memory of this end, before a transport writes the memory. The contents do not change. Before
    /// Linux 5.14 the call does nothing.
    pub fn populate(&self, span: Span) {
        if self.place(span).is_some() {
            self.mapping.populate(span);
        }
    }

    /// Reads every page of a span. If no thread has touched a page yet, the kernel allocates it on the node
    /// of the calling core.
    pub fn touch(&self, span: Span) {
        const PAGE: usize = 4096;
        let Some(end) = span.end().filter(|&end| end <= self.bytes) else { return };
        let mut offset = span.offset;
        while offset < end {
            // SAFETY: in bounds by the check above. The peer may be writing the byte, but its value is not
            // used.
            unsafe { self.mapping.as_ptr().add(offset).read_volatile() };
            offset = (offset / PAGE + 1) * PAGE;
        }
    }

    /// Returns the address of a span, for a transport that writes it. Returns `None` if the span is out of
    /// bounds, if the memory is not this end's, or if an owner at this end writes there.
    pub(crate) fn place(&self, span: Span) -> Option<*mut u8> {
        let is_owned = || self.shown.as_ref().is_some_and(|window| window.owns(span));
        let inside = self.local && span.end()? <= self.bytes && !is_owned();
        inside.then(|| self.mapping.as_ptr().wrapping_add(span.offset))
    }

    /// Copies `source` into the window at `span`, for transports that copy the bytes.
    ///
    /// # Safety
    /// The window must be [`local`](Self::local), and `source` must be readable for `span.bytes`. By the
    /// protocol, nobody reads the span until the transport has shown the post's immediate.
    pub(crate) unsafe fn write(&self, span: Span, source: *const u8) -> Result<(), SpanError> {
        let place = self.place(span).ok_or(SpanError::OutOfBounds { span, bytes: self.bytes })?;
        // SAFETY: `place` checked that the span is in bounds and writable; the caller guarantees the rest.
        unsafe { std::ptr::copy_nonoverlapping(source, place, span.bytes) };
        Ok(())
    }
}

/// Checks that a file can be a window of `bytes` bytes.
fn check_file(fd: BorrowedFd, bytes: usize) -> Result<(), WindowError> {
    let memfd = |call| move |errno| WindowError::Memfd { call, bytes, errno };
    let seals = fcntl_get_seals(fd).map_err(memfd("reading seals"))?;
    if !seals.contains(SealFlags::SHRINK) {
        return Err(WindowError::NotSealed { seen: seals.bits() });
    }
    check_plain(fd).map_err(|error| match error {
        WindowError::Memfd { call, errno, .. } => WindowError::Memfd { call, bytes, errno },
        error => error,
    })?;
    let seen = fstat(fd).map_err(memfd("fstat"))?.st_size as u64;
    if seen < bytes as u64 {
        return Err(WindowError::TooSmall { expected: bytes, seen });
    }
    Ok(())
}

/// Checks that the pages of a peer's memfd are not huge pages from a pool. If the pool is empty when a page
/// is first touched, the kernel raises SIGBUS, and no seal prevents that.
pub(crate) fn check_plain(fd: BorrowedFd) -> Result<(), WindowError> {
    let kind = fstatfs(fd).map_err(|errno| WindowError::Memfd { call: "fstatfs", bytes: 0, errno })?;
    match kind.f_type as u64 {
        TMPFS => Ok(()),
        seen => Err(WindowError::NotPlain { seen }),
    }
}

/// A type of the values in windows: any bits are a valid value, and the type has no padding.
pub trait Plain: FromBytes + IntoBytes + Immutable + Copy + 'static {}

impl<T: FromBytes + IntoBytes + Immutable + Copy + 'static> Plain for T {}

/// The error of spans that overlap, end beyond the window, or are not aligned.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum SpanError {
    /// The span ends after the window.
    #[error("span {span:?} ends beyond the window of {bytes} bytes")]
    OutOfBounds {
        /// The span.
        span: Span,
        /// Size of the window.
        bytes: usize,
    },
    /// The span does not start on a multiple of 64 bytes.
    #[error("span {span:?} must start on a multiple of 64 bytes")]
    Misaligned {
        /// The span.
        span: Span,
    },
    /// The span is not a whole number of elements.
    #[error("span {span:?} must hold whole elements of {element_bytes} bytes")]
    NotWhole {
        /// The span.
        span: Span,
        /// The size of the element type.
        element_bytes: usize,
    },
    /// Two spans share a byte.
    #[error("spans {first:?} and {second:?} overlap")]
    Overlap {
        /// The lower span.
        first: Span,
        /// The higher span.
        second: Span,
    },
}

pub(super) fn check(span: Span, bytes: usize) -> Result<(), SpanError> {
    if span.end().is_none_or(|end| end > bytes) {
        return Err(SpanError::OutOfBounds { span, bytes });
    }
    if !span.offset.is_multiple_of(ALIGN) {
        return Err(SpanError::Misaligned { span });
    }
    Ok(())
}

/// Returns the number of `T` in a span.
pub(super) fn elements<T: Plain>(span: Span) -> Result<usize, SpanError> {
    const { assert!(align_of::<T>() <= ALIGN && size_of::<T>() > 0, "spans start on a multiple of ALIGN") };
    let element_bytes = size_of::<T>();
    if !span.bytes.is_multiple_of(element_bytes) {
        return Err(SpanError::NotWhole { span, element_bytes });
    }
    Ok(span.bytes / element_bytes)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use rustix::fs::{MemfdFlags, fcntl_add_seals, ftruncate, memfd_create};
    use rustix::io::Errno;

    use super::*;

    fn span(offset: usize, bytes: usize) -> Span {
        Span { offset, bytes }
    }

    #[test]
    fn a_view_shows_what_the_owner_writes() {
        let window = SendWindow::new(4096).unwrap();
        let view = RecvWindow::open(window.fd().unwrap(), 4096).unwrap();
        let (_window, mut owned) = window.split(vec![vec![span(64, 128)]]).unwrap();
        owned[0].elements_mut::<f32>(0).fill(3.0);
        // SAFETY: the test has one thread, so nobody writes while the slice lives.
        assert_eq!(unsafe { view.elements::<f32>(span(64, 128)) }.unwrap(), [3.0; 32]);
    }

    #[test]
    fn spans_that_follow_each_other_are_joined_and_no_others() {
        let spans = vec![span(64, 64), span(128, 64), span(256, 64)];
        let (_, mut owned) = SendWindow::new(4096).unwrap().split(vec![spans]).unwrap();
        let spans = &mut owned[0];
        spans.elements_mut::<f32>(1).fill(2.0);
        assert_eq!(spans.join(0..2), Some(3));
        assert_eq!((spans.span(3), spans.elements::<f32>(3)[16]), (span(64, 128), 2.0));
        assert_eq!(
            (spans.join(1..3), spans.join(2..9), spans.join(1..1), spans.len()),
            (None, None, None, 4)
        );
    }

    #[test]
    fn a_view_of_another_window_takes_the_addresses_of_the_former() {
        let window = |value: f32| {
            let (window, mut owned) =
                SendWindow::new(3 << 20).unwrap().split(vec![vec![span(64, 128)]]).unwrap();
            owned[0].elements_mut::<f32>(0).fill(value);
            window
        };
        let (former, later) = (window(3.0), window(5.0));
        let view = RecvWindow::open(former.fd().unwrap(), 3 << 20).unwrap();
        let (before, _) = view.elements_ptr::<f32>(span(64, 128)).unwrap();
        drop(former);
        let too_small = SendWindow::new(4096).unwrap();
        assert!(matches!(view.reopen(too_small.fd().unwrap()), Err(WindowError::TooSmall { .. })));
        // SAFETY: the test has one thread, so nobody writes while the slice lives.
        assert_eq!(unsafe { view.elements::<f32>(span(64, 128)) }.unwrap(), [3.0; 32], "it stays");
        view.reopen(later.fd().unwrap()).unwrap();
        // SAFETY: as above.
        assert_eq!(unsafe { view.elements::<f32>(span(64, 128)) }.unwrap(), [5.0; 32]);
        assert_eq!(view.elements_ptr::<f32>(span(64, 128)).unwrap().0, before);
        let no_memory = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap();
        view.mapping.replace("an event", no_memory.as_fd()).unwrap_err();
        // SAFETY: as above.
        assert_eq!(unsafe { view.elements::<f32>(span(64, 128)) }.unwrap(), [0.0; 32], "no hole");
    }

    #[test]
    fn what_a_transport_writes_into_a_shown_window_other_peers_see() {
        let (window, mut owned) = SendWindow::new(4096).unwrap().split(vec![vec![span(256, 64)]]).unwrap();
        let recv = RecvWindow::shown(&window);
        let view = RecvWindow::open(window.fd().unwrap(), 4096).unwrap();
        // SAFETY: the window is local; the array is as long as the span; nobody reads meanwhile.
        unsafe { recv.write(span(64, 4), [1u8, 2, 3, 4].as_ptr()) }.unwrap();
        // SAFETY: the test has one thread, so nobody writes while the slice lives.
        assert_eq!(unsafe { view.elements::<u8>(span(64, 4)) }.unwrap(), [1, 2, 3, 4]);
        owned[0].elements_mut::<u8>(0).fill(9);
        for (offset, bytes) in [(256, 4), (200, 57), (319, 1), (128, 1024)] {
            assert_eq!(recv.place(span(offset, bytes)), None, "{offset}: an owner at this end writes there");
        }
        assert!(
            [(192, 64), (320, 64), (256, 0)].iter().all(|&(at, bytes)| recv.place(span(at, bytes)).is_some())
        );
    }

    #[test]
    fn nobody_but_the_owner_gets_a_writable_mapping() {
        let window = SendWindow::new(4096).unwrap();
        let error = Mapping::shared("a test", window.fd().unwrap(), 4096, Access::ReadWrite).unwrap_err();
        assert_eq!(error.errno, Errno::PERM);
        assert!(ftruncate(window.fd().unwrap(), 1).is_err(), "sealed against shrinking");
    }

    #[test]
    fn a_window_that_is_too_small_or_can_shrink_is_refused() {
        let window = SendWindow::new(4096).unwrap();
        assert!(matches!(
            RecvWindow::open(window.fd().unwrap(), 8192),
            Err(WindowError::TooSmall { expected: 8192, seen: 4096 })
        ));
        let fd = memfd_create("test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&fd, 8192).unwrap();
        assert!(matches!(RecvWindow::open(fd.as_fd(), 8192), Err(WindowError::NotSealed { .. })));
    }

    #[test]
    fn a_window_of_huge_pages_is_refused() {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | MemfdFlags::HUGETLB;
        // A kernel without huge pages has no such file.
        let Ok(fd) = memfd_create("test", flags) else { return };
        if ftruncate(&fd, 1 << 30).is_err() {
            return;
        }
        fcntl_add_seals(&fd, SealFlags::SHRINK).unwrap();
        assert!(matches!(RecvWindow::open(fd.as_fd(), 8192), Err(WindowError::NotPlain { .. })));
    }

    #[test]
    fn pages_are_made_without_a_change_of_what_is_there() {
        const BYTES: usize = 4 << 20;
        let (window, source) = (RecvWindow::local(BYTES).unwrap(), [7; 8192]);
        for (place, make) in [
            (span(0, 8192), (|window| window.populate(span(64, BYTES - 64))) as fn(&RecvWindow)),
            (span(2 << 20, 8192), |window| {
                let all = [span(0, BYTES)].into_iter().collect();
                window.collapse_by_node(&[all], |_| ());
            }),
        ] {
            // SAFETY: the window is local, and nobody reads it meanwhile.
            unsafe { window.write(place, source.as_ptr()) }.unwrap();
            make(&window);
            // SAFETY: the test has one thread, so nobody writes while the slice lives.
            assert_eq!(unsafe { window.elements::<u8>(place) }.unwrap(), source);
        }
        window.populate(span(BYTES, 64)); // out of bounds: does nothing
        window.populate(span(0, 0));
    }

    #[test]
    fn a_span_is_read_as_whole_elements_only() {
        let window = SendWindow::new(4096).unwrap();
        let view = RecvWindow::open(window.fd().unwrap(), 4096).unwrap();
        let (_window, mut owned) = window.split(vec![vec![span(64, 6)]]).unwrap();
        owned[0].elements_mut::<u16>(0).copy_from_slice(&[1, 2, 0x0304]);
        // SAFETY: the test has one thread, so nobody writes while the slice lives.
        let read = unsafe { view.elements::<u8>(span(64, 6)) };
        assert_eq!(read.unwrap(), [1, 0, 2, 0, 4, 3]);
        let error = view.elements_ptr::<f32>(span(64, 6)).unwrap_err();
        assert_eq!(error, SpanError::NotWhole { span: span(64, 6), element_bytes: 4 });
    }
}
