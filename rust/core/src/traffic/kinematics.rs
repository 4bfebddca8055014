//! How vehicles move: a bicycle model.
//!
//! Source: `highway_env/vehicle/kinematics.py` (`Vehicle.step`); P. Polack et al., "The kinematic bicycle model: a
//! consistent model for planning feasible trajectories for autonomous vehicles?", IEEE Intelligent Vehicles (2017).

use super::Traffic;
use super::vehicles::LENGTH;

impl Traffic {
    /// Everybody moves on by `dt` seconds.
    pub(super) fn advance(&mut self, dt: f64) {
        let v = &mut self.vehicles;
        for i in 0..v.len() {
            if v.driver[i].is_traffic() {
                v.timer[i] += dt;
            }
            let speed = v.speed[i];
            if v.crashed[i] {
                v.slip[i] = 0.0;
                v.acceleration[i] = -speed;
            }
            if speed > v.max_speed[i] {
                v.acceleration[i] = v.acceleration[i].min(v.max_speed[i] - speed);
            } else if speed < v.min_speed[i] {
                v.acceleration[i] = v.acceleration[i].max(v.min_speed[i] - speed);
            }
            let slip = v.slip[i];
            let straight = (1.0 - slip * slip).sqrt();
            v.x[i] += speed * (v.cos[i] * straight - v.sin[i] * slip) * dt;
            v.y[i] += speed * (v.sin[i] * straight + v.cos[i] * slip) * dt;
            if let Some([x, y]) = v.impact[i].take() {
                v.x[i] += x;
                v.y[i] += y;
                v.crashed[i] = true;
            }
            let heading = v.heading[i] + speed * slip / (LENGTH / 2.0) * dt;
            v.turn_to(i, heading);
            v.speed[i] += v.acceleration[i] * dt;
            v.lane[i] = self.road.still_closest_lane(v.lane[i], v.x[i], v.y[i], heading);
        }
    }
}
