//! `u-turn-v0` and `u-turn-v1`: a road that turns back, with slow traffic to overtake.
//!
//! Source: `highway_env/envs/u_turn_env.py` (`UTurnEnv`).

use super::curve::Curve;
use super::scenario::{Options, Parts, Place, Scenario, lane_number, share};
use super::world::World;
use super::{Builder, Network};
use crate::traffic::action::LastAction;
use crate::traffic::lane::{Lane, Line, WIDTH};
use crate::traffic::map::RoadMap;

/// Length of the straight parts, metres.
const LENGTH: f64 = 128.0;
/// Radius of the inner lane of the turn, metres.
const RADIUS: f64 = 20.0;
/// Others: section, lane, mean place (m) and mean speed (m/s). Only the first is randomised.
const OTHERS: [(&str, &str, usize, f64, f64); 6] = [
    ("a", "b", 0, 25.0, 13.5),
    ("a", "b", 1, 56.0, 14.5),
    ("b", "c", 1, 0.5, 4.5),
    ("b", "c", 0, 17.5, 5.5),
    ("c", "d", 0, 1.0, 3.5),
    ("c", "d", 1, 30.0, 5.5),
];
/// Deviation of places (m) and of speeds (m/s).
const DEVIATION: f64 = 2.0;

#[derive(Debug)]
pub(super) struct UTurn {
    collision_reward: f64,
    left_lane_reward: f64,
    high_speed_reward: f64,
    reward_speed_range: [f64; 2],
    normalize_reward: bool,
}

impl UTurn {
    pub(super) fn new(options: &Options) -> Result<Self, String> {
        Ok(Self {
            collision_reward: options.number("collision_reward")?,
            left_lane_reward: options.number("left_lane_reward")?,
            high_speed_reward: options.number("high_speed_reward")?,
            reward_speed_range: options.pair("reward_speed_range")?,
            normalize_reward: options.flag("normalize_reward")?,
        })
    }
}

impl Scenario for UTurn {
    fn network(&self, connected: bool) -> Network {
        let mut roads = Builder::default();
        let outside = 2.0 * WIDTH + 2.0 * RADIUS;
        let straight = |from: f64, to: f64, y: f64| Curve::straight([from, y], [to, y]);
        let turn = |radius: f64| {
            let phases = [90.0f64, -90.0].map(f64::to_radians);
            Curve::circular([LENGTH, WIDTH + RADIUS], radius, phases, false)
        };
        let lanes = [
            ("c", "d", straight(LENGTH, 0.0, WIDTH)),
            ("c", "d", straight(LENGTH, 0.0, 0.0)),
            ("b", "c", turn(RADIUS)),
            ("b", "c", turn(RADIUS + WIDTH)),
            ("a", "b", straight(0.0, LENGTH, outside - WIDTH)),
            ("a", "b", straight(0.0, LENGTH, outside)),
        ];
        for (i, (from, to, curve)) in lanes.into_iter().enumerate() {
            let solid = if matches!(curve, Curve::Straight(_)) { Line::Chord } else { Line::Continuous };
            let lines = if i % 2 == 0 { [solid, Line::Striped] } else { [Line::None, solid] };
            roads.add(from, to, Lane { lines, ..Lane::new(curve) });
        }
        roads.build(connected)
    }

    fn vehicles(&self) -> usize {
        1 + OTHERS.len()
    }

    fn populate(&self, place: &mut Place<'_>) {
        let start = place.world.traffic.road.find("a", "b", 0);
        let i = place.agent_on(start, 0.0, 16.0);
        if place.agent.has_targets() {
            place.world.traffic.plan_route(i, "d");
        }
        for (number, (from, to, lane, along, speed)) in OTHERS.into_iter().enumerate() {
            let lane = place.world.traffic.road.find(from, to, lane);
            let along = along + place.rng.normal() * DEVIATION;
            let speed = speed + place.rng.normal() * DEVIATION;
            let i = place.other_on(lane, along, speed);
            place.world.traffic.plan_route(i, "d");
            if number == 0 {
                place.randomize(i);
            }
        }
    }

    fn part_names(&self) -> &'static [&'static str] {
        &["collision_reward", "left_lane_reward", "high_speed_reward", "on_road_reward"]
    }

    fn parts(&self, world: &World, i: usize, _action: &LastAction) -> Parts {
        let v = &world.traffic.vehicles;
        let others = (world.traffic.road.section(v.lane[i]).len() - 1).max(1) as f64;
        let speed = share(v.speed[i], self.reward_speed_range).clamp(0.0, 1.0);
        let on_road = f64::from(world.is_on_road(i));
        [f64::from(v.crashed[i]), lane_number(world, v.lane[i]) / others, speed, on_road, 0.0]
    }

    fn reward(&self, parts: &Parts) -> f64 {
        let [collision, left_lane, high_speed, on_road, _] = *parts;
        let sum =
            self.collision_reward * collision + self.left_lane_reward * left_lane + self.high_speed_reward * high_speed;
        let best = self.high_speed_reward + self.left_lane_reward;
        let sum = if self.normalize_reward { share(sum, [self.collision_reward, best]) } else { sum };
        sum * on_road
    }

    fn is_over(&self, world: &World) -> bool {
        self.is_done(world, world.agents()[0])
    }
}
