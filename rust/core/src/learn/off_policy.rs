//! Gradient steps of SAC (Haarnoja et al., 2018; Christodoulou, 2019), TD3 (Fujimoto et al., 2018) and IQL (Kostrikov et al.,
//! 2021) with policies and critics that are perceptrons with ReLU: losses, gradients, Adam, and targets that follow.
//!
//! `fastrl.algorithms` has the losses in the symbols of the papers; names are those there.

use std::ops::Range;
use std::slice::from_mut;

pub use super::adam::Learned;
use super::adam::follow;
use super::member::{Blocks, add_gradients};
use super::off_policy_losses::{Block, Networks};
pub use super::off_policy_parts::{ActionKind, Actions, Algorithm, Batch, Parameters, Settings, Shape};
use super::perceptron::{Perceptron, Piece};
use crate::dense::exp_any;
use crate::gemm::Start;

/// Adam's.
const EPSILON: f32 = 1e-8;

/// Means over the minibatch.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Losses {
    /// Half the sum over critics of mean squared errors, the value of the actions, the absolute TD error.
    pub critics: [f64; 3],
    /// Of SAC the policy's loss, the entropy and the temperature; of TD3 the policy's loss; of IQL the losses of policy and
    /// value function, the value and the weight of imitation; then zeros. All are zeros where the policy does not learn.
    pub policy: [f64; 4],
}

/// Takes gradient steps; memory for them.
pub struct Steps {
    settings: Settings,
    networks: Networks,
    /// Pieces of policy, critics and value function.
    pieces: [Vec<Piece>; 3],
    rows: Blocks,
    blocks: Vec<Block>,
}

impl Steps {
    pub fn new(shape: Shape, settings: Settings) -> Self {
        let networks = Networks::new(shape);
        let pieces = [&networks.policy_network, &networks.critic_network, &networks.value_network]
            .map(Perceptron::packed_pieces);
        Self { settings, networks, pieces, rows: Blocks::new(0, 0, 1), blocks: vec![] }
    }

    /// Takes a step of the critics, with `learns_policy` one of what the policy's optimiser has, too, and moves targets.
    ///
    /// # Arguments
    /// - `continues`: all parameters are as the step before left them.
    /// - `td_errors`: [B], get the absolute TD errors before it, means over the critics.
    pub fn step(
        &mut self,
        parameters: &mut Parameters<'_>,
        batch: &Batch<'_>,
        learns_policy: bool,
        learning_rate: f64,
        continues: bool,
        td_errors: &mut [f32],
    ) -> Losses {
        let (size, algorithm) = (batch.rewards.len(), self.networks.shape.algorithm);
        if self.rows.size != size {
            self.rows = Blocks::new(size, self.networks.work(), self.settings.threads);
            self.blocks = (0..self.rows.together).map(|_| Block::new(&self.networks, self.rows.block)).collect();
        }
        let has_temperature = algorithm == Algorithm::Sac && self.settings.has_temperature;
        let alpha = if has_temperature { exp_any(parameters.policy.values[0]) } else { 0.0 };
        let mut losses = Losses::default();
        if !continues {
            self.networks.forget_targets();
        }
        // IQL's policy learns from the targets before they move.
        let moves_targets = algorithm == Algorithm::Sac || (algorithm == Algorithm::Td3 && learns_policy);
        let [loss, q, ..] = self.learn_critics(parameters, batch, alpha, learning_rate, moves_targets, td_errors);
        let td_error = td_errors.iter().map(|&error| f64::from(error)).sum::<f64>() / size as f64;
        if moves_targets {
            self.networks.forget_targets();
        }
        losses.critics = [loss / 2.0, q / self.networks.shape.critics as f64, td_error];
        if learns_policy {
            losses.policy = self.learn_policy(parameters, batch, alpha, learning_rate);
        }
        if algorithm == Algorithm::Iql {
            follow(parameters.targets, parameters.critics.values, self.settings.tau, &mut self.rows.team);
        }
        losses
    }

