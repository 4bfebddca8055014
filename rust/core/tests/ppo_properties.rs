//! Updates of PPO and of values of actions against the losses as the papers write them, in f64, sample by sample, and
//! differences of these.

use fastrl_core::dense::Activation;
use fastrl_core::learn::Precision;
use fastrl_core::learn::losses::Kind;
use fastrl_core::learn::ppo::{Actions, Networks, Outcome, Parameters, Samples, Settings, Shape, update};
use fastrl_core::learn::values::values;
use fastrl_core::team::Team;
use proptest::prelude::*;

/// A network and a rollout, drawn from a seed.
#[derive(Clone, Debug)]
struct Case {
    shape: Shape,
    parameters: Vec<f32>,
    obs: Vec<f32>,
    masks: Option<Vec<u8>>,
    groups: Vec<i64>,
    choices: Vec<i64>,
    draws: Vec<f32>,
    log_probs: Vec<f32>,
    advantages: Vec<f32>,
    returns: Vec<f32>,
    values: Vec<f32>,
}

/// Numbers without a pattern.
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % end
    }

    fn floats(&mut self, count: usize, scale: f32) -> Vec<f32> {
        (0..count).map(|_| (self.below(1 << 20) as f32 / (1 << 19) as f32 - 1.0) * scale).collect()
    }
}

impl Case {
    fn new(shape: Shape, samples: usize, groups: usize, masked: bool, seed: u64) -> Self {
        Self::with_weights(shape, samples, groups, masked, seed, 0.8)
    }

    /// `highest`: of the absolute values of parameters.
    fn with_weights(shape: Shape, samples: usize, groups: usize, masked: bool, seed: u64, highest: f32) -> Self {
        let mut random = Random(seed);
        let (inputs, outputs) = (shape.inputs, shape.kind.outputs());
        let parameters = random.floats(shape.num_parameters(), highest);
        let group_of: Vec<i64> = (0..samples).map(|_| random.below(groups) as i64).collect();
        let choices: Vec<i64> = match &shape.kind {
            Kind::Gaussian(_) => vec![],
            Kind::Categorical(choices) => {
                (0..samples).flat_map(|_| choices.iter().map(|&n| random.below(n) as i64).collect::<Vec<_>>()).collect()
            }
        };
        let mut masks: Option<Vec<u8>> =
            masked.then(|| (0..samples * outputs).map(|_| u8::from(random.below(3) > 0)).collect());
        if let (Some(masks), Kind::Categorical(numbers)) = (&mut masks, &shape.kind) {
            for (sample, action) in choices.chunks(numbers.len()).enumerate() {
                let mut first = 0;
                for (&number, &n) in action.iter().zip(numbers) {
                    masks[sample * outputs + first + number as usize] = 1;
                    first += n;
                }
            }
        }
        let mut case = Self {
            obs: random.floats(groups * inputs, 1.5),
            draws: random.floats(samples * outputs, 2.0),
            log_probs: vec![0.0; samples],
            advantages: random.floats(samples, 2.0),
            returns: random.floats(samples, 2.0),
            values: random.floats(samples, 1.0),
            parameters,
            masks,
            groups: group_of,
            choices,
            shape,
        };
        // Ratios are within the clip range and beyond it.
        let noise = random.floats(samples, 0.5);
        let parameters: Vec<f64> = case.parameters.iter().copied().map(f64::from).collect();
        for (sample, noise) in noise.into_iter().enumerate() {
            case.log_probs[sample] = case.sample(&parameters, sample).0 as f32 + noise;
        }
        case
    }

