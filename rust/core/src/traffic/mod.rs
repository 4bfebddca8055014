//! Roads and the vehicles on them.
//!
//! [`Traffic`] is what all simulators of traffic are built on: a [`road::Road`] or a [`roads::Network`], its
//! [`vehicles::Vehicles`], and the frame that moves them, in lockstep with highway-env 1.12.1.

pub mod action;
mod behaviour;
mod check;
mod collision;
pub mod columns;
pub mod controller;
pub mod coop;
pub mod difficulty;
mod dynamics;
pub mod highway;
mod kinematics;
pub mod lane;
pub mod links;
pub mod map;
mod math;
pub mod metrics;
mod neighbours;
mod numpy_normal;
pub mod observation;
pub mod obstacle;
pub mod raster;
pub mod ring;
pub mod road;
pub mod roads;
pub mod scene;
mod strips;
pub mod v2x;
pub mod vehicles;

use serde::{Deserialize, Serialize};

pub use behaviour::Model;
pub use map::Neighbour;
use map::{NO_NEIGHBOUR, RoadMap};
use obstacle::{Landmark, Obstacle};
use road::Road;
use vehicles::{Driver, Vehicle, Vehicles};

/// A road with the vehicles on it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Traffic<M: RoadMap = Road> {
    pub road: M,
    pub vehicles: Vehicles,
    /// Places to be reached: of vehicle `i` the place `i`, where vehicles have such.
    pub landmarks: Vec<Landmark>,
    /// Evenly spaced speeds, from low to high, that `Meta` drivers choose from, m/s.
    target_speeds: Vec<f64>,
    /// The care with which the traffic follows.
    pub model: Model,
    #[serde(skip)]
    scratch: Scratch,
}

/// A vehicle on a lane, and its place along it, metres.
#[derive(Clone, Copy, Debug)]
struct Placed {
    lane: u32,
    vehicle: u32,
    along: f64,
}

/// Intermediate results of a frame; no state. Arrays have one entry for each vehicle but where they say.
#[derive(Clone, Debug, Default)]
struct Scratch {
    order: neighbours::Order,
    /// The neighbour in front on the same lane: a vehicle, an obstacle (indices from the number of vehicles on), or
    /// none.
    front: Vec<u32>,
    /// Velocity along x and y, of the vehicle and of its neighbour in front, m/s.
    velocity: [Vec<f64>; 2],
    front_velocity: [Vec<f64>; 2],
    /// Distance to the neighbour in front, centre to centre, metres.
    gap: Vec<f64>,
    /// Speed that the IDM drives at on a free road, m/s.
    desired: Vec<f64>,
    /// The IDM's terms, m/s².
    free: Vec<f64>,
    interaction: Vec<f64>,
    /// Offset from the target lane's middle, metres, and from its direction, radians.
    lateral: Vec<f64>,
    turn: Vec<f64>,
    /// Slip of the steering that holds the lane, see [`Vehicles::slip`].
    slip: Vec<f64>,
    /// Places of the vehicles on their lanes, along and to the side, metres, where lanes are linked one by one and while
    /// all decide; else empty.
    own: Vec<(f64, f64)>,
    /// Places on lanes, in the order of the lanes, where these are linked one by one, where those of each lane begin, and
    /// the same in the order of the vehicles.
    places: Vec<Placed>,
    lane_starts: Vec<u32>,
    listed: Vec<Placed>,
    strips: strips::Strips,
    /// Pairs that may collide; obstacles have indices from the number of vehicles on.
    pairs: Vec<(u32, u32)>,
}

impl Scratch {
    fn fit(&mut self, n: usize) {
        let [vx, vy] = &mut self.velocity;
        let [fx, fy] = &mut self.front_velocity;
        let arrays = [vx, vy, fx, fy, &mut self.gap, &mut self.desired, &mut self.free, &mut self.interaction];
        for array in arrays.into_iter().chain([&mut self.lateral, &mut self.turn, &mut self.slip]) {
            array.resize(n, 0.0);
        }
        self.front.resize(n, NO_NEIGHBOUR);
    }
}

impl<M: RoadMap> Traffic<M> {
    /// A road without vehicles. `target_speeds`: at least one, evenly spaced, from low to high.
    pub fn new(road: M, target_speeds: Vec<f64>) -> Self {
        assert!(!target_speeds.is_empty(), "at least one target speed");
        let (vehicles, scratch) = (Vehicles::default(), Scratch::default());
        Self { road, vehicles, landmarks: Vec::new(), target_speeds, model: Model::default(), scratch }
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

    /// Removes vehicle `i`; the indices of later ones decrease by one.
    pub fn remove(&mut self, i: usize) {
        self.vehicles.remove(i);
    }

    /// Index of the nearest target speed (`MDPVehicle.speed_to_index`).
    pub fn speed_to_index(&self, speed: f64) -> usize {
        let last = self.target_speeds.len() - 1;
        if last == 0 {
            return 0;
        }
        let x = (speed - self.target_speeds[0]) / (self.target_speeds[last] - self.target_speeds[0]);
        (x * last as f64).round_ties_even().clamp(0.0, last as f64) as usize
    }

    /// The place of vehicle `i` on a lane, along and to the side, metres.
    #[inline]
    fn local_on(&self, i: usize, lane: usize) -> (f64, f64) {
        let v = &self.vehicles;
        match self.scratch.own.get(i) {
            Some(&at) if lane == v.lane[i] => at,
            _ => self.road.lane(lane).local(v.x[i], v.y[i]),
        }
    }

    /// All that lies on the road, in highway-env's order.
    fn objects(&self) -> impl Iterator<Item = &Obstacle> {
        self.landmarks.iter().map(|landmark| &landmark.body).chain(self.road.obstacles())
    }

    /// One frame of `dt` seconds: all vehicles decide in the order of the list, all move, collisions are found.
    pub fn frame(&mut self, dt: f64) {
        self.prepare();
        self.decide();
        self.move_on(dt);
    }

    /// Makes room for intermediate results.
    fn prepare(&mut self) {
        self.scratch.fit(self.vehicles.len());
    }

    /// The second half of a frame: all move, collisions are found.
    fn move_on(&mut self, dt: f64) {
        self.scratch.own.clear();
        self.advance(dt);
        self.collide(dt);
    }
}
