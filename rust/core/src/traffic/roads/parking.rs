//! `parking-v0`, `parking-ActionRepeat-v0` and `parking-parked-v0`: a car park with a free place to be reached.
//!
//! Source: `highway_env/envs/parking_env.py` (`ParkingEnv`).

use std::f64::consts::{FRAC_PI_2, PI};

use super::curve::Curve;
use super::scenario::{Options, Parts, Place, Scenario};
use super::world::World;
use super::{Builder, Network};
use crate::traffic::action::LastAction;
use crate::traffic::lane::{Lane, Line, WIDTH};
use crate::traffic::observation::{Feature, Goal};
use crate::traffic::obstacle::{Landmark, Obstacle};
use crate::traffic::vehicles::{Driver, Vehicle};

/// Parking spaces on each side.
const SPACES: usize = 14;
/// Length of a space, metres.
const LENGTH: f64 = 8.0;
/// From the middle to the spaces of either side, metres.
const AISLE: f64 = 10.0;
/// Between vehicles of agents, metres.
const DISTANCE: f64 = 10.0;
/// Within the walls, metres, and their thickness.
const WALLS: [f64; 2] = [70.0, 42.0];
const THICKNESS: f64 = 1.0;
/// Features that rewards and ends are computed from, and their scales (`PARKING_OBS`).
const MEASURED: [(Feature, f64); 6] = [
    (Feature::X, 100.0),
    (Feature::Y, 100.0),
    (Feature::Vx, 5.0),
    (Feature::Vy, 5.0),
    (Feature::CosH, 1.0),
    (Feature::SinH, 1.0),
];

#[derive(Debug)]
pub(super) struct Parking {
    collision_reward: f64,
    success_goal_reward: f64,
    reward_weights: Vec<f64>,
    controlled: usize,
    vehicles: usize,
    walls: bool,
    measured: Goal,
    /// Inputs of the success in `info`.
    shown: Goal,
}

impl Parking {
    /// Besides highway-env's options: `shown_features` and `shown_scales` of [`Parking::shown`]; the features are indices
    /// of [`Feature::ALL`].
    pub(super) fn new(options: &Options) -> Result<Self, String> {
        let reward_weights = options.numbers("reward_weights")?.to_vec();
        let shown = options.numbers("shown_features")?.iter().zip(options.numbers("shown_scales")?);
        let known = |(&index, &scale): (&f64, &f64)| Feature::ALL.get(index as usize).map(|&feature| (feature, scale));
        let shown: Vec<_> = shown.map_while(known).collect();
        if [reward_weights.len(), shown.len()] != [MEASURED.len(); 2] {
            return Err(format!("reward_weights, shown_features: expected {} of each", MEASURED.len()));
        }
        Ok(Self {
            collision_reward: options.number("collision_reward")?,
            success_goal_reward: options.number("success_goal_reward")?,
            reward_weights,
            controlled: options.count("controlled_vehicles", 1, 7)?,
            vehicles: options.count("vehicles_count", 0, 100_000)?,
            walls: options.flag("add_walls")?,
            measured: Goal { features: MEASURED.to_vec() },
            shown: Goal { features: shown },
        })
    }

    /// The reward for how near vehicle `i` is to its landmark (`compute_reward`).
    fn nearness(&self, world: &World, i: usize, goal: &Goal) -> f64 {
        let weighted = goal.pairs(&world.traffic, i).zip(&self.reward_weights);
        -weighted.map(|((achieved, desired), weight)| (achieved - desired).abs() * weight).sum::<f64>().sqrt()
    }

    fn is_near(&self, world: &World, i: usize, goal: &Goal) -> bool {
        self.nearness(world, i, goal) > -self.success_goal_reward
    }

    /// Takes a random one of the free spaces out of the list.
    fn take(place: &mut Place<'_>, free: &mut Vec<usize>) -> usize {
        free.remove(place.rng.below(free.len() as u32) as usize)
    }
}