    /// Takes a step of the critics; returns sums over them of squared errors and of values, means over the minibatch.
    fn learn_critics(
        &mut self,
        parameters: &mut Parameters<'_>,
        batch: &Batch<'_>,
        alpha: f32,
        learning_rate: f64,
        moves_targets: bool,
        td_errors: &mut [f32],
    ) -> [f64; 4] {
        let Self { settings, networks, pieces: [_, pieces, _], rows, blocks } = self;
        let (rounds, team) = (rows.rounds(), &mut rows.team);
        let alpha = if settings.entropy_backup { alpha } else { 0.0 };
        networks.read_for_critics(parameters, batch, team);
        let (mut sums, mut errors) = ([0.0; 4], td_errors);
        let targets: &mut [f32] = if moves_targets { parameters.targets } else { &mut [] };
        let mut descent = Some(parameters.critics.descent(learning_rate, EPSILON, targets, settings.tau));
        let mut start = Start::Zero;
        for (i, rows) in rounds.iter().enumerate() {
            let of_networks: &Networks = networks;
            let tasks = blocks.iter_mut().zip(rows).map(|(block, rows)| {
                let (some, others) = std::mem::take(&mut errors).split_at_mut(rows.len());
                errors = others;
                (block, rows.clone(), some)
            });
            team.each(&mut tasks.collect::<Vec<_>>(), |(block, rows, errors)| {
                of_networks.critic_rows(block, batch, settings, alpha, rows.clone(), errors);
            });
            add_sums(blocks, rows, &mut sums);
            let Networks { critic_network, critics, .. } = networks;
            let pass = |index: usize, block: usize| &blocks[block].critics[index];
            let last = if i + 1 == rounds.len() { descent.take() } else { None };
            add_gradients(critic_network, pieces, critics, rows, start, pass, last, team);
            start = Start::Present;
        }
        sums.map(|sum| sum / batch.rewards.len() as f64)
    }

    /// Takes a step of what the policy's optimiser has; returns [`Losses::policy`].
    fn learn_policy(
        &mut self,
        parameters: &mut Parameters<'_>,
        batch: &Batch<'_>,
        alpha: f32,
        learning_rate: f64,
    ) -> [f64; 4] {
        let Self { settings, networks, pieces: [pieces, _, value_pieces], rows, blocks } = self;
        let (rounds, team) = (rows.rounds(), &mut rows.team);
        networks.read_for_policy(parameters, team);
        let (mut sums, algorithm) = ([0.0; 4], networks.shape.algorithm);
        let targets = &mut *parameters.target_policy;
        let mut descent = parameters.policy.descent(learning_rate, EPSILON, targets, settings.tau);
        let mut of_temperature = descent.split_first(networks.shape.before_policy());
        let mut of_policy = Some(descent.split_first(networks.policy_network.len()));
        let mut of_value = Some(descent);
        let mut start = Start::Zero;
        for (i, rows) in rounds.iter().enumerate() {
            let of_networks: &Networks = networks;
            let mut tasks: Vec<_> = blocks.iter_mut().zip(rows.iter().cloned()).collect();
            team.each(&mut tasks, |(block, rows)| of_networks.policy_rows(block, batch, settings, alpha, rows.clone()));
            add_sums(blocks, rows, &mut sums);
            let Networks { policy_network, policy, value_network, value, .. } = networks;
            let is_last = i + 1 == rounds.len();
            let last = if is_last { of_policy.take() } else { None };
            let pass = |_, block: usize| &blocks[block].policy;
            add_gradients(policy_network, pieces, from_mut(policy), rows, start, pass, last, team);
            if algorithm == Algorithm::Iql {
                let last = if is_last { of_value.take() } else { None };
                let pass = |_, block: usize| &blocks[block].value;
                add_gradients(value_network, value_pieces, from_mut(value), rows, start, pass, last, team);
            }
            start = Start::Present;
        }
        let mut means = sums.map(|sum| sum / batch.rewards.len() as f64);
        if algorithm == Algorithm::Sac {
            means[2] = f64::from(alpha);
            of_temperature.step(&mut [settings.target_entropy.map_or(0.0, |target| means[1] as f32 - target)]);
        }
        means
    }
}

/// Adds the numbers of each row, in their order.
fn add_sums(blocks: &[Block], rows: &[Range<usize>], sums: &mut [f64; 4]) {
    for (block, rows) in blocks.iter().zip(rows) {
        for found in &block.found[..rows.len()] {
            sums.iter_mut().zip(found).for_each(|(sum, x)| *sum += x);
        }
    }
}
