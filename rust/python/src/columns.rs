//! Properties of vehicles as arrays for tasks of users, and ends that those decide.

use fastrl_binding::arrays::{Flag, disjoint, readable, writeable};
use fastrl_binding::vec_env::VecBinding;
use fastrl_core::env::{Endable, Env};
use fastrl_core::traffic::columns::{Driven, Property, each_vehicle, width};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// The most columns that an environment's row needs.
pub(crate) fn num_columns<E: Env + Driven>(py: Python<'_>, venv: &VecBinding<E>) -> PyResult<usize> {
    let agents = venv.num_agents();
    venv.with(py, |venv| Ok(venv.envs().map(|env| width(env, agents)).max().unwrap_or(0)))
}

/// Writes a property of all vehicles, [num_envs, columns]; elsewhere `out` stays as it is.
pub(crate) fn write<E: Env + Driven>(
    py: Python<'_>,
    venv: &VecBinding<E>,
    name: &str,
    out: &Bound<'_, PyAny>,
) -> PyResult<()> {
    let (agents, columns) = (venv.num_agents(), num_columns(py, venv)?);
    let shape = [venv.num_envs(), columns];
    let Some(property) = Property::<E::Map>::named(name) else {
        return Err(PyValueError::new_err(format!("name: expected a property of vehicles, got '{name}'")));
    };
    macro_rules! fill {
        ($out:expr, $value:expr) => {{
            let (out, value) = ($out, $value);
            venv.with(py, |venv| {
                for (env, row) in venv.envs().zip(out.chunks_exact_mut(columns.max(1))) {
                    each_vehicle(env, agents, |place, vehicle| row[place] = value(env.traffic(), vehicle));
                }
                Ok(())
            })
        }};
    }
    match property {
        Property::Number(of) => {
            let out = writeable::<f64>("out", out, &shape)?;
            // SAFETY: `writeable` has checked it, and it is the caller's for the length of this call.
            fill!(unsafe { out.slice_mut() }, of)
        }
        Property::Index(of) => {
            let out = writeable::<i64>("out", out, &shape)?;
            // SAFETY: as above.
            fill!(unsafe { out.slice_mut() }, |traffic: &_, i| of(traffic, i) as i64)
        }
        Property::Flag(of) => {
            let out = writeable::<Flag>("out", out, &shape)?;
            // SAFETY: as above.
            fill!(unsafe { out.bytes_mut() }, |traffic: &_, i| u8::from(of(traffic, i)))
        }
    }
}

/// Writes the gap before each agent's vehicle and the speed of what is there, [num_envs, num_agents] each; those of agents
/// without a vehicle stay as they are.
pub(crate) fn leaders<E: Env + Driven>(
    py: Python<'_>,
    venv: &VecBinding<E>,
    gaps: &Bound<'_, PyAny>,
    speeds: &Bound<'_, PyAny>,
) -> PyResult<()> {
    let agents = venv.num_agents();
    let gaps = writeable::<f64>("gaps", gaps, &[venv.num_envs(), agents])?;
    let speeds = writeable::<f64>("speeds", speeds, &[venv.num_envs(), agents])?;
    disjoint(&[gaps.place(), speeds.place()])?;
    // SAFETY: checked, disjoint, and the caller's for the length of this call.
    let (gaps, speeds) = unsafe { (gaps.slice_mut(), speeds.slice_mut()) };
    venv.with(py, |venv| {
        for (i, env) in venv.envs_mut().enumerate() {
            for agent in 0..agents {
                if let Some(vehicle) = env.vehicle_of(agent) {
                    let row = i * agents + agent;
                    (gaps[row], speeds[row]) = env.traffic_mut().leader(vehicle);
                }
            }
        }
        Ok(())
    })
}

/// Writes whether agents have arrived, [num_envs, num_agents], and the seconds since the episodes began, [num_envs].
pub(crate) fn progress<E: Env + Driven>(
    py: Python<'_>,
    venv: &VecBinding<E>,
    arrived: &Bound<'_, PyAny>,
    time: &Bound<'_, PyAny>,
) -> PyResult<()> {
    let agents = venv.num_agents();
    let arrived = writeable::<Flag>("arrived", arrived, &[venv.num_envs(), agents])?;
    let time = writeable::<f64>("time", time, &[venv.num_envs()])?;
    disjoint(&[arrived.place(), time.place()])?;
    // SAFETY: checked, disjoint, and the caller's for the length of this call.
    let (arrived, time) = unsafe { (arrived.bytes_mut(), time.slice_mut()) };
    venv.with(py, |venv| {
        for ((env, arrived), time) in venv.envs().zip(arrived.chunks_exact_mut(agents)).zip(time) {
            *time = env.time();
            arrived.iter_mut().enumerate().for_each(|(agent, flag)| *flag = u8::from(env.has_arrived(agent)));
        }
        Ok(())
    })
}

/// Ends the episode for agents, [num_envs * num_agents], and writes which act next.
pub(crate) fn end<E: Env + Endable>(
    py: Python<'_>,
    venv: &VecBinding<E>,
    ended: &Bound<'_, PyAny>,
    alive: &Bound<'_, PyAny>,
) -> PyResult<()> {
    let rows = venv.num_envs() * venv.num_agents();
    let ended = readable::<Flag>("ended", ended, &[rows])?;
    let alive = writeable::<Flag>("alive", alive, &[rows])?;
    disjoint(&[ended.place(), alive.place()])?;
    // SAFETY: checked, disjoint, and the caller's for the length of this call.
    let (ended, alive) = unsafe { (ended.bytes(), alive.bytes_mut()) };
    venv.with(py, |venv| {
        venv.end(ended);
        alive.copy_from_slice(venv.alive());
        Ok(())
    })
}

/// The methods of a vector class over its `venv`; `_rust.pyi` says what they do.
macro_rules! column_methods {
    ($class:ident) => {
        #[pymethods]
        impl $class {
            #[getter]
            fn num_columns(&self, py: Python<'_>) -> PyResult<usize> {
                $crate::columns::num_columns(py, &self.venv)
            }

            fn column(&self, py: Python<'_>, name: &str, out: &Bound<'_, PyAny>) -> PyResult<()> {
                $crate::columns::write(py, &self.venv, name, out)
            }

            fn leaders(&self, py: Python<'_>, gaps: &Bound<'_, PyAny>, speeds: &Bound<'_, PyAny>) -> PyResult<()> {
                $crate::columns::leaders(py, &self.venv, gaps, speeds)
            }

            fn progress(&self, py: Python<'_>, arrived: &Bound<'_, PyAny>, time: &Bound<'_, PyAny>) -> PyResult<()> {
                $crate::columns::progress(py, &self.venv, arrived, time)
            }

            fn end(&self, py: Python<'_>, ended: &Bound<'_, PyAny>, alive: &Bound<'_, PyAny>) -> PyResult<()> {
                $crate::columns::end(py, &self.venv, ended, alive)
            }
        }
    };
}

pub(crate) use column_methods;
