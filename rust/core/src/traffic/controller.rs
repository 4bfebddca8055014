//! What holds a vehicle to its target lane and target speed, and the commands that move these targets.
//!
//! Source: `highway_env/vehicle/controller.py` (`ControlledVehicle`, `MDPVehicle`) and `LinearVehicle.steering_control`.

use std::f64::consts::{FRAC_1_SQRT_2, FRAC_PI_3};

use super::Traffic;
use super::road::wrap_to_pi;
use super::vehicles::{Driver, LENGTH};

/// Gains, 1/s: one over `TAU_ACC`, `TAU_HEADING`, `TAU_LATERAL`.
const KP_SPEED: f64 = 1.0 / 0.6;
const KP_HEADING: f64 = 1.0 / 0.2;
const KP_LATERAL: f64 = 1.0 / 0.6;
/// How far ahead the lane's direction is looked up, seconds (`TAU_PURSUIT`).
const PURSUIT: f64 = 0.5 * 0.2;
/// Bound of the steering angle, radians.
pub(super) const MAX_STEERING: f64 = FRAC_PI_3;
/// The slip's sine at that angle: sin(atan(tan(pi / 3) / 2)) = sqrt(3 / 7).
const MAX_SLIP: f64 = 0.654_653_670_707_977_1;

/// What a `Meta` driver can be told (`DiscreteMetaAction.ACTIONS_ALL`, in this order).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Meta {
    LaneLeft,
    Idle,
    LaneRight,
    Faster,
    Slower,
}

/// `utils.not_zero`: to divide by.
#[inline]
pub(super) fn not_zero(x: f64) -> f64 {
    const SMALL: f64 = 1e-2;
    if x.abs() > SMALL { x } else { SMALL.copysign(x + 0.0) }
}

/// Sine of the slip angle that a steering angle makes.
pub(super) fn slip(steering: f64) -> f64 {
    let tangent = 0.5 * steering.tan();
    tangent / (1.0 + tangent * tangent).sqrt()
}

impl Traffic {
    /// Tells `Meta` driver `i` what to do from the next frame on (`MDPVehicle.act`). A lane that is not there or out of
    /// reach is no target: the command is ignored.
    pub fn command(&mut self, i: usize, meta: Meta) {
        let v = &mut self.vehicles;
        let lane = v.target_lane[i];
        let (lane, faster) = match meta {
            Meta::Idle => return,
            Meta::LaneLeft => (lane.saturating_sub(1), None),
            Meta::LaneRight => ((lane + 1).min(self.road.lanes().len() - 1), None),
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

    /// Sets what `Manual` driver `i` does from the next frame on: m/s² and radians.
    pub fn drive(&mut self, i: usize, acceleration: f64, steering: f64) {
        self.vehicles.acceleration[i] = acceleration;
        self.vehicles.slip[i] = slip(steering);
    }

    /// Acceleration that holds the target speed of vehicle `i`, m/s².
    pub(super) fn hold_speed(&self, i: usize) -> f64 {
        KP_SPEED * (self.vehicles.target_speed[i] - self.vehicles.speed[i])
    }

    /// Sine of the slip angle that holds vehicle `i` to its target lane (`steering_control`).
    ///
    /// Steering is arctan(2 tan(slip)), and the bicycle model undoes it: only its bound is left to take over.
    pub(super) fn hold_lane(&self, i: usize) -> f64 {
        let v = &self.vehicles;
        let lane = self.road.lane(v.target_lane[i]);
        let (s, lateral) = lane.local(v.x[i], v.y[i]);
        let direction = lane.heading_at(s + v.speed[i] * PURSUIT);
        let speed = not_zero(v.speed[i]);
        if matches!(v.driver[i], Driver::Linear | Driver::Aggressive | Driver::Defensive) {
            let [a, b] = v.gains[i].steering;
            let steering =
                a * (wrap_to_pi(direction - v.heading[i]) * LENGTH / speed) + b * (-lateral * LENGTH / (speed * speed));
            return slip(steering.clamp(-MAX_STEERING, MAX_STEERING));
        }
        // An eighth of a turn at most.
        let towards = (-KP_LATERAL * lateral / speed).clamp(-FRAC_1_SQRT_2, FRAC_1_SQRT_2).asin();
        let turning = KP_HEADING * wrap_to_pi(direction + towards - v.heading[i]);
        (LENGTH / 2.0 / speed * turning).clamp(-MAX_SLIP, MAX_SLIP)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bound_of_the_slip_is_that_of_the_steering() {
        assert!((slip(MAX_STEERING) - MAX_SLIP).abs() < 1e-15);
        assert_eq!([not_zero(0.0), not_zero(-0.0), not_zero(-1e-3), not_zero(0.5)], [0.01, 0.01, -0.01, 0.5]);
    }
}
