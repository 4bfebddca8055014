//! Gradients of the losses of SAC, TD3 and IQL, for Python.

use std::sync::{Mutex, PoisonError};

use fastrl_binding::arrays::{Array, Element, Flag, disjoint, list, readable, writeable};
use fastrl_core::learn::off_policy::{ActionKind, Actions, Algorithm, Batch, Gradients, Parameters, Settings, Shape};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::ppo_update::{MAX_WIDTH, Place, rows_of};

/// The most critics.
const MAX_CRITICS: usize = 1 << 10;

#[pyclass(frozen, module = "fastrl._native._rust")]
pub(crate) struct OffPolicyGradients {
    shape: Shape,
    /// Made for the first loss: arrays that fit the shape say that there is memory for networks of that size.
    gradients: Mutex<Option<Gradients>>,
}

impl OffPolicyGradients {
    /// Calls a function with what computes gradients, without the GIL.
    fn detached<T: Send>(&self, py: Python<'_>, compute: impl FnOnce(&mut Gradients) -> T + Send) -> T {
        py.detach(|| {
            let mut gradients = self.gradients.lock().unwrap_or_else(PoisonError::into_inner);
            compute(gradients.get_or_insert_with(|| Gradients::new(self.shape.clone())))
        })
    }
}

/// An array that may be left out.
type Maybe<'a, 'py, T> = Option<Array<'a, 'py, T>>;

/// Checks an array as `readable` does, where one is needed; else there is none.
fn needed<'a, 'py, T: Element>(
    name: &'static str,
    object: Option<&'a Bound<'py, PyAny>>,
    shape: &[usize],
    is_needed: bool,
) -> PyResult<Maybe<'a, 'py, T>> {
    match (object, is_needed) {
        (Some(object), true) => readable(name, object, shape).map(Some),
        (None, true) => Err(PyValueError::new_err(format!("{name}: expected an array of shape {shape:?}, got None"))),
        (_, false) => Ok(None),
    }
}

/// Its numbers; none where there is no array.
///
/// # Safety
/// As of `Array::slice`.
unsafe fn slice<'a, T: Element>(array: &Maybe<'a, '_, T>) -> &'a [T] {
    // SAFETY: the caller's promise.
    array.as_ref().map_or(&[], |array| unsafe { array.slice() })
}

/// Checks that no array overlaps one that is written to. Those that are only read may overlap each other.
pub(crate) fn apart(written: &[Place], read: impl IntoIterator<Item = Option<Place>>) -> PyResult<()> {
    disjoint(written)?;
    read.into_iter().flatten().try_for_each(|place| disjoint(&[written, &[place]].concat()))
}

fn place<T: Element>(array: &Maybe<'_, '_, T>) -> Option<Place> {
    array.as_ref().map(Array::place)
}

/// Checks that actions are among so many choices.
pub(crate) fn check_choices(actions: &[i64], choices: usize) -> PyResult<()> {
    match actions.iter().find(|&&action| action < 0 || action as usize >= choices) {
        None => Ok(()),
        Some(action) => {
            Err(PyValueError::new_err(format!("actions: expected numbers from 0 to {}, got {action}", choices - 1)))
        }
    }
}

/// Actions of a minibatch of either kind.
struct Taken<'a, 'py> {
    numbers: Maybe<'a, 'py, f32>,
    choices: Maybe<'a, 'py, i64>,
}

impl<'a, 'py> Taken<'a, 'py> {
    fn new(object: Option<&'a Bound<'py, PyAny>>, kind: ActionKind, size: usize, is_needed: bool) -> PyResult<Self> {
        let (numbers, choices) = match kind {
            ActionKind::Box(numbers) => (needed("actions", object, &[size, numbers], is_needed)?, None),
            ActionKind::Discrete(_) => (None, needed("actions", object, &[size], is_needed)?),
        };
        Ok(Self { numbers, choices })
    }

    /// # Safety
    /// As of `Array::slice`.
    unsafe fn actions(&self, kind: ActionKind) -> PyResult<Actions<'a>> {
        let ActionKind::Discrete(choices) = kind else {
            // SAFETY: the caller's promise.
            return Ok(Actions::Box(unsafe { slice(&self.numbers) }));
        };
        // SAFETY: the caller's promise.
        let actions = unsafe { slice(&self.choices) };
        check_choices(actions, choices)?;
        Ok(Actions::Discrete(actions))
    }
}

