//! Gradient steps of deep Q-learning (Mnih et al., 2015), with double (van Hasselt et al., 2016) and
//! dueling networks (Wang et al., 2016) and the margin of demonstrations (Hester et al., 2017). Networks are perceptrons
//! with ReLU.
//!
//! `fastrl.algorithms.dqn` has the loss in the symbols of the papers; names are those there.

use std::ops::Range;
use std::slice::from_mut;

use super::adam::{Learned, follow, sum_of_squares};
use super::member::{Blocks, Member, add_gradients};
use super::off_policy_parts::rows_of;
use super::perceptron::{Pass, Perceptron, Piece};
use crate::bf16::Precision;
use crate::dense::Activation;
use crate::gemm::Start;

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
    pub precision: Precision,
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
    /// Weights of importance.
    pub weights: &'a [f32],
    /// [B, A], 0 where an action is not allowed.
    pub next_masks: Option<&'a [u8]>,
    /// The last so many are demonstrations.
    pub demonstrations: usize,
}

impl Transitions<'_> {
    /// Some of them, of which none are demonstrations.
    pub fn part(&self, shape: &Shape, rows: Range<usize>) -> Self {
        Self {
            obs: rows_of(self.obs, shape.obs, &rows),
            next_obs: rows_of(self.next_obs, shape.obs, &rows),
            actions: rows_of(self.actions, 1, &rows),
            rewards: rows_of(self.rewards, 1, &rows),
            discounts: rows_of(self.discounts, 1, &rows),
            weights: rows_of(self.weights, 1, &rows),
            next_masks: self.next_masks.map(|masks| rows_of(masks, shape.actions, &rows)),
            demonstrations: 0,
        }
    }
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
    /// At most.
    pub threads: usize,
}

/// A step along the gradient.
#[derive(Clone, Copy, Debug)]
pub struct Step {
    /// Adam's.
    pub learning_rate: f64,
    pub epsilon: f32,
    /// Larger gradients are scaled down.
    pub max_grad_norm: Option<f64>,
    /// Share of the way to the parameters that the target moves by afterwards, tau.
    pub tau: Option<f32>,
}

/// Means over the minibatch.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Losses {
    pub loss: f64,
    pub q: f64,
    /// Absolute.
    pub td_error: f64,
    /// Norm of the gradient before it is scaled down; 0 without a step.
    pub grad_norm: f64,
}

/// Takes gradient steps; memory for them.
pub struct QSteps {
    networks: Networks,
    pieces: Vec<Piece>,
    /// The perceptron's place of each parameter, in the order of PyTorch.
    places: Vec<usize>,
    /// The perceptron's parameters in its order.
    flat: Vec<f32>,
    rows: Blocks,
    blocks: Vec<Block>,
}

/// The networks, as they are in one gradient step.
struct Networks {
    shape: Shape,
    network: Perceptron,
    online: Member,
    target: Member,
}

/// Memory for a block of rows.
struct Block {
    pass: Pass,
    next: Pass,
    /// Values of all actions [rows, A], and of the same by the other network.
    values: Vec<f32>,
    others: Vec<f32>,
    /// Loss and value of each row.
    found: Vec<[f64; 2]>,
}

impl Block {
    fn new(networks: &Networks, rows: usize) -> Self {
        let (pass, values) = (|| networks.network.pass(rows), || vec![0.0; rows * networks.shape.actions]);
        Self { pass: pass(), next: pass(), values: values(), others: values(), found: vec![[0.0; 2]; rows] }
    }
}

impl QSteps {
    pub fn new(shape: Shape) -> Self {
        let network = Perceptron::new(&shape.sizes(), Activation::Relu, shape.precision);
        Self {
            places: shape.places(),
            pieces: network.pieces(),
            flat: vec![0.0; network.len()],
            rows: Blocks::new(0, 0, 1),
            blocks: vec![],
            networks: Networks { online: Member::new(&network, 0), target: Member::new(&network, 0), network, shape },
        }
    }

