//! Behaviour of background traffic: choice of speed and lane.
//!
//! Source: `highway_env/vehicle/behavior.py`. The Intelligent Driver Model: M. Treiber, A. Hennecke, D. Helbing,
//! "Congested traffic states in empirical observations and microscopic simulations", Phys. Rev. E 62 (2000). MOBIL:
//! A. Kesting, M. Treiber, D. Helbing, "General lane-changing model MOBIL for car-following models", Transportation
//! Research Record 1999 (2007). highway-env measures gaps from centre to centre and sets MOBIL's politeness to 0.

use serde::{Deserialize, Serialize};

use super::lane::{Lane, Shape};
use super::map::RoadMap;
use super::math::{bounded, not_zero, power, vectorized};
use super::vehicles::{Driver, LENGTH};
use super::{Neighbour, Traffic};

/// Bound of the models' accelerations, m/s² (`ACC_MAX`).
const MAX_ACCELERATION: f64 = 6.0;
/// Time gap to the neighbour in front, seconds (`TIME_WANTED`).
const IDM_TIME_GAP: f64 = 1.5;
/// Time between decisions about changing lanes, seconds (`LANE_CHANGE_DELAY`).
const LANE_CHANGE_DELAY: f64 = 1.0;
/// Distance of a vehicle that waits from the line, from its centre, metres.
const LINE_DISTANCE: f64 = LENGTH / 2.0 + 1.0;
/// The new follower must not have to brake harder, m/s² (`LANE_CHANGE_MAX_BRAKING_IMPOSED`).
const MAX_BRAKING_IMPOSED: f64 = 2.0;

/// The parameters of the IDM that are not the same on all roads.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Model {
    /// m/s² (`COMFORT_ACC_MAX`).
    acceleration: f64,
    /// 2 sqrt(a b) with that and the comfortable braking (`COMFORT_ACC_MIN`), m/s², and its inverse.
    root: f64,
    braking: f64,
    /// Gap to the neighbour in front in a jam, centre to centre, metres (`DISTANCE_WANTED`).
    jam_distance: f64,
}

impl Model {
    /// Accelerations and decelerations up to these, m/s², and a gap in a jam, centre to centre, metres.
    pub fn new(acceleration: f64, deceleration: f64, jam_distance: f64) -> Self {
        let root = 2.0 * (acceleration * deceleration).sqrt();
        Self { acceleration, root, braking: 1.0 / root, jam_distance }
    }

    /// The term of the free road, m/s². `exact` as in [`RoadMap::EXACT`].
    #[inline(always)]
    fn free_road(self, speed: f64, desired: f64, delta: f64, exact: bool) -> f64 {
        let share = if speed > 0.0 { speed } else { 0.0 } / desired;
        self.acceleration * (1.0 - if exact { share.powf(delta) } else { power(share, delta) })
    }

    /// Gap wanted at a speed, closing in on the neighbour in front, metres.
    #[inline(always)]
    fn wanted_gap(self, speed: f64, time_gap: f64, closing: f64, exact: bool) -> f64 {
        let braking = if exact { speed * closing / self.root } else { speed * closing * self.braking };
        self.jam_distance + speed * time_gap + braking
    }

    /// The term of the neighbour in front, m/s².
    #[inline(always)]
    fn repulsion(self, wanted: f64, gap: f64) -> f64 {
        let ratio = wanted / not_zero(gap);
        self.acceleration * (ratio * ratio)
    }
}

impl Default for Model {
    fn default() -> Self {
        Self { braking: 0.129_099_444_873_580_56, ..Self::new(3.0, 5.0, 5.0 + LENGTH) }
    }
}

impl Driver {
    pub(super) fn is_linear(self) -> bool {
        matches!(self, Self::Linear | Self::Aggressive | Self::Defensive)
    }

    /// Time gap to the neighbour in front, seconds (`TIME_WANTED`).
    fn time_gap(self) -> f64 {
        if self.is_linear() { 2.5 } else { IDM_TIME_GAP }
    }

