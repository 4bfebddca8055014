//! Updates of PPO (Schulman et al., 2017): all gradient steps of a rollout.

use std::fmt;
use std::ops::Range;
use std::thread;

use super::adam::Vectors;
use super::batch::Batch;
use super::exchange::{Exchange, Side};
use super::losses::{Categorical, Gaussian, Kind, Sums, Surrogate, value_slope};
use super::masked::Masked;
use super::perceptron::{CHUNK, Pass, Perceptron, chunks};
use crate::gemm::padded;
use crate::mlp::Activation;
use crate::widest::widest;

/// Multiplications in the passes of a minibatch below which two threads do not pay.
const MIN_WORK: usize = 1 << 20;

/// The logarithms of a Gaussian's deviations stay within these, as in `fastrl.networks.distributions`.
const LOG_STD_RANGE: (f32, f32) = (-5.0, 2.0);

/// Which networks learn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Networks {
    Both,
    Actor,
    Critic,
}

/// An actor and a critic, or one of them: perceptrons with hidden layers of the same widths.
#[derive(Clone, Debug)]
pub struct Shape {
    /// Those that learn; the other is not there.
    pub networks: Networks,
    pub inputs: usize,
    /// The first of them, which the actor sees; the critic sees all.
    pub actor_inputs: usize,
    pub hidden: Vec<usize>,
    pub activation: Activation,
    pub kind: Kind,
    /// Outputs of the critic: 1, or as many as agents that it values.
    pub critic_outputs: usize,
}

impl Shape {
    fn actor(&self) -> Perceptron {
        self.network(self.actor_inputs, self.kind.outputs())
    }

    fn critic(&self) -> Perceptron {
        self.network(self.inputs, self.critic_outputs)
    }

    fn network(&self, inputs: usize, outputs: usize) -> Perceptron {
        let sizes: Vec<usize> = std::iter::once(inputs).chain(self.hidden.iter().copied()).chain([outputs]).collect();
        Perceptron::new(&sizes, self.activation)
    }

    fn has_actor(&self) -> bool {
        self.networks != Networks::Critic
    }

    fn has_critic(&self) -> bool {
        self.networks != Networks::Actor
    }

    /// Numbers of a Gaussian's deviations; 0 for other actions.
    fn deviations(&self) -> usize {
        match self.kind {
            Kind::Categorical(_) => 0,
            Kind::Gaussian(numbers) => numbers,
        }
    }

    /// Number of parameters.
    pub fn num_parameters(&self) -> usize {
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
    /// Advantages of each minibatch are brought to mean 0 and (sample) deviation 1.
    pub normalize_advantages: bool,
    /// The update ends after a step whose KL is larger.
    pub target_kl: Option<f64>,
    /// Actor and critic may learn side by side. The numbers are the same.
    pub two_threads: bool,
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
    /// [S, width of an action].
    pub actions: Actions<'a>,
    /// [S] each, when the actions were chosen. Like actions and masks, a critic alone does not need them.
    pub log_probs: &'a [f32],
    pub advantages: &'a [f32],
    /// [S, outputs of the critic] each.
    pub returns: &'a [f32],
    pub values: &'a [f32],
    /// [S, outputs of the critic], 0 where a return is not learned from.
    pub learned: Option<&'a [u8]>,
}

/// Parameters of the networks that learn, in the order of PyTorch: logarithms of deviations, then of each layer of the
/// actor and then of the critic weights [outputs, inputs] and biases. [`Shape::num_parameters`] numbers each.
#[derive(Debug)]
pub struct Parameters<'a> {
    pub values: &'a mut [f32],
    /// Adam's moments.
    pub mean: &'a mut [f32],
    pub square: &'a mut [f32],
    /// Steps of Adam so far.
    pub steps: u64,
}

/// Means over gradient steps of means over samples, and numbers of steps.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Outcome {
    pub policy_loss: f64,
    pub value_loss: f64,
    pub entropy: f64,
    pub approx_kl: f64,
    pub clip_fraction: f64,
    /// Before clipping.
    pub grad_norm: f64,
    pub steps: usize,
}

