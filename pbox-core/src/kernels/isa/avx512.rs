//! The kernels for AVX-512.
//!
//! On the list of `unsafe` code (`docs/unsafe.md`): loads, stores and conversions in an instruction set that was detected.

use std::arch::x86_64::*;

use half::{bf16, f16};

use super::{Convert, Work, pairs};
use crate::kernels::rule::Rule;
use crate::kernels::{Element, Slots, Step, body};

/// The rounding of a conversion: to the nearest, ties to even, whatever rounding mode the processor has.
const NEAREST: i32 = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;

/// The proof that the processor has the instruction set. Only `work`, `sum` and `step` create it.
#[derive(Clone, Copy)]
struct Avx512(());

#[target_feature(enable = "avx512f,avx512bw")]
pub(in crate::kernels) fn work<W: Work>(work: W) -> W::Output {
    work.run(Avx512(()))
}

#[target_feature(enable = "avx512f,avx512bw")]
pub(in crate::kernels) fn sum<E: Element, R: Rule>(
    step: &Step,
    slots: &Slots<E>,
    window: &mut [E],
    master: &mut [f32],
    first: &mut [f32],
    second: &mut [f32],
    third: &mut [f32],
) {
    body::run::<E, E, R, _>(E::converter(Avx512(())), step, slots, window, [master, first, second, third]);
}

#[target_feature(enable = "avx512f,avx512bw")]
pub(in crate::kernels) fn step<E: Element, R: Rule>(
    step: &Step,
    slots: &Slots,
    window: &mut [E],
    master: &mut [f32],
    first: &mut [f32],
    second: &mut [f32],
    third: &mut [f32],
) {
    body::run::<f32, E, R, _>(E::converter(Avx512(())), step, slots, window, [master, first, second, third]);
}

pairs!(
    Avx512,
    F32x32,
    __m512,
    32,
    _mm512_set1_ps,
    _mm512_add_ps,
    _mm512_sub_ps,
    _mm512_mul_ps,
    _mm512_div_ps,
    _mm512_sqrt_ps,
    if_above
);

impl Convert<f32> for Avx512 {
    #[inline(always)]
    fn widen_for_sum(self, elements: &[f32]) -> F32x32 {
        let from: &[f32; 32] = elements.try_into().expect("one element for each place of the vector");
        // SAFETY: there are 32 elements at the address; `self` shows that the processor has the instruction set.
        unsafe { F32x32(_mm512_loadu_ps(from.as_ptr()), _mm512_loadu_ps(from[16..].as_ptr())) }
    }

    #[inline(always)]
    fn narrow(self, values: F32x32, elements: &mut [f32]) {
        let to: &mut [f32; 32] = elements.try_into().expect("one element for each place of the vector");
        // SAFETY: there are 32 elements at the address; `self` shows that the processor has the instruction set.
        unsafe {
            _mm512_storeu_ps(to.as_mut_ptr(), values.0);
            _mm512_storeu_ps(to[16..].as_mut_ptr(), values.1);
        }
    }
}

impl Convert<f16> for Avx512 {
    #[inline(always)]
    fn widen_for_sum(self, elements: &[f16]) -> F32x32 {
        let from: &[f16; 32] = elements.try_into().expect("one element for each place of the vector");
        // SAFETY: there are 32 elements at the address; `self` shows that the processor has the instruction set.
        unsafe {
            F32x32(
                _mm512_cvtph_ps(_mm256_loadu_si256(from.as_ptr().cast())),
                _mm512_cvtph_ps(_mm256_loadu_si256(from[16..].as_ptr().cast())),
            )
        }
    }

    #[inline(always)]
    fn narrow(self, values: F32x32, elements: &mut [f16]) {
        let to: &mut [f16; 32] = elements.try_into().expect("one element for each place of the vector");
        // SAFETY: there are 32 elements at the address; `self` shows that the processor has the instruction set.
        unsafe {
            let (low, high) = (_mm512_cvtps_ph::<NEAREST>(values.0), _mm512_cvtps_ph::<NEAREST>(values.1));
            _mm256_storeu_si256(to.as_mut_ptr().cast(), low);
            _mm256_storeu_si256(to[16..].as_mut_ptr().cast(), high);
        }
    }
}

impl Convert<bf16> for Avx512 {
    /// Returns the even elements, then the odd elements. This takes one instruction for 16 elements; keeping the order
    /// of the elements would take two.
    #[inline(always)]
    fn widen_for_sum(self, elements: &[bf16]) -> F32x32 {
        let from: &[bf16; 32] = elements.try_into().expect("one element for each place of the vector");
        // SAFETY: there are 32 elements at the address; `self` shows that the processor has the instruction set.
        unsafe {
            let pairs = _mm512_loadu_si512(from.as_ptr().cast());
            let even = _mm512_slli_epi32::<16>(pairs);
            let odd = _mm512_and_si512(pairs, _mm512_set1_epi32(0xffff_0000_u32 as i32));
            F32x32(_mm512_castsi512_ps(even), _mm512_castsi512_ps(odd))
        }
    }

    #[inline(always)]
    fn in_order(self, F32x32(even, odd): F32x32) -> F32x32 {
        // SAFETY: `self` shows that the processor has the instruction set.
        unsafe {
            let low = _mm512_set_epi32(23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
            let high = _mm512_set_epi32(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8);
            F32x32(_mm512_permutex2var_ps(even, low, odd), _mm512_permutex2var_ps(even, high, odd))
        }
    }

    #[inline(always)]
    fn narrow(self, values: F32x32, elements: &mut [bf16]) {
        let to: &mut [bf16; 32] = elements.try_into().expect("one element for each place of the vector");
        // SAFETY: there are 32 elements at the address; `self` shows that the processor has the instruction set.
        unsafe {
            let upper = _mm512_loadu_si512(UPPER_HALVES.as_ptr().cast());
            let (low, high) = (rounded(values.0), rounded(values.1));
            _mm512_storeu_si512(to.as_mut_ptr().cast(), _mm512_permutex2var_epi16(low, upper, high));
        }
    }
}

/// The indices of the upper halves of 32 f32, if all 64 halves are numbered.
static UPPER_HALVES: [u16; 32] = {
    let mut halves = [1; 32];
    let mut i = 1;
    while i < 32 {
        halves[i] = halves[i - 1] + 2;
        i += 1;
    }
    halves
};

#[inline]
#[target_feature(enable = "avx512f")]
fn if_above(values: __m512, bound: __m512, then: __m512, or: __m512) -> __m512 {
    _mm512_mask_blend_ps(_mm512_cmp_ps_mask::<_CMP_GT_OQ>(values, bound), or, then)
}

/// Rounds to the nearest bf16, in the upper halves. It adds half an ulp minus 1, and 1 more if the kept part is odd. The
/// sum carries into the kept part exactly if the nearest even number is above. AVX512-BF16 has one instruction for this,
/// but that instruction flushes subnormal numbers to zero.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn rounded(values: __m512) -> __m512i {
    let bits = _mm512_castps_si512(values);
    let odd = _mm512_and_si512(_mm512_srli_epi32::<16>(bits), _mm512_set1_epi32(1));
    let rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    let nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(values, values);
    _mm512_mask_or_epi32(rounded, nan, bits, _mm512_set1_epi32(0x0040_0000))
}
