//! The loss of behaviour cloning and its gradient: the compiled counterpart of `fastrl.algorithms.imitation_loss`.

use super::losses::{Categorical, Gaussian, Sums};
use crate::widest::widest;

/// The loss of behaviour cloning. Each sample has a row of its own, in the order of the samples.
#[derive(Clone, Copy, Debug)]
pub struct Imitation {
    /// Means of a Gaussian learn from squared errors in place of the log-likelihood, which deviations learn from.
    pub squared: bool,
    /// Share of the target's probability that all choices have in equal parts (Szegedy et al., 2016).
    pub label_smoothing: f32,
}

widest! {
    /// The gradient in logits: with probabilities p, and q those of the target, `p - q`.
    ///
    /// # Arguments
    /// - `weight`: one over the number of samples; `bonus`: weight of the entropy.
    pub(super) fn cloned_choices(
        loss: Imitation,
        actions: &[i64],
        categorical: &mut Categorical,
        weight: f32,
        bonus: f32,
        results: &[f32],
        slopes: &mut [f32],
        stride: usize,
        sums: &mut Sums,
    ) {
        let (outputs, width) = (categorical.outputs(), categorical.width());
        let rows = results.chunks_exact(stride).zip(slopes.chunks_exact_mut(stride));
        for ((results, slopes), action) in rows.zip(actions.chunks_exact(width)) {
            let (results, slopes) = (&results[..outputs], &mut slopes[..outputs]);
            slopes.fill(0.0);
            categorical.set(results, None);
            categorical.add_sample(action, weight * (1.0 - loss.label_smoothing), slopes);
            categorical.add_uniform(weight * loss.label_smoothing, slopes);
            categorical.add_common(weight, bonus, slopes);
            sums.objective += f64::from(categorical.log_prob(action));
            sums.entropy += f64::from(categorical.entropy());
            sums.score += categorical.hits(action) as f64 / width as f64;
        }
    }
}

widest! {
    /// The gradients in means and in logarithms of deviations; arguments as of [`cloned_choices`].
    pub(super) fn cloned_draws(
        loss: Imitation,
        draws: &[f32],
        gaussian: &mut Gaussian,
        weight: f32,
        results: &[f32],
        slopes: &mut [f32],
        log_std: &mut [f32],
        stride: usize,
        sums: &mut Sums,
    ) {
        let numbers = log_std.len();
        let factor = 2.0 * weight / numbers as f32;
        let rows = results.chunks_exact(stride).zip(slopes.chunks_exact_mut(stride));
        for ((means, slopes), draw) in rows.zip(draws.chunks_exact(numbers)) {
            let (means, slopes) = (&means[..numbers], &mut slopes[..numbers]);
            slopes.fill(0.0);
            let log_prob = gaussian.log_prob(means, draw);
            gaussian.add_sample(weight, slopes, log_std);
            let mut squares = 0.0;
            for ((slope, &mean), &number) in slopes.iter_mut().zip(means).zip(draw) {
                let error = mean - number;
                squares += error * error;
                if loss.squared {
                    *slope = factor * error;
                }
            }
            let square = squares / numbers as f32;
            sums.objective += f64::from(if loss.squared { -square } else { log_prob });
            sums.score += f64::from(square);
        }
    }
}
