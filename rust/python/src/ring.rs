//! Flow's ring road for Python, and SUMO's drivers in one lane on their own.

use std::sync::{Arc, Mutex};

use fastrl_binding::arrays::{disjoint, list, list_or_none, readable, writeable};
use fastrl_binding::vec_env::{VecBinding, autoreset_from_name};
use fastrl_binding::vec_methods;
use fastrl_core::traffic::metrics::Episode;
use fastrl_core::traffic::ring::config::{Config, Drive};
use fastrl_core::traffic::ring::env::Ring;
use fastrl_core::traffic::ring::platoon::Platoon;
use fastrl_core::traffic::ring::sumo_idm::{Driver, Idm, Integrator};
use fastrl_core::vec_env::{Error, VecEnv};
use pyo3::exceptions::{PyIndexError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::episodes;
use crate::rollout::rollout_method;
use crate::scene::{self, TrafficScene};

fn integrator(ballistic: bool) -> Integrator {
    if ballistic { Integrator::Ballistic } else { Integrator::Euler }
}

fn drive_from_name(name: &str) -> PyResult<Drive> {
    let place = Drive::NAMES.iter().position(|n| *n == name);
    place.map(|i| Drive::ALL[i]).ok_or_else(|| {
        let names: Vec<String> = Drive::NAMES.iter().map(|n| format!("'{n}'")).collect();
        PyValueError::new_err(format!("drive: expected {}, got '{name}'", names.join(", ")))
    })
}

#[pyclass(frozen, module = "fastrl._native._rust")]
pub(crate) struct RingVec {
    venv: VecBinding<Ring>,
    num_vehicles: usize,
}

vec_methods!(RingVec);
rollout_method!(RingVec);

#[pymethods]
impl RingVec {
    #[new]
    #[pyo3(signature = (num_envs, *, num_vehicles, num_agents, ring_length, dt, ballistic, sims_per_step, warmup_steps,
                        horizon, noise, bunching, max_accel, max_decel, distance_scale, memory, safe_speed, speed_weight, action_weight, drive,
                        desired_speed, num_threads, autoreset_mode))]
    #[expect(clippy::too_many_arguments, reason = "the options of the environment, by name")]
    fn new(
        py: Python<'_>,
        num_envs: usize,
        num_vehicles: usize,
        num_agents: usize,
        ring_length: (f64, f64),
        dt: f64,
        ballistic: bool,
        sims_per_step: u32,
        warmup_steps: u32,
        horizon: u32,
        noise: f64,
        bunching: f64,
        max_accel: f64,
        max_decel: f64,
        distance_scale: Option<f64>,
        memory: f64,
        safe_speed: bool,
        speed_weight: f64,
        action_weight: f64,
        drive: &str,
        desired_speed: Option<f64>,
        num_threads: usize,
        autoreset_mode: &str,
    ) -> PyResult<Self> {
        let config = Config {
            num_vehicles,
            num_agents,
            ring_length,
            dt,
            integrator: integrator(ballistic),
            sims_per_step,
            warmup_steps,
            horizon,
            noise,
            bunching,
            max_accel,
            max_decel,
            distance_scale,
            memory,
            safe_speed,
            speed_weight,
            action_weight,
            human: Idm::HUMAN,
            drive: drive_from_name(drive)?,
            desired_speed,
        };
        config.check().map_err(PyValueError::new_err)?;
        let config = Arc::new(config);
        let make = || Ring::new(config.clone());
        let venv = VecBinding::new(py, num_envs, make, autoreset_from_name(autoreset_mode)?, num_threads)?;
        Ok(Self { venv, num_vehicles })
    }

    #[getter]
    fn num_vehicles(&self) -> usize {
        self.num_vehicles
    }

    fn vehicles(
        &self,
        py: Python<'_>,
        positions: &Bound<'_, PyAny>,
        speeds: &Bound<'_, PyAny>,
        accelerations: &Bound<'_, PyAny>,
        ring_lengths: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let (n, vehicles) = (self.num_envs(), self.num_vehicles);
        let positions = writeable::<f64>("positions", positions, &[n, vehicles])?;
        let speeds = writeable::<f64>("speeds", speeds, &[n, vehicles])?;
        let accelerations = writeable::<f64>("accelerations", accelerations, &[n, vehicles])?;
        let ring_lengths = writeable::<f64>("ring_lengths", ring_lengths, &[n])?;
        disjoint(&[positions.place(), speeds.place(), accelerations.place(), ring_lengths.place()])?;
        // SAFETY: checked, disjoint, and the caller's for the length of this call.
        let (positions, speeds, accelerations, ring_lengths) =
            unsafe { (positions.slice_mut(), speeds.slice_mut(), accelerations.slice_mut(), ring_lengths.slice_mut()) };
        self.venv.with(py, |venv| {
            for (i, env) in venv.envs().enumerate() {
                let (platoon, ring) = (env.platoon(), env.ring_length());
                let own = i * vehicles..(i + 1) * vehicles;
                for (to, x) in positions[own.clone()].iter_mut().zip(platoon.x()) {
                    *to = x.rem_euclid(ring);
                }
                speeds[own.clone()].copy_from_slice(platoon.v());
                accelerations[own].copy_from_slice(platoon.acceleration());
                ring_lengths[i] = ring;
            }
            Ok(())
        })
    }

    #[getter]
    fn agent_vehicles(&self, py: Python<'_>) -> PyResult<Vec<usize>> {
        self.venv.with(py, |venv| Ok(venv.env(0).agent_vehicles().to_vec()))
    }

    fn set_vehicles(
        &self,
        py: Python<'_>,
        index: usize,
        ring_length: f64,
        positions: &Bound<'_, PyAny>,
        speeds: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        if index >= self.num_envs() {
            return Err(PyIndexError::new_err(format!("index: expected 0 to {}, got {index}", self.num_envs() - 1)));
        }
        let positions = readable::<f64>("positions", positions, &[self.num_vehicles])?;
        let speeds = readable::<f64>("speeds", speeds, &[self.num_vehicles])?;
        // SAFETY: checked, only read, and the caller's for the length of this call.
        let (x, v) = unsafe { (positions.slice().to_vec(), speeds.slice().to_vec()) };
        self.venv.with(py, |venv: &mut VecEnv<Ring>| {
            if !venv.was_reset(index) {
                return Err(Error::NeverReset { env: index });
            }
            venv.envs_mut().nth(index).expect("checked").set_vehicles(ring_length, x, v).map_err(Error::State)
        })
    }

    fn scene(&self, py: Python<'_>, env: usize) -> PyResult<TrafficScene> {
        scene::of(py, &self.venv, env)
    }

    fn episodes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        episodes::table(py, &self.venv, &Episode::FIELDS, |env| env.account().0)
    }
}

