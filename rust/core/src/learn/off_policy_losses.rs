//! Losses of SAC, TD3 and IQL, and their gradients in the outputs of networks and back to those of layers, for some rows of
//! a minibatch.

use std::ops::Range;
use std::slice::from_mut;

use super::losses::Categorical;
use super::member::{Member, fill};
use super::off_policy_parts::{ActionKind, Actions, Algorithm, Batch, Parameters, Settings, Shape, rows_of};
use super::perceptron::{Pass, Perceptron};
use crate::dense::{activate, exp_any, tanh};
use crate::matrix::{Aligned, stride};
use crate::squashed::{Draws, LOG_STD_RANGE, squash_rows};
use crate::team::Team;

/// The networks of an algorithm, as they are in one gradient step.
pub(super) struct Networks {
    pub(super) shape: Shape,
    pub(super) policy_network: Perceptron,
    pub(super) critic_network: Perceptron,
    pub(super) value_network: Perceptron,
    /// In the critics' step of TD3 the target policy.
    pub(super) policy: Member,
    pub(super) critics: Vec<Member>,
    /// In the critics' step those whose least value counts.
    targets: Vec<Member>,
    pub(super) value: Member,
    /// The numbers of these.
    asked: Vec<usize>,
    /// TD3's targets are read, and have not moved since.
    has_targets: bool,
}

/// Memory for a block of rows.
pub(super) struct Block {
    pub(super) policy: Pass,
    pub(super) critics: Vec<Pass>,
    target: Pass,
    pub(super) value: Pass,
    categorical: Categorical,
    /// Actions, deviations and log-densities [rows, numbers], or [rows] of their sums.
    actions: Vec<f32>,
    deviations: Vec<f32>,
    densities: Vec<f32>,
    log_probs: Vec<f32>,
    /// Values [rows] or [rows, choices].
    values: Vec<f32>,
    /// Gradient of a value in actions [rows, stride of the numbers].
    slopes: Aligned,
    /// The critic whose value is the least, for each row.
    least: Vec<usize>,
    /// Rows in which a critic counts, and the gradients of its value.
    counted: Vec<usize>,
    of_counted: Aligned,
    /// Numbers of each row that are added up.
    pub(super) found: Vec<[f64; 4]>,
}

impl Block {
    pub(super) fn new(networks: &Networks, rows: usize) -> Self {
        let (numbers, choices) = (networks.shape.actions.numbers(), networks.shape.actions.choices().max(1));
        let critic = || networks.critic_network.pass(rows);
        Self {
            policy: networks.policy_network.pass(rows),
            critics: networks.critics.iter().map(|_| critic()).collect(),
            target: critic(),
            value: networks.value_network.pass(rows),
            categorical: Categorical::new(&[choices]),
            actions: vec![0.0; rows * numbers],
            deviations: vec![0.0; rows * numbers],
            densities: vec![0.0; rows * numbers],
            log_probs: vec![0.0; rows],
            values: vec![0.0; rows * choices],
            slopes: Aligned::zeros(rows * stride(numbers)),
            least: vec![0; rows],
            counted: Vec::with_capacity(rows),
            of_counted: Aligned::zeros(rows * stride(numbers)),
            found: vec![[0.0; 4]; rows],
        }
    }

    /// Draws the policy's actions.
    fn squash(&mut self, network: &Perceptron, noise: &[f32], numbers: usize) {
        let Self { policy, actions, deviations, densities, log_probs, .. } = self;
        let (outputs, _, stride) = policy.ends(network);
        squash_rows(outputs, stride, numbers, noise, Draws { actions, deviations, densities, log_probs });
    }

    /// The actions of TD3's policy.
    fn bound(&mut self, network: &Perceptron, numbers: usize) {
        let (outputs, _, stride) = self.policy.ends(network);
        for (actions, outputs) in self.actions.chunks_exact_mut(numbers).zip(outputs.chunks_exact(stride)) {
            actions.copy_from_slice(&outputs[..numbers]);
        }
        activate(true, &mut self.actions);
    }

