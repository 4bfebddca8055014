//! Gradient steps of PPO and of behaviour cloning, for Python.

use std::ops::Range;

use std::sync::{Mutex, PoisonError};

use fastrl_binding::arrays::{Flag, disjoint, list, list_or_none, readable, writeable};
use fastrl_core::dense::Activation;
use fastrl_core::learn::Precision;
use fastrl_core::learn::imitation::Imitation;
use fastrl_core::learn::losses::Kind;
use fastrl_core::learn::ppo::{Actions, Networks, Outcome, Parameters, Samples, Settings, Shape, update};
use fastrl_core::learn::values::values;
use fastrl_core::team::Team;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::mlp::{check_pooling, check_table};

/// The widest layer. Products of two such widths are far from overflow.
pub(crate) const MAX_WIDTH: usize = 1 << 16;

/// The name of an array, and its addresses.
pub(crate) type Place = (&'static str, Range<usize>);

#[pyclass(frozen, module = "fastrl._native._rust")]
pub(crate) struct PpoUpdate {
    shape: Shape,
    /// Threads, which sleep between updates.
    team: Mutex<Team>,
    /// Those of values, which are asked for while nothing else learns.
    valuing: Mutex<Team>,
}

/// Precision of the products of hidden layers.
pub(crate) fn precision(bf16: bool) -> Precision {
    if bf16 { Precision::Bf16 } else { Precision::Fp32 }
}

/// Length of an array's first dimension.
pub(crate) fn rows_of(array: &Bound<'_, PyAny>) -> usize {
    array.getattr("shape").and_then(|shape| shape.get_item(0)?.extract()).unwrap_or(0)
}

/// Addresses and numbers of the actions of so many samples. The caller keeps them apart from what is written.
fn read_actions<'a>(kind: &Kind, actions: &'a Bound<'_, PyAny>, samples: usize) -> PyResult<(Place, Actions<'a>)> {
    Ok(match kind {
        Kind::Gaussian(numbers) => {
            let actions = readable::<f32>("actions", actions, &[samples, *numbers])?;
            // SAFETY: `readable` has checked it; the caller calls `disjoint` before anything is written.
            (actions.place(), Actions::Gaussian(unsafe { actions.slice() }))
        }
        Kind::Categorical(nvec) => {
            let shape = if nvec.len() == 1 { vec![samples] } else { vec![samples, nvec.len()] };
            let actions = readable::<i64>("actions", actions, &shape)?;
            // SAFETY: as above.
            (actions.place(), Actions::Categorical(unsafe { actions.slice() }))
        }
    })
}

impl PpoUpdate {
    /// Takes the gradient steps, without the GIL.
    fn update(
        &self,
        py: Python<'_>,
        settings: &Settings,
        samples: Samples<'_>,
        order: &[i64],
        parameters: &mut Parameters<'_>,
    ) -> PyResult<Outcome> {
        py.detach(|| {
            let team = &mut self.team.lock().unwrap_or_else(PoisonError::into_inner);
            update(&self.shape, settings, samples, order, parameters, team)
        })
        .map_err(|refused| PyValueError::new_err(refused.to_string()))
    }
}

