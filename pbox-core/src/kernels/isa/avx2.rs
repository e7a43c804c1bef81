//! The kernels for AVX2 with F16C.
//!
//! On the list of `unsafe` code (`docs/unsafe.md`): loads, stores and conversions in an instruction set that was detected.

use std::arch::x86_64::*;

use half::{bf16, f16};

use super::{Convert, Work, pairs};
use crate::kernels::rule::Rule;
use crate::kernels::{Element, Slots, Step, body};

/// The rounding of a conversion: to the nearest, ties to even, whatever rounding mode the processor has.
const NEAREST: i32 = _MM_FROUND_TO_NEAREST_INT;

/// The proof that the processor has the instruction set. Only `work`, `sum` and `step` create it.
#[derive(Clone, Copy)]
struct Avx2(());

#[target_feature(enable = "avx2,f16c")]
pub(in crate::kernels) fn work<W: Work>(work: W) -> W::Output {
    work.run(Avx2(()))
}

#[target_feature(enable = "avx2,f16c")]
pub(in crate::kernels) fn sum<E: Element, R: Rule>(
    step: &Step,
    slots: &Slots<E>,
    window: &mut [E],
    master: &mut [f32],
    first: &mut [f32],
    second: &mut [f32],
    third: &mut [f32],
) {
    body::run::<E, E, R, _>(E::converter(Avx2(())), step, slots, window, [master, first, second, third]);
}

#[target_feature(enable = "avx2,f16c")]
pub(in crate::kernels) fn step<E: Element, R: Rule>(
    step: &Step,
    slots: &Slots,
    window: &mut [E],
    master: &mut [f32],
    first: &mut [f32],
    second: &mut [f32],
    third: &mut [f32],
) {
    body::run::<f32, E, R, _>(E::converter(Avx2(())), step, slots, window, [master, first, second, third]);
}

pairs!(
    Avx2,
    F32x16,
    __m256,
    16,
    _mm256_set1_ps,
    _mm256_add_ps,
    _mm256_sub_ps,
    _mm256_mul_ps,
    _mm256_div_ps,
    _mm256_sqrt_ps,
    if_above
);

impl Convert<f32> for Avx2 {
    #[inline(always)]
    fn widen_for_sum(self, elements: &[f32]) -> F32x16 {
        let from: &[f32; 16] = elements.try_into().expect("one element for each place of the vector");
        // SAFETY: there are 16 elements at the address; `self` shows that the processor has the instruction set.
        unsafe { F32x16(_mm256_loadu_ps(from.as_ptr()), _mm256_loadu_ps(from[8..].as_ptr())) }
    }

    #[inline(always)]
    fn narrow(self, values: F32x16, elements: &mut [f32]) {
        let to: &mut [f32; 16] = elements.try_into().expect("one element for each place of the vector");
        // SAFETY: there are 16 elements at the address; `self` shows that the processor has the instruction set.
        unsafe {
            _mm256_storeu_ps(to.as_mut_ptr(), values.0);
            _mm256_storeu_ps(to[8..].as_mut_ptr(), values.1);
        }
    }
}

impl Convert<f16> for Avx2 {
    #[inline(always)]
    fn widen_for_sum(self, elements: &[f16]) -> F32x16 {
        let from: &[f16; 16] = elements.try_into().expect("one element for each place of the vector");
        // SAFETY: there are 16 elements at the address; `self` shows that the processor has the instruction set.
        unsafe {
            F32x16(
                _mm256_cvtph_ps(_mm_loadu_si128(from.as_ptr().cast())),
                _mm256_cvtph_ps(_mm_loadu_si128(from[8..].as_ptr().cast())),
            )
        }
    }

    #[inline(always)]
    fn narrow(self, values: F32x16, elements: &mut [f16]) {
        let to: &mut [f16; 16] = elements.try_into().expect("one element for each place of the vector");
        // SAFETY: there are 16 elements at the address; `self` shows that the processor has the instruction set.
        unsafe {
            let (low, high) = (_mm256_cvtps_ph::<NEAREST>(values.0), _mm256_cvtps_ph::<NEAREST>(values.1));
            _mm_storeu_si128(to.as_mut_ptr().cast(), low);
            _mm_storeu_si128(to[8..].as_mut_ptr().cast(), high);
        }
    }
}

impl Convert<bf16> for Avx2 {
    /// Returns the even elements, then the odd elements. This takes one instruction for 8 elements; keeping the order
    /// of the elements would take two.
    #[inline(always)]
    fn widen_for_sum(self, elements: &[bf16]) -> F32x16 {
        let from: &[bf16; 16] = elements.try_into().expect("one element for each place of the vector");
        // SAFETY: there are 16 elements at the address; `self` shows that the processor has the instruction set.
        unsafe {
            let pairs = _mm256_loadu_si256(from.as_ptr().cast());
            let even = _mm256_slli_epi32::<16>(pairs);
            let odd = _mm256_and_si256(pairs, _mm256_set1_epi32(0xffff_0000_u32 as i32));
            F32x16(_mm256_castsi256_ps(even), _mm256_castsi256_ps(odd))
        }
    }

    #[inline(always)]
    fn in_order(self, F32x16(even, odd): F32x16) -> F32x16 {
        // SAFETY: `self` shows that the processor has the instruction set.
        unsafe {
            // By 128-bit halves, `first` has elements 0 to 3 and 8 to 11, and `second` has 4 to 7 and 12 to 15.
            let (first, second) = (_mm256_unpacklo_ps(even, odd), _mm256_unpackhi_ps(even, odd));
            F32x16(
                _mm256_permute2f128_ps::<0x20>(first, second),
                _mm256_permute2f128_ps::<0x31>(first, second),
            )
        }
    }

    #[inline(always)]
    fn narrow(self, values: F32x16, elements: &mut [bf16]) {
        let to: &mut [bf16; 16] = elements.try_into().expect("one element for each place of the vector");
        // SAFETY: there are 16 elements at the address; `self` shows that the processor has the instruction set.
        unsafe {
            let (low, high) = (rounded(values.0), rounded(values.1));
            // The pack works within 128-bit halves, so the quarters are in the order 0, 2, 1, 3.
            let packed = _mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_packus_epi32(low, high));
            _mm256_storeu_si256(to.as_mut_ptr().cast(), packed);
        }
    }
}

#[inline]
#[target_feature(enable = "avx2")]
fn if_above(values: __m256, bound: __m256, then: __m256, or: __m256) -> __m256 {
    _mm256_blendv_ps(or, then, _mm256_cmp_ps::<_CMP_GT_OQ>(values, bound))
}

/// Rounds to the nearest bf16, in the lower halves. It adds half an ulp minus 1, and 1 more if the kept part is odd. The
/// sum carries into the kept part exactly if the nearest even number is above.
#[inline]
#[target_feature(enable = "avx2")]
fn rounded(values: __m256) -> __m256i {
    let bits = _mm256_castps_si256(values);
    let odd = _mm256_and_si256(_mm256_srli_epi32::<16>(bits), _mm256_set1_epi32(1));
    let rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    let nan = _mm256_cmp_ps::<_CMP_UNORD_Q>(values, values);
    let quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x0040_0000));
    let kept = _mm256_blendv_epi8(rounded, quiet, _mm256_castps_si256(nan));
    _mm256_srli_epi32::<16>(kept)
}