    /// Adds noise to the target policy's actions.
    fn smooth(&mut self, noise: &[f32], settings: &Settings) {
        let clip = settings.target_noise_clip;
        for (action, noise) in self.actions.iter_mut().zip(noise) {
            *action = (*action + (noise * settings.target_noise).clamp(-clip, clip)).clamp(-1.0, 1.0);
        }
    }
}

impl Networks {
    pub(super) fn new(shape: Shape) -> Self {
        let (policy_network, critic_network, value_network) = (shape.policy(), shape.critic(), shape.value());
        let critics = || (0..shape.critics).map(|_| Member::new(&critic_network, shape.actions.numbers())).collect();
        Self {
            policy: Member::new(&policy_network, 0),
            critics: critics(),
            targets: critics(),
            value: Member::new(&value_network, 0),
            asked: vec![],
            has_targets: false,
            policy_network,
            critic_network,
            value_network,
            shape,
        }
    }

    /// Multiplications of a row in a pass of all networks.
    pub(super) fn work(&self) -> usize {
        self.policy_network.work() + 2 * self.shape.critics * self.critic_network.work()
    }

    /// Makes the next step of the critics read the target networks.
    pub(super) fn forget_targets(&mut self) {
        self.has_targets = false;
    }

    /// Reads the networks that the critics' step needs.
    pub(super) fn read_for_critics(&mut self, parameters: &Parameters<'_>, batch: &Batch<'_>, team: &mut Team) {
        let Self { shape, policy_network, critic_network, value_network, policy, critics, targets, value, .. } = self;
        let (count, network): (_, &Perceptron) = (shape.critics, critic_network);
        let (of_policy, of_value) = parameters.policy.values[shape.before_policy()..].split_at(policy_network.len());
        let mut tasks: Vec<_> = members(critics, network, parameters.critics.values, true).collect();
        let has_targets = self.has_targets && self.asked == batch.target_critics;
        let asked = targets.iter_mut().zip(batch.target_critics);
        match shape.algorithm {
            Algorithm::Td3 if has_targets => {}
            Algorithm::Sac => tasks.push((policy, policy_network, of_policy, 0, 1, true)),
            Algorithm::Td3 => tasks.push((policy, policy_network, parameters.target_policy, 0, 1, false)),
            Algorithm::Iql => tasks.push((value, value_network, of_value, 0, 1, true)),
        }
        if shape.algorithm != Algorithm::Iql && !has_targets {
            self.asked = batch.target_critics.to_vec();
            tasks.extend(asked.map(|(target, &index)| (target, network, &*parameters.targets, index, count, false)));
        }
        read(&mut tasks, team);
        self.has_targets = shape.algorithm == Algorithm::Td3;
    }

    /// Reads the networks that the policy's step needs, and that have changed or were not needed before.
    pub(super) fn read_for_policy(&mut self, parameters: &Parameters<'_>, team: &mut Team) {
        let Self { shape, policy_network, critic_network, policy, critics, targets, .. } = self;
        let of_policy = &parameters.policy.values[shape.before_policy()..];
        let mut tasks = vec![];
        if shape.algorithm == Algorithm::Iql {
            tasks.extend(members(targets, critic_network, parameters.targets, false));
        } else {
            let has_gradient = matches!(shape.actions, ActionKind::Box(_));
            // TD3's policy increases the value of the first one.
            let asked = if shape.algorithm == Algorithm::Td3 { 1 } else { critics.len() };
            tasks.extend(members(critics, critic_network, parameters.critics.values, has_gradient).take(asked));
        }
        if shape.algorithm != Algorithm::Sac {
            tasks.push((policy, policy_network, of_policy, 0, 1, true));
        }
        read(&mut tasks, team);
    }

