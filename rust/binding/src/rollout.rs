//! Rollouts of vector environments, for Python.

use fastrl_core::actor::{Actor, Kind};
use fastrl_core::env::{ActionKind, Env};
use fastrl_core::vec_env::Rollout;
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;

use crate::arrays::{Flag, disjoint, readable, writeable};
use crate::vec_env::VecBinding;

/// The arrays of a rollout, see `_rust.pyi`.
pub struct Arrays<'a, 'py> {
    /// int64 [N], and what else there is of each environment.
    pub env_indices: &'a Bound<'py, PyAny>,
    /// int64 [N].
    pub numbers: &'a Bound<'py, PyAny>,
    /// uint64 [N].
    pub streams: &'a Bound<'py, PyAny>,
    /// int64 [N].
    pub steps: &'a Bound<'py, PyAny>,
    /// float64 [N].
    pub returns: &'a Bound<'py, PyAny>,
    /// float32 [N, size].
    pub states: Option<&'a Bound<'py, PyAny>>,
    /// float32 [T + 1, N, D], and what else there is of each step.
    pub obs: &'a Bound<'py, PyAny>,
    /// int64 [T, N].
    pub actions: &'a Bound<'py, PyAny>,
    /// float32 [T, N].
    pub log_probs: &'a Bound<'py, PyAny>,
    /// float32 [T, N].
    pub rewards: &'a Bound<'py, PyAny>,
    /// bool [T, N].
    pub terminations: &'a Bound<'py, PyAny>,
    /// bool [T, N].
    pub truncations: &'a Bound<'py, PyAny>,
    /// float32 [T, N, D].
    pub final_obs: &'a Bound<'py, PyAny>,
    /// bool [T, N, M].
    pub masks: Option<&'a Bound<'py, PyAny>>,
    /// bool [T, N, M].
    pub final_masks: Option<&'a Bound<'py, PyAny>>,
}

/// An episode that has ended: step, environment, number, return, length and infos.
pub type Ended = (usize, usize, i64, f64, i64, Vec<f64>);

impl<W: Env> VecBinding<W> {
    /// [`fastrl_core::vec_env::VecEnv::rollout`] with numpy arrays. ValueError: environments of several agents or
    /// without discrete actions, or an actor of other observations or actions. RuntimeError: it has no weights.
    pub fn rollout(
        &self,
        py: Python<'_>,
        actor: &Actor,
        seed: u64,
        keys: &[String],
        arrays: &Arrays<'_, '_>,
    ) -> PyResult<(Vec<Ended>, f64)> {
        let (n, width, architecture) = (self.num_envs(), self.obs_len(), actor.architecture());
        let choices = if self.mask_len() == 0 { architecture.outputs } else { self.mask_len() };
        let fits = self.num_agents() == 1
            && self.action_kind() == ActionKind::Discrete
            && *actor.kind() == Kind::Discrete
            && (architecture.inputs, architecture.outputs) == (width, choices);
        if !fits {
            return Err(PyValueError::new_err(format!(
                "expected environments of one agent with discrete actions, and an actor of {width} inputs and as many \
                 outputs as actions"
            )));
        }
        let policy = actor.policy().map_err(|error| PyRuntimeError::new_err(error.to_string()))?;
        let t = arrays.rewards.getattr("shape")?.get_item(0)?.extract::<usize>()?;
        let env_indices = readable::<i64>("env_indices", arrays.env_indices, &[n])?;
        let numbers = writeable::<i64>("numbers", arrays.numbers, &[n])?;
        let streams = writeable::<u64>("streams", arrays.streams, &[n])?;
        let steps = writeable::<i64>("steps", arrays.steps, &[n])?;
        let returns = writeable::<f64>("returns", arrays.returns, &[n])?;
        let size = architecture.state_size();
        let states = arrays.states.map(|states| writeable::<f32>("states", states, &[n, size])).transpose()?;
        if states.is_none() && size > 0 {
            return Err(PyValueError::new_err("states: expected an array with a network that has a memory, got None"));
        }
        let obs = writeable::<f32>("obs", arrays.obs, &[t + 1, n, width])?;
        let actions = writeable::<i64>("actions", arrays.actions, &[t, n])?;
        let log_probs = writeable::<f32>("log_probs", arrays.log_probs, &[t, n])?;
        let rewards = writeable::<f32>("rewards", arrays.rewards, &[t, n])?;
        let terminations = writeable::<Flag>("terminations", arrays.terminations, &[t, n])?;
        let truncations = writeable::<Flag>("truncations", arrays.truncations, &[t, n])?;
        let final_obs = writeable::<f32>("final_obs", arrays.final_obs, &[t, n, width])?;
        let masked = [t, n, self.mask_len()];
        let masks = arrays.masks.map(|masks| writeable::<Flag>("masks", masks, &masked)).transpose()?;
        let final_masks =
            arrays.final_masks.map(|masks| writeable::<Flag>("final_masks", masks, &masked)).transpose()?;
        let mut places = vec![env_indices.place(), numbers.place(), streams.place(), steps.place(), returns.place()];
        places.extend([obs.place(), actions.place(), log_probs.place(), rewards.place()]);
        places.extend([terminations.place(), truncations.place(), final_obs.place()]);
        places.extend(states.iter().map(|array| array.place()));
        places.extend(masks.iter().chain(&final_masks).map(|array| array.place()));
        disjoint(&places)?;
        // SAFETY: checked, disjoint, and the caller's for the length of this call.
        let rollout = unsafe {
            Rollout {
                env_indices: env_indices.slice(),
                numbers: numbers.slice_mut(),
                streams: streams.slice_mut(),
                steps: steps.slice_mut(),
                returns: returns.slice_mut(),
                states: states.map_or(&mut [], |states| states.slice_mut()),
                obs: obs.slice_mut(),
                actions: actions.slice_mut(),
                log_probs: log_probs.slice_mut(),
                rewards: rewards.slice_mut(),
                terminated: terminations.bytes_mut(),
                truncated: truncations.bytes_mut(),
                final_obs: final_obs.slice_mut(),
                masks: masks.map_or(&mut [], |masks| masks.bytes_mut()),
                final_masks: final_masks.map_or(&mut [], |masks| masks.bytes_mut()),
            }
        };
        let (ends, inference) = self.with(py, |venv| py.detach(|| venv.rollout(&policy, seed, keys, rollout)))?;
        let ended = |end: fastrl_core::vec_env::End| (end.step, end.env, end.number, end.total, end.length, end.info);
        Ok((ends.into_iter().map(ended).collect(), inference))
    }
}
