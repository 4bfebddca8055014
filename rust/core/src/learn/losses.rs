//! PPO's losses and their gradients in closed form: the compiled counterpart of `fastrl.algorithms.ppo_loss`.

use crate::dense::{exp, exp_any, ln};
use crate::lanes::LANES;

/// The logit of a masked action, as in `fastrl.networks.distributions`.
const MASKED: f32 = -1e9;

/// The distribution of actions that the network's outputs parametrise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Logits of the choices of each number of an action, side by side; one number for discrete actions.
    Categorical(Vec<usize>),
    /// Means of independent normal numbers, with logarithms of their deviations as parameters.
    Gaussian(usize),
}

impl Kind {
    /// Number of outputs of the network.
    pub fn outputs(&self) -> usize {
        match self {
            Self::Categorical(choices) => choices.iter().sum(),
            Self::Gaussian(numbers) => *numbers,
        }
    }

    /// Length of an action.
    pub fn width(&self) -> usize {
        match self {
            Self::Categorical(choices) => choices.len(),
            Self::Gaussian(numbers) => *numbers,
        }
    }
}

/// Sums over samples.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sums {
    /// Sum of the clipped surrogate.
    pub(crate) objective: f64,
    pub(crate) entropy: f64,
    /// Sum of the estimate of KL(old, new).
    pub(crate) kl: f64,
    /// Number of those whose ratio is outside the clip range.
    pub(crate) clipped: f64,
    /// Of behaviour cloning: shares of numbers that are the likeliest, or mean square errors. Of values of actions: absolute
    /// errors.
    pub(crate) score: f64,
}

/// The clipped surrogate of a minibatch.
#[derive(Clone, Copy)]
pub(crate) struct Surrogate {
    pub(crate) clip_range: f32,
    /// One over the number of samples.
    pub(crate) weight: f32,
}

impl Surrogate {
    /// The gradient of the objective in a sample's log-probability; adds the sample to `sums`.
    #[inline(always)]
    pub(crate) fn gradient(&self, log_ratio: f32, advantage: f32, sums: &mut Sums) -> f32 {
        let ratio = exp_any(log_ratio);
        let unclipped = ratio * advantage;
        let clipped = ratio.clamp(1.0 - self.clip_range, 1.0 + self.clip_range) * advantage;
        sums.objective += f64::from(if clipped < unclipped { clipped } else { unclipped });
        sums.kl += f64::from(ratio - 1.0 - log_ratio);
        sums.clipped += f64::from(u8::from((ratio - 1.0).abs() > self.clip_range));
        if unclipped <= clipped { unclipped * self.weight } else { 0.0 }
    }
}

/// The categorical distributions of a row of logits.
#[derive(Clone)]
pub(crate) struct Categorical {
    /// First and last logit of each number of an action.
    parts: Vec<(usize, usize)>,
    logits: Vec<f32>,
    log_probs: Vec<f32>,
    probs: Vec<f32>,
    /// Entropy of each number.
    entropies: Vec<f32>,
}

impl Categorical {
    pub(crate) fn new(choices: &[usize]) -> Self {
        let mut end = 0;
        let parts = choices.iter().map(|&count| {
            end += count;
            (end - count, end)
        });
        let parts = parts.collect();
        let memory = || vec![0.0; end];
        Self { parts, logits: memory(), log_probs: memory(), probs: memory(), entropies: vec![0.0; choices.len()] }
    }

    /// Number of logits.
    pub(crate) fn outputs(&self) -> usize {
        self.logits.len()
    }

    /// Length of an action.
    pub(crate) fn width(&self) -> usize {
        self.parts.len()
    }

