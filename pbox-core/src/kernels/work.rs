//! Work on a chunk's values other than sums of slots, compiled once for each instruction set. `codec` and `slim`
//! define it: plain loops that the compiler turns into vector code, and the conversions of [`Converter`].

use half::{bf16, f16};

use super::vector::Convert;

/// One piece of work. `run` and all functions that it calls must be `#[inline(always)]`: only code inside the
/// caller is compiled for the caller's instruction set.
pub(crate) trait Work {
    /// The result.
    type Output;

    /// Does the work.
    fn run<I: Converter>(self, isa: I) -> Self::Output;
}

/// An instruction set that converts all element types.
pub(crate) trait Converter: Convert<f32> + Convert<f16> + Convert<bf16> {}

impl<I: Convert<f32> + Convert<f16> + Convert<bf16>> Converter for I {}

/// The instruction sets that kernels are compiled for.
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
