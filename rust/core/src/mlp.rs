//! A small multi-layer perceptron in f32, with a recurrent layer before its last one if it has a memory, that chooses
//! actions without a framework's cost per call.
//!
//! Each row's result is the same to the last bit whatever the batch, the number of threads and the row's place in it:
//! rows are computed one by one, and each output adds up its inputs in their order with fused multiplications, which
//! round alike on every processor. Inputs that are zero are left out, which changes nothing: with finite weights their
//! products are zeros, and adding a zero changes at most the sign of a zero, which no later number depends on and which
//! the last layer takes away. Half of the hidden units of a ReLU network are zeros, and most bits of an observation.

use crate::dense::{Inputs, LANES, Lanes, Layer, Weights, tanh};
use crate::recurrent::{Cell, Gates, Recurrent};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    Tanh,
    Relu,
}

/// The shape of a network.
#[derive(Clone, Debug, PartialEq)]
pub struct Architecture {
    pub inputs: usize,
    pub hidden: Vec<usize>,
    pub outputs: usize,
    /// The activation after each hidden layer.
    pub activation: Activation,
    /// Inputs are whitened, `(x - mean) * scale`, and clipped to plus and minus this.
    pub clip: Option<f32>,
    /// A recurrent layer after the hidden ones, and its number of outputs.
    pub memory: Option<(Cell, usize)>,
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

    /// Number of weights that [`Mlp::new`] reads.
    pub fn num_weights(&self) -> usize {
        let whitening = if self.clip.is_some() { 2 * self.inputs } else { 0 };
        let hidden: usize = self.hidden_layers().map(|(inputs, outputs)| (inputs + 1) * outputs).sum();
        let memory = self.memory.map_or(0, |(cell, size)| Recurrent::num_weights(cell, self.features(), size));
        whitening + hidden + memory + (self.last_inputs() + 1) * self.outputs
    }
}

struct Whitening {
    mean: Vec<f32>,
    scale: Vec<f32>,
    clip: f32,
}

pub struct Mlp {
    architecture: Architecture,
    whitening: Option<Whitening>,
    hidden: Vec<Layer>,
    memory: Option<Recurrent>,
    last: Layer,
}

/// Memory for one row at a time.
pub struct Scratch {
    inputs: Inputs,
    outputs: Vec<Lanes>,
    gates: Option<Gates>,
}

impl Scratch {
    /// The last layer's outputs, then lanes that mean nothing.
    #[inline(always)]
    pub fn outputs(&mut self) -> &mut [Lanes] {
        &mut self.outputs
    }
}

impl Mlp {
    /// Reads mean and scale of each input if they are whitened, then each layer's weights [inputs, outputs] and biases
    /// [outputs], before the last layer's those of [`Recurrent::new`] if there is a memory:
    /// [`Architecture::num_weights`] finite numbers, or it panics. What fills up the lanes of the last layer gets the
    /// bias `rest`.
    pub fn new(architecture: &Architecture, weights: &[f32], rest: f32) -> Self {
        assert!(weights.len() == architecture.num_weights() && weights.iter().all(|w| w.is_finite()));
        let weights = &mut Weights::new(weights);
        let whitening = architecture.clip.map(|clip| Whitening {
            mean: weights.take(architecture.inputs).to_vec(),
            scale: weights.take(architecture.inputs).to_vec(),
            clip,
        });
        let hidden = architecture.hidden_layers();
        let hidden = hidden.map(|(inputs, outputs)| Layer::new(weights, inputs, 1, outputs, 0.0)).collect();
        let memory =
            architecture.memory.map(|(cell, size)| Recurrent::new(cell, architecture.features(), size, weights));
        let last = Layer::new(weights, architecture.last_inputs(), 1, architecture.outputs, rest);
        Self { architecture: architecture.clone(), whitening, hidden, memory, last }
    }

    pub fn architecture(&self) -> &Architecture {
        &self.architecture
    }

    pub fn scratch(&self) -> Scratch {
        let Architecture { inputs, hidden, .. } = &self.architecture;
        let widest = hidden.iter().chain([inputs, &self.architecture.last_inputs()]).max().copied();
        let lanes = self.hidden.iter().map(Layer::lanes).chain([self.last.lanes()]).max();
        Scratch {
            inputs: Inputs::with_room(widest.expect("there are inputs")),
            outputs: vec![Lanes([0.0; LANES]); lanes.expect("there is a last layer")],
            gates: self.memory.as_ref().map(Recurrent::gates),
        }
    }

    /// The outputs for one row of inputs, into `scratch`; and its new state, [`Architecture::state_size`] numbers.
    #[inline(always)]
    pub fn forward(&self, row: &[f32], state: &mut [f32], scratch: &mut Scratch) {
        let Scratch { inputs, outputs, gates } = scratch;
        inputs.clear();
        match &self.whitening {
            None => row.iter().enumerate().for_each(|(k, &x)| inputs.push(k, x)),
            Some(Whitening { mean, scale, clip }) => {
                for (k, ((&x, &mean), &scale)) in row.iter().zip(mean).zip(scale).enumerate() {
                    inputs.push(k, ((x - mean) * scale).clamp(-clip, *clip));
                }
            }
        }
        for (layer, &width) in self.hidden.iter().zip(&self.architecture.hidden) {
            layer.forward(inputs, outputs);
            inputs.clear();
            for (lanes, first) in outputs.iter_mut().zip((0..width).step_by(LANES)) {
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
        self.last.forward(inputs, outputs);
        for lanes in &mut outputs[..self.last.lanes()] {
            lanes.0.iter_mut().for_each(|x| *x += 0.0); // -0 becomes 0
        }
    }
}

/// NaN stays NaN.
#[inline(always)]
fn relu(x: f32) -> f32 {
    if x <= 0.0 { 0.0 } else { x }
}

#[cfg(test)]
mod tests {
    use super::relu;

    #[test]
    fn relu_keeps_nan() {
        assert!(relu(f32::NAN).is_nan());
        assert_eq!((relu(-1.0), relu(2.0)), (0.0, 2.0));
    }
}
