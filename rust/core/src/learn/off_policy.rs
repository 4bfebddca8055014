//! Gradients of the losses of SAC (Haarnoja et al., 2018; Christodoulou, 2019), TD3 (Fujimoto et al., 2018) and IQL
//! (Kostrikov et al., 2021) for a minibatch, with policies and critics that are perceptrons with ReLU.
//!
//! `fastrl.algorithms` has the losses in the symbols of the papers; names are those there.

use std::ops::Range;

use super::losses::Categorical;
use super::perceptron::{CHUNK, Pass, Perceptron, chunks};
use crate::dense::{exp, exp_any, ln, tanh};
use crate::gemm::{Aligned, stride};
use crate::mlp::Activation;

/// The logarithms of a Gaussian's deviations stay within these, as in `fastrl.networks.bounded_actor`.
const LOG_STD_RANGE: (f32, f32) = (-20.0, 2.0);

/// 2 log 2 + log(2 pi) / 2, in the log-density of a squashed Gaussian.
const LOG_DENSITY: f32 = 2.305_233;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Algorithm {
    Sac,
    Td3,
    Iql,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ActionKind {
    /// Numbers from -1 to 1.
    Box(usize),
    /// So many choices.
    Discrete(usize),
}

impl ActionKind {
    /// Numbers of an action; 0 where it is discrete.
    pub fn numbers(self) -> usize {
        match self {
            Self::Box(numbers) => numbers,
            Self::Discrete(_) => 0,
        }
    }

    /// Choices of an action; 0 where it is continuous.
    pub fn choices(self) -> usize {
        match self {
            Self::Box(_) => 0,
            Self::Discrete(choices) => choices,
        }
    }
}

/// Sizes of the networks of an algorithm.
#[derive(Clone, Debug)]
pub struct Shape {
    pub algorithm: Algorithm,
    /// Numbers of an observation.
    pub obs: usize,
    pub actions: ActionKind,
    pub hidden: Vec<usize>,
    /// E, number of critics.
    pub critics: usize,
}

impl Shape {
    fn network(&self, inputs: usize, outputs: usize) -> Perceptron {
        let sizes: Vec<usize> = std::iter::once(inputs).chain(self.hidden.iter().copied()).chain([outputs]).collect();
        Perceptron::new(&sizes, Activation::Relu)
    }

    fn policy(&self) -> Perceptron {
        let outputs = match (self.algorithm, self.actions) {
            (Algorithm::Sac, ActionKind::Box(numbers)) => 2 * numbers,
            (_, ActionKind::Box(count) | ActionKind::Discrete(count)) => count,
        };
        self.network(self.obs, outputs)
    }

    fn critic(&self) -> Perceptron {
        match self.actions {
            ActionKind::Box(numbers) => self.network(self.obs + numbers, 1),
            ActionKind::Discrete(choices) => self.network(self.obs, choices),
        }
    }

    /// Numbers of parameters of the policy, of all critics, and of IQL's value function.
    pub fn num_parameters(&self) -> (usize, usize, usize) {
        (self.policy().len(), self.critics * self.critic().len(), self.network(self.obs, 1).len())
    }
}

/// Actions of B transitions: [B, numbers] or [B].
#[derive(Clone, Copy, Debug)]
pub enum Actions<'a> {
    Box(&'a [f32]),
    Discrete(&'a [i64]),
}

/// B transitions, and what is drawn for their losses, as `fastrl.algorithms.off_policy_loss.Minibatch`. Arrays that a
/// loss does not need may be empty.
#[derive(Clone, Copy, Debug)]
pub struct Batch<'a> {
    pub obs: &'a [f32],
    pub next_obs: &'a [f32],
    pub actions: Actions<'a>,
    pub rewards: &'a [f32],
    pub discounts: &'a [f32],
    pub masks: Option<&'a [u8]>,
    pub next_masks: Option<&'a [u8]>,
    pub noise: &'a [f32],
    pub next_noise: &'a [f32],
}

/// Parameters as the ensembles of PyTorch have them. Vectors that a loss does not need may be empty.
#[derive(Clone, Copy, Debug)]
pub struct Parameters<'a> {
    /// The policy; for the critics' loss of TD3 the target policy.
    pub policy: &'a [f32],
    pub critics: &'a [f32],
    pub targets: &'a [f32],
    pub value: &'a [f32],
}