    fn samples(&self) -> Samples<'_> {
        Samples {
            obs: &self.obs,
            masks: self.masks.as_deref(),
            groups: &self.groups,
            actions: match self.shape.kind {
                Kind::Categorical(_) => Actions::Categorical(&self.choices),
                Kind::Gaussian(_) => Actions::Gaussian(&self.draws),
            },
            log_probs: &self.log_probs,
            advantages: &self.advantages,
            returns: &self.returns,
            values: &self.values,
            learned: None,
        }
    }

    /// Outputs of a perceptron, and the parameters after its own.
    fn forward<'a>(&self, mut parameters: &'a [f64], outputs: usize, group: usize) -> (Vec<f64>, &'a [f64]) {
        let inputs = &self.obs[group * self.shape.inputs..][..self.shape.inputs];
        let mut x: Vec<f64> = inputs.iter().copied().map(f64::from).collect();
        for (layer, &width) in self.shape.hidden.iter().chain([&outputs]).enumerate() {
            let (weights, rest) = parameters.split_at(width * x.len());
            let (bias, rest) = rest.split_at(width);
            parameters = rest;
            let sums = weights.chunks(x.len()).zip(bias);
            x = sums.map(|(w, b)| w.iter().zip(&x).map(|(w, x)| w * x).sum::<f64>() + b).collect();
            if layer < self.shape.hidden.len() {
                if self.shape.layer_norm {
                    let (vectors, rest) = parameters.split_at(2 * width);
                    parameters = rest;
                    let mean = x.iter().sum::<f64>() / width as f64;
                    let variance = x.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / width as f64;
                    for (i, x) in x.iter_mut().enumerate() {
                        *x = (*x - mean) / (variance + 1e-5).sqrt() * vectors[i] + vectors[width + i];
                    }
                }
                for x in &mut x {
                    *x = if self.shape.activation == Activation::Tanh { x.tanh() } else { x.max(0.0) };
                }
            }
        }
        (x, parameters)
    }

    /// The log-probability of a sample, the entropy there, and the value.
    fn sample(&self, parameters: &[f64], sample: usize) -> (f64, f64, f64) {
        let group = self.groups[sample] as usize;
        let outputs = self.shape.kind.outputs();
        let deviations = if matches!(self.shape.kind, Kind::Gaussian(_)) { outputs } else { 0 };
        let (log_std, parameters) = parameters.split_at(deviations);
        let (results, parameters) = self.forward(parameters, outputs, group);
        let value = self.forward(parameters, 1, group).0[0];
        let (mut log_prob, mut entropy) = (0.0, 0.0);
        match &self.shape.kind {
            Kind::Gaussian(_) => {
                let draws = &self.draws[sample * outputs..][..outputs];
                for ((&draw, mean), log_std) in draws.iter().zip(results).zip(log_std) {
                    let z = (f64::from(draw) - mean) / log_std.exp();
                    log_prob -= 0.5 * z * z + log_std + 0.5 * std::f64::consts::TAU.ln();
                    entropy += log_std + 0.5 * (std::f64::consts::TAU * std::f64::consts::E).ln();
                }
            }
            Kind::Categorical(choices) => {
                let mut first = 0;
                for (part, &n) in choices.iter().enumerate() {
                    let allowed = |i: usize| self.masks.as_ref().is_none_or(|m| m[sample * outputs + first + i] != 0);
                    let weights: Vec<f64> =
                        (0..n).map(|i| if allowed(i) { results[first + i].exp() } else { 0.0 }).collect();
                    let total: f64 = weights.iter().sum();
                    let action = self.choices[sample * choices.len() + part] as usize;
                    log_prob += (weights[action] / total).ln();
                    let probs = weights.iter().map(|weight| weight / total).filter(|&p| p > 0.0);
                    entropy -= probs.map(|p| p * p.ln()).sum::<f64>();
                    first += n;
                }
            }
        }
        (log_prob, entropy, value)
    }

    /// Loss of the policy, of the value and entropy, the KL and the clipped share.
    fn losses(&self, parameters: &[f64], settings: &Settings) -> [f64; 5] {
        let count = self.groups.len() as f64;
        let mut advantages: Vec<f64> = self.advantages.iter().copied().map(f64::from).collect();
        if settings.normalize_advantages && advantages.len() > 1 {
            let mean = advantages.iter().sum::<f64>() / count;
            let variance = advantages.iter().map(|a| (a - mean).powi(2)).sum::<f64>() / (count - 1.0);
            advantages.iter_mut().for_each(|a| *a = (*a - mean) / (variance.sqrt() + 1e-8));
        }
        let clip = f64::from(settings.clip_range);
        let mut sums = [0.0; 5];
        for (sample, advantage) in advantages.into_iter().enumerate() {
            let (log_prob, entropy, value) = self.sample(parameters, sample);
            let log_ratio = log_prob - f64::from(self.log_probs[sample]);
            let ratio = log_ratio.exp();
            let target = f64::from(self.returns[sample]);
            let mut square = (value - target).powi(2);
            if let Some(clip) = settings.value_clip {
                let (old, clip) = (f64::from(self.values[sample]), f64::from(clip));
                square = square.max((old + (value - old).clamp(-clip, clip) - target).powi(2));
            }
            let clipped = ratio.clamp(1.0 - clip, 1.0 + clip);
            let beyond = f64::from(u8::from((ratio - 1.0).abs() > clip));
            let terms =
                [-(ratio * advantage).min(clipped * advantage), square / 2.0, entropy, ratio - 1.0 - log_ratio, beyond];
            sums.iter_mut().zip(terms).for_each(|(sum, term)| *sum += term / count);
        }
        sums
    }

    fn loss(&self, parameters: &[f64], settings: &Settings) -> f64 {
        let [policy, value, entropy, ..] = self.losses(parameters, settings);
        policy + f64::from(settings.value_coef) * value - f64::from(settings.entropy_coef) * entropy
    }

    /// Half the mean squared error of the values of the actions that were taken, beyond a bound continued linearly.
    fn q_loss(&self, parameters: &[f64], bound: f64) -> f64 {
        let loss = |(sample, &group): (usize, &i64)| {
            let values = self.forward(parameters, self.shape.critic_outputs, group as usize).0;
            let error = (values[self.choices[sample] as usize] - f64::from(self.returns[sample])).abs();
            if error <= bound { error * error / 2.0 } else { bound * (error - bound / 2.0) }
        };
        self.groups.iter().enumerate().map(loss).sum::<f64>() / self.groups.len() as f64
    }

    fn update(&self, settings: &Settings, order: &[i64]) -> ([Vec<f32>; 3], Outcome) {
        let [mut values, mut mean, mut square] = [&self.parameters, &self.parameters, &self.parameters].map(Vec::clone);
        mean.fill(0.0);
        square.fill(0.0);
        let mut parameters = Parameters { values: &mut values, mean: &mut mean, square: &mut square, steps: 0 };
        let outcome =
            update(&self.shape, settings, self.samples(), order, &mut parameters, &mut Team::new(1)).expect("they fit");
        assert_eq!(parameters.steps, outcome.steps as u64);
        ([values, mean, square], outcome)
    }
}

