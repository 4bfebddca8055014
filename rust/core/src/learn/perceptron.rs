//! A multi-layer perceptron's pass through rows of inputs, and back to the gradient of its parameters.

use std::ops::Range;

use crate::dense::activate;
use crate::gemm::{Aligned, Left, Start, multiply, padded, stride, transpose};
use crate::mlp::Activation;
use crate::widest::widest;

/// Rows that go through a network together: enough for products of matrices, few enough for the cache.
pub(crate) const CHUNK: usize = 128;

/// Chunks of so many rows.
pub(crate) fn chunks(rows: usize) -> impl Iterator<Item = Range<usize>> {
    (0..rows).step_by(CHUNK).map(move |first| first..rows.min(first + CHUNK))
}

/// A linear layer, and where its parameters are in those of the network: weights [inputs, row] and biases [row], of which
/// the first `outputs` count and the others are zeros.
struct Layer {
    inputs: usize,
    outputs: usize,
    row: usize,
    weights: Range<usize>,
    bias: Range<usize>,
}

/// The layers of a network. Its parameters, gradients and moments are vectors of [`Perceptron::room`] numbers, in which
/// rows have the [`stride`] that suits the cache.
pub(crate) struct Perceptron {
    layers: Vec<Layer>,
    activation: Activation,
    room: usize,
}

/// Memory for passes of up to so many rows.
pub(crate) struct Pass {
    /// Inputs, [rows, stride of the inputs].
    pub(crate) inputs: Aligned,
    /// Outputs of each layer, after its activation.
    outputs: Vec<Aligned>,
    /// Gradients of these.
    slopes: Vec<Aligned>,
    /// Weights of each layer but the first [outputs, stride of the inputs].
    transposed: Vec<Aligned>,
}

impl Pass {
    /// The network's outputs [rows, row] and the place for their gradient of the same shape, and `row`. In rows of the
    /// gradient there are zeros after the outputs.
    pub(crate) fn ends(&mut self, network: &Perceptron) -> (&[f32], &mut [f32], usize) {
        let row = network.layers.last().expect("there is one").row;
        (self.outputs.last().expect("there is one"), self.slopes.last_mut().expect("there is one"), row)
    }
}

impl Perceptron {
    /// `sizes`: numbers of inputs, of outputs of hidden layers, and of outputs.
    pub(crate) fn new(sizes: &[usize], activation: Activation) -> Self {
        let mut room = 0;
        let mut take = |count: usize| {
            room += count;
            room - count..room
        };
        let layers = sizes.windows(2).map(|ends| {
            let (inputs, outputs, row) = (ends[0], ends[1], stride(ends[1]));
            Layer { inputs, outputs, row, weights: take(inputs * row), bias: take(row) }
        });
        let layers = layers.collect();
        Self { layers, activation, room }
    }

    pub(crate) fn room(&self) -> usize {
        self.room
    }

    /// Number of parameters.
    pub(crate) fn len(&self) -> usize {
        self.layers.iter().map(|layer| (layer.inputs + 1) * layer.outputs).sum()
    }

    /// Multiplications in a pass of one row.
    pub(crate) fn work(&self) -> usize {
        self.layers.iter().map(|layer| layer.inputs * padded(layer.outputs)).sum()
    }

    /// Reads vectors as PyTorch has them, of each layer weights [outputs, inputs] and biases.
    pub(crate) fn read(&self, flat: &[f32], vector: &mut [f32]) {
        let mut rest = flat;
        for layer in &self.layers {
            let (weights, after) = rest.split_at(layer.inputs * layer.outputs);
            transpose(
                layer.outputs,
                layer.inputs,
                weights,
                layer.inputs,
                &mut vector[layer.weights.clone()],
                layer.row,
            );
            let (bias, after) = after.split_at(layer.outputs);
            vector[layer.bias.clone()][..layer.outputs].copy_from_slice(bias);
            rest = after;
        }
    }

    /// Writes what [`Perceptron::read`] reads.
    pub(crate) fn write(&self, vector: &[f32], flat: &mut [f32]) {
        let mut rest = flat;
        for layer in &self.layers {
            let (weights, after) = rest.split_at_mut(layer.inputs * layer.outputs);
            transpose(layer.inputs, layer.outputs, &vector[layer.weights.clone()], layer.row, weights, layer.inputs);
            let (bias, after) = after.split_at_mut(layer.outputs);
            bias.copy_from_slice(&vector[layer.bias.clone()][..layer.outputs]);
            rest = after;
        }
    }

