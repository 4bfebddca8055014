//! `racetrack-v0`, `racetrack-v1`, and the large and the oval one: closed tracks, on which agents steer.
//!
//! Source: `highway_env/envs/racetrack_env.py` (`RacetrackEnv`, `RacetrackEnvLarge`, `RacetrackEnvOval`). Where each
//! agent has its own end, all but the first start on the road and apart from each other; highway-env puts them beside it
//! and onto each other, too.

use super::curve::Curve;
use super::racetrack_roads::{Oval, large, oval, usual};
use super::scenario::{Options, Parts, Place, Scenario, share};
use super::world::World;
use super::{Ends, Network};
use crate::traffic::action::LastAction;
use crate::traffic::lane::Lane;
use crate::traffic::obstacle::Obstacle;
use crate::traffic::vehicles::Driver;

/// Least room between other vehicles and those before them, metres, and attempts to find it for agents.
const ROOM: f64 = 20.0;
const TRIES: usize = 100;

#[derive(Debug)]
enum Track {
    /// Two lanes.
    Usual,
    /// Three lanes, with their speed limit, m/s.
    Large(f64),
    Oval(Oval),
}

#[derive(Debug)]
pub(super) struct Racetrack {
    track: Track,
    collision_reward: f64,
    lane_centering_cost: f64,
    lane_centering_reward: f64,
    action_reward: f64,
    terminate_off_road: bool,
    controlled: usize,
    /// More than the others that there are at most; 0: none.
    others: usize,
}

impl Racetrack {
    fn with(options: &Options, track: Track) -> Result<Self, String> {
        Ok(Self {
            track,
            collision_reward: options.number("collision_reward")?,
            lane_centering_cost: options.number("lane_centering_cost")?,
            lane_centering_reward: options.number("lane_centering_reward")?,
            action_reward: options.number("action_reward")?,
            terminate_off_road: options.flag("terminate_off_road")?,
            controlled: options.count("controlled_vehicles", 1, 100)?,
            others: options.count("other_vehicles", 0, 10_000)?,
        })
    }

    /// highway-env's `racetrack-v0`.
    pub(super) fn new(options: &Options) -> Result<Self, String> {
        Self::with(options, Track::Usual)
    }

    /// `racetrack-large-v0`.
    pub(super) fn large(options: &Options) -> Result<Self, String> {
        Self::with(options, Track::Large(options.number("speed_limit")?))
    }

    /// `racetrack-oval-v0`.
    pub(super) fn oval(options: &Options) -> Result<Self, String> {
        let length = options.number("length")?;
        if !(length > 0.0 && length <= 1e5) {
            return Err(format!("length: expected a number above 0, up to 100000, got {length}"));
        }
        let (block_lane, force_decision) = (options.flag("block_lane")?, options.flag("force_decision")?);
        let oval = Oval { length, lanes: options.count("no_lanes", 2, 1000)?, block_lane, force_decision };
        Self::with(options, Track::Oval(oval))
    }

    /// Lanes that the first agent starts on.
    fn first_lanes(&self) -> usize {
        if let Track::Oval(oval) = &self.track { oval.lanes } else { 2 }
    }

    /// Returns the number of the last one's lane.
    fn place_agents(&self, place: &mut Place<'_>) -> usize {
        let mut last = 0;
        for agent in 0..self.controlled {
            let along;
            if agent > 0 && place.ends == Ends::Each {
                (last, along) = free_place(place);
            } else {
                last = if agent == 0 {
                    let number = place.rng.below(self.first_lanes() as u32) as usize;
                    place.world.traffic.road.find("a", "b", number)
                } else {
                    random_lane(place)
                };
                along = place.rng.uniform(20.0, 50.0);
            }
            let speed = speed_limit(place.world.traffic.road.lane(last));
            place.agent_on(last, along, speed);
        }
        place.world.traffic.road.number(last)
    }

    /// Others, at random; `number`: the lane of the one after the first turn.
    fn place_others(&self, number: usize, place: &mut Place<'_>) {
        let turn = place.world.traffic.road.find("b", "c", 0);
        let along = place.rng.uniform(0.0, place.world.traffic.road.lane(turn).length());
        let speed = 6.0 + place.rng.uniform(0.0, 3.0);
        add_other(place, turn + number, along, speed);
        for _ in 0..place.rng.below(self.others as u32) {
            let lane = random_lane(place);
            let along = place.rng.uniform(0.0, place.world.traffic.road.lane(lane).length());
            let speed = 6.0 + place.rng.uniform(0.0, 3.0);
            if is_far(place, lane, along) {
                add_other(place, lane, along, speed);
            }
        }
    }
}

