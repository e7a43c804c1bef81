//! Element types: the numbers in a window, and their conversion to f32 and back.
//!
//! Plain data. These conversions follow IEEE 754. The kernels have faster conversions that give the same bits.

use std::fmt::Debug;

use fabric::Plain;
use half::{bf16, f16};

use super::compiled::{Kernels, Slots};
use super::isa::{Convert, Converter};
use super::magnitude::Magnitude;
use super::optimizer::{Optimizer, Step};
use crate::layout::Dtype;

/// An element type of keys: f32, `half::f16` or `half::bf16`.
pub trait Element: Converted + Plain + Debug + Default + PartialEq + Send + Sync {
    /// The type's name in the manifest.
    const DTYPE: Dtype;

    /// Returns the same number in f32, exactly.
    fn to_f32(self) -> f32;

    /// Returns the nearest number of this type, ties to even. Numbers beyond the largest number become infinite. Numbers
    /// below the smallest normal number become subnormal. A NaN stays a NaN.
    fn from_f32(value: f32) -> Self;

    /// Whether the number is neither infinite nor NaN.
    fn is_finite(self) -> bool;
}

/// A type that all instruction sets convert. It cannot be named outside of this crate, so no other type can be an
/// [`Element`].
///
/// The kernels' functions for an element type are methods of this trait, because such methods need no type parameters. So
/// their loops are compiled once, in this crate, for each optimizer and instruction set. Generic functions would be
/// compiled again in each crate that uses a core with another type of port.
pub trait Converted: Sized {
    /// Returns the same instruction set, as a converter of this type.
    fn converter<I: Converter>(isa: I) -> impl Convert<Self> + Convert<f32>;

    /// Does the same as [`Kernels::run`].
    fn run(
        kernels: &Kernels,
        optimizer: &Optimizer,
        step: &Step,
        slots: &Slots<Self>,
        window: &mut [Self],
        kept: &mut [f32],
    );

    /// Steps on the only slot, as [`Kernels::step`] does.
    fn step(
        kernels: &Kernels,
        optimizer: &Optimizer,
        step: &Step,
        gradient: &Slots,
        window: &mut [Self],
        kept: &mut [f32],
    );

    /// Does the same as [`Kernels::widen`].
    fn widen_all(kernels: &Kernels, elements: &[Self], wide: &mut [f32]);

    /// Does the same as [`Kernels::narrow`].
    fn narrow_all(kernels: &Kernels, values: &[f32], elements: &mut [Self]);

    /// Does the same as [`Kernels::magnitude`].
    fn magnitude(kernels: &Kernels, slots: &Slots<Self>, workers: u32) -> Magnitude;

    /// Writes a mean, as [`Kernels::mean`] does.
    fn mean(kernels: &Kernels, slots: &Slots<Self>, rescale: f32, at: usize, means: &mut [f32]) -> Magnitude;
}

macro_rules! converted {
    ($($E:ident: $step_as:ident)*) => {$(
        impl Converted for $E {
            #[inline(always)]
            fn converter<I: Converter>(isa: I) -> impl Convert<Self> + Convert<f32> {
                isa
            }

            #[inline(never)]
            fn run(
                kernels: &Kernels,
                optimizer: &Optimizer,
                step: &Step,
                slots: &Slots<Self>,
                window: &mut [Self],
                kept: &mut [f32],
            ) {
                kernels.run_as(optimizer, step, slots, window, kept);
            }

            #[inline(never)]
            fn step(
                kernels: &Kernels,
                optimizer: &Optimizer,
                step: &Step,
                gradient: &Slots,
                window: &mut [Self],
                kept: &mut [f32],
            ) {
                kernels.$step_as(optimizer, step, gradient, window, kept);
            }

            #[inline(never)]
            fn widen_all(kernels: &Kernels, elements: &[Self], wide: &mut [f32]) {
                kernels.widen_as(elements, wide);
            }

            #[inline(never)]
            fn narrow_all(kernels: &Kernels, values: &[f32], elements: &mut [Self]) {
                kernels.narrow_as(values, elements);
            }

            #[inline(never)]
            fn magnitude(kernels: &Kernels, slots: &Slots<Self>, workers: u32) -> Magnitude {
                kernels.magnitude_as(slots, workers)
            }

            #[inline(never)]
            fn mean(
                kernels: &Kernels,
                slots: &Slots<Self>,
                rescale: f32,
                at: usize,
                means: &mut [f32],
            ) -> Magnitude {
                kernels.mean_as(slots, rescale, at, means)
            }
        }
    )*};
}
// For f32, `step` is `run` with one slot.
converted!(f32: run_as f16: step_as bf16: step_as);