/// The reason why samples were refused. Nothing has changed then.
#[derive(Debug, PartialEq, Eq)]
pub struct Refused(String);

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Refused {}

fn within(name: &str, values: &[i64], end: usize) -> Result<(), Refused> {
    match values.iter().find(|&&value| value < 0 || value as usize >= end) {
        None => Ok(()),
        Some(value) => Err(Refused(format!("{name}: expected numbers from 0 to {}, got {value}", end as i64 - 1))),
    }
}

/// Checks all places that samples name, the lengths of arrays, and settings.
fn check(shape: &Shape, settings: &Settings, samples: &Samples<'_>, order: &[i64]) -> Result<(), Refused> {
    let (count, width) = (samples.groups.len(), shape.kind.width());
    let groups = samples.obs.len() / shape.inputs;
    let acted = if shape.has_actor() { count } else { 0 };
    assert!([samples.log_probs, samples.advantages].iter().all(|array| array.len() == acted), "of other lengths");
    let valued = count * shape.critic_outputs;
    assert!([samples.returns, samples.values].iter().all(|array| array.len() == valued), "of other lengths");
    assert!(samples.learned.is_none_or(|learned| learned.len() == valued), "of other lengths");
    assert!(samples.masks.is_none_or(|masks| masks.len() == acted * shape.kind.outputs()), "masks of other sizes");
    if count == 0 || !order.len().is_multiple_of(count) {
        return Err(Refused(format!("order: expected orders of {count} samples, got {} numbers", order.len())));
    }
    if settings.minibatches == 0 || settings.minibatches > count {
        let got = settings.minibatches;
        return Err(Refused(format!("minibatches: expected 1 to {count}, got {got}")));
    }
    let mut clips = std::iter::once(settings.clip_range).chain(settings.value_clip);
    if let Some(clip) = clips.find(|clip| clip.is_nan() || *clip < 0.0) {
        return Err(Refused(format!("clip_range, value_clip: expected numbers from 0 on, got {clip}")));
    }
    within("groups", samples.groups, groups)?;
    within("order", order, count)?;
    match (&shape.kind, samples.actions) {
        (Kind::Gaussian(_), Actions::Gaussian(draws)) => assert_eq!(draws.len(), acted * width, "too few draws"),
        (Kind::Categorical(choices), Actions::Categorical(actions)) => {
            assert_eq!(actions.len(), acted * width, "too few actions");
            for action in actions.chunks(width.max(1)) {
                for (number, &choices) in action.iter().zip(choices) {
                    within("actions", std::slice::from_ref(number), choices)?;
                }
            }
        }
        _ => return Err(Refused("actions: expected those of the network's kind".to_owned())),
    }
    Ok(())
}

/// A network that learns, and its memory.
struct Learner {
    network: Perceptron,
    vectors: Vectors,
    pass: Pass,
    batch: Batch,
}

impl Learner {
    /// `others`: number of further parameters, which come after the network's.
    fn new(network: Perceptron, others: usize, samples: &Samples<'_>, rows: usize, inputs: usize) -> Self {
        Self {
            vectors: Vectors::zeros(network.room() + padded(others)),
            pass: network.pass(rows),
            batch: Batch::new(samples.obs.len() / inputs),
            network,
        }
    }

    fn read(&mut self, parameters: &Parameters<'_>, from: Range<usize>) {
        self.network.read(&parameters.values[from.clone()], &mut self.vectors.values);
        self.network.read(&parameters.mean[from.clone()], &mut self.vectors.mean);
        self.network.read(&parameters.square[from], &mut self.vectors.square);
    }

    fn write(&self, parameters: &mut Parameters<'_>, to: Range<usize>) {
        self.network.write(&self.vectors.values, &mut parameters.values[to.clone()]);
        self.network.write(&self.vectors.mean, &mut parameters.mean[to.clone()]);
        self.network.write(&self.vectors.square, &mut parameters.square[to]);
    }
}

/// Memory for the distributions of actions.
enum Policy<'a> {
    Categorical(Categorical),
    Masked(Box<Masked<'a>>),
    Gaussian,
}

