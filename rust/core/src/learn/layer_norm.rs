//! Layer normalisation (Ba et al., 2016) of the rows of a pass, and the way back.

use crate::dense::{affine, lane_sum, standardize};
use crate::matrix::Aligned;
use crate::widest::widest;

/// Memory for the layer normalisation of some rows.
pub(super) struct LayerNorm {
    width: usize,
    /// Distance between rows.
    row: usize,
    /// Gains of the last pass.
    gain: Vec<f32>,
    /// The rows with mean 0 and deviation 1; after the way back times `slopes`.
    standard: Aligned,
    /// Factor of the differences from the mean of each row.
    scales: Vec<f32>,
    /// Gradients of the results.
    slopes: Aligned,
}

impl LayerNorm {
    /// For up to so many rows of `width` numbers, which are `row` apart.
    pub(super) fn new(rows: usize, width: usize, row: usize) -> Self {
        let zeros = || Aligned::zeros(rows * row);
        Self { width, row, gain: vec![0.0; width], standard: zeros(), scales: vec![0.0; rows], slopes: zeros() }
    }

    /// Normalises rows.
    ///
    /// `parameters`: gains [row] and shifts [row].
    pub(super) fn forward(&mut self, parameters: &[f32], rows: &mut [f32]) {
        let (gain, shift) = parameters.split_at(self.row);
        self.gain.copy_from_slice(&gain[..self.width]);
        let Self { row, gain, standard, scales, .. } = self;
        forward_rows(rows, *row, gain, &shift[..gain.len()], standard, scales);
    }

    /// Turns the gradients of the results of [`LayerNorm::forward`] into those of what it got.
    pub(super) fn backward(&mut self, slopes: &mut [f32]) {
        backward_rows(slopes, self.row, &self.gain, &mut self.standard, &self.scales, &mut self.slopes);
    }

    /// Rows whose sum is the gradient of the gains, after the way back.
    pub(super) fn gain_terms(&self) -> &[f32] {
        &self.standard
    }

    /// Rows whose sum is the gradient of the shifts, after the way back.
    pub(super) fn shift_terms(&self) -> &[f32] {
        &self.slopes
    }
}

widest! {
    fn forward_rows(rows: &mut [f32], apart: usize, gain: &[f32], shift: &[f32], standard: &mut [f32], scales: &mut [f32]) {
        let each = rows.chunks_exact_mut(apart).zip(standard.chunks_exact_mut(apart)).zip(scales);
        for ((row, standard), scale) in each {
            let (row, standard) = (&mut row[..gain.len()], &mut standard[..gain.len()]);
            *scale = standardize(row);
            standard.copy_from_slice(row);
            affine(row, gain, shift);
        }
    }
}

widest! {
    fn backward_rows(
        slopes: &mut [f32],
        apart: usize,
        gain: &[f32],
        standard: &mut [f32],
        scales: &[f32],
        kept: &mut [f32],
    ) {
        let rows = slopes.chunks_exact_mut(apart).zip(standard.chunks_exact_mut(apart));
        for (((slopes, standard), kept), scale) in rows.zip(kept.chunks_exact_mut(apart)).zip(scales) {
            let [slopes, standard, kept] = [slopes, standard, kept].map(|row| &mut row[..gain.len()]);
            // With g the gradient of the standardised x: scale * (g - mean(g) - x * mean(g * x)).
            let share = 1.0 / gain.len() as f32;
            kept.copy_from_slice(slopes);
            slopes.iter_mut().zip(gain).for_each(|(slope, &gain)| *slope *= gain);
            let mean = share * lane_sum(slopes, slopes, |slope, _| slope);
            let along = share * lane_sum(slopes, standard, |slope, x| slope * x);
            for ((slope, x), &kept) in slopes.iter_mut().zip(standard).zip(&*kept) {
                *slope = scale * (-*x).mul_add(along, *slope - mean);
                *x *= kept;
            }
        }
    }
}
