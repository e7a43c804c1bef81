//! Work on a chunk's values that is no sum of slots, compiled once for each instruction set: `codec` writes
//! it, as plain loops that the compiler makes vectors of, and with the conversions of [`Converter`].

use half::{bf16, f16};

use super::vector::Convert;

/// One piece of work. `run` and all that it calls must be `#[inline(always)]`: only what is part of the caller
/// is compiled for the caller's instruction set.
pub(crate) trait Work {
    /// What comes of it.
    type Output;

    /// Does it.
    fn run<I: Converter>(self, isa: I) -> Self::Output;
}

/// An instruction set with all its conversions.
pub(crate) trait Converter: Convert<f32> + Convert<f16> + Convert<bf16> {}

impl<I: Convert<f32> + Convert<f16> + Convert<bf16>> Converter for I {}

/// Which one.
#[derive(Clone, Copy)]
pub(super) enum InstructionSet {
    #[cfg(target_arch = "x86_64")]
    Avx512,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "aarch64")]
    Neon,
    Scalar,
}
