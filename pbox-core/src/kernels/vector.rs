//! What the body asks of an instruction set: some f32 side by side, and the way to them from the
//! window's elements and back.
//!
//! Explicit vectors, not loops over arrays: the compiler makes full-width code of such loops for f32, but
//! takes those with 16-bit elements apart into quarters of registers.
//!
//! On the `unsafe` list for [`pairwise`]: arithmetic in an instruction set that was detected.

use std::ops::{Add, Div, Mul, Sub};

use super::element::Element;

/// As many f32 as a kernel works on at once. Arithmetic is that of IEEE 754 in each, nothing fused.
pub(crate) trait Vector:
    Copy + Add<Output = Self> + Sub<Output = Self> + Mul<Output = Self> + Div<Output = Self>
{
    /// How many.
    const LENGTH: usize;

    fn sqrt(self) -> Self;
}

/// An instruction set. A value of it shows that the processor has it.
pub(crate) trait Isa: Copy {
    type Vector: Vector;

    /// The same number in all lanes.
    fn splat(self, value: f32) -> Self::Vector;
}

/// Conversions between elements and lanes. All slices must hold exactly as many as there are lanes.
pub(crate) trait Convert<E: Element>: Isa {
    /// The elements in f32, exact, in whatever order is cheapest; the same for all calls.
    fn widen_for_sum(self, elements: &[E]) -> Self::Vector;

    /// From the order of `widen_for_sum` to the elements' own.
    #[inline(always)]
    fn in_order(self, sum: Self::Vector) -> Self::Vector {
        sum
    }

    /// The elements in f32.
    #[inline(always)]
    fn widen(self, elements: &[E]) -> Self::Vector {
        self.in_order(self.widen_for_sum(elements))
    }

    /// The values, rounded as [`Element::from_f32`] rounds them.
    fn narrow(self, values: Self::Vector, elements: &mut [E]);
}

/// Arithmetic of a pair of registers: two additions are under way at once, and a conversion makes two
/// registers of f32 from one of 16-bit elements. Four registers gain nothing.
macro_rules! pairwise {
    ($Pair:ident, $length:literal, $add:ident, $sub:ident, $mul:ident, $div:ident, $sqrt:ident) => {
        pairwise!($Pair, Add, add, $add);
        pairwise!($Pair, Sub, sub, $sub);
        pairwise!($Pair, Mul, mul, $mul);
        pairwise!($Pair, Div, div, $div);

        impl $crate::kernels::vector::Vector for $Pair {
            const LENGTH: usize = $length;

            #[inline(always)]
            fn sqrt(self) -> Self {
                // SAFETY: a pair is only made from a value that shows that the processor has the
                // instruction set.
                unsafe { $Pair($sqrt(self.0), $sqrt(self.1)) }
            }
        }
    };
    ($Pair:ident, $Operator:ident, $operator:ident, $intrinsic:ident) => {
        impl std::ops::$Operator for $Pair {
            type Output = Self;

            #[inline(always)]
            fn $operator(self, other: Self) -> Self {
                // SAFETY: a pair is only made from a value that shows that the processor has the
                // instruction set.
                unsafe { $Pair($intrinsic(self.0, other.0), $intrinsic(self.1, other.1)) }
            }
        }
    };
}
pub(super) use pairwise;
