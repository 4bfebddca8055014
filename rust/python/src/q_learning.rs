//! Gradient of the loss of deep Q-learning, for Python.

use std::sync::{Mutex, PoisonError};

use fastrl_binding::arrays::{Flag, list, readable, writeable};
use fastrl_core::learn::q_learning::{QGradient as Gradient, Settings, Shape, Transitions};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::off_policy::{apart, check_choices};
use crate::ppo_update::{MAX_WIDTH, rows_of};

#[pyclass(frozen, module = "fastrl._native._rust")]
pub(crate) struct QGradient {
    shape: Shape,
    /// Made at the first call: arrays that fit the shape say that there is memory for networks of that size.
    gradient: Mutex<Option<Gradient>>,
}

#[pymethods]
impl QGradient {
    #[new]
    #[pyo3(signature = (*, obs_dim, hidden, actions, dueling=false))]
    fn new(
        obs_dim: usize,
        #[pyo3(from_py_with = list)] hidden: Vec<usize>,
        actions: usize,
        dueling: bool,
    ) -> PyResult<Self> {
        let mut widths = hidden.iter().copied().chain([obs_dim, actions]);
        if widths.any(|width| !(1..=MAX_WIDTH).contains(&width)) {
            return Err(PyValueError::new_err(format!(
                "obs_dim, hidden, actions: expected widths of 1 to {MAX_WIDTH}"
            )));
        }
        Ok(Self { shape: Shape { obs: obs_dim, hidden, actions, dueling }, gradient: Mutex::new(None) })
    }

    #[getter]
    fn num_parameters(&self) -> usize {
        self.shape.num_parameters()
    }

    #[pyo3(signature = (
        online, target, gradient, td_errors, obs, next_obs, actions, rewards, discounts, weights, *, double, huber,
        next_masks=None, demonstrations=0, margin=0.0, margin_coef=0.0, weight=1.0,
    ))]
    #[expect(clippy::too_many_arguments, reason = "the arrays and settings of a loss")]
    fn compute(
        &self,
        py: Python<'_>,
        online: &Bound<'_, PyAny>,
        target: &Bound<'_, PyAny>,
        gradient: &Bound<'_, PyAny>,
        td_errors: &Bound<'_, PyAny>,
        obs: &Bound<'_, PyAny>,
        next_obs: &Bound<'_, PyAny>,
        actions: &Bound<'_, PyAny>,
        rewards: &Bound<'_, PyAny>,
        discounts: &Bound<'_, PyAny>,
        weights: &Bound<'_, PyAny>,
        double: bool,
        huber: f32,
        next_masks: Option<&Bound<'_, PyAny>>,
        demonstrations: usize,
        margin: f32,
        margin_coef: f32,
        weight: f32,
    ) -> PyResult<(f64, f64)> {
        let refuse = |message: String| Err(PyValueError::new_err(message));
        let (size, parameters) = (rows_of(rewards), self.shape.num_parameters());
        let (width, choices) = (self.shape.obs, self.shape.actions);
        if demonstrations > size {
            return refuse(format!("demonstrations: expected 0 to {size}, got {demonstrations}"));
        }
        if huber.is_nan() || huber <= 0.0 {
            return refuse(format!("huber: expected a number above 0, got {huber}"));
        }
        let online = readable::<f32>("online", online, &[parameters])?;
        let target = readable::<f32>("target", target, &[parameters])?;
        let gradient = writeable::<f32>("gradient", gradient, &[parameters])?;
        let td_errors = writeable::<f32>("td_errors", td_errors, &[size])?;
        let obs = readable::<f32>("obs", obs, &[size, width])?;
        let next_obs = readable::<f32>("next_obs", next_obs, &[size, width])?;
        let actions = readable::<i64>("actions", actions, &[size])?;
        let rewards = readable::<f32>("rewards", rewards, &[size])?;
        let discounts = readable::<f32>("discounts", discounts, &[size])?;
        let weights = readable::<f32>("weights", weights, &[size])?;
        let next_masks = next_masks.map(|masks| readable::<Flag>("next_masks", masks, &[size, choices])).transpose()?;
        let read = [
            Some(online.place()),
            Some(target.place()),
            Some(obs.place()),
            Some(next_obs.place()),
            Some(actions.place()),
            Some(rewards.place()),
            Some(discounts.place()),
            Some(weights.place()),
            next_masks.as_ref().map(|masks| masks.place()),
        ];
        apart(&[gradient.place(), td_errors.place()], read)?;
        // SAFETY: checked, what is written apart from all else, and the caller's for the length of this call.
        let (online, target, batch, gradient, td_errors) = unsafe {
            let batch = Transitions {
                obs: obs.slice(),
                next_obs: next_obs.slice(),
                actions: actions.slice(),
                rewards: rewards.slice(),
                discounts: discounts.slice(),
                weights: weights.slice(),
                next_masks: next_masks.as_ref().map(|masks| masks.bytes()),
                demonstrations,
            };
            (online.slice(), target.slice(), batch, gradient.slice_mut(), td_errors.slice_mut())
        };
        check_choices(batch.actions, choices)?;
        let settings = Settings { weight, double, huber, margin, margin_coef };
        let found = py.detach(|| {
            let mut found = self.gradient.lock().unwrap_or_else(PoisonError::into_inner);
            found
                .get_or_insert_with(|| Gradient::new(self.shape.clone()))
                .compute(online, target, &batch, &settings, gradient, td_errors)
        });
        Ok((found.loss, found.q))
    }
}