    /// Gain that a change of lanes must bring, m/s² (`LANE_CHANGE_MIN_ACC_GAIN`).
    fn min_gain(self) -> f64 {
        if matches!(self, Self::Aggressive | Self::Defensive) { 1.0 } else { 0.2 }
    }
}

/// Position and motion of a neighbour on the axis of a lane.
struct Motion {
    s: f64,
    speed: f64,
    velocity: [f64; 2],
}

impl<M: RoadMap> Traffic<M> {
    fn motion(&self, neighbour: Neighbour, lane: usize) -> Motion {
        let lane = self.road.lane(lane);
        match neighbour {
            Neighbour::Vehicle(i) => {
                let v = &self.vehicles;
                Motion { s: lane.local(v.x[i], v.y[i]).0, speed: v.speed[i], velocity: v.velocity(i) }
            }
            Neighbour::Obstacle(i) => {
                let o = &self.road.obstacles()[i];
                Motion { s: lane.local(o.x, o.y).0, speed: 0.0, velocity: [0.0; 2] }
            }
        }
    }

    /// Gap that `ego` wants to a neighbour in front of that velocity, in the model of a driver like `by` (`desired_gap`), metres.
    fn desired_gap(&self, by: Driver, ego: usize, front: [f64; 2]) -> f64 {
        let v = &self.vehicles;
        let [vx, vy] = v.velocity(ego);
        let closing = (vx - front[0]) * v.cos[ego] + (vy - front[1]) * v.sin[ego];
        self.model.wanted_gap(v.speed[ego], by.time_gap(), closing, M::EXACT)
    }

    /// The acceleration of `ego` behind `front` in the model of driver `me`, m/s² (`acceleration`).
    fn acceleration(&self, me: usize, ego: Option<Neighbour>, front: Option<Neighbour>) -> f64 {
        let v = &self.vehicles;
        let driver = v.driver[me];
        if driver.is_linear() {
            return ego.map_or(0.0, |ego| self.linear_acceleration(me, ego, front));
        }
        match ego {
            Some(Neighbour::Vehicle(ego)) => self.free_acceleration(me, ego) - self.interaction(ego, front),
            // Obstacles do not drive.
            Some(Neighbour::Obstacle(_)) | None => 0.0,
        }
    }

    /// The IDM's term of the free road.
    fn free_acceleration(&self, me: usize, ego: usize) -> f64 {
        let v = &self.vehicles;
        let desired = desired_speed(v.driver[ego], v.target_speed[ego], self.road.lane(v.lane[ego]));
        self.model.free_road(v.speed[ego], desired, v.delta[me], M::EXACT)
    }

    /// The IDM's term of the neighbour in front.
    fn interaction(&self, ego: usize, front: Option<Neighbour>) -> f64 {
        let Some(front) = front else { return 0.0 };
        let v = &self.vehicles;
        let (lane, ahead) = (v.lane[ego], M::gap(self, ego, front));
        let gap = ahead.unwrap_or_else(|| self.motion(front, lane).s - self.local_on(ego, lane).0);
        let velocity = match front {
            Neighbour::Vehicle(j) => v.velocity(j),
            Neighbour::Obstacle(_) => [0.0; 2],
        };
        self.model.repulsion(self.desired_gap(Driver::Idm, ego, velocity), gap)
    }

    /// `LinearVehicle.acceleration`.
    fn linear_acceleration(&self, me: usize, ego: Neighbour, front: Option<Neighbour>) -> f64 {
        let v = &self.vehicles;
        let (lane, faster) = match ego {
            Neighbour::Vehicle(i) if v.driver[i].has_targets() => (v.lane[i], v.target_speed[i] - v.speed[i]),
            Neighbour::Vehicle(i) => (v.lane[i], 0.0),
            Neighbour::Obstacle(i) => {
                let o = &self.road.obstacles()[i];
                (self.road.closest_lane(o.x, o.y, o.heading), 0.0)
            }
        };
        let (mut slower, mut further) = (0.0, 0.0);
        if let Some(front) = front {
            let ahead = if let Neighbour::Vehicle(ego) = ego { M::gap(self, ego, front) } else { None };
            let (ego, front) = (self.motion(ego, lane), self.motion(front, lane));
            let safe = self.model.jam_distance + ego.speed.max(0.0) * v.driver[me].time_gap();
            slower = (front.speed - ego.speed).min(0.0);
            further = (ahead.unwrap_or(front.s - ego.s) - safe).min(0.0);
        }
        let [a, b, c] = v.gains[me].acceleration;
        a * faster + b * slower + c * further
    }

