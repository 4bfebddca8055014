//! Products of matrices in f32, or in pairs of bfloat16 ([`crate::bf16`]) with sums in f32. Each element of a product adds
//! up its terms in their order with fused multiplications, so it is the same to the last bit on every processor, whatever
//! the size of its registers.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::{_mm256_fmadd_ps, _mm512_fmadd_ps};

use crate::bf16;
#[cfg(target_arch = "x86_64")]
use crate::lanes::{has_avx512, has_bf16, has_fma};
use crate::matrix::{STEP, padded};
#[cfg(target_arch = "x86_64")]
use crate::registers::{dot_in_avx2, dot_in_avx512, dot_in_avx512vl, keep_in_avx2, keep_in_avx512};

/// Terms that are added up before the next columns are: so many rows of two registers fit into the first cache.
const DEPTH: usize = 256;

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

/// Done to complete sums, while they are in registers.
#[derive(Clone, Copy)]
pub(crate) enum Finish<'a> {
    Nothing,
    /// Sums below 0 become 0. NaN stays NaN.
    Relu,
    /// Sums become 0 where elements of a matrix are not above 0, which has its rows as far apart as the product.
    Where(&'a [f32]),
}

/// `c[i][j] = start + sum over k of a[i][k] * b[k][j]` for `m` rows i, [`padded`] `n` columns j and `depth` terms k, and
/// then what finishes it.
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
    finish: Finish<'_>,
) {
    product(Registers::widest(), m, n, depth, a, b, b_row, c, c_row, start, finish);
}

/// [`multiply`] of matrices whose elements are pairs of terms: for each element of `a` and `b` the product of the second
/// numbers is added, then that of the first.
#[expect(clippy::too_many_arguments, reason = "three matrices")]
pub(crate) fn multiply_pairs(
    m: usize,
    n: usize,
    depth: usize,
    a: Left<'_>,
    b: &[f32],
    b_row: usize,
    c: &mut [f32],
    c_row: usize,
    start: Start<'_>,
    finish: Finish<'_>,
) {
    product(Registers::widest_of_pairs(), m, n, depth, a, b, b_row, c, c_row, start, finish);
}

#[expect(clippy::too_many_arguments, reason = "three matrices")]
fn product(
    registers: Registers,
    m: usize,
    n: usize,
    depth: usize,
    a: Left<'_>,
    b: &[f32],
    b_row: usize,
    c: &mut [f32],
    c_row: usize,
    start: Start<'_>,
    finish: Finish<'_>,
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
    if let Finish::Where(of) = finish {
        assert!(of.len() >= (m - 1) * c_row + n, "the matrix that decides is too small");
    }
    let mut from = 0;
    loop {
        let terms = DEPTH.min(depth - from);
        let start = if from == 0 { start } else { Start::Present };
        let finish = if from + terms == depth { finish } else { Finish::Nothing };
        let mut j = 0;
        while j < n {
            let columns = registers.columns(n - j);
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
                        finish: match finish {
                            Finish::Nothing => Last::Nothing,
                            Finish::Relu => Last::Relu,
                            Finish::Where(of) => Last::Where(of.as_ptr().add(i * c_row + j)),
                        },
                    }
                };
                // SAFETY: from (i, j) on there are so many rows and columns, and the processor has these registers.
                i += unsafe { tile.compute(registers, m - i, columns) };
            }
            j += columns;
        }
        from += terms;
        if from == depth {
            return;
        }
    }
}

/// The registers that sums are in.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Registers {
    Plain,
    /// AVX2 and FMA: 8 floats.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// AVX-512F: 16 floats.
    #[cfg(target_arch = "x86_64")]
    Avx512,
    /// The same for pairs of bfloat16.
    PlainPairs,
    #[cfg(target_arch = "x86_64")]
    Avx2Pairs,
    /// AVX-512 BF16: it takes sums below 1.2e-38 for zeros.
    #[cfg(target_arch = "x86_64")]
    Avx512Pairs,
}

impl Registers {
    fn widest() -> Self {
        #[cfg(target_arch = "x86_64")]
        {
            if has_avx512() {
                return Self::Avx512;
            }
            if has_fma() {
                return Self::Avx2;
            }
        }
        Self::Plain
    }

    fn widest_of_pairs() -> Self {
        #[cfg(target_arch = "x86_64")]
        {
            if has_bf16() {
                return Self::Avx512Pairs;
            }
            if has_fma() {
                return Self::Avx2Pairs;
            }
        }
        Self::PlainPairs
    }

