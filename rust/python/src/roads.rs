//! Environments on road networks for Python.

use std::collections::BTreeMap;
use std::sync::Arc;

use fastrl_binding::arrays::{Flag, disjoint, list, room, writeable};
use fastrl_binding::vec_env::{VecBinding, autoreset_from_name};
use fastrl_binding::vec_methods;
use fastrl_core::env::{ActionKind, Env};
use fastrl_core::traffic::action::LastAction;
use fastrl_core::traffic::difficulty::Difficulty;
use fastrl_core::traffic::links::account::Account;
use fastrl_core::traffic::map::RoadMap;
use fastrl_core::traffic::observation::{Column, Feature, Observation};
use fastrl_core::traffic::roads::links::Comms;
use fastrl_core::traffic::roads::scenario::{Options, Scenario};
use fastrl_core::traffic::roads::template::Template;
use fastrl_core::traffic::roads::{Config, Ends, RoadEnv};
use numpy::PyArray1;
use pyo3::exceptions::{PyIndexError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::columns::column_methods;
use crate::difficulty;
use crate::episodes;
use crate::highway::driver_from_name;
use crate::highway_options;
use crate::links;
use crate::rollout::rollout_method;
use crate::scene::{self, TrafficScene};

fn ends_from_name(name: &str) -> PyResult<Ends> {
    match name {
        "together" => Ok(Ends::Together),
        "each" => Ok(Ends::Each),
        "wrapped" => Ok(Ends::Wrapped),
        _ => Err(PyValueError::new_err(format!("ends: expected 'together', 'each' or 'wrapped', got '{name}'"))),
    }
}

#[pyclass(frozen, module = "fastrl._native._rust")]
pub(crate) struct RoadVec {
    venv: VecBinding<RoadEnv>,
    config: Arc<Config>,
}

vec_methods!(RoadVec);
rollout_method!(RoadVec);
column_methods!(RoadVec);

pub(crate) fn named_lists(options: &Bound<'_, PyAny>) -> PyResult<BTreeMap<String, Vec<f64>>> {
    // Not the dict itself: numbers are converted by code that could change it.
    options
        .cast::<PyDict>()?
        .items()
        .iter()
        .map(|item| {
            let (name, numbers) = item.extract::<(String, Bound<'_, PyAny>)>()?;
            Ok((name, list(&numbers)?))
        })
        .collect()
}

#[pymethods]
impl RoadVec {
    #[new]
    #[pyo3(signature = (num_envs, *, scenario, options, vehicle_type, simulation_frequency, policy_frequency, frames,
                        duration, connected, observation, action, shared, ends, num_threads,
                        autoreset_mode, comms=None, age_reward=0.0, delivery_reward=0.0))]
    #[expect(clippy::too_many_arguments, reason = "the options of the environment, by name")]
    fn new(
        py: Python<'_>,
        num_envs: usize,
        scenario: &str,
        #[pyo3(from_py_with = named_lists)] options: BTreeMap<String, Vec<f64>>,
        vehicle_type: &str,
        simulation_frequency: f64,
        policy_frequency: f64,
        frames: usize,
        duration: f64,
        connected: bool,
        observation: &Bound<'_, PyDict>,
        action: &Bound<'_, PyDict>,
        shared: bool,
        ends: &str,
        num_threads: usize,
        autoreset_mode: &str,
        comms: Option<&Bound<'_, PyDict>>,
        age_reward: f64,
        delivery_reward: f64,
    ) -> PyResult<Self> {
        for (name, count, least, most) in
            [("num_envs", num_envs, 1, 1 << 24), ("frames", frames, 1, 100_000), ("num_threads", num_threads, 0, 1024)]
        {
            if !(least..=most).contains(&count) {
                return Err(PyValueError::new_err(format!("{name}: expected {least} to {most}, got {count}")));
            }
        }
        for (name, number) in [
            ("simulation_frequency", simulation_frequency),
            ("policy_frequency", policy_frequency),
            ("duration", duration),
        ] {
            if number.is_nan() || number <= 0.0 {
                return Err(PyValueError::new_err(format!("{name}: expected a number above 0, got {number}")));
            }
        }
        let template = Template::new(scenario, Options(options));
        let scenario = template.full().map_err(PyValueError::new_err)?;
        let (action, target_speeds) = highway_options::action(action)?;
        let mut observation = highway_options::observation(observation, 1.0 / policy_frequency)?;
        let period = 1.0 / policy_frequency;
        let comms = comms
            .map(|options| {
                Ok::<_, PyErr>(Comms { links: links::config(options)?, period, age_reward, delivery_reward })
            })
            .transpose()?;
        if let Some(comms) = &comms {
            comms.check().map_err(PyValueError::new_err)?;
            let Observation::Kinematics(table) = &mut observation else {
                return Err(PyValueError::new_err("comms: expected an observation of the type Kinematics"));
            };
            table.columns.push(Column { feature: Feature::Age, limits: None });
        }
        let config = Arc::new(Config {
            simulation_frequency,
            policy_frequency,
            frames,
            duration,
            agent: action.driver(),
            other: driver_from_name(vehicle_type)?,
            target_speeds,
            observation,
            action,
            agents: if shared { 1 } else { scenario.controlled() },
            ends: ends_from_name(ends)?,
            connected,
            scenario,
            template,
            comms,
        });
        let make = || RoadEnv::new(config.clone());
        let venv = VecBinding::new(py, num_envs, make, autoreset_from_name(autoreset_mode)?, num_threads)?;
        Ok(Self { venv, config })
    }

    /// highway-env's names of the parts of a reward.
    #[getter]
    fn part_names(&self) -> Vec<&'static str> {
        self.config.scenario.part_names().to_vec()
    }

    #[expect(clippy::too_many_arguments, reason = "arrays to be filled")]
    fn info(
        &self,
        py: Python<'_>,
        speed: &Bound<'_, PyAny>,
        crashed: &Bound<'_, PyAny>,
        succeeded: &Bound<'_, PyAny>,
        parts: &Bound<'_, PyAny>,
        action: &Bound<'_, PyAny>,
        rewards: Option<&Bound<'_, PyAny>>,
        terminated: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let (n, names) = (self.num_envs(), self.config.scenario.part_names().len());
        let (agents, controlled) = (self.config.agents, self.config.scenario.controlled());
        let speed = writeable::<f64>("speed", speed, &[n])?;
        let crashed = writeable::<Flag>("crashed", crashed, &[n])?;
        let succeeded = writeable::<Flag>("succeeded", succeeded, &[n, controlled])?;
        let parts = writeable::<f64>("parts", parts, &[n, names])?;
        let rewards = rewards.map(|a| writeable::<f64>("rewards", a, &[n, controlled])).transpose()?;
        let terminated = terminated.map(|a| writeable::<Flag>("terminated", a, &[n, controlled])).transpose()?;
        let (len, discrete) = match self.config.action.kind() {
            ActionKind::Discrete => (1, true),
            ActionKind::Box(len) => (len, false),
        };
        let indices = discrete.then(|| writeable::<i64>("action", action, &[n, agents])).transpose()?;
        let numbers = (!discrete).then(|| writeable::<f32>("action", action, &[n, agents, len])).transpose()?;
        let mut places = vec![speed.place(), crashed.place(), succeeded.place(), parts.place()];
        places.extend(rewards.iter().map(|a| a.place()));
        places.extend(terminated.iter().map(|a| a.place()));
        places.extend(indices.iter().map(|a| a.place()));
        places.extend(numbers.iter().map(|a| a.place()));
        disjoint(&places)?;
        // SAFETY: checked, disjoint, and the caller's for the length of this call.
        let (speed, crashed, succeeded, parts, rewards, terminated, indices, numbers) = unsafe {
            (
                speed.slice_mut(),
                crashed.bytes_mut(),
                succeeded.bytes_mut(),
                parts.slice_mut(),
                rewards.map_or(&mut [][..], |a| a.slice_mut()),
                terminated.map_or(&mut [][..], |a| a.bytes_mut()),
                indices.map_or(&mut [][..], |a| a.slice_mut()),
                numbers.map_or(&mut [][..], |a| a.slice_mut()),
            )
        };
        self.venv.with(py, |venv| {
            for (i, env) in venv.envs().enumerate() {
                let episode = env.episode();
                for (agent, last) in episode.actions.iter().enumerate() {
                    let row = i * agents + agent;
                    match last {
                        LastAction::Discrete(last) => indices[row] = *last,
                        last => last.write(&mut numbers[row * len..(row + 1) * len]),
                    }
                }
                let own = i * controlled..(i + 1) * controlled;
                if !env.has_vehicles() {
                    (speed[i], crashed[i]) = (0.0, 0);
                    succeeded[own.clone()].fill(0);
                    parts[i * names..(i + 1) * names].fill(0.0);
                    if let Some(rewards) = rewards.get_mut(own.clone()) {
                        rewards.fill(0.0);
                    }
                    if let Some(terminated) = terminated.get_mut(own) {
                        terminated.fill(0);
                    }
                    continue;
                }
                let (vehicles, first) = (&episode.world.traffic.vehicles, episode.world.vehicle_of(0));
                (speed[i], crashed[i]) =
                    first.map_or((0.0, 0), |first| (vehicles.speed[first], u8::from(vehicles.crashed[first])));
                if names > 0 {
                    parts[i * names..(i + 1) * names].copy_from_slice(&env.parts()[..names]);
                }
                for (agent, row) in own.enumerate() {
                    if let Some(reward) = rewards.get_mut(row) {
                        *reward = env.own_reward(agent);
                    }
                    if let Some(ended) = terminated.get_mut(row) {
                        *ended = u8::from(env.is_done(agent));
                    }
                    succeeded[row] = u8::from(env.has_succeeded(agent));
                }
            }
            Ok(())
        })
    }

    fn observe_double(&self, py: Python<'_>, obs: &Bound<'_, PyAny>) -> PyResult<()> {
        let rows = self.num_envs() * self.num_agents();
        let obs = writeable::<f64>("obs", obs, &[rows, self.obs_dim()])?;
        // SAFETY: checked, and the caller's for the length of this call.
        let obs = unsafe { obs.slice_mut() };
        let len = self.num_agents() * self.obs_dim();
        self.venv.with(py, |venv| {
            venv.envs().zip(obs.chunks_exact_mut(len)).for_each(|(env, obs)| env.observe_double(obs));
            Ok(())
        })
    }

    /// Number of the statistics of links; 0: there are no links.
    #[getter]
    fn num_statistics(&self) -> usize {
        if self.config.comms.is_some() { Account::FIELDS.len() } else { 0 }
    }

    /// Number of discrete actions of an agent; 0: actions are numbers.
    #[getter]
    fn num_actions(&self) -> usize {
        let action = &self.config.action;
        self.config.comms.as_ref().map_or_else(|| action.count(), |comms| comms.count(action))
    }

    /// Numbers of a continuous action.
    #[getter]
    fn action_len(&self, py: Python<'_>) -> PyResult<usize> {
        self.venv.with(py, |venv| {
            Ok(match venv.env(0).action_kind() {
                ActionKind::Discrete => 0,
                ActionKind::Box(len) => len,
            })
        })
    }

    /// Statistics of the last message of each agent, [num_envs * num_agents, 4]; NaN of agents that do not act.
    fn comms(&self, py: Python<'_>, out: &Bound<'_, PyAny>) -> PyResult<()> {
        links::statistics(py, &self.venv, self.config.agents, out, |env| env.episode().links.as_ref())
    }

    #[pyo3(signature = (num_agents=None, density=None))]
    fn set_difficulty(
        &self,
        py: Python<'_>,
        num_agents: Option<&Bound<'_, PyAny>>,
        density: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let changes = difficulty::changes(self.num_envs(), num_agents, density)?;
        let refused = self.venv.with(py, |venv| {
            let wanted: Vec<_> = venv.envs().zip(&changes).map(|(env, change)| change.of(env.difficulty())).collect();
            // Environments of the same difficulty share a scenario. All are made before anything changes.
            let mut scenarios: Vec<(Difficulty, Arc<dyn Scenario>)> = Vec::new();
            for &difficulty in &wanted {
                if scenarios.iter().all(|&(other, _)| other != difficulty) {
                    match self.config.scenario_at(difficulty) {
                        Ok(scenario) => scenarios.push((difficulty, scenario)),
                        Err(message) => return Ok(Some(message)),
                    }
                }
            }
            for (env, difficulty) in venv.envs_mut().zip(wanted) {
                let (_, scenario) = scenarios.iter().find(|(other, _)| *other == difficulty).expect("it was made");
                env.set_difficulty(difficulty, scenario.clone());
            }
            Ok(None)
        })?;
        refused.map_or(Ok(()), |message| Err(PyValueError::new_err(message)))
    }

    fn links<'py>(&self, py: Python<'py>, env: usize) -> PyResult<Bound<'py, PyDict>> {
        let config = self.config.comms.as_ref().map(|comms| &comms.links);
        links::of_env(py, &self.venv, env, config, |env| env.episode().links.as_ref())
    }

    fn episodes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        episodes::table(py, &self.venv, &episodes::names(self.config.comms.is_some()), |env| env.episode().finished)
    }

    fn scene(&self, py: Python<'_>, env: usize) -> PyResult<TrafficScene> {
        scene::of(py, &self.venv, env)
    }

    fn vehicles<'py>(&self, py: Python<'py>, index: usize) -> PyResult<Bound<'py, PyDict>> {
        if index >= self.num_envs() {
            return Err(PyIndexError::new_err(format!("index: expected 0 to {}, got {index}", self.num_envs() - 1)));
        }
        let world = self.venv.with(py, |venv| Ok(venv.env(index).episode().world.clone()))?;
        let vehicles = &world.traffic.vehicles;
        let out = PyDict::new(py);
        for (name, numbers) in [
            ("x", &vehicles.x),
            ("y", &vehicles.y),
            ("heading", &vehicles.heading),
            ("speed", &vehicles.speed),
            ("acceleration", &vehicles.acceleration),
            ("steering", &vehicles.angle),
            ("target_speed", &vehicles.target_speed),
            ("timer", &vehicles.timer),
            ("delta", &vehicles.delta),
        ] {
            out.set_item(name, PyArray1::from_slice(py, numbers))?;
        }
        for (name, indices) in
            [("lane", &vehicles.lane), ("target_lane", &vehicles.target_lane), ("speed_index", &vehicles.speed_index)]
        {
            out.set_item(name, PyArray1::from_iter(py, indices.iter().map(|&i| i as i64)))?;
        }
        let agents = world.agents();
        let agent = |i: usize| agents.iter().position(|&agent| agent == i).map_or(-1, |agent| agent as i64);
        out.set_item("agent", PyArray1::from_iter(py, (0..vehicles.len()).map(agent)))?;
        out.set_item("crashed", PyArray1::from_slice(py, &vehicles.crashed))?;
        Ok(out)
    }

    /// highway-env's index of each lane: two nodes and a number.
    fn lane_indices(&self, py: Python<'_>) -> PyResult<Vec<(String, String, usize)>> {
        self.venv.with(py, |venv| {
            let road = &venv.env(0).episode().world.traffic.road;
            Ok((0..road.lanes().len())
                .map(|lane| {
                    let (from, to, number) = road.index_of(lane);
                    (from.into(), to.into(), number)
                })
                .collect())
        })
    }

    /// Lanes: length, width, speed limit, whether it is forbidden, priority, and the coordinates and the heading
    /// of a place on it.
    #[expect(clippy::type_complexity, reason = "a row of a table")]
    fn lanes_at(
        &self,
        py: Python<'_>,
        x: f64,
        y: f64,
    ) -> PyResult<Vec<(f64, f64, Option<f64>, bool, i32, (f64, f64), f64)>> {
        self.venv.with(py, |venv| {
            let road = &venv.env(0).episode().world.traffic.road;
            let row = |lane: &fastrl_core::traffic::lane::Lane<_>| {
                let local = lane.local(x, y);
                let heading = lane.heading_at(local.0);
                (lane.length(), lane.width, lane.speed_limit, lane.forbidden, lane.priority, local, heading)
            };
            Ok(road.lanes().iter().map(row).collect())
        })
    }

    /// The place on a lane (x, y), m.
    fn place_on(&self, py: Python<'_>, lane: usize, longitudinal: f64, lateral: f64) -> PyResult<(f64, f64)> {
        self.known_lane(py, lane)?;
        self.venv
            .with(py, |venv| Ok(venv.env(0).episode().world.traffic.road.lane(lane).position(longitudinal, lateral)))
    }

    /// The lane closest to a place with a heading, sought quickly from `lane` on, and by trying all.
    fn closest_lane(&self, py: Python<'_>, x: f64, y: f64, heading: f64, lane: usize) -> PyResult<(usize, usize)> {
        self.known_lane(py, lane)?;
        self.venv.with(py, |venv| {
            let road = &venv.env(0).episode().world.traffic.road;
            Ok((road.still_closest_lane(lane, x, y, heading), road.closest_lane(x, y, heading)))
        })
    }

    /// The steps of a route from a lane to a node: first lanes of sections.
    fn route(&self, py: Python<'_>, lane: usize, goal: &str) -> PyResult<Vec<usize>> {
        self.known_lane(py, lane)?;
        self.venv.with(py, |venv| {
            let road = &venv.env(0).episode().world.traffic.road;
            let route = road.route(lane, goal);
            Ok(route.iter().map(|step| road.sections()[step.section as usize].lanes.start).collect())
        })
    }

    fn copy_generators(&self, py: Python<'_>, other: &Self) -> PyResult<()> {
        if other.num_envs() != self.num_envs() {
            return Err(PyValueError::new_err(format!(
                "other: expected {} environments, got {}",
                self.num_envs(),
                other.num_envs()
            )));
        }
        let mut generators = room(self.num_envs())?;
        other.venv.with(py, |venv| {
            generators.extend(venv.envs().map(|env| env.episode().rng.clone()));
            Ok(())
        })?;
        self.venv.with(py, |venv| {
            venv.envs_mut().zip(generators).for_each(|(env, rng)| env.set_generator(rng));
            Ok(())
        })
    }
}

impl RoadVec {
    fn known_lane(&self, py: Python<'_>, lane: usize) -> PyResult<()> {
        let lanes = self.venv.with(py, |venv| Ok(venv.env(0).episode().world.traffic.road.lanes().len()))?;
        if lane < lanes {
            Ok(())
        } else {
            Err(PyIndexError::new_err(format!("lane: expected 0 to {}, got {lane}", lanes - 1)))
        }
    }
}
