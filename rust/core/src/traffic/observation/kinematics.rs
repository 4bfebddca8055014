//! A table of the observer and the vehicles near it (`KinematicObservation`).

use super::Column;
use crate::traffic::Traffic;
use crate::traffic::numpy_random::NumpyRandom;
use crate::traffic::vehicles::LENGTH;

/// Others are seen within this, metres.
const PERCEPTION: f64 = 200.0;

/// The observer in the first row, then others, then zeros. Of the others it takes the nearest along the lane, or with
/// `shuffled` the first of the list, in a random order. There are no obstacles on these roads.
#[derive(Clone, Debug, PartialEq)]
pub struct Kinematics {
    pub columns: Vec<Column>,
    /// Number of rows, at least one.
    pub rows: usize,
    /// True if other vehicles have absolute coordinates instead of relative ones; the observer's are always absolute.
    pub absolute: bool,
    pub shuffled: bool,
    /// True if scaled features are clipped to [-1, 1].
    pub clip: bool,
    /// True if those more than two lengths behind are seen.
    pub see_behind: bool,
}

impl Kinematics {
    pub(super) fn len(&self) -> usize {
        self.rows * self.columns.len()
    }

    /// The order that the rows of others get, if it is random.
    pub(super) fn draw(&self, rng: &mut NumpyRandom, order: &mut Vec<u32>) {
        if self.shuffled {
            order.clear();
            order.extend(0..self.rows as u32 - 1);
            rng.shuffle(order);
        }
    }

    pub(super) fn takes_order(&self, order: &[u32], drawn: bool) -> bool {
        let mut seen = vec![false; if self.shuffled && drawn { self.rows - 1 } else { 0 }];
        order.len() == seen.len()
            && order.iter().all(|&row| seen.get_mut(row as usize).is_some_and(|seen| !std::mem::replace(seen, true)))
    }

    pub(super) fn write(&self, traffic: &Traffic, observer: usize, order: &[u32], out: &mut [f32]) {
        let width = self.columns.len();
        let (own, others) = out.split_at_mut(width);
        self.row(traffic, observer, None, own);
        let origin = (!self.absolute).then_some(observer);
        others.fill(0.0);
        // Few rows are the rule, and then nothing is allocated.
        let mut few = [(0.0, 0); 16];
        let mut many = Vec::new();
        let most = self.rows - 1;
        let nearest = if most <= few.len() {
            &mut few[..most]
        } else {
            many.resize(most, (0.0, 0));
            &mut many[..]
        };
        let seen = self.others(traffic, observer, nearest);
        for (row, out) in others.chunks_exact_mut(width).enumerate() {
            let place = if self.shuffled { order[row] as usize } else { row };
            if place < seen {
                self.row(traffic, nearest[place].1, origin, out);
            }
        }
    }

    /// Fills `found` with (distance along the lane, vehicle) of those that are seen, and returns how many there are.
    fn others(&self, traffic: &Traffic, observer: usize, found: &mut [(f64, usize)]) -> usize {
        let v = &traffic.vehicles;
        let lane = traffic.road.lane(v.lane[observer]);
        let (x, y) = (v.x[observer], v.y[observer]);
        let s = lane.local(x, y).0;
        let mut seen = 0;
        for j in 0..v.len() {
            let (dx, dy) = (v.x[j] - x, v.y[j] - y);
            if dx.abs() >= PERCEPTION || j == observer || (dx * dx + dy * dy).sqrt() >= PERCEPTION {
                continue;
            }
            let ahead = lane.local(v.x[j], v.y[j]).0 - s;
            if !self.see_behind && ahead <= -2.0 * LENGTH {
                continue;
            }
            // Those as near as another stay behind it.
            let distance = if self.shuffled { 0.0 } else { ahead.abs() };
            let mut place = seen;
            while place > 0 && found[place - 1].0 > distance {
                place -= 1;
            }
            if place == found.len() {
                continue;
            }
            seen = (seen + 1).min(found.len());
            found[place..seen].rotate_right(1);
            found[place] = (distance, j);
        }
        seen
    }