struct Actor<'a> {
    learner: Learner,
    /// Place of the logarithms of deviations.
    log_std: Range<usize>,
    policy: Policy<'a>,
    samples: Samples<'a>,
    shape: &'a Shape,
    settings: &'a Settings,
    steps: u64,
    totals: [f64; 4],
}

impl<'a> Actor<'a> {
    fn new(
        shape: &'a Shape,
        settings: &'a Settings,
        samples: Samples<'a>,
        parameters: &Parameters<'_>,
        rows: usize,
    ) -> Self {
        let (network, numbers) = (shape.actor(), shape.deviations());
        let room = network.room();
        let mut learner = Learner::new(network, numbers, &samples, rows, shape.inputs);
        learner.read(parameters, numbers..parameters.values.len());
        let log_std = room..room + numbers;
        learner.vectors.values[log_std.clone()].copy_from_slice(&parameters.values[..numbers]);
        learner.vectors.mean[log_std.clone()].copy_from_slice(&parameters.mean[..numbers]);
        learner.vectors.square[log_std.clone()].copy_from_slice(&parameters.square[..numbers]);
        let policy = match &shape.kind {
            Kind::Gaussian(_) => Policy::Gaussian,
            Kind::Categorical(choices) => match samples.masks {
                None => Policy::Categorical(Categorical::new(choices)),
                Some(masks) => Policy::Masked(Box::new(Masked::new(choices, masks))),
            },
        };
        Self { learner, log_std, policy, samples, shape, settings, steps: parameters.steps, totals: [0.0; 4] }
    }

    fn write(&self, parameters: &mut Parameters<'_>) {
        let numbers = self.shape.deviations();
        let vectors = &self.learner.vectors;
        parameters.values[..numbers].copy_from_slice(&vectors.values[self.log_std.clone()]);
        parameters.mean[..numbers].copy_from_slice(&vectors.mean[self.log_std.clone()]);
        parameters.square[..numbers].copy_from_slice(&vectors.square[self.log_std.clone()]);
        self.learner.write(parameters, numbers..numbers + self.learner.network.len());
    }

    /// Mean of the advantages of a minibatch, and what to multiply the rest by.
    fn normalization(&self, part: &[i64]) -> (f32, f32) {
        if !self.settings.normalize_advantages || part.len() < 2 {
            return (0.0, 1.0);
        }
        let advantages = || part.iter().map(|&sample| f64::from(self.samples.advantages[sample as usize]));
        let mean = advantages().sum::<f64>() / part.len() as f64;
        let squares: f64 = advantages().map(|advantage| (advantage - mean) * (advantage - mean)).sum();
        let deviation = (squares / (part.len() - 1) as f64).sqrt();
        (mean as f32, (1.0 / (deviation + 1e-8)) as f32)
    }

    /// The gradient of the policy's losses in a minibatch; whether its KL is so large that the update ends.
    fn differentiate(&mut self, part: &[i64]) -> bool {
        let (mean, factor) = self.normalization(part);
        let Self { learner, samples, shape, settings, .. } = self;
        let Learner { network, vectors, pass, batch } = learner;
        batch.set(samples.groups, part);
        network.transpose(&vectors.values, pass);
        let weight = 1.0 / part.len() as f32;
        let surrogate = Surrogate { clip_range: settings.clip_range, weight };
        let bonus = settings.entropy_coef * weight;
        let mut sums = Sums::default();
        let mut gaussian = Gaussian::new(&vectors.values[self.log_std.clone()]);
        for rows in chunks(batch.rows.len()) {
            batch.gather(samples.obs, shape.inputs, shape.actor_inputs, rows.clone(), pass);
            network.forward(&vectors.values, rows.len(), pass);
            let (results, slopes, stride) = pass.ends(network);
            let chunk = Chunk { samples, batch, rows: rows.clone(), surrogate, mean, factor };
            match (&mut self.policy, samples.actions) {
                (Policy::Categorical(categorical), Actions::Categorical(actions)) => {
                    categorical_rows(chunk, actions, categorical, bonus, results, slopes, stride, &mut sums);
                }
                (Policy::Masked(masked), Actions::Categorical(actions)) => {
                    masked_rows(chunk, actions, masked, bonus, results, slopes, stride, &mut sums);
                }
                (Policy::Gaussian, Actions::Gaussian(draws)) => {
                    let log_std = &mut vectors.gradient[self.log_std.clone()];
                    gaussian_rows(chunk, draws, &mut gaussian, results, slopes, log_std, stride, &mut sums);
                }
                _ => unreachable!("checked"),
            }
            network.backward(rows.len(), pass, &mut vectors.gradient);
        }
        let count = part.len() as f64;
        let mut losses = [-sums.objective, sums.entropy, sums.kl, sums.clipped].map(|sum| sum / count);
        if matches!(self.policy, Policy::Gaussian) {
            losses[1] = f64::from(gaussian.entropy());
            vectors.gradient[self.log_std.clone()].iter_mut().for_each(|slope| *slope -= settings.entropy_coef);
        }
        self.totals.iter_mut().zip(losses).for_each(|(total, loss)| *total += loss);
        settings.target_kl.is_some_and(|target| losses[2] > target)
    }

