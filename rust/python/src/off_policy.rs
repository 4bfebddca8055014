//! Gradient steps of SAC, TD3 and IQL, for Python.

use std::sync::{Mutex, PoisonError};

use fastrl_binding::arrays::{Array, Element, Flag, disjoint, list, readable, writeable};
use fastrl_core::learn::off_policy::{
    ActionKind, Actions, Algorithm, Batch, Learned, Parameters, Settings, Shape, Steps,
};
use fastrl_core::streams;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::ppo_update::{MAX_WIDTH, Place, precision, rows_of};

/// The most critics.
const MAX_CRITICS: usize = 1 << 10;

/// Numbers of [`fastrl_core::learn::off_policy::Losses::critics`].
const CRITIC_LOSSES: usize = 3;

#[pyclass(frozen, module = "fastrl._native._rust")]
pub(crate) struct OffPolicySteps {
    shape: Shape,
    settings: Settings,
    /// Made for the first step: arrays that fit the shape say that there is memory for networks of that size.
    steps: Mutex<Option<Steps>>,
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

/// Rows of each of some minibatches that lie one after the other in so many rows.
///
/// `name`: of the argument that has an item for each.
pub(crate) fn rows_of_each(rows: usize, minibatches: usize, name: &str) -> PyResult<usize> {
    if minibatches == 0 || !rows.is_multiple_of(minibatches) {
        return Err(PyValueError::new_err(format!(
            "{name}: expected an item for each minibatch, and as many transitions in each, got {minibatches} items and \
             {rows} transitions"
        )));
    }
    Ok(rows / minibatches)
}

/// Actions of minibatches of either kind.
struct Taken<'a, 'py> {
    numbers: Maybe<'a, 'py, f32>,
    choices: Maybe<'a, 'py, i64>,
}

impl<'a, 'py> Taken<'a, 'py> {
    fn new(object: &'a Bound<'py, PyAny>, kind: ActionKind, size: usize) -> PyResult<Self> {
        Ok(match kind {
            ActionKind::Box(numbers) => {
                Self { numbers: Some(readable("actions", object, &[size, numbers])?), choices: None }
            }
            ActionKind::Discrete(_) => Self { numbers: None, choices: Some(readable("actions", object, &[size])?) },
        })
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

/// Parameters of an optimiser, Adam's moments, and the number of its steps.
pub(crate) struct Optimized<'a, 'py> {
    values: Array<'a, 'py, f32>,
    mean: Array<'a, 'py, f32>,
    square: Array<'a, 'py, f32>,
    steps: Array<'a, 'py, f32>,
}

impl<'a, 'py> Optimized<'a, 'py> {
    pub(crate) fn new(name: &'static str, arrays: &'a [Bound<'py, PyAny>; 4], size: usize) -> PyResult<Self> {
        let [values, mean, square, steps] = arrays;
        Ok(Self {
            values: writeable(name, values, &[size])?,
            mean: writeable(name, mean, &[size])?,
            square: writeable(name, square, &[size])?,
            steps: writeable(name, steps, &[])?,
        })
    }

    pub(crate) fn places(&self) -> [Place; 4] {
        [self.values.place(), self.mean.place(), self.square.place(), self.steps.place()]
    }

    /// # Safety
    /// As of `Array::slice_mut`.
    pub(crate) unsafe fn learned(&self) -> Learned<'a> {
        // SAFETY: the caller's promise.
        let [values, mean, square, steps] =
            unsafe { [&self.values, &self.mean, &self.square, &self.steps].map(|array| array.slice_mut()) };
        Learned { values, mean, square, steps: &mut steps[0] }
    }
}

#[pymethods]
impl OffPolicySteps {
    #[new]
    #[pyo3(signature = (
        algorithm, *, obs_dim, hidden, critics, numbers=0, choices=0, tau=0.005, has_temperature=true,
        target_entropy=None, entropy_backup=true, mean_value=false, target_noise=0.2, target_noise_clip=0.5,
        expectile=0.7, beta=3.0, max_weight=100.0, bf16=false, num_threads=1,
    ))]
    #[expect(clippy::too_many_arguments, reason = "the architecture and settings of losses")]
    fn new(
        algorithm: &str,
        obs_dim: usize,
        #[pyo3(from_py_with = list)] hidden: Vec<usize>,
        critics: usize,
        numbers: usize,
        choices: usize,
        tau: f32,
        has_temperature: bool,
        target_entropy: Option<f32>,
        entropy_backup: bool,
        mean_value: bool,
        target_noise: f32,
        target_noise_clip: f32,
        expectile: f32,
        beta: f32,
        max_weight: f32,
        bf16: bool,
        num_threads: usize,
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
        if target_noise_clip.is_nan() || target_noise_clip < 0.0 {
            return refuse(format!("target_noise_clip: expected a number from 0 on, got {target_noise_clip}"));
        }
        let settings = Settings {
            tau,
            has_temperature,
            target_entropy,
            entropy_backup,
            mean_value,
            target_noise,
            target_noise_clip,
            expectile,
            beta,
            max_weight,
            threads: num_threads,
        };
        let shape = Shape { algorithm, obs: obs_dim, actions, hidden, critics, precision: precision(bf16) };
        Ok(Self { shape, settings, steps: Mutex::new(None) })
    }

