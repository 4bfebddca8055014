//! Resource allocation for Python.

use std::sync::Arc;

use fastrl_binding::arrays::list;
use fastrl_binding::vec_env::{VecBinding, autoreset_from_name};
use fastrl_binding::vec_methods;
use fastrl_core::env::Env;
use fastrl_core::traffic::v2x::config::Config;
use fastrl_core::traffic::v2x::{Episode, V2x};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::episodes;
use crate::rollout::rollout_method;
use crate::scene::{self, TrafficScene};

#[pyclass(frozen, module = "fastrl._native._rust")]
pub(crate) struct V2xVec {
    venv: VecBinding<V2x>,
}

vec_methods!(V2xVec);
rollout_method!(V2xVec);

#[pymethods]
impl V2xVec {
    #[new]
    #[pyo3(signature = (num_envs, *, num_links, payload, time_budget, powers, v2i_weight, autoreset_mode, num_threads))]
    #[expect(clippy::too_many_arguments, reason = "the options of the environment, by name")]
    fn new(
        py: Python<'_>,
        num_envs: usize,
        num_links: usize,
        payload: f64,
        time_budget: u32,
        #[pyo3(from_py_with = list)] powers: Vec<f64>,
        v2i_weight: f64,
        autoreset_mode: &str,
        num_threads: usize,
    ) -> PyResult<Self> {
        let config = Config { links: num_links, payload, steps: time_budget, powers, v2i_weight };
        config.check().map_err(PyValueError::new_err)?;
        let config = Arc::new(config);
        let make = || V2x::new(config.clone());
        let venv = VecBinding::new(py, num_envs, make, autoreset_from_name(autoreset_mode)?, num_threads)?;
        Ok(Self { venv })
    }

    fn scene(&self, py: Python<'_>, env: usize) -> PyResult<TrafficScene> {
        scene::of(py, &self.venv, env)
    }

    fn episodes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        episodes::table(py, &self.venv, &Episode::FIELDS, |env| env.state().finished)
    }
}
