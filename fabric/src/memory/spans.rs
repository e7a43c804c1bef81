//! Which spans of a window are fit for use: inside, aligned, of whole elements.

use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::mapping::ALIGN;
use crate::ids::Span;

/// What windows may be read and written as: any bits are a value, and all its bits are its value's.
pub trait Plain: FromBytes + IntoBytes + Immutable + Copy + 'static {}

impl<T: FromBytes + IntoBytes + Immutable + Copy + 'static> Plain for T {}

/// Spans of a window that overlap, stick out, or are not aligned.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum SpanError {
    /// Past the end of the window.
    #[error("span {span:?} ends beyond the window of {bytes} bytes")]
    OutOfBounds {
        /// The span.
        span: Span,
        /// Size of the window.
        bytes: usize,
    },
    /// Not on a boundary of 64 bytes.
    #[error("span {span:?} must start on a multiple of 64 bytes")]
    Misaligned {
        /// The span.
        span: Span,
    },
    /// Not whole elements.
    #[error("span {span:?} must hold whole elements of {element_bytes} bytes")]
    NotWhole {
        /// The span.
        span: Span,
        /// Size of what it was to be read as.
        element_bytes: usize,
    },
    /// Two owners for one byte.
    #[error("spans {first:?} and {second:?} overlap")]
    Overlap {
        /// The lower span.
        first: Span,
        /// The other.
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

/// How many `T` a span holds.
pub(super) fn elements<T: Plain>(span: Span) -> Result<usize, SpanError> {
    const { assert!(align_of::<T>() <= ALIGN && size_of::<T>() > 0, "spans start on a multiple of ALIGN") };
    let element_bytes = size_of::<T>();
    if !span.bytes.is_multiple_of(element_bytes) {
        return Err(SpanError::NotWhole { span, element_bytes });
    }
    Ok(span.bytes / element_bytes)
}
