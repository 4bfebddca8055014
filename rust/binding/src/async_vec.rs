//! Asynchronous stepping of environments for Python.

use std::time::Duration;

use fastrl_core::async_vec::{AsyncEnvs, AsyncVec as Core, Received};
use fastrl_core::env::{ActionKind, Actions, Env};
use pyo3::prelude::*;

use crate::arrays::{Flag, disjoint, readable, writeable};
use crate::errors::from_async_vec;
use crate::guard::Guard;
use crate::timeout::Timeout;

/// Environments that are stepped as their actions come: what `asynchronous` of a vector class returns.
#[pyclass(frozen, module = "fastrl._native._rust")]
pub struct AsyncVec {
    inner: Guard<Box<dyn AsyncEnvs>>,
    num_envs: usize,
    obs_len: usize,
    mask_len: usize,
    num_infos: usize,
    action_kind: ActionKind,
}

/// Length of the first axis of an array; 0 if it has none.
fn length(array: &Bound<'_, PyAny>) -> usize {
    array.len().unwrap_or(0)
}

impl AsyncVec {
    pub(crate) fn over<W: Env + 'static>(
        py: Python<'_>,
        envs: Vec<W>,
        seed: u64,
        same_step: bool,
        threads: usize,
        info_keys: Vec<String>,
    ) -> PyResult<Self> {
        let num_infos = info_keys.len();
        let inner = Core::new(envs, seed, same_step, threads, info_keys).map_err(|e| from_async_vec(py, e))?;
        let (num_envs, obs_len, mask_len) = (inner.num_envs(), inner.obs_len(), inner.mask_len());
        let action_kind = inner.action_kind();
        Ok(Self { inner: Guard::new(Box::new(inner)), num_envs, obs_len, mask_len, num_infos, action_kind })
    }
}

#[pymethods]
impl AsyncVec {
    #[getter]
    fn num_envs(&self) -> usize {
        self.num_envs
    }

    #[getter]
    fn obs_dim(&self) -> usize {
        self.obs_len
    }

    #[getter]
    fn in_flight(&self, py: Python<'_>) -> PyResult<usize> {
        self.inner.with(py, |envs| Ok(envs.in_flight()))
    }

    #[getter]
    fn busy_seconds(&self, py: Python<'_>) -> PyResult<f64> {
        self.inner.with(py, |envs| Ok(envs.busy().as_secs_f64()))
    }

    fn reset(
        &self,
        py: Python<'_>,
        env_ids: &Bound<'_, PyAny>,
        env_indices: &Bound<'_, PyAny>,
        numbers: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let count = length(env_ids);
        let ids = readable::<i64>("env_ids", env_ids, &[count])?;
        let env_indices = readable::<u64>("env_indices", env_indices, &[count])?;
        let numbers = readable::<u64>("numbers", numbers, &[count])?;
        // SAFETY: checked, only read, and the caller's for the length of this call.
        let (ids, env_indices, numbers) = unsafe { (ids.slice(), env_indices.slice(), numbers.slice()) };
        self.inner.with(py, |envs| envs.reset(ids, env_indices, numbers).map_err(|e| from_async_vec(py, e)))
    }

    fn action_masks(&self, py: Python<'_>, env_ids: &Bound<'_, PyAny>, out: &Bound<'_, PyAny>) -> PyResult<()> {
        let count = length(env_ids);
        let ids = readable::<i64>("env_ids", env_ids, &[count])?;
        let out = writeable::<Flag>("out", out, &[count, self.mask_len])?;
        disjoint(&[ids.place(), out.place()])?;
        // SAFETY: checked, disjoint, and the caller's for the length of this call.
        let (ids, out) = unsafe { (ids.slice(), out.bytes_mut()) };
        self.inner.with(py, |envs| envs.action_masks(ids, out).map_err(|e| from_async_vec(py, e)))
    }

    fn send(&self, py: Python<'_>, env_ids: &Bound<'_, PyAny>, actions: &Bound<'_, PyAny>) -> PyResult<()> {
        let count = length(env_ids);
        let ids = readable::<i64>("env_ids", env_ids, &[count])?;
        let actions = match self.action_kind {
            ActionKind::Discrete => {
                let actions = readable::<i64>("actions", actions, &[count])?;
                // SAFETY: `readable` has checked it, it is only read, and the caller leaves it alone during this call.
                Actions::Discrete(unsafe { actions.slice() })
            }
            ActionKind::Box(len) => {
                let actions = readable::<f32>("actions", actions, &[count, len])?;
                // SAFETY: `readable` has checked it, it is only read, and the caller leaves it alone during this call.
                Actions::Box(unsafe { actions.slice() })
            }
        };
        // SAFETY: `readable` has checked it, it is only read, and the caller leaves it alone during this call.
        let ids = unsafe { ids.slice() };
        self.inner.with(py, |envs| envs.send(ids, actions).map_err(|e| from_async_vec(py, e)))
    }

    #[pyo3(signature = (env_ids, obs, rewards, terminations, truncations, final_obs, final_masks, episode_info, timeout=None))]
    #[expect(clippy::too_many_arguments, reason = "the arrays of a step")]
    fn recv(
        &self,
        py: Python<'_>,
        env_ids: &Bound<'_, PyAny>,
        obs: &Bound<'_, PyAny>,
        rewards: &Bound<'_, PyAny>,
        terminations: &Bound<'_, PyAny>,
        truncations: &Bound<'_, PyAny>,
        final_obs: &Bound<'_, PyAny>,
        final_masks: &Bound<'_, PyAny>,
        episode_info: &Bound<'_, PyAny>,
        timeout: Option<f64>,
    ) -> PyResult<bool> {
        let count = length(env_ids);
        let ids = writeable::<i64>("env_ids", env_ids, &[count])?;
        let obs = writeable::<f32>("obs", obs, &[count, self.obs_len])?;
        let rewards = writeable::<f32>("rewards", rewards, &[count])?;
        let terminations = writeable::<Flag>("terminations", terminations, &[count])?;
        let truncations = writeable::<Flag>("truncations", truncations, &[count])?;
        let final_obs = writeable::<f32>("final_obs", final_obs, &[count, self.obs_len])?;
        let final_masks = writeable::<Flag>("final_masks", final_masks, &[count, self.mask_len])?;
        let episode_info = writeable::<f64>("episode_info", episode_info, &[count, self.num_infos])?;
        disjoint(&[
            ids.place(),
            obs.place(),
            rewards.place(),
            terminations.place(),
            truncations.place(),
            final_obs.place(),
            final_masks.place(),
            episode_info.place(),
        ])?;
        // SAFETY: checked, disjoint, and the caller's for the length of this call.
        let mut rows = unsafe {
            Received {
                ids: ids.slice_mut(),
                obs: obs.slice_mut(),
                rewards: rewards.slice_mut(),
                terminated: terminations.bytes_mut(),
                truncated: truncations.bytes_mut(),
                final_obs: final_obs.slice_mut(),
                final_masks: final_masks.bytes_mut(),
                episode_info: episode_info.slice_mut(),
            }
        };
        let mut timeout = Timeout::new(timeout)?;
        self.inner.with(py, |envs| {
            let mut received = envs.recv(&mut rows, Duration::ZERO).map_err(|e| from_async_vec(py, e))?;
            while !received {
                let in_time = timeout.wait(
                    py,
                    |e| from_async_vec(py, e),
                    |slice| {
                        received = envs.recv(&mut rows, slice)?;
                        Ok(received)
                    },
                )?;
                if !in_time {
                    return Ok(false);
                }
            }
            Ok(true)
        })
    }

    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.inner.close(py)
    }
}
