//! Results of the last episodes of traffic for Python.

use fastrl_binding::arrays::room;
use fastrl_binding::vec_env::VecBinding;
use fastrl_core::env::Env;
use fastrl_core::traffic::links::account::Account;
use fastrl_core::traffic::metrics::Episode;
use numpy::PyArray1;
use pyo3::prelude::*;
use pyo3::types::PyDict;

/// A dict of arrays with an entry for each environment. `of`: of one its number of episodes, the last one's results, and
/// its links, which count if there are some.
pub(crate) fn table<'py, E: Env>(
    py: Python<'py>,
    venv: &VecBinding<E>,
    has_links: bool,
    of: impl Fn(&E) -> (u64, &Episode, &Account) + Send,
) -> PyResult<Bound<'py, PyDict>> {
    let of_links: &[&str] = if has_links { &Account::FIELDS } else { &[] };
    let names: Vec<&str> = Episode::FIELDS.iter().chain(of_links).copied().collect();
    let mut finished: Vec<i64> = room(venv.num_envs())?;
    let mut fields: Vec<Vec<f64>> = Vec::new();
    for _ in &names {
        fields.push(room(venv.num_envs())?);
    }
    venv.with(py, |venv| {
        for env in venv.envs() {
            let (count, last, links) = of(env);
            finished.push(count as i64);
            let numbers = last.numbers().into_iter().chain(links.numbers());
            fields.iter_mut().zip(numbers).for_each(|(column, number)| column.push(number));
        }
        Ok(())
    })?;
    let table = PyDict::new(py);
    table.set_item("finished", PyArray1::from_vec(py, finished))?;
    for (name, column) in names.into_iter().zip(fields) {
        table.set_item(name, PyArray1::from_vec(py, column))?;
    }
    Ok(table)
}
