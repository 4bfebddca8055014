//! `two-way-v0`: a road with oncoming traffic on the lane for overtaking.
//!
//! Source: `highway_env/envs/two_way_env.py` (`TwoWayEnv`).

use super::curve::Curve;
use super::scenario::{Options, Parts, Place, Scenario, lane_number};
use super::world::World;
use super::{Builder, Network};
use crate::traffic::action::LastAction;
use crate::traffic::lane::{Lane, Line, WIDTH};
use crate::traffic::map::RoadMap;
use crate::traffic::vehicles::Vehicle;

/// Metres.
const LENGTH: f64 = 800.0;

#[derive(Debug)]
pub(super) struct TwoWay {
    left_lane_reward: f64,
    high_speed_reward: f64,
}

impl TwoWay {
    pub(super) fn new(options: &Options) -> Result<Self, String> {
        Ok(Self {
            left_lane_reward: options.number("left_lane_reward")?,
            high_speed_reward: options.number("high_speed_reward")?,
        })
    }
}

impl Scenario for TwoWay {
    fn network(&self, connected: bool) -> Network {
        let mut roads = Builder::default();
        for (from, to, ends, y, lines) in [
            ("a", "b", [0.0, LENGTH], 0.0, [Line::Chord, Line::Striped]),
            ("a", "b", [0.0, LENGTH], WIDTH, [Line::None, Line::Chord]),
            ("b", "a", [LENGTH, 0.0], 0.0, [Line::None; 2]),
        ] {
            roads.add(from, to, Lane { lines, ..Lane::new(Curve::straight([ends[0], y], [ends[1], y])) });
        }
        roads.build(connected)
    }

    fn vehicles(&self) -> usize {
        6
    }

    fn populate(&self, place: &mut Place<'_>) {
        let right = place.world.traffic.road.find("a", "b", 1);
        place.agent_on(right, 30.0, 30.0);
        for i in 0..3 {
            let along = 70.0 + 40.0 * f64::from(i) + 10.0 * place.rng.normal();
            let speed = 24.0 + 2.0 * place.rng.normal();
            let vehicle = place.on_lane(place.other, right, along, speed);
            place.world.add(&Vehicle { changes_lanes: false, ..vehicle });
        }
        let oncoming = place.world.traffic.road.find("b", "a", 0);
        for i in 0..2 {
            let along = 200.0 + 100.0 * f64::from(i) + 10.0 * place.rng.normal();
            let speed = 20.0 + 5.0 * place.rng.normal();
            let vehicle = place.on_lane(place.other, oncoming, along, speed);
            place.world.add(&Vehicle { changes_lanes: false, target_lane: Some(oncoming), ..vehicle });
        }
    }

    fn part_names(&self) -> &'static [&'static str] {
        &["high_speed_reward", "left_lane_reward"]
    }

    /// On the lane for oncoming traffic highway-env divides by zero; here the lane counts as the rightmost there.
    fn parts(&self, world: &World, i: usize, _action: &LastAction) -> Parts {
        let v = &world.traffic.vehicles;
        let others = (world.traffic.road.section(v.lane[i]).len() - 1) as f64;
        let speeds = (world.traffic.target_speeds().len() - 1) as f64;
        let left = if others > 0.0 { (others - lane_number(world, v.target_lane[i])) / others } else { 0.0 };
        [v.speed_index[i] as f64 / speeds, left, 0.0, 0.0, 0.0]
    }

    fn reward(&self, parts: &Parts) -> f64 {
        self.high_speed_reward * parts[0] + self.left_lane_reward * parts[1]
    }

    fn is_over(&self, world: &World) -> bool {
        self.is_done(world, world.agents()[0])
    }
}