    fn step(&mut self, scale: f32) {
        self.steps += 1;
        let vectors = &mut self.learner.vectors;
        vectors.step(scale, self.settings.learning_rate, self.steps);
        for log_std in &mut vectors.values[self.log_std.clone()] {
            *log_std = log_std.clamp(LOG_STD_RANGE.0, LOG_STD_RANGE.1);
        }
    }
}

/// Rows of a minibatch that go through a network together.
struct Chunk<'a> {
    samples: &'a Samples<'a>,
    batch: &'a Batch,
    rows: Range<usize>,
    surrogate: Surrogate,
    /// Of the advantages, see [`Actor::normalization`].
    mean: f32,
    factor: f32,
}

impl Chunk<'_> {
    /// The gradient of the objective in the log-probability of a sample.
    #[inline(always)]
    fn gradient(&self, sample: usize, log_prob: f32, sums: &mut Sums) -> f32 {
        let advantage = (self.samples.advantages[sample] - self.mean) * self.factor;
        self.surrogate.gradient(log_prob - self.samples.log_probs[sample], advantage, sums)
    }
}

widest! {
    /// Gradients of the policy's losses in logits.
    fn categorical_rows(
        chunk: Chunk<'_>,
        actions: &[i64],
        categorical: &mut Categorical,
        bonus: f32,
        results: &[f32],
        slopes: &mut [f32],
        stride: usize,
        sums: &mut Sums,
    ) {
        let (outputs, width) = (categorical.outputs(), categorical.width());
        let each = results.chunks_exact(stride).zip(slopes.chunks_exact_mut(stride)).zip(chunk.rows.clone());
        for ((results, slopes), row) in each {
            let (results, slopes) = (&results[..outputs], &mut slopes[..outputs]);
            slopes.fill(0.0);
            categorical.set(results, None);
            let members = chunk.batch.of(row);
            let mut total = 0.0;
            for &sample in members {
                let action = &actions[sample as usize * width..][..width];
                let gradient = chunk.gradient(sample as usize, categorical.log_prob(action), sums);
                total += gradient;
                categorical.add_sample(action, gradient, slopes);
            }
            let count = members.len() as f32;
            sums.entropy += f64::from(categorical.entropy() * count);
            categorical.add_common(total, bonus * count, slopes);
        }
    }
}

widest! {
    /// Gradients of the policy's losses in logits, where each sample has a mask.
    fn masked_rows(
        chunk: Chunk<'_>,
        actions: &[i64],
        masked: &mut Masked<'_>,
        bonus: f32,
        results: &[f32],
        slopes: &mut [f32],
        stride: usize,
        sums: &mut Sums,
    ) {
        let (outputs, width) = (masked.outputs(), masked.width());
        let each = results.chunks_exact(stride).zip(slopes.chunks_exact_mut(stride)).zip(chunk.rows.clone());
        for ((results, slopes), row) in each {
            let (results, slopes) = (&results[..outputs], &mut slopes[..outputs]);
            slopes.fill(0.0);
            masked.set(results);
            for &sample in chunk.batch.of(row) {
                let action = &actions[sample as usize * width..][..width];
                let gradient = chunk.gradient(sample as usize, masked.log_prob(sample as usize, action), sums);
                sums.entropy += f64::from(masked.entropy());
                masked.add(action, gradient, bonus, slopes);
            }
            masked.finish(slopes);
        }
    }
}

