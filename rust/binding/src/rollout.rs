//! Rollouts of vector environments, for Python.

use fastrl_core::actor::{Actor, Kind};
use fastrl_core::env::{ActionKind, Env};
use fastrl_core::vec_env::{Drawn, Rollout, Scaling};
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;

use crate::arrays::{Array, Flag, disjoint, readable, writeable};
use crate::vec_env::VecBinding;

/// The arrays of a rollout, see `_rust.pyi`: T steps of N environments with R agents in all.
pub struct Arrays<'a, 'py> {
    /// int64 [N], and what else there is of each environment.
    pub env_indices: &'a Bound<'py, PyAny>,
    /// int64 [N].
    pub numbers: &'a Bound<'py, PyAny>,
    /// int64 [N].
    pub steps: &'a Bound<'py, PyAny>,
    /// float64 [N].
    pub returns: &'a Bound<'py, PyAny>,
    /// uint64 [R].
    pub streams: &'a Bound<'py, PyAny>,
    /// bool [R].
    pub took_part: &'a Bound<'py, PyAny>,
    /// Agents, the first ones, whose rewards returns have.
    pub scored: usize,
    /// float32 [R, size].
    pub states: Option<&'a Bound<'py, PyAny>>,
    /// float32 [T + 1, R, D], and what else there is of each step.
    pub obs: &'a Bound<'py, PyAny>,
    /// int64 [T, R], or float32 [T, R, n].
    pub actions: &'a Bound<'py, PyAny>,
    /// float32 [T, R].
    pub log_probs: &'a Bound<'py, PyAny>,
    /// float32 [T, R].
    pub rewards: &'a Bound<'py, PyAny>,
    /// bool [T, R].
    pub terminations: &'a Bound<'py, PyAny>,
    /// bool [T, R].
    pub truncations: &'a Bound<'py, PyAny>,
    /// float32 [T, R, D].
    pub final_obs: &'a Bound<'py, PyAny>,
    /// bool [T, R, M].
    pub masks: Option<&'a Bound<'py, PyAny>>,
    /// bool [T, R, M].
    pub final_masks: Option<&'a Bound<'py, PyAny>>,
    /// bool [T + 1, R].
    pub alive: Option<&'a Bound<'py, PyAny>>,
    /// bool [T, N].
    pub ends: Option<&'a Bound<'py, PyAny>>,
    /// float32 [4, n].
    pub scaling: Option<&'a Bound<'py, PyAny>>,
}

fn flags<'a, 'py>(
    name: &'static str,
    array: Option<&'a Bound<'py, PyAny>>,
    shape: &[usize],
) -> PyResult<Option<Array<'a, 'py, Flag>>> {
    array.map(|array| writeable(name, array, shape)).transpose()
}

/// [`Array::bytes_mut`] of an array, or none.
///
/// # Safety
/// Those of [`Array::bytes_mut`].
unsafe fn bytes_of<'a>(array: Option<Array<'a, '_, Flag>>) -> &'a mut [u8] {
    // SAFETY: the caller's.
    array.map_or(&mut [], |array| unsafe { array.bytes_mut() })
}

/// An episode that has ended: step, environment, number, return, length and infos.
pub type Ended = (usize, usize, i64, f64, i64, Vec<f64>);