#[pymethods]
impl PpoUpdate {
    #[new]
    #[pyo3(signature = (*, obs_dim, hidden, activation, nvec=None, numbers=0, actor_inputs=None, critic_outputs=1, networks="both", layer_norm=false, bf16=false, table_rows=None, pooling=None, shared_trunk=false))]
    #[expect(clippy::too_many_arguments, reason = "the architecture")]
    fn new(
        obs_dim: usize,
        #[pyo3(from_py_with = list)] hidden: Vec<usize>,
        activation: &str,
        #[pyo3(from_py_with = list_or_none)] nvec: Option<Vec<usize>>,
        numbers: usize,
        actor_inputs: Option<usize>,
        critic_outputs: usize,
        networks: &str,
        layer_norm: bool,
        bf16: bool,
        table_rows: Option<usize>,
        pooling: Option<(usize, usize, usize)>,
        shared_trunk: bool,
    ) -> PyResult<Self> {
        let refuse = |message: String| Err(PyValueError::new_err(message));
        let activation = match activation {
            "tanh" => Activation::Tanh,
            "relu" => Activation::Relu,
            _ => return refuse(format!("activation: expected 'tanh' or 'relu', got '{activation}'")),
        };
        let networks = match networks {
            "both" => Networks::Both,
            "actor" => Networks::Actor,
            "critic" => Networks::Critic,
            _ => return refuse(format!("networks: expected 'both', 'actor' or 'critic', got '{networks}'")),
        };
        let kind = match (nvec, numbers) {
            (Some(nvec), 0) if !nvec.is_empty() => Kind::Categorical(nvec),
            (None, 1..) => Kind::Gaussian(numbers),
            (None, 0) if networks == Networks::Critic => Kind::Categorical(vec![]),
            _ => return refuse("nvec, numbers: expected a list of numbers of choices, or a number above 0".to_owned()),
        };
        let choices = match &kind {
            Kind::Categorical(nvec) => nvec.clone(),
            Kind::Gaussian(_) => vec![numbers],
        };
        // Not `sum`, which could overflow.
        let total = choices.iter().try_fold(0_usize, |total, &values| total.checked_add(values));
        let widths = std::iter::once(obs_dim).chain(hidden.iter().copied()).chain(choices).chain([critic_outputs]);
        let has_total = total.is_some_and(|total| total <= MAX_WIDTH);
        if !has_total || widths.clone().any(|width| !(1..=MAX_WIDTH).contains(&width)) {
            return refuse(format!(
                "obs_dim, hidden, nvec, numbers, critic_outputs: expected widths of 1 to {MAX_WIDTH}"
            ));
        }
        if layer_norm && bf16 {
            return refuse("bf16: expected False with layer_norm".to_owned());
        }
        let actor_inputs = actor_inputs.unwrap_or(obs_dim);
        if !(1..=obs_dim).contains(&actor_inputs) {
            return refuse(format!("actor_inputs: expected 1 to {obs_dim}, got {actor_inputs}"));
        }
        if let Some(rows) = table_rows {
            check_table(rows, obs_dim, total.unwrap_or(0))?;
            let is_plain = networks == Networks::Both && critic_outputs == 1 && actor_inputs == obs_dim;
            if !is_plain || layer_norm || bf16 || !matches!(&kind, Kind::Categorical(nvec) if nvec.len() == 1) {
                return refuse(
                    "table_rows: expected an nvec of one number, and none of actor_inputs, critic_outputs, networks, \
                     layer_norm and bf16"
                        .to_owned(),
                );
            }
        }
        let pooling = pooling.map(|pooling| check_pooling(pooling, obs_dim)).transpose()?;
        if pooling.is_some() && (table_rows.is_some() || actor_inputs != obs_dim || layer_norm || bf16) {
            return refuse("pooling: expected none of actor_inputs, layer_norm, bf16 and table_rows".to_owned());
        }
        if shared_trunk && (pooling.is_none() || networks != Networks::Both || critic_outputs != 1) {
            return refuse("shared_trunk: expected pooling, both networks and a critic of one output".to_owned());
        }
        let shape = Shape {
            networks,
            inputs: obs_dim,
            actor_inputs,
            table_rows,
            pooling,
            shared_trunk,
            hidden,
            activation,
            layer_norm,
            kind,
            critic_outputs,
            precision: precision(bf16),
        };
        let team = || Mutex::new(Team::new(1));
        Ok(Self { shape, team: team(), valuing: team() })
    }

    #[getter]
    fn num_parameters(&self) -> usize {
        self.shape.num_parameters()
    }

