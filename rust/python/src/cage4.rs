//! CAGE Challenge 4 for Python.

use std::sync::Arc;

use fastrl_binding::arrays::{Element, Flag, disjoint, readable, writeable};
use fastrl_binding::vec_env::{VecBinding, autoreset_from_name};
use fastrl_binding::vec_methods;
use fastrl_core::cage4::blue::{BlueAction, host_name, num_actions};
use fastrl_core::cage4::host_view::MOST_BITS;
use fastrl_core::cage4::ledger::NUM_ZONES;
use fastrl_core::cage4::mind::{RedAgent, State};
use fastrl_core::cage4::observation::obs_len;
use fastrl_core::cage4::red_kind::RedKind;
use fastrl_core::cage4::replay::{Mode, Trace};
use fastrl_core::cage4::rules::Rules;
use fastrl_core::cage4::scenario::{
    Exploit, NUM_BLUE, NUM_NETWORKS, NUM_RED, NUM_SLOTS, SUBNET_NAMES, subnet_of, watch_bit,
};
use fastrl_core::cage4::source::Purpose;
use fastrl_core::cage4::{Cage4, Config, MOST_STEPS};
use fastrl_core::cage4_columns;
use pyo3::exceptions::{PyKeyError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::rollout::rollout_method;

fn red_from_name(name: &str) -> PyResult<RedAgent> {
    let place = RedAgent::NAMES.iter().position(|n| *n == name);
    place
        .map(|i| RedAgent::ALL[i])
        .ok_or_else(|| PyValueError::new_err(format!("red_agent: expected 'fsm' or 'discovery', got '{name}'")))
}

/// The tables that indices point into.
pub(crate) fn add_tables(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let actions = |agent| (0..num_actions(agent)).map(|i| BlueAction::from_index(agent, i).name()).collect();
    module.add("CAGE4_ACTIONS", (0..NUM_BLUE).map(actions).collect::<Vec<Vec<String>>>())?;
    module.add("CAGE4_OBS_LENGTHS", (0..NUM_BLUE).map(obs_len).collect::<Vec<_>>())?;
    module.add("CAGE4_HOSTS", (0..NUM_SLOTS).map(host_name).collect::<Vec<_>>())?;
    module.add("CAGE4_SUBNETS", SUBNET_NAMES.to_vec())?;
    module.add("CAGE4_EXPLOITS", Exploit::NAMES.to_vec())?;
    module.add("CAGE4_RED_KINDS", RedKind::NAMES.to_vec())?;
    module.add("CAGE4_RED_STATES", State::NAMES.to_vec())?;
    module.add("CAGE4_RED_AGENTS", RedAgent::NAMES.to_vec())?;
    module.add("CAGE4_RULES", Rules::NAMES.to_vec())?;
    module.add("CAGE4_MESSAGE_BITS", MOST_BITS)?;
    let purposes = PyDict::new(module.py());
    for (number, name) in Purpose::NAMES {
        purposes.set_item(number.to_string(), name)?;
    }
    module.add("CAGE4_DECISIONS", purposes)
}

#[pyclass(frozen, module = "fastrl._native._rust")]
pub(crate) struct Cage4Vec {
    venv: VecBinding<Cage4>,
}

vec_methods!(Cage4Vec);
rollout_method!(Cage4Vec);

#[pymethods]
impl Cage4Vec {
    #[new]
    #[pyo3(signature = (
        num_envs, *, red_agent, episode_length, num_threads, autoreset_mode, numpy_random, host_view=false,
        messages=0, zone_rewards=false, rules="original"
    ))]
    #[expect(clippy::too_many_arguments, reason = "options by their names")]
    fn new(
        py: Python<'_>,
        num_envs: usize,
        red_agent: &str,
        episode_length: u32,
        num_threads: usize,
        autoreset_mode: &str,
        numpy_random: bool,
        host_view: bool,
        messages: u32,
        zone_rewards: bool,
        rules: &str,
    ) -> PyResult<Self> {
        check_length(episode_length)?;
        if messages > if host_view { MOST_BITS } else { 0 } {
            let message =
                format!("messages: expected at most {MOST_BITS} bits, and 0 without host_view, got {messages}");
            return Err(PyValueError::new_err(message));
        }
        let config = Config {
            red: red_from_name(red_agent)?,
            rules: Rules::named(rules).map_err(PyValueError::new_err)?,
            steps: episode_length,
            numpy_random,
            host_view,
            messages,
            zone_rewards,
        };
        let config = Arc::new(config);
        let make = || Cage4::new(config.clone());
        let venv = VecBinding::new(py, num_envs, make, autoreset_from_name(autoreset_mode)?, num_threads)?;
        Ok(Self { venv })
    }

    fn send(&self, py: Python<'_>, messages: &Bound<'_, PyAny>) -> PyResult<()> {
        let messages = readable::<u8>("messages", messages, &[self.num_envs(), NUM_BLUE])?;
        // SAFETY: checked, and the caller leaves it alone during this call.
        let (messages, _) = unsafe { messages.slice() }.as_chunks::<NUM_BLUE>();
        self.venv.with(py, |venv| {
            venv.envs_mut().zip(messages).for_each(|(env, messages)| env.send(*messages));
            Ok(())
        })
    }

    fn busy(&self, py: Python<'_>, out: &Bound<'_, PyAny>) -> PyResult<()> {
        let out = writeable::<u8>("out", out, &[self.num_envs(), NUM_BLUE])?;
        // SAFETY: checked, and the caller's for the length of this call.
        let out = unsafe { out.slice_mut() };
        self.venv.with(py, |venv| {
            let tasks = venv.envs().flat_map(|env| env.tasks());
            out.iter_mut().zip(tasks).for_each(|(out, task)| *out = task.map_or(0, |task| task.ticks));
            Ok(())
        })
    }

    fn ledger(&self, py: Python<'_>, out: &Bound<'_, PyAny>) -> PyResult<()> {
        let out = writeable::<i32>("out", out, &[self.num_envs(), 3, NUM_ZONES, 4])?;
        // SAFETY: checked, and the caller's for the length of this call.
        let (out, _) = unsafe { out.slice_mut() }.as_chunks_mut::<4>();
        self.venv.with(py, |venv| {
            let rewards = venv.envs().flat_map(|env| env.ledger().phases()).flat_map(|phase| phase.zones());
            for (out, reward) in out.iter_mut().zip(rewards) {
                *out = [reward.work_failed, reward.access_failed, reward.impact, reward.action_cost];
            }
            Ok(())
        })
    }

    #[expect(clippy::too_many_arguments, reason = "the arrays of the truth")]
    fn truth(
        &self,
        py: Python<'_>,
        hosts: &Bound<'_, PyAny>,
        red_access: &Bound<'_, PyAny>,
        red_sessions: &Bound<'_, PyAny>,
        processes: &Bound<'_, PyAny>,
        alerts: &Bound<'_, PyAny>,
        blocked: &Bound<'_, PyAny>,
        red_action: &Bound<'_, PyAny>,
        blue_action: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let n = self.num_envs();
        let hosts = writeable::<Flag>("hosts", hosts, &[n, NUM_SLOTS])?;
        let red_access = writeable::<u8>("red_access", red_access, &[n, NUM_SLOTS])?;
        let red_sessions = writeable::<u8>("red_sessions", red_sessions, &[n, NUM_SLOTS])?;
        let processes = writeable::<u8>("processes", processes, &[n, NUM_SLOTS])?;
        let alerts = writeable::<u8>("alerts", alerts, &[n, NUM_SLOTS])?;
        let blocked = writeable::<u16>("blocked", blocked, &[n, NUM_NETWORKS])?;
        let red_action = writeable::<i16>("red_action", red_action, &[n, NUM_RED, 3])?;
        let blue_action = writeable::<i16>("blue_action", blue_action, &[n, NUM_BLUE, 2])?;
        let by_host = [hosts.place(), red_access.place(), red_sessions.place(), processes.place(), alerts.place()];
        disjoint(&[&by_host[..], &[blocked.place(), red_action.place(), blue_action.place()]].concat())?;
        // SAFETY: checked, disjoint, and the caller's for the length of this call.
        let (hosts, access, sessions, processes, alerts, blocked, red_actions, blue_actions) = unsafe {
            (
                hosts.bytes_mut(),
                red_access.slice_mut(),
                red_sessions.slice_mut(),
                processes.slice_mut(),
                alerts.slice_mut(),
                blocked.slice_mut(),
                red_action.slice_mut(),
                blue_action.slice_mut(),
            )
        };
        hosts.fill(0);
        access.fill(0);
        sessions.fill(0);
        processes.fill(0);
        alerts.fill(0);
        self.venv.with(py, |venv| {
            for (i, env) in venv.envs().enumerate() {
                let (world, reds) = (env.world(), env.reds());
                for slot in world.network.hosts() {
                    hosts[i * NUM_SLOTS + slot] = 1;
                    processes[i * NUM_SLOTS + slot] = world.network.num_processes(slot).min(255) as u8;
                    let noted = |hosts: &[u32; NUM_NETWORKS]| u8::from(hosts[subnet_of(slot)] & watch_bit(slot) != 0);
                    let (process, connection) = (&world.watch.process_alerts, &world.watch.connection_alerts);
                    alerts[i * NUM_SLOTS + slot] = noted(process) | noted(connection) << 1;
                }
                for session in reds.iter().flat_map(|red| red.sessions.list()) {
                    let at = i * NUM_SLOTS + usize::from(session.host);
                    access[at] = access[at].max(1 + u8::from(session.root));
                    sessions[at] = sessions[at].saturating_add(1);
                }
                blocked[i * NUM_NETWORKS..][..NUM_NETWORKS].copy_from_slice(&world.blocks);
                for (task, out) in env.tasks().iter().zip(blue_actions[i * NUM_BLUE * 2..].chunks_exact_mut(2)) {
                    out.copy_from_slice(&task.map_or([-1, 0], |task| [task.index.into(), task.ticks.into()]));
                }
                for (red, out) in reds.iter().zip(red_actions[i * NUM_RED * 3..].chunks_exact_mut(3)) {
                    let action = red.action.map(|a| [a.kind as i16, a.target.into(), red.ticks.into()]);
                    out.copy_from_slice(&action.unwrap_or([-1, -1, 0]));
                }
            }
            Ok(())
        })
    }
}