    /// The layers, and where weights and biases of one of `count` perceptrons are in a vector that has of each layer
    /// weights [count, inputs, outputs] and then biases [count, outputs].
    fn places(&self, index: usize, count: usize) -> impl Iterator<Item = (&Layer, Range<usize>, Range<usize>)> {
        let mut start = 0;
        self.layers.iter().map(move |layer| {
            let size = layer.inputs * layer.outputs;
            let (weights, bias) = (start + index * size, start + count * size + index * layer.outputs);
            start += count * (size + layer.outputs);
            (layer, weights..weights + size, bias..bias + layer.outputs)
        })
    }

    /// Reads the parameters of perceptron `index` of an ensemble of `count`, see `fastrl.networks.ensemble.Ensemble`.
    pub(crate) fn read_member(&self, flat: &[f32], index: usize, count: usize, vector: &mut [f32]) {
        for (layer, weights, bias) in self.places(index, count) {
            let rows = flat[weights].chunks_exact(layer.outputs);
            for (to, from) in vector[layer.weights.clone()].chunks_exact_mut(layer.row).zip(rows) {
                to[..layer.outputs].copy_from_slice(from);
            }
            vector[layer.bias.clone()][..layer.outputs].copy_from_slice(&flat[bias]);
        }
    }

    /// Adds the gradient of perceptron `index` to that of an ensemble of `count`, and zeroes it.
    pub(crate) fn add_member(&self, gradient: &mut [f32], index: usize, count: usize, flat: &mut [f32]) {
        let add = |to: &mut [f32], from: &[f32]| to.iter_mut().zip(from).for_each(|(to, &from)| *to += from);
        for (layer, weights, bias) in self.places(index, count) {
            let rows = gradient[layer.weights.clone()].chunks_exact(layer.row);
            for (to, from) in flat[weights].chunks_exact_mut(layer.outputs).zip(rows) {
                add(to, from);
            }
            add(&mut flat[bias], &gradient[layer.bias.clone()]);
        }
        gradient.fill(0.0);
    }

    pub(crate) fn pass(&self, rows: usize) -> Pass {
        let outputs = || self.layers.iter().map(|layer| Aligned::zeros(rows * layer.row)).collect();
        Pass {
            inputs: Aligned::zeros(rows * stride(self.layers[0].inputs)),
            outputs: outputs(),
            slopes: outputs(),
            transposed: self.layers[1..]
                .iter()
                .map(|layer| Aligned::zeros(layer.outputs * stride(layer.inputs)))
                .collect(),
        }
    }

    /// Brings a pass's copies of the weights up to date, for [`Perceptron::backward`].
    pub(crate) fn transpose(&self, parameters: &[f32], pass: &mut Pass) {
        for (layer, to) in self.layers[1..].iter().zip(&mut pass.transposed) {
            let weights = &parameters[layer.weights.clone()];
            transpose(layer.inputs, layer.outputs, weights, layer.row, to, stride(layer.inputs));
        }
    }

    /// The outputs of the first rows of `pass.inputs`.
    pub(crate) fn forward(&self, parameters: &[f32], rows: usize, pass: &mut Pass) {
        for (l, layer) in self.layers.iter().enumerate() {
            let (before, after) = pass.outputs.split_at_mut(l);
            let inputs = before.last().unwrap_or(&pass.inputs);
            let left = Left { values: inputs, row: stride(layer.inputs), column: 1 };
            let (weights, bias) = (&parameters[layer.weights.clone()], &parameters[layer.bias.clone()]);
            let start = Start::Bias(bias);
            multiply(rows, layer.outputs, layer.inputs, left, weights, layer.row, &mut after[0], layer.row, start);
            if l + 1 < self.layers.len() {
                let outputs = &mut after[0][..rows * layer.row];
                activate(self.activation == Activation::Tanh, outputs, layer.row, layer.outputs);
            }
        }
    }

