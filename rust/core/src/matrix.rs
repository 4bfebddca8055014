//! Storage of matrices in f32, and their transposition.

#[cfg(target_arch = "x86_64")]
use crate::lanes::has_fma;
use crate::lanes::{LANES, Lanes, flat, flat_mut, spread};

/// Columns that are computed together at least. Rows of products are rounded up to a multiple.
pub(crate) const STEP: usize = 8;

/// Cache lines of rows that may lie side by side: as many of them as a product needs find places in the first cache.
const SHORT: usize = 4;

/// Floats, the first of which is aligned to a cache line.
#[derive(Clone, Default)]
pub(crate) struct Aligned {
    lanes: Vec<Lanes>,
    len: usize,
}

impl Aligned {
    pub(crate) fn zeros(len: usize) -> Self {
        Self { lanes: vec![Lanes([0.0; LANES]); len.div_ceil(LANES)], len }
    }
}

impl std::ops::Deref for Aligned {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        &flat(&self.lanes)[..self.len]
    }
}

impl std::ops::DerefMut for Aligned {
    fn deref_mut(&mut self) -> &mut [f32] {
        &mut flat_mut(&mut self.lanes)[..self.len]
    }
}

/// Number of columns of a product that are computed where `columns` are asked for.
pub(crate) fn padded(columns: usize) -> usize {
    columns.next_multiple_of(STEP)
}

/// Distance between rows of so many columns: whole cache lines, more than [`SHORT`] of them an odd number, see [`spread`].
pub(crate) fn stride(columns: usize) -> usize {
    let lanes = columns.div_ceil(LANES);
    match columns {
        0..=STEP => STEP,
        _ if lanes <= SHORT => lanes * LANES,
        _ => spread(lanes) * LANES,
    }
}

/// Writes the transpose of `from` [rows, columns] into `to` [columns, rows].
pub(crate) fn transpose(rows: usize, columns: usize, from: &[f32], from_row: usize, to: &mut [f32], to_row: usize) {
    if rows == 0 || columns == 0 {
        return;
    }
    assert!(from_row >= columns && from.len() >= (rows - 1) * from_row + columns, "the matrix is too small");
    assert!(to_row >= rows && to.len() >= (columns - 1) * to_row + rows, "the transpose does not fit");
    let (whole_rows, whole_columns) = (rows - rows % STEP, columns - columns % STEP);
    // In squares, whose lines stay in the cache.
    for i0 in (0..whole_rows).step_by(STEP) {
        for j0 in (0..whole_columns).step_by(STEP) {
            // SAFETY: the square and its transpose are within the matrices.
            unsafe {
                transpose_square(&raw const from[i0 * from_row + j0], from_row, &raw mut to[j0 * to_row + i0], to_row)
            };
        }
    }
    for i in 0..rows {
        for j in if i < whole_rows { whole_columns } else { 0 }..columns {
            to[j * to_row + i] = from[i * from_row + j];
        }
    }
}

/// Transposes a square of [`STEP`] rows.
///
/// # Safety
/// From the pointers on there are so many rows at these distances, of so many floats, which do not overlap.
#[inline(always)]
unsafe fn transpose_square(from: *const f32, from_row: usize, to: *mut f32, to_row: usize) {
    #[cfg(target_arch = "x86_64")]
    if has_fma() {
        // SAFETY: this processor has AVX2; the rest is the caller's promise.
        return unsafe { transpose_registers(from, from_row, to, to_row) };
    }
    for i in 0..STEP {
        for j in 0..STEP {
            // SAFETY: the caller's promise.
            unsafe { *to.add(j * to_row + i) = *from.add(i * from_row + j) };
        }
    }
}

/// # Safety
/// The requirements of [`transpose_square`], and the processor has AVX2.
#[cfg(target_arch = "x86_64")]
#[expect(clippy::needless_range_loop, reason = "registers have numbers")]
#[target_feature(enable = "avx2")]
unsafe fn transpose_registers(from: *const f32, from_row: usize, to: *mut f32, to_row: usize) {
    use std::arch::x86_64::{
        _mm256_loadu_ps, _mm256_permute2f128_ps, _mm256_setzero_ps, _mm256_shuffle_ps, _mm256_storeu_ps,
        _mm256_unpackhi_ps, _mm256_unpacklo_ps,
    };
    let [mut rows, mut pairs, mut fours] = [[_mm256_setzero_ps(); STEP]; 3];
    for i in 0..STEP {
        // SAFETY: the caller's promise.
        rows[i] = unsafe { _mm256_loadu_ps(from.add(i * from_row)) };
    }
    // Pairs of rows, then fours, then halves.
    for i in (0..STEP).step_by(2) {
        pairs[i] = _mm256_unpacklo_ps(rows[i], rows[i + 1]);
        pairs[i + 1] = _mm256_unpackhi_ps(rows[i], rows[i + 1]);
    }
    for i in [0, 4] {
        for k in 0..2 {
            fours[i + 2 * k] = _mm256_shuffle_ps::<0x44>(pairs[i + k], pairs[i + k + 2]);
            fours[i + 2 * k + 1] = _mm256_shuffle_ps::<0xee>(pairs[i + k], pairs[i + k + 2]);
        }
    }
    for i in 0..STEP / 2 {
        let low = _mm256_permute2f128_ps::<0x20>(fours[i], fours[i + 4]);
        let high = _mm256_permute2f128_ps::<0x31>(fours[i], fours[i + 4]);
        // SAFETY: the caller's promise.
        unsafe {
            _mm256_storeu_ps(to.add(i * to_row), low);
            _mm256_storeu_ps(to.add((i + STEP / 2) * to_row), high);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn transposes(rows in 0_usize..40, columns in 0_usize..40) {
            let from: Vec<f32> = (0..rows * columns).map(|i| i as f32).collect();
            let mut to = vec![0.0; columns * (rows + 3)];
            transpose(rows, columns, &from, columns, &mut to, rows + 3);
            for i in 0..rows {
                for j in 0..columns {
                    prop_assert_eq!(to[j * (rows + 3) + i], from[i * columns + j]);
                }
            }
        }
    }

    #[test]
    fn strides_of_long_rows_are_odd_numbers_of_cache_lines() {
        for columns in 9..600 {
            let lines = stride(columns) / LANES;
            assert!(stride(columns) >= padded(columns) && stride(columns).is_multiple_of(LANES));
            assert!(if lines <= SHORT { lines == columns.div_ceil(LANES) } else { lines % 2 == 1 });
        }
        assert_eq!((stride(1), padded(1)), (STEP, STEP));
    }
}