    /// Computes both terms of the IDM for all vehicles behind those in front of them.
    pub(super) fn follow(&mut self) {
        let Self { road, vehicles: v, scratch: s, model, .. } = self;
        let n = v.len();
        let ([vx, vy], [fx, fy]) = (&mut s.velocity, &mut s.front_velocity);
        velocities(&v.speed, &v.cos, &v.sin, vx, vy);
        let (vx, vy, fx, fy) = (&vx[..n], &vy[..n], &mut fx[..n], &mut fy[..n]);
        let (gap, desired) = (&mut s.gap[..n], &mut s.desired[..n]);
        let (x, y, lane, front) = (&v.x[..n], &v.y[..n], &v.lane[..n], &s.front[..n]);
        let (driver, target) = (&v.driver[..n], &v.target_speed[..n]);
        for i in 0..n {
            let lane = road.lane(lane[i]);
            let j = front[i] as usize;
            let at = if j < n {
                (fx[i], fy[i]) = (vx[j], vy[j]);
                lane.local(x[j], y[j]).0
            } else {
                (fx[i], fy[i]) = (0.0, 0.0);
                // No neighbour: infinitely far away, so that its term vanishes.
                road.obstacles().get(j - n).map_or(f64::INFINITY, |o| lane.local(o.x, o.y).0)
            };
            gap[i] = at - lane.local(x[i], y[i]).0;
            desired[i] = desired_speed(driver[i], target[i], lane);
        }
        let (v, s, model) = (&self.vehicles, &mut self.scratch, *model);
        let ([vx, vy], [fx, fy]) = (&s.velocity, &s.front_velocity);
        let (speed, cos, sin) = (&v.speed, &v.cos, &v.sin);
        terms(speed, cos, sin, &v.delta, vx, vy, fx, fy, &s.gap, &s.desired, model, &mut s.free, &mut s.interaction);
    }

    /// Acceleration that traffic vehicle `i` chooses (`IDMVehicle.act`), m/s².
    #[inline]
    pub(super) fn longitudinal(&self, i: usize) -> f64 {
        let (v, s) = (&self.vehicles, &self.scratch);
        let me = Some(Neighbour::Vehicle(i));
        let linear = v.driver[i].is_linear();
        let free = if M::EXACT && !linear { self.free_acceleration(i, i) } else { s.free[i] };
        let now = if M::EXACT && !linear { self.interaction(i, self.front(i)) } else { s.interaction[i] };
        let mut acceleration = if linear { self.acceleration(i, me, self.front(i)) } else { free - now };
        if v.lane[i] != v.target_lane[i] {
            let front = M::in_front(self, i, v.target_lane[i]);
            let there = if linear { self.acceleration(i, me, front) } else { free - self.interaction(i, front) };
            acceleration = acceleration.min(there);
        }
        if let Some((distance, _)) = M::stop_line(self, i) {
            let wanted = self.model.wanted_gap(v.speed[i], IDM_TIME_GAP, v.speed[i], M::EXACT);
            let gap = distance + self.model.jam_distance - LINE_DISTANCE;
            acceleration = acceleration.min(self.free_acceleration(i, i) - self.model.repulsion(wanted, gap));
        }
        acceleration.clamp(-MAX_ACCELERATION, MAX_ACCELERATION)
    }

