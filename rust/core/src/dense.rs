//! Linear layers in f32 whose sums stay in registers, and the functions that follow them: each result is the same to the
//! last bit on every processor, as multiplications are fused everywhere.

use crate::gemm::{Finish, Left, Start, multiply};
#[cfg(target_arch = "x86_64")]
use crate::lanes::has_fma;
use crate::lanes::{LANES, Lanes, flat, flat_mut, spread};
use crate::widest::widest;

/// The function after a hidden layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    Tanh,
    Relu,
}

/// Weights that are read one after the other.
pub struct Weights<'a>(&'a [f32]);

impl<'a> Weights<'a> {
    pub fn new(weights: &'a [f32]) -> Self {
        Self(weights)
    }

    pub fn take(&mut self, n: usize) -> &'a [f32] {
        let (taken, rest) = self.0.split_at(n);
        self.0 = rest;
        taken
    }
}

/// A linear layer; empty before the first [`Layer::load`].
#[derive(Default)]
pub struct Layer {
    bias: Vec<Lanes>,
    /// Weights of input k start at `k * spread(bias.len())`.
    weights: Vec<Lanes>,
}

/// The inputs of a layer that are not zero.
pub struct Inputs {
    places: Vec<u32>,
    values: Vec<f32>,
    len: usize,
}

impl Inputs {
    pub fn with_room(inputs: usize) -> Self {
        // One more, as `push` writes before it counts.
        Self { places: vec![0; inputs + 1], values: vec![0.0; inputs + 1], len: 0 }
    }

    #[inline(always)]
    pub fn clear(&mut self) {
        self.len = 0;
    }

    /// Appends input `place`; at most as many as there is room for.
    #[inline(always)]
    pub fn push(&mut self, place: usize, value: f32) {
        // Written always and kept if it counts: no branch to mispredict.
        self.places[self.len] = place as u32;
        self.values[self.len] = value;
        self.len += usize::from(value != 0.0);
    }
}

/// True without NaN and infinity. Unlike a search, which may stop early, this is done many numbers at a time.
pub fn all_finite(values: &[f32]) -> bool {
    // Of NaN and infinity all bits of the exponent are set.
    const EXPONENT: u32 = 0x7f80_0000;
    values.iter().fold(0, |any, x| any | u32::from(x.to_bits() & EXPONENT == EXPONENT)) == 0
}

impl Layer {
    /// Reads weights [inputs, blocks * outputs] and biases [blocks * outputs], as many as last time if there was one.
    /// Each block of outputs has whole lanes, filled up by outputs with the bias `rest`.
    pub fn load(&mut self, weights: &mut Weights<'_>, inputs: usize, blocks: usize, outputs: usize, rest: f32) {
        let lanes = blocks * outputs.div_ceil(LANES);
        self.weights.resize(inputs * spread(lanes), Lanes([0.0; LANES]));
        self.bias.resize(lanes, Lanes([rest; LANES]));
        let write = |row: &[f32], to: &mut [Lanes]| {
            for (block, to) in row.chunks_exact(outputs).zip(to.chunks_exact_mut(outputs.div_ceil(LANES))) {
                flat_mut(to)[..outputs].copy_from_slice(block);
            }
        };
        let rows = weights.take(inputs * blocks * outputs).chunks_exact(blocks * outputs);
        rows.zip(self.weights.chunks_exact_mut(spread(lanes))).for_each(|(row, to)| write(row, to));
        write(weights.take(blocks * outputs), &mut self.bias);
    }

    /// Number of lanes of the outputs.
    pub fn lanes(&self) -> usize {
        self.bias.len()
    }

    /// The outputs of `rows` rows of `inputs` numbers, which are `row` apart; those of the result are
    /// `spread(self.lanes())` lanes apart. Up to the signs of zeros they are those of [`Layer::forward`].
    pub(crate) fn forward_rows(&self, rows: usize, inputs: usize, values: &[f32], row: usize, outputs: &mut [Lanes]) {
        let (width, apart) = (self.lanes() * LANES, spread(self.lanes()) * LANES);
        let (left, start) = (Left { values, row, column: 1 }, Start::Bias(flat(&self.bias)));
        let (weights, to) = (flat(&self.weights), flat_mut(outputs));
        multiply(rows, width, inputs, left, weights, apart, to, apart, start, Finish::Nothing);
    }

