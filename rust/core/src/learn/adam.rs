//! Adam (Kingma and Ba, 2015), and moving averages of what it learns.

use crate::lanes::LANES;
use crate::matrix::Aligned;
use crate::team::Team;
use crate::widest::widest;

const BETA1: f64 = 0.9;
const BETA2: f64 = 0.999;
/// That of PPO.
const EPSILON: f32 = 1e-5;

/// Parameters that threads take a step of together.
const PART: usize = 1 << 13;

/// Parameters that learn, and the state of Adam: vectors that belong to the caller.
#[derive(Debug)]
pub struct Learned<'a> {
    pub values: &'a mut [f32],
    /// Moments.
    pub mean: &'a mut [f32],
    pub square: &'a mut [f32],
    /// Steps so far.
    pub steps: &'a mut f32,
}

impl Learned<'_> {
    /// Takes a step along the gradient times `scale`, and zeroes it.
    pub(super) fn step(&mut self, gradient: &mut [f32], scale: f32, learning_rate: f64, epsilon: f32, team: &mut Team) {
        *self.steps += 1.0;
        let rule = Rule::new(scale, learning_rate, *self.steps as u64).with_epsilon(epsilon);
        let moments = self.mean.chunks_mut(PART).zip(self.square.chunks_mut(PART));
        let all = self.values.chunks_mut(PART).zip(gradient.chunks_mut(PART)).zip(moments);
        let parts = all.map(|((values, gradient), (mean, square))| Part { values, gradient, mean, square });
        team.each(&mut parts.collect::<Vec<_>>(), |part| part.step(&rule));
    }

    /// Counts a step, which is taken part by part. Afterwards targets, where there are any, move by a share `tau`.
    pub(super) fn descent<'a>(
        &'a mut self,
        learning_rate: f64,
        epsilon: f32,
        targets: &'a mut [f32],
        tau: f32,
    ) -> Descent<'a> {
        *self.steps += 1.0;
        let rule = Rule::new(1.0, learning_rate, *self.steps as u64).with_epsilon(epsilon);
        Descent { rule, tau, values: self.values, mean: self.mean, square: self.square, targets }
    }
}

/// A step of some parameters, and of targets that follow them; the latter may be missing.
pub(super) struct Descent<'a> {
    rule: Rule,
    tau: f32,
    values: &'a mut [f32],
    mean: &'a mut [f32],
    square: &'a mut [f32],
    targets: &'a mut [f32],
}

impl<'a> Descent<'a> {
    /// Splits off the step of the first `count` parameters.
    pub(super) fn split_first(&mut self, count: usize) -> Self {
        let split = |vector: &mut &'a mut [f32]| {
            let all = std::mem::take(vector);
            let (first, rest) = all.split_at_mut(count.min(all.len()));
            *vector = rest;
            first
        };
        Self {
            rule: self.rule,
            tau: self.tau,
            values: split(&mut self.values),
            mean: split(&mut self.mean),
            square: split(&mut self.square),
            targets: split(&mut self.targets),
        }
    }

    /// Takes the step along the gradient, and zeroes it.
    pub(super) fn step(&mut self, gradient: &mut [f32]) {
        descend(self.values, gradient, self.mean, self.square, self.rule.0);
        lerp(self.targets, self.values, self.tau);
    }
}

/// Moves parameters to others by a share `tau` of the way.
pub(super) fn follow(targets: &mut [f32], values: &[f32], tau: f32, team: &mut Team) {
    let mut parts: Vec<_> = targets.chunks_mut(PART).zip(values.chunks(PART)).collect();
    team.each(&mut parts, |(targets, values)| lerp(targets, values, tau));
}

/// Parameters, their gradient and its moments.
pub(crate) struct Vectors {
    pub(crate) values: Aligned,
    pub(crate) gradient: Aligned,
    pub(crate) mean: Aligned,
    pub(crate) square: Aligned,
}

impl Vectors {
    pub(crate) fn zeros(len: usize) -> Self {
        let zeros = || Aligned::zeros(len);
        Self { values: zeros(), gradient: zeros(), mean: zeros(), square: zeros() }
    }

    /// The gradient's squared norm.
    pub(crate) fn norm_squared(&self) -> f64 {
        sum_of_squares(&self.gradient)
    }

    /// Parts of up to so many numbers.
    pub(crate) fn parts(&mut self, len: usize) -> impl Iterator<Item = Part<'_>> {
        let moments = self.mean.chunks_mut(len).zip(self.square.chunks_mut(len));
        let all = self.values.chunks_mut(len).zip(self.gradient.chunks_mut(len)).zip(moments);
        all.map(|((values, gradient), (mean, square))| Part { values, gradient, mean, square })
    }
}

/// Some of the numbers of [`Vectors`].
pub(crate) struct Part<'a> {
    values: &'a mut [f32],
    gradient: &'a mut [f32],
    mean: &'a mut [f32],
    square: &'a mut [f32],
}

impl Part<'_> {
    /// Takes a step, and zeroes the gradient.
    pub(crate) fn step(&mut self, rule: &Rule) {
        descend(self.values, self.gradient, self.mean, self.square, rule.0);
    }
}

/// The factors of a step.
#[derive(Clone, Copy)]
pub(crate) struct Rule([f32; 7]);