widest! {
    /// Gradients of the policy's losses in means and logarithms of deviations.
    fn gaussian_rows(
        chunk: Chunk<'_>,
        draws: &[f32],
        gaussian: &mut Gaussian,
        results: &[f32],
        slopes: &mut [f32],
        log_std: &mut [f32],
        stride: usize,
        sums: &mut Sums,
    ) {
        let numbers = log_std.len();
        let each = results.chunks_exact(stride).zip(slopes.chunks_exact_mut(stride)).zip(chunk.rows.clone());
        for ((results, slopes), row) in each {
            let (results, slopes) = (&results[..numbers], &mut slopes[..numbers]);
            slopes.fill(0.0);
            for &sample in chunk.batch.of(row) {
                let draw = &draws[sample as usize * numbers..][..numbers];
                let log_prob = gaussian.log_prob(results, draw);
                gaussian.add_sample(chunk.gradient(sample as usize, log_prob, sums), slopes, log_std);
            }
        }
    }
}

struct Critic<'a> {
    learner: Learner,
    samples: Samples<'a>,
    shape: &'a Shape,
    settings: &'a Settings,
    steps: u64,
    total: f64,
}

impl<'a> Critic<'a> {
    fn new(
        shape: &'a Shape,
        settings: &'a Settings,
        samples: Samples<'a>,
        parameters: &Parameters<'_>,
        rows: usize,
    ) -> Self {
        let mut learner = Learner::new(shape.critic(), 0, &samples, rows, shape.inputs);
        let all = parameters.values.len();
        learner.read(parameters, all - learner.network.len()..all);
        Self { learner, samples, shape, settings, steps: parameters.steps, total: 0.0 }
    }

    fn write(&self, parameters: &mut Parameters<'_>) {
        let all = parameters.values.len();
        self.learner.write(parameters, all - self.learner.network.len()..all);
    }

    /// The gradient of the value loss in a minibatch.
    fn differentiate(&mut self, part: &[i64]) {
        let Self { learner, samples, shape, settings, .. } = self;
        let Learner { network, vectors, pass, batch } = learner;
        batch.set(samples.groups, part);
        network.transpose(&vectors.values, pass);
        let outputs = shape.critic_outputs;
        let count = match samples.learned {
            None => part.len() * outputs,
            Some(learned) => {
                let learned_of = |&sample: &i64| &learned[sample as usize * outputs..][..outputs];
                part.iter().flat_map(learned_of).filter(|&&learned| learned != 0).count().max(1)
            }
        };
        let weight = settings.value_coef / count as f32;
        let mut squares = 0.0;
        for rows in chunks(batch.rows.len()) {
            batch.gather(samples.obs, shape.inputs, shape.inputs, rows.clone(), pass);
            network.forward(&vectors.values, rows.len(), pass);
            let (results, slopes, stride) = pass.ends(network);
            for (i, row) in rows.clone().enumerate() {
                for output in 0..outputs {
                    let mut sum = 0.0;
                    for &sample in batch.of(row) {
                        let place = sample as usize * outputs + output;
                        if samples.learned.is_some_and(|learned| learned[place] == 0) {
                            continue;
                        }
                        let (target, old) = (samples.returns[place], samples.values[place]);
                        let value = results[i * stride + output];
                        let (slope, square) = value_slope(value, target, old, settings.value_clip);
                        sum += slope * weight;
                        squares += f64::from(square);
                    }
                    slopes[i * stride + output] = sum;
                }
            }
            network.backward(rows.len(), pass, &mut vectors.gradient);
        }
        self.total += squares / count as f64 / 2.0;
    }

    fn step(&mut self, scale: f32) {
        self.steps += 1;
        self.learner.vectors.step(scale, self.settings.learning_rate, self.steps);
    }
}

/// The factor that scales gradients of this norm.
fn scale(norm: f64, settings: &Settings) -> f32 {
    (f64::from(settings.max_grad_norm) / (norm + 1e-6)).min(1.0) as f32
}