    /// The gradient of the critics' loss in all layers' outputs.
    ///
    /// # Arguments
    /// - `alpha`: weight of the entropy of later actions.
    /// - `td_errors`: [rows].
    pub(super) fn critic_rows(
        &self,
        block: &mut Block,
        batch: &Batch<'_>,
        settings: &Settings,
        alpha: f32,
        rows: Range<usize>,
        td_errors: &mut [f32],
    ) {
        self.next_values(block, batch, settings, alpha, rows.clone());
        let targets = batch.rewards[rows.clone()].iter().zip(&batch.discounts[rows.clone()]);
        for (value, (reward, discount)) in block.values.iter_mut().zip(targets) {
            *value = discount.mul_add(*value, *reward);
        }
        td_errors.fill(0.0);
        block.found.fill([0.0; 4]);
        let (network, obs, count) = (&self.critic_network, self.shape.obs, rows.len());
        let (weight, share) = (1.0 / batch.rewards.len() as f32, 1.0 / self.shape.critics as f32);
        fill(&mut block.critics, rows_of(batch.obs, obs, &rows), obs, boxed(batch, self.shape.actions, &rows));
        for (member, pass) in self.critics.iter().zip(&mut block.critics) {
            member.forward_filled(network, pass, count);
            let (outputs, slopes, stride) = pass.ends(network);
            for (i, row) in rows.clone().enumerate() {
                let place = match batch.actions {
                    Actions::Box(_) => i * stride,
                    Actions::Discrete(actions) => {
                        slopes[i * stride..][..stride].fill(0.0);
                        i * stride + actions[row] as usize
                    }
                };
                let error = outputs[place] - block.values[i];
                slopes[place] = error * weight;
                td_errors[i] += error.abs() * share;
                block.found[i][0] += f64::from(error) * f64::from(error);
                block.found[i][1] += f64::from(outputs[place]);
            }
            member.backward(network, count, pass, true);
        }
    }

    /// Writes what the next observations are worth to the first of the block's values.
    fn next_values(&self, block: &mut Block, batch: &Batch<'_>, settings: &Settings, alpha: f32, rows: Range<usize>) {
        let (obs, count) = (self.shape.obs, rows.len());
        let next = rows_of(batch.next_obs, obs, &rows);
        if self.shape.algorithm == Algorithm::Iql {
            self.value.forward(&self.value_network, &mut block.value, next, obs);
            let (outputs, _, stride) = block.value.ends(&self.value_network);
            (0..count).for_each(|i| block.values[i] = outputs[i * stride]);
            return;
        }
        let (network, targets) = (&self.policy_network, &self.targets[..self.asked.len()]);
        self.policy.forward(network, &mut block.policy, next, obs);
        match self.shape.actions {
            ActionKind::Box(numbers) => {
                let noise = rows_of(batch.next_noise, numbers, &rows);
                if self.shape.algorithm == Algorithm::Sac {
                    block.squash(network, noise, numbers);
                } else {
                    block.bound(network, numbers);
                    block.smooth(noise, settings);
                    block.log_probs.fill(0.0);
                }
                self.least_values(targets, block, next);
                for (value, log_prob) in block.values.iter_mut().zip(&block.log_probs).take(count) {
                    *value -= alpha * log_prob;
                }
            }
            ActionKind::Discrete(choices) => {
                self.least_values(targets, block, next);
                let (logits, _, stride) = block.policy.ends(network);
                for (i, row) in rows.enumerate() {
                    let mask = batch.next_masks.map(|masks| &masks[row * choices..][..choices]);
                    block.categorical.set(&logits[i * stride..][..choices], mask);
                    let (probs, log_probs) = block.categorical.all();
                    let mut sum = 0.0;
                    for (k, (prob, log_prob)) in probs.iter().zip(log_probs).enumerate() {
                        sum += prob * (block.values[i * choices + k] - alpha * log_prob);
                    }
                    // Rows before this one are done, and their places are free.
                    block.values[i] = sum;
                }
            }
        }
    }

    /// The least of some critics' values, of the block's actions or of all discrete ones.
    fn least_values(&self, critics: &[Member], block: &mut Block, obs: &[f32]) {
        let (width, network) = (self.shape.obs, &self.critic_network);
        let (numbers, choices) = (self.shape.actions.numbers(), self.shape.actions.choices().max(1));
        let count = obs.len() / width;
        let actions = (numbers > 0).then_some((&block.actions[..count * numbers], numbers));
        fill(from_mut(&mut block.target), obs, width, actions);
        for (e, member) in critics.iter().enumerate() {
            member.forward_filled(network, &mut block.target, count);
            let (outputs, _, stride) = block.target.ends(network);
            for (i, least) in block.values.chunks_exact_mut(choices).take(count).enumerate() {
                for (least, &value) in least.iter_mut().zip(&outputs[i * stride..]) {
                    *least = if e == 0 { value } else { smaller(*least, value) };
                }
            }
        }
    }