    /// Makes it the distribution of these logits. `mask`: 0 where an action is not allowed.
    #[inline(always)]
    pub(crate) fn set(&mut self, logits: &[f32], mask: Option<&[u8]>) {
        match mask {
            None => self.logits.copy_from_slice(logits),
            Some(mask) => {
                for ((to, &logit), &allowed) in self.logits.iter_mut().zip(logits).zip(mask) {
                    *to = if allowed != 0 { logit } else { MASKED };
                }
            }
        }
        for (&(first, last), entropy) in self.parts.iter().zip(&mut self.entropies) {
            let (logits, log_probs) = (&self.logits[first..last], &mut self.log_probs[first..last]);
            let probs = &mut self.probs[first..last];
            let highest = highest(logits);
            for (prob, logit) in probs.iter_mut().zip(logits) {
                *prob = exp(logit - highest);
            }
            let total = sum(probs);
            let (share, shift) = (1.0 / total, highest + ln(total));
            for ((prob, log_prob), logit) in probs.iter_mut().zip(&mut *log_probs).zip(logits) {
                *prob *= share;
                *log_prob = logit - shift;
            }
            *entropy = -dot(probs, log_probs);
        }
    }

    /// Probabilities of all choices, and their logarithms.
    pub(crate) fn all(&self) -> (&[f32], &[f32]) {
        (&self.probs, &self.log_probs)
    }

    /// The logarithm of the probability of an action.
    #[inline(always)]
    pub(crate) fn log_prob(&self, action: &[i64]) -> f32 {
        let mut log_prob = 0.0;
        for (&(first, _), &number) in self.parts.iter().zip(action) {
            log_prob += self.log_probs[first + number as usize];
        }
        log_prob
    }

    pub(crate) fn entropy(&self) -> f32 {
        self.entropies.iter().sum()
    }

    /// Adds to the gradient of the loss in the logits what depends on a sample's action; [`Categorical::add_common`] adds
    /// the rest. `gradient`: of the objective in the sample's log-probability.
    #[inline(always)]
    pub(crate) fn add_sample(&self, action: &[i64], gradient: f32, slopes: &mut [f32]) {
        for (&(first, _), &number) in self.parts.iter().zip(action) {
            slopes[first + number as usize] -= gradient;
        }
    }

    /// Adds to the gradient of the loss in the logits that of the mean of all choices' log-probabilities, as
    /// [`Categorical::add_sample`].
    #[inline(always)]
    pub(crate) fn add_uniform(&self, gradient: f32, slopes: &mut [f32]) {
        for &(first, last) in &self.parts {
            let share = gradient / (last - first) as f32;
            slopes[first..last].iter_mut().for_each(|slope| *slope -= share);
        }
    }

    /// Number of an action's numbers that are the likeliest choices, the first of equals.
    #[inline(always)]
    pub(crate) fn hits(&self, action: &[i64]) -> usize {
        let is_hit = |&(&(first, last), &number): &(&(usize, usize), &i64)| {
            let (logits, number) = (&self.logits[first..last], number as usize);
            let highest = highest(logits);
            logits[number] == highest && !logits[..number].contains(&highest)
        };
        self.parts.iter().zip(action).filter(is_hit).count()
    }

    /// Adds what the gradients of all samples of the row have in common: with p the probabilities, H their entropy and
    /// `total` the sum of the samples' gradients, `p * (total + bonus * (log p + H))`.
    #[inline(always)]
    pub(crate) fn add_common(&self, total: f32, bonus: f32, slopes: &mut [f32]) {
        for (&(first, last), &entropy) in self.parts.iter().zip(&self.entropies) {
            let common = bonus.mul_add(entropy, total);
            let pairs = self.probs[first..last].iter().zip(&self.log_probs[first..last]);
            for (slope, (&prob, &log_prob)) in slopes[first..last].iter_mut().zip(pairs) {
                *slope += prob * log_prob.mul_add(bonus, common);
            }
        }
    }
}

/// Independent normal numbers with deviations that do not depend on the observation.
#[derive(Clone)]
pub(crate) struct Gaussian {
    inverse: Vec<f32>,
    /// Part of the negative log-density that is the same for all actions.
    constant: f32,
    z: Vec<f32>,
}

impl Gaussian {
    pub(crate) fn new(log_std: &[f32]) -> Self {
        let half_log_2pi = 0.918_938_5 * log_std.len() as f32;
        Self {
            inverse: log_std.iter().map(|&log_std| exp_any(-log_std)).collect(),
            constant: log_std.iter().sum::<f32>() + half_log_2pi,
            z: vec![0.0; log_std.len()],
        }
    }

