//! A small multi-layer perceptron in f32, with a recurrent layer before its last one if it has a memory, that chooses
//! actions without a framework's cost per call.
//!
//! Each row's result is the same to the last bit whatever the batch, the number of threads and the row's place in it: each
//! output adds up its inputs in their order with fused multiplications, which round alike on every processor. Many rows
//! are multiplied as matrices. Of a few, inputs that are zero are left out, which changes nothing: with finite weights
//! their products are zeros, and adding a zero changes at most the sign of a zero, which no later number depends on and
//! which the last layer takes away. Half of the hidden units of a ReLU network are zeros, and most bits of an observation.

use crate::dense::{Activation, Inputs, Layer, Weights, activate, all_finite, normalize, relu, tanh};
use crate::lanes::{LANES, Lanes, flat, flat_mut, spread};
use crate::learn::network::pointer::pooled::{Pooling, pooled_networks};
use crate::learn::network::pointer::{Tables, pointer_networks};
use crate::learn::network::{Network, NetworkPass};
use crate::matrix::Aligned;
use crate::recurrent::{Cell, Gates, Recurrent};

/// The shape of a network.
#[derive(Clone, Debug, PartialEq)]
pub struct Architecture {
    pub inputs: usize,
    pub hidden: Vec<usize>,
    pub outputs: usize,
    /// The activation after each hidden layer.
    pub activation: Activation,
    /// Layer normalisation comes before each activation.
    pub layer_norm: bool,
    /// Inputs are whitened, `(x - mean) * scale`, and clipped to plus and minus this.
    pub clip: Option<f32>,
    /// A recurrent layer after the hidden ones, and its number of outputs.
    pub memory: Option<(Cell, usize)>,
    /// Inputs are a table of so many rows, on each of which there are actions: the network is the policy of
    /// `fastrl.networks.pointer_policy.PointerPolicy`, without layer normalisation, whitening and memory.
    pub table_rows: Option<usize>,
    /// Inputs start with tables that go through `fastrl.networks.encoders.RowPooling` before the hidden layers, without layer
    /// normalisation, whitening and memory.
    pub pooling: Option<Pooling>,
}

impl Architecture {
    /// Width of what the hidden layers make of the inputs.
    fn features(&self) -> usize {
        self.hidden.last().copied().unwrap_or(self.inputs)
    }

    /// Number of inputs of the last layer.
    fn last_inputs(&self) -> usize {
        self.memory.map_or(self.features(), |(_, size)| size)
    }

    /// Inputs and outputs of each hidden layer.
    fn hidden_layers(&self) -> impl Iterator<Item = (usize, usize)> {
        std::iter::once(self.inputs).chain(self.hidden.iter().copied()).zip(self.hidden.iter().copied())
    }

    /// Length of a row's state; 0 without a memory.
    pub fn state_size(&self) -> usize {
        self.memory.map_or(0, |(cell, size)| cell.states() * size)
    }

    /// Number of weights that [`Mlp::load`] reads.
    pub fn num_weights(&self) -> usize {
        if let Some((_, count)) = self.of_tables() {
            return count;
        }
        let whitening = if self.clip.is_some() { 2 * self.inputs } else { 0 };
        let vectors = if self.layer_norm { 3 } else { 1 };
        let hidden: usize = self.hidden_layers().map(|(inputs, outputs)| (inputs + vectors) * outputs).sum();
        let memory = self.memory.map_or(0, |(cell, size)| Recurrent::num_weights(cell, self.features(), size));
        whitening + hidden + memory + (self.last_inputs() + 1) * self.outputs
    }

    /// The policy of tables, and the number of its weights.
    fn of_tables(&self) -> Option<(Network, usize)> {
        let Self { inputs, ref hidden, outputs, activation, .. } = *self;
        if let Some(pooling) = self.pooling {
            let outputs = [Some(outputs), None];
            let ([policy, _], count) = pooled_networks(pooling, inputs, hidden, activation, outputs, false, 0);
            return policy.map(|policy| (policy, count));
        }
        let rows = self.table_rows?;
        let (policy, _, count) = pointer_networks((rows, inputs / rows), outputs, hidden, activation, false);
        Some((policy, count))
    }
}

/// A policy of tables with its weights.
struct TablePolicy {
    network: Network,
    weights: Aligned,
    /// See [`Mlp::load`].
    rest: f32,
}

impl TablePolicy {
    fn new(network: Network) -> Self {
        let weights = Aligned::zeros(network.room());
        Self { network, weights, rest: 0.0 }
    }

