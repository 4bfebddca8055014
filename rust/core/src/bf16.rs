//! Matrices of bfloat16: floats whose significand has 8 bits.
//!
//! Two numbers side by side, a pair, are the bits of one f32, the first in the lower half. So matrices of pairs are
//! allocated, transposed and multiplied ([`crate::gemm::multiply_pairs`]) as those of f32 are. Numbers are rounded to the
//! nearest, ties to even; those below 1.2e-38 become zeros, as the processor's instructions have it.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::{
    __m512bh, __m512i, __mmask16, _mm512_cvtne2ps_pbh, _mm512_loadu_si512, _mm512_mask_storeu_epi32,
    _mm512_maskz_loadu_ps, _mm512_permutexvar_epi16,
};
#[cfg(target_arch = "x86_64")]
use std::mem::transmute;

#[cfg(target_arch = "x86_64")]
use crate::lanes::LANES;
#[cfg(target_arch = "x86_64")]
use crate::lanes::has_bf16;
use crate::matrix::{Aligned, stride, transpose};

/// Type of the numbers that hidden layers multiply; sums are f32.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Precision {
    #[default]
    Fp32,
    Bf16,
}

/// Rows of pairs that are transposed together.
const BAND: usize = 8;

/// The sum of a number and the products of the numbers of two pairs, of the second ones first.
#[inline(always)]
pub(crate) fn dot(left: f32, right: f32, sum: f32) -> f32 {
    let first = |pair: f32| f32::from_bits(pair.to_bits() << 16);
    let second = |pair: f32| f32::from_bits(pair.to_bits() & !0xffff);
    first(left).mul_add(first(right), second(left).mul_add(second(right), sum))
}

/// The bits of the bfloat16 next to a number.
#[inline(always)]
fn round(x: f32) -> u32 {
    let bits = x.to_bits();
    if x.is_nan() {
        bits >> 16 | 0x40
    } else if x.abs() < f32::MIN_POSITIVE {
        bits >> 16 & 0x8000
    } else {
        (bits + 0x7fff + (bits >> 16 & 1)) >> 16
    }
}

/// Two numbers, rounded.
#[inline(always)]
pub(crate) fn pair(first: f32, second: f32) -> f32 {
    f32::from_bits(round(first) | round(second) << 16)
}

/// Rounds a matrix [rows, columns] to pairs of columns, [rows, columns / 2]. A last one alone is paired with zero.
pub(crate) fn pair_columns(rows: usize, columns: usize, from: &[f32], from_row: usize, to: &mut [f32], to_row: usize) {
    for (from, to) in from.chunks(from_row).zip(to.chunks_mut(to_row)).take(rows) {
        let (from, to) = (&from[..columns], &mut to[..columns.div_ceil(2)]);
        #[cfg(target_arch = "x86_64")]
        if has_bf16() {
            // SAFETY: the processor has AVX-512 BF16.
            unsafe { pair_in_registers(from, None, to) };
            continue;
        }
        for (to, from) in to.iter_mut().zip(from.chunks(2)) {
            *to = pair(from[0], from.get(1).copied().unwrap_or(0.0));
        }
    }
}

/// Rounds a matrix [rows, columns] to pairs of rows, [rows / 2, columns]. A last one alone is paired with zeros.
pub(crate) fn pair_rows(rows: usize, columns: usize, from: &[f32], from_row: usize, to: &mut [f32], to_row: usize) {
    for (i, to) in (0..rows).step_by(2).zip(to.chunks_mut(to_row)) {
        let (first, to) = (&from[i * from_row..][..columns], &mut to[..columns]);
        let second = if i + 1 < rows { &from[(i + 1) * from_row..][..columns] } else { &[] };
        #[cfg(target_arch = "x86_64")]
        if has_bf16() {
            // SAFETY: the processor has AVX-512 BF16.
            unsafe { pair_in_registers(first, Some(second), to) };
            continue;
        }
        for (j, (to, &first)) in to.iter_mut().zip(first).enumerate() {
            *to = pair(first, second.get(j).copied().unwrap_or(0.0));
        }
    }
}

/// Rounds a matrix [rows, columns] to pairs of columns, and transposes these: [columns / 2, rows].
pub(crate) fn pair_transposed(
    rows: usize,
    columns: usize,
    from: &[f32],
    from_row: usize,
    to: &mut [f32],
    to_row: usize,
) {
    let (width, row) = (columns.div_ceil(2), stride(columns.div_ceil(2)));
    let mut band = Aligned::zeros(BAND * row);
    for first in (0..rows).step_by(BAND) {
        let count = BAND.min(rows - first);
        pair_columns(count, columns, &from[first * from_row..], from_row, &mut band, row);
        transpose(count, width, &band, row, &mut to[first..], to_row);
    }
}