const SETTINGS: Settings = Settings {
    minibatches: 1,
    clip_range: 0.2,
    value_clip: None,
    value_coef: 0.7,
    entropy_coef: 0.1,
    max_grad_norm: 1e9,
    learning_rate: 1e-3,
    epsilon: 1e-5,
    normalize_advantages: false,
    target_kl: None,
    threads: 1,
    imitation: None,
    huber: None,
};

fn kinds() -> impl Strategy<Value = Kind> {
    prop_oneof![
        (1_usize..40).prop_map(|n| Kind::Categorical(vec![n])),
        prop::collection::vec(1_usize..20, 2..4).prop_map(Kind::Categorical),
        (1_usize..4).prop_map(Kind::Gaussian),
    ]
}

fn precisions() -> impl Strategy<Value = Precision> {
    prop_oneof![Just(Precision::Fp32), Just(Precision::Bf16)]
}

fn shapes() -> impl Strategy<Value = Shape> {
    let activation = prop_oneof![Just(Activation::Tanh), Just(Activation::Relu)];
    (1_usize..20, prop::collection::vec(1_usize..20, 0..3), activation, kinds())
        .prop_map(|(inputs, hidden, activation, kind)| plain(inputs, hidden, activation, kind))
}

/// A shape whose actor sees all inputs.
fn plain(inputs: usize, hidden: Vec<usize>, activation: Activation, kind: Kind) -> Shape {
    let (networks, precision) = (Networks::Both, Precision::Fp32);
    let (actor_inputs, critic_outputs, layer_norm) = (inputs, 1, false);
    Shape {
        networks,
        inputs,
        actor_inputs,
        table_rows: None,
        pooling: None,
        shared_trunk: false,
        hidden,
        activation,
        layer_norm,
        kind,
        critic_outputs,
        precision,
    }
}

