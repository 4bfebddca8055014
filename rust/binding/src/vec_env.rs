//! The vector environment that the bindings of every simulator share, and its Python methods.

use std::ops::Range;

use fastrl_core::async_vec::NO_MASKS;
use fastrl_core::env::{ActionKind, Actions, Env};
use fastrl_core::vec_env::{Autoreset, Error, Rows, VecEnv};
use pyo3::exceptions::{PyIndexError, PyTypeError, PyValueError};
use pyo3::prelude::*;

use crate::arrays::{Flag, disjoint, is_of, readable, writeable};
use crate::async_vec::AsyncVec;
use crate::errors::from_vec_env;
use crate::guard::Guard;

const MOST_ENVS: usize = 1 << 24;
const MOST_THREADS: usize = 1024;

fn check_count(name: &str, count: usize, least: usize, most: usize) -> PyResult<()> {
    if (least..=most).contains(&count) {
        return Ok(());
    }
    let all_cores = if least == 0 { " (all cores)" } else { "" };
    Err(PyValueError::new_err(format!("{name}: expected {least}{all_cores} to {most}, got {count}")))
}

/// The vector environment of a binding, with the shapes of its arrays.
pub struct VecBinding<W: Env> {
    inner: Guard<VecEnv<W>>,
    num_envs: usize,
    num_agents: usize,
    obs_len: usize,
    mask_len: usize,
    action_kind: ActionKind,
    autoreset: Autoreset,
}

/// The mode that Python calls `name`. ValueError: there is none.
pub fn autoreset_from_name(name: &str) -> PyResult<Autoreset> {
    match name {
        "next_step" => Ok(Autoreset::NextStep),
        "same_step" => Ok(Autoreset::SameStep),
        "disabled" => Ok(Autoreset::Disabled),
        _ => Err(PyValueError::new_err(format!(
            "autoreset_mode: expected 'next_step', 'same_step' or 'disabled', got '{name}'"
        ))),
    }
}

impl<W: Env> VecBinding<W> {
    /// A binding of `num_envs` environments that `make` makes, with a thread for each core if `threads` is 0.
    /// ValueError: a number out of range. MemoryError: there is no room for the environments.
    pub fn new(
        py: Python<'_>,
        num_envs: usize,
        make: impl Fn() -> W,
        autoreset: Autoreset,
        threads: usize,
    ) -> PyResult<Self> {
        check_count("num_envs", num_envs, 1, MOST_ENVS)?;
        check_count("num_threads", threads, 0, MOST_THREADS)?;
        let venv = VecEnv::build(num_envs, make, autoreset, threads).map_err(|e| from_vec_env(py, e))?;
        let (action_kind, mask_len) = (venv.env(0).action_kind(), venv.env(0).mask_len());
        let (num_envs, num_agents, obs_len) = (venv.num_envs(), venv.num_agents(), venv.obs_len());
        Ok(Self { inner: Guard::new(venv), num_envs, num_agents, obs_len, mask_len, action_kind, autoreset })
    }

    /// Number of environments.
    pub fn num_envs(&self) -> usize {
        self.num_envs
    }

    /// Rows of one environment.
    pub fn num_agents(&self) -> usize {
        self.num_agents
    }

    /// Number of `f32` in the observation of one agent.
    pub fn obs_len(&self) -> usize {
        self.obs_len
    }

    /// The kind of actions.
    pub fn action_kind(&self) -> ActionKind {
        self.action_kind
    }

    /// See [`Env::mask_len`].
    pub fn mask_len(&self) -> usize {
        self.mask_len
    }

    /// Writes the action masks of all agents, [num_envs * num_agents, mask_len]. ValueError: there are none.
    pub fn action_masks(&self, py: Python<'_>, out: &Bound<'_, PyAny>) -> PyResult<()> {
        if self.mask_len == 0 {
            return Err(PyValueError::new_err(NO_MASKS));
        }
        let out = writeable::<Flag>("out", out, &[self.num_envs * self.num_agents, self.mask_len])?;
        // SAFETY: `writeable` has checked it, and it is the caller's for the length of this call.
        let out = unsafe { out.bytes_mut() };
        let len = self.num_agents * self.mask_len;
        self.with(py, |venv| {
            py.detach(move || {
                for (env, mask) in venv.envs().zip(out.chunks_exact_mut(len)) {
                    env.action_mask(mask);
                }
            });
            Ok(())
        })
    }

