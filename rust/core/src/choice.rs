//! Choices by logits: masks, draws and their log-probabilities.

use crate::dense::exp;
use crate::lanes::{LANES, Lanes, flat_mut};
use crate::matrix::transpose;

/// The logit of a masked action, as in `fastrl.networks.actor_critic`.
const MASKED: f32 = -1e9;

/// Gives actions that are not allowed the logit [`MASKED`].
#[inline(always)]
pub(crate) fn mask_logits(logits: &mut [Lanes], mask: &[u8]) {
    for (logit, &allowed) in flat_mut(logits).iter_mut().zip(mask) {
        // Not `if`, of which compilers make masked stores, which are slow.
        let kept = u32::from(allowed != 0).wrapping_neg();
        *logit = f32::from_bits(logit.to_bits() & kept | MASKED.to_bits() & !kept);
    }
}

/// The action that inverts the cumulative distribution at `uniform`, or the first of the most probable ones; and its
/// log-probability. Where logits are NaN it is some action, and its log-probability NaN. `sums` is memory.
#[inline(always)]
pub(crate) fn choose(logits: &[Lanes], sums: &mut [Lanes], actions: usize, uniform: Option<f32>) -> (usize, f32) {
    let mut highest = Lanes([f32::NEG_INFINITY; LANES]);
    for lanes in logits {
        for (highest, &logit) in highest.0.iter_mut().zip(&lanes.0) {
            *highest = if logit > *highest { logit } else { *highest };
        }
    }
    let highest = highest.0.into_iter().fold(f32::NEG_INFINITY, f32::max);
    for (sums, logits) in sums.iter_mut().zip(logits) {
        for (sum, &logit) in sums.0.iter_mut().zip(&logits.0) {
            *sum = exp(logit - highest);
        }
    }
    let mut total = 0.0;
    for lanes in sums.iter_mut() {
        for sum in &mut lanes.0 {
            total += *sum;
            *sum = total;
        }
    }
    let action = match uniform {
        // The first whose cumulative sum exceeds the share: as the sums grow, as many as do not come before it.
        Some(uniform) => {
            let share = uniform * total;
            sums.iter().map(|lanes| lanes.0.iter().map(|&sum| u32::from(sum <= share)).sum::<u32>()).sum::<u32>()
                as usize
        }
        None => logits.iter().flat_map(|lanes| &lanes.0).take_while(|&&logit| logit < highest).count(),
    };
    // Without weights that overflow there is one.
    let action = action.min(actions - 1);
    (action, logits[action / LANES].0[action % LANES] - highest - total.ln())
}

/// Memory for [`choose`] in several rows at a time, whose sums are side by side in registers.
pub(crate) struct Group {
    /// Logits of all rows, for each action.
    logits: Vec<Lanes>,
    /// The sums up to each action.
    sums: Vec<Lanes>,
}

impl Group {
    /// Rows from which on a group pays.
    pub(crate) const LEAST: usize = 6;

    /// For so many actions. It has no room if there are too few rows for a group.
    pub(crate) fn new(actions: usize, rows: usize) -> Self {
        let memory = || vec![Lanes([0.0; LANES]); if rows < Self::LEAST { 0 } else { actions }];
        Self { logits: memory(), sums: memory() }
    }

    /// Does as [`choose`] for up to [`LANES`] rows of logits that are `apart`, with the same results.
    #[inline(always)]
    pub(crate) fn choose(
        &mut self,
        logits: &[f32],
        apart: usize,
        actions: usize,
        uniforms: impl Iterator<Item = f32>,
        (chosen, log_probs): (&mut [i64], &mut [f32]),
    ) {
        let rows = chosen.len();
        transpose(rows, actions, logits, apart, flat_mut(&mut self.logits), LANES);
        let mut highest = [f32::NEG_INFINITY; LANES];
        for logits in &self.logits {
            for (highest, &logit) in highest.iter_mut().zip(&logits.0) {
                *highest = if logit > *highest { logit } else { *highest };
            }
        }
        let mut total = [0.0; LANES];
        for (sums, logits) in self.sums.iter_mut().zip(&self.logits) {
            for row in 0..LANES {
                total[row] += exp(logits.0[row] - highest[row]);
            }
            sums.0 = total;
        }
        let mut shares = [0.0; LANES];
        shares.iter_mut().zip(uniforms).zip(&total).for_each(|((share, uniform), total)| *share = uniform * total);
        let mut before = [0_i32; LANES];
        for sums in &self.sums {
            for row in 0..LANES {
                before[row] += i32::from(sums.0[row] <= shares[row]);
            }
        }
        for row in 0..rows {
            let action = (before[row] as usize).min(actions - 1);
            chosen[row] = action as i64;
            log_probs[row] = self.logits[action].0[row] - highest[row] - total[row].ln();
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn rows_of_a_group_are_chosen_as_each_by_itself(
            actions in 1_usize..100, rows in 1_usize..=LANES, scale in 0.1_f32..60.0, seed: u64,
        ) {
            let mut state = seed;
            let mut number = || {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (state >> 40) as f32 / (1_u64 << 24) as f32
            };
            let lanes = actions.div_ceil(LANES);
            let mut all = vec![Lanes([f32::NEG_INFINITY; LANES]); rows * lanes];
            for row in all.chunks_mut(lanes) {
                let row = &mut flat_mut(row)[..actions];
                row.iter_mut().for_each(|logit| *logit = scale * (number() - 0.5));
                // Masked ones, equal ones and rows of NaN.
                row.iter_mut().filter(|_| number() < 0.2).for_each(|logit| *logit = MASKED);
                row.iter_mut().filter(|_| number() < 0.1).for_each(|logit| *logit = 0.25);
                if number() < 0.1 {
                    row[0] = f32::NAN;
                }
            }
            let edge = 1.0 - 1.0 / (1 << 24) as f32;
            let uniforms: Vec<f32> = (0..rows).map(|row| [number(), 0.0, edge][row % 3]).collect();
            let (mut chosen, mut log_probs) = (vec![0; rows], vec![0.0; rows]);
            let mut group = Group::new(actions, LANES);
            let logits = crate::lanes::flat(&all);
            group.choose(logits, lanes * LANES, actions, uniforms.iter().copied(), (&mut chosen, &mut log_probs));
            let mut sums = vec![Lanes([0.0; LANES]); lanes];
            for (row, logits) in all.chunks(lanes).enumerate() {
                let (action, log_prob) = choose(logits, &mut sums, actions, Some(uniforms[row]));
                let is_same = log_prob.to_bits() == log_probs[row].to_bits() || log_prob.is_nan() && log_probs[row].is_nan();
                prop_assert!(chosen[row] as usize == action && is_same);
            }
        }
    }
}
