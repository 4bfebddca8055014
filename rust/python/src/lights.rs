//! Traffic lights as agents for Python.

use std::collections::BTreeMap;
use std::sync::Arc;

use fastrl_binding::vec_env::{VecBinding, autoreset_from_name};
use fastrl_binding::vec_methods;
use fastrl_core::env::Env;
use fastrl_core::traffic::roads::lights::{Config, Episode, LightsEnv, Times};
use fastrl_core::traffic::roads::scenario::Options;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::episodes;
use crate::roads::named_lists;
use crate::rollout::rollout_method;
use crate::scene::{self, TrafficScene};

#[pyclass(frozen, module = "fastrl._native._rust")]
pub(crate) struct LightsVec {
    venv: VecBinding<LightsEnv>,
    num_actions: usize,
}

vec_methods!(LightsVec);
rollout_method!(LightsVec);

#[pymethods]
impl LightsVec {
    #[new]
    #[pyo3(signature = (num_envs, *, options, simulation_frequency, delta_time, yellow_time, min_green, duration, fixed,
                        num_threads, autoreset_mode))]
    #[expect(clippy::too_many_arguments, reason = "the options of the environment, by name")]
    fn new(
        py: Python<'_>,
        num_envs: usize,
        #[pyo3(from_py_with = named_lists)] options: BTreeMap<String, Vec<f64>>,
        simulation_frequency: usize,
        delta_time: u32,
        yellow_time: u32,
        min_green: u32,
        duration: u32,
        fixed: bool,
        num_threads: usize,
        autoreset_mode: &str,
    ) -> PyResult<Self> {
        let times = Times { frames: simulation_frequency, step: delta_time, amber: yellow_time, min_green, duration };
        let config = Arc::new(Config::new(&Options(options), times, fixed).map_err(PyValueError::new_err)?);
        let make = || LightsEnv::new(config.clone());
        let venv = VecBinding::new(py, num_envs, make, autoreset_from_name(autoreset_mode)?, num_threads)?;
        Ok(Self { venv, num_actions: config.num_actions() })
    }

    /// Number of green phases to choose from.
    #[getter]
    fn num_actions(&self) -> usize {
        self.num_actions
    }

    fn scene(&self, py: Python<'_>, env: usize) -> PyResult<TrafficScene> {
        scene::of(py, &self.venv, env)
    }

    fn episodes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        episodes::table(py, &self.venv, &Episode::FIELDS, |env| env.state().finished)
    }
}