#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Factor of gradients.
    pub weight: f32,
    /// SAC: alpha.
    pub temperature: f32,
    /// SAC: the policy increases the mean of the critics, not the least of them.
    pub mean_value: bool,
    /// TD3: deviation and bound of the noise on the target policy's actions.
    pub target_noise: f32,
    pub target_noise_clip: f32,
    /// IQL.
    pub expectile: f32,
    pub beta: f32,
    pub max_weight: f32,
}

impl Settings {
    /// Settings with a weight; the others have no effect.
    pub fn with_weight(weight: f32) -> Self {
        Self {
            weight,
            temperature: 0.0,
            mean_value: false,
            target_noise: 0.0,
            target_noise_clip: 0.0,
            expectile: 0.5,
            beta: 0.0,
            max_weight: 1.0,
        }
    }
}

/// Means over the minibatch.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CriticLoss {
    pub loss: f64,
    pub q: f64,
}

/// Means over the minibatch.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PolicyLoss {
    pub policy_loss: f64,
    /// SAC.
    pub entropy: f64,
    /// IQL.
    pub value_loss: f64,
    pub value: f64,
    pub imitation_weight: f64,
}

/// A perceptron's parameters, their gradient, and its passes.
struct Member {
    vector: Aligned,
    gradient: Aligned,
    pass: Pass,
    transposed: Vec<Aligned>,
}

impl Member {
    fn new(network: &Perceptron) -> Self {
        let zeros = || Aligned::zeros(network.room());
        Self { vector: zeros(), gradient: zeros(), pass: network.pass(CHUNK), transposed: network.transposed() }
    }

    /// Reads parameters; with `learns` also what gradients need.
    fn read(&mut self, network: &Perceptron, flat: &[f32], index: usize, count: usize, learns: bool) {
        network.read_member(flat, index, count, &mut self.vector);
        if learns {
            network.transpose(&self.vector, &mut self.transposed);
        }
    }

    /// The outputs [rows, row] for some rows of observations, of `width` numbers, and perhaps of actions beside them.
    fn forward(&mut self, network: &Perceptron, obs: &[f32], width: usize, actions: Option<(&[f32], usize)>) {
        let numbers = actions.map_or(0, |(_, numbers)| numbers);
        let rows = obs.len() / width;
        for (i, to) in self.pass.inputs.chunks_mut(stride(width + numbers)).take(rows).enumerate() {
            to[..width].copy_from_slice(&obs[i * width..][..width]);
            if let Some((values, numbers)) = actions {
                to[width..][..numbers].copy_from_slice(&values[i * numbers..][..numbers]);
            }
        }
        network.forward(&self.vector, rows, &mut self.pass);
    }

    /// Adds the gradient of so many rows, whose gradient in the outputs is in its place.
    fn backward(&mut self, network: &Perceptron, rows: usize) {
        network.backward(rows, &mut self.pass, &self.transposed);
        network.add_gradients(rows, &self.pass, &mut self.gradient);
    }
}

/// Computes gradients; memory for the passes.
pub struct Gradients {
    shape: Shape,
    policy_network: Perceptron,
    critic_network: Perceptron,
    value_network: Perceptron,
    policy: Member,
    value: Member,
    critics: Vec<Member>,
    /// A critic's first weights, transposed, and the gradient in the actions.
    transposed: Vec<Aligned>,
    slopes: Aligned,
    categorical: Categorical,
    /// Actions and deviations [rows, numbers] of a chunk, log-densities [rows], values [rows] or [rows, choices].
    actions: Vec<f32>,
    deviations: Vec<f32>,
    log_probs: Vec<f32>,
    values: Vec<f32>,
}

