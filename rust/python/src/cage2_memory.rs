//! Blue's memory of games of CAGE Challenge 2 that run elsewhere, for Python.

use std::sync::Arc;

use fastrl_binding::arrays::{Flag, disjoint, readable, writeable};
use fastrl_core::cage2::blue::{BlueAction, NUM_ACTIONS};
use fastrl_core::cage2::memory::{BlueMemory as Memory, Layout};
use fastrl_core::cage2::scenario::NUM_HOSTS;
use fastrl_core::cage2::tables::Scenario;
use fastrl_core::cage2::view::OBS_BITS;
use pyo3::exceptions::{PyMemoryError, PyValueError};
use pyo3::prelude::*;

use crate::cage2_scenario::ruleset_from_name;

pub(crate) fn layout_from_name(name: &str) -> PyResult<Layout> {
    let place = Layout::NAMES.iter().position(|n| *n == name);
    place.map(|i| Layout::ALL[i]).ok_or_else(|| {
        PyValueError::new_err(format!("memory: expected 'none', 'scan', 'decoys' or 'full', got '{name}'"))
    })
}

#[pyclass(module = "fastrl._native._rust")]
pub(crate) struct BlueMemory {
    layout: Layout,
    scenario: Arc<Scenario>,
    games: Vec<Memory>,
}

impl BlueMemory {
    /// The action before an observation, none at the start of an episode.
    fn action(&self, game: usize, action: i64) -> PyResult<Option<BlueAction>> {
        let refuse = |message: String| Err(PyValueError::new_err(format!("actions: {message}")));
        match usize::try_from(action) {
            Ok(index) if index < NUM_ACTIONS => Ok(Some(BlueAction::from_index(index, NUM_HOSTS))),
            Err(_) if action == -1 && (self.layout <= Layout::Scan || self.games[game].time() == 0) => Ok(None),
            Err(_) if action == -1 => refuse(format!(
                "expected the action before this observation of game {game}, whose episode has begun, got none; reset \
                 starts an episode"
            )),
            _ => refuse(format!("expected integers from 0 to {}, got {action} for game {game}", NUM_ACTIONS - 1)),
        }
    }
}

/// The bits of an observation.
fn packed(game: usize, obs: &[f32]) -> PyResult<u64> {
    let mut bits = 0;
    for (i, &bit) in obs.iter().enumerate() {
        if bit == 1.0 {
            bits |= 1 << i;
        } else if bit != 0.0 {
            return Err(PyValueError::new_err(format!("bits: expected zeros and ones, got {bit} in game {game}")));
        }
    }
    Ok(bits)
}

#[pymethods]
impl BlueMemory {
    #[new]
    fn new(num_envs: usize, memory: &str, ruleset: &str) -> PyResult<Self> {
        let (layout, scenario) = (layout_from_name(memory)?, ruleset_from_name(ruleset)?.scenario2().clone());
        let games = Memory::many(layout, num_envs).map_err(|error| PyMemoryError::new_err(error.to_string()))?;
        Ok(Self { layout, scenario, games })
    }

    #[getter]
    fn num_envs(&self) -> usize {
        self.games.len()
    }

    #[getter]
    fn obs_dim(&self) -> usize {
        OBS_BITS + self.layout.len(&self.scenario.memory)
    }

    #[pyo3(signature = (reset_mask=None))]
    fn reset(&mut self, reset_mask: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
        let mask = reset_mask.map(|mask| readable::<Flag>("reset_mask", mask, &[self.games.len()])).transpose()?;
        // SAFETY: nothing here writes to it, and it is the caller's for the length of this call.
        let mask = mask.map(|mask| unsafe { mask.bytes() });
        for (i, game) in self.games.iter_mut().enumerate() {
            if mask.is_none_or(|mask| mask[i] != 0) {
                game.reset();
            }
        }
        Ok(())
    }

    #[pyo3(signature = (bits, actions, obs))]
    fn observe(
        &mut self,
        bits: &Bound<'_, PyAny>,
        actions: Option<&Bound<'_, PyAny>>,
        obs: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let (n, dim) = (self.games.len(), self.obs_dim());
        let tables = &self.scenario.memory;
        let bits = readable::<f32>("bits", bits, &[n, OBS_BITS])?;
        let actions = actions.map(|actions| readable::<i64>("actions", actions, &[n])).transpose()?;
        let obs = writeable::<f32>("obs", obs, &[n, dim])?;
        disjoint(&[bits.place(), actions.as_ref().map_or(("actions", 0..0), |actions| actions.place()), obs.place()])?;
        // SAFETY: checked, disjoint, and the caller's for the length of this call.
        let (bits, actions, obs) = unsafe { (bits.slice(), actions.map(|actions| actions.slice()), obs.slice_mut()) };
        let events = bits.chunks_exact(OBS_BITS).enumerate().map(|(i, bits)| {
            let action = actions.map_or(-1, |actions| actions[i]);
            Ok((self.action(i, action)?, packed(i, bits)?))
        });
        // All of them are checked before any game changes.
        let events = events.collect::<PyResult<Vec<_>>>()?;
        let rows = bits.chunks_exact(OBS_BITS).zip(obs.chunks_exact_mut(dim));
        for ((game, (action, packed)), (bits, row)) in self.games.iter_mut().zip(events).zip(rows) {
            match action {
                Some(action) => {
                    let effect = self.scenario.may_have_effect(action.index(NUM_HOSTS), &game.ports(&self.scenario));
                    game.update(action, effect, [packed, 0], tables);
                }
                None => game.note_activity([packed, 0], tables),
            }
            let (own, values) = row.split_at_mut(OBS_BITS);
            own.copy_from_slice(bits);
            game.write(self.layout, values, tables);
        }
        Ok(())
    }

    fn action_masks(&self, out: &Bound<'_, PyAny>) -> PyResult<()> {
        let out = writeable::<Flag>("out", out, &[self.games.len(), NUM_ACTIONS])?;
        // SAFETY: checked, and the caller's for the length of this call.
        let out = unsafe { out.bytes_mut() };
        for (game, mask) in self.games.iter().zip(out.chunks_exact_mut(NUM_ACTIONS)) {
            let ports = game.ports(&self.scenario);
            for (action, entry) in mask.iter_mut().enumerate() {
                *entry = self.scenario.may_have_effect(action, &ports).into();
            }
        }
        Ok(())
    }
}