impl Scenario for Parking {
    fn network(&self, connected: bool) -> Network {
        let mut roads = Builder::default();
        for k in 0..SPACES {
            let x = (k as f64 + 1.0 - (SPACES / 2) as f64) * WIDTH - WIDTH / 2.0;
            for (from, to, side) in [("a", "b", 1.0), ("b", "c", -1.0)] {
                let curve = Curve::straight([x, side * AISLE], [x, side * (AISLE + LENGTH)]);
                roads.add(from, to, Lane { lines: [Line::Continuous; 2], ..Lane::new(curve) });
            }
        }
        let mut network = roads.build(connected);
        if self.walls {
            let [width, height] = WALLS;
            let wall = |x: f64, y: f64, heading: f64, length: f64| Obstacle { x, y, heading, length, width: THICKNESS };
            network.obstacles = vec![
                wall(0.0, -height / 2.0, 0.0, width),
                wall(0.0, height / 2.0, 0.0, width),
                wall(-width / 2.0, 0.0, FRAC_PI_2, height),
                wall(width / 2.0, 0.0, FRAC_PI_2, height),
            ];
        }
        network
    }

    fn controlled(&self) -> usize {
        self.controlled
    }

    fn vehicles(&self) -> usize {
        self.controlled + self.vehicles.min(2 * SPACES)
    }

    fn landmarks(&self) -> usize {
        self.controlled
    }

    fn populate(&self, place: &mut Place<'_>) {
        let mut free: Vec<usize> = (0..place.world.traffic.road.lanes().len()).collect();
        for i in 0..self.controlled {
            let x = (i as f64 - (self.controlled / 2) as f64) * DISTANCE;
            let heading = 2.0 * PI * place.rng.random();
            let vehicle = Vehicle { heading, ..Vehicle::new(place.agent, x, 0.0, 0.0) };
            let i = place.world.add_agent(&vehicle);
            let lane = place.world.traffic.vehicles.lane[i];
            free.retain(|&space| space != lane);
        }
        for _ in 0..self.controlled {
            let space = Self::take(place, &mut free);
            let lane = place.world.traffic.road.lane(space);
            let (x, y) = lane.position(lane.length() / 2.0, 0.0);
            let body = Obstacle { heading: lane.heading_at(0.0), ..Obstacle::new(x, y) };
            place.world.traffic.landmarks.push(Landmark::new(body));
        }
        for _ in 0..self.vehicles.min(free.len()) {
            let space = Self::take(place, &mut free);
            let vehicle = place.on_lane(Driver::Manual, space, 4.0, 0.0);
            place.world.add(&vehicle);
        }
    }

    /// highway-env has no names for the parts here.
    fn part_names(&self) -> &'static [&'static str] {
        &[]
    }

    fn parts(&self, world: &World, i: usize, _action: &LastAction) -> Parts {
        let crashed = f64::from(world.traffic.vehicles.crashed[i]);
        [self.nearness(world, i, &self.measured), crashed, 0.0, 0.0, 0.0]
    }

    fn reward(&self, parts: &Parts) -> f64 {
        let [nearness, crashed, ..] = *parts;
        nearness + self.collision_reward * crashed
    }

    /// highway-env takes the first agent's nearness, and the crashes of all.
    fn reward_of_others(&self, world: &World) -> f64 {
        let crashes = world.agents()[1..].iter().filter(|&&i| world.traffic.vehicles.crashed[i]);
        self.collision_reward * crashes.count() as f64
    }

    fn is_over(&self, world: &World) -> bool {
        let crashed = |&i: &usize| world.traffic.vehicles.crashed[i];
        world.agents().iter().any(crashed) || self.is_near(world, world.agents()[0], &self.measured)
    }

    fn is_done(&self, world: &World, i: usize) -> bool {
        world.traffic.vehicles.crashed[i] || self.is_near(world, i, &self.measured)
    }

    fn has_succeeded(&self, world: &World, i: usize) -> bool {
        self.is_near(world, i, &self.shown)
    }
}
