//! The kernels for NEON, which every 64-bit Arm processor has.
//!
//! On the list of `unsafe` code (`docs/unsafe.md`): loads, stores and conversions in an instruction set that was detected.

use std::arch::aarch64::*;
use std::arch::asm;

use half::{bf16, f16};

use super::{Convert, Work, pairs};
use crate::kernels::rule::Rule;
use crate::kernels::{Element, Slots, Step, body};

/// The proof that the processor has the instruction set. Only `work`, `sum` and `step` create it.
#[derive(Clone, Copy)]
struct Neon(());

#[target_feature(enable = "neon")]
pub(in crate::kernels) fn work<W: Work>(work: W) -> W::Output {
    work.run(Neon(()))
}

#[target_feature(enable = "neon")]
pub(in crate::kernels) fn sum<E: Element, R: Rule>(
    step: &Step,
    slots: &Slots<E>,
    window: &mut [E],
    master: &mut [f32],
    first: &mut [f32],
    second: &mut [f32],
    third: &mut [f32],
) {
    body::run::<E, E, R, _>(E::converter(Neon(())), step, slots, window, [master, first, second, third]);
}

#[target_feature(enable = "neon")]
pub(in crate::kernels) fn step<E: Element, R: Rule>(
    step: &Step,
    slots: &Slots,
    window: &mut [E],
    master: &mut [f32],
    first: &mut [f32],
    second: &mut [f32],
    third: &mut [f32],
) {
    body::run::<f32, E, R, _>(E::converter(Neon(())), step, slots, window, [master, first, second, third]);
}

pairs!(
    Neon,
    F32x8,
    float32x4_t,
    8,
    vdupq_n_f32,
    vaddq_f32,
    vsubq_f32,
    vmulq_f32,
    vdivq_f32,
    vsqrtq_f32,
    if_above
);

impl Convert<f32> for Neon {
    #[inline(always)]
    fn widen_for_sum(self, elements: &[f32]) -> F32x8 {
        let from: &[f32; 8] = elements.try_into().expect("one element for each place of the vector");
        // SAFETY: there are 8 elements at the address; `self` shows that the processor has the instruction set.
        unsafe { F32x8(vld1q_f32(from.as_ptr()), vld1q_f32(from[4..].as_ptr())) }
    }

    #[inline(always)]
    fn narrow(self, values: F32x8, elements: &mut [f32]) {
        let to: &mut [f32; 8] = elements.try_into().expect("one element for each place of the vector");
        // SAFETY: there are 8 elements at the address; `self` shows that the processor has the instruction set.
        unsafe {
            vst1q_f32(to.as_mut_ptr(), values.0);
            vst1q_f32(to[4..].as_mut_ptr(), values.1);
        }
    }
}

impl Convert<f16> for Neon {
    #[inline(always)]
    fn widen_for_sum(self, elements: &[f16]) -> F32x8 {
        let from: &[f16; 8] = elements.try_into().expect("one element for each place of the vector");
        let (low, high);
        // SAFETY: there are 8 elements at the address; `self` shows that the processor has the instruction set,
        // and these conversions are part of it.
        unsafe {
            let halves = vld1q_u16(from.as_ptr().cast());
            asm!("fcvtl {0:v}.4s, {1:v}.4h", out(vreg) low, in(vreg) halves, options(pure, nomem, nostack));
            asm!("fcvtl2 {0:v}.4s, {1:v}.8h", out(vreg) high, in(vreg) halves, options(pure, nomem, nostack));
        }
        F32x8(low, high)
    }

    /// Rounds to the nearest number, ties to even. This is the default rounding mode of a thread.
    #[inline(always)]
    fn narrow(self, values: F32x8, elements: &mut [f16]) {
        let to: &mut [f16; 8] = elements.try_into().expect("one element for each place of the vector");
        let (low, high): (uint16x4_t, uint16x4_t);
        // SAFETY: there are 8 elements at the address; `self` shows that the processor has the instruction set,
        // and these conversions are part of it.
        unsafe {
            asm!("fcvtn {0:v}.4h, {1:v}.4s", out(vreg) low, in(vreg) values.0, options(pure, nomem, nostack));
            asm!("fcvtn {0:v}.4h, {1:v}.4s", out(vreg) high, in(vreg) values.1, options(pure, nomem, nostack));
            vst1q_u16(to.as_mut_ptr().cast(), vcombine_u16(low, high));
        }
    }
}

impl Convert<bf16> for Neon {
    #[inline(always)]
    fn widen_for_sum(self, elements: &[bf16]) -> F32x8 {
        let from: &[bf16; 8] = elements.try_into().expect("one element for each place of the vector");
        // SAFETY: there are 8 elements at the address; `self` shows that the processor has the instruction set.
        unsafe {
            let bits = vld1q_u16(from.as_ptr().cast());
            let (low, high) = (vshll_n_u16::<16>(vget_low_u16(bits)), vshll_high_n_u16::<16>(bits));
            F32x8(vreinterpretq_f32_u32(low), vreinterpretq_f32_u32(high))
        }
    }

    #[inline(always)]
    fn narrow(self, values: F32x8, elements: &mut [bf16]) {
        let to: &mut [bf16; 8] = elements.try_into().expect("one element for each place of the vector");
        // SAFETY: there are 8 elements at the address; `self` shows that the processor has the instruction set.
        unsafe {
            let (low, high) = (rounded(values.0), rounded(values.1));
            vst1q_u16(to.as_mut_ptr().cast(), vcombine_u16(vshrn_n_u32::<16>(low), vshrn_n_u32::<16>(high)));
        }
    }
}

#[inline]
#[target_feature(enable = "neon")]
fn if_above(values: float32x4_t, bound: float32x4_t, then: float32x4_t, or: float32x4_t) -> float32x4_t {
    vbslq_f32(vcgtq_f32(values, bound), then, or)
}

/// Rounds to the nearest bf16, in the upper halves. It adds half an ulp minus 1, and 1 more if the kept part is odd. The
/// sum carries into the kept part exactly if the nearest even number is above.
#[inline]
#[target_feature(enable = "neon")]
fn rounded(values: float32x4_t) -> uint32x4_t {
    let bits = vreinterpretq_u32_f32(values);
    let odd = vandq_u32(vshrq_n_u32::<16>(bits), vdupq_n_u32(1));
    let rounded = vaddq_u32(bits, vaddq_u32(odd, vdupq_n_u32(0x7fff)));
    let quiet = vorrq_u32(bits, vdupq_n_u32(0x0040_0000));
    vbslq_u32(vceqq_f32(values, values), rounded, quiet)
}
