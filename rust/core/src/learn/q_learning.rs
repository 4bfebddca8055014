//! Gradient of the loss of deep Q-learning (Mnih et al., 2015) for a minibatch, with double (van Hasselt et al., 2016) and
//! dueling networks (Wang et al., 2016) and the margin of demonstrations (Hester et al., 2017). Networks are perceptrons
//! with ReLU.
//!
//! `fastrl.algorithms.dqn` has the loss in the symbols of the papers; names are those there.

use std::ops::Range;

use super::perceptron::{CHUNK, Pass, Perceptron, chunks};
use crate::gemm::{Aligned, stride};
use crate::mlp::Activation;

/// A network that values actions: linear layers as `fastrl.networks.q_network.QNetwork` has them.
#[derive(Clone, Debug)]
pub struct Shape {
    /// Numbers of an observation.
    pub obs: usize,
    pub hidden: Vec<usize>,
    /// A, number of actions.
    pub actions: usize,
    /// The last hidden layer is there twice, for the advantages of actions and for the value of the observation.
    pub dueling: bool,
}

impl Shape {
    /// Sizes of the layers of one perceptron: a dueling one has the outputs of both branches side by side.
    fn sizes(&self) -> Vec<usize> {
        let mut sizes: Vec<usize> = std::iter::once(self.obs).chain(self.hidden.iter().copied()).collect();
        let outputs = self.actions + usize::from(self.dueling);
        if self.dueling && !self.hidden.is_empty() {
            *sizes.last_mut().expect("there is one") *= 2;
        }
        sizes.push(outputs);
        sizes
    }

    /// Places in the vector of the perceptron of [`Shape::sizes`], of each parameter in the order of PyTorch: the shared
    /// layers, the branch of advantages, that of the value. The perceptron's other weights, from one branch to the outputs
    /// of the other, are zeros.
    fn places(&self) -> Vec<usize> {
        let sizes = self.sizes();
        let mut starts = vec![0];
        for ends in sizes.windows(2) {
            starts.push(starts.last().expect("there is one") + (ends[0] + 1) * ends[1]);
        }
        let mut places = Vec::with_capacity(self.num_parameters());
        // A layer's weights from some inputs to some outputs, and the biases of these.
        let mut take = |layer: usize, inputs: Range<usize>, outputs: Range<usize>| {
            let width = sizes[layer];
            for output in outputs.clone() {
                places.extend(inputs.clone().map(|input| starts[layer] + output * width + input));
            }
            places.extend(outputs.map(|output| starts[layer] + width * sizes[layer + 1] + output));
        };
        let layers = sizes.len() - 1;
        let branched = if self.dueling { 2.min(layers) } else { 0 };
        for layer in 0..layers - branched {
            take(layer, 0..sizes[layer], 0..sizes[layer + 1]);
        }
        if self.dueling {
            let (last, actions) = (layers - 1, self.actions);
            for (first_half, outputs) in [(true, 0..actions), (false, actions..actions + 1)] {
                let mut inputs = 0..sizes[last];
                if last > 0 {
                    let half = sizes[last] / 2;
                    inputs = if first_half { 0..half } else { half..2 * half };
                    take(last - 1, 0..sizes[last - 1], inputs.clone());
                }
                take(last, inputs, outputs);
            }
        }
        places
    }

    pub fn num_parameters(&self) -> usize {
        let sizes: Vec<usize> = std::iter::once(self.obs).chain(self.hidden.iter().copied()).collect();
        let layer = |inputs: usize, outputs: usize| (inputs + 1) * outputs;
        let hidden: usize = sizes.windows(2).map(|ends| layer(ends[0], ends[1])).sum();
        let last = *sizes.last().expect("there is one");
        let second = match (self.dueling, sizes.as_slice()) {
            (true, [.., before, last]) => layer(*before, *last) + layer(*last, 1),
            (true, _) => layer(last, 1),
            (false, _) => 0,
        };
        hidden + layer(last, self.actions) + second
    }
}

