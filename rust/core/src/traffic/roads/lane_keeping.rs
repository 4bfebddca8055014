//! `lane-keeping-v0`: a vehicle whose tyres slip, to be steered along a straight lane and then along a winding one.
//!
//! Source: `highway_env/envs/lane_keeping_env.py` (`LaneKeepingEnv`).

use std::f64::consts::TAU;

use super::curve::Curve;
use super::scenario::{Parts, Place, Scenario};
use super::world::World;
use super::{Builder, Network};
use crate::traffic::action::LastAction;
use crate::traffic::lane::{Lane, Line};
use crate::traffic::vehicles::Vehicle;

/// Width of all lanes, metres.
const WIDTH: f64 = 10.0;
/// From where the first lane starts to where it ends, metres, and as far as the last one goes on in its direction along x.
const FIRST: [[f64; 2]; 2] = [[50.0, 50.0], [115.0, 15.0]];
const FURTHER: f64 = 20.0;
/// Place of the vehicle on the first lane at the start, metres, and its speed, m/s.
const START: [f64; 2] = [50.0, -4.0];
const SPEED: f64 = 8.3;

#[derive(Debug)]
pub(super) struct LaneKeeping;

impl Scenario for LaneKeeping {
    fn network(&self, connected: bool) -> Network {
        let mut roads = Builder::default();
        let [start, end] = FIRST;
        let slope = (end[1] - start[1]) / (end[0] - start[0]);
        let lanes = [
            ("a", "b", Curve::sine([0.0, 0.0], [500.0, 0.0], 5.0, TAU / 100.0, 0.0)),
            ("c", "d", Curve::straight(start, end)),
            ("d", "a", Curve::straight(end, [end[0] + FURTHER, end[1] + FURTHER * slope])),
        ];
        for (from, to, curve) in lanes {
            let left = if from == "d" { Line::None } else { Line::Striped };
            roads.add(from, to, Lane { width: WIDTH, lines: [left, Line::Striped], ..Lane::new(curve) });
        }
        roads.build(connected)
    }

    fn vehicles(&self) -> usize {
        1
    }

    /// The lane to be kept is the vehicle's target lane.
    fn populate(&self, place: &mut Place<'_>) {
        let first = place.world.traffic.road.find("c", "d", 0);
        let lane = place.world.traffic.road.lane(first);
        let (x, y) = lane.position(START[0], START[1]);
        let heading = lane.heading_at(0.0);
        let vehicle = Vehicle { heading, target_lane: Some(first), ..Vehicle::new(place.agent, x, y, SPEED) };
        place.world.add_agent(&vehicle);
    }

    /// Beyond the first lane the winding one is to be kept.
    fn before_step(&self, world: &mut World) {
        let Some(i) = world.vehicle_of(0) else { return };
        let road = &world.traffic.road;
        let v = &mut world.traffic.vehicles;
        if road.lane(v.target_lane[i]).along(v.x[i], v.y[i], 0.0).is_none() {
            v.target_lane[i] = road.find("a", "b", 0);
        }
    }

    fn shows_past(&self) -> bool {
        true
    }

    /// highway-env has no names for the parts here.
    fn part_names(&self) -> &'static [&'static str] {
        &[]
    }

    /// The offset from the middle of the lane in widths of it.
    fn parts(&self, world: &World, i: usize, _action: &LastAction) -> Parts {
        let v = &world.traffic.vehicles;
        let lane = world.traffic.road.lane(v.target_lane[i]);
        [lane.local(v.x[i], v.y[i]).1 / lane.width, 0.0, 0.0, 0.0, 0.0]
    }

    fn reward(&self, parts: &Parts) -> f64 {
        1.0 - parts[0] * parts[0]
    }

    fn is_over(&self, _world: &World) -> bool {
        false
    }
}