impl Gradients {
    pub fn new(shape: Shape) -> Self {
        let (policy_network, critic_network) = (shape.policy(), shape.critic());
        let value_network = shape.network(shape.obs, 1);
        let (width, choices) = (shape.actions.numbers(), shape.actions.choices().max(1));
        let first = shape.hidden.first().copied().unwrap_or(1);
        let critics = || 0..shape.critics;
        Self {
            policy: Member::new(&policy_network),
            value: Member::new(&value_network),
            critics: critics().map(|_| Member::new(&critic_network)).collect(),
            transposed: critics().map(|_| Aligned::zeros(first * stride(width))).collect(),
            slopes: Aligned::zeros(CHUNK * stride(width)),
            categorical: Categorical::new(&[choices]),
            actions: vec![0.0; CHUNK * width],
            deviations: vec![0.0; CHUNK * width],
            log_probs: vec![0.0; CHUNK],
            values: vec![0.0; CHUNK * choices],
            policy_network,
            critic_network,
            value_network,
            shape,
        }
    }

    /// Adds the gradient of the critics' loss to `gradient`.
    ///
    /// # Arguments
    /// - `asked`: target critics whose least value counts; not for IQL.
    /// - `td_errors`: [B], get the absolute TD errors, means over the critics.
    pub fn critic_loss(
        &mut self,
        parameters: Parameters<'_>,
        batch: &Batch<'_>,
        settings: &Settings,
        asked: &[usize],
        gradient: &mut [f32],
        td_errors: &mut [f32],
    ) -> CriticLoss {
        let (count, size) = (self.shape.critics, batch.rewards.len());
        let mut found = CriticLoss::default();
        let mut targets = vec![0.0; size];
        self.read_next(parameters, asked);
        for rows in chunks(size) {
            self.next_values(batch, settings, asked.len(), rows.clone());
            for (i, row) in rows.enumerate() {
                targets[row] = batch.discounts[row].mul_add(self.values[i], batch.rewards[row]);
            }
        }
        td_errors.fill(0.0);
        let (obs, kind, network) = (self.shape.obs, self.shape.actions, &self.critic_network);
        let (weight, share) = (settings.weight / size as f32, 1.0 / count as f32);
        for (index, member) in self.critics.iter_mut().enumerate() {
            member.read(network, parameters.critics, index, count, true);
            for rows in chunks(size) {
                member.forward(network, rows_of(batch.obs, obs, &rows), obs, boxed(batch, kind, &rows));
                let (outputs, slopes, stride) = member.pass.ends(network);
                for (i, row) in rows.clone().enumerate() {
                    let place = match batch.actions {
                        Actions::Box(_) => i * stride,
                        Actions::Discrete(actions) => {
                            slopes[i * stride..][..stride].fill(0.0);
                            i * stride + actions[row] as usize
                        }
                    };
                    let error = outputs[place] - targets[row];
                    slopes[place] = error * weight;
                    td_errors[row] += error.abs() * share;
                    found.loss += f64::from(error) * f64::from(error);
                    found.q += f64::from(outputs[place]);
                }
                member.backward(network, rows.len());
            }
            network.add_member(&mut member.gradient, index, count, gradient);
        }
        found.loss /= 2.0 * size as f64;
        found.q /= (size * count) as f64;
        found
    }

    /// Reads the networks that say what the next observations are worth.
    fn read_next(&mut self, parameters: Parameters<'_>, asked: &[usize]) {
        if self.shape.algorithm == Algorithm::Iql {
            self.value.read(&self.value_network, parameters.value, 0, 1, false);
            return;
        }
        self.policy.read(&self.policy_network, parameters.policy, 0, 1, false);
        for (member, &index) in self.critics.iter_mut().zip(asked) {
            member.read(&self.critic_network, parameters.targets, index, self.shape.critics, false);
        }
    }

