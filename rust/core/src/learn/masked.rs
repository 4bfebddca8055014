//! Categorical distributions of a row of logits under the masks of many samples.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::{
    _mm_add_ps, _mm_add_ss, _mm_cvtss_f32, _mm_movehdup_ps, _mm_movehl_ps, _mm256_add_ps, _mm256_castpd_ps,
    _mm256_castps256_ps128, _mm256_extractf128_ps, _mm512_castps_pd, _mm512_castps512_ps256, _mm512_extractf64x4_pd,
    _mm512_load_ps, _mm512_mask_add_ps, _mm512_set1_ps, _mm512_setzero_ps, _mm512_storeu_ps,
};
use std::ops::Range;
use std::sync::Arc;

use super::batch::prefetch;
use super::losses::Categorical;
use crate::dense::{exp, ln};
#[cfg(target_arch = "x86_64")]
use crate::lanes::has_avx512;
use crate::lanes::{LANES, Lanes, flat_mut};

/// The share of a part's exponentials below which a mask's distribution is computed by itself: beyond it too many digits
/// of the part's highest logit, which is then masked, would cancel.
const LOWEST_TOTAL: f32 = 1e-10;

/// A logit that has no probability, and stays finite times 0.
const NEVER: f32 = -1e30;

/// A number of an action: its logits, and their place where each number begins with new lanes.
#[derive(Clone)]
struct Part {
    logits: Range<usize>,
    lanes: Range<usize>,
}

/// A bit for each lane.
type Bits = u16;

/// The distributions of rows of logits under a mask m for each sample; l are the logits less the highest of their part.
///
/// With `e = exp(l)` a mask has the total `z = sum(m e)`, probabilities `m e / z` and the entropy
/// `H = ln z - sum(m e l) / z`. Exponentials are taken once for all samples of a row. Each adds its multiples of the mask
/// to two sums, of which [`Masked::add_row`] makes the gradient.
///
/// Three passes go over some rows each: sums over masks, numbers of samples, sums over samples. So the processor works on
/// many samples at once.
#[derive(Clone)]
pub(crate) struct Masked<'a> {
    /// A byte for each logit of each sample, 0 where an action is not allowed.
    masks: &'a [u8],
    /// The masks in bits: they are read in another order for each minibatch, and stay in the cache so.
    bits: Arc<[Bits]>,
    wide: Wide,
    parts: Vec<Part>,
    /// Lanes of a row.
    lanes: usize,
    rows: usize,
    /// l of the last row, [`NEVER`] beyond the logits; `e` and `e l` of each row.
    logits: Vec<Lanes>,
    exps: Vec<Lanes>,
    products: Vec<Lanes>,
    /// A term for each part of each sample.
    terms: Vec<Term>,
    /// Gradient of the objective in the log-probability of each sample.
    gradients: Vec<f32>,
    exact: Categorical,
    /// Number, log-probability and entropy of each sample that is computed by itself.
    exceptions: Vec<(usize, f32, f32)>,
}

/// Numbers of a part of a sample's distribution.
#[derive(Clone, Copy, Default)]
struct Term {
    /// `z`, `sum(m e l)`, and l of the action.
    total: f32,
    product: f32,
    logit: f32,
    /// Factors of `e` and of `e l` in the gradient.
    factor: f32,
    bonus: f32,
}

impl<'a> Masked<'a> {
    /// `masks`: those of all samples, [S, number of logits], 0 where an action is not allowed.
    pub(crate) fn new(choices: &[usize], masks: &'a [u8]) -> Self {
        let (mut first, mut lanes) = (0, 0);
        let parts = choices.iter().map(|&count| {
            let part = Part { logits: first..first + count, lanes: lanes..lanes + count.div_ceil(LANES) };
            (first, lanes) = (part.logits.end, part.lanes.end);
            part
        });
        let parts: Vec<Part> = parts.collect();
        Self {
            masks,
            bits: pack(masks, &parts).into(),
            wide: Wide::new(),
            parts,
            lanes,
            rows: 0,
            logits: vec![Lanes([NEVER; LANES]); lanes],
            exps: vec![],
            products: vec![],
            terms: vec![],
            gradients: vec![],
            exact: Categorical::new(choices),
            exceptions: vec![],
        }
    }

    /// Number of logits.
    pub(crate) fn outputs(&self) -> usize {
        self.exact.outputs()
    }

    /// Length of an action.
    pub(crate) fn width(&self) -> usize {
        self.parts.len()
    }

