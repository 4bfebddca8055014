//! `exit-v0` and `exit-v1`: a highway with an exit that the agent should take.
//!
//! Source: `highway_env/envs/exit_env.py` (`ExitEnv`), `Vehicle.create_random`.

use std::f64::consts::PI;

use super::curve::Curve;
use super::scenario::{Options, Parts, Place, Scenario, lane_number, share};
use super::world::World;
use super::{Builder, Network};
use crate::traffic::action::LastAction;
use crate::traffic::lane::{Lane, Line, WIDTH};

/// Start of the lane to the exit, its length, and the length of the road, metres.
const EXIT: f64 = 400.0;
const EXIT_LENGTH: f64 = 100.0;
const LENGTH: f64 = 1000.0;
const EXIT_RADIUS: f64 = 150.0;
/// m/s.
const AGENT_SPEED: f64 = 25.0;

#[derive(Debug)]
pub(super) struct Exit {
    collision_reward: f64,
    goal_reward: f64,
    high_speed_reward: f64,
    right_lane_reward: f64,
    reward_speed_range: [f64; 2],
    normalize_reward: bool,
    lanes: usize,
    vehicles: usize,
    controlled: usize,
    density: f64,
    ego_spacing: f64,
}

/// The speed limit of a lane by its number, m/s.
fn limit(number: usize) -> f64 {
    26.0 - 3.4 * number as f64
}

impl Exit {
    pub(super) fn new(options: &Options) -> Result<Self, String> {
        Ok(Self {
            collision_reward: options.number("collision_reward")?,
            goal_reward: options.number("goal_reward")?,
            high_speed_reward: options.number("high_speed_reward")?,
            right_lane_reward: options.number("right_lane_reward")?,
            reward_speed_range: options.pair("reward_speed_range")?,
            normalize_reward: options.flag("normalize_reward")?,
            lanes: options.count("lanes_count", 2, 1000)?,
            vehicles: options.count("vehicles_count", 0, 100_000)?,
            controlled: options.count("controlled_vehicles", 1, 1000)?,
            density: options.number("vehicles_density")?,
            ego_spacing: options.number("ego_spacing")?,
        })
    }

    /// Draws the place of the next vehicle on a lane, in front of all others.
    fn ahead(&self, lane: usize, speed: f64, spacing: f64, place: &mut Place<'_>) -> f64 {
        let (road, v) = (&place.world.traffic.road, &place.world.traffic.vehicles);
        let offset = spacing * (12.0 + speed) * (-5.0 / 40.0 * self.lanes as f64).exp();
        let foremost = (0..v.len()).map(|j| road.lane(lane).local(v.x[j], v.y[j]).0).reduce(f64::max);
        foremost.unwrap_or(3.0 * offset) + offset * place.rng.uniform(0.9, 1.1)
    }
}

impl Scenario for Exit {
    fn network(&self, connected: bool) -> Network {
        let mut roads = Builder::default();
        for (from, to, start, end, lanes) in [
            ("0", "1", 0.0, EXIT, self.lanes),
            ("1", "2", EXIT, EXIT + EXIT_LENGTH, self.lanes + 1),
            ("2", "3", EXIT + EXIT_LENGTH, LENGTH, self.lanes),
        ] {
            for i in 0..lanes {
                let y = i as f64 * WIDTH;
                let left = if i == 0 { Line::Chord } else { Line::Striped };
                let right = if i + 1 == lanes { Line::Chord } else { Line::None };
                let (lines, speed_limit) = ([left, right], Some(limit(i)));
                let curve = Curve::straight([start, y], [end, y]);
                roads.add(from, to, Lane { lines, speed_limit, ..Lane::new(curve) });
            }
        }
        let centre = [EXIT + EXIT_LENGTH, self.lanes as f64 * WIDTH + EXIT_RADIUS];
        let curve = Curve::circular(centre, EXIT_RADIUS, [3.0 * PI / 2.0, 2.0 * PI], true);
        roads.add("2", "exit", Lane { forbidden: true, ..Lane::new(curve) });
        roads.build(connected)
    }

    fn vehicles(&self) -> usize {
        self.vehicles + self.controlled
    }

    fn controlled(&self) -> usize {
        self.controlled
    }

    fn populate(&self, place: &mut Place<'_>) {
        let first = place.world.traffic.road.find("0", "1", 0);
        for _ in 0..self.controlled {
            let along = self.ahead(first, AGENT_SPEED, self.ego_spacing, place);
            place.agent_on(first, along, AGENT_SPEED);
        }
        // The farther to the right, the more traffic.
        let weights: Vec<f64> = (0..self.lanes).map(|i| i as f64).collect();
        for _ in 0..self.vehicles {
            let number = place.rng.weighted(&weights);
            let speed = limit(number);
            let along = self.ahead(first + number, speed, 1.0 / self.density, place);
            let i = place.other_on(first + number, along, speed);
            place.world.traffic.plan_route(i, "3");
            place.world.traffic.vehicles.changes_lanes[i] = false;
        }
    }

    fn part_names(&self) -> &'static [&'static str] {
        &["collision_reward", "goal_reward", "high_speed_reward", "right_lane_reward"]
    }

    fn parts(&self, world: &World, i: usize, _action: &LastAction) -> Parts {
        let v = &world.traffic.vehicles;
        let lane = if v.driver[i].has_targets() { v.target_lane[i] } else { v.lane[i] };
        let speed = share(v.speed[i], self.reward_speed_range).clamp(0.0, 1.0);
        let reached = f64::from(self.has_succeeded(world, i));
        [f64::from(v.crashed[i]), reached, speed, lane_number(world, lane), 0.0]
    }

    fn reward(&self, parts: &Parts) -> f64 {
        let [collision, goal, high_speed, right_lane, _] = *parts;
        let sum = self.collision_reward * collision
            + self.goal_reward * goal
            + self.high_speed_reward * high_speed
            + self.right_lane_reward * right_lane;
        if self.normalize_reward { share(sum, [self.collision_reward, self.goal_reward]).clamp(0.0, 1.0) } else { sum }
    }

    fn is_over(&self, world: &World) -> bool {
        self.is_done(world, world.agents()[0])
    }

    fn has_goal(&self) -> bool {
        true
    }

    /// On the lane to the exit, or on the exit.
    fn has_succeeded(&self, world: &World, i: usize) -> bool {
        let v = &world.traffic.vehicles;
        let lane = if v.driver[i].has_targets() { v.target_lane[i] } else { v.lane[i] };
        let index = world.traffic.road.index_of(lane);
        index == ("1", "2", self.lanes) || index == ("2", "exit", 0)
    }
}
