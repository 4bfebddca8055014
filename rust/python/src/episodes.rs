//! Results of the last episodes of traffic for Python.

use fastrl_binding::arrays::room;
use fastrl_binding::vec_env::VecBinding;
use fastrl_core::env::Env;
use fastrl_core::traffic::links::account::Account;
use fastrl_core::traffic::metrics::Episode;
use numpy::PyArray1;
use pyo3::prelude::*;
use pyo3::types::PyDict;

/// The names of results, with those of links if there are some.
pub(crate) fn names(has_links: bool) -> Vec<&'static str> {
    let of_links: &[&str] = if has_links { &Account::FIELDS } else { &[] };
    Episode::FIELDS.iter().chain(of_links).copied().collect()
}

/// A dict of arrays with an entry for each environment: the numbers of these names ([`Env::episode_info`]), and how many
/// episodes have ended.
pub(crate) fn table<'py, E: Env>(
    py: Python<'py>,
    venv: &VecBinding<E>,
    names: &[&str],
    finished: impl Fn(&E) -> u64 + Send,
) -> PyResult<Bound<'py, PyDict>> {
    let mut counts: Vec<i64> = room(venv.num_envs())?;
    let mut columns: Vec<Vec<f64>> = names.iter().map(|_| room(venv.num_envs())).collect::<PyResult<_>>()?;
    venv.with(py, |venv| {
        for env in venv.envs() {
            counts.push(finished(env) as i64);
            columns.iter_mut().zip(names).for_each(|(column, name)| column.push(env.episode_info(name)));
        }
        Ok(())
    })?;
    let table = PyDict::new(py);
    table.set_item("finished", PyArray1::from_vec(py, counts))?;
    for (name, column) in names.iter().zip(columns) {
        table.set_item(name, PyArray1::from_vec(py, column))?;
    }
    Ok(table)
}
