//! MountainCarContinuous: the mountain car with a force that is a number, which costs.

use super::mountain_car::{GRAVITY, LARGEST, MAX_POSITION, MAX_SPEED, MIN_POSITION, observe, start};
use super::{Shape, Task, Variables};
use crate::numpy_random::NumpyRandom;

const GOAL: f64 = 0.45;
const POWER: f64 = 0.0015;

/// The variables are the position and the velocity: float64 in the first step of an episode, float32 from then on.
pub(super) struct MountainCarContinuous {
    /// The velocity that the goal has to be reached with.
    pub goal_velocity: f64,
}

impl Task for MountainCarContinuous {
    fn shape(&self) -> Shape {
        Shape { obs_len: 2, num_actions: None, largest: LARGEST }
    }

    fn start(&self, rng: &mut NumpyRandom) -> Variables {
        start(rng)
    }

    fn step(&self, variables: &mut Variables, action: f32, first: bool) -> (f64, bool) {
        let [position, velocity, ..] = *variables;
        // Rounds a number as NumPy does where it meets a float32.
        let round = |x: f64| if first { x } else { f64::from(x as f32) };
        let slope = GRAVITY * round(3.0 * position).cos();
        let force = action.clamp(-1.0, 1.0);
        // The bounds are Python floats, an action within is a float32.
        let push = if force == action {
            f64::from(force * POWER as f32 - slope as f32)
        } else {
            round(f64::from(force) * POWER - slope)
        };
        let velocity = round(velocity + push).clamp(round(-MAX_SPEED), round(MAX_SPEED));
        let position = round(position + velocity).clamp(round(MIN_POSITION), round(MAX_POSITION));
        let velocity = if position == round(MIN_POSITION) { velocity.max(0.0) } else { velocity };
        (variables[0], variables[1]) = (f64::from(position as f32), f64::from(velocity as f32));
        let terminated = position >= round(GOAL) && velocity >= round(self.goal_velocity);
        let reward = if terminated { 100.0 } else { 0.0 };
        (reward - f64::from(action) * f64::from(action) * 0.1, terminated)
    }

    fn observe(&self, variables: &Variables, obs: &mut [f32]) {
        observe(variables, obs);
    }
}