/// Takes a gradient step for each minibatch of each epoch.
///
/// # Arguments
/// - `order`: the samples of one epoch after the other, each in as many parts as there are minibatches.
///
/// # Errors
/// A sample, an observation or an action that is not there, or a setting out of range; nothing has changed then.
///
/// # Panics
/// Arrays do not fit each other.
pub fn update(
    shape: &Shape,
    settings: &Settings,
    samples: Samples<'_>,
    order: &[i64],
    parameters: &mut Parameters<'_>,
) -> Result<Outcome, Refused> {
    check(shape, settings, &samples, order)?;
    let count = shape.num_parameters();
    let lengths = [parameters.values.len(), parameters.mean.len(), parameters.square.len()];
    assert_eq!(lengths, [count; 3], "parameters of another network");
    let parts = || order.chunks(samples.groups.len()).flat_map(|epoch| split(epoch, settings.minibatches));
    let rows = CHUNK.min(samples.groups.len().div_ceil(settings.minibatches));
    let mut actor = shape.has_actor().then(|| Actor::new(shape, settings, samples, parameters, rows));
    let mut critic = shape.has_critic().then(|| Critic::new(shape, settings, samples, parameters, rows));
    let (mut norms, mut steps) = (0.0, 0);
    let size = samples.groups.len() / settings.minibatches;
    match (&mut actor, &mut critic) {
        (Some(actor), Some(critic)) if settings.two_threads && size * critic.learner.network.work() >= MIN_WORK => {
            let exchange = Exchange::new();
            thread::scope(|scope| {
                let exchange = &exchange;
                scope.spawn(move || {
                    let mut end = exchange.endpoint(Side::Right);
                    for part in parts() {
                        critic.differentiate(part);
                        let own = critic.learner.vectors.norm_squared();
                        let (other, stop) = end.swap((own, false));
                        critic.step(scale((other + own).sqrt(), settings));
                        if stop {
                            break;
                        }
                    }
                });
                let mut end = exchange.endpoint(Side::Left);
                for part in parts() {
                    let stop = actor.differentiate(part);
                    let own = actor.learner.vectors.norm_squared();
                    let (other, _) = end.swap((own, stop));
                    let norm = (own + other).sqrt();
                    actor.step(scale(norm, settings));
                    norms += norm;
                    steps += 1;
                    if stop {
                        break;
                    }
                }
            });
        }
        (actor, critic) => {
            for part in parts() {
                let (mut stop, mut norm_squared) = (false, 0.0);
                if let Some(actor) = actor.as_mut() {
                    stop = actor.differentiate(part);
                    norm_squared += actor.learner.vectors.norm_squared();
                }
                if let Some(critic) = critic.as_mut() {
                    critic.differentiate(part);
                    norm_squared += critic.learner.vectors.norm_squared();
                }
                let norm = norm_squared.sqrt();
                if let Some(actor) = actor.as_mut() {
                    actor.step(scale(norm, settings));
                }
                if let Some(critic) = critic.as_mut() {
                    critic.step(scale(norm, settings));
                }
                norms += norm;
                steps += 1;
                if stop {
                    break;
                }
            }
        }
    }
    if let Some(actor) = &actor {
        actor.write(parameters);
    }
    if let Some(critic) = &critic {
        critic.write(parameters);
    }
    parameters.steps += steps as u64;
    let mean = |total: f64| total / steps.max(1) as f64;
    let [policy_loss, entropy, approx_kl, clip_fraction] = actor.map_or([0.0; 4], |actor| actor.totals).map(mean);
    Ok(Outcome {
        policy_loss,
        value_loss: mean(critic.map_or(0.0, |critic| critic.total)),
        entropy,
        approx_kl,
        clip_fraction,
        grad_norm: mean(norms),
        steps,
    })
}

/// Parts of a list whose lengths differ by one at most, the longer ones first.
fn split(list: &[i64], parts: usize) -> impl Iterator<Item = &[i64]> {
    let (length, longer) = (list.len() / parts, list.len() % parts);
    let start = move |part: usize| part * length + part.min(longer);
    (0..parts).map(move |part| &list[start(part)..start(part + 1)])
}
