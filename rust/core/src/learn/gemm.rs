//! Products of matrices in f32. Each element of a product adds up its terms in their order with fused multiplications, so
//! it is the same to the last bit on every processor, whatever the size of its registers.

#[cfg(target_arch = "x86_64")]
use crate::dense::has_fma;
use crate::dense::{LANES, Lanes};

/// Columns that are computed together at least. Rows of products are rounded up to a multiple.
const STEP: usize = 8;

/// Terms that are added up before the next columns are: so many rows of two registers fit into the first cache.
const DEPTH: usize = 256;

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
        // SAFETY: lanes are arrays of `LANES` floats side by side, and `len` fits into them.
        unsafe { std::slice::from_raw_parts(self.lanes.as_ptr().cast(), self.len) }
    }
}

impl std::ops::DerefMut for Aligned {
    fn deref_mut(&mut self) -> &mut [f32] {
        // SAFETY: as of `deref`.
        unsafe { std::slice::from_raw_parts_mut(self.lanes.as_mut_ptr().cast(), self.len) }
    }
}

/// Number of columns of a product that are computed where `columns` are asked for.
pub(crate) fn padded(columns: usize) -> usize {
    columns.next_multiple_of(STEP)
}

/// Distance between rows of so many columns: an odd number of cache lines, as rows at a power of two of them would take
/// each other's places in the cache.
pub(crate) fn stride(columns: usize) -> usize {
    if columns <= STEP { STEP } else { (columns.div_ceil(LANES) | 1) * LANES }
}

/// The left matrix of a product: element (i, k) is at `i * row + k * column`.
#[derive(Clone, Copy)]
pub(crate) struct Left<'a> {
    pub(crate) values: &'a [f32],
    pub(crate) row: usize,
    pub(crate) column: usize,
}

/// The first term of the sums.
#[derive(Clone, Copy)]
pub(crate) enum Start<'a> {
    Zero,
    /// One for each column.
    Bias(&'a [f32]),
    /// The elements that are there.
    Present,
}

/// `c[i][j] = start + sum over k of a[i][k] * b[k][j]` for `m` rows i, [`padded`] `n` columns j and `depth` terms k.
///
/// `b` and `c` have their rows `b_row` and `c_row` apart.
#[expect(clippy::too_many_arguments, reason = "three matrices")]
pub(crate) fn multiply(
    m: usize,
    n: usize,
    depth: usize,
    a: Left<'_>,
    b: &[f32],
    b_row: usize,
    c: &mut [f32],
    c_row: usize,
    start: Start<'_>,
) {
    let n = padded(n);
    if m == 0 || n == 0 {
        return;
    }
    assert!(c_row >= n && c.len() >= (m - 1) * c_row + n, "the product does not fit");
    assert!(depth == 0 || a.values.len() > (m - 1) * a.row + (depth - 1) * a.column, "the left matrix is too small");
    assert!(depth == 0 || b.len() >= (depth - 1) * b_row + n, "the right matrix is too small");
    if let Start::Bias(bias) = start {
        assert!(bias.len() >= n, "too few biases");
    }
    let mut from = 0;
    loop {
        let terms = DEPTH.min(depth - from);
        let start = if from == 0 { start } else { Start::Present };
        let mut j = 0;
        while j < n {
            let two = n - j >= 2 * STEP;
            let mut i = 0;
            while i < m {
                // SAFETY: `i < m`, `j < n` and `from < depth`, or there are no terms, and the matrices have these
                // elements.
                let tile = unsafe {
                    Tile {
                        terms,
                        a: a.values.as_ptr().add(if terms == 0 { 0 } else { i * a.row + from * a.column }),
                        row: a.row,
                        column: a.column,
                        b: b.as_ptr().add(if terms == 0 { 0 } else { from * b_row + j }),
                        b_row,
                        c: c.as_mut_ptr().add(i * c_row + j),
                        c_row,
                        start: match start {
                            Start::Zero => First::Zero,
                            Start::Bias(bias) => First::Bias(bias.as_ptr().add(j)),
                            Start::Present => First::Present,
                        },
                    }
                };
                let rows = m - i;
                // SAFETY: from (i, j) on there are as many rows and columns as each of these computes.
                i += unsafe {
                    match (two, rows) {
                        (true, 6..) => tile.compute::<6, 2>(),
                        (true, 5) => tile.compute::<5, 2>(),
                        (true, 4) => tile.compute::<4, 2>(),
                        (true, 3) => tile.compute::<3, 2>(),
                        (true, 2) => tile.compute::<2, 2>(),
                        (true, _) => tile.compute::<1, 2>(),
                        (false, 8..) => tile.compute::<8, 1>(),
                        (false, 4..) => tile.compute::<4, 1>(),
                        (false, 2..) => tile.compute::<2, 1>(),
                        (false, _) => tile.compute::<1, 1>(),
                    }
                };
            }
            j += if two { 2 * STEP } else { STEP };
        }
        from += terms;
        if from == depth {
            return;
        }
    }
}