    /// The outputs of `count` tables side by side in `obs`, whose lanes are `apart`.
    fn forward(&self, obs: &[f32], count: usize, memory: &mut TableMemory, outputs: &mut [Lanes], apart: usize) {
        let TableMemory { tables, pass } = memory;
        if let Some(tables) = tables {
            tables.set(obs);
        }
        self.network.gather(obs, tables.as_ref(), 0..count, pass);
        self.network.forward(&self.weights, count, pass);
        let (results, _, row) = self.network.ends(pass);
        for (to, from) in outputs.chunks_exact_mut(apart).zip(results.chunks_exact(row)).take(count) {
            let to = flat_mut(to);
            let (logits, rest) = to.split_at_mut(self.network.outputs());
            logits.copy_from_slice(&from[..logits.len()]);
            rest.fill(self.rest);
        }
    }
}

/// Memory for a block of tables.
struct TableMemory {
    tables: Option<Tables>,
    pass: NetworkPass,
}

struct Whitening {
    mean: Vec<f32>,
    scale: Vec<f32>,
    clip: f32,
}

impl Whitening {
    /// The inputs of a row.
    #[inline(always)]
    fn of(&self, row: &[f32]) -> impl Iterator<Item = f32> {
        let whiten = |((&x, &mean), &scale): ((&f32, &f32), &f32)| ((x - mean) * scale).clamp(-self.clip, self.clip);
        row.iter().zip(&self.mean).zip(&self.scale).map(whiten)
    }
}

pub struct Mlp {
    architecture: Architecture,
    whitening: Option<Whitening>,
    hidden: Vec<Layer>,
    /// Gains and shifts of the layer normalisation of each hidden layer; empty without one.
    norms: Vec<[Vec<f32>; 2]>,
    memory: Option<Recurrent>,
    last: Layer,
    /// Computes the outputs of tables, alone.
    of_tables: Option<TablePolicy>,
}

/// Rows that go through a network together at most.
pub const BLOCK: usize = 64;

/// Rows from which on products of matrices pay.
const MIN_BLOCK: usize = 8;

/// Memory for a block of rows.
pub struct Scratch {
    inputs: Inputs,
    /// Outputs of hidden layers, for one row.
    hidden: Vec<Lanes>,
    /// Inputs and outputs of layers, for all rows of a block.
    blocks: [Vec<Lanes>; 2],
    /// Outputs of the last layer.
    outputs: Vec<Lanes>,
    gates: Option<Gates>,
    tables: Option<TableMemory>,
}

impl Scratch {
    /// The last layer's outputs for the rows of a block from row `row` on, and the distance between them.
    pub(crate) fn outputs_from(&self, row: usize, lanes: usize) -> (&[f32], usize) {
        (flat(&self.outputs[row * spread(lanes)..]), spread(lanes) * LANES)
    }

    /// The last layer's outputs for the rows of a block, each followed by lanes that mean nothing.
    #[inline(always)]
    pub fn outputs(&mut self, lanes: usize) -> impl Iterator<Item = &mut [Lanes]> {
        self.outputs.chunks_exact_mut(spread(lanes))
    }
}

impl Mlp {
    /// A network with weights as of [`Mlp::load`].
    pub fn new(architecture: &Architecture, weights: &[f32], rest: f32) -> Self {
        let of_inputs = || vec![0.0; architecture.inputs];
        let whiten = |clip| Whitening { mean: of_inputs(), scale: of_inputs(), clip };
        let mut made = Self {
            architecture: architecture.clone(),
            whitening: architecture.clip.map(whiten),
            hidden: architecture.hidden.iter().map(|_| Layer::default()).collect(),
            norms: vec![],
            memory: architecture.memory.map(|(cell, size)| Recurrent::new(cell, size)),
            last: Layer::default(),
            of_tables: architecture.of_tables().map(|(network, _)| TablePolicy::new(network)),
        };
        made.load(weights, rest);
        made
    }

    /// Reads mean and scale of each input if they are whitened, then each layer's weights [inputs, outputs] and biases
    /// [outputs], with layer normalisation also gains and shifts [outputs] of each hidden layer, and if there is a memory,
    /// before the last layer, the numbers of [`Recurrent::load`]. These are [`Architecture::num_weights`] numbers, or it
    /// panics; they should be finite. What fills up the lanes of the last
    /// layer gets the bias `rest`, the same each time.
    ///
    /// Of a policy of tables it reads the parameters as PyTorch has them.
    pub fn load(&mut self, weights: &[f32], rest: f32) {
        let architecture = &self.architecture;
        assert_eq!(weights.len(), architecture.num_weights());
        debug_assert!(all_finite(weights));
        if let Some(policy) = &mut self.of_tables {
            policy.network.read(weights, &mut policy.weights);
            policy.rest = rest;
            return;
        }
        let weights = &mut Weights::new(weights);
        if let Some(Whitening { mean, scale, .. }) = &mut self.whitening {
            mean.copy_from_slice(weights.take(architecture.inputs));
            scale.copy_from_slice(weights.take(architecture.inputs));
        }
        self.norms.clear();
        for (layer, (inputs, outputs)) in self.hidden.iter_mut().zip(architecture.hidden_layers()) {
            layer.load(weights, inputs, 1, outputs, 0.0);
            if architecture.layer_norm {
                self.norms.push([(); 2].map(|()| weights.take(outputs).to_vec()));
            }
        }
        if let Some(memory) = &mut self.memory {
            memory.load(architecture.features(), weights);
        }
        self.last.load(weights, architecture.last_inputs(), 1, architecture.outputs, rest);
    }

