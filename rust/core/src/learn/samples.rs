//! Networks that an update of PPO trains, its settings, and the samples that it learns from.

use super::imitation::Imitation;
use super::losses::Kind;
use super::network::Network;
use super::network::pointer::pointer_networks;
use super::network::pointer::pooled::{Pooling, pooled_networks};
use super::perceptron::Perceptron;
use crate::bf16::Precision;
use crate::dense::Activation;

/// Which networks learn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Networks {
    Both,
    Actor,
    Critic,
}

/// An actor and a critic, or one of them: perceptrons with hidden layers of the same widths; or networks for tables.
#[derive(Clone, Debug)]
pub struct Shape {
    /// Those that learn; the other is not there.
    pub networks: Networks,
    pub inputs: usize,
    /// The first of them, which the actor sees; the critic sees all.
    pub actor_inputs: usize,
    /// Inputs are a table of so many rows, on each of which there are actions: both networks are those of
    /// `fastrl.networks.pointer_policy.PointerPolicy`, in f32 and without layer normalisation.
    pub table_rows: Option<usize>,
    /// Inputs start with tables that go through `fastrl.networks.encoders.RowPooling` before the hidden layers, in f32 and
    /// without layer normalisation.
    pub pooling: Option<Pooling>,
    /// With `pooling` both networks are one but for their last layers.
    pub shared_trunk: bool,
    pub hidden: Vec<usize>,
    pub activation: Activation,
    /// Layer normalisation comes before the activation of hidden layers, which multiply f32 then.
    pub layer_norm: bool,
    pub kind: Kind,
    /// Outputs of the critic: 1, or as many as agents that it values.
    pub critic_outputs: usize,
    /// Precision of the products of hidden layers.
    pub precision: Precision,
}

impl Shape {
    /// The networks that learn.
    pub(super) fn actor_and_critic(&self) -> [Option<Network>; 2] {
        if let Some(rows) = self.table_rows {
            let (policy, value, _) = self.of_tables(rows);
            return [Some(policy), value];
        }
        if let Some(pooling) = self.pooling {
            return self.of_pooling(pooling).0;
        }
        let actor = self.has_actor().then(|| Network::perceptron(self.actor(), self.deviations()));
        let critic = self.has_critic().then(|| {
            let critic = self.critic();
            let first = self.num_parameters() - critic.len();
            Network::perceptron(critic, first)
        });
        [actor, critic]
    }

    fn of_tables(&self, rows: usize) -> (Network, Option<Network>, usize) {
        let actions = self.kind.outputs();
        pointer_networks((rows, self.inputs / rows), actions, &self.hidden, self.activation, true)
    }

    fn of_pooling(&self, pooling: Pooling) -> ([Option<Network>; 2], usize) {
        let outputs = [self.has_actor().then(|| self.kind.outputs()), self.has_critic().then_some(self.critic_outputs)];
        let first = if self.has_actor() { self.deviations() } else { 0 };
        pooled_networks(pooling, self.inputs, &self.hidden, self.activation, outputs, self.shared_trunk, first)
    }

    /// An actor that is a perceptron.
    pub(super) fn actor(&self) -> Perceptron {
        self.network(self.actor_inputs, self.kind.outputs())
    }

    fn critic(&self) -> Perceptron {
        self.network(self.inputs, self.critic_outputs)
    }

    fn network(&self, inputs: usize, outputs: usize) -> Perceptron {
        let sizes: Vec<usize> = std::iter::once(inputs).chain(self.hidden.iter().copied()).chain([outputs]).collect();
        if self.layer_norm {
            Perceptron::normalized(&sizes, self.activation)
        } else {
            Perceptron::new(&sizes, self.activation, self.precision)
        }
    }

    pub(super) fn has_actor(&self) -> bool {
        self.networks != Networks::Critic
    }

    pub(super) fn has_critic(&self) -> bool {
        self.networks != Networks::Actor
    }