    #[inline(always)]
    pub fn forward(&self, inputs: &Inputs, outputs: &mut [Lanes]) {
        let width = self.bias.len();
        let mut at = 0;
        // As many sums as the registers hold.
        while at + 4 <= width {
            self.sums::<4>(inputs, at, outputs);
            at += 4;
        }
        match width - at {
            1 => self.sums::<1>(inputs, at, outputs),
            2 => self.sums::<2>(inputs, at, outputs),
            3 => self.sums::<3>(inputs, at, outputs),
            _ => {}
        }
    }

    /// Outputs of N lanes from lane `at` on.
    #[inline(always)]
    fn sums<const N: usize>(&self, inputs: &Inputs, at: usize, outputs: &mut [Lanes]) {
        let (places, values) = (&inputs.places[..inputs.len], &inputs.values[..inputs.len]);
        let bias: &[Lanes; N] = self.bias[at..at + N].try_into().expect("N of them");
        let outputs: &mut [Lanes; N] = (&mut outputs[at..at + N]).try_into().expect("N of them");
        let weights = |k: u32| -> &[Lanes; N] {
            let first = k as usize * spread(self.bias.len()) + at;
            self.weights[first..first + N].try_into().expect("N of them")
        };
        #[cfg(target_arch = "x86_64")]
        if has_fma() {
            // SAFETY: this processor has AVX2 and FMA.
            return unsafe { sums_in_registers(places, values, bias, weights, outputs) };
        }
        *outputs = *bias;
        for (&k, &x) in places.iter().zip(values) {
            for (sums, weights) in outputs.iter_mut().zip(weights(k)) {
                for (sum, &weight) in sums.0.iter_mut().zip(&weights.0) {
                    *sum = x.mul_add(weight, *sum);
                }
            }
        }
    }
}

/// The loop of [`Layer::sums`] with its sums in registers, where compilers leave them in memory.
///
/// # Safety
/// The processor has AVX2 and FMA: [`has_fma`].
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn sums_in_registers<'a, const N: usize>(
    places: &[u32],
    values: &[f32],
    bias: &[Lanes; N],
    weights: impl Fn(u32) -> &'a [Lanes; N],
    outputs: &mut [Lanes; N],
) {
    use std::arch::x86_64::{_mm256_fmadd_ps, _mm256_load_ps, _mm256_set1_ps, _mm256_setzero_ps, _mm256_store_ps};
    const HALF: usize = LANES / 2;
    let mut sums = [[_mm256_setzero_ps(); 2]; N];
    for n in 0..N {
        // SAFETY: `Lanes` are aligned to 64 bytes, and half of them is a register.
        sums[n] = unsafe { [_mm256_load_ps(&raw const bias[n].0[0]), _mm256_load_ps(&raw const bias[n].0[HALF])] };
    }
    for i in 0..places.len() {
        let weights = weights(places[i]);
        let x = _mm256_set1_ps(values[i]);
        for n in 0..N {
            let first = weights[n].0.as_ptr();
            // SAFETY: `Lanes` are aligned to 64 bytes, and half of them is a register.
            let halves = unsafe { [_mm256_load_ps(first), _mm256_load_ps(first.add(HALF))] };
            sums[n] = [_mm256_fmadd_ps(x, halves[0], sums[n][0]), _mm256_fmadd_ps(x, halves[1], sums[n][1])];
        }
    }
    for n in 0..N {
        let first = outputs[n].0.as_mut_ptr();
        // SAFETY: `Lanes` are aligned to 64 bytes, and half of them is a register.
        unsafe {
            _mm256_store_ps(first, sums[n][0]);
            _mm256_store_ps(first.add(HALF), sums[n][1]);
        }
    }
}