    /// The gradient of the policy's loss, and of that of IQL's value function, in all layers' outputs.
    pub(super) fn policy_rows(
        &self,
        block: &mut Block,
        batch: &Batch<'_>,
        settings: &Settings,
        alpha: f32,
        rows: Range<usize>,
    ) {
        let (network, obs) = (&self.policy_network, self.shape.obs);
        let weight = 1.0 / batch.rewards.len() as f32;
        self.policy.forward(network, &mut block.policy, rows_of(batch.obs, obs, &rows), obs);
        match (self.shape.algorithm, self.shape.actions) {
            (Algorithm::Sac, ActionKind::Box(numbers)) => {
                self.sac(block, batch, settings, alpha, weight, rows.clone(), numbers);
            }
            (Algorithm::Sac, ActionKind::Discrete(choices)) => {
                self.discrete_sac(block, batch, settings, alpha, weight, rows.clone(), choices);
            }
            (Algorithm::Td3, kind) => self.td3(block, batch, weight, rows.clone(), kind.numbers()),
            (Algorithm::Iql, _) => self.iql(block, batch, settings, weight, rows.clone()),
        }
        self.policy.backward(network, rows.len(), &mut block.policy, true);
    }

    /// The gradient in the policy's outputs of E[alpha log pi(a | s) - Q(s, a)].
    #[expect(clippy::too_many_arguments, reason = "a minibatch and its settings")]
    fn sac(
        &self,
        block: &mut Block,
        batch: &Batch<'_>,
        settings: &Settings,
        alpha: f32,
        weight: f32,
        rows: Range<usize>,
        numbers: usize,
    ) {
        let noise = rows_of(batch.noise, numbers, &rows);
        block.squash(&self.policy_network, noise, numbers);
        self.action_slopes(block, batch, &rows, if settings.mean_value { Value::Mean } else { Value::Least });
        let (outputs, slopes, stride_out) = block.policy.ends(&self.policy_network);
        let row = stride(numbers);
        for i in 0..rows.len() {
            for k in 0..numbers {
                let (action, raw) = (block.actions[i * numbers + k], outputs[i * stride_out + numbers + k]);
                let slope = block.slopes[i * row + k] * (1.0 - action * action);
                // The log-density changes by 2 tanh(u) with u.
                let of_draw = 2.0 * alpha * action - slope;
                let inside = raw >= LOG_STD_RANGE.0 && raw <= LOG_STD_RANGE.1;
                let of_log_std = of_draw * block.deviations[i * numbers + k] * noise[i * numbers + k] - alpha;
                slopes[i * stride_out + k] = of_draw * weight;
                slopes[i * stride_out + numbers + k] = if inside { of_log_std * weight } else { 0.0 };
            }
            let log_prob = block.log_probs[i];
            block.found[i] = [f64::from(alpha * log_prob - block.values[i]), -f64::from(log_prob), 0.0, 0.0];
        }
    }