    /// Columns of a tile where so many are left.
    fn columns(self, left: usize) -> usize {
        #[cfg(target_arch = "x86_64")]
        if matches!(self, Self::Avx512 | Self::Avx512Pairs) && left >= 4 * STEP {
            return 4 * STEP;
        }
        if left >= 2 * STEP { 2 * STEP } else { STEP }
    }
}

#[derive(Clone, Copy)]
enum First {
    Zero,
    Bias(*const f32),
    Present,
}

#[derive(Clone, Copy)]
enum Last {
    Nothing,
    Relu,
    Where(*const f32),
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
    finish: Last,
}

/// Computes tiles of as many rows as one of these numbers that there are; returns how many rows.
macro_rules! tallest {
    ($tile:ident.$compute:ident::<_, $n:literal>, $rows:expr, $($m:literal)+) => {
        match $rows {
            $($m.. => {
                // SAFETY: there are so many rows; the rest is the caller's promise.
                unsafe { $tile.$compute::<$m, $n>($rows / $m) };
                $rows / $m * $m
            })+
            0 => 0,
        }
    };
}

/// Defines the product of tiles of `M` rows and `N` registers, one below the other.
macro_rules! tile_in_registers {
    (
        $(#[$safety:meta])*
        fn $name:ident, $features:literal, $width:literal,
        $zero:ident, $load:ident, $store:ident, $broadcast:ident, $max:ident, $multiply_add:ident, $keep:ident
    ) => {
        $(#[$safety])*
        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = $features)]
        unsafe fn $name<const M: usize, const N: usize>(&self, count: usize) {
            use std::arch::x86_64::{$broadcast, $load, $max, $store, $zero};
            for tile in 0..count {
                let tile = self.below(tile * M);
                let mut sums = [[$zero(); N]; M];
                for i in 0..M {
                    for j in 0..N {
                        // SAFETY: the caller's promise.
                        sums[i][j] = unsafe {
                            match tile.start {
                                First::Zero => $zero(),
                                First::Bias(bias) => $load(bias.add(j * $width)),
                                First::Present => $load(tile.c.add(i * tile.c_row + j * $width)),
                            }
                        };
                    }
                }
                for k in 0..tile.terms {
                    let mut right = [$zero(); N];
                    for j in 0..N {
                        // SAFETY: the caller's promise.
                        right[j] = unsafe { $load(tile.b.add(k * tile.b_row + j * $width)) };
                    }
                    for i in 0..M {
                        // SAFETY: the caller's promise.
                        let left = $broadcast(unsafe { *tile.a.add(i * tile.row + k * tile.column) });
                        for j in 0..N {
                            sums[i][j] = $multiply_add(left, right[j], sums[i][j]);
                        }
                    }
                }
                match tile.finish {
                    Last::Nothing => {}
                    // Of NaN and a number it is the second operand.
                    Last::Relu => {
                        for i in 0..M {
                            for j in 0..N {
                                sums[i][j] = $max($zero(), sums[i][j]);
                            }
                        }
                    }
                    Last::Where(of) => {
                        for i in 0..M {
                            for j in 0..N {
                                // SAFETY: the caller's promise.
                                sums[i][j] = $keep(unsafe { $load(of.add(i * tile.c_row + j * $width)) }, sums[i][j]);
                            }
                        }
                    }
                }
                for i in 0..M {
                    for j in 0..N {
                        // SAFETY: the caller's promise.
                        unsafe { $store(tile.c.add(i * tile.c_row + j * $width), sums[i][j]) };
                    }
                }
            }
        }
    };
}

impl Tile {
    /// Computes some of `rows` rows of so many columns: [`Registers::columns`]. Returns how many rows.
    ///
    /// # Safety
    /// The matrices have these elements, and the processor the registers.
    #[inline(always)]
    unsafe fn compute(&self, registers: Registers, rows: usize, columns: usize) -> usize {
        match registers {
            #[cfg(target_arch = "x86_64")]
            Registers::Avx512 => match columns / STEP {
                4 => tallest!(self.in_avx512::<_, 2>, rows, 12 8 4 2 1),
                2 => tallest!(self.in_avx512::<_, 1>, rows, 16 8 4 2 1),
                _ => tallest!(self.in_avx2::<_, 1>, rows, 8 4 2 1),
            },
            #[cfg(target_arch = "x86_64")]
            Registers::Avx2 => match columns / STEP {
                2 => tallest!(self.in_avx2::<_, 2>, rows, 6 5 4 3 2 1),
                _ => tallest!(self.in_avx2::<_, 1>, rows, 8 4 2 1),
            },
            Registers::Plain => match columns / STEP {
                2 => tallest!(self.plain::<_, 2>, rows, 4 1),
                _ => tallest!(self.plain::<_, 1>, rows, 4 1),
            },
            #[cfg(target_arch = "x86_64")]
            Registers::Avx512Pairs => match columns / STEP {
                4 => tallest!(self.pairs_in_avx512::<_, 2>, rows, 12 8 4 2 1),
                2 => tallest!(self.pairs_in_avx512::<_, 1>, rows, 16 8 4 2 1),
                _ => tallest!(self.pairs_in_avx512vl::<_, 1>, rows, 8 4 2 1),
            },
            #[cfg(target_arch = "x86_64")]
            Registers::Avx2Pairs => match columns / STEP {
                2 => tallest!(self.pairs_in_avx2::<_, 2>, rows, 4 2 1),
                _ => tallest!(self.pairs_in_avx2::<_, 1>, rows, 4 2 1),
            },
            Registers::PlainPairs => match columns / STEP {
                2 => tallest!(self.plain_pairs::<_, 2>, rows, 4 1),
                _ => tallest!(self.plain_pairs::<_, 1>, rows, 4 1),
            },
        }
    }