    /// Writes [`Env::episode_info`] of each environment, [num_envs].
    pub fn episode_info(&self, py: Python<'_>, key: &str, out: &Bound<'_, PyAny>) -> PyResult<()> {
        let out = writeable::<f64>("out", out, &[self.num_envs])?;
        // SAFETY: `writeable` has checked it, and it is the caller's for the length of this call.
        let out = unsafe { out.slice_mut() };
        self.with(py, |venv| {
            for (env, value) in venv.envs().zip(out) {
                *value = env.episode_info(key);
            }
            Ok(())
        })
    }

    /// The environment `index`, or all. IndexError: there is no such environment.
    pub fn which(&self, index: Option<usize>) -> PyResult<Range<usize>> {
        match index {
            None => Ok(0..self.num_envs),
            Some(i) if i < self.num_envs => Ok(i..i + 1),
            Some(i) => Err(PyIndexError::new_err(format!("index: expected 0 to {}, got {i}", self.num_envs - 1))),
        }
    }

    /// [`VecEnv::branch`] with numpy arrays.
    pub fn branch(&self, py: Python<'_>, state: &[u8], seeds: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
        let seeds = seeds.map(|seeds| readable::<u64>("seeds", seeds, &[self.num_envs])).transpose()?;
        // SAFETY: `readable` has checked it; nothing is written to it, and the caller leaves it alone during this call.
        let seeds = seeds.as_ref().map(|seeds| unsafe { seeds.slice() });
        self.with(py, |venv| py.detach(|| venv.branch(state, seeds)))
    }

    /// Calls `use_it` with the environments. Its errors become Python's, and so does their use by another thread, after
    /// `close` or in a fork.
    pub fn with<R>(&self, py: Python<'_>, use_it: impl FnOnce(&mut VecEnv<W>) -> Result<R, Error>) -> PyResult<R> {
        self.inner.with(py, |venv| use_it(venv).map_err(|e| from_vec_env(py, e)))
    }

    /// Closes the vector environment and hands its environments to an asynchronous one.
    pub fn asynchronous(
        &self,
        py: Python<'_>,
        seed: u64,
        same_step: bool,
        threads: usize,
        info_keys: Vec<String>,
    ) -> PyResult<AsyncVec>
    where
        W: 'static,
    {
        if self.num_agents != 1 {
            return Err(PyValueError::new_err(format!(
                "environments of one agent each can be stepped asynchronously, these have {}",
                self.num_agents
            )));
        }
        check_count("num_threads", threads, 0, MOST_THREADS)?;
        let venv = self.inner.take(py)?;
        // Joining its threads may wait for them.
        let envs = py.detach(|| venv.into_envs());
        AsyncVec::over(py, envs, seed, same_step, threads, info_keys)
    }