    /// Numbers of a Gaussian's deviations; 0 for other actions.
    pub(super) fn deviations(&self) -> usize {
        match self.kind {
            Kind::Categorical(_) => 0,
            Kind::Gaussian(numbers) => numbers,
        }
    }

    /// Number of parameters.
    pub fn num_parameters(&self) -> usize {
        if let Some(rows) = self.table_rows {
            return self.of_tables(rows).2;
        }
        if let Some(pooling) = self.pooling {
            return self.of_pooling(pooling).1;
        }
        let actor = if self.has_actor() { self.deviations() + self.actor().len() } else { 0 };
        actor + if self.has_critic() { self.critic().len() } else { 0 }
    }
}

#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Number of parts of an epoch, which differ by one sample at most.
    pub minibatches: usize,
    pub clip_range: f32,
    pub value_clip: Option<f32>,
    pub value_coef: f32,
    pub entropy_coef: f32,
    pub max_grad_norm: f32,
    pub learning_rate: f64,
    /// Adam's.
    pub epsilon: f32,
    /// Advantages of each minibatch are brought to mean 0 and (sample) deviation 1.
    pub normalize_advantages: bool,
    /// The update ends after a step whose KL is larger.
    pub target_kl: Option<f64>,
    /// Threads that compute at most; fewer do where minibatches are small. The numbers are the same.
    pub threads: usize,
    /// The loss of an actor alone in place of PPO's. Groups and order are then 0, 1, 2 and so on.
    pub imitation: Option<Imitation>,
    /// The loss of a critic alone whose outputs are values of actions, in place of PPO's: half the squared errors of the
    /// actions that were taken. Errors beyond this bound count linearly (PQN, Gallici et al., 2024).
    pub huber: Option<f32>,
}

impl Default for Settings {
    /// Those of a loss without parts: one minibatch, whose gradient is not scaled down.
    fn default() -> Self {
        Self {
            minibatches: 1,
            clip_range: 0.0,
            value_clip: None,
            value_coef: 0.0,
            entropy_coef: 0.0,
            max_grad_norm: f32::INFINITY,
            learning_rate: 0.0,
            epsilon: 1e-5,
            normalize_advantages: false,
            target_kl: None,
            threads: 1,
            imitation: None,
            huber: None,
        }
    }
}

/// Actions of S samples.
#[derive(Clone, Copy, Debug)]
pub enum Actions<'a> {
    Categorical(&'a [i64]),
    Gaussian(&'a [f32]),
}

/// A rollout of S samples, each of which has one of G observations.
#[derive(Clone, Copy, Debug)]
pub struct Samples<'a> {
    /// [G, inputs].
    pub obs: &'a [f32],
    /// [S, outputs], 0 where an action is not allowed.
    pub masks: Option<&'a [u8]>,
    /// [S], which of the observations.
    pub groups: &'a [i64],
    /// [S, width of an action]; [S] of a critic that values actions.
    pub actions: Actions<'a>,
    /// [S] each, when the actions were chosen. Like actions and masks, a critic alone does not need them. For imitation they
    /// are empty, like returns and values.
    pub log_probs: &'a [f32],
    pub advantages: &'a [f32],
    /// [S, outputs of the critic] each; of a critic that values actions [S] and empty.
    pub returns: &'a [f32],
    pub values: &'a [f32],
    /// [S, outputs of the critic], 0 where a return is not learned from.
    pub learned: Option<&'a [u8]>,
}

/// Parameters of the networks that learn, in the order of PyTorch: logarithms of deviations, then of each layer of the
/// actor and then of the critic weights [outputs, inputs] and biases; of networks of tables in the order of their class. [`Shape::num_parameters`] numbers each.
#[derive(Debug)]
pub struct Parameters<'a> {
    pub values: &'a mut [f32],
    /// Adam's moments.
    pub mean: &'a mut [f32],
    pub square: &'a mut [f32],
    /// Steps of Adam so far.
    pub steps: u64,
}
