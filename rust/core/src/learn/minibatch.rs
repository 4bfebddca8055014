//! Gradients of PPO's losses in minibatches, and steps along them, by a team of threads.
//!
//! The rows of a minibatch go through the networks in blocks, and back to the gradients of the layers' outputs. Then each
//! piece of the parameters gets its gradient of all rows, in their order. Losses are added up in groups of [`GROUP`] rows,
//! and these in their order. So sums depend neither on the number of threads nor on which of them computes what.

use std::ops::Range;

use super::adam::{Rule, Vectors};
use super::batch::{Batch, prefetch};
use super::chunk::{Chunk, categorical_rows, gaussian_rows, masked_rows};
use super::imitation::{cloned_choices, cloned_draws};
use super::losses::{Categorical, Gaussian, Kind, Sums, Surrogate, value_slope};
use super::masked::Masked;
use super::network::pointer::Tables;
use super::network::{GROUP, Network, NetworkPass, Of};
use super::perceptron::{CHUNK, Piece};
use super::q_learning::huber;
use super::samples::{Actions, Parameters, Samples, Settings, Shape};
use crate::matrix::{Aligned, padded};
use crate::team::Team;

/// The logarithms of a Gaussian's deviations stay within these, as in `fastrl.networks.distributions`.
const LOG_STD_RANGE: (f32, f32) = (-5.0, 2.0);

/// Multiplications in the passes of a minibatch for each thread: below that another one does not pay.
const WORK: usize = 1 << 20;

/// Numbers that fit into the cache of a core.
const CACHE: usize = 3 << 16;

/// Parameters that take a step together.
const STEP: usize = 1 << 13;

/// Rows of a block: so few that there is one of some network for each thread.
fn block_rows(rows: usize, networks: usize, threads: usize) -> usize {
    let share = (networks * rows).div_ceil(threads).next_multiple_of(GROUP);
    if threads == 1 { CHUNK } else { share.clamp(GROUP, CHUNK / 2) }
}

/// Means over the samples of a minibatch.
#[derive(Clone, Copy, Default)]
pub(super) struct Losses {
    pub(super) policy: f64,
    pub(super) value: f64,
    pub(super) entropy: f64,
    pub(super) kl: f64,
    pub(super) clipped: f64,
    pub(super) score: f64,
    pub(super) q: f64,
}

impl Losses {
    pub(super) fn add(&mut self, other: &Self) {
        self.policy += other.policy;
        self.value += other.value;
        self.entropy += other.entropy;
        self.kl += other.kl;
        self.clipped += other.clipped;
        self.score += other.score;
        self.q += other.q;
    }
}

/// Memory for the distributions of actions.
#[derive(Clone)]
enum Policy<'a> {
    Categorical(Categorical),
    Masked(Box<Masked<'a>>),
    Gaussian(Gaussian),
}

/// Purpose of a learner's network.
#[derive(Clone)]
enum Role<'a> {
    Actor(Policy<'a>),
    Critic,
}

/// Memory for the pass of some rows.
struct Block<'a> {
    pass: NetworkPass,
    role: Role<'a>,
    groups: Vec<Group>,
}

/// Sums over the samples of some rows.
#[derive(Clone, Default)]
struct Group {
    sums: Sums,
    /// Sum of squared errors of values.
    squares: f64,
    /// Sum of the values of actions that were taken.
    q: f64,
    /// Gradient in the logarithms of deviations.
    log_std: Vec<f32>,
}

/// A network that learns.
struct Learner<'a> {
    network: Network,
    vectors: Vectors,
    /// Place of the logarithms of an actor's deviations in these.
    log_std: Range<usize>,
    /// Weights in pairs of bfloat16 for the forward pass, see [`Network::rounded`].
    rounded: Aligned,
    transposed: Vec<Aligned>,
    pieces: Vec<Of<Piece>>,
    blocks: Vec<Block<'a>>,
}

