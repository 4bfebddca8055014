//! Actions from -1 to 1: tanh of a Gaussian's draws, or of a policy's outputs with noise added. Losses and actors share them.

use crate::dense::{exp, exp_any, tanh};
use crate::widest::widest;

/// The logarithms of a Gaussian's deviations stay within these, as in `fastrl.networks.bounded_actor`.
pub(crate) const LOG_STD_RANGE: (f32, f32) = (-20.0, 2.0);

/// 2 log 2 + log(2 pi) / 2, in the log-density of a squashed Gaussian.
const LOG_DENSITY: f32 = 2.305_233;

/// Draws of a squashed Gaussian, rows of some numbers.
#[derive(Debug)]
pub struct Draws<'a> {
    pub actions: &'a mut [f32],
    pub deviations: &'a mut [f32],
    /// Memory.
    pub densities: &'a mut [f32],
    /// [rows], log-densities of the actions.
    pub log_probs: &'a mut [f32],
}

/// Draws actions tanh(u) with u from a Gaussian, and their log-densities: `squashed` of
/// `fastrl.algorithms.off_policy_loss`.
///
/// # Arguments
/// - `outputs`: rows `row` apart, each of means and then logarithms of deviations.
/// - `noise`: normal [rows, numbers].
pub fn squash_rows(outputs: &[f32], row: usize, numbers: usize, noise: &[f32], to: Draws<'_>) {
    let Draws { actions, deviations, densities, log_probs } = to;
    let count = noise.len();
    let places = actions.chunks_exact_mut(numbers).zip(deviations.chunks_exact_mut(numbers));
    for ((means, log_stds), outputs) in places.zip(outputs.chunks_exact(row)).take(count / numbers) {
        means.copy_from_slice(&outputs[..numbers]);
        log_stds.copy_from_slice(&outputs[numbers..][..numbers]);
    }
    squash(&mut actions[..count], &mut deviations[..count], noise, &mut densities[..count]);
    for (log_prob, densities) in log_probs.iter_mut().zip(densities[..count].chunks_exact(numbers)) {
        *log_prob = densities.iter().sum::<f32>() - LOG_DENSITY * numbers as f32;
    }
}

/// tanh of an output with noise added, within the bounds.
pub fn with_noise(output: f32, noise: f32) -> f32 {
    (tanh(output) + noise).clamp(-1.0, 1.0)
}

/// log(1 + e^x), which is x + 2 artanh(e / (2 + e)) or 2 artanh(e / (2 + e)) with e = e^-|x|.
#[inline(always)]
fn softplus(x: f32) -> f32 {
    let e = exp(-x.abs());
    let s = e / (e + 2.0);
    let terms = [13.0, 11.0, 9.0, 7.0, 5.0, 3.0, 1.0];
    let series = terms.into_iter().fold(1.0 / 15.0, |sum: f32, n| sum.mul_add(s * s, 1.0 / n));
    (2.0 * s).mul_add(series, x.max(0.0))
}

widest! {
    /// Turns means into actions tanh(u) and logarithms of deviations into deviations, and writes the log-density of each
    /// number but for a constant.
    fn squash(means: &mut [f32], log_stds: &mut [f32], noise: &[f32], densities: &mut [f32]) {
        let places = means.iter_mut().zip(log_stds).zip(densities);
        for (((mean, log_std), density), &noise) in places.zip(noise) {
            let clipped = log_std.clamp(LOG_STD_RANGE.0, LOG_STD_RANGE.1);
            let deviation = exp_any(clipped);
            let draw = deviation.mul_add(noise, *mean);
            // log(1 - tanh(u)^2) = 2 (log 2 - u - softplus(-2 u)).
            *density = 2.0 * (draw + softplus(-2.0 * draw)) - clipped - 0.5 * noise * noise;
            (*mean, *log_std) = (tanh(draw), deviation);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn softplus_is_accurate() {
        for i in -400_000..=400_000 {
            let x = i as f32 * 1e-4;
            let expected = f64::from(x).exp().ln_1p();
            assert!((f64::from(softplus(x)) - expected).abs() <= 3e-7 * expected, "softplus({x}) = {}", softplus(x));
        }
        assert!(softplus(f32::NAN).is_nan());
    }
}