    /// Drops the environments and ends their threads. May be called again.
    pub fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.inner.close(py)
    }

    /// [`VecEnv::reset`] with numpy arrays.
    pub fn reset(
        &self,
        py: Python<'_>,
        obs: &Bound<'_, PyAny>,
        seeds: Option<&Bound<'_, PyAny>>,
        mask: Option<&Bound<'_, PyAny>>,
        alive: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let n = self.num_envs;
        let rows = n * self.num_agents;
        let obs = writeable::<f32>("obs", obs, &[rows, self.obs_len])?;
        let seeds = seeds.map(|seeds| readable::<u64>("seeds", seeds, &[n])).transpose()?;
        let mask = mask.map(|mask| readable::<Flag>("reset_mask", mask, &[n])).transpose()?;
        let alive = alive.map(|alive| writeable::<Flag>("alive", alive, &[rows])).transpose()?;
        let mut places = vec![obs.place()];
        places.extend(seeds.iter().map(|a| a.place()));
        places.extend(mask.iter().chain(&alive).map(|a| a.place()));
        disjoint(&places)?;
        // SAFETY: checked, disjoint, and the caller's for the length of this call.
        let (obs, seeds, mask, alive) = unsafe {
            (obs.slice_mut(), seeds.map(|a| a.slice()), mask.map(|a| a.bytes()), alive.map(|a| a.bytes_mut()))
        };
        if mask.is_some_and(|mask| mask.iter().all(|&m| m == 0)) {
            return Err(PyValueError::new_err("reset_mask: expected at least one True, got none"));
        }
        self.with(py, |venv| {
            if let Some(mask) = mask
                && let Some(env) = (0..n).find(|&i| mask[i] == 0 && !venv.was_reset(i))
            {
                return Err(Error::NeverReset { env });
            }
            py.detach(|| venv.reset(seeds, mask, obs));
            if let Some(alive) = alive {
                alive.copy_from_slice(venv.alive());
            }
            Ok(())
        })
    }

    /// [`VecEnv::observe`] with numpy arrays.
    pub fn observe(&self, py: Python<'_>, obs: &Bound<'_, PyAny>, alive: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
        let rows = self.num_envs * self.num_agents;
        let obs = writeable::<f32>("obs", obs, &[rows, self.obs_len])?;
        let alive = alive.map(|alive| writeable::<Flag>("alive", alive, &[rows])).transpose()?;
        let mut places = vec![obs.place()];
        places.extend(alive.iter().map(|a| a.place()));
        disjoint(&places)?;
        // SAFETY: checked, disjoint, and the caller's for the length of this call.
        let (obs, alive) = unsafe { (obs.slice_mut(), alive.map(|a| a.bytes_mut())) };
        self.with(py, |venv| {
            venv.observe(obs);
            if let Some(alive) = alive {
                alive.copy_from_slice(venv.alive());
            }
            Ok(())
        })
    }

    /// [`VecEnv::step`] with numpy arrays.
    #[expect(clippy::too_many_arguments, reason = "the arrays of a step")]
    pub fn step(
        &self,
        py: Python<'_>,
        actions: &Bound<'_, PyAny>,
        obs: &Bound<'_, PyAny>,
        rewards: &Bound<'_, PyAny>,
        terminations: &Bound<'_, PyAny>,
        truncations: &Bound<'_, PyAny>,
        final_obs: Option<&Bound<'_, PyAny>>,
        alive: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let n = self.num_envs * self.num_agents;
        let (place, actions) = match self.action_kind {
            ActionKind::Discrete => {
                let actions = readable::<i64>("actions", actions, &[n])?;
                // SAFETY: `readable` has checked it; `disjoint`, before anything is written, keeps it apart from the
                // arrays that are.
                (actions.place(), Actions::Discrete(unsafe { actions.slice() }))
            }
            ActionKind::Box(len) => {
                if W::DOUBLE && is_of::<f64>(actions) {
                    let actions = readable::<f64>("actions", actions, &[n, len])?;
                    // SAFETY: `readable` has checked it; `disjoint`, before anything is written, keeps it apart.
                    (actions.place(), Actions::Double(unsafe { actions.slice() }))
                } else {
                    let actions = readable::<f32>("actions", actions, &[n, len])?;
                    // SAFETY: `readable` has checked it; `disjoint`, before anything is written, keeps it apart.
                    (actions.place(), Actions::Box(unsafe { actions.slice() }))
                }
            }
        };
        let obs = writeable::<f32>("obs", obs, &[n, self.obs_len])?;
        let terminations = writeable::<Flag>("terminations", terminations, &[n])?;
        let truncations = writeable::<Flag>("truncations", truncations, &[n])?;
        if final_obs.is_some() && self.autoreset != Autoreset::SameStep {
            return Err(PyValueError::new_err("final_obs: expected None unless autoreset_mode is 'same_step'"));
        }
        let final_obs = final_obs.map(|rows| writeable::<f32>("final_obs", rows, &[n, self.obs_len])).transpose()?;
        let alive = alive.map(|alive| writeable::<Flag>("alive", alive, &[n])).transpose()?;
        // Empty where there is no such array: it overlaps nothing.
        let last = final_obs.as_ref().map_or(("final_obs", 0..0), |a| a.place());
        let lives = alive.as_ref().map_or(("alive", 0..0), |a| a.place());
        let places = |rewards| {
            [
                place.clone(),
                obs.place(),
                terminations.place(),
                truncations.place(),
                last.clone(),
                lives.clone(),
                rewards,
            ]
        };
        macro_rules! step_with {
            ($rewards:expr) => {{
                let rewards = $rewards;
                disjoint(&places(rewards.place()))?;
                // SAFETY: `writeable` has checked each array and `disjoint` all of them; the caller leaves them alone
                // during this call ([`Array::slice`]).
                let (rows, alive) = unsafe {
                    let rows = Rows {
                        obs: obs.slice_mut(),
                        rewards: rewards.slice_mut(),
                        terminated: terminations.bytes_mut(),
                        truncated: truncations.bytes_mut(),
                        final_obs: final_obs.as_ref().map(|a| a.slice_mut()),
                    };
                    (rows, alive.as_ref().map(|a| a.bytes_mut()))
                };
                self.with(py, |venv| {
                    py.detach(|| venv.step(actions, rows))?;
                    if let Some(alive) = alive {
                        alive.copy_from_slice(venv.alive());
                    }
                    Ok(())
                })
            }};
        }
        // float64 is what Gymnasium hands out, float32 what trainers store.
        match writeable::<f32>("rewards", rewards, &[n]) {
            Ok(rewards) => step_with!(rewards),
            Err(error) if !error.is_instance_of::<PyTypeError>(py) => Err(error),
            Err(_) => step_with!(writeable::<f64>("rewards", rewards, &[n])?),
        }
    }
}