/// `2^k` and `e^r - 1` with `x = k ln 2 + r`, r at most half of ln 2, for x within plus and minus 87.
#[inline(always)]
fn exp_parts(x: f32) -> (f32, f32) {
    // Adding 1.5 * 2^23 rounds to a whole number, which then stands in the lowest bits.
    const ROUND: f32 = 12_582_912.0;
    const LN_2_HIGH: f32 = 0.693_359_4; // 355 / 512: products with k are exact
    const LN_2_LOW: f32 = -2.121_944_4e-4;
    let shifted = x.mul_add(std::f32::consts::LOG2_E, ROUND);
    let k = shifted - ROUND;
    let r = k.mul_add(-LN_2_LOW, k.mul_add(-LN_2_HIGH, x));
    let power = f32::from_bits(shifted.to_bits().wrapping_add(127) << 23);
    // Taylor's series; what is left out is below 1e-8 of r.
    let tail = [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5];
    let series = tail.into_iter().fold(1.0 / 5040.0, |sum: f32, term| sum.mul_add(r, term));
    (power, (r * r).mul_add(series, r))
}

/// e^x for x <= 0, to some 1e-7 of it; 0 below -87. NaN stays NaN.
#[inline(always)]
pub fn exp(x: f32) -> f32 {
    let (power, rest) = exp_parts(if x < -87.0 { -87.0 } else { x });
    let e = power.mul_add(rest, power);
    if x < -87.0 { 0.0 } else { e }
}

/// e^x for any x, to some 2e-7 of it; infinite above 87. NaN stays NaN.
#[inline(always)]
pub fn exp_any(x: f32) -> f32 {
    let e = exp(-x.abs());
    if x > 0.0 { 1.0 / e } else { e }
}

/// Natural logarithm of a positive, finite, normal number, rounded to f32. NaN stays NaN.
#[inline(always)]
pub fn ln(x: f32) -> f32 {
    if !(x > 0.0 && x < f32::INFINITY) {
        return if x == 0.0 { f32::NEG_INFINITY } else { x };
    }
    ln_normal(x)
}

/// [`ln`] of a number that is positive, finite and normal.
#[inline(always)]
pub(crate) fn ln_normal(x: f32) -> f32 {
    // x = 2^k m, with m between half and whole square root of 2, and ln m = 2 artanh((m - 1) / (m + 1)).
    let bits = x.to_bits().wrapping_sub(0x3f35_04f3);
    let k = (bits as i32) >> 23;
    let m = f64::from(f32::from_bits((bits & 0x007f_ffff).wrapping_add(0x3f35_04f3)));
    let s = (m - 1.0) / (m + 1.0);
    let square = s * s;
    let series = [11.0, 9.0, 7.0, 5.0, 3.0, 1.0].into_iter().fold(1.0 / 13.0, |sum: f64, n| sum * square + 1.0 / n);
    (f64::from(k) * std::f64::consts::LN_2 + 2.0 * s * series) as f32
}

/// Hyperbolic tangent, to some 1e-7 of the result. NaN stays NaN.
#[inline(always)]
pub fn tanh(x: f32) -> f32 {
    let twice = 2.0 * x.abs();
    // From there on it is 1 in f32.
    let (power, rest) = exp_parts(if twice > 19.0 { 19.0 } else { twice });
    let e = power.mul_add(rest, power - 1.0);
    (e / (e + 2.0)).copysign(x)
}

/// The larger one of a number and 0. NaN stays NaN.
#[inline(always)]
pub fn relu(x: f32) -> f32 {
    // Not `if`, of which compilers make masked stores, which are slow.
    0.5 * (x + x.abs())
}

widest! {
    /// Tanh or ReLU.
    pub(crate) fn activate(with_tanh: bool, values: &mut [f32]) {
        if with_tanh {
            values.iter_mut().for_each(|x| *x = tanh(*x));
        } else {
            values.iter_mut().for_each(|x| *x = relu(*x));
        }
    }
}

/// Added to the variance by layer normalisation, as PyTorch does.
const NORM_EPSILON: f32 = 1e-5;

/// The sum of terms of two lists of numbers, in as many parts as there are lanes: term i belongs to part i modulo the
/// number of lanes.
#[inline(always)]
pub(crate) fn lane_sum(first: &[f32], second: &[f32], term: impl Fn(f32, f32) -> f32) -> f32 {
    let mut lanes = [0.0; LANES];
    let ((firsts, first), (seconds, second)) = (first.as_chunks::<LANES>(), second.as_chunks::<LANES>());
    for (first, second) in firsts.iter().zip(seconds) {
        for i in 0..LANES {
            lanes[i] += term(first[i], second[i]);
        }
    }
    lanes.iter_mut().zip(first.iter().zip(second)).for_each(|(lane, (&x, &y))| *lane += term(x, y));
    lanes.into_iter().sum()
}

