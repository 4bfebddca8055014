//! Gradient steps of deep Q-learning, for Python.

use std::sync::{Mutex, PoisonError};

use fastrl_binding::arrays::{Flag, list, readable, writeable};
use fastrl_core::learn::q_learning::{QSteps as Steps, Settings, Shape, Step, Transitions};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::off_policy::{Optimized, apart, check_choices, rows_of_each};
use crate::ppo_update::{MAX_WIDTH, precision, rows_of};

#[pyclass(frozen, module = "fastrl._native._rust")]
pub(crate) struct QSteps {
    shape: Shape,
    threads: usize,
    /// Made at the first call: arrays that fit the shape say that there is memory for networks of that size.
    steps: Mutex<Option<Steps>>,
}

#[pymethods]
impl QSteps {
    #[new]
    #[pyo3(signature = (*, obs_dim, hidden, actions, dueling=false, bf16=false, num_threads=1))]
    fn new(
        obs_dim: usize,
        #[pyo3(from_py_with = list)] hidden: Vec<usize>,
        actions: usize,
        dueling: bool,
        bf16: bool,
        num_threads: usize,
    ) -> PyResult<Self> {
        let mut widths = hidden.iter().copied().chain([obs_dim, actions]);
        if widths.any(|width| !(1..=MAX_WIDTH).contains(&width)) {
            return Err(PyValueError::new_err(format!(
                "obs_dim, hidden, actions: expected widths of 1 to {MAX_WIDTH}"
            )));
        }
        let shape = Shape { obs: obs_dim, hidden, actions, dueling, precision: precision(bf16) };
        Ok(Self { shape, threads: num_threads, steps: Mutex::new(None) })
    }

    #[getter]
    fn num_parameters(&self) -> usize {
        self.shape.num_parameters()
    }

    #[pyo3(signature = (
        online, target, gradient, sums, td_errors, obs, next_obs, actions, rewards, discounts, weights, *, double, huber,
        learning_rate, epsilon, steps, taus, max_grad_norm=None, next_masks=None, demonstrations=0, margin=0.0,
        margin_coef=0.0, weight=1.0,
    ))]
    #[expect(clippy::too_many_arguments, reason = "the arrays and settings of a loss")]
    fn step(
        &self,
        py: Python<'_>,
        online: [Bound<'_, PyAny>; 4],
        target: &Bound<'_, PyAny>,
        gradient: &Bound<'_, PyAny>,
        sums: &Bound<'_, PyAny>,
        td_errors: &Bound<'_, PyAny>,
        obs: &Bound<'_, PyAny>,
        next_obs: &Bound<'_, PyAny>,
        actions: &Bound<'_, PyAny>,
        rewards: &Bound<'_, PyAny>,
        discounts: &Bound<'_, PyAny>,
        weights: &Bound<'_, PyAny>,
        double: bool,
        huber: f32,
        learning_rate: f64,
        epsilon: f32,
        #[pyo3(from_py_with = list)] steps: Vec<bool>,
        #[pyo3(from_py_with = list)] taus: Vec<Option<f32>>,
        max_grad_norm: Option<f64>,
        next_masks: Option<&Bound<'_, PyAny>>,
        demonstrations: usize,
        margin: f32,
        margin_coef: f32,
        weight: f32,
    ) -> PyResult<()> {
        let refuse = |message: String| Err(PyValueError::new_err(message));
        let (size, parameters) = (rows_of(rewards), self.shape.num_parameters());
        let (width, choices) = (self.shape.obs, self.shape.actions);
        if huber.is_nan() || huber <= 0.0 {
            return refuse(format!("huber: expected a number above 0, got {huber}"));
        }
        if size == 0 {
            return refuse("rewards: expected those of a transition at least, got none".to_owned());
        }
        let rows = rows_of_each(size, steps.len(), "steps")?;
        if taus.len() != steps.len() {
            return refuse(format!("taus: expected as many as steps, {}, got {}", steps.len(), taus.len()));
        }
        let most = if steps.len() == 1 { size } else { 0 };
        if demonstrations > most {
            return refuse(format!("demonstrations: expected 0 to {most}, got {demonstrations}"));
        }
        let online = Optimized::new("online", &online, parameters)?;
        let target = writeable::<f32>("target", target, &[parameters])?;
        let gradient = writeable::<f32>("gradient", gradient, &[parameters])?;
        let sums = writeable::<f32>("sums", sums, &[4])?;
        let td_errors = writeable::<f32>("td_errors", td_errors, &[size])?;
        let obs = readable::<f32>("obs", obs, &[size, width])?;
        let next_obs = readable::<f32>("next_obs", next_obs, &[size, width])?;
        let actions = readable::<i64>("actions", actions, &[size])?;
        let rewards = readable::<f32>("rewards", rewards, &[size])?;
        let discounts = readable::<f32>("discounts", discounts, &[size])?;
        let weights = readable::<f32>("weights", weights, &[size])?;
        let next_masks = next_masks.map(|masks| readable::<Flag>("next_masks", masks, &[size, choices])).transpose()?;
        let read = [
            Some(obs.place()),
            Some(next_obs.place()),
            Some(actions.place()),
            Some(rewards.place()),
            Some(discounts.place()),
            Some(weights.place()),
            next_masks.as_ref().map(|masks| masks.place()),
        ];
        let others = [target.place(), gradient.place(), sums.place(), td_errors.place()];
        apart(&[&online.places()[..], &others].concat(), read)?;
        // SAFETY: checked, what is written apart from all else, and the caller's for the length of this call.
        let (mut online, target, batch, gradient, sums, td_errors) = unsafe {
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
            let (target, gradient) = (target.slice_mut(), gradient.slice_mut());
            (online.learned(), target, batch, gradient, sums.slice_mut(), td_errors.slice_mut())
        };
        check_choices(batch.actions, choices)?;
        let settings = Settings { weight, double, huber, margin, margin_coef, threads: self.threads };
        py.detach(|| {
            let mut learner = self.steps.lock().unwrap_or_else(PoisonError::into_inner);
            let learner = learner.get_or_insert_with(|| Steps::new(self.shape.clone()));
            let all = steps.iter().zip(&taus).zip(td_errors.chunks_exact_mut(rows)).enumerate();
            for (i, ((&steps, &tau), td_errors)) in all {
                let batch = Transitions { demonstrations, ..batch.part(&self.shape, i * rows..(i + 1) * rows) };
                let step = steps.then_some(Step { learning_rate, epsilon, max_grad_norm, tau });
                let losses = learner.step(&mut online, target, gradient, &batch, &settings, step, td_errors);
                let means = [losses.loss, losses.q, losses.td_error, losses.grad_norm];
                sums.iter_mut().zip(means).for_each(|(sum, mean)| *sum += mean as f32);
            }
        });
        Ok(())
    }
}