/// B transitions.
#[derive(Clone, Copy, Debug)]
pub struct Transitions<'a> {
    /// [B, obs] each.
    pub obs: &'a [f32],
    pub next_obs: &'a [f32],
    /// [B] each.
    pub actions: &'a [i64],
    pub rewards: &'a [f32],
    pub discounts: &'a [f32],
    /// Of importance.
    pub weights: &'a [f32],
    /// [B, A], 0 where an action is not allowed.
    pub next_masks: Option<&'a [u8]>,
    /// The last so many are demonstrations.
    pub demonstrations: usize,
}

#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Factor of the gradient.
    pub weight: f32,
    /// The network that learns chooses the next action, its target values it.
    pub double: bool,
    /// Errors beyond it count linearly.
    pub huber: f32,
    pub margin: f32,
    pub margin_coef: f32,
}

/// Means over the minibatch.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Loss {
    pub loss: f64,
    pub q: f64,
}

/// Computes the gradient; memory for the passes.
pub struct QGradient {
    shape: Shape,
    network: Perceptron,
    places: Vec<usize>,
    /// The perceptron's parameters in the order of PyTorch.
    flat: Vec<f32>,
    online: Aligned,
    target: Aligned,
    gradient: Aligned,
    pass: Pass,
    /// The weights that learn, for the way back.
    transposed: Vec<Aligned>,
    /// Values of all actions [rows, A] of a chunk, and of the same by the other network.
    values: Vec<f32>,
    others: Vec<f32>,
}

impl QGradient {
    pub fn new(shape: Shape) -> Self {
        let network = Perceptron::new(&shape.sizes(), Activation::Relu);
        let zeros = || Aligned::zeros(network.room());
        let values = || vec![0.0; CHUNK * shape.actions];
        Self {
            places: shape.places(),
            flat: vec![0.0; network.len()],
            online: zeros(),
            target: zeros(),
            gradient: zeros(),
            pass: network.pass(CHUNK),
            transposed: network.transposed(),
            values: values(),
            others: values(),
            network,
            shape,
        }
    }

    /// Adds the gradient of the loss to `gradient`, [`Shape::num_parameters`] numbers as `online` and `target` are.
    ///
    /// `td_errors`: [B], gets the absolute TD errors.
    pub fn compute(
        &mut self,
        online: &[f32],
        target: &[f32],
        batch: &Transitions<'_>,
        settings: &Settings,
        gradient: &mut [f32],
        td_errors: &mut [f32],
    ) -> Loss {
        let (size, width, actions) = (batch.rewards.len(), self.shape.obs, self.shape.actions);
        for (vector, flat) in [(&mut self.online, online), (&mut self.target, target)] {
            self.places.iter().zip(flat).for_each(|(&place, &value)| self.flat[place] = value);
            self.network.read(&self.flat, vector);
        }
        self.network.transpose(&self.online, &mut self.transposed);
        let mut found = Loss::default();
        let (share, first_demonstration) = (1.0 / size as f32, size - batch.demonstrations);
        for rows in chunks(size) {
            let next = &batch.next_obs[rows.start * width..rows.end * width];
            if settings.double {
                self.forward(next, true);
                std::mem::swap(&mut self.values, &mut self.others);
            }
            self.forward(next, false);
            for (i, row) in rows.clone().enumerate() {
                let values = &self.values[i * actions..][..actions];
                let chooser = if settings.double { &self.others[i * actions..][..actions] } else { values };
                let mask = batch.next_masks.map(|masks| &masks[row * actions..][..actions]);
                td_errors[row] = batch.discounts[row].mul_add(values[best(chooser, mask)], batch.rewards[row]);
            }
            self.forward(&batch.obs[rows.start * width..rows.end * width], true);
            let (_, slopes, stride) = self.pass.ends(&self.network);
            for (i, row) in rows.clone().enumerate() {
                let (values, slopes) = (&self.values[i * actions..][..actions], &mut slopes[i * stride..][..stride]);
                let (action, weight) = (batch.actions[row] as usize, batch.weights[row]);
                let error = td_errors[row] - values[action];
                let (loss, slope) = huber(error, settings.huber);
                slopes.fill(0.0);
                slopes[action] = -weight * slope * share * settings.weight;
                found.loss += f64::from(weight * loss);
                found.q += f64::from(values[action]);
                if row >= first_demonstration && settings.margin_coef != 0.0 {
                    let (raised, excess) = most_raised(values, action, settings.margin);
                    let slope = settings.margin_coef * share * settings.weight;
                    slopes[raised] += slope;
                    slopes[action] -= slope;
                    found.loss += f64::from(settings.margin_coef * excess);
                }
                td_errors[row] = error.abs();
                if self.shape.dueling {
                    // Q = V + A - mean(A).
                    let sum: f32 = slopes[..actions].iter().sum();
                    slopes[..actions].iter_mut().for_each(|slope| *slope -= sum / actions as f32);
                    slopes[actions] = sum;
                }
            }
            self.network.backward(rows.len(), &mut self.pass, &self.transposed);
            self.network.add_gradients(rows.len(), &self.pass, &mut self.gradient);
        }
        self.network.write(&self.gradient, &mut self.flat);
        self.gradient.fill(0.0);
        for (to, &place) in gradient.iter_mut().zip(&self.places) {
            *to += self.flat[place];
        }
        // Weights between the branches of a dueling network are zeros again.
        self.flat.fill(0.0);
        found.loss /= size as f64;
        found.q /= size as f64;
        found
    }

