//! Cooperative driving for Python.

use std::sync::Arc;

use fastrl_binding::vec_env::{VecBinding, autoreset_from_name};
use fastrl_binding::vec_methods;
use fastrl_core::env::{ActionKind, Env};
use fastrl_core::traffic::coop::Coop;
use fastrl_core::traffic::coop::config::{ActionType, Config, Difficulty, Task};
use fastrl_core::traffic::links::account::Account;
use pyo3::exceptions::{PyOverflowError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::columns::column_methods;
use crate::difficulty;
use crate::episodes;
use crate::links;
use crate::rollout::rollout_method;
use crate::scene::{self, TrafficScene};

fn road_from_name(name: &str) -> PyResult<Task> {
    match name {
        "highway" => Ok(Task::Highway),
        "merge" => Ok(Task::Merge),
        _ => Err(PyValueError::new_err(format!("road: expected 'highway' or 'merge', got '{name}'"))),
    }
}

fn action_type_from_name(name: &str) -> PyResult<ActionType> {
    match name {
        "meta" => Ok(ActionType::Meta),
        "continuous" => Ok(ActionType::Continuous),
        _ => Err(PyValueError::new_err(format!("action_type: expected 'meta' or 'continuous', got '{name}'"))),
    }
}

/// A count that Python may have given as any integer; what is too small or too large for its type is refused by name.
fn count<T: TryFrom<i64>>(name: &str, value: Option<&Bound<'_, PyAny>>, default: T) -> PyResult<T> {
    let Some(value) = value else { return Ok(default) };
    let number = match value.extract::<i64>() {
        Ok(number) => T::try_from(number).ok(),
        Err(error) if error.is_instance_of::<PyOverflowError>(value.py()) => None,
        Err(_) => {
            return Err(PyTypeError::new_err(format!("{name}: expected an integer, got {}", value.get_type().name()?)));
        }
    };
    number.ok_or_else(|| PyValueError::new_err(format!("{name}: {value} is out of range")))
}

#[pyclass(frozen, module = "fastrl._native._rust")]
pub(crate) struct CoopVec {
    venv: VecBinding<Coop>,
    config: Arc<Config>,
}

vec_methods!(CoopVec);
rollout_method!(CoopVec);
column_methods!(CoopVec);

#[pymethods]
impl CoopVec {
    #[new]
    #[pyo3(signature = (num_envs, *, road, autoreset_mode, num_threads, num_agents=None, density=None, lanes=None,
                        max_agents=None, background=None, action_type=None, simulation_frequency=None,
                        policy_frequency=None, duration=None, cooperation=None, collision_reward=None,
                        speed_reward=None, lane_reward=None, arrival_reward=None, age_reward=None, delivery_reward=None,
                        reward_speed_range=None, comms=None))]
    #[expect(clippy::too_many_arguments, reason = "the options of the environment, by name")]
    fn new(
        py: Python<'_>,
        num_envs: &Bound<'_, PyAny>,
        road: &str,
        autoreset_mode: &str,
        num_threads: &Bound<'_, PyAny>,
        num_agents: Option<&Bound<'_, PyAny>>,
        density: Option<f64>,
        lanes: Option<&Bound<'_, PyAny>>,
        max_agents: Option<&Bound<'_, PyAny>>,
        background: Option<&Bound<'_, PyAny>>,
        action_type: Option<&str>,
        simulation_frequency: Option<&Bound<'_, PyAny>>,
        policy_frequency: Option<&Bound<'_, PyAny>>,
        duration: Option<f64>,
        cooperation: Option<f64>,
        collision_reward: Option<f64>,
        speed_reward: Option<f64>,
        lane_reward: Option<f64>,
        arrival_reward: Option<f64>,
        age_reward: Option<f64>,
        delivery_reward: Option<f64>,
        reward_speed_range: Option<(f64, f64)>,
        comms: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Self> {
        let num_envs: i64 = count("num_envs", Some(num_envs), 0)?;
        let num_threads: i64 = count("num_threads", Some(num_threads), 0)?;
        if !(1..=1 << 20).contains(&num_envs) {
            return Err(PyValueError::new_err(format!("num_envs: expected 1 to {}, got {num_envs}", 1 << 20)));
        }
        if !(0..=1024).contains(&num_threads) {
            let message = format!("num_threads: expected 0 (all cores) to 1024, got {num_threads}");
            return Err(PyValueError::new_err(message));
        }
        let mut config = Config::new(road_from_name(road)?);
        config.lanes = count("lanes", lanes, config.lanes)?;
        config.max_agents = count("max_agents", max_agents, config.max_agents)?;
        config.background = count("background", background, config.background)?;
        config.simulation_frequency = count("simulation_frequency", simulation_frequency, config.simulation_frequency)?;
        if let Some(name) = action_type {
            config.actions = action_type_from_name(name)?;
        }
        // Agents that steer must act more often than agents that choose manoeuvres.
        let usual = if config.actions == ActionType::Continuous { config.simulation_frequency } else { 1 };
        config.policy_frequency = count("policy_frequency", policy_frequency, usual)?;
        config.duration = duration.unwrap_or(config.duration);
        config.cooperation = cooperation.unwrap_or(config.cooperation);
        let weights = &mut config.weights;
        weights.collision = collision_reward.unwrap_or(weights.collision);
        weights.speed = speed_reward.unwrap_or(weights.speed);
        weights.lane = lane_reward.unwrap_or(weights.lane);
        weights.arrival = arrival_reward.unwrap_or(weights.arrival);
        weights.age = age_reward.unwrap_or(weights.age);
        weights.delivery = delivery_reward.unwrap_or(weights.delivery);
        if let Some((low, high)) = reward_speed_range {
            config.speed_range = [low, high];
        }
        config.comms = comms.map(links::config).transpose()?;
        config.check().map_err(PyValueError::new_err)?;
        let agents = count("num_agents", num_agents, config.max_agents)?;
        let difficulty = Difficulty { agents, density: density.unwrap_or(1.0) };
        difficulty.check(&config).map_err(PyValueError::new_err)?;
        let config = Arc::new(config);
        let make = || Coop::new(config.clone(), difficulty);
        let venv =
            VecBinding::new(py, num_envs as usize, make, autoreset_from_name(autoreset_mode)?, num_threads as usize)?;
        Ok(Self { venv, config })
    }

    #[getter]
    fn policy_frequency(&self) -> u32 {
        self.config.policy_frequency
    }

    /// Number of discrete actions.
    #[getter]
    fn num_actions(&self) -> usize {
        self.config.num_actions()
    }

    /// Number of the statistics of links; 0: there are no links.
    #[getter]
    fn num_statistics(&self) -> usize {
        if self.config.comms.is_some() { Account::FIELDS.len() } else { 0 }
    }

    /// Numbers of a continuous action.
    #[getter]
    fn action_len(&self) -> usize {
        match self.config.action_kind() {
            ActionKind::Discrete => 0,
            ActionKind::Box(len) => len,
        }
    }

    /// Statistics of the last message of each agent, [num_envs * num_agents, 4]; NaN of agents that do not act.
    fn comms(&self, py: Python<'_>, out: &Bound<'_, PyAny>) -> PyResult<()> {
        links::statistics(py, &self.venv, self.num_agents(), out, |env| env.state().links())
    }

    fn links<'py>(&self, py: Python<'py>, env: usize) -> PyResult<Bound<'py, PyDict>> {
        links::of_env(py, &self.venv, env, self.config.comms.as_ref(), |env| env.state().links())
    }

    #[pyo3(signature = (num_agents=None, density=None))]
    fn set_difficulty(
        &self,
        py: Python<'_>,
        num_agents: Option<&Bound<'_, PyAny>>,
        density: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let changes = difficulty::changes(self.num_envs(), num_agents, density)?;
        for change in &changes {
            let tried = change.of(Difficulty { agents: 1, density: 1.0 });
            tried.check(&self.config).map_err(PyValueError::new_err)?;
        }
        self.venv.with(py, |venv| {
            for (env, change) in venv.envs_mut().zip(&changes) {
                env.set_difficulty(change.of(env.difficulty()));
            }
            Ok(())
        })
    }

    fn scene(&self, py: Python<'_>, env: usize) -> PyResult<TrafficScene> {
        scene::of(py, &self.venv, env)
    }

    fn episodes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        episodes::table(py, &self.venv, &episodes::names(self.config.comms.is_some()), |env| env.state().finished)
    }
}
