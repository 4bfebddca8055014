//! Log-probabilities of a Gaussian policy that acted in f32 and learns in bfloat16.

use super::losses::Gaussian;
use super::perceptron::CHUNK;
use super::samples::{Actions, Samples, Shape};
use crate::bf16::Precision;
use crate::matrix::{Aligned, stride};
use crate::team::Team;

/// Log-probabilities of actions, and the difference that rounding the hidden layers of the policy makes to them. So ratios
/// of an update start at 1: means that differ by a part of a small deviation would put them beyond the clip range. `None`:
/// as they are, also of choices, whose log-probabilities rounding changes by a hundredth at most.
pub(super) fn rounded_log_probs(
    shape: &Shape,
    samples: &Samples<'_>,
    parameters: &[f32],
    team: &mut Team,
) -> Option<Vec<f32>> {
    let Actions::Gaussian(draws) = samples.actions else { return None };
    if shape.precision == Precision::Fp32 || samples.log_probs.is_empty() {
        return None;
    }
    let numbers = shape.deviations();
    let (log_std, parameters) = parameters.split_at(numbers);
    let [exact, rounded] = [Precision::Fp32, shape.precision]
        .map(|precision| means(&Shape { precision, ..shape.clone() }, samples.obs, parameters, team));
    let mut gaussian = Gaussian::new(log_std);
    let each = samples.log_probs.iter().zip(samples.groups).zip(draws.chunks_exact(numbers));
    let differ = each.map(|((log_prob, &group), draw)| {
        let mut of = |means: &[f32]| gaussian.log_prob(&means[group as usize * numbers..][..numbers], draw);
        log_prob + (of(&rounded) - of(&exact))
    });
    Some(differ.collect())
}

/// Means [G, numbers] at observations [G, inputs].
fn means(shape: &Shape, obs: &[f32], parameters: &[f32], team: &mut Team) -> Vec<f32> {
    let (network, width, numbers) = (shape.actor(), shape.actor_inputs, shape.deviations());
    let mut vector = Aligned::zeros(network.room());
    network.read_linear(&parameters[..network.len()], &mut vector, &mut []);
    let mut means = vec![0.0; obs.len() / shape.inputs * numbers];
    let mut chunks: Vec<_> = obs.chunks(CHUNK * shape.inputs).zip(means.chunks_mut(CHUNK * numbers)).collect();
    team.each(&mut chunks, |(obs, means)| {
        let rows = means.len() / numbers;
        let mut pass = network.pass(rows);
        for (from, to) in obs.chunks_exact(shape.inputs).zip(pass.inputs.chunks_exact_mut(stride(width))) {
            to[..width].copy_from_slice(&from[..width]);
        }
        network.forward(&vector, rows, &mut pass);
        let (outputs, _, row) = pass.ends(&network);
        for (from, to) in outputs.chunks_exact(row).zip(means.chunks_exact_mut(numbers)) {
            to.copy_from_slice(&from[..numbers]);
        }
    });
    means
}