    /// Forgets all rows and samples.
    pub(crate) fn clear(&mut self) {
        self.rows = 0;
        self.terms.clear();
        self.gradients.clear();
        self.exceptions.clear();
    }

    /// Takes another row of logits.
    #[inline(always)]
    pub(crate) fn push_row(&mut self, logits: &[f32]) {
        let first = self.rows * self.lanes;
        self.rows += 1;
        if self.exps.len() == first {
            self.exps.resize(first + self.lanes, Lanes([0.0; LANES]));
            self.products.resize(first + self.lanes, Lanes([0.0; LANES]));
        }
        for Part { logits: of_part, lanes } in &self.parts {
            let own = &mut self.logits[lanes.clone()];
            let lanes = first + lanes.start..first + lanes.end;
            flat_mut(own)[..of_part.len()].copy_from_slice(&logits[of_part.clone()]);
            let mut highest = [NEVER; LANES];
            for logits in &*own {
                highest.iter_mut().zip(&logits.0).for_each(|(highest, &logit)| *highest = highest.max(logit));
            }
            let highest = highest.into_iter().fold(NEVER, f32::max);
            flat_mut(own)[..of_part.len()].iter_mut().for_each(|logit| *logit -= highest);
            let sums = self.exps[lanes.clone()].iter_mut().zip(&mut self.products[lanes]);
            for ((exps, products), logits) in sums.zip(own) {
                for lane in 0..LANES {
                    exps.0[lane] = exp(logits.0[lane]);
                    products.0[lane] = exps.0[lane] * logits.0[lane];
                }
            }
        }
    }

    /// Fetches the mask of a sample into the cache.
    #[inline(always)]
    pub(crate) fn prefetch(&self, sample: usize) {
        prefetch(&self.bits, sample * self.lanes);
    }

    /// Takes another sample of the last row, which is `logits`.
    #[inline(always)]
    pub(crate) fn push(&mut self, sample: usize, action: &[i64], logits: &[f32]) {
        let first = (self.rows - 1) * self.lanes;
        let all_bits = &self.bits[sample * self.lanes..][..self.lanes];
        let mut is_exact = false;
        for (Part { lanes, .. }, &number) in self.parts.iter().zip(action) {
            let of_row = first + lanes.start..first + lanes.end;
            let (exps, products) = (&self.exps[of_row.clone()], &self.products[of_row.clone()]);
            let (total, product) = self.wide.sums_of_lanes(&all_bits[lanes.clone()], exps, products);
            let (lane, bit) = (number as usize / LANES, number as usize % LANES);
            let is_allowed = all_bits[lanes.start + lane] >> bit & 1 == 1;
            is_exact |= total < LOWEST_TOTAL || total.is_nan() || !is_allowed;
            let logit = self.logits[lanes.start + lane].0[bit];
            self.terms.push(Term { total, product, logit, ..Term::default() });
        }
        if is_exact {
            self.set_exact(sample, logits);
            let number = self.terms.len() / self.parts.len() - 1;
            self.exceptions.push((number, self.exact.log_prob(action), self.exact.entropy()));
        }
    }

    /// Computes a sample by itself.
    #[cold]
    fn set_exact(&mut self, sample: usize, logits: &[f32]) {
        let outputs = self.outputs();
        self.exact.set(logits, Some(&self.masks[sample * outputs..][..outputs]));
    }

    /// Log-probability and entropy of a sample that is computed by itself.
    fn exception(&self, number: usize) -> Option<(f32, f32)> {
        let place = self.exceptions.binary_search_by_key(&number, |&(number, _, _)| number).ok()?;
        Some((self.exceptions[place].1, self.exceptions[place].2))
    }

    /// Asks for the gradient of the objective in the log-probability of sample `number`, by that and by its entropy.
    ///
    /// `bonus`: weight of its entropy.
    #[inline(always)]
    pub(crate) fn weigh(&mut self, number: usize, bonus: f32, gradient: impl FnOnce(f32, f32) -> f32) {
        let exception = self.exception(number);
        let terms = &mut self.terms[number * self.parts.len()..][..self.parts.len()];
        let (mut log_prob, mut entropy) = (0.0, 0.0);
        for term in &mut *terms {
            let (log, mean) = (ln(term.total), term.product / term.total);
            log_prob += term.logit - log;
            entropy += log - mean;
            (term.factor, term.bonus) = (log - mean - log, 1.0 / term.total);
        }
        (log_prob, entropy) = exception.unwrap_or((log_prob, entropy));
        let gradient = gradient(log_prob, entropy);
        self.gradients.push(gradient);
        for term in terms {
            let share = term.bonus;
            (term.factor, term.bonus) = (bonus.mul_add(term.factor, gradient) * share, bonus * share);
            if exception.is_some() {
                (term.factor, term.bonus) = (0.0, 0.0);
            }
        }
    }

