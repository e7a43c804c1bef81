//! Private memory of a core.
//!
//! This file is on the `unsafe` list.

use rustix::io::Errno;

use super::mapping::{MapError, Mapping};

/// Zeroed private memory for a core's own state, such as momentum: f32, aligned to 64 bytes. Each page lies
/// on the NUMA node of the thread that touches it first.
#[derive(Debug)]
pub struct Slab {
    mapping: Mapping,
    elements: usize,
}

impl Slab {
    /// Allocates room for `elements` f32, all zero.
    pub fn zeroed(what: &'static str, elements: usize) -> Result<Self, MapError> {
        let bytes = elements
            .checked_mul(size_of::<f32>())
            .ok_or_else(|| MapError::new(what, usize::MAX, Errno::NOMEM))?;
        Ok(Slab { mapping: Mapping::private(what, bytes)?, elements })
    }

    /// Returns the number of f32 for which there is room.
    pub fn room(&self) -> usize {
        self.mapping.bytes() / size_of::<f32>()
    }

    /// Returns the memory as `elements` f32, with its contents. Returns `None` if the memory is too small.
    pub fn resized(self, elements: usize) -> Option<Self> {
        (elements <= self.room()).then_some(Slab { elements, ..self })
    }

    /// Returns the memory.
    pub fn as_slice(&self) -> &[f32] {
        // SAFETY: the mapping holds `elements` f32 (checked in `zeroed` and `resized`), page-aligned, initialised
        // by the kernel; `&self` excludes writers.
        unsafe { std::slice::from_raw_parts(self.mapping.as_ptr().cast::<f32>(), self.elements) }
    }

    /// Returns the memory for writing.
    pub fn as_mut_slice(&mut self) -> &mut [f32] {
        // SAFETY: as in `as_slice`, and `&mut self` excludes all other references.
        unsafe { std::slice::from_raw_parts_mut(self.mapping.as_ptr().cast::<f32>(), self.elements) }
    }
}
