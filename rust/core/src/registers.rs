//! Operations on registers that need more than one instruction, or other types of registers.

use std::arch::x86_64::{
    __m256, __m256bh, __m512, __m512bh, _CMP_GT_OQ, _mm256_and_ps, _mm256_castps_si256, _mm256_castsi256_ps,
    _mm256_cmp_ps, _mm256_dpbf16_ps, _mm256_fmadd_ps, _mm256_set1_epi32, _mm256_setzero_ps, _mm256_slli_epi32,
    _mm512_cmp_ps_mask, _mm512_dpbf16_ps, _mm512_maskz_mov_ps, _mm512_setzero_ps,
};
use std::mem::transmute;

/// Numbers, and zeros where others are not above 0.
///
/// # Safety
/// The processor has AVX2.
#[inline]
#[target_feature(enable = "avx2")]
pub(crate) fn keep_in_avx2(others: __m256, numbers: __m256) -> __m256 {
    _mm256_and_ps(_mm256_cmp_ps::<_CMP_GT_OQ>(others, _mm256_setzero_ps()), numbers)
}

/// [`keep_in_avx2`] of twice as many.
///
/// # Safety
/// The processor has AVX-512F.
#[inline]
#[target_feature(enable = "avx512f")]
pub(crate) fn keep_in_avx512(others: __m512, numbers: __m512) -> __m512 {
    _mm512_maskz_mov_ps(_mm512_cmp_ps_mask::<_CMP_GT_OQ>(others, _mm512_setzero_ps()), numbers)
}

/// [`crate::bf16::dot`] of pairs side by side.
///
/// # Safety
/// The processor has AVX2 and FMA.
#[inline]
#[target_feature(enable = "avx2,fma")]
pub(crate) fn dot_in_avx2(left: __m256, right: __m256, sum: __m256) -> __m256 {
    let second = _mm256_castsi256_ps(_mm256_set1_epi32(!0xffff));
    let of_second = _mm256_fmadd_ps(_mm256_and_ps(left, second), _mm256_and_ps(right, second), sum);
    let left = _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_castps_si256(left)));
    let right = _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_castps_si256(right)));
    _mm256_fmadd_ps(left, right, of_second)
}

/// [`dot_in_avx2`] in one instruction.
///
/// # Safety
/// The processor has AVX-512 F, VL and BF16.
#[inline]
#[target_feature(enable = "avx512f,avx512vl,avx512bf16")]
pub(crate) fn dot_in_avx512vl(left: __m256, right: __m256, sum: __m256) -> __m256 {
    // SAFETY: 256 bits are 16 of bfloat16.
    let (left, right) = unsafe { (transmute::<__m256, __m256bh>(left), transmute::<__m256, __m256bh>(right)) };
    _mm256_dpbf16_ps(sum, left, right)
}

/// [`dot_in_avx512vl`] of twice as many.
///
/// # Safety
/// The processor has AVX-512 F and BF16.
#[inline]
#[target_feature(enable = "avx512f,avx512bf16")]
pub(crate) fn dot_in_avx512(left: __m512, right: __m512, sum: __m512) -> __m512 {
    // SAFETY: 512 bits are 32 of bfloat16.
    // Each by itself: `map` has not the instructions, so that nothing of it would be inlined.
    let (left, right) = unsafe { (transmute::<__m512, __m512bh>(left), transmute::<__m512, __m512bh>(right)) };
    _mm512_dpbf16_ps(sum, left, right)
}
