//! Options of radio links from Python, and the formulas on their own.

use fastrl_binding::arrays::writeable;
use fastrl_binding::vec_env::VecBinding;
use fastrl_core::env::Env;
use fastrl_core::traffic::links::LinkState;
use fastrl_core::traffic::links::account::Account;
use fastrl_core::traffic::links::config::{Blockage, Channel, Config, Selection};
use fastrl_core::traffic::links::path_loss::Surroundings;
use fastrl_core::traffic::links::path_loss::{self, Condition};
use fastrl_core::vec_env::Error;
use numpy::{PyArray1, PyArray2, PyArrayMethods};
use pyo3::exceptions::{PyIndexError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyDict;

/// The value of a name.
fn named<T: Copy>(what: &str, name: &str, names: &[&str], all: &[T]) -> PyResult<T> {
    names.iter().position(|known| *known == name).map(|i| all[i]).ok_or_else(|| {
        let names: Vec<String> = names.iter().map(|known| format!("'{known}'")).collect();
        PyValueError::new_err(format!("{what}: expected {}, got '{name}'", names.join(", ")))
    })
}

/// The options that `fastrl.envs.traffic.links.LinkOptions` has checked and made a dict of.
pub(crate) fn config(options: &Bound<'_, PyDict>) -> PyResult<Config> {
    fn get<'py, T>(options: &Bound<'py, PyDict>, name: &str) -> PyResult<T>
    where
        T: FromPyObjectOwned<'py, Error = PyErr>,
    {
        options
            .get_item(name)?
            .ok_or_else(|| PyValueError::new_err(format!("comms_options: {name} is missing")))?
            .extract::<T>()
    }
    let text = |name: &str| get::<String>(options, name);
    let number = |name: &str| get::<f64>(options, name);
    let channel = named("comms", &text("channel")?, &["range", "37885"], &[Channel::Range, Channel::Tr37885])?;
    let mut config = Config::new(channel);
    config.range = number("range")?;
    config.delivery = number("delivery")?;
    config.connected = get(options, "connected")?;
    config.max_age = number("max_age")?;
    config.surroundings = named("surroundings", &text("surroundings")?, &Surroundings::NAMES, &Surroundings::ALL)?;
    config.blockage = named("blockage", &text("blockage")?, &Blockage::NAMES, &Blockage::ALL)?;
    config.antenna_height = number("antenna_height")?;
    config.vehicle_height = number("vehicle_height")?;
    config.radio.frequency = number("frequency")?;
    config.radio.bandwidth = number("bandwidth")?;
    config.radio.noise_figure = number("noise_figure")?;
    config.radio.antenna_gain = number("antenna_gain")?;
    config.radio.threshold = number("sinr_threshold")?;
    config.radio.slope = number("sinr_slope")?;
    config.powers = get(options, "tx_power")?;
    config.slots = get(options, "slots")?;
    config.subchannels = get(options, "subchannels")?;
    config.selection = named("selection", &text("selection")?, &Selection::NAMES, &Selection::ALL)?;
    config.keep = number("keep_probability")?;
    config.taken = number("sensing_threshold")?;
    config.busy = number("busy_threshold")?;
    Ok(config)
}

/// Path loss in dB of TR 37.885 in a condition, at metres and GHz.
#[pyfunction]
pub(crate) fn path_loss_37885(condition: &str, distance: f64, frequency: f64) -> PyResult<f64> {
    let condition = named("condition", condition, &Condition::NAMES, &Condition::ALL)?;
    Ok(path_loss::path_loss(condition, distance, frequency))
}