#[pymethods]
impl OffPolicyGradients {
    #[new]
    #[pyo3(signature = (algorithm, *, obs_dim, hidden, critics, numbers=0, choices=0))]
    fn new(
        algorithm: &str,
        obs_dim: usize,
        #[pyo3(from_py_with = list)] hidden: Vec<usize>,
        critics: usize,
        numbers: usize,
        choices: usize,
    ) -> PyResult<Self> {
        let refuse = |message: String| Err(PyValueError::new_err(message));
        let algorithm = match algorithm {
            "sac" => Algorithm::Sac,
            "td3" => Algorithm::Td3,
            "iql" => Algorithm::Iql,
            _ => return refuse(format!("algorithm: expected 'sac', 'td3' or 'iql', got '{algorithm}'")),
        };
        let actions = match (numbers, choices) {
            (1.., 0) => ActionKind::Box(numbers),
            (0, 1..) if algorithm != Algorithm::Td3 => ActionKind::Discrete(choices),
            _ => return refuse("numbers, choices: expected one of the two above 0, numbers for 'td3'".to_owned()),
        };
        let mut widths = hidden.iter().copied().chain([obs_dim, numbers.max(choices)]);
        if widths.any(|width| !(1..=MAX_WIDTH).contains(&width)) {
            return refuse(format!("obs_dim, hidden, numbers, choices: expected widths of 1 to {MAX_WIDTH}"));
        }
        if !(1..=MAX_CRITICS).contains(&critics) {
            return refuse(format!("critics: expected 1 to {MAX_CRITICS}, got {critics}"));
        }
        let shape = Shape { algorithm, obs: obs_dim, actions, hidden, critics };
        Ok(Self { gradients: Mutex::new(None), shape })
    }

    #[getter]
    fn num_parameters(&self) -> (usize, usize, usize) {
        self.shape.num_parameters()
    }