    /// Writes what the next observations of some rows are worth to the first of `self.values`.
    fn next_values(&mut self, batch: &Batch<'_>, settings: &Settings, asked: usize, rows: Range<usize>) {
        let (obs, count) = (self.shape.obs, rows.len());
        let next = rows_of(batch.next_obs, obs, &rows);
        if self.shape.algorithm == Algorithm::Iql {
            self.value.forward(&self.value_network, next, obs, None);
            let (outputs, _, stride) = self.value.pass.ends(&self.value_network);
            (0..count).for_each(|i| self.values[i] = outputs[i * stride]);
            return;
        }
        self.policy.forward(&self.policy_network, next, obs, None);
        match self.shape.actions {
            ActionKind::Box(numbers) => {
                let noise = &batch.next_noise[rows.start * numbers..rows.end * numbers];
                if self.shape.algorithm == Algorithm::Sac {
                    self.squash(noise, numbers);
                } else {
                    self.smooth(noise, numbers, settings);
                    self.log_probs[..count].fill(0.0);
                }
                self.least_values(next, asked, count);
                for (value, log_prob) in self.values.iter_mut().zip(&self.log_probs).take(count) {
                    *value -= settings.temperature * log_prob;
                }
            }
            ActionKind::Discrete(choices) => {
                self.least_values(next, asked, count);
                let (logits, _, stride) = self.policy.pass.ends(&self.policy_network);
                for (i, row) in rows.enumerate() {
                    let mask = batch.next_masks.map(|masks| &masks[row * choices..][..choices]);
                    self.categorical.set(&logits[i * stride..][..choices], mask);
                    let (probs, log_probs) = self.categorical.all();
                    let mut sum = 0.0;
                    for (k, (prob, log_prob)) in probs.iter().zip(log_probs).enumerate() {
                        sum += prob * (self.values[i * choices + k] - settings.temperature * log_prob);
                    }
                    // Rows before this one are done, and their places are free.
                    self.values[i] = sum;
                }
            }
        }
    }

    /// Draws the policy's actions tanh(u) with u from a Gaussian, and their log-densities: `squashed` of
    /// `fastrl.algorithms.off_policy_loss`.
    fn squash(&mut self, noise: &[f32], numbers: usize) {
        let (outputs, _, stride) = self.policy.pass.ends(&self.policy_network);
        for (i, noise) in noise.chunks_exact(numbers).enumerate() {
            let (means, log_stds) = outputs[i * stride..][..2 * numbers].split_at(numbers);
            let mut sum = 0.0;
            for k in 0..numbers {
                let log_std = log_stds[k].clamp(LOG_STD_RANGE.0, LOG_STD_RANGE.1);
                let deviation = exp_any(log_std);
                let draw = deviation.mul_add(noise[k], means[k]);
                self.deviations[i * numbers + k] = deviation;
                self.actions[i * numbers + k] = tanh(draw);
                // log(1 - tanh(u)^2) = 2 (log 2 - u - softplus(-2 u)).
                sum += 2.0 * (draw + softplus(-2.0 * draw)) - log_std - 0.5 * noise[k] * noise[k];
            }
            self.log_probs[i] = sum - LOG_DENSITY * numbers as f32;
        }
    }

    /// The target policy's actions with noise.
    fn smooth(&mut self, noise: &[f32], numbers: usize, settings: &Settings) {
        let (outputs, _, stride) = self.policy.pass.ends(&self.policy_network);
        let clip = settings.target_noise_clip;
        for (i, noise) in noise.chunks_exact(numbers).enumerate() {
            for k in 0..numbers {
                let noise = (noise[k] * settings.target_noise).clamp(-clip, clip);
                self.actions[i * numbers + k] = (tanh(outputs[i * stride + k]) + noise).clamp(-1.0, 1.0);
            }
        }
    }

    /// The least of the values of the first critics, of the actions of `self.actions` or of all discrete ones.
    fn least_values(&mut self, obs: &[f32], asked: usize, count: usize) {
        let width = self.shape.obs;
        let (numbers, choices) = (self.shape.actions.numbers(), self.shape.actions.choices().max(1));
        for (e, member) in self.critics[..asked].iter_mut().enumerate() {
            let actions = (numbers > 0).then_some((&self.actions[..count * numbers], numbers));
            member.forward(&self.critic_network, obs, width, actions);
            let (outputs, _, stride) = member.pass.ends(&self.critic_network);
            for (i, least) in self.values.chunks_exact_mut(choices).take(count).enumerate() {
                for (least, &value) in least.iter_mut().zip(&outputs[i * stride..]) {
                    *least = if e == 0 { value } else { smaller(*least, value) };
                }
            }
        }
    }

