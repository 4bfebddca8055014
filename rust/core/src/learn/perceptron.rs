//! A multi-layer perceptron's pass through rows of inputs, and back to the gradient of its parameters.

use std::ops::Range;

use super::layer_norm::LayerNorm;
use super::row_sums::{add_rows, derive, dots};
use crate::bf16::{Precision, pair_columns, pair_rows, pair_transposed};
use crate::dense::Activation;
use crate::dense::activate;
use crate::gemm::{Finish, Left, Start, multiply, multiply_pairs};
use crate::matrix::{Aligned, STEP, padded, stride, transpose};

/// Rows that go through a network together: enough for products of matrices, few enough for the cache.
pub(crate) const CHUNK: usize = 128;

/// Inputs of a layer whose weights' gradients are computed together, and outputs whose weights are transposed together.
const PIECE: usize = 72;

/// A linear layer, and where its parameters are in those of the network: weights [inputs, apart] and biases [row], of which
/// the first `outputs` count and the others are zeros.
struct Layer {
    inputs: usize,
    outputs: usize,
    row: usize,
    /// 1 of a last layer of one output, else `row`.
    apart: usize,
    weights: Range<usize>,
    bias: Range<usize>,
    /// Gains [row] and shifts [row] of the layer normalisation that follows; empty: none does.
    norm: Range<usize>,
}

/// The layers of a network. Its parameters, gradients and moments are vectors of [`Perceptron::room`] numbers, in which
/// rows have the [`stride`] that suits the cache.
///
/// With [`Precision::Bf16`] hidden layers multiply pairs of bfloat16: in vectors that [`Perceptron::read_member`],
/// [`Perceptron::read_linear`] and [`Perceptron::copy`] wrote, and in transposed weights, these have pairs of inputs or
/// outputs in place of rows.
pub(crate) struct Perceptron {
    layers: Vec<Layer>,
    activation: Activation,
    precision: Precision,
    /// False: the activation follows the last layer, too.
    has_head: bool,
    /// Passes back go on to the inputs.
    has_slopes_of_inputs: bool,
    room: usize,
}

/// Memory for passes of up to so many rows.
pub(crate) struct Pass {
    /// Inputs, [rows, stride of the inputs].
    pub(crate) inputs: Aligned,
    /// Gradients of the inputs, of the same shape; empty where passes back do not go on to them.
    pub(crate) input_slopes: Aligned,
    /// Outputs of each layer, after its activation.
    outputs: Vec<Aligned>,
    /// Gradients of these.
    slopes: Vec<Aligned>,
    /// Buffers of each layer that multiplies pairs.
    pairs: Vec<LayerPairs>,
    /// Those of the hidden layers, if there are some.
    norms: Vec<LayerNorm>,
}

/// Matrices that a layer multiplies, as pairs of columns and as pairs of rows.
struct LayerPairs {
    inputs: [Aligned; 2],
    /// Gradients of its outputs.
    slopes: [Aligned; 2],
}

/// Some of a layer's parameters: the weights of some inputs, or one number for each output.
#[derive(Clone)]
pub(crate) struct Piece {
    layer: usize,
    /// The inputs; empty: the numbers of `vector`.
    inputs: Range<usize>,
    vector: Vector,
    /// Place in the vector of parameters.
    place: Range<usize>,
    /// Distance between rows of the gradient, which starts at the place.
    row: usize,
}

/// Numbers of a layer, one for each output.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Vector {
    Bias,
    Gain,
    Shift,
}

/// A part of what passes multiply in place of the parameters.
pub(crate) struct Copy<'a> {
    layer: usize,
    part: Part,
    to: &'a mut [f32],
}

/// Parameters of a layer: the weights of [`PIECE`] inputs, or those of as many outputs, transposed, from a first one on; or
/// the biases.
enum Part {
    Inputs(usize),
    Outputs(usize),
    Bias,
}

impl Layer {
    /// Places of the biases, and of gains and shifts if there are some.
    fn vectors(&self) -> impl Iterator<Item = Range<usize>> + use<> {
        let (norm, middle) = (self.norm.clone(), self.norm.start + self.row);
        let pair = [norm.start..middle, middle..norm.end];
        std::iter::once(self.bias.clone()).chain(pair.into_iter().take(norm.len()))
    }
}

