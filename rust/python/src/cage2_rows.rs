//! CAGE Challenge 2 by rows of hosts, for Python.

use std::sync::Arc;

use fastrl_binding::arrays::list;
use fastrl_binding::vec_env::{VecBinding, autoreset_from_name};
use fastrl_binding::vec_methods;
use fastrl_core::cage2::rows::{RowNetworks, RowsCage2};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::cage2::Options;
use crate::cage2_scenario::Cage2Scenario;
use crate::rollout::rollout_method;

#[pyclass(frozen, module = "fastrl._native._rust")]
pub(crate) struct Cage2RowsVec {
    venv: VecBinding<RowsCage2>,
}

vec_methods!(Cage2RowsVec);
rollout_method!(Cage2RowsVec);

#[pymethods]
impl Cage2RowsVec {
    #[new]
    #[pyo3(signature = (num_envs, *, networks, rows, kinds, ruleset, red_agents, red_weights, episode_length, num_threads,
                        autoreset_mode, python_random))]
    #[expect(clippy::too_many_arguments, reason = "the options of the environment, by name")]
    fn new(
        py: Python<'_>,
        num_envs: usize,
        #[pyo3(from_py_with = list)] networks: Vec<Py<Cage2Scenario>>,
        rows: usize,
        #[pyo3(from_py_with = list)] kinds: Vec<u16>,
        ruleset: &str,
        #[pyo3(from_py_with = list)] red_agents: Vec<String>,
        #[pyo3(from_py_with = list)] red_weights: Vec<f64>,
        episode_length: u32,
        num_threads: usize,
        autoreset_mode: &str,
        python_random: bool,
    ) -> PyResult<Self> {
        let config = |scenario: &Py<Cage2Scenario>| {
            let options = Options {
                ruleset,
                red_agents: red_agents.clone(),
                red_weights: red_weights.clone(),
                episode_length,
                memory: "scan",
                observe: "blue",
                actions: vec![0],
                python_random,
            };
            options.check(Some(scenario.get()))
        };
        let configs = networks.iter().map(config).collect::<PyResult<_>>()?;
        let drawn = Arc::new(RowNetworks::new(configs, rows, &kinds).map_err(PyValueError::new_err)?);
        let make = || RowsCage2::new(drawn.clone());
        let venv = VecBinding::new(py, num_envs, make, autoreset_from_name(autoreset_mode)?, num_threads)?;
        Ok(Self { venv })
    }
}
