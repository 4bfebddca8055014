//! Sizes, minibatches, parameters and settings of SAC, TD3 and IQL.

use std::ops::Range;

use super::adam::Learned;
use super::perceptron::Perceptron;
use crate::bf16::Precision;
use crate::dense::Activation;

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
    pub precision: Precision,
}

impl Shape {
    fn network(&self, inputs: usize, outputs: usize) -> Perceptron {
        let sizes: Vec<usize> = std::iter::once(inputs).chain(self.hidden.iter().copied()).chain([outputs]).collect();
        Perceptron::new(&sizes, Activation::Relu, self.precision)
    }

    pub(super) fn policy(&self) -> Perceptron {
        let outputs = match (self.algorithm, self.actions) {
            (Algorithm::Sac, ActionKind::Box(numbers)) => 2 * numbers,
            (_, ActionKind::Box(count) | ActionKind::Discrete(count)) => count,
        };
        self.network(self.obs, outputs)
    }

    pub(super) fn critic(&self) -> Perceptron {
        match self.actions {
            ActionKind::Box(numbers) => self.network(self.obs + numbers, 1),
            ActionKind::Discrete(choices) => self.network(self.obs, choices),
        }
    }

    pub(super) fn value(&self) -> Perceptron {
        self.network(self.obs, 1)
    }

    /// Number of parameters of all critics.
    pub fn critic_parameters(&self) -> usize {
        self.critics * self.critic().len()
    }

    /// Number of parameters that the policy's optimiser has: the logarithm of SAC's temperature, the policy, IQL's value
    /// function.
    pub fn policy_parameters(&self) -> usize {
        self.before_policy()
            + self.policy().len()
            + if self.algorithm == Algorithm::Iql { self.value().len() } else { 0 }
    }

    /// Number of TD3's target policy's parameters, and of others' 0.
    pub fn target_policy_parameters(&self) -> usize {
        if self.algorithm == Algorithm::Td3 { self.policy().len() } else { 0 }
    }

    /// Parameters of that optimiser before the policy's.
    pub(super) fn before_policy(&self) -> usize {
        usize::from(self.algorithm == Algorithm::Sac)
    }

    /// Numbers in [`super::off_policy::Losses::policy`].
    pub fn policy_losses(&self) -> usize {
        match self.algorithm {
            Algorithm::Sac => 3,
            Algorithm::Td3 => 1,
            Algorithm::Iql => 4,
        }
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
    /// Target critics whose least value counts; not for IQL.
    pub target_critics: &'a [usize],
}

impl Batch<'_> {
    /// Some of the transitions, without what is drawn for their losses.
    pub fn part(&self, shape: &Shape, rows: Range<usize>) -> Self {
        let (numbers, choices) = (shape.actions.numbers(), shape.actions.choices());
        Self {
            obs: rows_of(self.obs, shape.obs, &rows),
            next_obs: rows_of(self.next_obs, shape.obs, &rows),
            actions: match self.actions {
                Actions::Box(actions) => Actions::Box(rows_of(actions, numbers, &rows)),
                Actions::Discrete(actions) => Actions::Discrete(rows_of(actions, 1, &rows)),
            },
            rewards: rows_of(self.rewards, 1, &rows),
            discounts: rows_of(self.discounts, 1, &rows),
            masks: self.masks.map(|masks| rows_of(masks, choices, &rows)),
            next_masks: self.next_masks.map(|masks| rows_of(masks, choices, &rows)),
            noise: &[],
            next_noise: &[],
            target_critics: &[],
        }
    }
}

/// Some rows of `width` elements.
pub(super) fn rows_of<'a, T>(values: &'a [T], width: usize, rows: &Range<usize>) -> &'a [T] {
    &values[rows.start * width..rows.end * width]
}

/// Parameters as the ensembles of PyTorch have them, see [`Shape`].
#[derive(Debug)]
pub struct Parameters<'a> {
    pub critics: Learned<'a>,
    pub policy: Learned<'a>,
    pub targets: &'a mut [f32],
    pub target_policy: &'a mut [f32],
}

#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Share of the way to the parameters that targets move by, tau.
    pub tau: f32,
    /// SAC: the entropy counts, weighted by the temperature.
    pub has_temperature: bool,
    /// SAC: the temperature learns, so that the entropy becomes the target.
    pub target_entropy: Option<f32>,
    /// SAC: the critics' targets count the entropy of later actions.
    pub entropy_backup: bool,
    /// SAC: the policy increases the mean of the critics, not the least of them.
    pub mean_value: bool,
    /// TD3: deviation and bound of the noise on the target policy's actions.
    pub target_noise: f32,
    pub target_noise_clip: f32,
    /// IQL.
    pub expectile: f32,
    pub beta: f32,
    pub max_weight: f32,
    /// At most.
    pub threads: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            tau: 0.005,
            has_temperature: true,
            target_entropy: None,
            entropy_backup: true,
            mean_value: false,
            target_noise: 0.2,
            target_noise_clip: 0.5,
            expectile: 0.7,
            beta: 3.0,
            max_weight: 100.0,
            threads: 1,
        }
    }
}
