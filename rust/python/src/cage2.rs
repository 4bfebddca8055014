//! CAGE Challenge 2 for Python.

use std::sync::Arc;

use fastrl_binding::arrays::{Array, Element, Flag, disjoint, list, readable, writeable};
use fastrl_binding::vec_env::{VecBinding, autoreset_from_name};
use fastrl_binding::vec_methods;
use fastrl_core::cage2::events::{NUM_RED_ACTIONS, RED_KIND_NAMES, RedAction};
use fastrl_core::cage2::red_agents::RedKind;
use fastrl_core::cage2::replay::{Mode, Trace, packed_obs};
use fastrl_core::cage2::scenario::{EXPLOIT_NAMES, HOST_NAMES, IMAGE_KINDS, NUM_HOSTS, SUBNET_NAMES};
use fastrl_core::cage2::tables::{SCENARIO2, Scenario};
use fastrl_core::cage2::workflow::{UNIT_TYPES, type_of};
use fastrl_core::cage2::{Cage2, Config, Game, effective_actions, red_view, render, rows, truth};
use pyo3::exceptions::{PyIndexError, PyKeyError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::cage2_memory::layout_from_name;
use crate::cage2_scenario::{Cage2Scenario, action_names, ruleset_from_name};
use crate::rollout::rollout_method;

/// A scenario by the rules of a name; None: Scenario 2.
fn tables(ruleset: &str, scenario: Option<&Cage2Scenario>) -> PyResult<Arc<Scenario>> {
    let ruleset = ruleset_from_name(ruleset)?;
    Ok(scenario.map_or_else(|| ruleset.scenario2().clone(), |scenario| scenario.by(ruleset)))
}

/// Returns whether observations have the true state.
fn truth_from_name(name: &str) -> PyResult<bool> {
    match name {
        "blue" => Ok(false),
        "truth" => Ok(true),
        _ => Err(PyValueError::new_err(format!("observe: expected 'blue' or 'truth', got '{name}'"))),
    }
}

fn red_from_name(name: &str) -> PyResult<RedKind> {
    let place = RedKind::NAMES.iter().position(|n| *n == name);
    place.map(|i| RedKind::ALL[i]).ok_or_else(|| {
        PyValueError::new_err(format!("red_agent: expected 'bline', 'meander' or 'sleep', got '{name}'"))
    })
}

/// The options of every CAGE 2 environment.
pub(crate) struct Options<'a> {
    pub(crate) ruleset: &'a str,
    pub(crate) red_agents: Vec<String>,
    pub(crate) red_weights: Vec<f64>,
    pub(crate) episode_length: u32,
    pub(crate) memory: &'a str,
    pub(crate) observe: &'a str,
    pub(crate) actions: Vec<u16>,
    pub(crate) python_random: bool,
}

impl Options<'_> {
    /// # Arguments
    /// - `scenario`: `None`: Scenario 2.
    pub(crate) fn check(self, scenario: Option<&Cage2Scenario>) -> PyResult<Arc<Config>> {
        let Self { ruleset, red_agents, red_weights, episode_length, .. } = self;
        let Self { memory, observe, actions, python_random, .. } = self;
        let refuse = |message: String| Err(PyValueError::new_err(message));
        if episode_length == 0 {
            return refuse("episode_length: expected at least 1, got 0".into());
        }
        if red_agents.is_empty() || red_agents.len() > RedKind::ALL.len() || red_agents.len() != red_weights.len() {
            return refuse(format!("red_agent: expected one to three agents, got {red_agents:?} with {red_weights:?}"));
        }
        let total: f64 = red_weights.iter().sum();
        if red_weights.iter().any(|w| w.is_nan() || *w <= 0.0) || !total.is_finite() {
            return refuse(format!("red_agent: expected positive weights, got {red_weights:?}"));
        }
        if python_random && red_agents.len() > 1 {
            return refuse("random='python' plays a single red agent, as the challenge does: name one".into());
        }
        let scenario = tables(ruleset, scenario)?;
        let last = scenario.actions.len() - 1;
        if actions.is_empty() || actions.iter().any(|&a| usize::from(a) > last) {
            return refuse(format!("actions: expected indices from 0 to {last}, got {actions:?}"));
        }
        let kinds = red_agents.iter().map(|name| red_from_name(name)).collect::<PyResult<Vec<_>>>()?;
        if let Some(why) = kinds.iter().find_map(|kind| kind.cannot_play(&scenario)) {
            return refuse(format!("red_agent: {why}"));
        }
        if !scenario.is_scenario2() && observe != "blue" {
            return refuse(format!("observe: expected 'blue' with a scenario of your own, got '{observe}'"));
        }
        Ok(Arc::new(Config {
            scenario,
            red: kinds.into_iter().zip(red_weights.iter().map(|w| w / total)).collect(),
            episode_length,
            memory: layout_from_name(memory)?,
            truth: truth_from_name(observe)?,
            actions,
            python_random,
        }))
    }
}