    /// Adds the gradient of the parameters to `gradient`, after [`Perceptron::forward`] of the same rows and with the
    /// gradient of the outputs in their place ([`Pass::ends`]).
    pub(crate) fn backward(&self, rows: usize, pass: &mut Pass, gradient: &mut [f32]) {
        for (l, layer) in self.layers.iter().enumerate().rev() {
            let slopes: &[f32] = &pass.slopes[l];
            let inputs: &[f32] = if l == 0 { &pass.inputs } else { &pass.outputs[l - 1] };
            let bias = &mut gradient[layer.bias.clone()];
            add_rows(&slopes[..rows * layer.row], bias);
            let left = Left { values: inputs, row: 1, column: stride(layer.inputs) };
            let weights = &mut gradient[layer.weights.clone()];
            multiply(layer.inputs, layer.outputs, rows, left, slopes, layer.row, weights, layer.row, Start::Present);
            self.pass_back(l, rows, pass);
        }
    }

    /// Adds the gradient of the last `width` inputs to the rows of `gradient`, which have the [`stride`] of so many;
    /// otherwise as [`Perceptron::backward`].
    ///
    /// `transposed`: what [`Perceptron::transpose_inputs`] wrote.
    pub(crate) fn backward_inputs(
        &self,
        rows: usize,
        pass: &mut Pass,
        transposed: &[f32],
        width: usize,
        gradient: &mut [f32],
    ) {
        for l in (1..self.layers.len()).rev() {
            self.pass_back(l, rows, pass);
        }
        let (first, row) = (&self.layers[0], stride(width));
        let left = Left { values: &pass.slopes[0], row: first.row, column: 1 };
        multiply(rows, width, first.outputs, left, transposed, row, gradient, row, Start::Present);
    }

    /// Writes the first layer's weights of the last `width` inputs, transposed: [outputs, stride of `width`].
    pub(crate) fn transpose_inputs(&self, parameters: &[f32], width: usize, to: &mut [f32]) {
        let first = &self.layers[0];
        let weights = &parameters[first.weights.clone()][(first.inputs - width) * first.row..];
        transpose(width, first.outputs, weights, first.row, to, stride(width));
    }

    /// The gradient of the outputs of the layer before layer `l`, if there is one, from that of layer `l`.
    fn pass_back(&self, l: usize, rows: usize, pass: &mut Pass) {
        if l == 0 {
            return;
        }
        let layer = &self.layers[l];
        let (before, after) = pass.slopes.split_at_mut(l);
        let left = Left { values: &after[0], row: layer.row, column: 1 };
        let row = stride(layer.inputs);
        let weights = &pass.transposed[l - 1];
        multiply(rows, layer.inputs, layer.outputs, left, weights, row, &mut before[l - 1], row, Start::Zero);
        let (slopes, outputs) = (&mut before[l - 1][..rows * row], &pass.outputs[l - 1][..rows * row]);
        derive(self.activation == Activation::Tanh, slopes, outputs, row, layer.inputs);
    }
}

widest! {
    /// Turns gradients of the outputs of tanh or ReLU into those of its inputs, in the first `width` columns of rows.
    fn derive(with_tanh: bool, slopes: &mut [f32], outputs: &[f32], row: usize, width: usize) {
        for (slopes, outputs) in slopes.chunks_exact_mut(row).zip(outputs.chunks_exact(row)) {
            let pairs = slopes[..padded(width)].iter_mut().zip(outputs);
            if with_tanh {
                pairs.for_each(|(slope, &y)| *slope *= (-y).mul_add(y, 1.0));
            } else {
                // Not `if`, of which compilers make masked stores, which are slow.
                pairs.for_each(|(slope, &y)| *slope *= if y > 0.0 { 1.0 } else { 0.0 });
            }
        }
    }
}

widest! {
    /// Adds rows to their sum.
    fn add_rows(rows: &[f32], sums: &mut [f32]) {
        for row in rows.chunks_exact(sums.len()) {
            sums.iter_mut().zip(row).for_each(|(sum, &x)| *sum += x);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slopes_are_the_same_in_all_registers() {
        let outputs: Vec<f32> = (0..4000).map(|i| (i as f32 - 2000.0) * 5e-4).collect();
        for with_tanh in [false, true] {
            let mut slopes = vec![0.75; outputs.len()];
            derive(with_tanh, &mut slopes, &outputs, 40, 24);
            for (place, (&slope, &y)) in slopes.iter().zip(&outputs).enumerate() {
                let factor = if with_tanh { (-y).mul_add(y, 1.0) } else { f32::from(u8::from(y > 0.0)) };
                let expected = 0.75 * if place % 40 < 24 { factor } else { 1.0 };
                assert!(slope.to_bits() == expected.to_bits(), "{slope} at {y}");
            }
        }
    }
}
