//! Recurrent layers in f32: a GRU (Cho et al., "Learning phrase representations using RNN encoder-decoder", 2014) and
//! an LSTM (Hochreiter and Schmidhuber, "Long short-term memory", 1997), with the equations of PyTorch's cells.

use crate::dense::{Inputs, Layer, Weights, tanh};
use crate::lanes::{LANES, Lanes};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cell {
    Gru,
    /// The state is the output, then the cell's own memory.
    Lstm,
}

impl Cell {
    pub fn gates(self) -> usize {
        match self {
            Self::Gru => 3,
            Self::Lstm => 4,
        }
    }

    /// Numbers of a row's state for each output.
    pub fn states(self) -> usize {
        match self {
            Self::Gru => 1,
            Self::Lstm => 2,
        }
    }
}

/// Weights of a cell. The gates of each matrix lie in blocks of whole lanes.
pub struct Recurrent {
    cell: Cell,
    size: usize,
    of_inputs: Layer,
    of_state: Layer,
}

/// Memory for the gates of one row at a time.
pub struct Gates {
    of_inputs: Vec<Lanes>,
    of_state: Vec<Lanes>,
    state: Inputs,
}

impl Recurrent {
    /// Number of weights that [`Recurrent::load`] reads.
    pub fn num_weights(cell: Cell, inputs: usize, size: usize) -> usize {
        cell.gates() * size * (inputs + size + 2)
    }

    /// A cell whose weights are to be loaded.
    pub fn new(cell: Cell, size: usize) -> Self {
        Self { cell, size, of_inputs: Layer::default(), of_state: Layer::default() }
    }

    /// Reads weights [inputs, gates * size], biases [gates * size], weights [size, gates * size] and biases
    /// [gates * size], gates in PyTorch's order.
    pub fn load(&mut self, inputs: usize, weights: &mut Weights<'_>) {
        self.of_inputs.load(weights, inputs, self.cell.gates(), self.size, 0.0);
        self.of_state.load(weights, self.size, self.cell.gates(), self.size, 0.0);
    }

    /// Number of outputs.
    pub fn size(&self) -> usize {
        self.size
    }

    pub fn gates(&self) -> Gates {
        let gates = || vec![Lanes([0.0; LANES]); self.of_inputs.lanes()];
        Gates { of_inputs: gates(), of_state: gates(), state: Inputs::with_room(self.size) }
    }

    /// Computes the new state of a row, into `state`, which starts with the outputs.
    #[inline(always)]
    pub fn forward(&self, inputs: &Inputs, state: &mut [f32], gates: &mut Gates) {
        let Gates { of_inputs, of_state, state: inputs_of_state } = gates;
        inputs_of_state.clear();
        let (outputs, memory) = state.split_at_mut(self.size);
        outputs.iter().enumerate().for_each(|(k, &x)| inputs_of_state.push(k, x));
        self.of_inputs.forward(inputs, of_inputs);
        self.of_state.forward(inputs_of_state, of_state);
        let block = self.size.div_ceil(LANES);
        for (i, outputs) in outputs.chunks_mut(LANES).enumerate() {
            let gate = |n: usize| (&of_inputs[n * block + i].0, &of_state[n * block + i].0);
            match self.cell {
                Cell::Gru => {
                    let [reset, update, new] = [gate(0), gate(1), gate(2)];
                    // A loop over whole lanes, which compilers turn into wide instructions.
                    let mut all = [0.0; LANES];
                    all[..outputs.len()].copy_from_slice(outputs);
                    for (k, h) in all.iter_mut().enumerate() {
                        let r = sigmoid(reset.0[k] + reset.1[k]);
                        let z = sigmoid(update.0[k] + update.1[k]);
                        let next = tanh(r.mul_add(new.1[k], new.0[k]));
                        *h = z.mul_add(*h - next, next);
                    }
                    outputs.copy_from_slice(&all[..outputs.len()]);
                }
                Cell::Lstm => {
                    let [input, forget, new, output] = [gate(0), gate(1), gate(2), gate(3)];
                    let memory = memory[i * LANES..].iter_mut();
                    for (k, (h, c)) in outputs.iter_mut().zip(memory).enumerate() {
                        let kept = sigmoid(forget.0[k] + forget.1[k]) * *c;
                        *c = sigmoid(input.0[k] + input.1[k]).mul_add(tanh(new.0[k] + new.1[k]), kept);
                        *h = sigmoid(output.0[k] + output.1[k]) * tanh(*c);
                    }
                }
            }
        }
    }
}

/// The logistic function, to some 1e-7. NaN stays NaN.
#[inline(always)]
fn sigmoid(x: f32) -> f32 {
    tanh(0.5 * x).mul_add(0.5, 0.5)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sigmoid_is_accurate() {
        for i in -1_000_000..=1_000_000 {
            let x = i as f32 * 3e-5;
            let expected = 1.0 / (1.0 + (-f64::from(x)).exp());
            assert!((f64::from(sigmoid(x)) - expected).abs() < 2e-7, "sigmoid({x}) = {}", sigmoid(x));
        }
        assert_eq!([sigmoid(f32::NEG_INFINITY), sigmoid(0.0), sigmoid(f32::INFINITY)], [0.0, 0.5, 1.0]);
        assert!(sigmoid(f32::NAN).is_nan());
    }

    /// A cell with one input, one output and known weights, followed by hand.
    #[test]
    fn cells_follow_their_equations() {
        let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
        for (cell, gates) in [(Cell::Gru, 3), (Cell::Lstm, 4)] {
            let numbers: Vec<f32> = (0..4 * gates).map(|i| 0.3 - 0.17 * i as f32 + 0.011 * (i * i) as f32).collect();
            assert_eq!(numbers.len(), Recurrent::num_weights(cell, 1, 1));
            let mut recurrent = Recurrent::new(cell, 1);
            recurrent.load(1, &mut Weights::new(&numbers));
            let of = |part: usize, gate: usize| f64::from(numbers[part * gates + gate]);
            let mut gates_memory = recurrent.gates();
            let mut state = vec![0.0; cell.states()];
            let (mut h, mut c) = (0.0_f64, 0.0_f64);
            for x in [1.0_f32, -2.0, 0.0, 0.5] {
                let mut inputs = Inputs::with_room(1);
                inputs.push(0, x);
                recurrent.forward(&inputs, &mut state, &mut gates_memory);
                let a = |gate| of(0, gate) * f64::from(x) + of(1, gate);
                let b = |gate| of(2, gate) * h + of(3, gate);
                match cell {
                    Cell::Gru => {
                        let (r, z) = (sigmoid(a(0) + b(0)), sigmoid(a(1) + b(1)));
                        let n = (a(2) + r * b(2)).tanh();
                        h = (1.0 - z) * n + z * h;
                    }
                    Cell::Lstm => {
                        c = sigmoid(a(1) + b(1)) * c + sigmoid(a(0) + b(0)) * (a(2) + b(2)).tanh();
                        h = sigmoid(a(3) + b(3)) * c.tanh();
                        assert!((f64::from(state[1]) - c).abs() < 1e-6);
                    }
                }
                assert!((f64::from(state[0]) - h).abs() < 1e-6, "{cell:?}: {} and {h}", state[0]);
            }
        }
    }
}
