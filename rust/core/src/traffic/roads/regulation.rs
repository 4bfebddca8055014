//! Rights of way: twice a second, of two vehicles whose predicted ways cross the one on the lane of lower priority
//! stops.
//!
//! Source: `highway_env/road/regulation.py` (`RegulatedRoad`), `predict_trajectory_constant_speed` of `Vehicle` and
//! `ControlledVehicle`, `utils.rotated_rectangles_intersect`.

use super::Network;
use crate::traffic::Traffic;
use crate::traffic::vehicles::{LENGTH, Step, Vehicle, Vehicles, WIDTH};

/// Decisions a second.
const FREQUENCY: f64 = 2.0;
/// Predictions: so many, this far apart, seconds.
const TIMES: usize = 11;
const INTERVAL: f64 = 0.25;
/// Size of the rectangles that must not meet, metres.
const ROOM: [f64; 2] = [1.5 * LENGTH, 0.9 * WIDTH];

/// A place with a heading.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Pose {
    at: [f64; 2],
    heading: f64,
}

/// Frames between two decisions.
pub(super) fn frames_between(dt: f64) -> u64 {
    ((1.0 / dt / FREQUENCY) as u64).max(1)
}

impl Traffic<Network> {
    /// Lets those drive on that had stopped, and stops those that others go before (`enforce_road_rules`).
    pub fn regulate(&mut self) {
        for i in 0..self.vehicles.len() {
            if std::mem::take(&mut self.vehicles.yields[i]) {
                let lane = self.road.lane(self.vehicles.lane[i]);
                self.vehicles.target_speed[i] = lane.speed_limit.unwrap_or(self.vehicles.target_speed[i]);
            }
        }
        let ways: Vec<[Pose; TIMES]> = (0..self.vehicles.len()).map(|i| self.prediction(i)).collect();
        for i in 0..ways.len() {
            for j in i + 1..ways.len() {
                if ways[i].iter().zip(&ways[j]).any(|(a, b)| is_conflict(*a, *b)) {
                    let who = if self.gives_way(i, j) { i } else { j };
                    if self.vehicles.driver[who].is_traffic() {
                        self.vehicles.target_speed[who] = 0.0;
                        self.vehicles.yields[who] = true;
                    }
                }
            }
        }
    }

    /// Returns whether `i` stops for `j`, else `j` stops for `i` (`respect_priorities`).
    fn gives_way(&self, i: usize, j: usize) -> bool {
        let v = &self.vehicles;
        let [own, other] = [i, j].map(|i| self.road.lane(v.lane[i]).priority);
        if own != other {
            return own < other;
        }
        let ahead = |a: usize, b: usize| v.cos[a] * (v.x[b] - v.x[a]) + v.sin[a] * (v.y[b] - v.y[a]);
        ahead(i, j) > ahead(j, i)
    }

    fn prediction(&self, i: usize) -> [Pose; TIMES] {
        let v = &self.vehicles;
        if v.driver[i].has_targets() { self.along_route(i) } else { unguided(v, i) }
    }

    /// Places in the middle of the lanes of its route, at its present speed.
    fn along_route(&self, i: usize) -> [Pose; TIMES] {
        let (road, v) = (&self.road, &self.vehicles);
        let s = road.lane(v.lane[i]).local(v.x[i], v.y[i]).0;
        let here = [Step { section: road.section_of(v.lane[i]) as u32, lane: Some(road.number(v.lane[i]) as u32) }];
        let route = if v.route[i].is_empty() { &here[..] } else { &v.route[i] };
        std::array::from_fn(|k| {
            let mut ahead = s + v.speed[i] * (INTERVAL * (k + 1) as f64);
            let mut steps = route.iter();
            let mut lane = road.lane(road.lane_of_step(*steps.next().expect("a step"), v.lane[i]));
            while ahead > lane.length() {
                let Some(&step) = steps.next() else { break };
                ahead -= lane.length();
                lane = road.lane(road.lane_of_step(step, v.lane[i]));
            }
            Pose { at: lane.position(ahead, 0.0).into(), heading: lane.heading_at(ahead) }
        })
    }
}

/// Places of a vehicle that is steered from outside, with its present steering.
fn unguided(v: &Vehicles, i: usize) -> [Pose; TIMES] {
    let mut one = v.alone(i);
    one.acceleration[0] = 0.0;
    std::array::from_fn(|_| {
        one.advance_exactly(INTERVAL);
        Pose { at: [one.x[0], one.y[0]], heading: one.heading[0] }
    })
}

/// Returns whether there is a conflict between two vehicles at these places.
fn is_conflict(a: Pose, b: Pose) -> bool {
    let (dx, dy) = (b.at[0] - a.at[0], b.at[1] - a.at[1]);
    (dx * dx + dy * dy).sqrt() <= LENGTH && (reaches_into(a, b) || reaches_into(b, a))
}

/// Returns whether the middle, a corner or the middle of a side of the first rectangle lies in the second. As in
/// highway-env the second one is turned the wrong way round.
fn reaches_into(a: Pose, b: Pose) -> bool {
    let [long, wide] = ROOM.map(|size| size / 2.0);
    let ((sin_a, cos_a), (sin_b, cos_b)) = (a.heading.sin_cos(), b.heading.sin_cos());
    [-1.0, 0.0, 1.0].into_iter().any(|p| {
        [-1.0, 0.0, 1.0].into_iter().any(|q| {
            let (along, across) = (p * long, q * wide);
            let dx = cos_a * along - sin_a * across + a.at[0] - b.at[0];
            let dy = sin_a * along + cos_a * across + a.at[1] - b.at[1];
            (cos_b * dx - sin_b * dy).abs() <= long && (sin_b * dx + cos_b * dy).abs() <= wide
        })
    })
}

impl Vehicles {
    /// A copy of vehicle `i` only.
    fn alone(&self, i: usize) -> Self {
        let mut one = Self::default();
        let (heading, [x, y]) = (self.heading[i], [self.x[i], self.y[i]]);
        let vehicle = Vehicle { heading, ..Vehicle::new(self.driver[i], x, y, self.speed[i]) };
        one.push(&vehicle, self.lane[i], self.target_speed[i], self.speed_index[i]);
        (one.angle[0], one.crashed[0], one.impact[0]) = (self.angle[i], self.crashed[i], self.impact[i]);
        (one.min_speed[0], one.max_speed[0], one.slide[0]) = (self.min_speed[i], self.max_speed[i], self.slide[i]);
        one
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rectangles_meet_as_in_the_reference() {
        let pose = |x: f64, y: f64, heading: f64| Pose { at: [x, y], heading };
        assert!(is_conflict(pose(0.0, 0.0, 0.0), pose(4.9, 0.0, 0.0)));
        assert!(!is_conflict(pose(0.0, 0.0, 0.0), pose(5.1, 0.0, 0.0)));
        assert!(!is_conflict(pose(0.0, 0.0, 0.0), pose(0.0, 2.0, 0.0)));
        assert!(is_conflict(pose(0.0, 0.0, 0.0), pose(0.0, 1.7, 0.0)));
        assert_eq!(frames_between(1.0 / 15.0), 7);
    }
}
