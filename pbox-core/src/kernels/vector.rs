//! What an instruction set gives to the body: vectors of f32, and conversions between them and the window's
//! elements.
//!
//! Vectors are explicit, and not loops over arrays. The compiler turns such loops into full-width code for f32, but
//! splits loops over 16-bit elements into quarters of registers.
//!
//! On the `unsafe` list for [`pairwise`]: arithmetic in an instruction set that was detected.

use std::ops::{Add, Div, Mul, Sub};

use super::element::Element;

/// The f32 that a kernel works on at once. Each has the arithmetic of IEEE 754; no operation is fused.
pub(crate) trait Vector:
    Copy + Add<Output = Self> + Sub<Output = Self> + Mul<Output = Self> + Div<Output = Self>
{
    /// The number of f32.
    const LENGTH: usize;

    fn sqrt(self) -> Self;
}

/// An instruction set. A value of this type proves that the processor has it.
pub(crate) trait Isa: Copy {
    type Vector: Vector;

    /// A vector with the same number in all places.
    fn splat(self, value: f32) -> Self::Vector;
}

/// Conversions between elements and vectors. All slices must have exactly the length of a vector.
pub(crate) trait Convert<E: Element>: Isa {
    /// Converts the elements to f32, exactly. Their order is the cheapest, and the same in all calls.
    fn widen_for_sum(self, elements: &[E]) -> Self::Vector;

    /// Changes the order of `widen_for_sum` back to the order of the elements.
    #[inline(always)]
    fn in_order(self, sum: Self::Vector) -> Self::Vector {
        sum
    }

    /// Converts the elements to f32, in their order.
    #[inline(always)]
    fn widen(self, elements: &[E]) -> Self::Vector {
        self.in_order(self.widen_for_sum(elements))
    }

    /// Rounds the values as [`Element::from_f32`] does.
    fn narrow(self, values: Self::Vector, elements: &mut [E]);
}

/// Arithmetic on a pair of registers. Two additions run at once, and one register of 16-bit elements becomes two
/// registers of f32. Four registers are no faster.
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
                // SAFETY: a pair is only made from a value that proves that the processor has the instruction set.
                unsafe { $Pair($sqrt(self.0), $sqrt(self.1)) }
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
pub(super) use pairwise;
