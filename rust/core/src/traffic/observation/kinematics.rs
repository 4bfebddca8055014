//! A table of the observer and the vehicles near it (`KinematicObservation`).

use super::{Column, Feature, Heard};
use crate::numpy_random::NumpyRandom;
use crate::traffic::Traffic;
use crate::traffic::map::RoadMap;
use crate::traffic::obstacle::Obstacle;
use crate::traffic::vehicles::LENGTH;

/// Others are seen within this, metres.
const PERCEPTION: f64 = 200.0;

/// The observer in the first row, then others, then zeros. Of the others it takes the nearest along the lane, or with
/// `shuffled` the first of the list, in a random order.
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
    /// True if the directions to the destinations of others are seen.
    pub intentions: bool,
    /// True if obstacles and landmarks are seen.
    pub obstacles: bool,
    /// The observer's x is its place along this lane, if there is one; then the others are the nearest ones, shuffled or
    /// not (`ExitObservation`).
    pub along: Option<usize>,
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

    /// Number of indices of that order.
    pub(super) fn order_len(&self) -> usize {
        if self.shuffled { self.rows - 1 } else { 0 }
    }

    pub(super) fn takes_order(&self, order: &[u32], drawn: bool) -> bool {
        let mut seen = vec![false; if drawn { self.order_len() } else { 0 }];
        order.len() == seen.len()
            && order.iter().all(|&row| seen.get_mut(row as usize).is_some_and(|seen| !std::mem::replace(seen, true)))
    }

    pub(super) fn write<M: RoadMap>(
        &self,
        traffic: &Traffic<M>,
        observer: usize,
        order: &[u32],
        heard: &[Heard],
        out: &mut [f32],
    ) {
        let width = self.columns.len();
        let (own, others) = out.split_at_mut(width);
        for (column, out) in self.columns.iter().zip(own) {
            let value = match self.along {
                Some(lane) if column.feature == Feature::X => {
                    traffic.road.lane(lane).local(traffic.vehicles.x[observer], traffic.vehicles.y[observer]).0
                }
                _ => column.feature.of(traffic, observer, None),
            };
            *out = self.shown(*column, value);
        }
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
        let line = if self.obstacles { M::stop_line(traffic, observer).map(|(_, line)| line) } else { None };
        let seen = self.others(traffic, observer, heard, line.as_ref(), nearest);
        for (row, out) in others.chunks_exact_mut(width).enumerate() {
            let place = if self.shuffled { order[row] as usize } else { row };
            if place < seen {
                let other = nearest[place].1;
                let received = heard.iter().find(|heard| heard.vehicle == other).and_then(|heard| heard.state);
                for (column, out) in self.columns.iter().zip(out) {
                    let value = match received {
                        Some((state, age)) => column.feature.of_state(traffic, state, age, origin),
                        None => self.of_other(traffic, column.feature, other, origin, line.as_ref()),
                    };
                    *out = self.shown(*column, value);
                }
            }
        }
    }

    fn shown(&self, column: Column, value: f64) -> f32 {
        let value = column.limits.map_or(value, |limits| limits.scale(value));
        if self.clip && column.limits.is_some() { value.clamp(-1.0, 1.0) as f32 } else { value as f32 }
    }

    /// The feature of vehicle `i`, or of what lies on the road, whose indices follow those of the vehicles, or of the
    /// line that the observer has to stop at, whose index is the next.
    fn of_other<M: RoadMap>(
        &self,
        traffic: &Traffic<M>,
        feature: Feature,
        i: usize,
        origin: Option<usize>,
        line: Option<&Obstacle>,
    ) -> f64 {
        match i.checked_sub(traffic.vehicles.len()) {
            Some(j) => {
                let object = traffic.objects().chain(line).nth(j).expect("what is seen");
                feature.of_object(traffic, object, origin)
            }
            None if !self.intentions && matches!(feature, Feature::CosD | Feature::SinD) => 0.0,
            None => feature.of(traffic, i, origin),
        }
    }

    /// Fills `found` with (distance along the lane, vehicle or obstacle) of those that are seen, and returns how many
    /// there are.
    fn others<M: RoadMap>(
        &self,
        traffic: &Traffic<M>,
        observer: usize,
        heard: &[Heard],
        line: Option<&Obstacle>,
        found: &mut [(f64, usize)],
    ) -> usize {
        let v = &traffic.vehicles;
        let lane = traffic.road.lane(v.lane[observer]);
        let (x, y) = (v.x[observer], v.y[observer]);
        let s = lane.local(x, y).0;
        let mut seen = 0;
        let mut add = |j: usize, at: [f64; 2], see_behind: bool| {
            let (dx, dy) = (at[0] - x, at[1] - y);
            if dx.abs() >= PERCEPTION || (dx * dx + dy * dy).sqrt() >= PERCEPTION {
                return;
            }
            let ahead = lane.local(at[0], at[1]).0 - s;
            if !see_behind && ahead <= -2.0 * LENGTH {
                return;
            }
            // Those as near as another stay behind it.
            let distance = if self.shuffled && self.along.is_none() { 0.0 } else { ahead.abs() };
            let mut place = seen;
            while place > 0 && found[place - 1].0 > distance {
                place -= 1;
            }
            if place == found.len() {
                return;
            }
            seen = (seen + 1).min(found.len());
            found[place..seen].rotate_right(1);
            found[place] = (distance, j);
        };
        for j in (0..v.len()).filter(|&j| j != observer) {
            match heard.iter().find(|heard| heard.vehicle == j) {
                None => add(j, [v.x[j], v.y[j]], self.see_behind),
                Some(Heard { state: Some((state, _)), .. }) => add(j, [state.x, state.y], self.see_behind),
                Some(_) => {}
            }
        }
        if self.obstacles {
            for (j, o) in traffic.objects().chain(line).enumerate() {
                add(v.len() + j, [o.x, o.y], false);
            }
        }
        seen
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{column, traffic};
    use super::*;

    fn places(rows: usize) -> Kinematics {
        let columns = vec![column("presence", None), column("x", Some((-200.0, 200.0)))];
        Kinematics {
            columns,
            rows,
            absolute: false,
            shuffled: false,
            clip: true,
            see_behind: false,
            intentions: false,
            obstacles: true,
            along: None,
        }
    }

    fn seen(kinematics: &Kinematics, traffic: &Traffic, order: &[u32]) -> Vec<f32> {
        let mut out = vec![f32::NAN; kinematics.len()];
        kinematics.write(traffic, 0, order, &[], &mut out);
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
        speeds.write(&traffic, 0, &[], &[], &mut out);
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
