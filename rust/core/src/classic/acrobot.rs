//! Acrobot: two links, of which the joint between them is driven, swing up to a height.

use std::f64::consts::{FRAC_PI_2, PI};

use super::{Shape, Task, Variables, square};
use crate::numpy_random::NumpyRandom;

const GRAVITY: f64 = 9.8;
/// Largest angular speeds of the links, rad/s.
const MAX_SPEEDS: [f64; 2] = [4.0 * PI, 9.0 * PI];
/// Seconds of a step.
const DT: f64 = 0.2;

/// The variables are the angles of the links and their angular speeds. Lengths, masses and moments of inertia are 1, the
/// centres of mass in the middle.
pub(super) struct Acrobot;

/// Derivatives by time, as R. Sutton and A. Barto's book has them.
fn derivatives([theta1, theta2, speed1, speed2]: Variables, torque: f64) -> Variables {
    let (sin, cos) = (theta2.sin(), theta2.cos());
    let d1 = 0.25 + (1.25 + cos) + 1.0 + 1.0;
    let d2 = (0.25 + 0.5 * cos) + 1.0;
    let phi2 = 0.5 * GRAVITY * (theta1 + theta2 - FRAC_PI_2).cos();
    let phi1 = -0.5 * square(speed2) * sin - speed2 * speed1 * sin + 1.5 * GRAVITY * (theta1 - FRAC_PI_2).cos() + phi2;
    let acceleration2 = (torque + d2 / d1 * phi1 - 0.5 * square(speed1) * sin - phi2) / (1.25 - square(d2) / d1);
    let acceleration1 = -(d2 * acceleration2 + phi1) / d1;
    [speed1, speed2, acceleration1, acceleration2]
}

/// The angle less full turns, from -pi to pi.
fn wrap(mut angle: f64) -> f64 {
    while angle > PI {
        angle -= 2.0 * PI;
    }
    while angle < -PI {
        angle += 2.0 * PI;
    }
    angle
}

impl Task for Acrobot {
    fn shape(&self) -> Shape {
        Shape { obs_len: 6, num_actions: Some(3), largest: [PI, PI, MAX_SPEEDS[0], MAX_SPEEDS[1]] }
    }

    fn start(&self, rng: &mut NumpyRandom) -> Variables {
        std::array::from_fn(|_| f64::from(rng.uniform(-0.1, 0.1) as f32))
    }

    fn step(&self, variables: &mut Variables, action: f32, _first: bool) -> (f64, bool) {
        let torque = f64::from(action) - 1.0;
        let start = *variables;
        let after = |time: f64, slope: Variables| std::array::from_fn(|i| start[i] + time * slope[i]);
        let k1 = derivatives(start, torque);
        let k2 = derivatives(after(DT / 2.0, k1), torque);
        let k3 = derivatives(after(DT / 2.0, k2), torque);
        let k4 = derivatives(after(DT, k3), torque);
        let [theta1, theta2, speed1, speed2] =
            after(DT / 6.0, std::array::from_fn(|i| k1[i] + 2.0 * k2[i] + 2.0 * k3[i] + k4[i]));
        let [most1, most2] = MAX_SPEEDS;
        let (theta1, theta2) = (wrap(theta1), wrap(theta2));
        *variables = [theta1, theta2, speed1.clamp(-most1, most1), speed2.clamp(-most2, most2)];
        let terminated = -theta1.cos() - (theta2 + theta1).cos() > 1.0;
        (if terminated { 0.0 } else { -1.0 }, terminated)
    }

    fn observe(&self, variables: &Variables, obs: &mut [f32]) {
        let [theta1, theta2, speed1, speed2] = *variables;
        let numbers = [theta1.cos(), theta1.sin(), theta2.cos(), theta2.sin(), speed1, speed2];
        obs.iter_mut().zip(numbers).for_each(|(to, x)| *to = x as f32);
    }
}
