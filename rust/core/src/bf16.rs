//! Matrices of bfloat16: floats whose significand has 8 bits.
//!
//! Two numbers side by side, a pair, are the bits of one f32, the first in the lower half. So matrices of pairs are
//! allocated, transposed and multiplied ([`crate::gemm::multiply_pairs`]) as those of f32 are. Numbers are rounded to the
//! nearest, ties to even; those below 1.2e-38 become zeros, as the processor's instructions have it.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::{
    __m512i, __mmask16, _mm512_cvtne2ps_pbh, _mm512_loadu_si512, _mm512_mask_storeu_epi32, _mm512_maskz_loadu_ps,
    _mm512_permutexvar_epi16,
};
#[cfg(target_arch = "x86_64")]
use std::mem::transmute;

use crate::gemm::{Aligned, stride, transpose};
#[cfg(target_arch = "x86_64")]
use crate::lanes::LANES;
#[cfg(target_arch = "x86_64")]
use crate::lanes::has_bf16;

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

#[inline(always)]
fn pair(first: f32, second: f32) -> f32 {
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
                None => transmute(_mm512_cvtne2ps_pbh(load(from, 2 * start + LANES), load(from, 2 * start))),
                Some(other) => {
                    let numbers = transmute(_mm512_cvtne2ps_pbh(load(other, start), load(from, start)));
                    _mm512_permutexvar_epi16(in_turn, numbers)
                }
            };
            let left = mask(to.len() - start);
            _mm512_mask_storeu_epi32(to.as_mut_ptr().add(start).cast(), left, pairs);
        }
    }
}

#[cfg(test)]
mod bench {
    use super::*;
    use crate::gemm::*;
    fn cpu() -> f64 {
        let s = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
        s.split(' ').next().unwrap().parse::<f64>().unwrap() * 1e-9
    }
    #[test]
    #[ignore]
    fn speed() {
        for (m, n, k) in [(128, 256, 256), (256, 256, 256), (72, 256, 128), (128, 256, 23), (128, 64, 64), (100,64,64)] {
            let row = stride(n);
            let krow = stride(k);
            let mut a = Aligned::zeros(m * krow + k * stride(m));
            a.iter_mut().enumerate().for_each(|(i, x)| *x = (i as f32 * 0.37).sin());
            let mut b = Aligned::zeros(k * row);
            b.iter_mut().enumerate().for_each(|(i, x)| *x = (i as f32 * 0.31).sin());
            let mut c = Aligned::zeros(m * row);
            let (ka, kb) = (k.div_ceil(2), k.div_ceil(2));
            let karow = stride(ka);
            let mut pa = Aligned::zeros(m * karow);
            let mut pb = Aligned::zeros(kb * row);
            let mut pt = Aligned::zeros(n.div_ceil(2) * krow);
            let reps = 2_000_000_000 / (m * n * k);
            let flop = (2 * m * n * k * reps) as f64;
            let mut best = [1e9_f64; 6];
            for _ in 0..5 {
                let mut time = |i: usize, f: &mut dyn FnMut()| {
                    let t = cpu();
                    for _ in 0..reps { f() }
                    best[i] = best[i].min(cpu() - t);
                };
                time(0, &mut || multiply(m, n, k, Left { values: &a, row: krow, column: 1 }, &b, row, &mut c, row, Start::Zero));
                time(1, &mut || pair_columns(m, k, &a, krow, &mut pa, karow));
                time(2, &mut || pair_rows(k, n, &b, row, &mut pb, row));
                time(3, &mut || multiply_pairs(m, n, ka, Left { values: &pa, row: karow, column: 1 }, &pb, row, &mut c, row, Start::Zero));
                time(4, &mut || pair_transposed(k, n, &b, row, &mut pt, krow));
            }
            let us = best.map(|t| t / reps as f64 * 1e6);
            println!("{m}x{n}x{k}: fp32 {:.1} us {:.0} GFLOP/s; bf16 {:.1} us {:.0} GFLOP/s; pair columns of a {:.2} us, rows of b {:.2} us, transposed b {:.2}",
              us[0], flop / best[0] * 1e-9, us[3], flop / best[3] * 1e-9, us[1], us[2], us[4]);
        }
    }
}