impl<'a> Learner<'a> {
    /// Reads the parameters of a network.
    ///
    /// # Arguments
    /// - `numbers`: those of the logarithms of deviations, which are the first of all parameters.
    /// - `blocks`: number of blocks of so many rows.
    fn new(
        network: Network,
        role: &Role<'a>,
        numbers: usize,
        parameters: &Parameters<'_>,
        blocks: (usize, usize),
    ) -> Self {
        let room = network.room();
        let mut vectors = Vectors::zeros(room + padded(numbers));
        let log_std = room..room + numbers;
        for (from, to) in [
            (&parameters.values, &mut vectors.values),
            (&parameters.mean, &mut vectors.mean),
            (&parameters.square, &mut vectors.square),
        ] {
            network.read(from, to);
            to[log_std.clone()].copy_from_slice(&from[..numbers]);
        }
        let block = |_| Block {
            pass: network.pass(blocks.1, true),
            role: role.clone(),
            groups: vec![Group { log_std: vec![0.0; numbers], ..Group::default() }; blocks.1.div_ceil(GROUP)],
        };
        let blocks = (0..blocks.0).map(block).collect();
        let (rounded, transposed, pieces) = (network.rounded(), network.transposed(), network.pieces());
        Self { network, vectors, log_std, rounded, transposed, pieces, blocks }
    }

    fn write(&self, parameters: &mut Parameters<'_>) {
        for (from, to) in [
            (&self.vectors.values, &mut *parameters.values),
            (&self.vectors.mean, &mut *parameters.mean),
            (&self.vectors.square, &mut *parameters.square),
        ] {
            self.network.write(from, to);
            to[..self.log_std.len()].copy_from_slice(&from[self.log_std.clone()]);
        }
    }
}

/// Minibatches of an update, one after the other.
pub(super) struct Minibatches<'a> {
    shape: &'a Shape,
    settings: &'a Settings,
    samples: Samples<'a>,
    batch: Batch,
    /// The observations of networks of tables.
    tables: Option<Tables>,
    /// Rows of a block.
    block: usize,
    /// The actor first.
    learners: Vec<Learner<'a>>,
    team: &'a mut Team,
    /// Steps of Adam so far.
    steps: u64,
}

impl<'a> Minibatches<'a> {
    /// `size`: samples of a minibatch at most. `team`: gets as many threads as pay.
    pub(super) fn new(
        shape: &'a Shape,
        settings: &'a Settings,
        samples: Samples<'a>,
        parameters: &Parameters<'_>,
        size: usize,
        team: &'a mut Team,
    ) -> Self {
        let networks = shape.actor_and_critic();
        let work: usize = networks.iter().flatten().map(Network::work).sum();
        let threads = settings.threads.clamp(1, (work * size / WORK).max(1));
        let pointer = networks.iter().flatten().find_map(Network::pointer);
        let tables = pointer.and_then(|pointer| pointer.tables_of(samples.obs));
        // So many rows a thread stay in its cache.
        let rows_of_threads = |each: usize| size.min(threads.min(8) * each);
        let (rows, block) = match pointer {
            // Sums over the rows of tables depend on which tables are together, and should not on the number of threads.
            Some(pointer) => {
                let block = pointer.block(size);
                (rows_of_threads(block), block)
            }
            None => {
                let rows = rows_of_threads(CHUNK);
                (rows, block_rows(rows, networks.iter().flatten().count(), threads))
            }
        };
        let blocks = (rows.div_ceil(block), block.min(size));
        let [actor, critic] = networks;
        let numbers = if actor.is_some() { shape.deviations() } else { 0 };
        let mut learners = vec![];
        if let Some(network) = actor {
            let policy = match (&shape.kind, samples.masks) {
                (Kind::Gaussian(_), _) => Policy::Gaussian(Gaussian::new(&[])),
                (Kind::Categorical(choices), None) => Policy::Categorical(Categorical::new(choices)),
                (Kind::Categorical(choices), Some(masks)) => Policy::Masked(Box::new(Masked::new(choices, masks))),
            };
            learners.push(Learner::new(network, &Role::Actor(policy), numbers, parameters, blocks));
        }
        if let Some(network) = critic {
            learners.push(Learner::new(network, &Role::Critic, 0, parameters, blocks));
        }
        let batch = Batch::new(samples.obs.len() / shape.inputs);
        team.resize(threads);
        Self { shape, settings, samples, batch, tables, block, learners, team, steps: parameters.steps }
    }

    pub(super) fn write(&self, parameters: &mut Parameters<'_>) {
        self.learners.iter().for_each(|learner| learner.write(parameters));
    }

    /// Mean of the advantages of a minibatch, and what to multiply the rest by.
    fn normalization(&self, part: &[i64]) -> (f32, f32) {
        if !self.settings.normalize_advantages || part.len() < 2 || !self.shape.has_actor() {
            return (0.0, 1.0);
        }
        let advantages = || part.iter().map(|&sample| f64::from(self.samples.advantages[sample as usize]));
        let mean = advantages().sum::<f64>() / part.len() as f64;
        let squares: f64 = advantages().map(|advantage| (advantage - mean) * (advantage - mean)).sum();
        let deviation = (squares / (part.len() - 1) as f64).sqrt();
        (mean as f32, (1.0 / (deviation + 1e-8)) as f32)
    }

