//! Roads and those who drive on them. One file a noun.
//!
//! [`Traffic`] is what all simulators of traffic are built on: a [`road::Road`], its [`vehicles::Vehicles`], and the
//! frame that moves them, in lockstep with highway-env 1.12.1.

pub mod action;
mod behaviour;
mod collision;
pub mod controller;
pub mod coop;
pub mod highway;
mod kinematics;
pub mod lane;
pub mod numpy_random;
pub mod observation;
pub mod raster;
pub mod ring;
pub mod road;
pub mod scene;
pub mod vehicles;

use serde::{Deserialize, Serialize};

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

    /// One frame of `dt` seconds: everyone decides in the order of the list, everyone moves, collisions are found.
    pub fn frame(&mut self, dt: f64) {
        for i in 0..self.vehicles.len() {
            let driver = self.vehicles.driver[i];
            // Whoever has crashed only brakes from now on.
            if self.vehicles.crashed[i] || driver == Driver::Manual {
                continue;
            }
            if driver.is_traffic() && self.vehicles.changes_lanes[i] {
                self.choose_lane(i);
            }
            self.vehicles.slip[i] = self.hold_lane(i);
            self.vehicles.acceleration[i] = if driver.is_traffic() { self.longitudinal(i) } else { self.hold_speed(i) };
        }
        self.advance(dt);
        self.collide(dt);
    }
}