#[derive(Clone, Copy)]
enum First {
    Zero,
    Bias(*const f32),
    Present,
}

/// Some rows and columns of a product, and pointers to the first elements that they need.
struct Tile {
    terms: usize,
    a: *const f32,
    row: usize,
    column: usize,
    b: *const f32,
    b_row: usize,
    c: *mut f32,
    c_row: usize,
    start: First,
}

impl Tile {
    /// Computes `M` rows of `N` times `STEP` columns; returns the number of rows.
    ///
    /// # Safety
    /// The matrices have these elements.
    #[inline(always)]
    unsafe fn compute<const M: usize, const N: usize>(&self) -> usize {
        #[cfg(target_arch = "x86_64")]
        if has_fma() {
            // SAFETY: this processor has AVX2 and FMA; the rest is the caller's promise.
            unsafe { self.in_registers::<M, N>() };
            return M;
        }
        // SAFETY: the caller's promise.
        unsafe { self.plain::<M, N>() };
        M
    }

    /// # Safety
    /// The processor has AVX2 and FMA, the matrices these elements.
    #[cfg(target_arch = "x86_64")]
    #[expect(clippy::needless_range_loop, reason = "registers have numbers")]
    #[target_feature(enable = "avx2,fma")]
    unsafe fn in_registers<const M: usize, const N: usize>(&self) {
        use std::arch::x86_64::{
            _mm256_broadcast_ss, _mm256_fmadd_ps, _mm256_loadu_ps, _mm256_setzero_ps, _mm256_storeu_ps,
        };
        let mut sums = [[_mm256_setzero_ps(); N]; M];
        for i in 0..M {
            for j in 0..N {
                // SAFETY: the caller's promise.
                sums[i][j] = unsafe {
                    match self.start {
                        First::Zero => _mm256_setzero_ps(),
                        First::Bias(bias) => _mm256_loadu_ps(bias.add(j * STEP)),
                        First::Present => _mm256_loadu_ps(self.c.add(i * self.c_row + j * STEP)),
                    }
                };
            }
        }
        for k in 0..self.terms {
            let mut right = [_mm256_setzero_ps(); N];
            for j in 0..N {
                // SAFETY: the caller's promise.
                right[j] = unsafe { _mm256_loadu_ps(self.b.add(k * self.b_row + j * STEP)) };
            }
            for i in 0..M {
                // SAFETY: the caller's promise.
                let left = unsafe { _mm256_broadcast_ss(&*self.a.add(i * self.row + k * self.column)) };
                for j in 0..N {
                    sums[i][j] = _mm256_fmadd_ps(left, right[j], sums[i][j]);
                }
            }
        }
        for i in 0..M {
            for j in 0..N {
                // SAFETY: the caller's promise.
                unsafe { _mm256_storeu_ps(self.c.add(i * self.c_row + j * STEP), sums[i][j]) };
            }
        }
    }

