//! CartPole: a pole on a cart that is pushed to the left or to the right.

use std::f64::consts::PI;

use super::{Shape, Task, Variables};
use crate::numpy_random::NumpyRandom;

const GRAVITY: f64 = 9.8;
const POLE_MASS: f64 = 0.1;
const TOTAL_MASS: f64 = POLE_MASS + 1.0;
/// Half the length of the pole, m.
const LENGTH: f64 = 0.5;
const POLE_MASS_LENGTH: f64 = POLE_MASS * LENGTH;
const FORCE: f64 = 10.0;
/// Seconds of a step.
const TAU: f64 = 0.02;
/// Beyond these an episode terminates, m and rad.
const FURTHEST: f64 = 2.4;
const STEEPEST: f64 = 12.0 * 2.0 * PI / 360.0;

/// The variables are the cart's position and speed, and the pole's angle and angular speed.
pub(super) struct CartPole {
    /// -1 for the step that terminates and 0 for others, in place of 1 for each.
    pub sutton_barto_reward: bool,
}

impl Task for CartPole {
    fn shape(&self) -> Shape {
        // In an episode speeds stay far below.
        Shape { obs_len: 4, num_actions: Some(2), largest: [1e3; 4] }
    }

    fn start(&self, rng: &mut NumpyRandom) -> Variables {
        std::array::from_fn(|_| rng.uniform(-0.05, 0.05))
    }

    fn step(&self, variables: &mut Variables, action: f32, _first: bool) -> (f64, bool) {
        let [x, x_dot, theta, theta_dot] = *variables;
        let force = if action == 1.0 { FORCE } else { -FORCE };
        let (sin, cos) = (theta.sin(), theta.cos());
        let temp = (force + POLE_MASS_LENGTH * (theta_dot * theta_dot) * sin) / TOTAL_MASS;
        let theta_acc = (GRAVITY * sin - cos * temp) / (LENGTH * (4.0 / 3.0 - POLE_MASS * (cos * cos) / TOTAL_MASS));
        let x_acc = temp - POLE_MASS_LENGTH * theta_acc * cos / TOTAL_MASS;
        let (x, theta) = (x + TAU * x_dot, theta + TAU * theta_dot);
        *variables = [x, x_dot + TAU * x_acc, theta, theta_dot + TAU * theta_acc];
        let terminated = x.abs() > FURTHEST || theta.abs() > STEEPEST;
        let reward = match (self.sutton_barto_reward, terminated) {
            (false, _) => 1.0,
            (true, true) => -1.0,
            (true, false) => 0.0,
        };
        (reward, terminated)
    }

    fn observe(&self, variables: &Variables, obs: &mut [f32]) {
        obs.iter_mut().zip(variables).for_each(|(to, x)| *to = *x as f32);
    }
}