impl Rule {
    /// Step number `step` (from 1 on) along the gradient times `scale`.
    pub(crate) fn new(scale: f32, learning_rate: f64, step: u64) -> Self {
        let step_size = (learning_rate / (1.0 - power(BETA1, step))) as f32;
        let spread = ((1.0 - power(BETA2, step)).sqrt()) as f32;
        let (keep, add) = (BETA2 as f32, (1.0 - BETA2) as f32);
        Self([scale, (1.0 - BETA1) as f32, keep, add, spread, step_size, EPSILON])
    }

    pub(crate) fn with_epsilon(mut self, epsilon: f32) -> Self {
        self.0[6] = epsilon;
        self
    }
}

widest! {
    /// Each end of the way is exact.
    fn lerp(targets: &mut [f32], values: &[f32], tau: f32) {
        let pairs = targets.iter_mut().zip(values);
        if tau < 0.5 {
            pairs.for_each(|(target, value)| *target = tau.mul_add(value - *target, *target));
        } else {
            pairs.for_each(|(target, value)| *target = (tau - 1.0).mul_add(value - *target, *value));
        }
    }
}

widest! {
    pub(super) fn sum_of_squares(values: &[f32]) -> f64 {
        /// Sums side by side, so that none waits for the one before.
        const SUMS: usize = 4 * LANES;
        /// So many numbers add up in f32.
        const BLOCK: usize = 64 * SUMS;
        let mut total = 0.0;
        for block in values.chunks(BLOCK) {
            let mut sums = [0.0_f32; SUMS];
            let chunks = block.chunks_exact(SUMS);
            for (sum, &x) in sums.iter_mut().zip(chunks.remainder()) {
                *sum = x * x;
            }
            for chunk in chunks {
                for (sum, &x) in sums.iter_mut().zip(chunk) {
                    *sum = x.mul_add(x, *sum);
                }
            }
            for sum in sums {
                total += f64::from(sum);
            }
        }
        total
    }
}

widest! {
    fn descend(values: &mut [f32], gradient: &mut [f32], mean: &mut [f32], square: &mut [f32], factors: [f32; 7]) {
        let [scale, blend, keep, add, spread, step_size, epsilon] = factors;
        let moments = mean.iter_mut().zip(square.iter_mut());
        for ((value, gradient), (mean, square)) in values.iter_mut().zip(gradient.iter_mut()).zip(moments) {
            let g = *gradient * scale;
            *gradient = 0.0;
            *mean = blend.mul_add(g - *mean, *mean);
            *square = (add * g).mul_add(g, keep * *square);
            let deviation = square.sqrt() / spread + epsilon;
            *value -= step_size * *mean / deviation;
        }
    }
}

/// `base` to the power of `exponent`.
fn power(mut base: f64, mut exponent: u64) -> f64 {
    let mut result = 1.0;
    while exponent > 0 {
        if exponent % 2 == 1 {
            result *= base;
        }
        base *= base;
        exponent /= 2;
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_those_of_the_paper() {
        let mut vectors = Vectors::zeros(40);
        let (mut m, mut v, mut x) = ([0.0_f64; 40], [0.0_f64; 40], [0.0_f64; 40]);
        for t in 1..=50_u64 {
            for i in 0..40 {
                let g = ((i as f64 + 1.0) * (t as f64)).sin() * 10.0_f64.powi(i as i32 % 7 - 5);
                vectors.gradient[i] = g as f32;
                let g = g * 0.5;
                m[i] = BETA1 * m[i] + (1.0 - BETA1) * g;
                v[i] = BETA2 * v[i] + (1.0 - BETA2) * g * g;
                let (m, v) = (m[i] / (1.0 - BETA1.powi(t as i32)), v[i] / (1.0 - BETA2.powi(t as i32)));
                x[i] -= 1e-3 * m / (v.sqrt() + 1e-5);
            }
            let norm: f64 = vectors.gradient.iter().map(|&g| f64::from(g) * f64::from(g)).sum();
            assert!((vectors.norm_squared() / norm - 1.0).abs() < 1e-6);
            let rule = Rule::new(0.5, 1e-3, t);
            vectors.parts(16).for_each(|mut part| part.step(&rule));
            assert!(vectors.gradient.iter().all(|&g| g == 0.0));
        }
        for (&value, x) in vectors.values.iter().zip(x) {
            assert!((f64::from(value) - x).abs() < 1e-6, "{value} and {x}");
        }
    }

    #[test]
    fn targets_follow_to_the_end() {
        let values: Vec<f32> = (0..3 * PART).map(|i| (i as f32 * 0.37).sin()).collect();
        for tau in [0.0_f32, 0.005, 0.7, 1.0] {
            let mut targets: Vec<f32> = values.iter().rev().copied().collect();
            follow(&mut targets, &values, tau, &mut Team::new(2));
            for ((target, value), old) in targets.iter().zip(&values).zip(values.iter().rev()) {
                let expected = f64::from(*old) + f64::from(tau) * (f64::from(*value) - f64::from(*old));
                assert!((f64::from(*target) - expected).abs() < 1e-6, "{target} and {expected}");
                assert!(tau < 1.0 || target == value);
            }
        }
    }
}