    /// # Safety
    /// The matrices have these elements.
    #[expect(clippy::needless_range_loop, reason = "as above")]
    unsafe fn plain<const M: usize, const N: usize>(&self) {
        let mut sums = [[[0.0_f32; STEP]; N]; M];
        for i in 0..M {
            for j in 0..N {
                for lane in 0..STEP {
                    // SAFETY: the caller's promise.
                    sums[i][j][lane] = unsafe {
                        match self.start {
                            First::Zero => 0.0,
                            First::Bias(bias) => *bias.add(j * STEP + lane),
                            First::Present => *self.c.add(i * self.c_row + j * STEP + lane),
                        }
                    };
                }
            }
        }
        for k in 0..self.terms {
            for i in 0..M {
                // SAFETY: the caller's promise.
                let left = unsafe { *self.a.add(i * self.row + k * self.column) };
                for j in 0..N {
                    for lane in 0..STEP {
                        // SAFETY: the caller's promise.
                        let right = unsafe { *self.b.add(k * self.b_row + j * STEP + lane) };
                        sums[i][j][lane] = left.mul_add(right, sums[i][j][lane]);
                    }
                }
            }
        }
        for i in 0..M {
            for j in 0..N {
                for lane in 0..STEP {
                    // SAFETY: the caller's promise.
                    unsafe { *self.c.add(i * self.c_row + j * STEP + lane) = sums[i][j][lane] };
                }
            }
        }
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
/// As of [`transpose_square`], and the processor has AVX2.
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

    /// Numbers without a pattern, within -1 and 1.
    fn numbers(seed: u64, count: usize) -> Vec<f32> {
        let mut state = seed;
        (0..count)
            .map(|_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (state >> 40) as f32 / (1_u64 << 23) as f32 - 1.0
            })
            .collect()
    }

    proptest! {
        #[test]
        fn products_are_fused_sums_in_order(
            m in 0_usize..30, n in 0_usize..40, depth in 0_usize..600, transposed: bool, start in 0..3, seed: u64,
        ) {
            let a = numbers(seed, m * depth);
            let (row, column) = if transposed { (1, m) } else { (depth, 1) };
            let (b_row, c_row) = (stride(n), stride(n) + STEP);
            let b = numbers(seed + 1, depth * b_row);
            let bias = numbers(seed + 2, b_row);
            let before = numbers(seed + 3, m * c_row);
            let mut c = before.clone();
            let first = [Start::Zero, Start::Bias(&bias), Start::Present][start as usize];
            multiply(m, n, depth, Left { values: &a, row, column }, &b, b_row, &mut c, c_row, first);
            for i in 0..m {
                for j in 0..c_row {
                    let mut sum = [0.0, bias.get(j).copied().unwrap_or(0.0), before[i * c_row + j]][start as usize];
                    for k in 0..depth {
                        sum = if j < n { a[i * row + k * column].mul_add(b[k * b_row + j], sum) } else { sum };
                    }
                    if j < n {
                        prop_assert_eq!(c[i * c_row + j].to_bits(), sum.to_bits());
                    } else if j >= padded(n) {
                        prop_assert_eq!(c[i * c_row + j], before[i * c_row + j]);
                    }
                }
            }
        }

        #[test]
        fn tiles_without_wide_registers_are_the_same(terms in 0_usize..20, seed: u64) {
            let (a, b) = (numbers(seed, 6 * 20), numbers(seed + 1, 20 * 16));
            let [mut wide, mut plain] = [numbers(seed + 2, 6 * 16), numbers(seed + 2, 6 * 16)];
            let tile = |c: &mut Vec<f32>| Tile {
                terms, a: a.as_ptr(), row: 20, column: 1, b: b.as_ptr(), b_row: 16, c: c.as_mut_ptr(), c_row: 16,
                start: First::Present,
            };
            // SAFETY: 6 rows of 16 columns and 20 terms are there.
            unsafe {
                tile(&mut wide).compute::<6, 2>();
                tile(&mut plain).plain::<6, 2>();
            }
            prop_assert_eq!(wide, plain);
        }

        #[test]
        fn transposes(rows in 0_usize..40, columns in 0_usize..40, seed: u64) {
            let from = numbers(seed, rows * columns);
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
    fn strides_are_odd_numbers_of_cache_lines() {
        for columns in 9..600 {
            assert!(stride(columns) >= padded(columns) && (stride(columns) / LANES) % 2 == 1);
        }
        assert_eq!((stride(1), padded(1)), (STEP, STEP));
    }
}