    /// Adds the gradient of the policy's loss to `gradient`, and that of IQL's value function to `value_gradient`.
    pub fn policy_loss(
        &mut self,
        parameters: Parameters<'_>,
        batch: &Batch<'_>,
        settings: &Settings,
        gradient: &mut [f32],
        value_gradient: &mut [f32],
    ) -> PolicyLoss {
        let (count, size, obs) = (self.shape.critics, batch.obs.len() / self.shape.obs, self.shape.obs);
        self.policy.read(&self.policy_network, parameters.policy, 0, 1, true);
        let values = if self.shape.algorithm == Algorithm::Iql { parameters.targets } else { parameters.critics };
        let learns = self.shape.algorithm != Algorithm::Iql;
        for (index, member) in self.critics.iter_mut().enumerate() {
            member.read(&self.critic_network, values, index, count, learns);
            if let (true, ActionKind::Box(numbers)) = (learns, self.shape.actions) {
                self.critic_network.transpose_inputs(&member.vector, numbers, &mut self.transposed[index]);
            }
        }
        if !learns {
            self.value.read(&self.value_network, parameters.value, 0, 1, true);
        }
        let mut found = PolicyLoss::default();
        for rows in chunks(size) {
            self.policy.forward(&self.policy_network, rows_of(batch.obs, obs, &rows), obs, None);
            match (self.shape.algorithm, self.shape.actions) {
                (Algorithm::Sac, ActionKind::Box(numbers)) => {
                    self.sac(batch, settings, rows.clone(), numbers, &mut found);
                }
                (Algorithm::Sac, ActionKind::Discrete(choices)) => {
                    self.discrete_sac(batch, settings, rows.clone(), choices, &mut found);
                }
                (Algorithm::Td3, _) => self.td3(batch, settings, rows.clone(), &mut found),
                (Algorithm::Iql, _) => self.iql(batch, settings, rows.clone(), &mut found),
            }
            self.policy.backward(&self.policy_network, rows.len());
        }
        self.policy_network.add_member(&mut self.policy.gradient, 0, 1, gradient);
        if !learns {
            self.value_network.add_member(&mut self.value.gradient, 0, 1, value_gradient);
        }
        let sums = [
            &mut found.policy_loss,
            &mut found.entropy,
            &mut found.value_loss,
            &mut found.value,
            &mut found.imitation_weight,
        ];
        sums.into_iter().for_each(|sum| *sum /= size as f64);
        found
    }

    /// The gradient in the policy's outputs of E[alpha log pi(a | s) - Q(s, a)].
    fn sac(
        &mut self,
        batch: &Batch<'_>,
        settings: &Settings,
        rows: Range<usize>,
        numbers: usize,
        sums: &mut PolicyLoss,
    ) {
        let (count, alpha) = (rows.len(), settings.temperature);
        let noise = &batch.noise[rows.start * numbers..rows.end * numbers];
        self.squash(noise, numbers);
        let value = self.action_slopes(
            batch,
            rows.clone(),
            numbers,
            if settings.mean_value { Value::Mean } else { Value::Least },
        );
        let (outputs, slopes, stride_out) = self.policy.pass.ends(&self.policy_network);
        let (weight, row) = (settings.weight / (batch.obs.len() / self.shape.obs) as f32, stride(numbers));
        for i in 0..count {
            for k in 0..numbers {
                let (action, raw) = (self.actions[i * numbers + k], outputs[i * stride_out + numbers + k]);
                let slope = self.slopes[i * row + k] * (1.0 - action * action);
                // The log-density changes by 2 tanh(u) with u.
                let of_draw = 2.0 * alpha * action - slope;
                let inside = raw >= LOG_STD_RANGE.0 && raw <= LOG_STD_RANGE.1;
                let of_log_std = of_draw * self.deviations[i * numbers + k] * noise[i * numbers + k] - alpha;
                slopes[i * stride_out + k] = of_draw * weight;
                slopes[i * stride_out + numbers + k] = if inside { of_log_std * weight } else { 0.0 };
            }
            sums.policy_loss += f64::from(alpha * self.log_probs[i]);
            sums.entropy -= f64::from(self.log_probs[i]);
        }
        sums.policy_loss -= value;
    }