/// The tables that indices point into.
pub(crate) fn add_tables(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("CAGE2_ACTIONS", action_names(&SCENARIO2))?;
    let red_actions = (0..NUM_RED_ACTIONS).filter_map(RedAction::from_index).map(|action| action.name(&SCENARIO2));
    module.add("CAGE2_RED_ACTIONS", red_actions.collect::<Vec<_>>())?;
    module.add("CAGE2_RED_VIEW", red_view::names())?;
    module.add("CAGE2_IMAGES", IMAGE_KINDS.iter().map(|(name, _)| *name).collect::<Vec<_>>())?;
    module.add("CAGE2_HOSTS", HOST_NAMES.to_vec())?;
    module.add("CAGE2_SUBNETS", SUBNET_NAMES.to_vec())?;
    module.add("CAGE2_EXPLOITS", EXPLOIT_NAMES.to_vec())?;
    module.add("CAGE2_RED_KINDS", RED_KIND_NAMES.to_vec())?;
    module.add("CAGE2_RED_AGENTS", RedKind::NAMES.to_vec())?;
    module.add("CAGE2_TRUTH", truth::names())?;
    module.add("CAGE2_ROW", rows::names())?;
    module.add("CAGE2_UNIT_TYPES", UNIT_TYPES.to_vec())?;
    module.add("CAGE2_TYPE_OF_HOST", (0..NUM_HOSTS).map(type_of).collect::<Vec<_>>())?;
    module.add("CAGE2_EFFECTIVE_ACTIONS", effective_actions(&SCENARIO2))
}

#[pyclass(frozen, module = "fastrl._native._rust")]
pub(crate) struct Cage2Vec {
    venv: VecBinding<Cage2>,
    scenario: Arc<Scenario>,
}

vec_methods!(Cage2Vec);
rollout_method!(Cage2Vec);

#[pymethods]
impl Cage2Vec {
    #[new]
    #[pyo3(signature = (num_envs, *, ruleset, red_agents, red_weights, episode_length, memory, observe, actions, num_threads,
                        autoreset_mode, python_random, scenario=None))]
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
        scenario: Option<&Cage2Scenario>,
    ) -> PyResult<Self> {
        let options =
            Options { ruleset, red_agents, red_weights, episode_length, memory, observe, actions, python_random };
        let config = options.check(scenario)?;
        let make = || Cage2::new(config.clone());
        let venv = VecBinding::new(py, num_envs, make, autoreset_from_name(autoreset_mode)?, num_threads)?;
        Ok(Self { venv, scenario: config.scenario.clone() })
    }

    fn alerts(&self, py: Python<'_>, out: &Bound<'_, PyAny>) -> PyResult<()> {
        let hosts = self.scenario.len();
        let out = writeable::<Flag>("out", out, &[self.num_envs(), hosts])?;
        // SAFETY: checked, and the caller's for the length of this call.
        let out = unsafe { out.bytes_mut() };
        self.venv.with(py, |venv| {
            for (env, flags) in venv.envs().zip(out.chunks_exact_mut(hosts)) {
                let alerts = env.episode().view.alerts();
                for (host, flag) in flags.iter_mut().enumerate() {
                    *flag = (alerts >> host & 1) as u8;
                }
            }
            Ok(())
        })
    }

    fn truth(
        &self,
        py: Python<'_>,
        red_access: &Bound<'_, PyAny>,
        red_sessions: &Bound<'_, PyAny>,
        processes: &Bound<'_, PyAny>,
        red_action: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let (n, hosts) = (self.num_envs(), self.scenario.len());
        let red_access = writeable::<u8>("red_access", red_access, &[n, hosts])?;
        let red_sessions = writeable::<u8>("red_sessions", red_sessions, &[n, hosts])?;
        let processes = writeable::<u8>("processes", processes, &[n, hosts])?;
        let red_action = writeable::<i8>("red_action", red_action, &[n, 3])?;
        disjoint(&[red_access.place(), red_sessions.place(), processes.place(), red_action.place()])?;
        // SAFETY: checked, disjoint, and the caller's for the length of this call.
        let (access, sessions, processes, action) = unsafe {
            (red_access.slice_mut(), red_sessions.slice_mut(), processes.slice_mut(), red_action.slice_mut())
        };
        let count = |n: usize| u8::try_from(n).unwrap_or(u8::MAX);
        self.venv.with(py, |venv| {
            for (i, env) in venv.envs().enumerate() {
                let episode = env.episode();
                for host in 0..hosts {
                    let at = i * hosts + host;
                    access[at] = episode.network.red_access(host);
                    sessions[at] = count(episode.network.sessions_on(host));
                    processes[at] = count(episode.network.processes(host, &self.scenario) as usize);
                }
                let red = episode.last_red;
                action[3 * i..3 * i + 3].copy_from_slice(&[red.kind, red.target, red.success]);
            }
            Ok(())
        })
    }

    fn render(&self, py: Python<'_>, index: usize) -> PyResult<String> {
        if index >= self.num_envs() {
            return Err(PyIndexError::new_err(format!("index: expected 0 to {}, got {index}", self.num_envs() - 1)));
        }
        self.venv.with(py, |venv| Ok(render::table(venv.env(index).episode(), &self.scenario)))
    }
}

