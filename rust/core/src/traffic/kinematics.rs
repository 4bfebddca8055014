//! Motion of vehicles: a bicycle model.
//!
//! Source: `highway_env/vehicle/kinematics.py` (`Vehicle.step`); P. Polack et al., "The kinematic bicycle model: a
//! consistent model for planning feasible trajectories for autonomous vehicles?", IEEE Intelligent Vehicles (2017).

use super::Traffic;
use super::map::RoadMap;
use super::math::{SIN_COS_LIMIT, sin_cos, vectorized};
use super::vehicles::{Driver, LENGTH, Vehicles};

impl<M: RoadMap> Traffic<M> {
    /// Moves all vehicles by `dt` seconds.
    pub(super) fn advance(&mut self, dt: f64) {
        let Self { road, vehicles: v, .. } = self;
        v.bound_commands();
        if M::EXACT {
            v.move_exactly(dt);
        } else {
            v.move_together(dt);
        }
        for i in 0..v.len() {
            if !M::EXACT {
                // As in highway-env, collisions do not push those away whose tyres slip.
                if !v.some_slide || v.driver[i] != Driver::Dynamic {
                    v.push_away(i);
                }
                let heading = v.heading[i];
                if heading.abs() > SIN_COS_LIMIT {
                    v.turn_to(i, heading);
                }
            }
            v.lane[i] = road.locate(v, i);
        }
    }
}

impl Vehicles {
    /// Bounds the commands of all: the crashed brake, and those beyond their range of speeds come back.
    #[inline]
    fn bound_commands(&mut self) {
        let n = self.len();
        let (speed, crashed) = (&self.speed[..n], &self.crashed[..n]);
        let (lowest, highest) = (&self.min_speed[..n], &self.max_speed[..n]);
        let (slip, angle, acceleration) = (&mut self.slip[..n], &mut self.angle[..n], &mut self.acceleration[..n]);
        for i in 0..n {
            if crashed[i] {
                (slip[i], angle[i]) = (0.0, 0.0);
                acceleration[i] = -speed[i];
            }
            if speed[i] > highest[i] {
                acceleration[i] = acceleration[i].min(highest[i] - speed[i]);
            } else if speed[i] < lowest[i] {
                acceleration[i] = acceleration[i].max(lowest[i] - speed[i]);
            }
        }
    }

    /// Shifts vehicle `i` out of a collision.
    #[inline]
    fn push_away(&mut self, i: usize) {
        if let Some([x, y]) = self.impact[i].take() {
            self.x[i] += x;
            self.y[i] += y;
            self.crashed[i] = true;
        }
    }

    /// Moves all vehicles by `dt` seconds with bounded commands; leaves their lanes as they are, and those that collided
    /// where they are.
    #[inline]
    fn move_together(&mut self, dt: f64) {
        let v = self;
        let slides = |&i: &usize| v.driver[i] == Driver::Dynamic;
        let some = if v.some_slide { 0..v.len() } else { 0..0 };
        let slid: Vec<_> = some.filter(slides).map(|i| (i, v.slid(i, v.steering(i), dt))).collect();
        let (x, y, heading, speed) = (&mut v.x, &mut v.y, &mut v.heading, &mut v.speed);
        bicycle(x, y, heading, speed, &mut v.cos, &mut v.sin, &mut v.timer, &v.slip, &v.acceleration, dt);
        for (i, state) in slid {
            v.slide_to(i, state);
        }
    }

    /// [`Traffic::advance`] in highway-env's order of operations; leaves lanes as they are.
    pub(super) fn advance_exactly(&mut self, dt: f64) {
        self.bound_commands();
        self.move_exactly(dt);
    }

    fn move_exactly(&mut self, dt: f64) {
        for i in 0..self.len() {
            self.timer[i] += dt;
            if self.driver[i] == Driver::Dynamic {
                self.slide_to(i, self.slid(i, self.angle[i], dt));
                continue;
            }
            let (speed, angle) = (self.speed[i], self.angle[i]);
            if angle == 0.0 {
                self.x[i] += speed * self.cos[i] * dt;
                self.y[i] += speed * self.sin[i] * dt;
            } else {
                let slip = (0.5 * angle.tan()).atan();
                let (sin, cos) = (self.heading[i] + slip).sin_cos();
                self.x[i] += speed * cos * dt;
                self.y[i] += speed * sin * dt;
                self.turn_to(i, self.heading[i] + speed * slip.sin() / (LENGTH / 2.0) * dt);
            }
            self.push_away(i);
            self.speed[i] += self.acceleration[i] * dt;
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