    #[getter]
    fn num_parameters(&self) -> (usize, usize) {
        (self.shape.critic_parameters(), self.shape.policy_parameters())
    }

    #[pyo3(signature = (
        critics, policy, targets, sums, td_errors, obs, next_obs, actions, rewards, discounts, *, learning_rate,
        learns_policy, target_critics, target_policy=None, masks=None, next_masks=None, noise=None, next_noise=None,
        number=0,
    ))]
    #[expect(clippy::too_many_arguments, reason = "the arrays of a gradient step")]
    fn step(
        &self,
        py: Python<'_>,
        critics: [Bound<'_, PyAny>; 4],
        policy: [Bound<'_, PyAny>; 4],
        targets: &Bound<'_, PyAny>,
        sums: &Bound<'_, PyAny>,
        td_errors: &Bound<'_, PyAny>,
        obs: &Bound<'_, PyAny>,
        next_obs: &Bound<'_, PyAny>,
        actions: &Bound<'_, PyAny>,
        rewards: &Bound<'_, PyAny>,
        discounts: &Bound<'_, PyAny>,
        learning_rate: f64,
        #[pyo3(from_py_with = list)] learns_policy: Vec<bool>,
        #[pyo3(from_py_with = list)] target_critics: Vec<usize>,
        target_policy: Option<&Bound<'_, PyAny>>,
        masks: Option<&Bound<'_, PyAny>>,
        next_masks: Option<&Bound<'_, PyAny>>,
        noise: Option<u64>,
        next_noise: Option<u64>,
        number: i64,
    ) -> PyResult<()> {
        let refuse = |message: String| Err(PyValueError::new_err(message));
        let Shape { algorithm, obs: width, actions: kind, critics: count, .. } = self.shape;
        let (of_critics, of_target) = (self.shape.critic_parameters(), self.shape.target_policy_parameters());
        let (size, is_iql) = (rows_of(rewards), algorithm == Algorithm::Iql);
        let (numbers, choices) = (kind.numbers(), kind.choices());
        let minibatches = learns_policy.len();
        if size == 0 {
            return refuse("rewards: expected those of a transition at least, got none".to_owned());
        }
        let rows = rows_of_each(size, minibatches, "learns_policy")?;
        let asked = target_critics.len() / minibatches;
        let no_target = asked == 0 || asked > count || asked * minibatches != target_critics.len();
        if !is_iql && (no_target || target_critics.iter().any(|&index| index >= count)) {
            return refuse(format!(
                "target_critics: expected numbers of critics from 0 to {}, as many for each minibatch, got \
                 {target_critics:?}",
                count - 1
            ));
        }
        let critics = Optimized::new("critics", &critics, of_critics)?;
        let policy = Optimized::new("policy", &policy, self.shape.policy_parameters())?;
        let targets = writeable::<f32>("targets", targets, &[of_critics])?;
        let target_policy = match target_policy {
            _ if of_target == 0 => None,
            Some(array) => Some(writeable::<f32>("target_policy", array, &[of_target])?),
            None => return refuse("target_policy: expected an array, got None".to_owned()),
        };
        let sums = writeable::<f32>("sums", sums, &[CRITIC_LOSSES + self.shape.policy_losses()])?;
        let td_errors = writeable::<f32>("td_errors", td_errors, &[size])?;
        let obs = readable::<f32>("obs", obs, &[size, width])?;
        let next_obs = readable::<f32>("next_obs", next_obs, &[size, width])?;
        let taken = Taken::new(actions, kind, size)?;
        let rewards = readable::<f32>("rewards", rewards, &[size])?;
        let discounts = readable::<f32>("discounts", discounts, &[size])?;
        let stream = |name: &str, stream: Option<u64>, is_needed| match stream {
            None if is_needed => Err(PyValueError::new_err(format!("{name}: expected a stream, got None"))),
            given => Ok(given.filter(|_| is_needed)),
        };
        let draws = algorithm == Algorithm::Sac && numbers > 0 && learns_policy.contains(&true);
        let noise = stream("noise", noise, draws)?;
        let next_noise = stream("next_noise", next_noise, !is_iql && numbers > 0)?;
        let has_masks = |masks: &Option<_>| masks.is_some() && choices > 0;
        let masks = needed::<Flag>("masks", masks, &[size, choices], has_masks(&masks))?;
        let next_masks = needed::<Flag>("next_masks", next_masks, &[size, choices], has_masks(&next_masks))?;
        let mut written = [critics.places(), policy.places()].concat();
        written.extend([targets.place(), sums.place(), td_errors.place()]);
        written.extend(place(&target_policy));
        let read = [
            Some(obs.place()),
            Some(next_obs.place()),
            Some(rewards.place()),
            Some(discounts.place()),
            place(&taken.numbers),
            place(&taken.choices),
            place(&masks),
            place(&next_masks),
        ];
        apart(&written, read)?;
        // SAFETY: checked, what is written apart from all else, and the caller's for the length of this call.
        let (mut parameters, batch, sums, td_errors) = unsafe {
            let batch = Batch {
                obs: obs.slice(),
                next_obs: next_obs.slice(),
                actions: taken.actions(kind)?,
                rewards: rewards.slice(),
                discounts: discounts.slice(),
                masks: masks.as_ref().map(|masks| masks.bytes()),
                next_masks: next_masks.as_ref().map(|masks| masks.bytes()),
                noise: &[],
                next_noise: &[],
                target_critics: &target_critics,
            };
            let parameters = Parameters {
                critics: critics.learned(),
                policy: policy.learned(),
                targets: targets.slice_mut(),
                target_policy: target_policy.as_ref().map_or(&mut [][..], |array| array.slice_mut()),
            };
            (parameters, batch, sums.slice_mut(), td_errors.slice_mut())
        };
        py.detach(|| {
            let mut steps = self.steps.lock().unwrap_or_else(PoisonError::into_inner);
            let steps = steps.get_or_insert_with(|| Steps::new(self.shape.clone(), self.settings));
            let all = learns_policy.iter().zip(td_errors.chunks_exact_mut(rows)).enumerate();
            for (i, (&learns_policy, td_errors)) in all {
                let drawn = |stream: Option<u64>| {
                    stream
                        .map_or(vec![], |stream| streams::noise(stream, number.wrapping_add(i as i64), rows * numbers))
                };
                let (noise, next_noise) = (drawn(noise.filter(|_| learns_policy)), drawn(next_noise));
                let batch = Batch {
                    noise: &noise,
                    next_noise: &next_noise,
                    target_critics: &target_critics[i * asked..][..asked],
                    ..batch.part(&self.shape, i * rows..(i + 1) * rows)
                };
                let losses = steps.step(&mut parameters, &batch, learns_policy, learning_rate, i > 0, td_errors);
                let means = losses.critics.iter().chain(&losses.policy);
                sums.iter_mut().zip(means).for_each(|(sum, &mean)| *sum += mean as f32);
            }
        });
        Ok(())
    }
}