    /// Adds the samples of row `row`, of which the first is number `first`, to the gradient of the loss in the logits: of
    /// each, with its probabilities p, `p * (gradient + bonus * (ln p + H))` less `gradient` at its action.
    #[inline(always)]
    #[expect(clippy::too_many_arguments, reason = "arrays side by side")]
    pub(crate) fn add_row(
        &mut self,
        row: usize,
        first: usize,
        samples: &[u32],
        actions: &[i64],
        bonus: f32,
        logits: &[f32],
        slopes: &mut [f32],
    ) {
        let width = self.parts.len();
        for (number, &sample) in (first..).zip(samples) {
            let action = &actions[sample as usize * width..][..width];
            let gradient = self.gradients[number];
            self.exact.add_sample(action, gradient, slopes);
            if self.exception(number).is_some() {
                self.set_exact(sample as usize, logits);
                self.exact.add_common(gradient, bonus, slopes);
            }
        }
        for (i, Part { logits, lanes }) in self.parts.iter().enumerate() {
            let terms = self.terms[first * width + i..].iter().step_by(width);
            for (slopes, lane) in slopes[logits.clone()].chunks_mut(LANES).zip(lanes.clone()) {
                let bits = samples.iter().map(|&sample| self.bits[sample as usize * self.lanes + lane]);
                let (factors, bonuses) =
                    self.wide.sums_of_samples(bits.zip(terms.clone().map(|term| (term.factor, term.bonus))));
                let place = row * self.lanes + lane;
                let (exps, products) = (&self.exps[place].0, &self.products[place].0);
                let mut sums = [0.0; LANES];
                for i in 0..LANES {
                    sums[i] = products[i].mul_add(bonuses[i], exps[i] * factors[i]);
                }
                // Whole lanes, of which most are, take no loop.
                match <&mut [f32; LANES]>::try_from(&mut *slopes) {
                    Ok(slopes) => slopes.iter_mut().zip(sums).for_each(|(slope, sum)| *slope += sum),
                    Err(_) => slopes.iter_mut().zip(sums).for_each(|(slope, sum)| *slope += sum),
                }
            }
        }
    }
}

/// Sums over the lanes whose bit is set, in registers of 512 bits if that is true: compilers do not find how.
#[derive(Clone, Copy)]
struct Wide(bool);

impl Wide {
    fn new() -> Self {
        #[cfg(target_arch = "x86_64")]
        return Self(has_avx512());
        #[cfg(not(target_arch = "x86_64"))]
        Self(false)
    }

    /// Sums of the first and of the second numbers.
    #[inline(always)]
    fn sums_of_lanes(self, bits: &[Bits], first: &[Lanes], second: &[Lanes]) -> (f32, f32) {
        #[cfg(target_arch = "x86_64")]
        if self.0 {
            // SAFETY: `has_avx512` has found the registers.
            return unsafe { sums_of_lanes_in_avx512(bits, first, second) };
        }
        let mut sums = [[0.0; LANES]; 2];
        for (&bits, lanes) in bits.iter().zip(first.iter().zip(second)) {
            add_allowed(&mut sums[0], &lanes.0.0, bits);
            add_allowed(&mut sums[1], &lanes.1.0, bits);
        }
        (sum_of(sums[0]), sum_of(sums[1]))
    }

    /// For each lane the sums of the first and of the second numbers of samples.
    #[inline(always)]
    fn sums_of_samples(self, samples: impl Iterator<Item = (Bits, (f32, f32))>) -> ([f32; LANES], [f32; LANES]) {
        #[cfg(target_arch = "x86_64")]
        if self.0 {
            // SAFETY: `has_avx512` has found the registers.
            return unsafe { sums_of_samples_in_avx512(samples) };
        }
        let mut sums = [[0.0; LANES]; 2];
        for (bits, numbers) in samples {
            add_allowed(&mut sums[0], &[numbers.0; LANES], bits);
            add_allowed(&mut sums[1], &[numbers.1; LANES], bits);
        }
        (sums[0], sums[1])
    }
}

