//! Private memory of a core.
//!
//! This file is on the `unsafe` list.

use std::os::fd::BorrowedFd;

use rustix::fs::{SealFlags, fcntl_add_seals, fstat};
use rustix::io::Errno;

use super::mapping::{MapError, Mapping};
use super::window::WindowError;

/// Private memory, such as a core's momentum: f32, aligned to 64 bytes. Each page lies on the NUMA node of the thread that touches
/// it first.
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

    /// Returns the first `bytes` bytes of a memfd, rounded up to whole f32. Seals the file, so that no process can change it. What
    /// this process writes stays its own.
    ///
    /// # Errors
    /// Returns an error if a process can still write the file, or if the file is shorter.
    pub fn of_file(what: &'static str, file: BorrowedFd, bytes: usize) -> Result<Self, WindowError> {
        let memfd = |call| move |errno| WindowError::Memfd { call, bytes, errno };
        let seals = SealFlags::WRITE | SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        fcntl_add_seals(file, seals).map_err(memfd("adding seals"))?;
        let elements = bytes.div_ceil(size_of::<f32>());
        let (expected, seen) =
            (elements * size_of::<f32>(), fstat(file).map_err(memfd("fstat"))?.st_size as u64);
        if seen < expected as u64 {
            return Err(WindowError::TooSmall { expected, seen });
        }
        Ok(Slab { mapping: Mapping::of_sealed(what, file, expected)?, elements })
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
        // SAFETY: the mapping holds `elements` f32 (checked in `zeroed`, `of_file` and `resized`), page-aligned,
        // initialised by the kernel or from a file that nobody can change; `&self` excludes writers.
        unsafe { std::slice::from_raw_parts(self.mapping.as_ptr().cast::<f32>(), self.elements) }
    }

    /// Returns the memory for writing.
    pub fn as_mut_slice(&mut self) -> &mut [f32] {
        // SAFETY: as in `as_slice`, and `&mut self` excludes all other references.
        unsafe { std::slice::from_raw_parts_mut(self.mapping.as_ptr().cast::<f32>(), self.elements) }
    }
}