/// A critic of so many actions, and a rollout.
fn action_values(shape: Shape, actions: usize, samples: usize, groups: usize, seed: u64, highest: f32) -> Case {
    let kind = Kind::Categorical(vec![actions]);
    let shape = Shape { networks: Networks::Critic, critic_outputs: actions, kind, ..shape };
    let mut random = Random(seed);
    Case {
        parameters: random.floats(shape.num_parameters(), highest),
        obs: random.floats(groups * shape.inputs, 1.5),
        groups: (0..samples).map(|_| random.below(groups) as i64).collect(),
        choices: (0..samples).map(|_| random.below(actions) as i64).collect(),
        returns: random.floats(samples, 2.0),
        masks: None,
        draws: vec![],
        log_probs: vec![],
        advantages: vec![],
        values: vec![],
        shape,
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]
    /// After one step from zero Adam's first moment is a tenth of the gradient.
    #[test]
    fn gradients_are_differences_of_the_loss(
        shape in shapes(), samples in 1_usize..30, groups in 1_usize..20, masked: bool, normalize_advantages: bool,
        value_clip in prop::option::of(0.1_f32..1.0), seed: u64,
    ) {
        let case = Case::new(shape, samples, groups, masked, seed);
        let settings = Settings { normalize_advantages, value_clip, ..SETTINGS };
        let order: Vec<i64> = (0..samples as i64).rev().collect();
        let ([_, mean, _], outcome) = case.update(&settings, &order);
        let mut parameters: Vec<f64> = case.parameters.iter().copied().map(f64::from).collect();
        let got = [outcome.policy_loss, outcome.value_loss, outcome.entropy, outcome.approx_kl, outcome.clip_fraction];
        for (got, expected) in got.into_iter().zip(case.losses(&parameters, &settings)) {
            prop_assert!((got - expected).abs() < 1e-4 * expected.abs().max(1.0), "{got} is not {expected}");
        }
        let mut norm = 0.0;
        for place in 0..parameters.len() {
            let here = parameters[place];
            let mut slopes = [1e-5, 1e-6].map(|step| {
                let mut at = |x: f64| {
                    parameters[place] = x;
                    case.loss(&parameters, &settings)
                };
                (at(here + step) - at(here - step)) / (2.0 * step)
            });
            parameters[place] = here;
            let got = f64::from(mean[place]) * 10.0;
            slopes.sort_by(|a, b| (a - got).abs().total_cmp(&(b - got).abs()));
            prop_assert!((got - slopes[0]).abs() < 2e-4 * got.abs().max(1.0), "{place}: {got} is not {}", slopes[0]);
            norm += slopes[0] * slopes[0];
        }
        prop_assert!((outcome.grad_norm - norm.sqrt()).abs() < 1e-3 * norm.sqrt().max(1.0));
    }

    #[test]
    fn gradients_of_action_values_are_differences_of_the_loss(
        shape in shapes(), layer_norm: bool, actions in 1_usize..40, samples in 1_usize..30, groups in 1_usize..20,
        bound in prop_oneof![Just(f32::INFINITY), 0.2_f32..2.0], seed: u64,
    ) {
        // Two numbers alone are -1 and 1 after layer normalisation, unless they hardly differ: differences tell nothing.
        let hidden = shape.hidden.iter().map(|width| width + 3).collect();
        let case = action_values(Shape { layer_norm, hidden, ..shape }, actions, samples, groups, seed, 0.8);
        let order: Vec<i64> = (0..samples as i64).rev().collect();
        let ([_, mean, _], outcome) = case.update(&Settings { huber: Some(bound), value_coef: 1.0, ..SETTINGS }, &order);
        let mut parameters: Vec<f64> = case.parameters.iter().copied().map(f64::from).collect();
        let bound = f64::from(bound);
        let expected = case.q_loss(&parameters, bound);
        prop_assert!((outcome.value_loss - expected).abs() < 1e-4 * expected.max(1.0), "{} is not {expected}", outcome.value_loss);
        for place in 0..parameters.len() {
            let here = parameters[place];
            let got = f64::from(mean[place]) * 10.0;
            let mut errors = [1e-5, 1e-6, 1e-7].map(|step| {
                let mut at = |x: f64| {
                    parameters[place] = x;
                    case.q_loss(&parameters, bound)
                };
                ((at(here + step) - at(here - step)) / (2.0 * step) - got).abs()
            });
            parameters[place] = here;
            errors.sort_by(f64::total_cmp);
            prop_assert!(errors[0] < 1e-3 * got.abs().max(1.0), "{place}: {got} is wrong by {}", errors[0]);
        }
    }

    #[test]
    fn threads_do_not_change_a_bit_of_action_values(
        seed: u64, layer_norm: bool, hidden in prop::collection::vec(30_usize..140, 1..4), actions in 1_usize..150,
        minibatches in 1_usize..4,
    ) {
        let shape = Shape { layer_norm, ..plain(5, hidden, Activation::Relu, Kind::Gaussian(1)) };
        let case = action_values(shape, actions, 700, 650, seed, 0.1);
        let order: Vec<i64> = (0..1400).map(|i| i * 3 % 700).collect();
        let settings = Settings { minibatches, huber: Some(f32::INFINITY), ..SETTINGS };
        let (alone, outcome) = case.update(&settings, &order);
        for threads in [2, 3, 16] {
            let (together, other) = case.update(&Settings { threads, ..settings }, &order);
            prop_assert_eq!(outcome, other);
            prop_assert_eq!(&alone, &together);
        }
        prop_assert!(outcome.grad_norm.is_finite() && outcome.grad_norm > 0.0);
    }

    #[test]
    fn threads_do_not_change_a_bit(
        seed: u64, kind in kinds(), hidden in prop::collection::vec(30_usize..140, 1..4), minibatches in 1_usize..4,
        precision in precisions(),
    ) {
        let shape = Shape { precision, ..plain(5, hidden, Activation::Relu, kind) };
        // Small weights, as deep networks with large ones end in NaN.
        let case = Case::with_weights(shape, 700, 650, true, seed, 0.1);
        let order: Vec<i64> = (0..1400).map(|i| i * 3 % 700).collect();
        let settings = Settings { minibatches, ..SETTINGS };
        let (alone, outcome) = case.update(&settings, &order);
        for threads in [2, 3, 16] {
            let (together, other) = case.update(&Settings { threads, ..settings }, &order);
            prop_assert_eq!(outcome, other);
            prop_assert_eq!(&alone, &together);
        }
        prop_assert_eq!(outcome.steps, 2 * minibatches);
        prop_assert!(outcome.grad_norm.is_finite());
    }

    #[test]
    fn values_are_those_of_the_critic(shape in shapes(), rows in 1_usize..400, alone: bool, seed: u64) {
        let mut case = Case::new(shape, rows, rows, false, seed);
        case.groups = (0..rows as i64).collect();
        let parameters: Vec<f64> = case.parameters.iter().copied().map(f64::from).collect();
        let expected: Vec<f64> = (0..rows).map(|row| case.sample(&parameters, row).2).collect();
        let mut given = case.parameters.clone();
        if alone {
            case.shape.networks = Networks::Critic;
            case.shape.precision = Precision::Bf16;
            given.drain(..given.len() - case.shape.num_parameters());
        }
        let (first, last) = case.groups.split_at(rows / 2);
        let got = [1, 3].map(|threads| {
            let (mut got, mut team) = (vec![f32::NAN; rows], Team::new(1));
            // The second part first: rows need not be all of them, and other places stay.
            values(&case.shape, &given, &case.obs, last, &mut got, threads, &mut team);
            let rest = got.clone();
            values(&case.shape, &given, &case.obs, first, &mut got, threads, &mut team);
            assert!(rest[..rows / 2].iter().all(|value| value.is_nan()) && rest[rows / 2..] == got[rows / 2..]);
            got
        });
        prop_assert_eq!(&got[0], &got[1]);
        for (&got, &expected) in got[0].iter().zip(&expected) {
            prop_assert!((f64::from(got) - expected).abs() < 2e-5 * expected.abs().max(10.0), "{got} is not {expected}");
        }
    }

    #[test]
    fn a_network_alone_learns_what_it_learns_beside_the_other(
        shape in shapes(), precision in precisions(), masked: bool, seed: u64,
    ) {
        let shape = Shape { precision, ..shape };
        let case = Case::new(shape, 90, 60, masked, seed);
        let order: Vec<i64> = (0..180).map(|i| i * 7 % 90).collect();
        let settings = Settings { minibatches: 3, ..SETTINGS };
        let ([both, ..], _) = case.update(&settings, &order);
        let mut first = 0;
        for networks in [Networks::Actor, Networks::Critic] {
            let shape = Shape { networks, ..case.shape.clone() };
            let places = first..first + shape.num_parameters();
            first = places.end;
            let mut alone = Case { parameters: case.parameters[places.clone()].to_vec(), shape, ..case.clone() };
            if networks == Networks::Critic {
                // It does not need what the actor learns from.
                for array in [&mut alone.draws, &mut alone.log_probs, &mut alone.advantages] {
                    array.clear();
                }
                alone.choices.clear();
                alone.masks = None;
            }
            let ([values, ..], outcome) = alone.update(&settings, &order);
            prop_assert_eq!(&values[..], &both[places]);
            prop_assert_eq!(outcome.steps, 6);
        }
        prop_assert_eq!(first, both.len());
    }

    #[test]
    fn an_update_ends_after_the_step_whose_kl_is_too_large(seed: u64, two_threads: bool) {
        let threads = 1 + usize::from(two_threads);
        let shape = plain(5, vec![64, 64], Activation::Relu, Kind::Gaussian(2));
        // Small weights: with large ones a step can change the policy beyond any bound.
        let case = Case::with_weights(shape, 400, 400, false, seed, 0.1);
        let order: Vec<i64> = (0..1200).map(|i| i % 400).collect();
        let settings = Settings { threads, target_kl: Some(1e-9), ..SETTINGS };
        prop_assert_eq!(case.update(&settings, &order).1.steps, 1);
        let settings = Settings { target_kl: Some(1e9), ..settings };
        prop_assert_eq!(case.update(&settings, &order).1.steps, 3);
    }

    #[test]
    fn gradients_are_scaled_down_to_their_norm(seed: u64) {
        let shape = plain(3, vec![8], Activation::Tanh, Kind::Gaussian(2));
        let case = Case::new(shape, 40, 40, false, seed);
        let order: Vec<i64> = (0..40).collect();
        let ([_, whole, _], outcome) = case.update(&SETTINGS, &order);
        let ([_, scaled, _], other) = case.update(&Settings { max_grad_norm: 0.01, ..SETTINGS }, &order);
        prop_assert_eq!(outcome, other);
        for (whole, scaled) in whole.into_iter().zip(scaled) {
            let expected = f64::from(whole) * 0.01 / (outcome.grad_norm + 1e-6);
            prop_assert!((f64::from(scaled) - expected).abs() < 1e-8);
        }
    }
}