    /// Number of values of a minibatch that are learned from.
    fn count_values(&self, part: &[i64]) -> usize {
        let outputs = if self.settings.huber.is_some() { 1 } else { self.shape.critic_outputs };
        let Some(learned) = self.samples.learned else { return part.len() * outputs };
        let learned_of = |&sample: &i64| &learned[sample as usize * outputs..][..outputs];
        part.iter().flat_map(learned_of).filter(|&&learned| learned != 0).count().max(1)
    }

    /// The gradients of the losses in the samples `part`, and the losses.
    pub(super) fn differentiate(&mut self, part: &[i64]) -> Losses {
        self.batch.set(self.samples.groups, part);
        let (normalization, values) = (self.normalization(part), self.count_values(part));
        let Self { shape, settings, samples, batch, tables, block, learners, team, .. } = self;
        let tables = tables.as_ref();
        let minibatch = Minibatch { shape, settings, samples, batch, tables, count: part.len(), normalization, values };
        let copies = learners.iter_mut().flat_map(|Learner { network, vectors, rounded, transposed, .. }| {
            let (network, values): (&Network, &[f32]) = (network, &vectors.values);
            network.copies(rounded, transposed).into_iter().map(move |copy| (network, values, copy))
        });
        let mut copies: Vec<_> = copies.collect();
        team.each(&mut copies, |(network, values, copy)| network.copy(values, copy));
        let mut losses = Losses::default();
        let all = batch.rows.len();
        let kept: usize = learners.iter().map(|learner| learner.network.kept()).sum();
        let round = all.min(learners[0].blocks.len() * *block);
        // Networks learn together where their rows fit into the caches, and else one after the other.
        let together = round * kept <= team.len() * CACHE;
        for learners in learners.chunks_mut(if together { 2 } else { 1 }) {
            let mut first = 0;
            while first < all {
                let rows = (all - first).min(learners[0].blocks.len() * *block);
                let blocks: Vec<_> = ranges(first..first + rows, *block).collect();
                pass(learners, &minibatch, &blocks, team);
                add_gradients(learners, &blocks, team);
                for Learner { blocks: done, vectors, log_std, .. } in &mut *learners {
                    let groups = done.iter().flat_map(|block| &block.groups);
                    for group in groups.take(rows.div_ceil(GROUP)) {
                        minibatch.add_losses(group, &mut losses);
                        let gradient = vectors.gradient[log_std.clone()].iter_mut();
                        gradient.zip(&group.log_std).for_each(|(sum, slope)| *sum += slope);
                    }
                }
                first += rows;
            }
        }
        for Learner { vectors, log_std, .. } in learners {
            if !Range::is_empty(log_std) {
                losses.entropy = f64::from(Gaussian::new(&vectors.values[log_std.clone()]).entropy());
                vectors.gradient[log_std.clone()].iter_mut().for_each(|slope| *slope -= settings.entropy_coef);
            }
        }
        losses
    }

    /// The norm of the gradient.
    pub(super) fn norm(&mut self) -> f64 {
        let mut norms: Vec<_> = self.learners.iter().map(|learner| (learner, 0.0)).collect();
        self.team.each(&mut norms, |(learner, norm)| *norm = learner.vectors.norm_squared());
        norms.iter().map(|(_, norm)| norm).sum::<f64>().sqrt()
    }

    /// Takes a step along the gradient times `scale`, and zeroes it.
    pub(super) fn step(&mut self, scale: f32) {
        self.steps += 1;
        let rule = Rule::new(scale, self.settings.learning_rate, self.steps).with_epsilon(self.settings.epsilon);
        let mut parts: Vec<_> = self.learners.iter_mut().flat_map(|learner| learner.vectors.parts(STEP)).collect();
        self.team.each(&mut parts, |part| part.step(&rule));
        for Learner { vectors, log_std, .. } in &mut self.learners {
            for log_std in &mut vectors.values[log_std.clone()] {
                *log_std = log_std.clamp(LOG_STD_RANGE.0, LOG_STD_RANGE.1);
            }
        }
    }
}

/// Parts of a range of up to so many numbers.
fn ranges(all: Range<usize>, len: usize) -> impl Iterator<Item = Range<usize>> {
    all.clone().step_by(len).map(move |first| first..all.end.min(first + len))
}