/// Steps of a platoon until Python may handle a signal.
const STEPS_AT_ONCE: usize = 1000;

/// Vehicles in one lane, on their own: no agents, no noise, no episodes.
#[pyclass(frozen, module = "fastrl._native._rust")]
pub(crate) struct IdmPlatoon {
    platoon: Mutex<Platoon>,
    driver: Driver,
    num_vehicles: usize,
}

impl IdmPlatoon {
    fn with<R>(&self, py: Python<'_>, use_it: impl FnOnce(&mut Platoon) -> R + Send) -> R
    where
        R: Send,
    {
        py.detach(|| use_it(&mut self.platoon.lock().expect("no call panics")))
    }
}

#[pymethods]
impl IdmPlatoon {
    #[new]
    #[pyo3(signature = (positions, speeds, *, ring_length=None, dt=0.1, ballistic=false))]
    fn new(
        #[pyo3(from_py_with = list)] positions: Vec<f64>,
        #[pyo3(from_py_with = list)] speeds: Vec<f64>,
        ring_length: Option<f64>,
        dt: f64,
        ballistic: bool,
    ) -> PyResult<Self> {
        if !(dt > 0.0 && dt <= 10.0) {
            return Err(PyValueError::new_err(format!("dt: expected above 0 and at most 10 s, got {dt}")));
        }
        let driver = Driver::new(Idm::HUMAN, dt, integrator(ballistic));
        let num_vehicles = positions.len();
        let platoon = Platoon::new(ring_length, positions, speeds, Idm::HUMAN.length).map_err(PyValueError::new_err)?;
        Ok(Self { platoon: Mutex::new(platoon), driver, num_vehicles })
    }

    #[pyo3(signature = (num_steps=1, commands=None))]
    fn step(
        &self,
        py: Python<'_>,
        num_steps: usize,
        #[pyo3(from_py_with = list_or_none)] commands: Option<Vec<Option<f64>>>,
    ) -> PyResult<()> {
        if let Some(commands) = &commands {
            let fits = commands.iter().flatten().all(|speed| speed.is_finite() && *speed >= 0.0);
            if commands.len() != self.num_vehicles || !fits {
                return Err(PyValueError::new_err(format!(
                    "commands: expected {} speeds from 0, or None for vehicles that drive themselves, got {commands:?}",
                    self.num_vehicles
                )));
            }
        }
        let mut left = num_steps;
        while left > 0 {
            let some = left.min(STEPS_AT_ONCE);
            self.with(py, |platoon| {
                for _ in 0..some {
                    let planned = platoon.plan(&self.driver);
                    for (planned, command) in planned.iter_mut().zip(commands.iter().flatten()) {
                        *planned = command.unwrap_or(*planned);
                    }
                    platoon.advance(&self.driver);
                }
            });
            py.check_signals()?;
            left -= some;
        }
        Ok(())
    }

    #[getter]
    fn positions<'py>(&self, py: Python<'py>) -> Bound<'py, numpy::PyArray1<f64>> {
        let x = self.with(py, |platoon| {
            platoon.x().iter().map(|x| platoon.ring().map_or(*x, |ring| x.rem_euclid(ring))).collect()
        });
        numpy::PyArray1::from_vec(py, x)
    }

    #[getter]
    fn speeds<'py>(&self, py: Python<'py>) -> Bound<'py, numpy::PyArray1<f64>> {
        numpy::PyArray1::from_vec(py, self.with(py, |platoon| platoon.v().to_vec()))
    }

    #[getter]
    fn accelerations<'py>(&self, py: Python<'py>) -> Bound<'py, numpy::PyArray1<f64>> {
        numpy::PyArray1::from_vec(py, self.with(py, |platoon| platoon.acceleration().to_vec()))
    }
}

/// The speed at which vehicles on a ring, evenly spaced, neither brake nor accelerate.
#[pyfunction]
pub(crate) fn ring_equilibrium_speed(num_vehicles: usize, ring_length: f64) -> PyResult<f64> {
    if num_vehicles == 0 || !(ring_length > 0.0 && ring_length.is_finite()) {
        return Err(PyValueError::new_err(format!(
            "expected at least one vehicle on a ring of positive length, got {num_vehicles} on {ring_length} m"
        )));
    }
    Ok(Idm::HUMAN.equilibrium_speed(num_vehicles, ring_length))
}