#[test]
fn places_that_are_not_there_and_wrong_settings_are_refused() {
    let shape = plain(3, vec![], Activation::Tanh, Kind::Categorical(vec![2]));
    let case = Case::new(shape, 4, 2, false, 1);
    let refuses = |change: fn(&mut Samples<'_>), order: &[i64], settings: Settings| {
        let mut samples = case.samples();
        change(&mut samples);
        let mut values = case.parameters.clone();
        let (mut mean, mut square) = (vec![0.0; values.len()], vec![0.0; values.len()]);
        let mut parameters = Parameters { values: &mut values, mean: &mut mean, square: &mut square, steps: 0 };
        let refused = update(&case.shape, &settings, samples, order, &mut parameters, &mut Team::new(1))
            .expect_err("it is wrong");
        assert_eq!(values, case.parameters);
        refused.to_string()
    };
    let order = [0, 1, 2, 3];
    assert!(refuses(|_| {}, &[0, 1, 2, 4], SETTINGS).starts_with("order: expected numbers from 0 to 3, got 4"));
    assert!(refuses(|_| {}, &[0, 1, 2], SETTINGS).starts_with("order: expected orders of 4 samples, got 3"));
    assert!(
        refuses(|s| s.groups = &[0, 1, 2, 0], &order, SETTINGS).starts_with("groups: expected numbers from 0 to 1")
    );
    let actions = |s: &mut Samples<'_>| s.actions = Actions::Categorical(&[0, 1, -1, 0]);
    assert!(refuses(actions, &order, SETTINGS).starts_with("actions: expected numbers from 0 to 1, got -1"));
    let settings = Settings { minibatches: 5, ..SETTINGS };
    assert!(refuses(|_| {}, &order, settings).starts_with("minibatches: expected 1 to 4, got 5"));
    for settings in [Settings { clip_range: f32::NAN, ..SETTINGS }, Settings { value_clip: Some(-0.1), ..SETTINGS }] {
        assert!(refuses(|_| {}, &order, settings).starts_with("clip_range, value_clip: expected numbers from 0 on"));
    }
}
