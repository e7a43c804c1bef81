//! Instruction sets: vectors of f32, and conversions between them and a window's elements. `body` and the codecs are
//! compiled once for each instruction set.
//!
//! Vectors are explicit types instead of loops over arrays. The compiler turns such loops into full-width code for f32, but
//! it splits loops over 16-bit elements into quarters of registers.
//!
//! On the list of `unsafe` code (`docs/unsafe.md`), for [`pairs`]: arithmetic in an instruction set that was detected.

#[cfg(target_arch = "x86_64")]
pub(super) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(super) mod avx512;
#[cfg(target_arch = "aarch64")]
pub(super) mod neon;
pub(super) mod scalar;

use std::ops::{Add, Div, Mul, Sub};

use half::{bf16, f16};

/// A piece of work for any instruction set. `run` and all functions that it calls must be `#[inline(always)]`: only code
/// inside the caller is compiled for the caller's instruction set.
pub(crate) trait Work {
    /// The result.
    type Output;

    /// Does the work with the instructions of `isa`.
    fn run<I: Converter>(self, isa: I) -> Self::Output;
}

/// An instruction set that converts all element types.
pub trait Converter: Convert<f32> + Convert<f16> + Convert<bf16> {}

impl<I: Convert<f32> + Convert<f16> + Convert<bf16>> Converter for I {}

/// A vector: the f32 on which a kernel works at once. All arithmetic is that of IEEE 754, and no operation is fused.
pub trait Vector:
    Copy + Add<Output = Self> + Sub<Output = Self> + Mul<Output = Self> + Div<Output = Self>
{
    /// The number of f32.
    const LENGTH: usize;

    fn sqrt(self) -> Self;

    /// Selects `then` if the value is above `bound`, else `or`. Also selects `or` if the value or `bound` is a NaN.
    fn if_above(self, bound: Self, then: Self, or: Self) -> Self;
}

/// An instruction set. A value of this type proves that the processor has the instruction set.
pub trait Isa: Copy {
    type Vector: Vector;

    /// Returns a vector with the same number in all places.
    fn splat(self, value: f32) -> Self::Vector;
}

/// Conversions between elements and vectors. All slices must have exactly the length of a vector.
pub trait Convert<E>: Isa {
    /// Converts the elements to f32, exactly. The result has the order that is cheapest, which is the same in all
    /// calls.
    fn widen_for_sum(self, elements: &[E]) -> Self::Vector;

    /// Changes a result from the order of `widen_for_sum` back to the order of the elements.
    #[inline(always)]
    fn in_order(self, sum: Self::Vector) -> Self::Vector {
        sum
    }

    /// Converts the elements to f32, in their own order.
    #[inline(always)]
    fn widen(self, elements: &[E]) -> Self::Vector {
        self.in_order(self.widen_for_sum(elements))
    }

    /// Rounds the values as [`Element::from_f32`](super::Element::from_f32) does.
    fn narrow(self, values: Self::Vector, elements: &mut [E]);
}

/// A vector that is a pair of registers. Two additions run at once, and one register of 16-bit elements becomes two
/// registers of f32. Four registers are not faster.
macro_rules! pairs {
    (
        $Isa:ident, $Pair:ident, $Register:ident, $length:literal, $splat:ident,
        $add:ident, $sub:ident, $mul:ident, $div:ident, $sqrt:ident, $if_above:ident
    ) => {
        #[doc = concat!(stringify!($length), " f32.")]
        #[derive(Clone, Copy)]
        pub struct $Pair($Register, $Register);

        pairs!($Pair, Add, add, $add);
        pairs!($Pair, Sub, sub, $sub);
        pairs!($Pair, Mul, mul, $mul);
        pairs!($Pair, Div, div, $div);

        impl super::Vector for $Pair {
            const LENGTH: usize = $length;

            #[inline(always)]
            fn sqrt(self) -> Self {
                // SAFETY: a pair is only made from a value that proves that the processor has the instruction set.
                unsafe { $Pair($sqrt(self.0), $sqrt(self.1)) }
            }

            #[inline(always)]
            fn if_above(self, bound: Self, then: Self, or: Self) -> Self {
                // SAFETY: a pair is only made from a value that proves that the processor has the instruction set.
                unsafe {
                    $Pair($if_above(self.0, bound.0, then.0, or.0), $if_above(self.1, bound.1, then.1, or.1))
                }
            }
        }

        impl super::Isa for $Isa {
            type Vector = $Pair;

            #[inline(always)]
            fn splat(self, value: f32) -> $Pair {
                // SAFETY: `self` shows that the processor has the instruction set.
                let all = unsafe { $splat(value) };
                $Pair(all, all)
            }
        }
    };
    ($Pair:ident, $Operator:ident, $operator:ident, $intrinsic:ident) => {
        impl std::ops::$Operator for $Pair {
            type Output = Self;

            #[inline(always)]
            fn $operator(self, other: Self) -> Self {
                // SAFETY: a pair is only made from a value that proves that the processor has the instruction set.
                unsafe { $Pair($intrinsic(self.0, other.0), $intrinsic(self.1, other.1)) }
            }
        }
    };
}
use pairs;
