//! Pendulum: a motor too weak to lift a pendulum at once swings it up.

use std::f64::consts::PI;
use std::hint::black_box;

use super::{Shape, Task, Variables, square};
use crate::numpy_random::NumpyRandom;

const MAX_SPEED: f64 = 8.0;
const MAX_TORQUE: f32 = 2.0;
/// Seconds of a step.
const DT: f64 = 0.05;

/// The variables are the angle, 0 upright and never wrapped, and the angular speed.
pub(super) struct Pendulum {
    /// Acceleration of gravity, m/s^2.
    pub g: f64,
}

impl Task for Pendulum {
    fn shape(&self) -> Shape {
        // An episode of 2^32 steps turns less far.
        Shape { obs_len: 3, num_actions: None, largest: [2e9, MAX_SPEED, 0.0, 0.0] }
    }

    fn start(&self, rng: &mut NumpyRandom) -> Variables {
        [rng.uniform(-PI, PI), rng.uniform(-1.0, 1.0), 0.0, 0.0]
    }

    fn step(&self, variables: &mut Variables, action: f32, _first: bool) -> (f64, bool) {
        let [theta, speed, ..] = *variables;
        // Terms of the torque alone are float32 in NumPy.
        let torque = action.clamp(-MAX_TORQUE, MAX_TORQUE);
        let off = (theta + PI).rem_euclid(2.0 * PI) - PI;
        let cost = square(off) + 0.1 * square(speed) + f64::from(0.001 * torque.powf(black_box(2.0)));
        let speed = speed + (3.0 * self.g / 2.0 * theta.sin() + f64::from(3.0 * torque)) * DT;
        let speed = speed.clamp(-MAX_SPEED, MAX_SPEED);
        (variables[0], variables[1]) = (theta + speed * DT, speed);
        (-cost, false)
    }

    fn observe(&self, variables: &Variables, obs: &mut [f32]) {
        let [theta, speed, ..] = *variables;
        obs.copy_from_slice(&[theta.cos() as f32, theta.sin() as f32, speed as f32]);
    }
}