/// Brings numbers to mean 0 and deviation 1; returns the factor of their differences from the mean.
#[inline(always)]
pub(crate) fn standardize(numbers: &mut [f32]) -> f32 {
    let share = 1.0 / numbers.len() as f32;
    let mean = share * lane_sum(numbers, numbers, |x, _| x);
    let variance = share * lane_sum(numbers, numbers, |x, _| (x - mean) * (x - mean));
    let scale = 1.0 / (variance + NORM_EPSILON).sqrt();
    numbers.iter_mut().for_each(|x| *x = (*x - mean) * scale);
    scale
}

/// Scales and shifts each of some numbers.
#[inline(always)]
pub(crate) fn affine(numbers: &mut [f32], gain: &[f32], shift: &[f32]) {
    numbers.iter_mut().zip(gain).zip(shift).for_each(|((x, &gain), &shift)| *x = x.mul_add(gain, shift));
}

widest! {
    /// Layer normalisation (Ba et al., 2016) of rows of as many numbers as there are gains, which are `apart`.
    pub(crate) fn normalize(rows: &mut [f32], apart: usize, gain: &[f32], shift: &[f32]) {
        for row in rows.chunks_exact_mut(apart) {
            let row = &mut row[..gain.len()];
            standardize(row);
            affine(row, gain, shift);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn activations_are_the_same_in_all_registers() {
        let inputs: Vec<f32> = (0..4000).map(|i| (i as f32 - 2000.0) * 7.3e-3).collect();
        for with_tanh in [false, true] {
            let mut outputs = inputs.clone();
            activate(with_tanh, &mut outputs);
            for (&x, &y) in inputs.iter().zip(&outputs) {
                let expected = if with_tanh { tanh(x) } else { x.max(0.0) };
                assert_eq!(y.to_bits(), expected.to_bits(), "{y} of {x}");
            }
        }
        assert!(relu(f32::NAN).is_nan());
        assert_eq!((relu(-1.0), relu(2.0)), (0.0, 2.0));
    }

    #[test]
    fn exp_and_tanh_are_accurate() {
        for i in -2_000_000..=0 {
            let x = i as f32 * 4.3e-5;
            let expected = f64::from(x).exp();
            assert!((f64::from(exp(x)) / expected - 1.0).abs() < 2.5e-7, "exp({x}) = {}", exp(x));
        }
        for i in 1..=1_200_000 {
            let x = i as f32 * 1e-5;
            let expected = f64::from(x).tanh();
            assert!((f64::from(tanh(x)) / expected - 1.0).abs() < 3e-7, "tanh({x}) = {}", tanh(x));
            assert_eq!(tanh(-x), -tanh(x));
        }
    }

    #[test]
    fn exp_any_and_ln_are_accurate() {
        for i in -860_000..=860_000 {
            let x = i as f32 * 1e-4;
            let expected = f64::from(x).exp();
            assert!((f64::from(exp_any(x)) / expected - 1.0).abs() < 4e-7, "exp_any({x}) = {}", exp_any(x));
            let y = expected as f32;
            let expected = f64::from(y).ln();
            assert!((f64::from(ln(y)) - expected).abs() <= 1.2e-7 * expected.abs(), "ln({y}) = {}", ln(y));
        }
        assert_eq!((exp_any(100.0), exp_any(-100.0), exp_any(0.0)), (f32::INFINITY, 0.0, 1.0));
        assert!(exp_any(f32::NAN).is_nan() && ln(f32::NAN).is_nan());
        assert_eq!((ln(1.0), ln(0.0), ln(f32::INFINITY)), (0.0, f32::NEG_INFINITY, f32::INFINITY));
    }

    #[test]
    fn exp_and_tanh_at_the_ends() {
        assert_eq!(exp(0.0), 1.0);
        for x in [-87.1, -1e9, f32::NEG_INFINITY] {
            assert_eq!(exp(x), 0.0);
        }
        assert!(exp(f32::NAN).is_nan() && tanh(f32::NAN).is_nan());
        for (x, y) in [(0.0, 0.0), (1e-30, 1e-30), (9.5, 1.0), (1e30, 1.0), (f32::INFINITY, 1.0)] {
            assert_eq!((tanh(x), tanh(-x)), (y, -y));
        }
    }
}