/// Pairs the numbers of a row with those of another, of as many or none at all, or with `None` with those beside them.
///
/// # Safety
/// The processor has AVX-512 F, BW and BF16.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
unsafe fn pair_in_registers(from: &[f32], other: Option<&[f32]>, to: &mut [f32]) {
    /// Places of 16 numbers each from two registers in turn.
    const IN_TURN: [u16; 2 * LANES] = {
        let mut places = [0; 2 * LANES];
        let mut i = 0;
        while i < LANES {
            (places[2 * i], places[2 * i + 1]) = (i as u16, (i + LANES) as u16);
            i += 1;
        }
        places
    };
    // The first so many of 16.
    let mask = |count: usize| ((1_u32 << count.min(LANES)) - 1) as __mmask16;
    // SAFETY: masks are of what is left of a row; 32 numbers of 16 bits fill a register.
    unsafe {
        let load = |row: &[f32], start: usize| {
            let left = row.len().saturating_sub(start);
            _mm512_maskz_loadu_ps(mask(left), row.as_ptr().wrapping_add(start))
        };
        let in_turn = _mm512_loadu_si512(IN_TURN.as_ptr().cast());
        for start in (0..to.len()).step_by(LANES) {
            let pairs: __m512i = match other {
                None => transmute::<__m512bh, __m512i>(_mm512_cvtne2ps_pbh(
                    load(from, 2 * start + LANES),
                    load(from, 2 * start),
                )),
                Some(other) => {
                    let numbers =
                        transmute::<__m512bh, __m512i>(_mm512_cvtne2ps_pbh(load(other, start), load(from, start)));
                    _mm512_permutexvar_epi16(in_turn, numbers)
                }
            };
            let left = mask(to.len() - start);
            _mm512_mask_storeu_epi32(to.as_mut_ptr().add(start).cast(), left, pairs);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Numbers of all kinds: bits without a pattern.
    fn numbers(seed: u64, count: usize) -> Vec<f32> {
        let mut state = seed;
        (0..count)
            .map(|_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                f32::from_bits((state >> 32) as u32)
            })
            .collect()
    }

    fn bits(values: &[f32]) -> Vec<u32> {
        values.iter().map(|x| x.to_bits()).collect()
    }

    proptest! {
        #[test]
        fn the_nearest_is_chosen(bits: u32) {
            let (x, found) = (f32::from_bits(bits), f32::from_bits(round(f32::from_bits(bits)) << 16));
            if !x.is_normal() {
                prop_assert!(found == x || found.is_nan() && x.is_nan() || found == 0.0 && x.is_subnormal());
                prop_assert_eq!(found.is_sign_negative(), x.is_sign_negative());
                return Ok(());
            }
            // The two numbers around it; beyond the largest is the power of two that comes next.
            let value = |bits: u32| match f32::from_bits(bits) {
                x if x.is_infinite() => 2.0_f64.powi(128).copysign(f64::from(x)),
                x => f64::from(x),
            };
            let (below, above) = (bits & !0xffff, (bits & !0xffff) + 0x1_0000);
            let [down, up] = [below, above].map(|bits| (value(bits) - f64::from(x)).abs());
            let nearest = if down < up || (down == up && below >> 16 & 1 == 0) { below } else { above };
            prop_assert_eq!(found.to_bits(), nearest);
        }

        #[test]
        fn matrices_are_paired(rows in 1_usize..20, columns in 1_usize..70, seed: u64) {
            let from_row = columns + 1;
            let from = numbers(seed, rows * from_row);
            let at = |i: usize, j: usize| if i < rows && j < columns { from[i * from_row + j] } else { 0.0 };
            let (width, height) = (columns.div_ceil(2), rows.div_ceil(2));
            let (to_row, across_row) = (width + 2, columns + 3);
            let mut to = vec![7.0; rows * to_row];
            let mut transposed = vec![7.0; width * (rows + 2)];
            let mut across = vec![7.0; height * across_row];
            pair_columns(rows, columns, &from, from_row, &mut to, to_row);
            pair_transposed(rows, columns, &from, from_row, &mut transposed, rows + 2);
            pair_rows(rows, columns, &from, from_row, &mut across, across_row);
            for i in 0..rows {
                let expected: Vec<f32> = (0..width).map(|j| pair(at(i, 2 * j), at(i, 2 * j + 1))).collect();
                let column: Vec<f32> = (0..width).map(|j| transposed[j * (rows + 2) + i]).collect();
                prop_assert_eq!(bits(&to[i * to_row..][..width]), bits(&expected));
                prop_assert_eq!(bits(&column), bits(&expected));
                prop_assert_eq!(&to[i * to_row + width..][..2], &[7.0; 2]);
            }
            for i in 0..height {
                let expected: Vec<f32> = (0..columns).map(|j| pair(at(2 * i, j), at(2 * i + 1, j))).collect();
                prop_assert_eq!(bits(&across[i * across_row..][..columns]), bits(&expected));
                prop_assert_eq!(&across[i * across_row + columns..][..3], &[7.0; 3]);
            }
        }
    }
}