    /// Returns whether traffic vehicle `i` starts or gives up a change of lanes (`change_lane_policy`).
    pub(super) fn choose_lane(&mut self, i: usize) {
        let v = &self.vehicles;
        let (lane, target) = (v.lane[i], v.target_lane[i]);
        if lane != target {
            if self.road.section(lane).contains(&target) && self.is_contested(i) {
                self.vehicles.target_lane[i] = lane;
            }
            return;
        }
        if v.timer[i] <= LANE_CHANGE_DELAY {
            return;
        }
        self.vehicles.timer[i] = 0.0;
        for candidate in self.road.side_lanes(lane) {
            let v = &self.vehicles;
            if self.road.lane(candidate).reachable_from(v.x[i], v.y[i])
                && v.speed[i].abs() >= 1.0
                && self.is_better(i, candidate)
            {
                self.vehicles.target_lane[i] = candidate;
            }
        }
    }

    /// Returns whether a vehicle close in front is changing to the same lane.
    fn is_contested(&self, i: usize) -> bool {
        let v = &self.vehicles;
        let (lane, target) = (v.lane[i], v.target_lane[i]);
        let s = self.road.lane(lane).local(v.x[i], v.y[i]).0;
        (0..v.len()).any(|j| {
            if j == i || v.lane[j] == target || v.target_lane[j] != target || !v.driver[j].has_targets() {
                return false;
            }
            let other = self.motion(Neighbour::Vehicle(j), lane);
            let gap = other.s - s;
            0.0 < gap && gap < self.desired_gap(v.driver[i], i, other.velocity)
        })
    }

    /// MOBIL: whether vehicle `i` gains enough from that lane, or wants to be there for its route, and the one behind it
    /// there need not brake hard.
    fn is_better(&self, i: usize, lane: usize) -> bool {
        let v = &self.vehicles;
        let me = Some(Neighbour::Vehicle(i));
        let preceding = M::in_front(self, i, lane);
        let target = v.target_lane[i];
        if let Some(planned) = self.road.planned_lane(target, &v.route[i]) {
            let start = self.road.section(target).start;
            return (lane - start).cmp(&(target - start)) == (planned as usize).cmp(&(target - start))
                && self.acceleration(i, me, preceding) >= -MAX_BRAKING_IMPOSED
                && self.acceleration(i, M::behind(self, i, lane), me) >= -MAX_BRAKING_IMPOSED;
        }
        if !v.driver[i].is_traffic() {
            return false;
        }
        let gain = if v.driver[i].is_linear() {
            self.acceleration(i, me, preceding) - self.acceleration(i, me, self.front(i))
        } else {
            // The free road is the same on both.
            let now = if M::EXACT { self.interaction(i, self.front(i)) } else { self.scratch.interaction[i] };
            now - self.interaction(i, preceding)
        };
        gain >= v.driver[i].min_gain() && self.acceleration(i, M::behind(self, i, lane), me) >= -MAX_BRAKING_IMPOSED
    }
}

/// Speed that the IDM takes a vehicle to want, not 0, m/s.
#[inline]
fn desired_speed<S: Shape>(driver: Driver, target: f64, lane: &Lane<S>) -> f64 {
    let target = if driver.has_targets() { target } else { 0.0 };
    not_zero(lane.speed_limit.map_or(target, |limit| bounded(target, 0.0, limit))).abs()
}

vectorized! {
    /// Velocities of all, m/s.
    fn velocities(speed: &[f64], cos: &[f64], sin: &[f64], vx: &mut [f64], vy: &mut [f64]) {
        let n = speed.len();
        let (cos, sin, vx, vy) = (&cos[..n], &sin[..n], &mut vx[..n], &mut vy[..n]);
        for i in 0..n {
            vx[i] = speed[i] * cos[i];
            vy[i] = speed[i] * sin[i];
        }
    }
}