impl Piece {
    pub(crate) fn len(&self) -> usize {
        self.place.len()
    }

    /// True if another piece follows among the parameters of an ensemble, too.
    pub(crate) fn is_before(&self, other: &Self) -> bool {
        self.layer == other.layer && self.inputs.is_empty() == other.inputs.is_empty()
    }
}

impl Pass {
    /// The network's outputs [rows, row] and the place for their gradient of the same shape, and `row`. In rows of the
    /// gradient there are zeros after the outputs.
    pub(crate) fn ends(&mut self, network: &Perceptron) -> (&[f32], &mut [f32], usize) {
        let row = network.layers.last().expect("there is one").row;
        (self.outputs.last().expect("there is one"), self.slopes.last_mut().expect("there is one"), row)
    }
}

impl Pass {
    /// Outputs of layer `l` and the place of their gradient.
    pub(crate) fn layer(&mut self, l: usize) -> (&[f32], &mut [f32]) {
        (&self.outputs[l], &mut self.slopes[l])
    }
}

impl Perceptron {
    /// `sizes`: numbers of inputs, of outputs of hidden layers, and of outputs.
    pub(crate) fn new(sizes: &[usize], activation: Activation, precision: Precision) -> Self {
        Self::build(sizes, activation, precision, false)
    }

    /// A network in f32 with layer normalisation before the activation of each hidden layer; arguments as of
    /// [`Perceptron::new`].
    pub(crate) fn normalized(sizes: &[usize], activation: Activation) -> Self {
        Self::build(sizes, activation, Precision::Fp32, true)
    }

    /// A part of a network in f32.
    ///
    /// # Arguments
    /// - `has_head`: the last layer is without activation.
    /// - `has_slopes_of_inputs`: what comes before it learns, too.
    pub(crate) fn part(sizes: &[usize], activation: Activation, has_head: bool, has_slopes_of_inputs: bool) -> Self {
        Self { has_head, has_slopes_of_inputs, ..Self::new(sizes, activation, Precision::Fp32) }
    }

    fn build(sizes: &[usize], activation: Activation, precision: Precision, norms: bool) -> Self {
        let mut room = 0;
        let mut take = |count: usize| {
            room += count;
            room - count..room
        };
        let layers = sizes.windows(2).enumerate().map(|(l, ends)| {
            let (inputs, outputs, row) = (ends[0], ends[1], stride(ends[1]));
            let apart = if outputs == 1 && l + 2 == sizes.len() { 1 } else { row };
            let weights = take(if apart == 1 { padded(inputs) } else { inputs * apart });
            let bias = take(row);
            let norm = take(if norms && l + 2 < sizes.len() { 2 * row } else { 0 });
            Layer { inputs, outputs, row, apart, weights, bias, norm }
        });
        let layers = layers.collect();
        Self { layers, activation, precision, has_head: true, has_slopes_of_inputs: false, room }
    }

    fn has_tanh(&self) -> bool {
        self.activation == Activation::Tanh
    }

    /// The first layer whose weights passes back multiply.
    fn first_back(&self) -> usize {
        usize::from(!self.has_slopes_of_inputs)
    }

    /// Length of [`Perceptron::transposed`].
    pub(crate) fn num_transposed(&self) -> usize {
        self.layers.len() - self.first_back()
    }

    /// True of the biases of the last layer.
    pub(crate) fn is_last_bias(&self, piece: &Piece) -> bool {
        piece.layer + 1 == self.layers.len() && piece.inputs.is_empty() && piece.vector == Vector::Bias
    }

    /// True if layer `l` multiplies pairs.
    fn has_pairs(&self, l: usize) -> bool {
        self.precision == Precision::Bf16 && l + 1 < self.layers.len()
    }

    pub(crate) fn room(&self) -> usize {
        self.room
    }

