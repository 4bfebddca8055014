//! CAGE Challenge 2 as a game of two agents for Python.

use fastrl_binding::arrays::{list, writeable};
use fastrl_binding::vec_env::{VecBinding, autoreset_from_name};
use fastrl_binding::vec_methods;
use fastrl_core::cage2::game::Cage2Game;
use pyo3::prelude::*;

use crate::cage2::Options;
use crate::rollout::rollout_method;

#[pyclass(frozen, module = "fastrl._native._rust")]
pub(crate) struct Cage2GameVec {
    venv: VecBinding<Cage2Game>,
}

vec_methods!(Cage2GameVec);
rollout_method!(Cage2GameVec);

#[pymethods]
impl Cage2GameVec {
    #[new]
    #[pyo3(signature = (num_envs, *, ruleset, red_agents, red_weights, episode_length, memory, observe, actions, num_threads,
                        autoreset_mode, python_random))]
    #[expect(clippy::too_many_arguments, reason = "the options of the environment, by name")]
    fn new(
        py: Python<'_>,
        num_envs: usize,
        ruleset: &str,
        #[pyo3(from_py_with = list)] red_agents: Vec<String>,
        #[pyo3(from_py_with = list)] red_weights: Vec<f64>,
        episode_length: u32,
        memory: &str,
        observe: &str,
        #[pyo3(from_py_with = list)] actions: Vec<u16>,
        num_threads: usize,
        autoreset_mode: &str,
        python_random: bool,
    ) -> PyResult<Self> {
        let options =
            Options { ruleset, red_agents, red_weights, episode_length, memory, observe, actions, python_random };
        let config = options.check(None)?;
        let make = || Cage2Game::new(config.clone());
        let venv = VecBinding::new(py, num_envs, make, autoreset_from_name(autoreset_mode)?, num_threads)?;
        Ok(Self { venv })
    }

    fn choose_red(&self, py: Python<'_>, out: &Bound<'_, PyAny>) -> PyResult<()> {
        let out = writeable::<i64>("out", out, &[self.num_envs()])?;
        // SAFETY: checked, and the caller's for the length of this call.
        let out = unsafe { out.slice_mut() };
        self.venv.with(py, |venv| {
            venv.envs_mut().zip(out).for_each(|(env, out)| *out = env.choose_red() as i64);
            Ok(())
        })
    }
}