    #[pyo3(signature = (
        critics, gradient, td_errors, obs, next_obs, actions, rewards, discounts, *, asked, policy=None, targets=None,
        value=None, next_masks=None, next_noise=None, weight=1.0, temperature=0.0, target_noise=0.0,
        target_noise_clip=0.0,
    ))]
    #[expect(clippy::too_many_arguments, reason = "the arrays and settings of a loss")]
    fn critic_loss(
        &self,
        py: Python<'_>,
        critics: &Bound<'_, PyAny>,
        gradient: &Bound<'_, PyAny>,
        td_errors: &Bound<'_, PyAny>,
        obs: &Bound<'_, PyAny>,
        next_obs: &Bound<'_, PyAny>,
        actions: &Bound<'_, PyAny>,
        rewards: &Bound<'_, PyAny>,
        discounts: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = list)] asked: Vec<usize>,
        policy: Option<&Bound<'_, PyAny>>,
        targets: Option<&Bound<'_, PyAny>>,
        value: Option<&Bound<'_, PyAny>>,
        next_masks: Option<&Bound<'_, PyAny>>,
        next_noise: Option<&Bound<'_, PyAny>>,
        weight: f32,
        temperature: f32,
        target_noise: f32,
        target_noise_clip: f32,
    ) -> PyResult<(f64, f64)> {
        let Shape { algorithm, obs: width, actions: kind, critics: count, .. } = self.shape;
        let (of_policy, of_critics, of_value) = self.shape.num_parameters();
        let (size, is_iql) = (rows_of(rewards), algorithm == Algorithm::Iql);
        if !is_iql && (asked.is_empty() || asked.len() > count || asked.iter().any(|&index| index >= count)) {
            return Err(PyValueError::new_err(format!(
                "asked: expected numbers of critics from 0 to {}, got {asked:?}",
                count - 1
            )));
        }
        let critics = readable::<f32>("critics", critics, &[of_critics])?;
        let gradient = writeable::<f32>("gradient", gradient, &[of_critics])?;
        let td_errors = writeable::<f32>("td_errors", td_errors, &[size])?;
        let obs = readable::<f32>("obs", obs, &[size, width])?;
        let next_obs = readable::<f32>("next_obs", next_obs, &[size, width])?;
        let taken = Taken::new(Some(actions), kind, size, true)?;
        let rewards = readable::<f32>("rewards", rewards, &[size])?;
        let discounts = readable::<f32>("discounts", discounts, &[size])?;
        let policy = needed::<f32>("policy", policy, &[of_policy], !is_iql)?;
        let targets = needed::<f32>("targets", targets, &[of_critics], !is_iql)?;
        let value = needed::<f32>("value", value, &[of_value], is_iql)?;
        let (numbers, choices) = (kind.numbers(), kind.choices());
        let next_noise = needed::<f32>("next_noise", next_noise, &[size, numbers], !is_iql && numbers > 0)?;
        let has_masks = next_masks.is_some() && choices > 0;
        let next_masks = needed::<Flag>("next_masks", next_masks, &[size, choices], has_masks)?;
        let read = [
            Some(critics.place()),
            Some(obs.place()),
            Some(next_obs.place()),
            Some(rewards.place()),
            Some(discounts.place()),
            place(&taken.numbers),
            place(&taken.choices),
            place(&policy),
            place(&targets),
            place(&value),
            place(&next_noise),
            place(&next_masks),
        ];
        apart(&[gradient.place(), td_errors.place()], read)?;
        // SAFETY: checked, what is written apart from all else, and the caller's for the length of this call.
        let (parameters, batch, gradient, td_errors) = unsafe {
            let batch = Batch {
                obs: obs.slice(),
                next_obs: next_obs.slice(),
                actions: taken.actions(kind)?,
                rewards: rewards.slice(),
                discounts: discounts.slice(),
                masks: None,
                next_masks: next_masks.as_ref().map(|masks| masks.bytes()),
                noise: &[],
                next_noise: slice(&next_noise),
            };
            let parameters = Parameters {
                policy: slice(&policy),
                critics: critics.slice(),
                targets: slice(&targets),
                value: slice(&value),
            };
            (parameters, batch, gradient.slice_mut(), td_errors.slice_mut())
        };
        let settings = Settings { temperature, target_noise, target_noise_clip, ..Settings::with_weight(weight) };
        let found = self.detached(py, |gradients| {
            gradients.critic_loss(parameters, &batch, &settings, &asked, gradient, td_errors)
        });
        Ok((found.loss, found.q))
    }

    #[pyo3(signature = (
        policy, gradient, obs, *, actions=None, critics=None, targets=None, value=None, value_gradient=None, masks=None,
        noise=None, weight=1.0, temperature=0.0, mean_value=false, expectile=0.5, beta=0.0, max_weight=1.0,
    ))]
    #[expect(clippy::too_many_arguments, reason = "as above")]
    fn policy_loss(
        &self,
        py: Python<'_>,
        policy: &Bound<'_, PyAny>,
        gradient: &Bound<'_, PyAny>,
        obs: &Bound<'_, PyAny>,
        actions: Option<&Bound<'_, PyAny>>,
        critics: Option<&Bound<'_, PyAny>>,
        targets: Option<&Bound<'_, PyAny>>,
        value: Option<&Bound<'_, PyAny>>,
        value_gradient: Option<&Bound<'_, PyAny>>,
        masks: Option<&Bound<'_, PyAny>>,
        noise: Option<&Bound<'_, PyAny>>,
        weight: f32,
        temperature: f32,
        mean_value: bool,
        expectile: f32,
        beta: f32,
        max_weight: f32,
    ) -> PyResult<(f64, f64, f64, f64, f64)> {
        let Shape { algorithm, obs: width, actions: kind, .. } = self.shape;
        let (of_policy, of_critics, of_value) = self.shape.num_parameters();
        let (size, is_iql) = (rows_of(obs), algorithm == Algorithm::Iql);
        let policy = readable::<f32>("policy", policy, &[of_policy])?;
        let gradient = writeable::<f32>("gradient", gradient, &[of_policy])?;
        let obs = readable::<f32>("obs", obs, &[size, width])?;
        let taken = Taken::new(actions, kind, size, is_iql)?;
        let critics = needed::<f32>("critics", critics, &[of_critics], !is_iql)?;
        let targets = needed::<f32>("targets", targets, &[of_critics], is_iql)?;
        let value = needed::<f32>("value", value, &[of_value], is_iql)?;
        let value_gradient = match value_gradient {
            Some(array) if is_iql => Some(writeable::<f32>("value_gradient", array, &[of_value])?),
            None if is_iql => return Err(PyValueError::new_err("value_gradient: expected an array, got None")),
            _ => None,
        };
        let (numbers, choices) = (kind.numbers(), kind.choices());
        let draws = algorithm == Algorithm::Sac && numbers > 0;
        let noise = needed::<f32>("noise", noise, &[size, numbers], draws)?;
        let has_masks = masks.is_some() && choices > 0;
        let masks = needed::<Flag>("masks", masks, &[size, choices], has_masks)?;
        let written: Vec<_> = [Some(gradient.place()), place(&value_gradient)].into_iter().flatten().collect();
        let read = [
            Some(policy.place()),
            Some(obs.place()),
            place(&taken.numbers),
            place(&taken.choices),
            place(&critics),
            place(&targets),
            place(&value),
            place(&noise),
            place(&masks),
        ];
        apart(&written, read)?;
        // SAFETY: checked, what is written apart from all else, and the caller's for the length of this call.
        let (parameters, batch, gradient, value_gradient) = unsafe {
            let batch = Batch {
                obs: obs.slice(),
                next_obs: &[],
                actions: taken.actions(kind)?,
                rewards: &[],
                discounts: &[],
                masks: masks.as_ref().map(|masks| masks.bytes()),
                next_masks: None,
                noise: slice(&noise),
                next_noise: &[],
            };
            let parameters = Parameters {
                policy: policy.slice(),
                critics: slice(&critics),
                targets: slice(&targets),
                value: slice(&value),
            };
            let value_gradient = value_gradient.as_ref().map_or(&mut [][..], |array| array.slice_mut());
            (parameters, batch, gradient.slice_mut(), value_gradient)
        };
        let settings =
            Settings { temperature, mean_value, expectile, beta, max_weight, ..Settings::with_weight(weight) };
        let found = self
            .detached(py, |gradients| gradients.policy_loss(parameters, &batch, &settings, gradient, value_gradient));
        Ok((found.policy_loss, found.entropy, found.value_loss, found.value, found.imitation_weight))
    }
}