vectorized! {
    /// The terms of the IDM for all; `fx` and `fy` are the velocities of those in front.
    fn terms(
        speed: &[f64],
        cos: &[f64],
        sin: &[f64],
        delta: &[f64],
        vx: &[f64],
        vy: &[f64],
        fx: &[f64],
        fy: &[f64],
        gap: &[f64],
        desired: &[f64],
        model: Model,
        free: &mut [f64],
        interaction: &mut [f64],
    ) {
        let n = speed.len();
        let (cos, sin, delta, gap, desired) = (&cos[..n], &sin[..n], &delta[..n], &gap[..n], &desired[..n]);
        let (vx, vy, fx, fy) = (&vx[..n], &vy[..n], &fx[..n], &fy[..n]);
        let (free, interaction) = (&mut free[..n], &mut interaction[..n]);
        for i in 0..n {
            free[i] = model.free_road(speed[i], desired[i], delta[i], false);
            let closing = (vx[i] - fx[i]) * cos[i] + (vy[i] - fy[i]) * sin[i];
            interaction[i] = model.repulsion(model.wanted_gap(speed[i], IDM_TIME_GAP, closing, false), gap[i]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::traffic::road::Road;
    use crate::traffic::vehicles::Vehicle;
    use proptest::prelude::*;

    fn road(vehicles: &[(f64, usize, f64, f64)]) -> Traffic {
        let mut traffic = Traffic::new(Road::straight(3, 1000.0, 30.0), vec![20.0, 25.0, 30.0]);
        for &(x, lane, speed, delta) in vehicles {
            let mut vehicle = Vehicle::new(Driver::Idm, x, lane as f64 * 4.0, speed);
            vehicle.delta = delta;
            traffic.add(&vehicle);
        }
        traffic.scratch.fit(vehicles.len());
        traffic.find_fronts();
        traffic.follow();
        traffic
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, cases: 500, ..ProptestConfig::default() })]

        /// With all instruction sets the loop over all gives what one alone gets, to the last bit; and that
        /// is the formula of the paper.
        #[test]
        fn the_vectorised_terms_equal_single_ones(
            vehicles in prop::collection::vec((0.0f64..300.0, 0usize..3, 0.5f64..40.0, 3.5f64..4.5), 1..12),
        ) {
            let traffic = road(&vehicles);
            let (v, s) = (&traffic.vehicles, &traffic.scratch);
            for i in 0..v.len() {
                prop_assert_eq!(s.free[i], traffic.free_acceleration(i, i));
                prop_assert_eq!(s.interaction[i], traffic.interaction(i, traffic.front(i)));
                let mut expected = 1.0 - (v.speed[i] / v.target_speed[i].min(30.0)).powf(v.delta[i]);
                if let Some(Neighbour::Vehicle(j)) = traffic.front(i) {
                    let closing = v.speed[i] - v.speed[j];
                    let wanted = 10.0 + 1.5 * v.speed[i] + v.speed[i] * closing / (2.0 * 15f64.sqrt());
                    expected -= (wanted / (v.x[j] - v.x[i]).max(0.01)).powi(2);
                }
                let error = (s.free[i] - s.interaction[i] - 3.0 * expected).abs();
                prop_assert!(error <= 1e-13 * (1.0 + expected.abs()), "vehicle {}: off by {}", i, error);
            }
        }
    }

    #[test]
    fn a_free_lane_is_worth_a_change_unless_the_new_follower_must_brake() {
        // Behind a slow one on lane 0; lane 1 is free, or a fast vehicle approaches on it.
        let mut free = road(&[(100.0, 0, 25.0, 4.0), (130.0, 0, 15.0, 4.0)]);
        free.vehicles.timer[0] = 1.5;
        free.choose_lane(0);
        assert_eq!((free.vehicles.target_lane[0], free.vehicles.timer[0]), (1, 0.0));
        let mut taken = road(&[(100.0, 0, 25.0, 4.0), (130.0, 0, 15.0, 4.0), (80.0, 1, 30.0, 4.0)]);
        taken.vehicles.timer[0] = 1.5;
        taken.choose_lane(0);
        assert_eq!(taken.vehicles.target_lane[0], 0);
        // Not every frame.
        let mut early = road(&[(100.0, 0, 25.0, 4.0), (130.0, 0, 15.0, 4.0)]);
        early.vehicles.timer[0] = 0.9;
        early.choose_lane(0);
        assert_eq!(early.vehicles.target_lane[0], 0);
    }
}
