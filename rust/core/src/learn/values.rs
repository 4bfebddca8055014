//! Values of observations, by the critic that an update of PPO learns.

use super::perceptron::{CHUNK, Pass, Perceptron};
use super::samples::Shape;
use crate::bf16::Precision;
use crate::matrix::{Aligned, stride};
use crate::team::Team;

/// Writes the values [rows, critic's outputs] of observations [rows, inputs], in one pass through the critic. They are f32
/// whatever the precision of gradient steps.
///
/// `team`: shares out the rows; the numbers are the same for any number of threads.
///
/// # Panics
/// There is no critic, or arrays do not fit.
pub fn values(shape: &Shape, parameters: &[f32], obs: &[f32], out: &mut [f32], team: &mut Team) {
    assert!(shape.has_critic(), "there is no critic");
    assert_eq!(parameters.len(), shape.num_parameters(), "parameters of another network");
    let (inputs, outputs) = (shape.inputs, shape.critic_outputs);
    let rows = obs.len() / inputs;
    assert!(obs.len() == rows * inputs && out.len() == rows * outputs, "the arrays do not fit");
    if rows == 0 {
        return;
    }
    let network = Shape { precision: Precision::Fp32, ..shape.clone() }.critic();
    let mut vector = Aligned::zeros(network.room());
    network.read(&parameters[parameters.len() - network.len()..], &mut vector);
    let share = rows.div_ceil(team.len()).next_multiple_of(CHUNK);
    let parts = obs.chunks(share * inputs).zip(out.chunks_mut(share * outputs));
    let mut parts: Vec<_> = parts.map(|(obs, out)| (obs, out, network.pass(CHUNK.min(rows)))).collect();
    team.each(&mut parts, |(obs, out, pass)| {
        for (obs, out) in obs.chunks(CHUNK * inputs).zip(out.chunks_mut(CHUNK * outputs)) {
            values_of_chunk(&network, &vector, (inputs, outputs), obs, out, pass);
        }
    });
}

/// The same of [`CHUNK`] rows at most.
fn values_of_chunk(
    network: &Perceptron,
    vector: &[f32],
    (inputs, outputs): (usize, usize),
    obs: &[f32],
    out: &mut [f32],
    pass: &mut Pass,
) {
    for (row, to) in obs.chunks_exact(inputs).zip(pass.inputs.chunks_exact_mut(stride(inputs))) {
        to[..inputs].copy_from_slice(row);
    }
    network.forward(vector, obs.len() / inputs, pass);
    let (results, _, apart) = pass.ends(network);
    for (row, to) in results.chunks_exact(apart).zip(out.chunks_exact_mut(outputs)) {
        to.copy_from_slice(&row[..outputs]);
    }
}
