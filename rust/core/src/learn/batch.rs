//! Minibatches of samples that share observations.

use std::ops::Range;

/// Rows between the one that is computed and the one whose data are fetched into the cache.
const AHEAD: usize = 4;

/// Fetches an element of an array into the cache, if there is one of that number.
#[inline(always)]
pub(super) fn prefetch<T>(array: &[T], index: usize) {
    #[cfg(target_arch = "x86_64")]
    if let Some(element) = array.get(index) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch of what is there changes nothing, and every such processor has SSE.
        unsafe { _mm_prefetch::<_MM_HINT_T0>((&raw const *element).cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (array, index);
}

use super::perceptron::Pass;
use crate::lanes::LANES;
use crate::matrix::stride;

/// The samples of a minibatch by their observations, in the order in which these come.
pub(super) struct Batch {
    /// Number of the minibatch in which each of the G observations was last seen, and its row there.
    seen: Vec<(u32, u32)>,
    minibatch: u32,
    /// Observations.
    pub(super) rows: Vec<u32>,
    /// First of the samples of each row, and the end of all.
    starts: Vec<u32>,
    samples: Vec<u32>,
}

impl Batch {
    /// For so many observations.
    pub(super) fn new(groups: usize) -> Self {
        Self { seen: vec![(0, 0); groups], minibatch: 0, rows: vec![], starts: vec![], samples: vec![] }
    }

    /// Makes it the samples `part`, of which `groups` has the observations.
    pub(super) fn set(&mut self, groups: &[i64], part: &[i64]) {
        self.minibatch += 1;
        self.rows.clear();
        self.starts.clear();
        // How many samples each row has; then where they end, then where they start.
        for &sample in part {
            let group = groups[sample as usize];
            let seen = &mut self.seen[group as usize];
            if seen.0 != self.minibatch {
                *seen = (self.minibatch, self.rows.len() as u32);
                self.rows.push(group as u32);
                self.starts.push(0);
            }
            self.starts[seen.1 as usize] += 1;
        }
        let mut end = 0;
        for start in &mut self.starts {
            end += *start;
            *start = end;
        }
        self.starts.push(end);
        self.samples.resize(part.len(), 0);
        for &sample in part.iter().rev() {
            let row = self.seen[groups[sample as usize] as usize].1;
            let place = &mut self.starts[row as usize];
            *place -= 1;
            self.samples[*place as usize] = sample as u32;
        }
    }

    /// Samples of a row.
    #[inline(always)]
    pub(super) fn of(&self, row: usize) -> &[u32] {
        &self.samples[self.starts[row] as usize..self.starts[row + 1] as usize]
    }

    /// Samples of a row that comes soon, whose data should be in the cache then.
    #[inline(always)]
    pub(super) fn ahead(&self, row: usize) -> &[u32] {
        if row + AHEAD < self.rows.len() { self.of(row + AHEAD) } else { &[] }
    }

    /// Copies the first `width` of the `inputs` numbers of some rows' observations into the first rows of a pass.
    pub(super) fn gather(&self, obs: &[f32], inputs: usize, width: usize, rows: Range<usize>, pass: &mut Pass) {
        let next = self.rows.iter().skip(rows.start + AHEAD).map(Some).chain(std::iter::repeat(None));
        for ((&group, to), next) in self.rows[rows].iter().zip(pass.inputs.chunks_mut(stride(width))).zip(next) {
            if let Some(&next) = next {
                (0..width).step_by(LANES).for_each(|i| prefetch(obs, next as usize * inputs + i));
            }
            to[..width].copy_from_slice(&obs[group as usize * inputs..][..width]);
        }
    }
}
