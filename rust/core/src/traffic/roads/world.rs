//! A network with vehicles that come and go, and with the vehicles of the agents among them.

use serde::{Deserialize, Serialize};

use super::Network;
use super::regulation::frames_between;
use crate::env::ensure;
use crate::numpy_random::NumpyRandom;
use crate::traffic::vehicles::{Driver, Gains, Vehicle};
use crate::traffic::{Model, Traffic};

/// The place of an agent whose vehicle has left the roads.
pub const GONE: usize = usize::MAX;

/// All that is on the roads at one moment.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct World {
    pub traffic: Traffic<Network>,
    /// The vehicle of each agent or [`GONE`]; empty before the first episode.
    agents: Vec<usize>,
    /// A number of each vehicle that no other one has in its episode, and the next free one.
    numbers: Vec<u32>,
    next_number: u32,
    /// Frames since the episode's roads were made.
    frames: u64,
    /// True if vehicles give way by the lanes' priorities.
    regulated: bool,
    /// Departures that were due, and the numbers of those among them that wait for room.
    pub due: usize,
    pub waiting: Vec<u32>,
}

impl World {
    /// An empty world.
    pub fn new(road: Network, target_speeds: Vec<f64>, model: Model, regulated: bool) -> Self {
        let mut traffic = Traffic::new(road, target_speeds);
        traffic.model = model;
        Self {
            traffic,
            agents: Vec::new(),
            numbers: Vec::new(),
            next_number: 0,
            frames: 0,
            regulated,
            due: 0,
            waiting: Vec::new(),
        }
    }

    /// The vehicle of each agent, or [`GONE`].
    #[inline]
    pub fn agents(&self) -> &[usize] {
        &self.agents
    }

    /// Frames since the episode began.
    pub fn frames(&self) -> u64 {
        self.frames
    }

    /// The vehicle of one agent; None without an episode, and after it has left the roads.
    #[inline]
    pub fn vehicle_of(&self, agent: usize) -> Option<usize> {
        self.agents.get(agent).copied().filter(|&i| i != GONE)
    }

    /// The number of each vehicle in its episode.
    pub fn numbers(&self) -> &[u32] {
        &self.numbers
    }

    /// Removes all vehicles.
    pub fn clear(&mut self) {
        self.traffic.vehicles.clear();
        self.traffic.landmarks.clear();
        self.agents.clear();
        self.numbers.clear();
        (self.next_number, self.frames, self.due) = (0, 0, 0);
        self.waiting.clear();
    }

    /// Sets the clock, which traffic lights go by, before the first frame.
    pub fn start_at(&mut self, frames: u64) {
        self.frames = frames;
    }

    /// The clock, seconds.
    pub fn clock(&self, dt: f64) -> f64 {
        self.frames as f64 * dt
    }

    /// Takes the vehicle of an agent off the roads, if it is still there.
    pub fn take_off(&mut self, agent: usize) {
        let i = std::mem::replace(&mut self.agents[agent], GONE);
        if i != GONE {
            self.remove(i);
        }
    }

    fn remove(&mut self, i: usize) {
        self.traffic.remove(i);
        self.numbers.remove(i);
        for agent in &mut self.agents {
            *agent -= usize::from(*agent > i && *agent != GONE);
        }
    }

    /// Puts a vehicle at the end of the list and returns its index.
    pub fn add(&mut self, vehicle: &Vehicle) -> usize {
        self.numbers.push(self.next_number);
        self.next_number = self.next_number.wrapping_add(1);
        self.traffic.add(vehicle)
    }

    /// The same for the vehicle of the next agent.
    pub fn add_agent(&mut self, vehicle: &Vehicle) -> usize {
        let i = self.add(vehicle);
        self.agents.push(i);
        i
    }

    /// Removes the vehicles for which `goes` is true, those of agents never.
    pub fn remove_if(&mut self, goes: impl Fn(&Traffic<Network>, usize) -> bool) {
        for i in (0..self.traffic.vehicles.len()).rev() {
            if !self.agents.contains(&i) && goes(&self.traffic, i) {
                self.remove(i);
            }
        }
    }

    /// Vehicles that have come onto the roads since the episode began.
    pub fn entered(&self) -> u32 {
        self.next_number
    }

    /// One frame of `dt` seconds, at rights of way after all have decided.
    pub fn frame(&mut self, dt: f64) {
        self.frame_held(dt, &[]);
    }

    /// The same with traffic lights that show the phases `held`, see [`super::junctions::Junctions::light`].
    pub fn frame_held(&mut self, dt: f64, held: &[u32]) {
        let Self { traffic, frames, regulated, .. } = self;
        traffic.prepare();
        if traffic.road.is_linked() {
            traffic.give_way(*frames as f64 * dt, held);
        }
        traffic.decide();
        *frames = frames.wrapping_add(1);
        if *regulated && *frames % frames_between(dt) == 0 {
            traffic.regulate();
        }
        traffic.move_on(dt);
    }

    /// Returns whether a vehicle is on the lane that it is nearest to.
    pub fn is_on_road(&self, i: usize) -> bool {
        let Traffic { road, vehicles: v, .. } = &self.traffic;
        road.lane(v.lane[i]).along(v.x[i], v.y[i], 0.0).is_some()
    }

    /// Draws how a vehicle of the traffic behaves (`randomize_behavior`).
    pub fn randomize(&mut self, i: usize, rng: &mut NumpyRandom) {
        let v = &mut self.traffic.vehicles;
        if v.driver[i] != Driver::Idm {
            v.gains[i] = Gains::draw(rng);
        }
        v.delta[i] = rng.uniform(3.5, 4.5);
    }

    /// Refuses a decoded world that is not one of `own` with so many agents and landmarks; the error says why.
    pub(super) fn check(&self, own: &Self, agents: usize, landmarks: usize, driver: Driver) -> Result<(), String> {
        self.traffic.check(&own.traffic)?;
        let n = self.traffic.vehicles.len();
        ensure(self.regulated == own.regulated && self.traffic.model == own.traffic.model, "the rules are others")?;
        ensure(self.numbers.len() == n, "the numbers of vehicles are not as many as the vehicles")?;
        ensure(self.agents.len() == agents, "the agents are more or fewer")?;
        ensure(self.traffic.landmarks.len() == landmarks, "the landmarks are more or fewer")?;
        let on_roads = || self.agents.iter().filter(|&&i| i != GONE);
        ensure(on_roads().is_sorted_by(|a, b| a < b), "two agents have the same vehicle")?;
        ensure(
            on_roads().all(|&i| i < n && self.traffic.vehicles.driver[i] == driver),
            "another kind of driver has an agent's place",
        )
    }
}
