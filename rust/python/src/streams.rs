//! Random numbers of steps of episodes, for Python.

use fastrl_binding::arrays::{disjoint, readable, writeable};
use fastrl_core::streams::{bits, normal_pair, part_bits, unit};
use pyo3::prelude::*;

/// Fills `out` [K, parts] with uniform numbers of each stream [K] at a step [K].
#[pyfunction]
pub(crate) fn fill_uniforms(
    streams: &Bound<'_, PyAny>,
    steps: &Bound<'_, PyAny>,
    out: &Bound<'_, PyAny>,
) -> PyResult<()> {
    fill(streams, steps, out, |bits, row| {
        row.iter_mut().enumerate().for_each(|(part, x)| *x = unit(part_bits(bits, part)));
    })
}

/// Fills `out` [K, size] with independent normal numbers of each stream [K] at a step [K].
#[pyfunction]
pub(crate) fn fill_normals(
    streams: &Bound<'_, PyAny>,
    steps: &Bound<'_, PyAny>,
    out: &Bound<'_, PyAny>,
) -> PyResult<()> {
    fill(streams, steps, out, |bits, row| {
        for (pair, two) in row.chunks_mut(2).enumerate() {
            let (a, b) = normal_pair(bits, pair);
            two.iter_mut().zip([a, b]).for_each(|(to, x)| *to = x);
        }
    })
}

/// Calls a function with the bits of each row's step and the row of `out`.
fn fill(
    streams: &Bound<'_, PyAny>,
    steps: &Bound<'_, PyAny>,
    out: &Bound<'_, PyAny>,
    draw: impl Fn(u64, &mut [f32]),
) -> PyResult<()> {
    let (rows, width) = out.getattr("shape")?.extract()?;
    let streams = readable::<u64>("streams", streams, &[rows])?;
    let steps = readable::<i64>("steps", steps, &[rows])?;
    let out = writeable::<f32>("out", out, &[rows, width])?;
    disjoint(&[streams.place(), steps.place(), out.place()])?;
    // SAFETY: checked, disjoint, and the caller's for the length of this call.
    let (streams, steps, out) = unsafe { (streams.slice(), steps.slice(), out.slice_mut()) };
    for ((&stream, &step), row) in streams.iter().zip(steps).zip(out.chunks_exact_mut(width.max(1))) {
        draw(bits(stream, step), row);
    }
    Ok(())
}
