//! Controllers that hold a vehicle to its target lane and target speed, and the commands that change these targets.
//!
//! Source: `highway_env/vehicle/controller.py` (`ControlledVehicle`, `MDPVehicle`) and
//! `LinearVehicle.steering_control`.

use std::f64::consts::{FRAC_1_SQRT_2, FRAC_PI_3, FRAC_PI_4, PI};

use super::Traffic;
use super::map::RoadMap;
use super::math::{asin, bounded, not_zero, vectorized, wrap_to_pi};
use super::vehicles::LENGTH;

/// Gains, 1/s: one over `TAU_ACC`, `TAU_HEADING`, `TAU_LATERAL`.
const KP_SPEED: f64 = 1.0 / 0.6;
const KP_HEADING: f64 = 1.0 / 0.2;
const KP_LATERAL: f64 = 1.0 / 0.6;
/// Time ahead for which the lane's direction is looked up, seconds (`TAU_PURSUIT`).
const PURSUIT: f64 = 0.5 * 0.2;
/// Bound of the steering angle, radians.
pub(super) const MAX_STEERING: f64 = FRAC_PI_3;
/// The same as highway-env rounds it: one unit in the last place less.
const MAX_STEERING_EXACT: f64 = PI / 3.0;
/// The slip's sine at that angle: sin(atan(tan(pi / 3) / 2)) = sqrt(3 / 7).
const MAX_SLIP: f64 = 0.654_653_670_707_977_1;

/// The commands to a `Meta` driver (`DiscreteMetaAction.ACTIONS_ALL`, in this order).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Meta {
    LaneLeft,
    Idle,
    LaneRight,
    Faster,
    Slower,
}

/// `LinearVehicle.steering_control`: the angle for an offset from the lane (m) and from its direction, unbounded,
/// radians.
fn linear_steering([a, b]: [f64; 2], lateral: f64, turn: f64, speed: f64) -> f64 {
    let speed = not_zero(speed);
    a * (wrap_to_pi(turn) * LENGTH / speed) + b * (-lateral * LENGTH / (speed * speed))
}

/// Sine of the slip angle that a steering angle makes.
pub(super) fn slip(steering: f64) -> f64 {
    let tangent = 0.5 * steering.tan();
    tangent / (1.0 + tangent * tangent).sqrt()
}

impl<M: RoadMap> Traffic<M> {
    /// Gives `Meta` driver `i` a command for the next frames (`MDPVehicle.act`). A command to a lane that does not
    /// exist or is out of reach is ignored.
    pub fn command(&mut self, i: usize, meta: Meta) {
        M::follow_road(self, i);
        let v = &mut self.vehicles;
        let lane = v.target_lane[i];
        let section = self.road.section(lane);
        let (lane, faster) = match meta {
            Meta::Idle => return,
            Meta::LaneLeft => (lane.saturating_sub(1).max(section.start), None),
            Meta::LaneRight => ((lane + 1).min(section.end - 1), None),
            Meta::Faster => (lane, Some(true)),
            Meta::Slower => (lane, Some(false)),
        };
        let Some(faster) = faster else {
            if self.road.lane(lane).reachable_from(v.x[i], v.y[i]) {
                v.target_lane[i] = lane;
            }
            return;
        };
        let speed = v.speed[i];
        let now = self.speed_to_index(speed);
        let last = self.target_speeds().len() - 1;
        let index = if faster { (now + 1).min(last) } else { now.saturating_sub(1) };
        self.vehicles.speed_index[i] = index;
        self.vehicles.target_speed[i] = self.target_speeds()[index];
    }

    /// Sets acceleration (m/s²) and steering (radians) of `Manual` or `Dynamic` driver `i` for the next frames.
    pub fn drive(&mut self, i: usize, acceleration: f64, steering: f64) {
        self.vehicles.acceleration[i] = acceleration;
        if M::EXACT {
            self.vehicles.angle[i] = steering;
        } else {
            self.vehicles.slip[i] = slip(steering);
        }
    }

    /// Computes the commands of all vehicles. Lanes are chosen in the order of the list: each vehicle sees the target
    /// lanes of those before it.
    pub(super) fn decide(&mut self) {
        M::find_fronts(self);
        if !M::EXACT {
            self.follow();
        }
        let n = self.vehicles.len();
        for i in 0..n {
            let (driver, crashed) = (self.vehicles.driver[i], self.vehicles.crashed[i]);
            if driver.has_targets() && !(driver.is_traffic() && crashed) {
                M::follow_road(self, i);
            }
            if M::chooses_lane(self, i) && !crashed {
                self.choose_lane(i);
            }
        }
        if !M::EXACT {
            self.hold_lanes();
        }
        for i in 0..n {
            let v = &self.vehicles;
            let driver = v.driver[i];
            // A crashed vehicle only brakes.
            if v.crashed[i] || !driver.has_targets() {
                continue;
            }
            let acceleration = if driver.is_traffic() { self.longitudinal(i) } else { self.hold_speed(i) };
            self.vehicles.acceleration[i] = acceleration;
            if M::EXACT {
                self.vehicles.angle[i] = self.hold_lane(i);
            } else {
                let slip = if driver.is_linear() { self.hold_lane_linearly(i) } else { self.scratch.slip[i] };
                self.vehicles.slip[i] = slip;
            }
        }
    }

    /// Acceleration that holds the target speed of vehicle `i`, m/s².
    fn hold_speed(&self, i: usize) -> f64 {
        KP_SPEED * (self.vehicles.target_speed[i] - self.vehicles.speed[i])
    }

