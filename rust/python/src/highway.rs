//! Highways for Python.

use std::sync::Arc;

use fastrl_binding::arrays::{Flag, disjoint, room, writeable};
use fastrl_binding::vec_env::{VecBinding, autoreset_from_name};
use fastrl_binding::vec_methods;
use fastrl_core::env::ActionKind;
use fastrl_core::traffic::action::LastAction;
use fastrl_core::traffic::highway::{Config, Highway};
use fastrl_core::traffic::vehicles::Driver;
use numpy::PyArray1;
use pyo3::exceptions::{PyIndexError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::columns::column_methods;
use crate::highway_options;
use crate::rollout::rollout_method;
use crate::scene::{self, TrafficScene};

/// Numbers that `info` tells of each reward.
const PARTS: usize = 4;

pub(crate) fn driver_from_name(name: &str) -> PyResult<Driver> {
    match name {
        "idm" => Ok(Driver::Idm),
        "linear" => Ok(Driver::Linear),
        "aggressive" => Ok(Driver::Aggressive),
        "defensive" => Ok(Driver::Defensive),
        _ => Err(PyValueError::new_err(format!(
            "vehicle_type: expected 'idm', 'linear', 'aggressive' or 'defensive', got '{name}'"
        ))),
    }
}

#[pyclass(frozen, module = "fastrl._native._rust")]
pub(crate) struct HighwayVec {
    venv: VecBinding<Highway>,
    config: Arc<Config>,
}

vec_methods!(HighwayVec);
rollout_method!(HighwayVec);
column_methods!(HighwayVec);

#[pymethods]
impl HighwayVec {
    #[new]
    #[pyo3(signature = (num_envs, *, lanes, vehicles, controlled_vehicles=1, vehicle_type, initial_lane,
                        simulation_frequency, policy_frequency, frames, duration, ego_spacing, density,
                        collision_reward, right_lane_reward, high_speed_reward, speed_range, normalize_reward,
                        offroad_terminal, all_collisions, observation, action, num_threads, autoreset_mode))]
    #[expect(clippy::too_many_arguments, reason = "the options of the environment, by name")]
    fn new(
        py: Python<'_>,
        num_envs: usize,
        lanes: usize,
        vehicles: usize,
        controlled_vehicles: usize,
        vehicle_type: &str,
        initial_lane: Option<usize>,
        simulation_frequency: f64,
        policy_frequency: f64,
        frames: usize,
        duration: f64,
        ego_spacing: f64,
        density: f64,
        collision_reward: f64,
        right_lane_reward: f64,
        high_speed_reward: f64,
        speed_range: (f64, f64),
        normalize_reward: bool,
        offroad_terminal: bool,
        all_collisions: bool,
        observation: &Bound<'_, PyDict>,
        action: &Bound<'_, PyDict>,
        num_threads: usize,
        autoreset_mode: &str,
    ) -> PyResult<Self> {
        for (name, count, least, most) in [
            ("num_envs", num_envs, 1, 1 << 24),
            ("lanes", lanes, 1, 1000),
            ("vehicles", vehicles, 0, 100_000),
            ("controlled_vehicles", controlled_vehicles, 1, 100_000),
            ("frames", frames, 1, 100_000),
            ("num_threads", num_threads, 0, 1024),
        ] {
            if !(least..=most).contains(&count) {
                return Err(PyValueError::new_err(format!("{name}: expected {least} to {most}, got {count}")));
            }
        }
        if let Some(lane) = initial_lane
            && lane >= lanes
        {
            return Err(PyValueError::new_err(format!("initial_lane: expected 0 to {}, got {lane}", lanes - 1)));
        }
        for (name, number) in [
            ("simulation_frequency", simulation_frequency),
            ("policy_frequency", policy_frequency),
            ("duration", duration),
            ("density", density),
        ] {
            if !(number.is_finite() && number > 0.0) {
                return Err(PyValueError::new_err(format!("{name}: expected a number above 0, got {number}")));
            }
        }
        let observation = highway_options::observation(observation, 1.0 / policy_frequency)?;
        let (action, target_speeds) = highway_options::action(action)?;
        let config = Arc::new(Config {
            lanes,
            vehicles,
            controlled: controlled_vehicles,
            driver: driver_from_name(vehicle_type)?,
            initial_lane,
            simulation_frequency,
            policy_frequency,
            frames,
            duration,
            ego_spacing,
            density,
            collision_reward,
            right_lane_reward,
            high_speed_reward,
            reward_speed_range: speed_range.into(),
            normalize_reward,
            offroad_terminal,
            all_collisions,
            target_speeds,
            observation,
            action,
        });
        let make = || Highway::new(config.clone());
        let venv = VecBinding::new(py, num_envs, make, autoreset_from_name(autoreset_mode)?, num_threads)?;
        Ok(Self { venv, config })
    }

    /// Numbers of a continuous action.
    #[getter]
    fn action_len(&self) -> usize {
        match self.config.action.kind() {
            ActionKind::Discrete => 0,
            ActionKind::Box(len) => len,
        }
    }

    fn info(
        &self,
        py: Python<'_>,
        speed: &Bound<'_, PyAny>,
        crashed: &Bound<'_, PyAny>,
        rewards: &Bound<'_, PyAny>,
        action: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let n = self.num_envs();
        let speed = writeable::<f64>("speed", speed, &[n])?;
        let crashed = writeable::<Flag>("crashed", crashed, &[n])?;
        let rewards = writeable::<f64>("rewards", rewards, &[n, PARTS])?;
        let (len, discrete) = match self.config.action.kind() {
            ActionKind::Discrete => (1, true),
            ActionKind::Box(len) => (len, false),
        };
        let indices = discrete.then(|| writeable::<i64>("action", action, &[n])).transpose()?;
        let numbers = (!discrete).then(|| writeable::<f32>("action", action, &[n, len])).transpose()?;
        let mut places = vec![speed.place(), crashed.place(), rewards.place()];
        places.extend(indices.iter().map(|a| a.place()));
        places.extend(numbers.iter().map(|a| a.place()));
        disjoint(&places)?;
        // SAFETY: checked, disjoint, and the caller's for the length of this call.
        let (speed, crashed, rewards, indices, numbers) = unsafe {
            (
                speed.slice_mut(),
                crashed.bytes_mut(),
                rewards.slice_mut(),
                indices.map_or(&mut [][..], |a| a.slice_mut()),
                numbers.map_or(&mut [][..], |a| a.slice_mut()),
            )
        };
        self.venv.with(py, |venv| {
            for (i, env) in venv.envs().enumerate() {
                let vehicles = &env.episode().traffic.vehicles;
                if vehicles.is_empty() {
                    (speed[i], crashed[i]) = (0.0, 0);
                    rewards[i * PARTS..(i + 1) * PARTS].fill(0.0);
                } else {
                    let parts = env.parts();
                    (speed[i], crashed[i]) = (vehicles.speed[0], u8::from(vehicles.crashed[0]));
                    rewards[i * PARTS..(i + 1) * PARTS].copy_from_slice(&[
                        parts.collision,
                        parts.right_lane,
                        parts.high_speed,
                        parts.on_road,
                    ]);
                }
                match &env.episode().action {
                    LastAction::Discrete(last) => indices[i] = *last,
                    last => last.write(&mut numbers[i * len..(i + 1) * len]),
                }
            }
            Ok(())
        })
    }

    fn scene(&self, py: Python<'_>, env: usize) -> PyResult<TrafficScene> {
        scene::of(py, &self.venv, env)
    }

    fn vehicles<'py>(&self, py: Python<'py>, index: usize) -> PyResult<Bound<'py, PyDict>> {
        if index >= self.num_envs() {
            return Err(PyIndexError::new_err(format!("index: expected 0 to {}, got {index}", self.num_envs() - 1)));
        }
        let vehicles = self.venv.with(py, |venv| Ok(venv.env(index).episode().traffic.vehicles.clone()))?;
        let out = PyDict::new(py);
        for (name, numbers) in [
            ("x", &vehicles.x),
            ("y", &vehicles.y),
            ("heading", &vehicles.heading),
            ("speed", &vehicles.speed),
            ("acceleration", &vehicles.acceleration),
            ("target_speed", &vehicles.target_speed),
            ("timer", &vehicles.timer),
            ("delta", &vehicles.delta),
        ] {
            out.set_item(name, PyArray1::from_slice(py, numbers))?;
        }
        let steering: Vec<f64> = (0..vehicles.len()).map(|i| vehicles.steering(i)).collect();
        out.set_item("steering", PyArray1::from_vec(py, steering))?;
        for (name, indices) in
            [("lane", &vehicles.lane), ("target_lane", &vehicles.target_lane), ("speed_index", &vehicles.speed_index)]
        {
            out.set_item(name, PyArray1::from_iter(py, indices.iter().map(|&i| i as i64)))?;
        }
        out.set_item("crashed", PyArray1::from_slice(py, &vehicles.crashed))?;
        Ok(out)
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