/// Takes blocks of rows through the networks and back.
fn pass(learners: &mut [Learner<'_>], minibatch: &Minibatch<'_>, rows: &[Range<usize>], team: &mut Team) {
    let tasks =
        learners.iter_mut().flat_map(|Learner { network, vectors, log_std, rounded, transposed, blocks, .. }| {
            let (network, transposed): (&Network, &[Aligned]) = (network, transposed);
            let values: &[f32] = if rounded.is_empty() { &vectors.values } else { rounded };
            let log_std = &vectors.values[log_std.clone()];
            let blocks = blocks.iter_mut().zip(rows);
            blocks.map(move |(block, rows)| (network, values, log_std, transposed, block, rows.clone()))
        });
    let mut tasks: Vec<_> = tasks.collect();
    team.each(&mut tasks, |(network, values, log_std, transposed, block, rows)| {
        minibatch.gather(network, rows.clone(), block);
        network.forward(values, rows.len(), &mut block.pass);
        minibatch.differentiate(network, log_std, rows.clone(), block);
        network.backward(&mut block.pass, transposed);
    });
}

/// Adds the gradients of blocks of rows, piece by piece.
fn add_gradients(learners: &mut [Learner<'_>], rows: &[Range<usize>], team: &mut Team) {
    let mut tasks = vec![];
    for Learner { network, vectors, pieces, blocks, .. } in learners {
        let mut rest: &mut [f32] = &mut vectors.gradient;
        for piece in pieces.iter() {
            let (gradient, others) = rest.split_at_mut(piece.1.len());
            tasks.push((&*network, piece, &blocks[..rows.len()], gradient));
            rest = others;
        }
    }
    team.each(&mut tasks, |(network, piece, blocks, gradient)| {
        blocks.iter().for_each(|block| network.add_gradient(piece, &block.pass, gradient));
    });
}

/// Facts that all blocks of a minibatch share.
struct Minibatch<'a> {
    shape: &'a Shape,
    settings: &'a Settings,
    samples: &'a Samples<'a>,
    batch: &'a Batch,
    tables: Option<&'a Tables>,
    /// Number of samples.
    count: usize,
    /// See [`Minibatches::normalization`].
    normalization: (f32, f32),
    /// Number of values that are learned from.
    values: usize,
}

impl Minibatch<'_> {
    /// Brings the observations of some rows into a block.
    fn gather(&self, network: &Network, rows: Range<usize>, block: &mut Block<'_>) {
        if network.pointer().is_some() {
            let rows = self.batch.rows[rows].iter().map(|&group| group as usize);
            return network.gather(self.samples.obs, self.tables, rows, &mut block.pass);
        }
        let Shape { inputs, actor_inputs, .. } = *self.shape;
        let width = if matches!(block.role, Role::Critic) { inputs } else { actor_inputs };
        self.batch.gather(self.samples.obs, inputs, width, rows, &mut block.pass.parts[0]);
    }

    /// The gradient of the losses in the outputs of a block, and its sums.
    fn differentiate(&self, network: &Network, log_std: &[f32], rows: Range<usize>, block: &mut Block<'_>) {
        let Block { pass, role, groups } = block;
        let (results, slopes, stride) = network.ends(pass);
        if let Role::Actor(Policy::Gaussian(gaussian)) = role {
            *gaussian = Gaussian::new(log_std);
        }
        let each = ranges(rows, GROUP).zip(groups);
        let each = each.zip(results.chunks(GROUP * stride).zip(slopes.chunks_mut(GROUP * stride)));
        for ((rows, group), (results, slopes)) in each {
            match role {
                Role::Actor(policy) => {
                    self.policy_rows(rows.clone(), policy, group, results, slopes, stride);
                    if self.shape.shared_trunk {
                        // The value stands behind the policy's outputs.
                        let first = self.shape.kind.outputs();
                        group.squares = self.value_rows(rows, &results[first..], &mut slopes[first..], stride);
                    }
                }
                Role::Critic => match (self.settings.huber, self.samples.actions) {
                    (Some(bound), Actions::Categorical(actions)) => {
                        self.q_rows(rows, actions, bound, group, results, slopes, stride);
                    }
                    _ => group.squares = self.value_rows(rows, results, slopes, stride),
                },
            }
        }
    }

    /// The gradient of the policy's losses in the outputs of some rows, and their sums.
    fn policy_rows(
        &self,
        rows: Range<usize>,
        policy: &mut Policy<'_>,
        group: &mut Group,
        results: &[f32],
        slopes: &mut [f32],
        stride: usize,
    ) {
        let weight = 1.0 / self.count as f32;
        let surrogate = Surrogate { clip_range: self.settings.clip_range, weight };
        let bonus = self.settings.entropy_coef * weight;
        let (samples, batch, normalization) = (self.samples, self.batch, self.normalization);
        let part = |width: usize| rows.start * width..rows.end * width;
        let chunk = Chunk { samples, batch, rows: rows.clone(), surrogate, normalization };
        let Group { sums, log_std, .. } = group;
        *sums = Sums::default();
        match (policy, samples.actions, self.settings.imitation) {
            (Policy::Categorical(categorical), Actions::Categorical(actions), Some(loss)) => {
                let actions = &actions[part(categorical.width())];
                cloned_choices(loss, actions, categorical, weight, bonus, results, slopes, stride, sums);
            }
            (Policy::Gaussian(gaussian), Actions::Gaussian(draws), Some(loss)) => {
                log_std.fill(0.0);
                let draws = &draws[part(log_std.len())];
                cloned_draws(loss, draws, gaussian, weight, results, slopes, log_std, stride, sums);
            }
            (Policy::Categorical(categorical), Actions::Categorical(actions), None) => {
                categorical_rows(chunk, actions, categorical, bonus, results, slopes, stride, sums);
            }
            (Policy::Masked(masked), Actions::Categorical(actions), None) => {
                masked_rows(chunk, actions, masked, bonus, results, slopes, stride, sums);
            }
            (Policy::Gaussian(gaussian), Actions::Gaussian(draws), None) => {
                log_std.fill(0.0);
                gaussian_rows(chunk, draws, gaussian, results, slopes, log_std, stride, sums);
            }
            _ => unreachable!("checked"),
        }
    }

    /// The gradient of the value loss in the values of some rows; returns the sum of squared errors.
    fn value_rows(&self, rows: Range<usize>, results: &[f32], slopes: &mut [f32], stride: usize) -> f64 {
        let (samples, outputs) = (self.samples, self.shape.critic_outputs);
        let weight = self.settings.value_coef / self.values as f32;
        let mut squares = 0.0;
        for (i, row) in rows.enumerate() {
            for &sample in self.batch.ahead(row) {
                prefetch(samples.returns, sample as usize * outputs);
                prefetch(samples.values, sample as usize * outputs);
            }
            for output in 0..outputs {
                let mut sum = 0.0;
                for &sample in self.batch.of(row) {
                    let place = sample as usize * outputs + output;
                    if samples.learned.is_some_and(|learned| learned[place] == 0) {
                        continue;
                    }
                    let (target, old) = (samples.returns[place], samples.values[place]);
                    let value = results[i * stride + output];
                    let (slope, square) = value_slope(value, target, old, self.settings.value_clip);
                    sum += slope * weight;
                    squares += f64::from(square);
                }
                slopes[i * stride + output] = sum;
            }
        }
        squares
    }

    /// The gradient of the errors of the actions that were taken in the values of some rows, and their sums.
    #[expect(clippy::too_many_arguments, reason = "a block and its samples")]
    fn q_rows(
        &self,
        rows: Range<usize>,
        actions: &[i64],
        bound: f32,
        group: &mut Group,
        results: &[f32],
        slopes: &mut [f32],
        stride: usize,
    ) {
        let weight = 1.0 / self.count as f32;
        (group.squares, group.q, group.sums) = (0.0, 0.0, Sums::default());
        let each = results.chunks_exact(stride).zip(slopes.chunks_exact_mut(stride));
        for (row, (results, slopes)) in rows.zip(each) {
            for &sample in self.batch.ahead(row) {
                prefetch(self.samples.returns, sample as usize);
                prefetch(actions, sample as usize);
            }
            slopes.fill(0.0);
            for &sample in self.batch.of(row) {
                let action = actions[sample as usize] as usize;
                let error = results[action] - self.samples.returns[sample as usize];
                let (loss, slope) = huber(error, bound);
                slopes[action] += slope * weight;
                group.squares += 2.0 * f64::from(loss);
                group.q += f64::from(results[action]);
                group.sums.score += f64::from(error.abs());
            }
        }
    }

    /// Adds the sums of some rows to the means over the minibatch.
    fn add_losses(&self, group: &Group, losses: &mut Losses) {
        let (sums, count) = (&group.sums, self.count as f64);
        losses.policy -= sums.objective / count;
        losses.entropy += sums.entropy / count;
        losses.kl += sums.kl / count;
        losses.clipped += sums.clipped / count;
        losses.score += sums.score / count;
        losses.q += group.q / count;
        losses.value += group.squares / self.values as f64 / 2.0;
    }
}