    /// In nats.
    pub(crate) fn entropy(&self) -> f32 {
        self.constant + 0.5 * self.z.len() as f32
    }

    /// The logarithm of the density of a draw.
    #[inline(always)]
    pub(crate) fn log_prob(&mut self, means: &[f32], draw: &[f32]) -> f32 {
        let mut squares = 0.0;
        for (((z, &inverse), &mean), &draw) in self.z.iter_mut().zip(&self.inverse).zip(means).zip(draw) {
            *z = (draw - mean) * inverse;
            squares = z.mul_add(*z, squares);
        }
        (-0.5_f32).mul_add(squares, -self.constant)
    }

    /// Adds the last sample of [`Gaussian::log_prob`] to the gradients of the loss in the means and in the logarithms of
    /// the deviations. `gradient`: of the objective in the sample's log-probability.
    #[inline(always)]
    pub(crate) fn add_sample(&self, gradient: f32, slopes: &mut [f32], log_std: &mut [f32]) {
        for (((slope, log_std), &z), &inverse) in slopes.iter_mut().zip(log_std).zip(&self.z).zip(&self.inverse) {
            *slope -= gradient * z * inverse;
            *log_std -= gradient * z.mul_add(z, -1.0);
        }
    }
}

/// The gradient of half the squared error of a prediction, and the square. With `clip` the loss is the larger one of that
/// of the prediction and that of the prediction moved at most so far from the old one.
#[inline(always)]
pub(crate) fn value_slope(prediction: f32, target: f32, old: f32, clip: Option<f32>) -> (f32, f32) {
    let error = prediction - target;
    if let Some(clip) = clip {
        let moved = prediction - old;
        let clipped = old + moved.clamp(-clip, clip) - target;
        if moved.abs() > clip && clipped * clipped > error * error {
            return (0.0, clipped * clipped);
        }
    }
    (error, error * error)
}

/// A sum in as many parts as there are lanes: term i belongs to part i modulo their number.
#[inline(always)]
fn sum(values: &[f32]) -> f32 {
    let mut lanes = [0.0_f32; LANES];
    let chunks = values.chunks_exact(LANES);
    let rest = chunks.remainder();
    for chunk in chunks {
        for (lane, &value) in lanes.iter_mut().zip(chunk) {
            *lane += value;
        }
    }
    let mut sum = 0.0;
    if values.len() >= LANES {
        for lane in lanes {
            sum += lane;
        }
    }
    for &value in rest {
        sum += value;
    }
    sum
}

/// The sum of products, as [`sum`].
#[inline(always)]
fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut lanes = [0.0_f32; LANES];
    let (a_chunks, b_chunks) = (a.chunks_exact(LANES), b.chunks_exact(LANES));
    let (a_rest, b_rest) = (a_chunks.remainder(), b_chunks.remainder());
    for (a, b) in a_chunks.zip(b_chunks) {
        for ((lane, &a), &b) in lanes.iter_mut().zip(a).zip(b) {
            *lane = a.mul_add(b, *lane);
        }
    }
    let mut sum = 0.0;
    if a.len() >= LANES {
        for lane in lanes {
            sum += lane;
        }
    }
    for (&a, &b) in a_rest.iter().zip(b_rest) {
        sum = a.mul_add(b, sum);
    }
    sum
}

/// The highest of numbers.
#[inline(always)]
pub(super) fn highest(values: &[f32]) -> f32 {
    let mut lanes = [f32::NEG_INFINITY; LANES];
    let chunks = values.chunks_exact(LANES);
    let mut highest = f32::NEG_INFINITY;
    for &value in chunks.remainder() {
        highest = highest.max(value);
    }
    for chunk in chunks {
        for (lane, &value) in lanes.iter_mut().zip(chunk) {
            *lane = lane.max(value);
        }
    }
    if values.len() >= LANES {
        for lane in lanes {
            highest = highest.max(lane);
        }
    }
    highest
}