/// Writes the statistics of the last message of each agent, [num_envs * num_agents, 4]; NaN of agents that do not act.
/// `links`: of one environment.
pub(crate) fn statistics<E: Env>(
    py: Python<'_>,
    venv: &VecBinding<E>,
    agents: usize,
    out: &Bound<'_, PyAny>,
    links: impl Fn(&E) -> Option<&LinkState> + Send,
) -> PyResult<()> {
    let out = writeable::<f64>("out", out, &[venv.num_envs() * agents, Account::FIELDS.len()])?;
    // SAFETY: checked, and the caller's for the length of this call.
    let out = unsafe { out.slice_mut() };
    venv.with(py, |venv| {
        for (env, rows) in venv.envs().zip(out.chunks_exact_mut(agents * Account::FIELDS.len())) {
            rows.fill(f64::NAN);
            let last = links(env).map_or(&[][..], LinkState::last);
            for (row, account) in rows.chunks_exact_mut(Account::FIELDS.len()).zip(last) {
                row.copy_from_slice(&account.means());
            }
        }
        Ok(())
    })
}

/// The links of environment `env` after its last message, see [`snapshot`]. `links`: of one environment.
pub(crate) fn of_env<'py, E: Env>(
    py: Python<'py>,
    venv: &VecBinding<E>,
    env: usize,
    config: Option<&Config>,
    links: impl Fn(&E) -> Option<&LinkState> + Send,
) -> PyResult<Bound<'py, PyDict>> {
    if env >= venv.num_envs() {
        return Err(PyIndexError::new_err(format!("index: expected 0 to {}, got {env}", venv.num_envs() - 1)));
    }
    let state = venv.with(py, |venv| {
        if venv.was_reset(env) { Ok(links(venv.env(env)).cloned()) } else { Err(Error::NeverReset { env }) }
    })?;
    match (state, config) {
        (Some(state), Some(config)) => snapshot(py, &state, config),
        _ => Err(PyValueError::new_err("there are no links with comms='perfect'")),
    }
}

/// The links of one environment after its last message, as a dict of arrays. S stations, of which the first A are
/// agents.
fn snapshot<'py>(py: Python<'py>, state: &LinkState, config: &Config) -> PyResult<Bound<'py, PyDict>> {
    let (n, agents) = (state.stations(), state.agents());
    let square = |value: &dyn Fn(usize, usize) -> f64, rows: usize| {
        let values = (0..rows).map(|row| (0..n).map(|column| value(row, column)).collect()).collect::<Vec<Vec<f64>>>();
        table(py, values, n)
    };
    let shadowing = |part: usize| move |a: usize, b: usize| if a == b { f64::NAN } else { state.shadowing(a, b)[part] };
    let arrays = PyDict::new(py);
    arrays.set_item("places", table(py, state.places().iter().map(|place| place.to_vec()).collect(), 2)?)?;
    arrays.set_item("resources", PyArray1::from_iter(py, state.resources().iter().map(|&r| i64::from(r))))?;
    arrays.set_item("powers", PyArray1::from_slice(py, state.powers()))?;
    arrays.set_item("shadowing", square(&shadowing(0), n)?)?;
    arrays.set_item("blockage", square(&shadowing(1), n)?)?;
    arrays.set_item("success", square(&|a, b| state.quality(a)[b].success, agents)?)?;
    arrays.set_item("sinr", square(&|a, b| state.quality(a)[b].sinr, agents)?)?;
    arrays.set_item("age", square(&|a, b| f64::from(state.table().of(a)[b].age), agents)?)?;
    arrays.set_item("known", square(&|a, b| f64::from(u8::from(state.table().of(a)[b].known)), agents)?)?;
    if config.channel == Channel::Tr37885 {
        let sensed = (0..agents).map(|a| state.sensed(config, a).to_vec()).collect();
        arrays.set_item("sensed", table(py, sensed, config.resources())?)?;
    }
    Ok(arrays)
}

/// An array of rows of `width` numbers each.
fn table<'py>(py: Python<'py>, rows: Vec<Vec<f64>>, width: usize) -> PyResult<Bound<'py, PyArray2<f64>>> {
    let count = rows.len();
    PyArray1::from_vec(py, rows.into_iter().flatten().collect()).reshape([count, width])
}
