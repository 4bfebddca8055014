//! Gradients of PPO's losses in the outputs of a policy, as [`super::imitation`] has those of behaviour cloning.

use std::ops::Range;

use super::batch::{Batch, prefetch};
use super::losses::{Categorical, Gaussian, Sums, Surrogate};
use super::masked::Masked;
use super::samples::Samples;
use crate::widest::widest;

/// Rows of a minibatch that go through a policy together.
pub(super) struct Chunk<'a> {
    pub(super) samples: &'a Samples<'a>,
    pub(super) batch: &'a Batch,
    pub(super) rows: Range<usize>,
    pub(super) surrogate: Surrogate,
    /// Mean of the advantages, and what to multiply the rest by.
    pub(super) normalization: (f32, f32),
}

impl Chunk<'_> {
    /// Fetches numbers of a sample into the cache.
    #[inline(always)]
    fn prefetch(&self, sample: usize) {
        prefetch(self.samples.advantages, sample);
        prefetch(self.samples.log_probs, sample);
    }

    /// The gradient of the objective in the log-probability of a sample.
    #[inline(always)]
    fn gradient(&self, sample: usize, log_prob: f32, sums: &mut Sums) -> f32 {
        let advantage = (self.samples.advantages[sample] - self.normalization.0) * self.normalization.1;
        self.surrogate.gradient(log_prob - self.samples.log_probs[sample], advantage, sums)
    }
}

widest! {
    /// Gradients of the policy's losses in logits.
    pub(super) fn categorical_rows(
        chunk: Chunk<'_>,
        actions: &[i64],
        categorical: &mut Categorical,
        bonus: f32,
        results: &[f32],
        slopes: &mut [f32],
        stride: usize,
        sums: &mut Sums,
    ) {
        let (outputs, width) = (categorical.outputs(), categorical.width());
        let each = results.chunks_exact(stride).zip(slopes.chunks_exact_mut(stride)).zip(chunk.rows.clone());
        for ((results, slopes), row) in each {
            let (results, slopes) = (&results[..outputs], &mut slopes[..outputs]);
            slopes.fill(0.0);
            for &sample in chunk.batch.ahead(row) {
                chunk.prefetch(sample as usize);
                prefetch(actions, sample as usize * width);
            }
            categorical.set(results, None);
            let members = chunk.batch.of(row);
            let mut total = 0.0;
            for &sample in members {
                let action = &actions[sample as usize * width..][..width];
                let gradient = chunk.gradient(sample as usize, categorical.log_prob(action), sums);
                total += gradient;
                categorical.add_sample(action, gradient, slopes);
            }
            let count = members.len() as f32;
            sums.entropy += f64::from(categorical.entropy() * count);
            categorical.add_common(total, bonus * count, slopes);
        }
    }
}

widest! {
    /// Gradients of the policy's losses in logits, where each sample has a mask.
    pub(super) fn masked_rows(
        chunk: Chunk<'_>,
        actions: &[i64],
        masked: &mut Masked<'_>,
        bonus: f32,
        results: &[f32],
        slopes: &mut [f32],
        stride: usize,
        sums: &mut Sums,
    ) {
        let (outputs, width) = (masked.outputs(), masked.width());
        let first = chunk.rows.start;
        masked.clear();
        for (results, row) in results.chunks_exact(stride).zip(chunk.rows.clone()) {
            for &sample in chunk.batch.ahead(row) {
                chunk.prefetch(sample as usize);
                prefetch(actions, sample as usize * width);
                masked.prefetch(sample as usize);
            }
            masked.push_row(&results[..outputs]);
            for &sample in chunk.batch.of(row) {
                masked.push(sample as usize, &actions[sample as usize * width..][..width], &results[..outputs]);
            }
        }
        let samples = chunk.rows.clone().flat_map(|row| chunk.batch.of(row));
        for (number, &sample) in samples.enumerate() {
            masked.weigh(
                number,
                bonus,
                #[inline(always)]
                |log_prob, entropy| {
                    sums.entropy += f64::from(entropy);
                    chunk.gradient(sample as usize, log_prob, sums)
                },
            );
        }
        let mut number = 0;
        let each = results.chunks_exact(stride).zip(slopes.chunks_exact_mut(stride)).zip(chunk.rows.clone());
        for ((results, slopes), row) in each {
            let (samples, slopes) = (chunk.batch.of(row), &mut slopes[..outputs]);
            slopes.fill(0.0);
            masked.add_row(row - first, number, samples, actions, bonus, &results[..outputs], slopes);
            number += samples.len();
        }
    }
}

widest! {
    /// Gradients of the policy's losses in means and logarithms of deviations.
    pub(super) fn gaussian_rows(
        chunk: Chunk<'_>,
        draws: &[f32],
        gaussian: &mut Gaussian,
        results: &[f32],
        slopes: &mut [f32],
        log_std: &mut [f32],
        stride: usize,
        sums: &mut Sums,
    ) {
        let numbers = log_std.len();
        let each = results.chunks_exact(stride).zip(slopes.chunks_exact_mut(stride)).zip(chunk.rows.clone());
        for ((results, slopes), row) in each {
            let (results, slopes) = (&results[..numbers], &mut slopes[..numbers]);
            slopes.fill(0.0);
            for &sample in chunk.batch.of(row) {
                let draw = &draws[sample as usize * numbers..][..numbers];
                let log_prob = gaussian.log_prob(results, draw);
                gaussian.add_sample(chunk.gradient(sample as usize, log_prob, sums), slopes, log_std);
            }
        }
    }
}