    /// The sum over the rows of a value of their actions in `self.actions`; `self.slopes` gets its gradient in these.
    fn action_slopes(&mut self, batch: &Batch<'_>, rows: Range<usize>, numbers: usize, value: Value) -> f64 {
        let (obs, count, network) = (self.shape.obs, rows.len(), &self.critic_network);
        let critics = if value == Value::First { 1 } else { self.critics.len() };
        let least = &mut self.values[..count];
        let mut total = 0.0;
        for (e, member) in self.critics[..critics].iter_mut().enumerate() {
            let actions = Some((&self.actions[..count * numbers], numbers));
            member.forward(network, rows_of(batch.obs, obs, &rows), obs, actions);
            let (outputs, _, stride) = member.pass.ends(network);
            for (i, least) in least.iter_mut().enumerate() {
                let value = outputs[i * stride];
                *least = if e == 0 { value } else { smaller(*least, value) };
                total += f64::from(value);
            }
        }
        if value == Value::Least {
            total = least.iter().map(|&value| f64::from(value)).sum();
        } else {
            total /= critics as f64;
        }
        self.slopes[..count * stride(numbers)].fill(0.0);
        // Which rows have a critic whose value is the least already.
        let mut has_share = [false; CHUNK];
        for (member, transposed) in self.critics[..critics].iter_mut().zip(&self.transposed) {
            let (outputs, slopes, stride) = member.pass.ends(network);
            for i in 0..count {
                slopes[i * stride] = match value {
                    Value::Least => {
                        let first = !has_share[i] && outputs[i * stride].to_bits() == least[i].to_bits();
                        has_share[i] |= first;
                        f32::from(u8::from(first))
                    }
                    Value::Mean | Value::First => 1.0 / critics as f32,
                };
            }
            network.backward(count, &mut member.pass, &member.transposed);
            network.input_gradient(count, &member.pass, transposed, numbers, &mut self.slopes);
        }
        total
    }

    fn discrete_sac(
        &mut self,
        batch: &Batch<'_>,
        settings: &Settings,
        rows: Range<usize>,
        choices: usize,
        sums: &mut PolicyLoss,
    ) {
        let (obs, count, critics) = (self.shape.obs, rows.len(), self.critics.len());
        let seen = rows_of(batch.obs, obs, &rows);
        if settings.mean_value {
            self.values[..count * choices].fill(0.0);
            for member in &mut self.critics {
                member.forward(&self.critic_network, seen, obs, None);
                let (outputs, _, stride) = member.pass.ends(&self.critic_network);
                for (i, mean) in self.values.chunks_exact_mut(choices).take(count).enumerate() {
                    for (mean, &value) in mean.iter_mut().zip(&outputs[i * stride..]) {
                        *mean += value / critics as f32;
                    }
                }
            }
        } else {
            self.least_values(seen, critics, count);
        }
        let (outputs, slopes, stride) = self.policy.pass.ends(&self.policy_network);
        let weight = settings.weight / (batch.obs.len() / obs) as f32;
        for (i, row) in rows.enumerate() {
            let mask = batch.masks.map(|masks| &masks[row * choices..][..choices]);
            self.categorical.set(&outputs[i * stride..][..choices], mask);
            let (probs, log_probs) = self.categorical.all();
            let cost = |k: usize| settings.temperature * log_probs[k] - self.values[i * choices + k];
            let mean: f32 = (0..choices).map(|k| probs[k] * cost(k)).sum();
            for k in 0..choices {
                slopes[i * stride + k] = probs[k] * (cost(k) - mean) * weight;
            }
            sums.policy_loss += f64::from(mean);
            sums.entropy += f64::from(self.categorical.entropy());
        }
    }

    /// The gradient in the policy's outputs of -E[Q_1(s, pi(s))].
    fn td3(&mut self, batch: &Batch<'_>, settings: &Settings, rows: Range<usize>, sums: &mut PolicyLoss) {
        let ActionKind::Box(numbers) = self.shape.actions else { unreachable!("TD3 has continuous actions") };
        let count = rows.len();
        let (outputs, _, stride_out) = self.policy.pass.ends(&self.policy_network);
        for i in 0..count {
            for k in 0..numbers {
                self.actions[i * numbers + k] = tanh(outputs[i * stride_out + k]);
            }
        }
        sums.policy_loss -= self.action_slopes(batch, rows, numbers, Value::First);
        let (_, slopes, stride_out) = self.policy.pass.ends(&self.policy_network);
        let (weight, row) = (settings.weight / (batch.obs.len() / self.shape.obs) as f32, stride(numbers));
        for i in 0..count {
            for k in 0..numbers {
                let action = self.actions[i * numbers + k];
                slopes[i * stride_out + k] = self.slopes[i * row + k] * (action * action - 1.0) * weight;
            }
        }
    }