    /// Number of parameters.
    pub(crate) fn len(&self) -> usize {
        let vectors = |layer: &Layer| if layer.norm.is_empty() { 1 } else { 3 };
        self.layers.iter().map(|layer| (layer.inputs + vectors(layer)) * layer.outputs).sum()
    }

    /// Numbers that a pass keeps of each row.
    pub(crate) fn kept(&self) -> usize {
        stride(self.layers[0].inputs) + self.layers.iter().map(|layer| 2 * layer.row + layer.norm.len()).sum::<usize>()
    }

    /// Multiplications in a pass of one row.
    pub(crate) fn work(&self) -> usize {
        self.layers.iter().map(|layer| layer.inputs * padded(layer.outputs)).sum()
    }

    /// Reads vectors as PyTorch has them, of each layer weights [outputs, inputs] and biases, and of its normalisation gains
    /// and shifts.
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
                layer.apart,
            );
            rest = after;
            for place in layer.vectors() {
                let (numbers, after) = rest.split_at(layer.outputs);
                vector[place][..layer.outputs].copy_from_slice(numbers);
                rest = after;
            }
        }
    }

    /// Writes what [`Perceptron::read`] reads.
    pub(crate) fn write(&self, vector: &[f32], flat: &mut [f32]) {
        let mut rest = flat;
        for layer in &self.layers {
            let (weights, after) = rest.split_at_mut(layer.inputs * layer.outputs);
            transpose(layer.inputs, layer.outputs, &vector[layer.weights.clone()], layer.apart, weights, layer.inputs);
            rest = after;
            for place in layer.vectors() {
                let (numbers, after) = rest.split_at_mut(layer.outputs);
                numbers.copy_from_slice(&vector[place][..layer.outputs]);
                rest = after;
            }
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
    ///
    /// `transposed`: what [`Perceptron::copy`] writes; empty: none are needed.
    pub(crate) fn read_member(
        &self,
        flat: &[f32],
        index: usize,
        count: usize,
        vector: &mut [f32],
        transposed: &mut [Aligned],
    ) {
        for (l, (layer, weights, bias)) in self.places(index, count).enumerate() {
            let (from, to) = (&flat[weights], &mut vector[layer.weights.clone()]);
            let back = if l == 0 { None } else { transposed.get_mut(l - 1) };
            if self.has_pairs(l) {
                pair_rows(layer.inputs, layer.outputs, from, layer.outputs, to, layer.row);
                if let Some(to) = back {
                    pair_transposed(layer.inputs, layer.outputs, from, layer.outputs, to, stride(layer.inputs));
                }
            } else {
                if layer.apart == layer.outputs {
                    // One row, or many side by side.
                    to[..from.len()].copy_from_slice(from);
                } else {
                    let rows = to.chunks_exact_mut(layer.apart).zip(from.chunks_exact(layer.outputs));
                    rows.for_each(|(to, from)| to[..layer.outputs].copy_from_slice(from));
                }
                if let Some(to) = back {
                    transpose(layer.inputs, layer.outputs, from, layer.outputs, to, stride(layer.inputs));
                }
            }
            vector[layer.bias.clone()][..layer.outputs].copy_from_slice(&flat[bias]);
        }
    }

    /// Reads what [`Perceptron::read`] does, otherwise as [`Perceptron::read_member`].
    pub(crate) fn read_linear(&self, flat: &[f32], vector: &mut [f32], transposed: &mut [Aligned]) {
        let mut rest = flat;
        for (l, layer) in self.layers.iter().enumerate() {
            let (weights, after) = rest.split_at(layer.inputs * layer.outputs);
            let to = &mut vector[layer.weights.clone()];
            let back = if l == 0 { None } else { transposed.get_mut(l - 1) };
            if self.has_pairs(l) {
                pair_transposed(layer.outputs, layer.inputs, weights, layer.inputs, to, layer.row);
                if let Some(to) = back {
                    pair_rows(layer.outputs, layer.inputs, weights, layer.inputs, to, stride(layer.inputs));
                }
            } else {
                transpose(layer.outputs, layer.inputs, weights, layer.inputs, to, layer.apart);
                if let Some(to) = back {
                    let rows = weights.chunks_exact(layer.inputs).zip(to.chunks_exact_mut(stride(layer.inputs)));
                    rows.for_each(|(from, to)| to[..layer.inputs].copy_from_slice(from));
                }
            }
            let (bias, after) = after.split_at(layer.outputs);
            vector[layer.bias.clone()][..layer.outputs].copy_from_slice(bias);
            rest = after;
        }
    }

    pub(crate) fn pass(&self, rows: usize) -> Pass {
        let pass = self.pass_forward(rows);
        let input_slopes = Aligned::zeros(if self.has_slopes_of_inputs { pass.inputs.len() } else { 0 });
        let slopes = pass.outputs.iter().map(|outputs| Aligned::zeros(outputs.len())).collect();
        Pass { slopes, input_slopes, ..pass }
    }

    /// Memory for passes forward alone.
    pub(crate) fn pass_forward(&self, rows: usize) -> Pass {
        let matrix = |columns: usize| {
            [rows * stride(columns.div_ceil(2)), rows.div_ceil(2) * stride(columns)].map(Aligned::zeros)
        };
        let norms = self.layers.iter().filter(|layer| !layer.norm.is_empty());
        let with_pairs = self.layers.iter().enumerate().filter(|&(l, _)| self.has_pairs(l));
        Pass {
            inputs: Aligned::zeros(rows * stride(self.layers[0].inputs)),
            input_slopes: Aligned::default(),
            outputs: self.layers.iter().map(|layer| Aligned::zeros(rows * layer.row)).collect(),
            slopes: self.layers.iter().map(|_| Aligned::default()).collect(),
            pairs: with_pairs
                .map(|(_, layer)| LayerPairs { inputs: matrix(layer.inputs), slopes: matrix(layer.outputs) })
                .collect(),
            norms: norms.map(|layer| LayerNorm::new(rows, layer.outputs, layer.row)).collect(),
        }
    }

    /// Memory for the weights of each layer, transposed: [outputs, stride of the inputs]; none of the first layer where
    /// passes back do not go on to the inputs.
    pub(crate) fn transposed(&self) -> Vec<Aligned> {
        self.layers[self.first_back()..]
            .iter()
            .map(|layer| Aligned::zeros(layer.outputs * stride(layer.inputs)))
            .collect()
    }

    /// Memory for a vector of parameters to go forward with where layers multiply pairs; else for none.
    pub(crate) fn rounded(&self) -> Aligned {
        Aligned::zeros(if self.precision == Precision::Bf16 { self.room } else { 0 })
    }

    /// Rows of a matrix that has the weights of [`PIECE`] inputs or outputs of a layer.
    fn height(&self, l: usize) -> usize {
        if self.has_pairs(l) { PIECE / 2 } else { PIECE }
    }

    /// The numbers of [`Perceptron::rounded`] and [`Perceptron::transposed`] in parts.
    pub(crate) fn copies<'a>(&self, rounded: &'a mut [f32], transposed: &'a mut [Aligned]) -> Vec<Copy<'a>> {
        let (mut copies, mut rest) = (vec![], rounded);
        let forward = if rest.is_empty() { &[] } else { &self.layers[..] };
        for (l, layer) in forward.iter().enumerate() {
            let (weights, after) = rest.split_at_mut(layer.weights.len());
            let parts = weights.chunks_mut(self.height(l) * layer.apart).zip((0..layer.inputs).step_by(PIECE));
            copies.extend(parts.map(|(to, first)| Copy { layer: l, part: Part::Inputs(first), to }));
            let (to, after) = after.split_at_mut(layer.row);
            copies.push(Copy { layer: l, part: Part::Bias, to });
            rest = after;
        }
        for ((l, layer), copy) in self.layers.iter().enumerate().skip(self.first_back()).zip(transposed) {
            let parts = copy.chunks_mut(self.height(l) * stride(layer.inputs)).zip((0..layer.outputs).step_by(PIECE));
            copies.extend(parts.map(|(to, first)| Copy { layer: l, part: Part::Outputs(first), to }));
        }
        copies
    }

    /// Brings a part of [`Perceptron::copies`] up to date.
    pub(crate) fn copy(&self, parameters: &[f32], Copy { layer: l, part, to }: &mut Copy<'_>) {
        let layer = &self.layers[*l];
        let (weights, row, back) = (&parameters[layer.weights.clone()], layer.apart, stride(layer.inputs));
        match *part {
            Part::Inputs(first) if self.has_pairs(*l) => {
                pair_rows(PIECE.min(layer.inputs - first), layer.outputs, &weights[first * row..], row, to, row);
            }
            Part::Inputs(first) => to.copy_from_slice(&weights[first * row..][..to.len()]),
            Part::Outputs(first) if self.has_pairs(*l) => {
                let count = PIECE.min(layer.outputs - first);
                pair_transposed(layer.inputs, count, &weights[first..], row, to, back);
            }
            Part::Outputs(first) => {
                transpose(layer.inputs, to.len() / back, &weights[first..], row, to, back);
            }
            Part::Bias => to.copy_from_slice(&parameters[layer.bias.clone()]),
        }
    }

    /// The parameters in pieces, in the order in which they lie in their vector.
    pub(crate) fn pieces(&self) -> Vec<Piece> {
        let of_layer = |(index, layer): (usize, &Layer)| {
            let Layer { inputs, row, apart, .. } = *layer;
            let (first, end) = (layer.weights.start, layer.weights.end);
            let weights = (0..inputs).step_by(PIECE).map(move |start| {
                let inputs = start..inputs.min(start + PIECE);
                let place = first + start * apart..end.min(first + (start + PIECE) * apart);
                Piece { layer: index, inputs, vector: Vector::Bias, place, row: apart }
            });
            let vectors = layer.vectors().zip([Vector::Bias, Vector::Gain, Vector::Shift]);
            weights.chain(vectors.map(move |(place, vector)| Piece { layer: index, inputs: 0..0, vector, place, row }))
        };
        self.layers.iter().enumerate().flat_map(of_layer).collect()
    }

    /// [`Perceptron::pieces`] whose gradients are for [`Perceptron::pack`].
    pub(crate) fn packed_pieces(&self) -> Vec<Piece> {
        let mut pieces = self.pieces();
        for piece in &mut pieces {
            let outputs = self.layers[piece.layer].outputs;
            if outputs.is_multiple_of(STEP) {
                piece.row = outputs;
            }
        }
        pieces
    }

    /// The outputs of the first rows of `pass.inputs`.
    pub(crate) fn forward(&self, parameters: &[f32], rows: usize, pass: &mut Pass) {
        for (l, layer) in self.layers.iter().enumerate() {
            let (before, after) = pass.outputs.split_at_mut(l);
            let inputs = before.last().unwrap_or(&pass.inputs);
            let (row, to) = (stride(layer.inputs), &mut after[0]);
            let weights = &parameters[layer.weights.clone()];
            let bias = &parameters[layer.bias.clone()];
            if layer.apart == 1 {
                dots(&inputs[..rows * row], row, &weights[..layer.inputs], bias[0], to, layer.row);
                continue;
            }
            let start = Start::Bias(bias);
            let is_hidden = l + 1 < self.layers.len() || !self.has_head;
            let has_norm = !layer.norm.is_empty();
            let finish = if is_hidden && !self.has_tanh() && !has_norm { Finish::Relu } else { Finish::Nothing };
            if self.has_pairs(l) {
                let (depth, pairs) = (layer.inputs.div_ceil(2), &mut pass.pairs[l].inputs[0]);
                pair_columns(rows, layer.inputs, inputs, row, pairs, stride(depth));
                let left = Left { values: pairs, row: stride(depth), column: 1 };
                multiply_pairs(rows, layer.outputs, depth, left, weights, layer.row, to, layer.row, start, finish);
            } else {
                let left = Left { values: inputs, row, column: 1 };
                multiply(rows, layer.outputs, layer.inputs, left, weights, layer.row, to, layer.row, start, finish);
            }
            if has_norm {
                pass.norms[l].forward(&parameters[layer.norm.clone()], &mut after[0][..rows * layer.row]);
            }
            if is_hidden && (self.has_tanh() || has_norm) {
                activate(self.has_tanh(), &mut after[0][..rows * layer.row]);
            }
        }
    }

    /// Computes the gradients of the outputs of all layers, after [`Perceptron::forward`] of the same rows and with the
    /// gradient of the last outputs in their place ([`Pass::ends`]).
    ///
    /// # Arguments
    /// - `transposed`: what [`Perceptron::copy`], [`Perceptron::read_member`] or [`Perceptron::read_linear`] wrote.
    /// - `learns`: [`Perceptron::add_gradient`] follows.
    pub(crate) fn backward(&self, rows: usize, pass: &mut Pass, transposed: &[Aligned], learns: bool) {
        (1..self.layers.len()).rev().for_each(|l| self.pass_back(l, rows, pass, transposed));
        if learns {
            for (l, pairs) in pass.pairs.iter_mut().enumerate() {
                let layer = &self.layers[l];
                let (inputs, row) = (if l == 0 { &pass.inputs } else { &pass.outputs[l - 1] }, stride(layer.inputs));
                pair_rows(rows, layer.inputs, inputs, row, &mut pairs.inputs[1], row);
                pair_rows(rows, layer.outputs, &pass.slopes[l], layer.row, &mut pairs.slopes[1], layer.row);
            }
        }
    }

    /// Copies of some rows what [`Perceptron::backward`] needs: outputs of the hidden layers.
    pub(crate) fn gather(&self, rows: &[usize], from: &Pass, to: &mut Pass) {
        let hidden = &self.layers[..self.layers.len() - 1];
        for ((layer, from), to) in hidden.iter().zip(&from.outputs).zip(&mut to.outputs) {
            for (&row, to) in rows.iter().zip(to.chunks_exact_mut(layer.row)) {
                to.copy_from_slice(&from[row * layer.row..][..layer.row]);
            }
        }
    }

    /// Adds the gradient of a piece of the parameters to zeros, or with [`Start::Present`] to what is there, in its place
    /// `gradient`, after [`Perceptron::backward`].
    pub(crate) fn add_gradient(&self, piece: &Piece, rows: usize, pass: &Pass, gradient: &mut [f32], start: Start<'_>) {
        let (l, layer) = (piece.layer, &self.layers[piece.layer]);
        let slopes: &[f32] = &pass.slopes[l];
        if piece.inputs.is_empty() {
            if matches!(start, Start::Zero) {
                gradient.fill(0.0);
            }
            let terms = match piece.vector {
                Vector::Bias => slopes,
                Vector::Gain => pass.norms[l].gain_terms(),
                Vector::Shift => pass.norms[l].shift_terms(),
            };
            return add_rows(&terms[..rows * layer.row], layer.row, &mut gradient[..padded(layer.outputs)]);
        }
        let (count, first, column) = (piece.inputs.len(), piece.inputs.start, stride(layer.inputs));
        let (outputs, finish) = (layer.outputs, Finish::Nothing);
        if let Some(LayerPairs { inputs: [_, inputs], slopes: [_, slopes] }) = pass.pairs.get(l) {
            let (left, depth) = (Left { values: &inputs[first..], row: 1, column }, rows.div_ceil(2));
            return multiply_pairs(count, outputs, depth, left, slopes, layer.row, gradient, piece.row, start, finish);
        }
        let inputs: &[f32] = if l == 0 { &pass.inputs } else { &pass.outputs[l - 1] };
        if layer.apart == 1 {
            let left = Left { values: slopes, row: 1, column: layer.row };
            let inputs = &inputs[first..];
            return multiply(1, count, rows, left, inputs, column, gradient, padded(count), start, finish);
        }
        let left = Left { values: &inputs[first..], row: 1, column };
        multiply(count, outputs, rows, left, slopes, layer.row, gradient, piece.row, start, finish);
    }

    /// Moves the numbers of a piece to the front of its place, side by side as an ensemble has them; returns them.
    pub(crate) fn pack<'a>(&self, piece: &Piece, gradient: &'a mut [f32]) -> &'a mut [f32] {
        let (outputs, row) = (self.layers[piece.layer].outputs, piece.row);
        if row != outputs {
            (1..piece.inputs.len()).for_each(|i| gradient.copy_within(i * row..i * row + outputs, i * outputs));
        }
        &mut gradient[..self.numbers(piece)]
    }

    /// Number of the parameters of a piece.
    pub(crate) fn numbers(&self, piece: &Piece) -> usize {
        piece.inputs.len().max(1) * self.layers[piece.layer].outputs
    }

    /// Writes the gradient of the last `width` inputs to the rows of `gradient`, which have the [`stride`] of so many, after
    /// [`Perceptron::backward`].
    ///
    /// `transposed`: what [`Perceptron::transpose_inputs`] wrote.
    pub(crate) fn input_gradient(
        &self,
        rows: usize,
        pass: &Pass,
        transposed: &[f32],
        width: usize,
        gradient: &mut [f32],
    ) {
        let (first, row) = (&self.layers[0], stride(width));
        if width == 1 {
            let (slopes, weights) = (&pass.slopes[0][..rows * first.row], &transposed[..first.outputs]);
            return dots(slopes, first.row, weights, 0.0, gradient, row);
        }
        let left = Left { values: &pass.slopes[0], row: first.row, column: 1 };
        multiply(rows, width, first.outputs, left, transposed, row, gradient, row, Start::Zero, Finish::Nothing);
    }

    /// Memory for [`Perceptron::transpose_inputs`].
    pub(crate) fn transposed_inputs(&self, width: usize) -> Aligned {
        Aligned::zeros(self.layers[0].outputs * row_of_inputs(width))
    }

    /// Writes the first layer's weights of the last `width` inputs, transposed: [outputs, [`row_of_inputs`]]. The first two
    /// arguments are those of [`Perceptron::read_member`].
    pub(crate) fn transpose_inputs(&self, flat: &[f32], index: usize, count: usize, width: usize, to: &mut [f32]) {
        let (first, weights, _) = self.places(index, count).next().expect("there is one");
        let weights = &flat[weights][(first.inputs - width) * first.outputs..];
        transpose(width, first.outputs, weights, first.outputs, to, row_of_inputs(width));
    }

    /// The gradient of the outputs of the layer before layer `l`, from that of layer `l`; of layer 0 that of the inputs.
    pub(crate) fn pass_back(&self, l: usize, rows: usize, pass: &mut Pass, transposed: &[Aligned]) {
        let layer = &self.layers[l];
        let (before, after) = pass.slopes.split_at_mut(l);
        let (row, weights) = (stride(layer.inputs), &transposed[l - self.first_back()]);
        let (to, outputs) = match before.last_mut() {
            Some(to) => (to, Some(&pass.outputs[l - 1])),
            None => (&mut pass.input_slopes, None),
        };
        let finish = match outputs {
            Some(outputs) if !self.has_tanh() => Finish::Where(outputs),
            _ => Finish::Nothing,
        };
        if self.has_pairs(l) {
            let (depth, pairs) = (layer.outputs.div_ceil(2), &mut pass.pairs[l].slopes[0]);
            pair_columns(rows, layer.outputs, &after[0], layer.row, pairs, stride(depth));
            let left = Left { values: pairs, row: stride(depth), column: 1 };
            multiply_pairs(rows, layer.inputs, depth, left, weights, row, to, row, Start::Zero, finish);
        } else {
            let left = Left { values: &after[0], row: layer.row, column: 1 };
            multiply(rows, layer.inputs, layer.outputs, left, weights, row, to, row, Start::Zero, finish);
        }
        let Some(outputs) = outputs else { return };
        if self.has_tanh() {
            derive(&mut to[..rows * row], outputs);
        }
        if let Some(norm) = pass.norms.get_mut(l - 1) {
            norm.backward(&mut to[..rows * row]);
        }
    }
}

/// Distance between rows of transposed weights of so many inputs: one column alone is a row.
fn row_of_inputs(width: usize) -> usize {
    if width == 1 { 1 } else { stride(width) }
}
