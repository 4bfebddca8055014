//! Categorical distributions of a row of logits under the masks of many samples.

use std::ops::Range;
use std::sync::Arc;

use super::batch::prefetch;
use super::losses::{Categorical, highest};
use crate::dense::{exp, ln};
use crate::lanes::{LANES, Lanes};

/// The share of a part's exponentials below which a mask's distribution is computed by itself: beyond it too many digits
/// of the part's highest logit, which is then masked, would cancel.
const LOWEST_TOTAL: f32 = 1e-10;

/// A number of an action: its logits, and their place where each number begins with new lanes.
#[derive(Clone)]
struct Part {
    logits: Range<usize>,
    lanes: Range<usize>,
}

/// A bit for each lane.
type Bits = u16;

/// The distributions of a row of logits under a mask m for each sample; l are the logits less the highest of their part.
///
/// With `e = exp(l)` a mask has the total `z = sum(m e)`, probabilities `m e / z` and the entropy
/// `H = ln z - sum(m e l) / z`. Exponentials are taken once for all samples of the row. Each adds its multiples of the mask
/// to two sums, which [`Masked::finish`] makes the gradient of.
#[derive(Clone)]
pub(crate) struct Masked<'a> {
    /// Of each sample: a byte for each logit, 0 where an action is not allowed.
    masks: &'a [u8],
    /// The same in bits: they are read in another order for each minibatch, and stay in the cache so.
    bits: Arc<[Bits]>,
    parts: Vec<Part>,
    /// As the network gave them, and less the highest of their part.
    given: Vec<f32>,
    logits: Vec<f32>,
    /// `e`, and `e l`; zeros beyond the logits.
    exps: Vec<Lanes>,
    products: Vec<Lanes>,
    /// Sums over samples: what multiplies `e` and `e l` in the gradient.
    factors: Vec<Lanes>,
    bonuses: Vec<Lanes>,
    /// The last sample, and the total, its logarithm and the entropy of each of its parts.
    sample: usize,
    totals: Vec<(f32, f32, f32)>,
    exact: Categorical,
    is_exact: bool,
}

impl<'a> Masked<'a> {
    /// `masks`: those of all samples, [S, number of logits], 0 where an action is not allowed.
    pub(crate) fn new(choices: &[usize], masks: &'a [u8]) -> Self {
        let (mut first, mut lane) = (0, 0);
        let parts = choices.iter().map(|&count| {
            let part = Part { logits: first..first + count, lanes: lane..lane + count.div_ceil(LANES) };
            (first, lane) = (part.logits.end, part.lanes.end);
            part
        });
        let parts: Vec<Part> = parts.collect();
        let memory = || vec![Lanes([0.0; LANES]); lane];
        Self {
            masks,
            bits: pack(masks, &parts).into(),
            given: vec![0.0; first],
            logits: vec![0.0; first],
            exps: memory(),
            products: memory(),
            factors: memory(),
            bonuses: memory(),
            sample: 0,
            totals: vec![(0.0, 0.0, 0.0); choices.len()],
            parts,
            exact: Categorical::new(choices),
            is_exact: false,
        }
    }

    /// Number of logits.
    pub(crate) fn outputs(&self) -> usize {
        self.logits.len()
    }

    /// Length of an action.
    pub(crate) fn width(&self) -> usize {
        self.parts.len()
    }

    /// Makes it those of a row of logits, without samples.
    #[inline(always)]
    pub(crate) fn set(&mut self, logits: &[f32]) {
        self.given.copy_from_slice(logits);
        for Part { logits: all, lanes } in &self.parts {
            let (own, from) = (&mut self.logits[all.clone()], &logits[all.clone()]);
            let highest = highest(from);
            own.iter_mut().zip(from).for_each(|(to, logit)| *to = logit - highest);
            let places = self.exps[lanes.clone()].iter_mut().zip(&mut self.products[lanes.clone()]);
            for ((exps, products), logits) in places.zip(own.chunks(LANES)) {
                let mut lanes = [f32::NEG_INFINITY; LANES];
                lanes[..logits.len()].copy_from_slice(logits);
                exps.0.iter_mut().zip(&lanes).for_each(|(to, &lane)| *to = exp(lane));
                lanes[logits.len()..].fill(0.0);
                let terms = exps.0.iter().zip(&lanes);
                products.0.iter_mut().zip(terms).for_each(|(to, (exp, lane))| *to = exp * lane);
            }
        }
        self.factors.fill(Lanes([0.0; LANES]));
        self.bonuses.fill(Lanes([0.0; LANES]));
    }

    /// Fetches the mask of a sample into the cache.
    #[inline(always)]
    pub(crate) fn prefetch(&self, sample: usize) {
        prefetch(&self.bits, sample * self.exps.len());
    }