    /// The tile so many rows below.
    #[inline(always)]
    fn below(&self, rows: usize) -> Self {
        let finish = match self.finish {
            Last::Where(of) => Last::Where(of.wrapping_add(rows * self.c_row)),
            other => other,
        };
        let (a, c) = (self.a.wrapping_add(rows * self.row), self.c.wrapping_add(rows * self.c_row));
        Self { a, c, finish, ..*self }
    }

    tile_in_registers! {
        /// # Safety
        /// The processor has AVX2 and FMA, the matrices these elements.
        fn in_avx2, "avx2,fma", 8,
        _mm256_setzero_ps, _mm256_loadu_ps, _mm256_storeu_ps, _mm256_set1_ps, _mm256_max_ps,
        _mm256_fmadd_ps, keep_in_avx2
    }

    tile_in_registers! {
        /// # Safety
        /// The processor has AVX-512F, the matrices these elements.
        fn in_avx512, "avx512f", 16,
        _mm512_setzero_ps, _mm512_loadu_ps, _mm512_storeu_ps, _mm512_set1_ps, _mm512_max_ps,
        _mm512_fmadd_ps, keep_in_avx512
    }

    tile_in_registers! {
        /// # Safety
        /// The processor has AVX2 and FMA, the matrices these elements.
        fn pairs_in_avx2, "avx2,fma", 8,
        _mm256_setzero_ps, _mm256_loadu_ps, _mm256_storeu_ps, _mm256_set1_ps, _mm256_max_ps,
        dot_in_avx2, keep_in_avx2
    }

    tile_in_registers! {
        /// # Safety
        /// The processor has AVX-512 F, VL and BF16, the matrices these elements.
        fn pairs_in_avx512vl, "avx512f,avx512vl,avx512bf16", 8,
        _mm256_setzero_ps, _mm256_loadu_ps, _mm256_storeu_ps, _mm256_set1_ps, _mm256_max_ps,
        dot_in_avx512vl, keep_in_avx2
    }

    tile_in_registers! {
        /// # Safety
        /// The processor has AVX-512 F and BF16, the matrices these elements.
        fn pairs_in_avx512, "avx512f,avx512bf16", 16,
        _mm512_setzero_ps, _mm512_loadu_ps, _mm512_storeu_ps, _mm512_set1_ps, _mm512_max_ps,
        dot_in_avx512, keep_in_avx512
    }

    /// # Safety
    /// The matrices have these elements.
    unsafe fn plain<const M: usize, const N: usize>(&self, count: usize) {
        // SAFETY: the caller's promise.
        (0..count).for_each(|tile| unsafe { self.below(tile * M).add_up::<M, N>(f32::mul_add) });
    }

    /// # Safety
    /// The matrices have these elements.
    unsafe fn plain_pairs<const M: usize, const N: usize>(&self, count: usize) {
        // SAFETY: the caller's promise.
        (0..count).for_each(|tile| unsafe { self.below(tile * M).add_up::<M, N>(bf16::dot) });
    }