/// Replays a trace. Returns steps, mismatches and the first difference as (episode, step or None, text).
#[pyfunction]
#[pyo3(signature = (mode, ruleset, red_agent, seed, arrays, scenario=None))]
#[expect(clippy::type_complexity, reason = "a plain tuple for Python to name")]
pub(crate) fn replay_cage2(
    py: Python<'_>,
    mode: &str,
    ruleset: &str,
    red_agent: &str,
    seed: u64,
    arrays: &Bound<'_, PyDict>,
    scenario: Option<&Cage2Scenario>,
) -> PyResult<(usize, usize, Option<(usize, Option<usize>, String)>)> {
    let mode = match mode {
        "decisions" => Mode::Decisions,
        "seed" => Mode::Seed,
        _ => return Err(PyValueError::new_err(format!("mode: expected 'decisions' or 'seed', got '{mode}'"))),
    };
    let get = |name: &'static str| {
        arrays.get_item(name)?.ok_or_else(|| PyKeyError::new_err(format!("the array {name} is missing")))
    };
    let length = get("length")?;
    let collided = get("collided")?;
    let reward = get("reward")?;
    let episodes = length.len()?;
    let steps = reward.len()?;
    // A file has it where red's actions are given.
    let red_known = arrays.get_item("red_known")?;
    let objects = [
        "reset_obs",
        "obs",
        "blue_action",
        "red_kind",
        "red_target",
        "red_success",
        "exploit",
        "detected",
        "session",
        "red_access",
        "red_sessions",
        "processes",
    ]
    .map(get);
    let [
        reset_obs,
        obs,
        blue_action,
        red_kind,
        red_target,
        red_success,
        exploit,
        detected,
        session,
        red_access,
        red_sessions,
        processes,
    ] = objects;
    // The slices borrow from these objects until the end of the call.
    let (reset_obs, obs, blue_action) = (reset_obs?, obs?, blue_action?);
    let (red_kind, red_target, red_success) = (red_kind?, red_target?, red_success?);
    let (exploit, detected, session) = (exploit?, detected?, session?);
    let (red_access, red_sessions, processes) = (red_access?, red_sessions?, processes?);
    let scenario = tables(ruleset, scenario)?;
    let (hosts, packed) = (scenario.len(), packed_obs(scenario.len()));
    let trace = Trace {
        scenario: &scenario,
        red: if red_agent == "given" { None } else { Some(red_from_name(red_agent)?) },
        seed,
        length: read(readable("length", &length, &[episodes])?),
        // SAFETY: nothing here writes to any array, and the caller leaves them alone during this call.
        collided: unsafe { readable::<Flag>("collided", &collided, &[episodes])?.bytes() },
        reset_obs: read(readable("reset_obs", &reset_obs, &[episodes, packed])?),
        obs: read(readable("obs", &obs, &[steps, packed])?),
        reward: read(readable("reward", &reward, &[steps])?),
        blue_action: read(readable("blue_action", &blue_action, &[steps])?),
        red_kind: read(readable("red_kind", &red_kind, &[steps])?),
        red_target: read(readable("red_target", &red_target, &[steps])?),
        red_success: read(readable("red_success", &red_success, &[steps])?),
        red_known: match &red_known {
            Some(red_known) => read(readable("red_known", red_known, &[steps])?),
            None => &[],
        },
        exploit: read(readable("exploit", &exploit, &[steps])?),
        detected: read(readable("detected", &detected, &[steps])?),
        session: read(readable("session", &session, &[steps])?),
        red_access: read(readable("red_access", &red_access, &[steps, hosts])?),
        red_sessions: read(readable("red_sessions", &red_sessions, &[steps, hosts])?),
        processes: read(readable("processes", &processes, &[steps, hosts])?),
    };
    trace.check().map_err(PyValueError::new_err)?;
    let report = py.detach(|| trace.replay(mode));
    Ok((report.steps, report.mismatches, report.first.map(|d| (d.episode, d.step, d.what))))
}

fn read<'a, T: Element>(array: Array<'a, '_, T>) -> &'a [T] {
    // SAFETY: `replay_cage2` writes to no array, and its caller leaves them alone during the call.
    unsafe { array.slice() }
}
