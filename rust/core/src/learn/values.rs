//! Values of observations, by the critic that an update of PPO learns.

use std::ops::Range;

use super::network::pointer::Tables;
use super::network::{Network, NetworkPass};
use super::perceptron::CHUNK;
use super::samples::Shape;
use crate::bf16::Precision;
use crate::matrix::{Aligned, stride};
use crate::team::Team;

/// Writes the values [..., critic's outputs] of observations [..., inputs] in the places that have the numbers `rows`, in one
/// pass through the critic. They are f32 whatever the precision of gradient steps.
///
/// # Arguments
/// - `threads`: at most; the numbers are the same for any number.
/// - `team`: that of earlier values, which has fewer threads only as long as there have been few rows.
///
/// # Panics
/// There is no critic, or arrays do not fit, or do not have such a row.
pub fn values(
    shape: &Shape,
    parameters: &[f32],
    obs: &[f32],
    rows: &[i64],
    out: &mut [f32],
    threads: usize,
    team: &mut Team,
) {
    assert!(shape.has_critic(), "there is no critic");
    assert_eq!(parameters.len(), shape.num_parameters(), "parameters of another network");
    let (inputs, outputs) = (shape.inputs, shape.critic_outputs);
    assert!(obs.len().is_multiple_of(inputs) && out.len().is_multiple_of(outputs), "the arrays do not fit");
    if rows.is_empty() {
        return;
    }
    let [actor, critic] = Shape { precision: Precision::Fp32, ..shape.clone() }.actor_and_critic();
    // Of a shared trunk the value stands behind the policy's outputs.
    let first = if critic.is_some() { 0 } else { shape.kind.outputs() };
    let network = critic.or(actor).expect("there is a critic");
    let mut vector = Aligned::zeros(network.room());
    network.read(parameters, &mut vector);
    let tables = network.pointer().and_then(|pointer| pointer.tables_of(obs));
    team.resize(threads.min(rows.len().div_ceil(CHUNK)).max(team.len()));
    let share = rows.len().div_ceil(team.len()).next_multiple_of(CHUNK);
    let part = |rows| Part { rows, pass: network.pass(CHUNK.min(rows.len()), false), values: vec![] };
    let mut parts: Vec<_> = rows.chunks(share).map(part).collect();
    team.each(&mut parts, |part| part.compute(&network, &vector, inputs, first..first + outputs, obs, tables.as_ref()));
    for Part { rows, values, .. } in parts {
        for (&row, values) in rows.iter().zip(values.chunks_exact(outputs)) {
            out[row as usize * outputs..][..outputs].copy_from_slice(values);
        }
    }
}

/// Some rows that a thread takes through the network, and their values.
struct Part<'a> {
    rows: &'a [i64],
    pass: NetworkPass,
    values: Vec<f32>,
}

impl Part<'_> {
    fn compute(
        &mut self,
        network: &Network,
        vector: &[f32],
        inputs: usize,
        outputs: Range<usize>,
        obs: &[f32],
        tables: Option<&Tables>,
    ) {
        let Self { rows, pass, values } = self;
        for rows in rows.chunks(CHUNK) {
            if network.pointer().is_some() {
                network.gather(obs, tables, rows.iter().map(|&row| row as usize), pass);
            } else {
                for (&row, to) in rows.iter().zip(pass.parts[0].inputs.chunks_exact_mut(stride(inputs))) {
                    to[..inputs].copy_from_slice(&obs[row as usize * inputs..][..inputs]);
                }
            }
            network.forward(vector, rows.len(), pass);
            let (results, _, apart) = network.ends(pass);
            for row in results.chunks_exact(apart).take(rows.len()) {
                values.extend_from_slice(&row[outputs.clone()]);
            }
        }
    }
}