    /// # Safety
    /// The matrices have these elements.
    #[inline(always)]
    #[expect(clippy::needless_range_loop, reason = "sums have numbers")]
    unsafe fn add_up<const M: usize, const N: usize>(&self, multiply_add: impl Fn(f32, f32, f32) -> f32) {
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
                        sums[i][j][lane] = multiply_add(left, right, sums[i][j][lane]);
                    }
                }
            }
        }
        for i in 0..M {
            for j in 0..N {
                for lane in 0..STEP {
                    let (place, sum) = (i * self.c_row + j * STEP + lane, sums[i][j][lane]);
                    // SAFETY: the caller's promise.
                    unsafe {
                        let is_kept = match self.finish {
                            Last::Nothing => true,
                            Last::Relu => sum >= 0.0 || sum.is_nan(),
                            Last::Where(of) => *of.add(place) > 0.0,
                        };
                        *self.c.add(place) = if is_kept { sum } else { 0.0 };
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::matrix::stride;

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

    /// Pairs of such numbers.
    fn pairs(seed: u64, count: usize) -> Vec<f32> {
        numbers(seed, count).iter().zip(numbers(seed + 9, count)).map(|(&x, y)| bf16::pair(x, y)).collect()
    }

    proptest! {
        #[test]
        fn products_are_fused_sums_in_order(
            m in 0_usize..30, n in 0_usize..40, depth in 0_usize..600, transposed: bool, start in 0..3,
            finish in 0..3, with_pairs: bool, seed in 0..1_u64 << 60,
        ) {
            let elements = if with_pairs { pairs } else { numbers };
            let a = elements(seed, m * depth);
            let (row, column) = if transposed { (1, m) } else { (depth, 1) };
            let (b_row, c_row) = (stride(n), stride(n) + STEP);
            let b = elements(seed + 1, depth * b_row);
            let bias = numbers(seed + 2, b_row);
            let before = numbers(seed + 3, m * c_row);
            let mut c = before.clone();
            let of = numbers(seed + 4, m * c_row);
            let first = [Start::Zero, Start::Bias(&bias), Start::Present][start as usize];
            let last = [Finish::Nothing, Finish::Relu, Finish::Where(&of)][finish as usize];
            let multiply = if with_pairs { multiply_pairs } else { multiply };
            multiply(m, n, depth, Left { values: &a, row, column }, &b, b_row, &mut c, c_row, first, last);
            let multiply_add = if with_pairs { bf16::dot } else { f32::mul_add };
            for i in 0..m {
                for j in 0..c_row {
                    let mut sum = [0.0, bias.get(j).copied().unwrap_or(0.0), before[i * c_row + j]][start as usize];
                    for k in 0..depth {
                        let left = a[i * row + k * column];
                        sum = if j < n { multiply_add(left, b[k * b_row + j], sum) } else { sum };
                    }
                    if finish == 1 && sum < 0.0 || finish == 2 && of[i * c_row + j] <= 0.0 {
                        sum = 0.0;
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
        fn tiles_are_the_same_in_all_registers(
            terms in 0_usize..20, rows in 1_usize..30, wide in 0..3, finish in 0..3, with_pairs: bool,
            seed in 0..1_u64 << 60,
        ) {
            let (columns, elements) = (STEP << wide, if with_pairs { pairs } else { numbers });
            let (a, b, of) = (elements(seed, 30 * 20), elements(seed + 1, 20 * 32), numbers(seed + 3, 30 * 32));
            let product = |registers: Registers| {
                let mut c = numbers(seed + 2, 30 * 32);
                for j in (0..columns).step_by(registers.columns(columns)) {
                    let mut i = 0;
                    while i < rows {
                        // SAFETY: 30 rows of 32 columns and 20 terms are there, and the processor has the registers.
                        i += unsafe {
                            let (b, c) = (b.as_ptr().add(j), c.as_mut_ptr().add(i * 32 + j));
                            let (a, start) = (a.as_ptr().add(i * 20), First::Present);
                            let of = of.as_ptr().add(i * 32 + j);
                            let finish = [Last::Nothing, Last::Relu, Last::Where(of)][finish as usize];
                            let tile = Tile { terms, a, row: 20, column: 1, b, b_row: 32, c, c_row: 32, start, finish };
                            tile.compute(registers, rows - i, registers.columns(columns - j))
                        };
                    }
                }
                c
            };
            let plain = product(if with_pairs { Registers::PlainPairs } else { Registers::Plain });
            #[cfg(target_arch = "x86_64")]
            {
                if has_fma() {
                    let registers = if with_pairs { Registers::Avx2Pairs } else { Registers::Avx2 };
                    prop_assert_eq!(&product(registers), &plain);
                }
                if has_avx512() && !with_pairs {
                    prop_assert_eq!(&product(Registers::Avx512), &plain);
                }
                if has_bf16() && with_pairs {
                    prop_assert_eq!(&product(Registers::Avx512Pairs), &plain);
                }
            }
            let widest = if with_pairs { Registers::widest_of_pairs() } else { Registers::widest() };
            prop_assert_eq!(&product(widest), &plain);
        }
    }
}