impl<W: Env> VecBinding<W> {
    /// [`fastrl_core::vec_env::VecEnv::rollout`] with numpy arrays. ValueError: an actor of other observations or
    /// actions, environments of several agents without `alive`, or no such number of `scored` agents. RuntimeError: the
    /// actor has no weights.
    pub fn rollout(
        &self,
        py: Python<'_>,
        actor: &Actor,
        seed: u64,
        keys: &[String],
        arrays: &Arrays<'_, '_>,
    ) -> PyResult<(Vec<Ended>, f64)> {
        let (n, width, architecture) = (self.num_envs(), self.obs_len(), actor.architecture());
        let (kind, outputs) = match self.action_kind() {
            ActionKind::Discrete if self.mask_len() == 0 => (Kind::Discrete, architecture.outputs),
            ActionKind::Discrete => (Kind::Discrete, self.mask_len()),
            ActionKind::Box(len) => (Kind::Gaussian, len),
        };
        if *actor.kind() != kind || (architecture.inputs, architecture.outputs) != (width, outputs) {
            return Err(PyValueError::new_err(format!(
                "expected an actor of {width} inputs and {outputs} outputs for the environment's actions"
            )));
        }
        if self.num_agents() != 1 && arrays.alive.is_none() {
            return Err(PyValueError::new_err(
                "alive: expected an array with environments of several agents, got None",
            ));
        }
        if !(1..=self.num_agents()).contains(&arrays.scored) {
            return Err(PyValueError::new_err(format!(
                "scored: expected 1 to {}, the number of agents, got {}",
                self.num_agents(),
                arrays.scored
            )));
        }
        let rows = n * self.num_agents();
        let policy = actor.policy().map_err(|error| PyRuntimeError::new_err(error.to_string()))?;
        let t = arrays.rewards.getattr("shape")?.get_item(0)?.extract::<usize>()?;
        let env_indices = readable::<i64>("env_indices", arrays.env_indices, &[n])?;
        let numbers = writeable::<i64>("numbers", arrays.numbers, &[n])?;
        let steps = writeable::<i64>("steps", arrays.steps, &[n])?;
        let returns = writeable::<f64>("returns", arrays.returns, &[n])?;
        let streams = writeable::<u64>("streams", arrays.streams, &[rows])?;
        let took_part = writeable::<Flag>("took_part", arrays.took_part, &[rows])?;
        let size = architecture.state_size();
        let states = arrays.states.map(|states| writeable::<f32>("states", states, &[rows, size])).transpose()?;
        if states.is_none() && size > 0 {
            return Err(PyValueError::new_err("states: expected an array with a network that has a memory, got None"));
        }
        let obs = writeable::<f32>("obs", arrays.obs, &[t + 1, rows, width])?;
        let log_probs = writeable::<f32>("log_probs", arrays.log_probs, &[t, rows])?;
        let rewards = writeable::<f32>("rewards", arrays.rewards, &[t, rows])?;
        let terminations = writeable::<Flag>("terminations", arrays.terminations, &[t, rows])?;
        let truncations = writeable::<Flag>("truncations", arrays.truncations, &[t, rows])?;
        let final_obs = writeable::<f32>("final_obs", arrays.final_obs, &[t, rows, width])?;
        let masked = [t, rows, self.mask_len()];
        let masks = flags("masks", arrays.masks, &masked)?;
        let final_masks = flags("final_masks", arrays.final_masks, &masked)?;
        let alive = flags("alive", arrays.alive, &[t + 1, rows])?;
        let ends = flags("ends", arrays.ends, &[t, n])?;
        let mut places = vec![env_indices.place(), numbers.place(), streams.place(), steps.place(), returns.place()];
        places.extend([took_part.place(), obs.place(), log_probs.place(), rewards.place()]);
        places.extend([terminations.place(), truncations.place(), final_obs.place()]);
        places.extend(states.iter().map(|array| array.place()));
        places.extend([&masks, &final_masks, &alive, &ends].into_iter().flatten().map(|array| array.place()));
        let actions = match (kind, arrays.scaling) {
            (Kind::Gaussian, Some(scaling)) => {
                let draws = writeable::<f32>("actions", arrays.actions, &[t, rows, outputs])?;
                let scaling = readable::<f32>("scaling", scaling, &[4, outputs])?;
                places.extend([draws.place(), scaling.place()]);
                // SAFETY: checked, and the caller's for the length of this call; `disjoint` below, before anything is
                // written, keeps them apart from the others.
                unsafe { Drawn::Gaussian(draws.slice_mut(), Scaling(scaling.slice())) }
            }
            (Kind::Gaussian, None) => {
                return Err(PyValueError::new_err("scaling: expected an array with an actor of a Gaussian, got None"));
            }
            _ => {
                let choices = writeable::<i64>("actions", arrays.actions, &[t, rows])?;
                places.push(choices.place());
                // SAFETY: as above.
                Drawn::Discrete(unsafe { choices.slice_mut() })
            }
        };
        disjoint(&places)?;
        // SAFETY: checked, disjoint, and the caller's for the length of this call.
        let rollout = unsafe {
            Rollout {
                env_indices: env_indices.slice(),
                numbers: numbers.slice_mut(),
                steps: steps.slice_mut(),
                returns: returns.slice_mut(),
                streams: streams.slice_mut(),
                took_part: took_part.bytes_mut(),
                scored: arrays.scored,
                states: states.map_or(&mut [], |states| states.slice_mut()),
                obs: obs.slice_mut(),
                actions,
                log_probs: log_probs.slice_mut(),
                rewards: rewards.slice_mut(),
                terminated: terminations.bytes_mut(),
                truncated: truncations.bytes_mut(),
                final_obs: final_obs.slice_mut(),
                masks: bytes_of(masks),
                final_masks: bytes_of(final_masks),
                alive: bytes_of(alive),
                ends: bytes_of(ends),
            }
        };
        let (ends, inference) = self.with(py, |venv| py.detach(|| venv.rollout(&policy, seed, keys, rollout)))?;
        let ended = |end: fastrl_core::vec_env::End| (end.step, end.env, end.number, end.total, end.length, end.info);
        Ok((ends.into_iter().map(ended).collect(), inference))
    }
}