    #[pyo3(signature = (
        parameters, mean, square, obs, groups, actions, log_probs, advantages, returns, values, masks, learned, order, *,
        steps, minibatches, max_grad_norm, learning_rate, num_threads, clip_range=0.0, value_clip=None, value_coef=1.0,
        entropy_coef=0.0, normalize_advantages=false, target_kl=None,
    ))]
    #[expect(clippy::too_many_arguments, reason = "the arrays and settings of an update")]
    fn run(
        &self,
        py: Python<'_>,
        parameters: &Bound<'_, PyAny>,
        mean: &Bound<'_, PyAny>,
        square: &Bound<'_, PyAny>,
        obs: &Bound<'_, PyAny>,
        groups: &Bound<'_, PyAny>,
        actions: &Bound<'_, PyAny>,
        log_probs: &Bound<'_, PyAny>,
        advantages: &Bound<'_, PyAny>,
        returns: &Bound<'_, PyAny>,
        values: &Bound<'_, PyAny>,
        masks: Option<&Bound<'_, PyAny>>,
        learned: Option<&Bound<'_, PyAny>>,
        order: &Bound<'_, PyAny>,
        steps: u64,
        minibatches: usize,
        max_grad_norm: f32,
        learning_rate: f64,
        num_threads: usize,
        clip_range: f32,
        value_clip: Option<f32>,
        value_coef: f32,
        entropy_coef: f32,
        normalize_advantages: bool,
        target_kl: Option<f64>,
    ) -> PyResult<(f64, f64, f64, f64, f64, f64, usize)> {
        let Shape { inputs, kind, critic_outputs, networks, .. } = &self.shape;
        let (distinct, samples, epochs) = (rows_of(obs), rows_of(groups), rows_of(order));
        let acted = if *networks == Networks::Critic { 0 } else { samples };
        let valued = if *critic_outputs == 1 { vec![samples] } else { vec![samples, *critic_outputs] };
        let size = [self.shape.num_parameters()];
        let parameters = writeable::<f32>("parameters", parameters, &size)?;
        let mean = writeable::<f32>("mean", mean, &size)?;
        let square = writeable::<f32>("square", square, &size)?;
        let obs = readable::<f32>("obs", obs, &[distinct, *inputs])?;
        let groups = readable::<i64>("groups", groups, &[samples])?;
        let log_probs = readable::<f32>("log_probs", log_probs, &[acted])?;
        let advantages = readable::<f32>("advantages", advantages, &[acted])?;
        let returns = readable::<f32>("returns", returns, &valued)?;
        let values = readable::<f32>("values", values, &valued)?;
        let masks = masks.map(|masks| readable::<Flag>("masks", masks, &[acted, kind.outputs()])).transpose()?;
        let learned = learned.map(|learned| readable::<Flag>("learned", learned, &valued)).transpose()?;
        let order = readable::<i64>("order", order, &[epochs, samples])?;
        let (place, actions) = read_actions(kind, actions, acted)?;
        let written = [parameters.place(), mean.place(), square.place()];
        let read =
            [obs.place(), groups.place(), log_probs.place(), advantages.place(), returns.place(), values.place()];
        let mask = masks.as_ref().map_or(("masks", 0..0), |masks| masks.place());
        let flags = learned.as_ref().map_or(("learned", 0..0), |learned| learned.place());
        disjoint(&[&written[..], &read[..], &[place, mask, flags, order.place()]].concat())?;
        // SAFETY: checked, disjoint, and the caller's for the length of this call.
        let samples = unsafe {
            Samples {
                obs: obs.slice(),
                masks: masks.as_ref().map(|masks| masks.bytes()),
                groups: groups.slice(),
                actions,
                log_probs: log_probs.slice(),
                advantages: advantages.slice(),
                returns: returns.slice(),
                values: values.slice(),
                learned: learned.as_ref().map(|learned| learned.bytes()),
            }
        };
        // SAFETY: as above.
        let mut parameters = unsafe {
            Parameters { values: parameters.slice_mut(), mean: mean.slice_mut(), square: square.slice_mut(), steps }
        };
        // SAFETY: as above.
        let order = unsafe { order.slice() };
        let settings = Settings {
            minibatches,
            clip_range,
            value_clip,
            value_coef,
            entropy_coef,
            max_grad_norm,
            learning_rate,
            normalize_advantages,
            target_kl,
            threads: num_threads,
            ..Settings::default()
        };
        let outcome = self.update(py, &settings, samples, order, &mut parameters)?;
        Ok((
            outcome.policy_loss,
            outcome.value_loss,
            outcome.entropy,
            outcome.approx_kl,
            outcome.clip_fraction,
            outcome.grad_norm,
            outcome.steps,
        ))
    }

    #[pyo3(signature = (parameters, obs, rows, out, *, num_threads))]
    fn values(
        &self,
        py: Python<'_>,
        parameters: &Bound<'_, PyAny>,
        obs: &Bound<'_, PyAny>,
        rows: &Bound<'_, PyAny>,
        out: &Bound<'_, PyAny>,
        num_threads: usize,
    ) -> PyResult<()> {
        let Shape { inputs, critic_outputs, networks, .. } = self.shape;
        if networks == Networks::Actor {
            return Err(PyValueError::new_err("values: expected networks='both' or 'critic'"));
        }
        let all = rows_of(obs);
        let valued = if critic_outputs == 1 { vec![all] } else { vec![all, critic_outputs] };
        let parameters = readable::<f32>("parameters", parameters, &[self.shape.num_parameters()])?;
        let obs = readable::<f32>("obs", obs, &[all, inputs])?;
        let rows = readable::<i64>("rows", rows, &[rows_of(rows)])?;
        let out = writeable::<f32>("out", out, &valued)?;
        disjoint(&[out.place(), parameters.place(), obs.place(), rows.place()])?;
        // SAFETY: checked, disjoint, and the caller's for the length of this call.
        let (parameters, obs, rows, out) = unsafe { (parameters.slice(), obs.slice(), rows.slice(), out.slice_mut()) };
        if let Some(row) = rows.iter().find(|&&row| row < 0 || row as usize >= all) {
            return Err(PyValueError::new_err(format!(
                "rows: expected numbers from 0 to {}, got {row}",
                all as i64 - 1
            )));
        }
        py.detach(|| {
            let team = &mut self.valuing.lock().unwrap_or_else(PoisonError::into_inner);
            values(&self.shape, parameters, obs, rows, out, num_threads, team);
        });
        Ok(())
    }

    #[pyo3(signature = (
        parameters, mean, square, obs, actions, *, steps, squared, label_smoothing, entropy_coef, max_grad_norm,
        learning_rate, num_threads,
    ))]
    #[expect(clippy::too_many_arguments, reason = "the arrays and settings of a step")]
    fn imitate(
        &self,
        py: Python<'_>,
        parameters: &Bound<'_, PyAny>,
        mean: &Bound<'_, PyAny>,
        square: &Bound<'_, PyAny>,
        obs: &Bound<'_, PyAny>,
        actions: &Bound<'_, PyAny>,
        steps: u64,
        squared: bool,
        label_smoothing: f32,
        entropy_coef: f32,
        max_grad_norm: f32,
        learning_rate: f64,
        num_threads: usize,
    ) -> PyResult<(f64, f64, f64, f64)> {
        let Shape { inputs, kind, networks, .. } = &self.shape;
        if *networks != Networks::Actor {
            return Err(PyValueError::new_err("imitate: expected networks='actor'"));
        }
        let (samples, size) = (rows_of(obs), [self.shape.num_parameters()]);
        let parameters = writeable::<f32>("parameters", parameters, &size)?;
        let mean = writeable::<f32>("mean", mean, &size)?;
        let square = writeable::<f32>("square", square, &size)?;
        let obs = readable::<f32>("obs", obs, &[samples, *inputs])?;
        let (place, actions) = read_actions(kind, actions, samples)?;
        disjoint(&[parameters.place(), mean.place(), square.place(), obs.place(), place])?;
        let order: Vec<i64> = (0..samples as i64).collect();
        // SAFETY: checked, disjoint, and the caller's for the length of this call.
        let (obs, mut parameters) = unsafe {
            let vectors = (parameters.slice_mut(), mean.slice_mut(), square.slice_mut());
            (obs.slice(), Parameters { values: vectors.0, mean: vectors.1, square: vectors.2, steps })
        };
        let samples = Samples {
            obs,
            masks: None,
            groups: &order,
            actions,
            log_probs: &[],
            advantages: &[],
            returns: &[],
            values: &[],
            learned: None,
        };
        let settings = Settings {
            entropy_coef,
            max_grad_norm,
            learning_rate,
            threads: num_threads,
            imitation: Some(Imitation { squared, label_smoothing }),
            ..Settings::default()
        };
        let found = self.update(py, &settings, samples, &order, &mut parameters)?;
        Ok((found.policy_loss, found.score, found.entropy, found.grad_norm))
    }

    #[pyo3(signature = (
        parameters, mean, square, obs, groups, actions, returns, order, *, steps, minibatches, huber, max_grad_norm,
        learning_rate, epsilon, num_threads,
    ))]
    #[expect(clippy::too_many_arguments, reason = "the arrays and settings of an update")]
    fn learn_values(
        &self,
        py: Python<'_>,
        parameters: &Bound<'_, PyAny>,
        mean: &Bound<'_, PyAny>,
        square: &Bound<'_, PyAny>,
        obs: &Bound<'_, PyAny>,
        groups: &Bound<'_, PyAny>,
        actions: &Bound<'_, PyAny>,
        returns: &Bound<'_, PyAny>,
        order: &Bound<'_, PyAny>,
        steps: u64,
        minibatches: usize,
        huber: f32,
        max_grad_norm: f32,
        learning_rate: f64,
        epsilon: f32,
        num_threads: usize,
    ) -> PyResult<(f64, f64, f64, f64, usize)> {
        let Shape { inputs, networks, .. } = &self.shape;
        if *networks != Networks::Critic {
            return Err(PyValueError::new_err("learn_values: expected networks='critic'"));
        }
        if huber.is_nan() || huber <= 0.0 {
            return Err(PyValueError::new_err(format!("huber: expected a number above 0, got {huber}")));
        }
        let (distinct, samples, epochs) = (rows_of(obs), rows_of(groups), rows_of(order));
        let size = [self.shape.num_parameters()];
        let parameters = writeable::<f32>("parameters", parameters, &size)?;
        let mean = writeable::<f32>("mean", mean, &size)?;
        let square = writeable::<f32>("square", square, &size)?;
        let obs = readable::<f32>("obs", obs, &[distinct, *inputs])?;
        let groups = readable::<i64>("groups", groups, &[samples])?;
        let actions = readable::<i64>("actions", actions, &[samples])?;
        let returns = readable::<f32>("returns", returns, &[samples])?;
        let order = readable::<i64>("order", order, &[epochs, samples])?;
        let written = [parameters.place(), mean.place(), square.place()];
        let read = [obs.place(), groups.place(), actions.place(), returns.place(), order.place()];
        disjoint(&[&written[..], &read[..]].concat())?;
        // SAFETY: checked, disjoint, and the caller's for the length of this call.
        let (samples, order, mut parameters) = unsafe {
            let samples = Samples {
                obs: obs.slice(),
                masks: None,
                groups: groups.slice(),
                actions: Actions::Categorical(actions.slice()),
                log_probs: &[],
                advantages: &[],
                returns: returns.slice(),
                values: &[],
                learned: None,
            };
            let vectors = (parameters.slice_mut(), mean.slice_mut(), square.slice_mut());
            (samples, order.slice(), Parameters { values: vectors.0, mean: vectors.1, square: vectors.2, steps })
        };
        let settings = Settings {
            minibatches,
            max_grad_norm,
            learning_rate,
            epsilon,
            value_coef: 1.0,
            threads: num_threads,
            huber: Some(huber),
            ..Settings::default()
        };
        let found = self.update(py, &settings, samples, order, &mut parameters)?;
        Ok((found.value_loss, found.q, found.score, found.grad_norm, found.steps))
    }
}