    pub fn architecture(&self) -> &Architecture {
        &self.architecture
    }

    /// Memory for `rows` rows, or a block if they are more.
    pub fn scratch(&self, rows: usize) -> Scratch {
        let Architecture { inputs, hidden, .. } = &self.architecture;
        let apart = spread(self.lanes());
        if let Some(TablePolicy { network, .. }) = &self.of_tables {
            let tables = network.pointer().expect("it is of tables").tables();
            let memory = TableMemory { tables, pass: network.pass(rows.min(BLOCK), false) };
            return Scratch {
                inputs: Inputs::with_room(0),
                hidden: vec![],
                blocks: [vec![], vec![]],
                outputs: vec![Lanes([0.0; LANES]); rows.min(BLOCK) * apart],
                gates: None,
                tables: Some(memory),
            };
        }
        let widest = hidden.iter().chain([inputs, &self.architecture.last_inputs()]).max().copied();
        let widest = widest.expect("there are inputs");
        let zeros = |lanes: usize| vec![Lanes([0.0; LANES]); lanes];
        let rows = rows.min(BLOCK);
        let block = || zeros(if rows < MIN_BLOCK { 0 } else { rows * spread(widest.div_ceil(LANES)) });
        Scratch {
            inputs: Inputs::with_room(widest),
            hidden: zeros(self.hidden.iter().map(Layer::lanes).max().unwrap_or(0)),
            blocks: [block(), block()],
            outputs: zeros(rows * apart),
            gates: self.memory.as_ref().map(Recurrent::gates),
            tables: None,
        }
    }

    /// Number of lanes of a row's outputs.
    pub fn lanes(&self) -> usize {
        self.architecture.outputs.div_ceil(LANES)
    }

    /// The outputs for up to [`BLOCK`] rows of inputs, into `scratch`; and the rows' new states,
    /// [`Architecture::state_size`] numbers each.
    #[inline(always)]
    pub fn forward(&self, rows: &[f32], states: &mut [f32], scratch: &mut Scratch) {
        let (width, size) = (self.architecture.inputs, self.architecture.state_size());
        let count = rows.len() / width;
        let apart = spread(self.lanes());
        if let (Some(policy), Some(memory)) = (&self.of_tables, &mut scratch.tables) {
            policy.forward(rows, count, memory, &mut scratch.outputs, apart);
        } else if count < MIN_BLOCK {
            for (i, row) in rows.chunks_exact(width).enumerate() {
                self.forward_row(row, &mut states[i * size..][..size], scratch, i * apart);
            }
        } else {
            self.forward_block(rows, count, states, scratch);
        }
        // -0 becomes 0.
        flat_mut(&mut scratch.outputs[..count * apart]).iter_mut().for_each(|x| *x += 0.0);
    }

    /// Writes the outputs for one row from lane `to` on.
    #[inline(always)]
    fn forward_row(&self, row: &[f32], state: &mut [f32], scratch: &mut Scratch, to: usize) {
        let Scratch { inputs, hidden, outputs, gates, .. } = scratch;
        inputs.clear();
        match &self.whitening {
            None => row.iter().enumerate().for_each(|(k, &x)| inputs.push(k, x)),
            Some(whitening) => whitening.of(row).enumerate().for_each(|(k, x)| inputs.push(k, x)),
        }
        for (l, (layer, &width)) in self.hidden.iter().zip(&self.architecture.hidden).enumerate() {
            layer.forward(inputs, hidden);
            inputs.clear();
            if let Some([gain, shift]) = self.norms.get(l) {
                let apart = layer.lanes() * LANES;
                normalize(&mut flat_mut(hidden)[..apart], apart, gain, shift);
            }
            for (lanes, first) in hidden.iter_mut().zip((0..width).step_by(LANES)) {
                match self.architecture.activation {
                    Activation::Relu => lanes.0.iter_mut().for_each(|x| *x = relu(*x)),
                    Activation::Tanh => lanes.0.iter_mut().for_each(|x| *x = tanh(*x)),
                }
                lanes.0.iter().zip(first..width).for_each(|(&x, place)| inputs.push(place, x));
            }
        }
        if let (Some(memory), Some(gates)) = (&self.memory, gates) {
            memory.forward(inputs, state, gates);
            inputs.clear();
            state[..memory.size()].iter().enumerate().for_each(|(k, &x)| inputs.push(k, x));
        }
        self.last.forward(inputs, &mut outputs[to..to + self.last.lanes()]);
    }