    /// Writes a value of the block's actions to its values, and its gradient in these to its slopes.
    fn action_slopes(&self, block: &mut Block, batch: &Batch<'_>, rows: &Range<usize>, value: Value) {
        let (obs, count, network) = (self.shape.obs, rows.len(), &self.critic_network);
        let numbers = self.shape.actions.numbers();
        let critics = &self.critics[..if value == Value::First { 1 } else { self.critics.len() }];
        let share = if value == Value::Mean { 1.0 / critics.len() as f32 } else { 1.0 };
        let actions = Some((&block.actions[..count * numbers], numbers));
        fill(&mut block.critics[..critics.len()], rows_of(batch.obs, obs, rows), obs, actions);
        for (e, (member, pass)) in critics.iter().zip(&mut block.critics).enumerate() {
            member.forward_filled(network, pass, count);
            let (outputs, _, stride) = pass.ends(network);
            let places = block.values.iter_mut().zip(&mut block.least).zip(outputs.chunks_exact(stride));
            for ((found, least), outputs) in places.take(count) {
                let q = outputs[0] * share;
                if e == 0 || (value == Value::Least && is_smaller(q, *found)) {
                    (*found, *least) = (q, e);
                } else if value == Value::Mean {
                    *found += q;
                }
            }
        }
        block.slopes.fill(0.0);
        for (e, member) in critics.iter().enumerate() {
            // Rows in which the critic counts: the others have no gradient, and need no way back.
            block.counted.clear();
            block.counted.extend((0..count).filter(|&i| value != Value::Least || block.least[i] == e));
            let counted = block.counted.len();
            let pass = if counted == count {
                &mut block.critics[e]
            } else {
                network.gather(&block.counted, &block.critics[e], &mut block.target);
                &mut block.target
            };
            let (_, slopes, stride_out) = pass.ends(network);
            slopes.chunks_exact_mut(stride_out).take(counted).for_each(|slopes| slopes[0] = share);
            member.backward(network, counted, pass, false);
            member.input_gradient(network, counted, pass, &mut block.of_counted);
            let width = stride(numbers);
            for (&i, from) in block.counted.iter().zip(block.of_counted.chunks_exact(width)) {
                block.slopes[i * width..][..width].iter_mut().zip(from).for_each(|(to, from)| *to += from);
            }
        }
    }

    #[expect(clippy::too_many_arguments, reason = "a minibatch and its settings")]
    fn discrete_sac(
        &self,
        block: &mut Block,
        batch: &Batch<'_>,
        settings: &Settings,
        alpha: f32,
        weight: f32,
        rows: Range<usize>,
        choices: usize,
    ) {
        let (obs, count, critics) = (self.shape.obs, rows.len(), self.critics.len());
        let seen = rows_of(batch.obs, obs, &rows);
        if settings.mean_value {
            block.values.fill(0.0);
            fill(from_mut(&mut block.target), seen, obs, None);
            for member in &self.critics {
                member.forward_filled(&self.critic_network, &mut block.target, count);
                let (outputs, _, stride) = block.target.ends(&self.critic_network);
                for (i, mean) in block.values.chunks_exact_mut(choices).take(count).enumerate() {
                    for (mean, &value) in mean.iter_mut().zip(&outputs[i * stride..]) {
                        *mean += value / critics as f32;
                    }
                }
            }
        } else {
            self.least_values(&self.critics, block, seen);
        }
        let (outputs, slopes, stride) = block.policy.ends(&self.policy_network);
        for (i, row) in rows.enumerate() {
            let mask = batch.masks.map(|masks| &masks[row * choices..][..choices]);
            block.categorical.set(&outputs[i * stride..][..choices], mask);
            let (probs, log_probs) = block.categorical.all();
            let cost = |k: usize| alpha * log_probs[k] - block.values[i * choices + k];
            let mean: f32 = (0..choices).map(|k| probs[k] * cost(k)).sum();
            for k in 0..choices {
                slopes[i * stride + k] = probs[k] * (cost(k) - mean) * weight;
            }
            block.found[i] = [f64::from(mean), f64::from(block.categorical.entropy()), 0.0, 0.0];
        }
    }

    /// The gradient in the policy's outputs of -E[Q_1(s, pi(s))].
    fn td3(&self, block: &mut Block, batch: &Batch<'_>, weight: f32, rows: Range<usize>, numbers: usize) {
        block.bound(&self.policy_network, numbers);
        self.action_slopes(block, batch, &rows, Value::First);
        let (_, slopes, stride_out) = block.policy.ends(&self.policy_network);
        for i in 0..rows.len() {
            for k in 0..numbers {
                let action = block.actions[i * numbers + k];
                slopes[i * stride_out + k] = block.slopes[i * stride(numbers) + k] * (action * action - 1.0) * weight;
            }
            block.found[i] = [-f64::from(block.values[i]), 0.0, 0.0, 0.0];
        }
    }

