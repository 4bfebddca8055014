//! CAGE Challenge 2 with workflows, for Python.

use fastrl_binding::arrays::{disjoint, list, readable, room, writeable};
use fastrl_binding::vec_env::{VecBinding, autoreset_from_name};
use fastrl_binding::vec_methods;
use fastrl_core::cage2::workflow::{NUM_TYPES, Order, WorkflowCage2};
use fastrl_core::single_agent::SingleAgentEnv as _;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::cage2::Options;
use crate::rollout::rollout_method;

#[pyclass(frozen, module = "fastrl._native._rust")]
pub(crate) struct Cage2WorkflowVec {
    venv: VecBinding<WorkflowCage2>,
}

vec_methods!(Cage2WorkflowVec);
rollout_method!(Cage2WorkflowVec);

#[pymethods]
impl Cage2WorkflowVec {
    #[new]
    #[pyo3(signature = (num_envs, *, ruleset, red_agents, red_weights, episode_length, memory, observe, actions,
                        compliance_weight, num_threads, autoreset_mode))]
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
        compliance_weight: f64,
        num_threads: usize,
        autoreset_mode: &str,
    ) -> PyResult<Self> {
        let options = Options {
            ruleset,
            red_agents,
            red_weights,
            episode_length,
            memory,
            observe,
            actions,
            python_random: false,
        };
        let config = options.check(None)?;
        if !(0.0..=1e6).contains(&compliance_weight) {
            return Err(PyValueError::new_err(format!(
                "compliance_weight: expected 0 to 1,000,000, got {compliance_weight}"
            )));
        }
        let make = || WorkflowCage2::new(config.clone(), compliance_weight);
        let venv = VecBinding::new(py, num_envs, make, autoreset_from_name(autoreset_mode)?, num_threads)?;
        Ok(Self { venv })
    }

    fn set_workflows(&self, py: Python<'_>, workflows: &Bound<'_, PyAny>) -> PyResult<()> {
        let workflows = readable::<i8>("workflows", workflows, &[self.num_envs(), NUM_TYPES])?;
        // SAFETY: nothing here writes to it, and it is the caller's for the length of this call.
        let workflows = unsafe { workflows.slice() };
        let mut orders = room(self.num_envs())?;
        for (i, types) in workflows.chunks_exact(NUM_TYPES).enumerate() {
            let order = types.try_into().ok().and_then(Order::new);
            orders.push(order.ok_or_else(|| {
                PyValueError::new_err(format!(
                    "workflows: expected each of 0 to {} once in every row, got {types:?} for environment {i}",
                    NUM_TYPES - 1
                ))
            })?);
        }
        self.venv.with(py, |venv| {
            for (env, order) in venv.envs_mut().zip(orders) {
                env.set_order(order);
            }
            Ok(())
        })
    }

    fn workflows(&self, py: Python<'_>, out: &Bound<'_, PyAny>) -> PyResult<()> {
        let out = writeable::<i8>("out", out, &[self.num_envs(), NUM_TYPES])?;
        // SAFETY: checked, and the caller's for the length of this call.
        let out = unsafe { out.slice_mut() };
        self.venv.with(py, |venv| {
            for (env, row) in venv.envs().zip(out.chunks_exact_mut(NUM_TYPES)) {
                row.copy_from_slice(&env.state().account.order.types().map(|t| t as i8));
            }
            Ok(())
        })
    }

    #[expect(clippy::too_many_arguments, reason = "one array for each result")]
    fn episodes(
        &self,
        py: Python<'_>,
        finished: &Bound<'_, PyAny>,
        returns: &Bound<'_, PyAny>,
        compliance: &Bound<'_, PyAny>,
        fixes: &Bound<'_, PyAny>,
        red_agent: &Bound<'_, PyAny>,
        workflow: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let n = self.num_envs();
        let finished = writeable::<i64>("finished", finished, &[n])?;
        let returns = writeable::<f64>("returns", returns, &[n])?;
        let compliance = writeable::<f64>("compliance", compliance, &[n])?;
        let fixes = writeable::<i64>("fixes", fixes, &[n])?;
        let red_agent = writeable::<u8>("red_agent", red_agent, &[n])?;
        let workflow = writeable::<i8>("workflow", workflow, &[n, NUM_TYPES])?;
        disjoint(&[
            finished.place(),
            returns.place(),
            compliance.place(),
            fixes.place(),
            red_agent.place(),
            workflow.place(),
        ])?;
        // SAFETY: checked, disjoint, and the caller's for the length of this call.
        let (finished, returns, compliance, fixes, red_agent, workflow) = unsafe {
            (
                finished.slice_mut(),
                returns.slice_mut(),
                compliance.slice_mut(),
                fixes.slice_mut(),
                red_agent.slice_mut(),
                workflow.slice_mut(),
            )
        };
        self.venv.with(py, |venv| {
            for (i, env) in venv.envs().enumerate() {
                let last = &env.state().finished;
                finished[i] = last.number as i64;
                returns[i] = f64::from(last.account.return_tenths) / 10.0;
                compliance[i] = last.account.compliance();
                fixes[i] = i64::from(last.account.fixes);
                red_agent[i] = last.red;
                let row = &mut workflow[NUM_TYPES * i..NUM_TYPES * (i + 1)];
                row.copy_from_slice(&last.account.order.types().map(|t| t as i8));
            }
            Ok(())
        })
    }
}