    /// [`Mlp::forward_row`] of all rows, by products of matrices.
    fn forward_block(&self, rows: &[f32], count: usize, states: &mut [f32], scratch: &mut Scratch) {
        let Scratch { inputs, blocks: [from, to], outputs, gates, .. } = scratch;
        let mut width = self.architecture.inputs;
        let mut apart = spread(width.div_ceil(LANES));
        for (row, to) in rows.chunks_exact(width).zip(from.chunks_exact_mut(apart)) {
            match &self.whitening {
                None => flat_mut(to)[..width].copy_from_slice(row),
                Some(whitening) => flat_mut(to).iter_mut().zip(whitening.of(row)).for_each(|(to, x)| *to = x),
            }
        }
        for (l, (layer, &outputs)) in self.hidden.iter().zip(&self.architecture.hidden).enumerate() {
            layer.forward_rows(count, width, flat(from), apart * LANES, to);
            (width, apart) = (outputs, spread(layer.lanes()));
            if let Some([gain, shift]) = self.norms.get(l) {
                normalize(flat_mut(&mut to[..count * apart]), apart * LANES, gain, shift);
            }
            let with_tanh = self.architecture.activation == Activation::Tanh;
            activate(with_tanh, flat_mut(&mut to[..count * apart]));
            std::mem::swap(from, to);
        }
        if let (Some(memory), Some(gates)) = (&self.memory, gates) {
            let size = self.architecture.state_size();
            let next = spread(memory.size().div_ceil(LANES));
            for (i, state) in states.chunks_exact_mut(size).take(count).enumerate() {
                inputs.clear();
                flat(&from[i * apart..][..apart])[..width].iter().enumerate().for_each(|(k, &x)| inputs.push(k, x));
                memory.forward(inputs, state, gates);
                flat_mut(&mut to[i * next..][..next])[..memory.size()].copy_from_slice(&state[..memory.size()]);
            }
            (width, apart) = (memory.size(), next);
            std::mem::swap(from, to);
        }
        self.last.forward_rows(count, width, flat(from), apart * LANES, outputs);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn rows_together_are_as_each_by_itself(
            inputs in 1_usize..40,
            hidden in prop::collection::vec(1_usize..70, 0..3),
            outputs in 1_usize..60,
            relu: bool,
            layer_norm: bool,
            clip in prop::option::of(0.1_f32..3.0),
            memory in prop::option::of((prop_oneof![Just(Cell::Gru), Just(Cell::Lstm)], 1_usize..40)),
            rows in MIN_BLOCK..=BLOCK,
            seed: u64,
        ) {
            let activation = if relu { Activation::Relu } else { Activation::Tanh };
            let (table_rows, pooling) = (None, None);
            let architecture =
                Architecture { inputs, hidden, outputs, activation, layer_norm, clip, memory, table_rows, pooling };
            let mut state = seed;
            let mut number = || {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let x = (state >> 40) as f32 / (1_u64 << 23) as f32 - 1.0;
                // Zeros of both signs, too.
                if x.abs() < 0.3 { 0.0_f32.copysign(x) } else { x }
            };
            let mut numbers = |count: usize| (0..count).map(|_| number()).collect::<Vec<_>>();
            let mlp = Mlp::new(&architecture, &numbers(architecture.num_weights()), f32::NEG_INFINITY);
            let (obs, size) = (numbers(rows * inputs), architecture.state_size());
            let (mut together, mut single) = (mlp.scratch(rows), mlp.scratch(1));
            let mut states = numbers(rows * size);
            let mut states_of_each = states.clone();
            for _ in 0..2 {
                mlp.forward(&obs, &mut states, &mut together);
                for (i, all) in together.outputs(mlp.lanes()).enumerate() {
                    let state = &mut states_of_each[i * size..][..size];
                    mlp.forward(&obs[i * inputs..][..inputs], state, &mut single);
                    let one = single.outputs(mlp.lanes()).next().expect("a row");
                    let bits = |lanes: &[Lanes]| flat(&lanes[..mlp.lanes()]).iter().map(|x| x.to_bits()).collect::<Vec<_>>();
                    prop_assert_eq!(bits(all), bits(one));
                }
                prop_assert_eq!(&states, &states_of_each);
            }
        }
    }
}
