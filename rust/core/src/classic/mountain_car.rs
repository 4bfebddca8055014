//! MountainCar: a car too weak for a hill gathers speed in the valley.

use super::{Shape, Task, Variables};
use crate::numpy_random::NumpyRandom;

pub(super) const MIN_POSITION: f64 = -1.2;
pub(super) const MAX_POSITION: f64 = 0.6;
pub(super) const MAX_SPEED: f64 = 0.07;
pub(super) const GRAVITY: f64 = 0.0025;
const GOAL: f64 = 0.5;
const FORCE: f64 = 0.001;

/// The variables are the position and the velocity.
pub(super) struct MountainCar {
    /// The velocity that the goal has to be reached with.
    pub goal_velocity: f64,
}

/// Bounds of both mountain cars. As float32 they are a little more than as float64.
pub(super) const LARGEST: Variables = [1.21, 0.071, 0.0, 0.0];

/// The start of both mountain cars.
pub(super) fn start(rng: &mut NumpyRandom) -> Variables {
    [rng.uniform(-0.6, -0.4), 0.0, 0.0, 0.0]
}

/// The observation of both mountain cars.
pub(super) fn observe(variables: &Variables, obs: &mut [f32]) {
    obs.copy_from_slice(&[variables[0] as f32, variables[1] as f32]);
}

impl Task for MountainCar {
    fn shape(&self) -> Shape {
        Shape { obs_len: 2, num_actions: Some(3), largest: LARGEST }
    }

    fn start(&self, rng: &mut NumpyRandom) -> Variables {
        start(rng)
    }

    fn step(&self, variables: &mut Variables, action: f32, _first: bool) -> (f64, bool) {
        let [position, velocity, ..] = *variables;
        let velocity = velocity + ((f64::from(action) - 1.0) * FORCE + (3.0 * position).cos() * -GRAVITY);
        let velocity = velocity.clamp(-MAX_SPEED, MAX_SPEED);
        let position = (position + velocity).clamp(MIN_POSITION, MAX_POSITION);
        let velocity = if position == MIN_POSITION { velocity.max(0.0) } else { velocity };
        (variables[0], variables[1]) = (position, velocity);
        (-1.0, position >= GOAL && velocity >= self.goal_velocity)
    }

    fn observe(&self, variables: &Variables, obs: &mut [f32]) {
        observe(variables, obs);
    }
}
