//! Motion of vehicles whose tyres slip: a bicycle with lateral forces.
//!
//! Source: `highway_env/vehicle/dynamics.py` (`BicycleVehicle`); R. Rajamani, "Vehicle Dynamics and Control", chapter 2
//! (2011).

use std::f64::consts::{FRAC_PI_2, TAU};

use super::vehicles::{LENGTH, Vehicles, WIDTH};

/// Distance of either axle from the centre, metres.
const AXLE: f64 = LENGTH / 2.0;
/// Moment of inertia, for a mass of 1 kg, kg m².
const INERTIA: f64 = 1.0 / 12.0 * (LENGTH * LENGTH + WIDTH * WIDTH);
/// Cornering stiffness of an axle, N/rad.
const FRICTION: f64 = 15.0;
/// Turning rate that a step starts with at most, rad/s.
const MAX_TURNING_RATE: f64 = TAU;
/// Below this speed (m/s) slides are damped instead.
const SLOW: f64 = 1.0;

/// x, y, heading, speed, lateral speed and turning rate.
type State = [f64; 6];

fn derivative(state: &State, acceleration: f64, steering: f64) -> State {
    let [_, _, heading, speed, lateral, rate] = *state;
    let (front, rear) = if speed.abs() < SLOW {
        let damping = INERTIA / AXLE * rate;
        (-lateral - damping, -lateral + damping)
    } else {
        let slip = |axle: f64| (lateral + axle * rate).atan2(speed);
        (2.0 * FRICTION * (steering - slip(AXLE)), 2.0 * FRICTION * (0.0 - slip(-AXLE)))
    };
    let (sin, cos) = heading.sin_cos();
    [
        cos * speed - sin * lateral,
        sin * speed + cos * lateral,
        rate,
        acceleration,
        front + rear - rate * speed,
        1.0 / INERTIA * (AXLE * front - AXLE * rear),
    ]
}

/// Runge and Kutta's step of fourth order.
fn step(state: &State, acceleration: f64, steering: f64, dt: f64) -> State {
    let after = |slope: &State, dt: f64| std::array::from_fn(|k| state[k] + slope[k] * dt);
    let a = derivative(state, acceleration, steering);
    let b = derivative(&after(&a, dt / 2.0), acceleration, steering);
    let c = derivative(&after(&b, dt / 2.0), acceleration, steering);
    let d = derivative(&after(&c, dt), acceleration, steering);
    std::array::from_fn(|k| state[k] + dt / 6.0 * (a[k] + 2.0 * b[k] + 2.0 * c[k] + d[k]))
}

impl Vehicles {
    /// The state of vehicle `i`; only `Dynamic` ones slide.
    pub(super) fn bicycle(&self, i: usize) -> State {
        let [lateral, rate] = self.slide[i];
        [self.x[i], self.y[i], self.heading[i], self.speed[i], lateral, rate]
    }

    /// Its derivative as a `Dynamic` vehicle with the last commands. `exact`: see
    /// [`RoadMap::EXACT`](super::map::RoadMap::EXACT).
    pub(super) fn bicycle_derivative(&self, i: usize, exact: bool) -> State {
        let steering = if exact { self.angle[i] } else { self.steering(i) };
        derivative(&self.bicycle(i), self.acceleration[i], steering)
    }

    /// The state of `Dynamic` vehicle `i` after `dt` seconds with that steering angle (radians) and its present
    /// acceleration.
    pub(super) fn slid(&self, i: usize, steering: f64, dt: f64) -> State {
        let [x, y, heading, speed, lateral, rate] = self.bicycle(i);
        let state = [x, y, heading, speed, lateral, rate.clamp(-MAX_TURNING_RATE, MAX_TURNING_RATE)];
        let steering = steering.clamp(-FRAC_PI_2, FRAC_PI_2);
        step(&state, self.acceleration[i], steering, dt)
    }

    pub(super) fn slide_to(&mut self, i: usize, [x, y, heading, speed, lateral, rate]: State) {
        (self.x[i], self.y[i], self.speed[i]) = (x, y, speed);
        self.slide[i] = [lateral, rate];
        self.turn_to(i, heading);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn straight_ahead_nothing_slides() {
        let state = step(&[0.0, 0.0, 0.0, 10.0, 0.0, 0.0], 1.0, 0.0, 0.5);
        assert_eq!(state, [5.125, 0.0, 0.0, 10.5, 0.0, 0.0]);
    }

    #[test]
    fn a_steered_bicycle_turns_and_drifts_outwards() {
        let mut state = [0.0, 0.0, 0.0, 10.0, 0.0, 0.0];
        for _ in 0..40 {
            state = step(&state, 0.0, 0.1, 0.05);
        }
        let [_, y, heading, speed, _, rate] = state;
        assert!(y > 0.0 && heading > 0.0 && rate > 0.0 && speed == 10.0);
        // Both axles slip alike: it turns as one without slip does, v tan(delta) / L with small angles.
        assert!((rate - 10.0 * 0.1 / LENGTH).abs() < 0.02, "{rate}");
    }
}