    /// Writes the values of all actions to the first rows of `self.values`, by the network that learns or by its target.
    fn forward(&mut self, obs: &[f32], learns: bool) {
        let (width, actions) = (self.shape.obs, self.shape.actions);
        let rows = obs.len() / width;
        for (to, from) in self.pass.inputs.chunks_mut(stride(width)).zip(obs.chunks_exact(width)) {
            to[..width].copy_from_slice(from);
        }
        let vector = if learns { &self.online } else { &self.target };
        self.network.forward(vector, rows, &mut self.pass);
        let (outputs, _, stride) = self.pass.ends(&self.network);
        for (values, outputs) in self.values.chunks_exact_mut(actions).zip(outputs.chunks_exact(stride)).take(rows) {
            values.copy_from_slice(&outputs[..actions]);
            if self.shape.dueling {
                let mean = values.iter().sum::<f32>() / actions as f32;
                values.iter_mut().for_each(|value| *value += outputs[actions] - mean);
            }
        }
    }
}

/// The best allowed action, the first of equals; the first of all where none is allowed, or where one is NaN that one.
fn best(values: &[f32], mask: Option<&[u8]>) -> usize {
    let mut found: Option<usize> = None;
    for (action, &value) in values.iter().enumerate() {
        let allowed = mask.is_none_or(|mask| mask[action] != 0);
        if allowed && found.is_none_or(|best| value > values[best] || (value.is_nan() && !values[best].is_nan())) {
            found = Some(action);
        }
    }
    found.unwrap_or(0)
}

/// h(x) and its derivative: x^2 / 2, beyond `bound` continued linearly.
fn huber(error: f32, bound: f32) -> (f32, f32) {
    if error.abs() <= bound || error.is_nan() {
        (0.5 * error * error, error)
    } else {
        (bound * (error.abs() - 0.5 * bound), bound.copysign(error))
    }
}

/// The action whose value is the highest if those of all but `action` are raised, and by how much it exceeds that of it.
fn most_raised(values: &[f32], action: usize, margin: f32) -> (usize, f32) {
    let raised = |k: usize| values[k] + if k == action { 0.0 } else { margin };
    let most = (0..values.len()).fold(0, |best, k| if raised(k) > raised(best) { k } else { best });
    (most, raised(most) - values[action])
}
