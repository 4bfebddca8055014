//! Classic control for Python.

use std::sync::Arc;

use fastrl_binding::vec_env::{VecBinding, autoreset_from_name};
use fastrl_binding::vec_methods;
use fastrl_core::classic::{self, Classic, NAMES};
use pyo3::exceptions::{PyIndexError, PyValueError};
use pyo3::prelude::*;

use crate::rollout::rollout_method;

/// An option further from zero makes no sense as a gravity or a velocity, and numbers might overflow.
const MOST: f64 = 1e6;

#[pyclass(frozen, module = "fastrl._native._rust")]
pub(crate) struct ClassicVec {
    venv: VecBinding<Classic>,
}

vec_methods!(ClassicVec);
rollout_method!(ClassicVec);

#[pymethods]
impl ClassicVec {
    #[new]
    #[pyo3(signature = (num_envs, *, task, option, limit, num_threads, autoreset_mode))]
    fn new(
        py: Python<'_>,
        num_envs: usize,
        task: &str,
        option: f64,
        limit: u32,
        num_threads: usize,
        autoreset_mode: &str,
    ) -> PyResult<Self> {
        if !(-MOST..=MOST).contains(&option) {
            return Err(PyValueError::new_err(format!("option: expected -{MOST} to {MOST}, got {option}")));
        }
        if limit == 0 {
            return Err(PyValueError::new_err("limit: expected at least 1 step, got 0"));
        }
        let rules = classic::task(task, option).ok_or_else(|| {
            PyValueError::new_err(format!("task: expected one of {}, got '{task}'", NAMES.join(", ")))
        })?;
        let fingerprint: Arc<str> = format!("{task} {option}").into();
        let make = || Classic::new(rules.clone(), fingerprint.clone(), limit);
        let venv = VecBinding::new(py, num_envs, make, autoreset_from_name(autoreset_mode)?, num_threads)?;
        Ok(Self { venv })
    }

    fn variables(&self, py: Python<'_>, env: usize) -> PyResult<[f64; 4]> {
        if env >= self.num_envs() {
            return Err(PyIndexError::new_err(format!("env: expected 0 to {}, got {env}", self.num_envs() - 1)));
        }
        self.venv.with(py, |venv| Ok(*venv.env(env).variables()))
    }
}