fn check_length(episode_length: u32) -> PyResult<()> {
    if (2..=MOST_STEPS).contains(&episode_length) {
        return Ok(());
    }
    let message = format!("episode_length: expected 2 to {MOST_STEPS}, got {episode_length}");
    Err(PyValueError::new_err(message))
}

fn read<'a, T: Element>(name: &'static str, array: &'a Bound<'_, PyAny>) -> PyResult<&'a [T]> {
    // SAFETY: `replay_cage4` writes to no array, and its caller leaves them alone during the call.
    Ok(unsafe { readable::<T>(name, array, &[array.len()?])?.slice() })
}

macro_rules! read_trace {
    (
        episode { $($episode:ident: $episode_type:ty, $episode_width:expr;)* }
        given { $($given:ident: $given_type:ty, $given_width:expr;)* }
        compared { $($name:ident: $type:ty, $width:expr;)* }
    ) => {
        /// Calls `use_it` with the trace of some arrays.
        fn with_trace<R>(
            (red, seed, is_chained, steps): (RedAgent, u64, bool, u32),
            arrays: &Bound<'_, PyDict>,
            use_it: impl FnOnce(Trace<'_>) -> PyResult<R>,
        ) -> PyResult<R> {
            let get = |name: &str| {
                arrays.get_item(name)?.ok_or_else(|| PyKeyError::new_err(format!("the array {name} is missing")))
            };
            // The slices borrow from these objects until the end of the call.
            $(let $episode = get(stringify!($episode))?;)*
            $(let $given = get(stringify!($given))?;)*
            $(let $name = get(stringify!($name))?;)*
            let (sessions, sessions_off) = (get("sessions")?, get("sessions_off")?);
            let (tape, tape_kind, tape_off) = (get("tape")?, get("tape_kind")?, get("tape_off")?);
            use_it(Trace {
                red,
                seed,
                is_chained,
                steps,
                $($episode: read(stringify!($episode), &$episode)?,)*
                $($given: read(stringify!($given), &$given)?,)*
                $($name: read(stringify!($name), &$name)?,)*
                sessions: read("sessions", &sessions)?,
                sessions_off: read("sessions_off", &sessions_off)?,
                tape: read("tape", &tape)?,
                tape_kind: read("tape_kind", &tape_kind)?,
                tape_off: read("tape_off", &tape_off)?,
            })
        }
    };
}
cage4_columns!(read_trace);

/// Replays a trace. Returns steps, mismatches and the first difference as (episode, step or None, text).
#[pyfunction]
#[pyo3(signature = (mode, red_agent, seed, chained, steps, arrays))]
#[expect(clippy::type_complexity, reason = "a plain tuple for Python to name")]
pub(crate) fn replay_cage4(
    py: Python<'_>,
    mode: &str,
    red_agent: &str,
    seed: u64,
    chained: bool,
    steps: u32,
    arrays: &Bound<'_, PyDict>,
) -> PyResult<(usize, usize, Option<(usize, Option<usize>, String)>)> {
    let mode = match mode {
        "decisions" => Mode::Decisions,
        "seed" => Mode::Seed,
        _ => return Err(PyValueError::new_err(format!("mode: expected 'decisions' or 'seed', got '{mode}'"))),
    };
    with_trace((red_from_name(red_agent)?, seed, chained, steps), arrays, |trace| {
        trace.check().map_err(PyValueError::new_err)?;
        let report = py.detach(|| trace.replay(mode));
        Ok((report.steps, report.mismatches, report.first.map(|d| (d.episode, d.step, d.what))))
    })
}