    /// Makes a sample the last one; returns the logarithm of its probability.
    #[inline(always)]
    pub(crate) fn log_prob(&mut self, sample: usize, action: &[i64]) -> f32 {
        let (outputs, lanes) = (self.logits.len(), self.exps.len());
        let all_bits = &self.bits[sample * lanes..][..lanes];
        let (mut log_prob, mut is_exact) = (0.0, false);
        for ((Part { logits, lanes }, &number), totals) in self.parts.iter().zip(action).zip(&mut self.totals) {
            let (mut total, mut product) = ([0.0; LANES], [0.0; LANES]);
            let terms = self.exps[lanes.clone()].iter().zip(&self.products[lanes.clone()]);
            for (&bits, (exps, products)) in all_bits[lanes.clone()].iter().zip(terms) {
                let allowed = lanes_of(bits);
                for lane in 0..LANES {
                    total[lane] += f32::from_bits(exps.0[lane].to_bits() & allowed[lane]);
                }
                for lane in 0..LANES {
                    product[lane] += f32::from_bits(products.0[lane].to_bits() & allowed[lane]);
                }
            }
            let (total, product) = (sum_of(total), sum_of(product));
            let number = number as usize;
            let is_allowed = all_bits[lanes.start + number / LANES] >> (number % LANES) & 1 == 1;
            is_exact |= total < LOWEST_TOTAL || total.is_nan() || !is_allowed;
            let log = ln(total);
            *totals = (total, log, log - product / total);
            log_prob += self.logits[logits.start + number] - log;
        }
        (self.sample, self.is_exact) = (sample, is_exact);
        if is_exact {
            self.exact.set(&self.given, Some(&self.masks[sample * outputs..][..outputs]));
            log_prob = self.exact.log_prob(action);
        }
        log_prob
    }

    /// Of the last sample.
    pub(crate) fn entropy(&self) -> f32 {
        if self.is_exact { self.exact.entropy() } else { self.totals.iter().map(|&(_, _, entropy)| entropy).sum() }
    }

    /// Adds the last sample to the gradient of the loss in the logits, see [`Masked::finish`].
    ///
    /// `gradient`: of the objective in the sample's log-probability; `bonus`: weight of its entropy.
    #[inline(always)]
    pub(crate) fn add(&mut self, action: &[i64], gradient: f32, bonus: f32, slopes: &mut [f32]) {
        if self.is_exact {
            self.exact.add_sample(action, gradient, slopes);
            self.exact.add_common(gradient, bonus, slopes);
            return;
        }
        let all_bits = &self.bits[self.sample * self.exps.len()..][..self.exps.len()];
        for ((Part { logits, lanes }, &number), &(total, log, entropy)) in
            self.parts.iter().zip(action).zip(&self.totals)
        {
            slopes[logits.start + number as usize] -= gradient;
            let share = 1.0 / total;
            let factor = bonus.mul_add(entropy - log, gradient) * share;
            let bonus = bonus * share;
            let sums = self.factors[lanes.clone()].iter_mut().zip(&mut self.bonuses[lanes.clone()]);
            for ((factors, bonuses), &bits) in sums.zip(&all_bits[lanes.clone()]) {
                let allowed = lanes_of(bits);
                for (sum, lane) in factors.0.iter_mut().zip(&allowed) {
                    *sum += f32::from_bits(factor.to_bits() & lane);
                }
                for (sum, lane) in bonuses.0.iter_mut().zip(&allowed) {
                    *sum += f32::from_bits(bonus.to_bits() & lane);
                }
            }
        }
    }

    /// Adds to the gradient what the samples of the row have in common: of each, with its probabilities p,
    /// `p * (gradient + bonus * (ln p + H))`.
    #[inline(always)]
    pub(crate) fn finish(&self, slopes: &mut [f32]) {
        for Part { logits, lanes } in &self.parts {
            for (slopes, lane) in slopes[logits.clone()].chunks_mut(LANES).zip(lanes.clone()) {
                let (exps, products) = (&self.exps[lane].0, &self.products[lane].0);
                let (factors, bonuses) = (&self.factors[lane].0, &self.bonuses[lane].0);
                for (i, slope) in slopes.iter_mut().enumerate() {
                    *slope += products[i].mul_add(bonuses[i], exps[i] * factors[i]);
                }
            }
        }
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

    /// Log-probability, entropy and gradient of each sample by itself.
    fn compare(choices: &[usize], logits: &[f32], samples: &[(Vec<u8>, Vec<i64>)], tolerance: f32) {
        let masks: Vec<u8> = samples.iter().flat_map(|(mask, _)| mask.clone()).collect();
        let (mut masked, mut each) = (Masked::new(choices, &masks), Categorical::new(choices));
        let mut slopes = [vec![0.0; logits.len()], vec![0.0; logits.len()]];
        masked.set(logits);
        for (i, (mask, action)) in samples.iter().enumerate() {
            let (gradient, bonus) = (0.7 - 0.4 * i as f32, 0.3);
            each.set(logits, Some(mask));
            let pairs = [(masked.log_prob(i, action), each.log_prob(action)), (masked.entropy(), each.entropy())];
            for (got, expected) in pairs {
                let error = (got - expected).abs() / expected.abs().max(1.0);
                assert!(error < tolerance, "sample {i}: {got} is not {expected}");
            }
            masked.add(action, gradient, bonus, &mut slopes[0]);
            each.add_sample(action, gradient, &mut slopes[1]);
            each.add_common(gradient, bonus, &mut slopes[1]);
        }
        masked.finish(&mut slopes[0]);
        for (got, expected) in slopes[0].iter().zip(&slopes[1]) {
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
        masked.set(&[1.0, 2.0, 3.0]);
        assert!(masked.log_prob(0, &[1]) < -1e8);
    }
}