    /// The gradients in the outputs of the policy and of the value function.
    fn iql(&mut self, batch: &Batch<'_>, settings: &Settings, rows: Range<usize>, sums: &mut PolicyLoss) {
        let (obs, kind, count) = (self.shape.obs, self.shape.actions, rows.len());
        let seen = rows_of(batch.obs, obs, &rows);
        for (e, member) in self.critics.iter_mut().enumerate() {
            member.forward(&self.critic_network, seen, obs, boxed(batch, kind, &rows));
            let (outputs, _, stride) = member.pass.ends(&self.critic_network);
            for (i, row) in rows.clone().enumerate() {
                let place = match batch.actions {
                    Actions::Box(_) => 0,
                    Actions::Discrete(actions) => actions[row] as usize,
                };
                let value = outputs[i * stride + place];
                self.values[i] = if e == 0 { value } else { smaller(self.values[i], value) };
            }
        }
        self.value.forward(&self.value_network, seen, obs, None);
        let weight = settings.weight / (batch.obs.len() / obs) as f32;
        let (values, value_slopes, value_stride) = self.value.pass.ends(&self.value_network);
        let (outputs, slopes, stride) = self.policy.pass.ends(&self.policy_network);
        for (i, row) in rows.enumerate() {
            let value = values[i * value_stride];
            let advantage = self.values[i] - value;
            let share = if advantage < 0.0 { 1.0 - settings.expectile } else { settings.expectile };
            value_slopes[i * value_stride] = -2.0 * share * advantage * weight;
            let imitation = at_most(exp_any(settings.beta * advantage), settings.max_weight);
            let mut cost = 0.0;
            match (batch.actions, self.shape.actions) {
                (Actions::Box(actions), ActionKind::Box(numbers)) => {
                    for k in 0..numbers {
                        let mean = tanh(outputs[i * stride + k]);
                        let error = mean - actions[row * numbers + k];
                        cost += error * error;
                        slopes[i * stride + k] = 2.0 * imitation * weight * error * (1.0 - mean * mean);
                    }
                }
                (Actions::Discrete(actions), ActionKind::Discrete(choices)) => {
                    let mask = batch.masks.map(|masks| &masks[row * choices..][..choices]);
                    self.categorical.set(&outputs[i * stride..][..choices], mask);
                    let ((probs, log_probs), chosen) = (self.categorical.all(), actions[row] as usize);
                    cost = -log_probs[chosen];
                    for k in 0..choices {
                        let one = if k == chosen { 1.0 } else { 0.0 };
                        slopes[i * stride + k] = imitation * weight * (probs[k] - one);
                    }
                }
                _ => unreachable!("checked"),
            }
            sums.policy_loss += f64::from(imitation * cost);
            sums.value_loss += f64::from(share * advantage * advantage);
            sums.value += f64::from(value);
            sums.imitation_weight += f64::from(imitation);
        }
        self.value.backward(&self.value_network, count);
    }
}

/// Which value of an action the policy increases: that of one of the critics, or of all.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Value {
    First,
    Least,
    Mean,
}

/// Some rows of `width` numbers.
fn rows_of<'a>(values: &'a [f32], width: usize, rows: &Range<usize>) -> &'a [f32] {
    &values[rows.start * width..rows.end * width]
}

/// Some rows of continuous actions, and their width; nothing of discrete ones.
fn boxed<'a>(batch: &Batch<'a>, kind: ActionKind, rows: &Range<usize>) -> Option<(&'a [f32], usize)> {
    match (batch.actions, kind) {
        (Actions::Box(actions), ActionKind::Box(numbers)) => Some((rows_of(actions, numbers, rows), numbers)),
        _ => None,
    }
}

/// The smaller of two numbers; NaN if one of them is.
fn smaller(x: f32, y: f32) -> f32 {
    if y < x || y.is_nan() { y } else { x }
}

/// A number, but at most `most`; NaN stays NaN.
fn at_most(x: f32, most: f32) -> f32 {
    if x > most { most } else { x }
}

/// log(1 + e^x).
fn softplus(x: f32) -> f32 {
    x.max(0.0) + ln(1.0 + exp(-x.abs()))
}