/// `typed!(dtype, E => work::<E>())`: does the same work for the element type that `dtype` names.
#[macro_export]
macro_rules! typed {
    ($dtype:expr, $E:ident => $work:expr) => {
        match $dtype {
            $crate::Dtype::F32 => {
                type $E = f32;
                $work
            }
            $crate::Dtype::F16 => {
                type $E = half::f16;
                $work
            }
            $crate::Dtype::BF16 => {
                type $E = half::bf16;
                $work
            }
        }
    };
}
pub(crate) use typed;

impl Element for f32 {
    const DTYPE: Dtype = Dtype::F32;

    #[inline(always)]
    fn to_f32(self) -> f32 {
        self
    }

    #[inline(always)]
    fn from_f32(value: f32) -> Self {
        value
    }

    #[inline(always)]
    fn is_finite(self) -> bool {
        f32::is_finite(self)
    }
}

/// Uses the conversions that `half` offers as `const`: they are plain arithmetic. The other conversions of `half` may check
/// the processor's features at each element, which is too slow for the round path.
impl Element for f16 {
    const DTYPE: Dtype = Dtype::F16;

    #[inline]
    fn to_f32(self) -> f32 {
        self.to_f32_const()
    }

    #[inline]
    fn from_f32(value: f32) -> Self {
        f16::from_f32_const(value)
    }

    #[inline(always)]
    fn is_finite(self) -> bool {
        f16::is_finite(self)
    }
}

/// Uses integer arithmetic without branches, which the compiler turns into vector code. The compiler cannot vectorize
/// the conversions of `half`.
impl Element for bf16 {
    const DTYPE: Dtype = Dtype::BF16;

    /// Widens a number: bf16 is the upper half of an f32.
    #[inline(always)]
    fn to_f32(self) -> f32 {
        f32::from_bits(u32::from(self.to_bits()) << 16)
    }

    /// Rounds a number. It adds half an ulp minus 1, and 1 more if the kept part is odd. The sum carries into the kept part
    /// exactly if the nearest even number is above.
    #[inline(always)]
    fn from_f32(value: f32) -> Self {
        let bits = value.to_bits();
        let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1));
        let quiet_nan = bits | 0x0040_0000;
        bf16::from_bits(((if value.is_nan() { quiet_nan } else { rounded }) >> 16) as u16)
    }

    #[inline(always)]
    fn is_finite(self) -> bool {
        bf16::is_finite(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bf16_is_converted_as_the_half_crate_does() {
        for high in 0..=u16::MAX {
            let narrow = bf16::from_bits(high);
            let (seen, expected) = (Element::to_f32(narrow), narrow.to_f32_const());
            assert!(seen.to_bits() == expected.to_bits() || seen.is_nan() && expected.is_nan(), "{high:#x}");
            for low in [0, 1, 0x7fff, 0x8000, 0x8001, 0xffff] {
                let wide = f32::from_bits(u32::from(high) << 16 | low);
                let (seen, expected) = (<bf16 as Element>::from_f32(wide), bf16::from_f32_const(wide));
                assert_eq!(seen.to_bits(), expected.to_bits(), "{wide:e}, bits {:#x}", wide.to_bits());
            }
        }
    }
}