/// The methods that every vector class has, over its `venv: VecBinding<_>`; `_rust.pyi` says what they do.
#[macro_export]
macro_rules! vec_methods {
    ($class:ident) => {
        #[pymethods]
        impl $class {
            #[getter]
            fn num_envs(&self) -> usize {
                self.venv.num_envs()
            }

            #[getter]
            fn num_agents(&self) -> usize {
                self.venv.num_agents()
            }

            #[getter]
            fn obs_dim(&self) -> usize {
                self.venv.obs_len()
            }

            #[getter]
            fn num_masked(&self) -> usize {
                self.venv.mask_len()
            }

            fn action_masks(&self, py: Python<'_>, out: &Bound<'_, PyAny>) -> PyResult<()> {
                self.venv.action_masks(py, out)
            }

            fn episode_info(&self, py: Python<'_>, key: &str, out: &Bound<'_, PyAny>) -> PyResult<()> {
                self.venv.episode_info(py, key, out)
            }

            #[pyo3(signature = (obs, seeds=None, reset_mask=None, alive=None))]
            fn reset(
                &self,
                py: Python<'_>,
                obs: &Bound<'_, PyAny>,
                seeds: Option<&Bound<'_, PyAny>>,
                reset_mask: Option<&Bound<'_, PyAny>>,
                alive: Option<&Bound<'_, PyAny>>,
            ) -> PyResult<()> {
                self.venv.reset(py, obs, seeds, reset_mask, alive)
            }

            #[pyo3(signature = (obs, alive=None))]
            fn observe(
                &self,
                py: Python<'_>,
                obs: &Bound<'_, PyAny>,
                alive: Option<&Bound<'_, PyAny>>,
            ) -> PyResult<()> {
                self.venv.observe(py, obs, alive)
            }

            #[pyo3(signature = (actions, obs, rewards, terminations, truncations, final_obs=None, alive=None))]
            #[expect(clippy::too_many_arguments, reason = "the arrays of a step")]
            fn step(
                &self,
                py: Python<'_>,
                actions: &Bound<'_, PyAny>,
                obs: &Bound<'_, PyAny>,
                rewards: &Bound<'_, PyAny>,
                terminations: &Bound<'_, PyAny>,
                truncations: &Bound<'_, PyAny>,
                final_obs: Option<&Bound<'_, PyAny>>,
                alive: Option<&Bound<'_, PyAny>>,
            ) -> PyResult<()> {
                self.venv.step(py, actions, obs, rewards, terminations, truncations, final_obs, alive)
            }

            #[pyo3(signature = (index=None))]
            fn save_state<'py>(
                &self,
                py: Python<'py>,
                index: Option<usize>,
            ) -> PyResult<Bound<'py, pyo3::types::PyBytes>> {
                let which = self.venv.which(index)?;
                let bytes = self.venv.with(py, |venv| py.detach(|| venv.save_part(which)))?;
                pyo3::types::PyBytes::new_with(py, bytes.len(), |place| {
                    place.copy_from_slice(&bytes);
                    Ok(())
                })
            }

            #[pyo3(signature = (state, index=None))]
            fn load_state(&self, py: Python<'_>, state: &[u8], index: Option<usize>) -> PyResult<()> {
                let which = self.venv.which(index)?;
                self.venv.with(py, |venv| py.detach(|| venv.load_part(state, which)))
            }

            #[pyo3(signature = (state, seeds=None))]
            fn branch(&self, py: Python<'_>, state: &[u8], seeds: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
                self.venv.branch(py, state, seeds)
            }

            #[pyo3(signature = (seed, *, same_step, num_threads=0, episode_info=vec![]))]
            fn asynchronous(
                &self,
                py: Python<'_>,
                seed: u64,
                same_step: bool,
                num_threads: usize,
                #[pyo3(from_py_with = $crate::arrays::list)] episode_info: Vec<String>,
            ) -> PyResult<$crate::async_vec::AsyncVec> {
                self.venv.asynchronous(py, seed, same_step, num_threads, episode_info)
            }

            fn close(&self, py: Python<'_>) -> PyResult<()> {
                self.venv.close(py)
            }
        }
    };
}
