//! Choosing actions between bounds, for Python.

use fastrl_binding::arrays::{disjoint, list, readable, writeable};
use fastrl_core::squashed::{Draws, squash_rows, with_noise};
use fastrl_core::streams::{bits, fill_normals};
use fastrl_core::vec_env::Scaling;
use pyo3::prelude::*;

/// Chooses actions [K, n] by a network's outputs; the random numbers are those of each stream [K] at a step [K].
///
/// `noise`: deviation of what is added to actions, of which there are n outputs; None: outputs are means and logarithms of
/// deviations of a Gaussian, 2 n.
#[pyfunction]
#[pyo3(signature = (outputs, streams, steps, actions, log_probs, *, noise=None, greedy=false))]
pub(crate) fn choose_bounded(
    outputs: &Bound<'_, PyAny>,
    streams: &Bound<'_, PyAny>,
    steps: &Bound<'_, PyAny>,
    actions: &Bound<'_, PyAny>,
    log_probs: &Bound<'_, PyAny>,
    noise: Option<f32>,
    greedy: bool,
) -> PyResult<()> {
    let (rows, numbers): (usize, usize) = actions.getattr("shape")?.extract()?;
    let width = if noise.is_none() { 2 * numbers } else { numbers };
    let outputs = readable::<f32>("outputs", outputs, &[rows, width])?;
    let streams = readable::<u64>("streams", streams, &[rows])?;
    let steps = readable::<i64>("steps", steps, &[rows])?;
    let actions = writeable::<f32>("actions", actions, &[rows, numbers])?;
    let log_probs = writeable::<f32>("log_probs", log_probs, &[rows])?;
    disjoint(&[outputs.place(), streams.place(), steps.place(), actions.place(), log_probs.place()])?;
    // SAFETY: checked, disjoint, and the caller's for the length of this call.
    let (outputs, streams, steps, actions, log_probs) =
        unsafe { (outputs.slice(), streams.slice(), steps.slice(), actions.slice_mut(), log_probs.slice_mut()) };
    if numbers == 0 {
        return Ok(());
    }
    let mut drawn = vec![0.0; rows * numbers];
    if !greedy && noise != Some(0.0) {
        for ((&stream, &step), row) in streams.iter().zip(steps).zip(drawn.chunks_exact_mut(numbers)) {
            fill_normals(bits(stream, step), row);
        }
    }
    if let Some(noise) = noise {
        log_probs.fill(0.0);
        for ((action, &output), drawn) in actions.iter_mut().zip(outputs).zip(drawn) {
            *action = with_noise(output, noise * drawn);
        }
        return Ok(());
    }
    let [mut deviations, mut densities] = [vec![0.0; rows * numbers], vec![0.0; rows * numbers]];
    let draws = Draws { actions, deviations: &mut deviations, densities: &mut densities, log_probs };
    squash_rows(outputs, width, numbers, &drawn, draws);
    Ok(())
}

/// Writes the actions of an environment, from draws [..., n].
///
/// `scaling`: [4, n], see [`Scaling`].
#[pyfunction]
pub(crate) fn scale_actions(
    draws: &Bound<'_, PyAny>,
    scaling: &Bound<'_, PyAny>,
    actions: &Bound<'_, PyAny>,
) -> PyResult<()> {
    let shape: Vec<usize> = list(&draws.getattr("shape")?)?;
    let numbers = shape.last().copied().unwrap_or(1);
    let draws = readable::<f32>("draws", draws, &shape)?;
    let scaling = readable::<f32>("scaling", scaling, &[4, numbers])?;
    let actions = writeable::<f32>("actions", actions, &shape)?;
    disjoint(&[draws.place(), scaling.place(), actions.place()])?;
    // SAFETY: checked, disjoint, and the caller's for the length of this call.
    let (draws, scaling, actions) = unsafe { (draws.slice(), scaling.slice(), actions.slice_mut()) };
    if numbers > 0 {
        Scaling(scaling).write(draws, actions);
    }
    Ok(())
}
