//! Random numbers of steps of episodes, for Python.

use fastrl_binding::arrays::{disjoint, readable, writeable};
use fastrl_core::streams::{self, bits, part_bits, unit};
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
    fill(streams, steps, out, streams::fill_normals)
}

/// Fills `out` [size] with independent normal numbers of a stream at a step.
#[pyfunction]
pub(crate) fn fill_noise(stream: u64, step: i64, out: &Bound<'_, PyAny>) -> PyResult<()> {
    let size: (usize,) = out.getattr("shape")?.extract()?;
    let out = writeable::<f32>("out", out, &[size.0])?;
    // SAFETY: checked, and the caller's for the length of this call.
    unsafe { out.slice_mut() }.copy_from_slice(&streams::noise(stream, step, size.0));
    Ok(())
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