    fn row(&self, traffic: &Traffic, i: usize, origin: Option<usize>, out: &mut [f32]) {
        for (column, out) in self.columns.iter().zip(out) {
            let value = column.of(traffic, i, origin);
            *out = if self.clip && column.limits.is_some() { value.clamp(-1.0, 1.0) } else { value } as f32;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{column, traffic};
    use super::*;

    fn places(rows: usize) -> Kinematics {
        let columns = vec![column("presence", None), column("x", Some((-200.0, 200.0)))];
        Kinematics { columns, rows, absolute: false, shuffled: false, clip: true, see_behind: false }
    }

    fn seen(kinematics: &Kinematics, traffic: &Traffic, order: &[u32]) -> Vec<f32> {
        let mut out = vec![f32::NAN; kinematics.len()];
        kinematics.write(traffic, 0, order, &mut out);
        out.chunks(2).map(|row| if row[0] == 1.0 { row[1] } else { 0.0 }).collect()
    }

    #[test]
    fn the_nearest_come_first_and_zeros_last() {
        let traffic =
            traffic(&[(150.0, 0, 20.0), (92.0, 1, 20.0), (120.0, 2, 20.0), (80.0, 1, 20.0), (310.0, 1, 20.0)]);
        assert_eq!(seen(&places(5), &traffic, &[]), [0.5, -0.04, 0.1, 0.25, 0.0]);
        assert_eq!(seen(&places(3), &traffic, &[]), [0.5, -0.04, 0.1]);
        assert_eq!(seen(&places(1), &traffic, &[]), [0.5]);
        let behind = Kinematics { see_behind: true, absolute: true, ..places(4) };
        assert_eq!(seen(&behind, &traffic, &[]), [0.5, 0.46, 0.6, 0.4]);
    }

    #[test]
    fn equally_near_ones_keep_their_order() {
        let traffic = traffic(&[(120.0, 0, 20.0), (120.0, 2, 21.0), (120.0, 1, 22.0)]);
        let speeds = Kinematics { columns: vec![column("vx", None)], rows: 3, absolute: true, ..places(3) };
        let mut out = [0.0; 3];
        speeds.write(&traffic, 0, &[], &mut out);
        assert_eq!(out, [25.0, 20.0, 21.0]);
    }

    #[test]
    fn many_rows_are_filled_without_a_stack_overflow() {
        let others: Vec<_> = (0..40).map(|i| (101.0 + f64::from(i), 1, 20.0)).rev().collect();
        let rows = seen(&places(31), &traffic(&others), &[]);
        assert!(rows[1..].windows(2).all(|pair| pair[0] < pair[1]), "{rows:?}");
        assert_eq!(rows[30], 30.0 / 200.0);
    }

    #[test]
    fn a_shuffled_table_keeps_the_observer_first() {
        let traffic = traffic(&[(120.0, 0, 20.0), (110.0, 2, 20.0), (140.0, 2, 20.0)]);
        let shuffled = Kinematics { shuffled: true, ..places(5) };
        assert_eq!(seen(&shuffled, &traffic, &[3, 1, 0, 2]), [0.5, 0.0, 0.05, 0.1, 0.2]);
    }

    #[test]
    fn rows_are_shuffled_as_numpy_does() {
        // np.random.default_rng(seed).shuffle(table) twice, the places that rows came from.
        let cases: [(u64, [u32; 7], [u32; 7]); 2] =
            [(0, [2, 4, 3, 6, 5, 0, 1], [5, 2, 4, 6, 1, 0, 3]), (12345, [4, 3, 0, 2, 1, 6, 5], [6, 2, 1, 4, 3, 0, 5])];
        for (seed, first, second) in cases {
            let mut rng = NumpyRandom::new(seed);
            let mut order = Vec::new();
            for expected in [first, second] {
                Kinematics { shuffled: true, ..places(8) }.draw(&mut rng, &mut order);
                assert_eq!(order, expected, "seed {seed}");
            }
        }
    }
}