    /// Computes the slip that holds each vehicle to its target lane (`steering_control`).
    fn hold_lanes(&mut self) {
        let (v, s) = (&self.vehicles, &mut self.scratch);
        let n = v.len();
        let (x, y, heading, speed) = (&v.x[..n], &v.y[..n], &v.heading[..n], &v.speed[..n]);
        let (target, laterals, turns) = (&v.target_lane[..n], &mut s.lateral[..n], &mut s.turn[..n]);
        for i in 0..n {
            let lane = self.road.lane(target[i]);
            let (along, lateral) = lane.local(x[i], y[i]);
            let turn = lane.heading_at(along + speed[i] * PURSUIT) - heading[i];
            laterals[i] = lateral;
            turns[i] = if turn.abs() > PI { wrap_to_pi(turn) } else { turn };
        }
        slips(&s.lateral, &s.turn, &v.speed, &mut s.slip);
    }

    /// `LinearVehicle.steering_control`, as the sine of the slip angle.
    fn hold_lane_linearly(&self, i: usize) -> f64 {
        let (v, s) = (&self.vehicles, &self.scratch);
        let steering = linear_steering(v.gains[i].steering, s.lateral[i], s.turn[i], v.speed[i]);
        slip(steering.clamp(-MAX_STEERING, MAX_STEERING))
    }

    /// Steering angle that holds vehicle `i` to its target lane, in highway-env's order of operations, radians.
    fn hold_lane(&self, i: usize) -> f64 {
        let v = &self.vehicles;
        let lane = self.road.lane(v.target_lane[i]);
        let (along, lateral) = self.local_on(i, v.target_lane[i]);
        let ahead = lane.heading_at(along + v.speed[i] * PURSUIT);
        if v.driver[i].is_linear() {
            let steering = linear_steering(v.gains[i].steering, lateral, ahead - v.heading[i], v.speed[i]);
            return steering.clamp(-MAX_STEERING_EXACT, MAX_STEERING_EXACT);
        }
        if lateral == 0.0 && ahead == v.heading[i] {
            return 0.0;
        }
        let speed = not_zero(v.speed[i]);
        let towards = (-KP_LATERAL * lateral / speed).clamp(-1.0, 1.0).asin().clamp(-FRAC_PI_4, FRAC_PI_4);
        let turning = KP_HEADING * wrap_to_pi(ahead + towards - v.heading[i]);
        let slip = (LENGTH / 2.0 / speed * turning).clamp(-1.0, 1.0).asin();
        (2.0 * slip.tan()).atan().clamp(-MAX_STEERING_EXACT, MAX_STEERING_EXACT)
    }
}

vectorized! {
    /// A lateral speed that leads to the lane, the heading that gives it (an eighth of a turn at most), the rate of
    /// turning that leads to the heading, and the sine of the slip angle that makes it.
    ///
    /// Steering is arctan(2 tan(slip)), and the bicycle model undoes it: only its bound is left to take over.
    fn slips(lateral: &[f64], turn: &[f64], speed: &[f64], slip: &mut [f64]) {
        let n = speed.len();
        let (lateral, turn, slip) = (&lateral[..n], &turn[..n], &mut slip[..n]);
        for i in 0..n {
            let speed = not_zero(speed[i]);
            let towards = asin(bounded(-KP_LATERAL * lateral[i] / speed, -FRAC_1_SQRT_2, FRAC_1_SQRT_2));
            // Both are half a turn at most.
            let shifted = towards + turn[i] + PI;
            let shifted = if shifted >= 2.0 * PI { shifted - 2.0 * PI } else { shifted };
            let shifted = if shifted < 0.0 { shifted + 2.0 * PI } else { shifted };
            let turning = KP_HEADING * (shifted - PI);
            slip[i] = bounded(LENGTH / 2.0 / speed * turning, -MAX_SLIP, MAX_SLIP);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, cases: 5000, ..ProptestConfig::default() })]

        /// highway-env's chain of steering angle and slip angle, with all its trigonometry.
        #[test]
        fn the_slip_equals_that_of_the_reference(
            lateral in -8.0f64..8.0,
            heading in -7.0f64..7.0,
            speed in prop_oneof![-40.0f64..40.0, -0.02f64..0.02, Just(0.0)],
        ) {
            let v = not_zero(speed);
            let command = (-KP_LATERAL * lateral / v).clamp(-1.0, 1.0).asin();
            let reference = command.clamp(-PI / 4.0, PI / 4.0);
            let rate = KP_HEADING * wrap_to_pi(reference - heading);
            let angle = (LENGTH / 2.0 / v * rate).clamp(-1.0, 1.0).asin();
            let steering = (2.0 * angle.tan()).atan().clamp(-MAX_STEERING, MAX_STEERING);
            let turn = if heading.abs() > PI { wrap_to_pi(-heading) } else { -heading };
            let mut found = [0.0];
            slips(&[lateral], &[turn], &[speed], &mut found);
            // At exactly half a turn either direction is right.
            prop_assume!((wrap_to_pi(reference - heading).abs() - PI).abs() > 1e-9);
            prop_assert!((found[0] - slip(steering)).abs() < 1e-12, "{} not {}", found[0], slip(steering));
        }
    }

    #[test]
    fn the_bound_of_the_slip_is_that_of_the_steering() {
        assert!((slip(MAX_STEERING) - MAX_SLIP).abs() < 1e-15);
    }
}