/// `RoadNetwork.random_lane_index`: one road leads on from each node.
fn random_lane(place: &mut Place<'_>) -> usize {
    let road = &place.world.traffic.road;
    let sections = road.sections().len();
    let lanes = road.sections()[place.rng.below(sections as u32) as usize].lanes.clone();
    lanes.start + place.rng.below(lanes.len() as u32) as usize
}

/// A random lane and a place along it, far from all vehicles if such a place is found.
fn free_place(place: &mut Place<'_>) -> (usize, f64) {
    let mut draw = || {
        let lane = random_lane(place);
        let along = place.rng.uniform(0.0, place.world.traffic.road.lane(lane).length());
        (is_far(place, lane, along), (lane, along))
    };
    let mut found = draw();
    for _ in 1..TRIES {
        if found.0 {
            break;
        }
        found = draw();
    }
    found.1
}

fn is_far(place: &Place<'_>, lane: usize, along: f64) -> bool {
    let (x, y) = place.world.traffic.road.lane(lane).position(along, 0.0);
    let v = &place.world.traffic.vehicles;
    v.x.iter().zip(&v.y).all(|(ox, oy)| ((x - ox) * (x - ox) + (y - oy) * (y - oy)).sqrt() >= ROOM)
}

/// Adds one that follows the IDM, whatever the kind of others is elsewhere.
fn add_other(place: &mut Place<'_>, lane: usize, along: f64, speed: f64) {
    let vehicle = place.on_lane(Driver::Idm, lane, along, speed);
    place.world.add(&vehicle);
}

fn speed_limit(lane: &Lane<Curve>) -> f64 {
    lane.speed_limit.expect("a racetrack has a speed limit")
}

impl Scenario for Racetrack {
    fn network(&self, connected: bool) -> Network {
        match &self.track {
            Track::Usual => usual().build(connected),
            Track::Large(limit) => large(*limit).build(connected),
            Track::Oval(shape) => {
                let mut network = oval(shape.length, shape.lanes).build(connected);
                network.obstacles.extend(shape.obstacles().map(|[x, y]| Obstacle::new(x, y)));
                network
            }
        }
    }

    fn vehicles(&self) -> usize {
        self.controlled + self.others
    }

    fn controlled(&self) -> usize {
        self.controlled
    }

    fn joins_actions(&self) -> bool {
        true
    }

    fn populate(&self, place: &mut Place<'_>) {
        let number = self.place_agents(place);
        if self.others > 0 {
            self.place_others(number, place);
        }
    }

    fn part_names(&self) -> &'static [&'static str] {
        &["lane_centering_reward", "action_reward", "collision_reward", "on_road_reward"]
    }

    /// The fifth is the weighed sum of the first three, as NumPy computes it: the part of an action of single precision
    /// is of single precision, and the sum is, too, where the first part is a number of Python (on straight lanes).
    fn parts(&self, world: &World, i: usize, action: &LastAction) -> Parts {
        let v = &world.traffic.vehicles;
        let lane = world.traffic.road.lane(v.lane[i]);
        let lateral = lane.local(v.x[i], v.y[i]).1;
        let centering = 1.0 / (1.0 + self.lane_centering_cost * (lateral * lateral));
        let norm = match action {
            // NumPy's dot product of few numbers: products of single precision, a sum of double precision.
            LastAction::Box(numbers) => (numbers.iter().map(|a| f64::from(a * a)).sum::<f64>() as f32).sqrt().into(),
            LastAction::Double(numbers) => numbers.iter().map(|a| a * a).sum::<f64>().sqrt(),
            LastAction::Discrete(index) => index.abs() as f64,
        };
        let crashed = f64::from(v.crashed[i]);
        let (centred, collided) = (self.lane_centering_reward * centering, self.collision_reward * crashed);
        let sum = if matches!(action, LastAction::Box(_)) {
            let acted = self.action_reward as f32 * norm as f32;
            match lane.shape() {
                Curve::Straight(_) => f64::from(centred as f32 + acted + collided as f32),
                _ => centred + f64::from(acted) + collided,
            }
        } else {
            centred + self.action_reward * norm + collided
        };
        [centering, norm, crashed, f64::from(world.is_on_road(i)), sum]
    }

    fn reward(&self, parts: &Parts) -> f64 {
        let [.., on_road, sum] = *parts;
        share(sum, [self.collision_reward, 1.0]) * on_road
    }

    /// As there the first vehicle alone counts.
    fn is_over(&self, world: &World) -> bool {
        self.is_done(world, world.agents()[0])
    }

    fn is_done(&self, world: &World, i: usize) -> bool {
        world.traffic.vehicles.crashed[i] || self.terminate_off_road && !world.is_on_road(i)
    }
}
