//! Motion of vehicles: a bicycle model.
//!
//! Source: `highway_env/vehicle/kinematics.py` (`Vehicle.step`); P. Polack et al., "The kinematic bicycle model: a
//! consistent model for planning feasible trajectories for autonomous vehicles?", IEEE Intelligent Vehicles (2017).

use super::Traffic;
use super::math::{SIN_COS_LIMIT, sin_cos, vectorized};
use super::vehicles::LENGTH;

impl Traffic {
    /// Moves all vehicles by `dt` seconds.
    pub(super) fn advance(&mut self, dt: f64) {
        let v = &mut self.vehicles;
        let n = v.len();
        let (speed, crashed) = (&v.speed[..n], &v.crashed[..n]);
        let (lowest, highest) = (&v.min_speed[..n], &v.max_speed[..n]);
        let (slip, acceleration) = (&mut v.slip[..n], &mut v.acceleration[..n]);
        for i in 0..n {
            if crashed[i] {
                slip[i] = 0.0;
                acceleration[i] = -speed[i];
            }
            if speed[i] > highest[i] {
                acceleration[i] = acceleration[i].min(highest[i] - speed[i]);
            } else if speed[i] < lowest[i] {
                acceleration[i] = acceleration[i].max(lowest[i] - speed[i]);
            }
        }
        let (x, y, heading, speed) = (&mut v.x, &mut v.y, &mut v.heading, &mut v.speed);
        bicycle(x, y, heading, speed, &mut v.cos, &mut v.sin, &mut v.timer, &v.slip, &v.acceleration, dt);
        for i in 0..n {
            if let Some([x, y]) = v.impact[i].take() {
                v.x[i] += x;
                v.y[i] += y;
                v.crashed[i] = true;
            }
            let heading = v.heading[i];
            if heading.abs() > SIN_COS_LIMIT {
                v.turn_to(i, heading);
            }
            v.lane[i] = self.road.still_closest_lane(v.lane[i], v.x[i], v.y[i], heading);
        }
    }
}

vectorized! {
    /// Moves all vehicles. The slip's sine is sin(beta), and the sine and cosine of heading + beta follow from those of
    /// the heading.
    fn bicycle(
        x: &mut [f64],
        y: &mut [f64],
        heading: &mut [f64],
        speed: &mut [f64],
        cos: &mut [f64],
        sin: &mut [f64],
        timer: &mut [f64],
        slip: &[f64],
        acceleration: &[f64],
        dt: f64,
    ) {
        let n = x.len();
        let (y, heading, speed, timer) = (&mut y[..n], &mut heading[..n], &mut speed[..n], &mut timer[..n]);
        let (cos, sin, slip, acceleration) = (&mut cos[..n], &mut sin[..n], &slip[..n], &acceleration[..n]);
        for i in 0..n {
            let straight = (1.0 - slip[i] * slip[i]).sqrt();
            x[i] += speed[i] * (cos[i] * straight - sin[i] * slip[i]) * dt;
            y[i] += speed[i] * (sin[i] * straight + cos[i] * slip[i]) * dt;
            heading[i] += speed[i] * slip[i] / (LENGTH / 2.0) * dt;
            speed[i] += acceleration[i] * dt;
            timer[i] += dt;
            (sin[i], cos[i]) = sin_cos(heading[i]);
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::traffic::Traffic;
    use crate::traffic::road::Road;
    use crate::traffic::vehicles::{Driver, Vehicle};
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, cases: 2000, ..ProptestConfig::default() })]

        /// `Vehicle.step`, line by line.
        #[test]
        fn a_vehicle_moves_as_the_bicycle_does(
            heading in -4.0f64..4.0,
            speed in -45.0f64..45.0,
            acceleration in -6.0f64..6.0,
            steering in -1.0f64..1.0,
            impact in prop::option::of((-1.0f64..1.0, -1.0f64..1.0)),
            crashed: bool,
        ) {
            let mut traffic = Traffic::new(Road::straight(2, 1000.0, 30.0), vec![20.0]);
            traffic.add(&Vehicle { heading, ..Vehicle::new(Driver::Manual, 500.0, 2.0, speed) });
            traffic.drive(0, acceleration, steering);
            traffic.vehicles.impact[0] = impact.map(|(x, y)| [x, y]);
            traffic.vehicles.crashed[0] = crashed;
            traffic.advance(0.2);
            let (steering, mut acceleration) = if crashed { (0.0, -speed) } else { (steering, acceleration) };
            if speed > 40.0 {
                acceleration = acceleration.min(40.0 - speed);
            } else if speed < -40.0 {
                acceleration = acceleration.max(-40.0 - speed);
            }
            let beta = (0.5 * steering.tan()).atan();
            let (dx, dy) = impact.unwrap_or_default();
            let x = 500.0 + speed * (heading + beta).cos() * 0.2 + dx;
            let y = 2.0 + speed * (heading + beta).sin() * 0.2 + dy;
            let turned = heading + speed * beta.sin() / 2.5 * 0.2;
            let v = &traffic.vehicles;
            let expected = [x, y, turned, speed + acceleration * 0.2, turned.cos(), turned.sin()];
            let found = [v.x[0], v.y[0], v.heading[0], v.speed[0], v.cos[0], v.sin[0]];
            for (found, expected) in found.into_iter().zip(expected) {
                prop_assert!((found - expected).abs() < 1e-12, "{} not {}", found, expected);
            }
            prop_assert_eq!(v.crashed[0], crashed || impact.is_some());
            prop_assert_eq!(v.lane[0], usize::from(y > 2.0));
        }
    }
}
