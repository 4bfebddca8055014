//! Networks with the encoder of tables `fastrl.networks.encoders.RowPooling`.
//!
//! The parts are those of a value function of [`Pointer`], but that a table's first row stands beside each other one, and
//! before the maxima and means of their features.

use super::{CONTEXT, FEATURES, Pointer, ROWS, Run, TablePass, linear};
use crate::dense::Activation;
use crate::learn::network::{Network, NetworkPass, Segment};
use crate::learn::perceptron::Perceptron;
use crate::matrix::stride;

/// The tables side by side at the start of an observation, [tables, rows, width]; other numbers follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pooling {
    pub tables: usize,
    pub rows: usize,
    pub width: usize,
}

impl Pooling {
    /// Numbers of all tables.
    fn size(&self) -> usize {
        self.tables * self.rows * self.width
    }

    /// Length of the first row and the pooled features of all tables.
    pub fn features(&self) -> usize {
        self.tables * (self.width + 2 * FEATURES)
    }
}

/// An actor and a critic of so many outputs, those that are there, and the number that follows that of their last parameter,
/// in the order of PyTorch: encoders and hidden layers before all last layers.
///
/// # Arguments
/// - `inputs`: length of an observation.
/// - `shares`: they are one network, whose outputs are the actor's and then the critic's.
/// - `first`: number of the first parameter.
pub(crate) fn pooled_networks(
    pooling: Pooling,
    inputs: usize,
    hidden: &[usize],
    activation: Activation,
    outputs: [Option<usize>; 2],
    shares: bool,
    first: usize,
) -> ([Option<Network>; 2], usize) {
    let mut all = first;
    let mut take = |count: usize| {
        all += count;
        Segment::Place(all - count..all)
    };
    let of_rows = [2 * pooling.width, FEATURES, FEATURES];
    let context = pooling.features() + inputs - pooling.size();
    let of_context: Vec<usize> = std::iter::once(context).chain(hidden.iter().copied()).collect();
    let last = of_context[hidden.len()];
    let has_trunk = [outputs[0].is_some(), outputs[1].is_some() && !shares];
    let trunks = has_trunk.map(|is_there| is_there.then(|| [take(linear(&of_rows)), take(linear(&of_context))]));
    let heads = outputs.map(|outputs| outputs.map(|outputs| (take(last * outputs), take(outputs), outputs)));
    let network = |[encoder, trunk]: [Segment; 2], heads: &[(Segment, Segment, usize)]| {
        let outputs = heads.iter().map(|head| head.2).sum();
        let sizes: Vec<usize> = of_context.iter().copied().chain([outputs]).collect();
        let mut segments = vec![trunk];
        segments.extend(heads.iter().map(|head| head.0.clone()));
        segments.extend(heads.iter().map(|head| head.1.clone()));
        let rows = pooling.tables * (pooling.rows - 1);
        let parts = vec![
            (Perceptron::part(&of_rows, Activation::Relu, false, false), vec![encoder], rows),
            (Perceptron::part(&sizes, activation, true, true), segments, 1),
        ];
        let pointer = Pointer {
            rows: pooling.rows,
            width: pooling.width,
            tables: pooling.tables,
            beside: pooling.width,
            context,
            on_each: 0,
            on_none: outputs,
            activation: Activation::Relu,
            is_policy: false,
            depth: of_context.len(),
        };
        Network::new(parts, Some(pointer))
    };
    let networks = match (trunks, heads) {
        ([Some(trunk), _], [Some(actor), Some(critic)]) if shares => [Some(network(trunk, &[actor, critic])), None],
        ([actor, critic], heads) => {
            let [of_actor, of_critic] = heads;
            [actor.zip(of_actor), critic.zip(of_critic)].map(|each| each.map(|(trunk, head)| network(trunk, &[head])))
        }
    };
    (networks, all)
}

impl Pointer {
    /// [`Network::gather`] of observations [..., inputs]; of tables the rows that are not empty.
    pub(crate) fn gather_rows(&self, obs: &[f32], rows: impl Iterator<Item = usize>, pass: &mut NetworkPass) {
        let NetworkPass { parts, counts, tables: memory } = pass;
        let TablePass { runs, starts, .. } = memory.as_mut().expect("it is of tables");
        let [of_rows, of_context, ..] = &mut parts[..] else { unreachable!("it has these parts") };
        let (size, width, features) = (self.rows * self.width, self.width, self.beside + 2 * FEATURES);
        let others = self.context - self.tables * features;
        let (inputs, apart) = (self.tables * size + others, stride(2 * width));
        runs.clear();
        starts.clear();
        counts[CONTEXT] = 0;
        for (row, to) in rows.zip(of_context.inputs.chunks_exact_mut(stride(self.context))) {
            let (tables, rest) = obs[row * inputs..][..inputs].split_at(self.tables * size);
            let (pooled, to) = to[..self.context].split_at_mut(self.tables * features);
            to.copy_from_slice(rest);
            for (table, to) in tables.chunks_exact(size).zip(pooled.chunks_exact_mut(features)) {
                starts.push(runs.len());
                let (own, others) = table.split_at(width);
                to[..width].copy_from_slice(own);
                for other in others.chunks_exact(width).filter(|other| other.iter().any(|&x| x != 0.0)) {
                    let to = &mut of_rows.inputs[runs.len() * apart..][..2 * width];
                    to[..width].copy_from_slice(other);
                    to[width..].copy_from_slice(own);
                    runs.push(Run { row: runs.len() as u32, count: 1, is_there: true });
                }
            }
            counts[CONTEXT] += 1;
        }
        counts[ROWS] = runs.len();
        starts.push(runs.len());
    }
}
