//! Changes of the difficulty of environments from arrays.

use fastrl_binding::arrays::readable;
use fastrl_core::traffic::difficulty::Difficulty;
use pyo3::prelude::*;

/// The numbers of one environment that are given.
#[derive(Clone, Copy)]
pub(crate) struct Change {
    agents: Option<usize>,
    density: Option<f64>,
}

impl Change {
    /// The difficulty after the change.
    pub(crate) fn of(self, old: Difficulty) -> Difficulty {
        Difficulty { agents: self.agents.unwrap_or(old.agents), density: self.density.unwrap_or(old.density) }
    }
}

/// The change of each of `n` environments, not checked yet.
pub(crate) fn changes(
    n: usize,
    num_agents: Option<&Bound<'_, PyAny>>,
    density: Option<&Bound<'_, PyAny>>,
) -> PyResult<Vec<Change>> {
    let agents = num_agents.map(|a| readable::<i64>("num_agents", a, &[n])).transpose()?;
    let density = density.map(|a| readable::<f64>("density", a, &[n])).transpose()?;
    // SAFETY: checked, nothing here writes to any array, and they are the caller's for the length of this call.
    let (agents, density) = unsafe { (agents.map(|a| a.slice()), density.map(|a| a.slice())) };
    let of = |i: usize| Change {
        // A negative number is refused as 0 is.
        agents: agents.map(|all| usize::try_from(all[i]).unwrap_or(0)),
        density: density.map(|all| all[i]),
    };
    Ok((0..n).map(of).collect())
}