    /// The gradients in the outputs of the policy, and in all layers' of the value function.
    fn iql(&self, block: &mut Block, batch: &Batch<'_>, settings: &Settings, weight: f32, rows: Range<usize>) {
        let (obs, kind, count) = (self.shape.obs, self.shape.actions, rows.len());
        let seen = rows_of(batch.obs, obs, &rows);
        fill(from_mut(&mut block.target), seen, obs, boxed(batch, kind, &rows));
        for (e, member) in self.targets.iter().enumerate() {
            member.forward_filled(&self.critic_network, &mut block.target, count);
            let (outputs, _, stride) = block.target.ends(&self.critic_network);
            for (i, row) in rows.clone().enumerate() {
                let place = match batch.actions {
                    Actions::Box(_) => 0,
                    Actions::Discrete(actions) => actions[row] as usize,
                };
                let value = outputs[i * stride + place];
                block.values[i] = if e == 0 { value } else { smaller(block.values[i], value) };
            }
        }
        self.value.forward(&self.value_network, &mut block.value, seen, obs);
        let (values, value_slopes, value_stride) = block.value.ends(&self.value_network);
        let (outputs, slopes, stride) = block.policy.ends(&self.policy_network);
        for (i, row) in rows.enumerate() {
            let value = values[i * value_stride];
            let advantage = block.values[i] - value;
            let share = if advantage < 0.0 { 1.0 - settings.expectile } else { settings.expectile };
            value_slopes[i * value_stride] = -2.0 * share * advantage * weight;
            let imitation = at_most(exp_any(settings.beta * advantage), settings.max_weight);
            let mut cost = 0.0;
            match (batch.actions, kind) {
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
                    block.categorical.set(&outputs[i * stride..][..choices], mask);
                    let ((probs, log_probs), chosen) = (block.categorical.all(), actions[row] as usize);
                    cost = -log_probs[chosen];
                    for k in 0..choices {
                        let one = if k == chosen { 1.0 } else { 0.0 };
                        slopes[i * stride + k] = imitation * weight * (probs[k] - one);
                    }
                }
                _ => unreachable!("checked"),
            }
            let value_loss = share * advantage * advantage;
            block.found[i] = [imitation * cost, value_loss, value, imitation].map(f64::from);
        }
        self.value.backward(&self.value_network, count, &mut block.value, true);
    }
}

/// Which value of an action the policy increases: that of one of the critics, or of all.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Value {
    First,
    Least,
    Mean,
}

/// A perceptron to be read: number `index` of an ensemble of `count`, and whether it learns.
type Read<'a> = (&'a mut Member, &'a Perceptron, &'a [f32], usize, usize, bool);

/// All perceptrons of an ensemble.
fn members<'a>(
    members: &'a mut [Member],
    network: &'a Perceptron,
    flat: &'a [f32],
    learns: bool,
) -> impl Iterator<Item = Read<'a>> {
    let count = members.len();
    members.iter_mut().enumerate().map(move |(index, member)| (member, network, flat, index, count, learns))
}

fn read(tasks: &mut [Read<'_>], team: &mut Team) {
    team.each(tasks, |(member, network, flat, index, count, learns)| {
        member.read(network, flat, *index, *count, *learns)
    });
}

/// Some rows of continuous actions, and their width; nothing of discrete ones.
fn boxed<'a>(batch: &Batch<'a>, kind: ActionKind, rows: &Range<usize>) -> Option<(&'a [f32], usize)> {
    match (batch.actions, kind) {
        (Actions::Box(actions), ActionKind::Box(numbers)) => Some((rows_of(actions, numbers, rows), numbers)),
        _ => None,
    }
}

/// True if a number takes the place of another as the least of some, of which NaN is.
fn is_smaller(x: f32, than: f32) -> bool {
    x < than || x.is_nan()
}

/// The smaller of two numbers; NaN if one of them is.
fn smaller(x: f32, y: f32) -> f32 {
    if is_smaller(y, x) { y } else { x }
}

/// A number, but at most `most`; NaN stays NaN.
fn at_most(x: f32, most: f32) -> f32 {
    if x > most { most } else { x }
}
