//! Sums of rows, of their products with weights, and derivatives of activations: loops over what layers leave in memory.

use crate::lanes::LANES;
use crate::matrix::{STEP, transpose};
use crate::widest::widest;

widest! {
    /// Turns gradients of the outputs of tanh into those of its inputs.
    pub(super) fn derive(slopes: &mut [f32], outputs: &[f32]) {
        slopes.iter_mut().zip(outputs).for_each(|(slope, &y)| *slope *= (-y).mul_add(y, 1.0));
    }
}

widest! {
    /// Adds rows, which are `row` apart, to their sum of [`padded`] columns.
    pub(super) fn add_rows(rows: &[f32], row: usize, sums: &mut [f32]) {
        let (wide, rest) = sums.as_chunks_mut::<{ 4 * LANES }>();
        let first_of_rest = wide.len() * 4 * LANES;
        for (i, sums) in wide.iter_mut().enumerate() {
            add_columns(rows, row, i * 4 * LANES, sums);
        }
        for (i, sums) in rest.as_chunks_mut::<STEP>().0.iter_mut().enumerate() {
            add_columns(rows, row, first_of_rest + i * STEP, sums);
        }
    }
}

/// Adds columns of rows, from a first one on, to sums that stay in registers.
#[inline(always)]
fn add_columns<const N: usize>(rows: &[f32], row: usize, first: usize, sums: &mut [f32; N]) {
    let mut totals = *sums;
    for row in rows.chunks_exact(row) {
        for (total, &x) in totals.iter_mut().zip(&row[first..][..N]) {
            *total += x;
        }
    }
    *sums = totals;
}

widest! {
    /// Writes the sums of a bias and of the products of rows, which are `row` apart, with as many weights as they have
    /// numbers; these are `apart` apart. Terms add up in [`LANES`] sums in turn, and then these.
    pub(super) fn dots(rows: &[f32], row: usize, weights: &[f32], bias: f32, to: &mut [f32], apart: usize) {
        let (factors, last_factors) = weights.as_chunks::<LANES>();
        for (rows, to) in rows.chunks(LANES * row).zip(to.chunks_mut(LANES * apart)) {
            let [mut sums, mut of_rows] = [[[0.0_f32; LANES]; LANES]; 2];
            for (sums, row) in sums.iter_mut().zip(rows.chunks_exact(row)) {
                let (terms, last_terms) = row[..weights.len()].as_chunks::<LANES>();
                let mut lanes = [0.0_f32; LANES];
                for (terms, factors) in terms.iter().zip(factors) {
                    for ((lane, x), &y) in lanes.iter_mut().zip(terms).zip(factors) {
                        *lane = x.mul_add(y, *lane);
                    }
                }
                *sums = lanes;
                for ((sum, &x), &y) in sums.iter_mut().zip(last_terms).zip(last_factors) {
                    *sum = x.mul_add(y, *sum);
                }
            }
            transpose(LANES, LANES, sums.as_flattened(), LANES, of_rows.as_flattened_mut(), LANES);
            let mut totals = [bias; LANES];
            for sums in &of_rows {
                for (total, &sum) in totals.iter_mut().zip(sums) {
                    *total += sum;
                }
            }
            for (to, total) in to.chunks_mut(apart).zip(totals) {
                to[0] = total;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::matrix::stride;

    #[test]
    fn slopes_are_the_same_in_all_registers() {
        let outputs: Vec<f32> = (0..4000).map(|i| (i as f32 - 2000.0) * 5e-4).collect();
        let mut slopes = vec![0.75; outputs.len()];
        derive(&mut slopes, &outputs);
        for (&slope, &y) in slopes.iter().zip(&outputs) {
            let expected = 0.75 * (-y).mul_add(y, 1.0);
            assert!(slope.to_bits() == expected.to_bits(), "{slope} at {y}");
        }
    }

    #[test]
    fn rows_add_up_in_their_order() {
        let values: Vec<f32> = (0..9 * 200).map(|i| (i as f32 * 0.71).sin()).collect();
        for columns in (8..=200).step_by(STEP) {
            let (mut sums, mut expected) = (vec![0.5; columns], vec![0.5; columns]);
            add_rows(&values, 200, &mut sums);
            for row in values.chunks(200) {
                expected.iter_mut().zip(row).for_each(|(sum, x)| *sum += x);
            }
            assert_eq!(sums, expected);
        }
    }

    #[test]
    fn dots_are_sums_of_products() {
        for (rows, count) in [(1, 1), (5, 16), (16, 30), (17, 64), (40, 129)] {
            let row = stride(count);
            let values: Vec<f32> = (0..rows * row).map(|i| (i as f32 * 0.71).sin()).collect();
            let weights: Vec<f32> = (0..count).map(|i| (i as f32 * 0.37).cos()).collect();
            let mut outputs = vec![7.0; rows * STEP];
            dots(&values, row, &weights, 0.25, &mut outputs, STEP);
            for (row, outputs) in values.chunks(row).zip(outputs.chunks(STEP)) {
                let products = row.iter().zip(&weights).map(|(&x, &y)| f64::from(x) * f64::from(y));
                let expected = 0.25 + products.sum::<f64>();
                assert!((f64::from(outputs[0]) - expected).abs() < 1e-5, "{} and {expected}", outputs[0]);
                assert_eq!(&outputs[1..], &[7.0; STEP - 1]);
            }
        }
    }
}