/// [`Wide::sums_of_lanes`], added up as [`sum_of`] does.
///
/// # Safety
/// The processor has AVX-512F.
#[cfg(target_arch = "x86_64")]
#[inline]
#[target_feature(enable = "avx512f")]
fn sums_of_lanes_in_avx512(bits: &[Bits], first: &[Lanes], second: &[Lanes]) -> (f32, f32) {
    let mut sums = [_mm512_setzero_ps(); 2];
    for (&bits, lanes) in bits.iter().zip(first.iter().zip(second)) {
        // SAFETY: `Lanes` are as long as a register, and aligned.
        let lanes = unsafe { [_mm512_load_ps(lanes.0.0.as_ptr()), _mm512_load_ps(lanes.1.0.as_ptr())] };
        sums = [0, 1].map(|i| _mm512_mask_add_ps(sums[i], bits, sums[i], lanes[i]));
    }
    let [first, second] = sums.map(|sum| {
        let other_half = _mm256_castpd_ps(_mm512_extractf64x4_pd::<1>(_mm512_castps_pd(sum)));
        let half = _mm256_add_ps(_mm512_castps512_ps256(sum), other_half);
        let quarter = _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps::<1>(half));
        let pair = _mm_add_ps(quarter, _mm_movehl_ps(quarter, quarter));
        _mm_cvtss_f32(_mm_add_ss(pair, _mm_movehdup_ps(pair)))
    });
    (first, second)
}

/// [`Wide::sums_of_samples`].
///
/// # Safety
/// The processor has AVX-512F.
#[cfg(target_arch = "x86_64")]
#[inline]
#[target_feature(enable = "avx512f")]
fn sums_of_samples_in_avx512(samples: impl Iterator<Item = (Bits, (f32, f32))>) -> ([f32; LANES], [f32; LANES]) {
    let mut sums = [_mm512_setzero_ps(); 2];
    for (bits, numbers) in samples {
        sums[0] = _mm512_mask_add_ps(sums[0], bits, sums[0], _mm512_set1_ps(numbers.0));
        sums[1] = _mm512_mask_add_ps(sums[1], bits, sums[1], _mm512_set1_ps(numbers.1));
    }
    let mut lanes = [[0.0; LANES]; 2];
    for (lanes, sum) in lanes.iter_mut().zip(sums) {
        // SAFETY: so many lanes are a register.
        unsafe { _mm512_storeu_ps(lanes.as_mut_ptr(), sum) };
    }
    (lanes[0], lanes[1])
}

/// Adds the lanes whose bit is set.
#[inline(always)]
fn add_allowed(sums: &mut [f32; LANES], lanes: &[f32; LANES], bits: Bits) {
    let allowed = lanes_of(bits);
    for lane in 0..LANES {
        sums[lane] += f32::from_bits(lanes[lane].to_bits() & allowed[lane]);
    }
}

/// Masks as bits, the first lane's lowest.
fn pack(masks: &[u8], parts: &[Part]) -> Vec<Bits> {
    let outputs = parts.last().map_or(1, |part| part.logits.end);
    let mut bits = Vec::with_capacity(masks.len() / outputs * parts.last().map_or(0, |part| part.lanes.end));
    for mask in masks.chunks_exact(outputs) {
        for part in parts {
            let lanes = mask[part.logits.clone()].chunks(LANES);
            bits.extend(
                lanes.map(|lanes| {
                    lanes.iter().enumerate().fold(0, |bits, (i, &byte)| bits | Bits::from(byte != 0) << i)
                }),
            );
        }
    }
    bits
}

/// All bits of the lanes whose bit is set, none of the others.
#[inline(always)]
fn lanes_of(bits: Bits) -> [u32; LANES] {
    let mut lanes = [0; LANES];
    for (i, lane) in lanes.iter_mut().enumerate() {
        // No shift of the bits: they are compared with a constant register.
        *lane = if u32::from(bits) & (1 << i) != 0 { u32::MAX } else { 0 };
    }
    lanes
}