    /// Adds the gradient of the loss to `gradient`, and perhaps takes a step along it, after which it is zeros. All
    /// parameters are [`Shape::num_parameters`] numbers.
    ///
    /// `td_errors`: [B], gets the absolute TD errors before the step.
    #[expect(clippy::too_many_arguments, reason = "networks, a minibatch, and what to do")]
    pub fn step(
        &mut self,
        online: &mut Learned<'_>,
        target: &mut [f32],
        gradient: &mut [f32],
        batch: &Transitions<'_>,
        settings: &Settings,
        step: Option<Step>,
        td_errors: &mut [f32],
    ) -> Losses {
        let Self { networks, pieces, places, flat, rows, blocks } = self;
        let size = batch.rewards.len();
        if rows.size != size {
            *rows = Blocks::new(size, 3 * networks.network.work(), settings.threads);
            *blocks = (0..rows.together).map(|_| Block::new(networks, rows.block)).collect();
        }
        for (member, from, learns) in
            [(&mut networks.online, &*online.values, true), (&mut networks.target, &*target, false)]
        {
            places.iter().zip(from).for_each(|(&place, &value)| flat[place] = value);
            member.read_linear(&networks.network, flat, learns);
        }
        let (rounds, team) = (rows.rounds(), &mut rows.team);
        let (mut losses, mut errors) = (Losses::default(), &mut *td_errors);
        let mut start = Start::Zero;
        for rows in &rounds {
            let of_networks: &Networks = networks;
            let tasks = blocks.iter_mut().zip(rows).map(|(block, rows)| {
                let (some, others) = std::mem::take(&mut errors).split_at_mut(rows.len());
                errors = others;
                (block, rows.clone(), some)
            });
            team.each(&mut tasks.collect::<Vec<_>>(), |(block, rows, errors)| {
                of_networks.rows(block, batch, settings, rows.clone(), errors);
            });
            for (block, rows) in blocks.iter().zip(rows) {
                for [loss, q] in &block.found[..rows.len()] {
                    losses.loss += loss;
                    losses.q += q;
                }
            }
            let Networks { network, online, .. } = networks;
            add_gradients(network, pieces, from_mut(online), rows, start, |_, block| &blocks[block].pass, None, team);
            start = Start::Present;
        }
        networks.online.write_linear_gradient(&networks.network, flat);
        for (to, &place) in gradient.iter_mut().zip(&*places) {
            *to += flat[place];
        }
        // Weights between the branches of a dueling network are zeros again.
        flat.fill(0.0);
        losses.loss /= size as f64;
        losses.q /= size as f64;
        losses.td_error = td_errors.iter().map(|&error| f64::from(error)).sum::<f64>() / size as f64;
        if let Some(Step { learning_rate, epsilon, max_grad_norm, tau }) = step {
            losses.grad_norm = sum_of_squares(gradient).sqrt();
            let scale = max_grad_norm.map_or(1.0, |most| (most / (losses.grad_norm + 1e-6)).min(1.0));
            online.step(gradient, scale as f32, learning_rate, epsilon, team);
            if let Some(tau) = tau {
                follow(target, online.values, tau, team);
            }
        }
        losses
    }
}

impl Networks {
    /// The gradient of the loss in all layers' outputs for some rows.
    fn rows(
        &self,
        block: &mut Block,
        batch: &Transitions<'_>,
        settings: &Settings,
        rows: Range<usize>,
        td_errors: &mut [f32],
    ) {
        let (width, actions) = (self.shape.obs, self.shape.actions);
        let (share, first_demonstration) =
            (1.0 / batch.rewards.len() as f32, batch.rewards.len() - batch.demonstrations);
        let next = &batch.next_obs[rows.start * width..rows.end * width];
        if settings.double {
            self.values(&self.online, next, &mut block.next, &mut block.others);
        }
        self.values(&self.target, next, &mut block.next, &mut block.values);
        for (i, row) in rows.clone().enumerate() {
            let values = &block.values[i * actions..][..actions];
            let chooser = if settings.double { &block.others[i * actions..][..actions] } else { values };
            let mask = batch.next_masks.map(|masks| &masks[row * actions..][..actions]);
            td_errors[i] = batch.discounts[row].mul_add(values[best(chooser, mask)], batch.rewards[row]);
        }
        let seen = &batch.obs[rows.start * width..rows.end * width];
        self.values(&self.online, seen, &mut block.pass, &mut block.values);
        let (_, slopes, stride) = block.pass.ends(&self.network);
        for (i, row) in rows.clone().enumerate() {
            let (values, slopes) = (&block.values[i * actions..][..actions], &mut slopes[i * stride..][..stride]);
            let (action, weight) = (batch.actions[row] as usize, batch.weights[row]);
            let error = td_errors[i] - values[action];
            let (loss, slope) = huber(error, settings.huber);
            slopes.fill(0.0);
            slopes[action] = -weight * slope * share * settings.weight;
            let found = &mut block.found[i];
            *found = [f64::from(weight * loss), f64::from(values[action])];
            if row >= first_demonstration && settings.margin_coef != 0.0 {
                let (raised, excess) = most_raised(values, action, settings.margin);
                let slope = settings.margin_coef * share * settings.weight;
                slopes[raised] += slope;
                slopes[action] -= slope;
                found[0] += f64::from(settings.margin_coef * excess);
            }
            td_errors[i] = error.abs();
            if self.shape.dueling {
                // Q = V + A - mean(A).
                let sum: f32 = slopes[..actions].iter().sum();
                slopes[..actions].iter_mut().for_each(|slope| *slope -= sum / actions as f32);
                slopes[actions] = sum;
            }
        }
        self.online.backward(&self.network, rows.len(), &mut block.pass, true);
    }

    /// Writes a network's values of all actions.
    fn values(&self, member: &Member, obs: &[f32], pass: &mut Pass, values: &mut [f32]) {
        let (width, actions) = (self.shape.obs, self.shape.actions);
        member.forward(&self.network, pass, obs, width);
        let (outputs, _, stride) = pass.ends(&self.network);
        let rows = values.chunks_exact_mut(actions).zip(outputs.chunks_exact(stride));
        for (values, outputs) in rows.take(obs.len() / width) {
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
pub(super) fn huber(error: f32, bound: f32) -> (f32, f32) {
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