/// The sum of lanes, of halves, quarters and so on.
#[inline(always)]
fn sum_of(mut lanes: [f32; LANES]) -> f32 {
    let mut half = LANES / 2;
    while half > 0 {
        for lane in 0..half {
            lanes[lane] += lanes[lane + half];
        }
        half /= 2;
    }
    lanes[0]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Log-probabilities and entropies of samples of one row with these gradients and bonus; adds to `slopes`.
    fn learn(
        masked: &mut Masked<'_>,
        logits: &[f32],
        actions: &[i64],
        gradients: &[f32],
        bonus: f32,
        slopes: &mut [f32],
    ) -> Vec<[f32; 2]> {
        let samples: Vec<u32> = (0..gradients.len() as u32).collect();
        masked.clear();
        masked.push_row(logits);
        let width = masked.width();
        for (i, action) in actions.chunks(width).enumerate() {
            masked.push(i, action, logits);
        }
        let mut found = vec![];
        for (i, &gradient) in gradients.iter().enumerate() {
            masked.weigh(i, bonus, |log_prob, entropy| {
                found.push([log_prob, entropy]);
                gradient
            });
        }
        masked.add_row(0, 0, &samples, actions, bonus, logits, slopes);
        found
    }

    /// Log-probability, entropy and gradient of each sample by itself; and the same ones in all registers.
    fn compare(choices: &[usize], logits: &[f32], samples: &[(Vec<u8>, Vec<i64>)], tolerance: f32) {
        let masks: Vec<u8> = samples.iter().flat_map(|(mask, _)| mask.clone()).collect();
        let actions: Vec<i64> = samples.iter().flat_map(|(_, action)| action.clone()).collect();
        let gradients: Vec<f32> = (0..samples.len()).map(|i| 0.7 - 0.4 * i as f32).collect();
        let (mut masked, mut each, bonus) = (Masked::new(choices, &masks), Categorical::new(choices), 0.3);
        let mut slopes = [vec![0.0; logits.len()], vec![0.0; logits.len()], vec![0.0; logits.len()]];
        let found = learn(&mut masked, logits, &actions, &gradients, bonus, &mut slopes[0]);
        masked.wide = Wide(false);
        let plain = learn(&mut masked, logits, &actions, &gradients, bonus, &mut slopes[1]);
        let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(found.as_flattened()), bits(plain.as_flattened()));
        assert_eq!(bits(&slopes[0]), bits(&slopes[1]));
        for (i, (mask, action)) in samples.iter().enumerate() {
            each.set(logits, Some(mask));
            for (got, expected) in found[i].into_iter().zip([each.log_prob(action), each.entropy()]) {
                let error = (got - expected).abs() / expected.abs().max(1.0);
                assert!(error < tolerance, "sample {i}: {got} is not {expected}");
            }
            each.add_sample(action, gradients[i], &mut slopes[2]);
            each.add_common(gradients[i], bonus, &mut slopes[2]);
        }
        for (got, expected) in slopes[0].iter().zip(&slopes[2]) {
            assert!((got - expected).abs() < tolerance, "{got} is not {expected}");
        }
    }

    #[test]
    fn samples_are_as_each_by_itself() {
        let logits: Vec<f32> = (0..21).map(|i| ((i * 37 % 21) as f32 - 10.0) * 0.3).collect();
        for choices in [vec![21], vec![3, 18], vec![1, 8, 9, 3]] {
            let samples: Vec<_> = (0..20)
                .map(|i: usize| {
                    let mut mask: Vec<u8> = (0..21).map(|j| u8::from((j * (i + 3) + i) % 5 < 3)).collect();
                    let (mut first, mut action) = (0, vec![]);
                    for &n in &choices {
                        action.push((i % n) as i64);
                        mask[first + i % n] = 1;
                        first += n;
                    }
                    (mask, action)
                })
                .collect();
            compare(&choices, &logits, &samples, 3e-6);
        }
    }

    #[test]
    fn masks_under_which_next_to_nothing_is_left() {
        // The highest logit is masked; what is allowed is up to e^-2000 of it.
        let logits = [2000.0, 60.0, 10.0, 0.0, -10.0, 1.0, -30.0, -30.0];
        let samples = [
            (vec![0, 1, 1, 1, 1, 1, 1, 1], vec![1]),
            (vec![0, 0, 0, 0, 1, 1, 0, 0], vec![5]),
            (vec![0, 0, 0, 0, 0, 0, 1, 1], vec![6]),
            (vec![1; 8], vec![0]),
            (vec![1, 0, 0, 0, 0, 0, 0, 0], vec![0]),
            // Nothing is allowed: then everything is.
            (vec![0; 8], vec![3]),
        ];
        compare(&[8], &logits, &samples, 1e-5);
        for scale in [5.0, 20.0, 22.0, 24.0, 40.0, 80.0] {
            compare(&[4], &[scale, 0.5, -0.5, 0.0], &[(vec![0, 1, 1, 1], vec![2]), (vec![1; 4], vec![0])], 1e-5);
        }
    }

    #[test]
    fn an_action_that_is_masked_has_next_to_no_probability() {
        let mut masked = Masked::new(&[3], &[1, 0, 1]);
        let found = learn(&mut masked, &[1.0, 2.0, 3.0], &[1], &[0.0], 0.0, &mut [0.0; 3]);
        assert!(found[0][0] < -1e8);
    }
}
