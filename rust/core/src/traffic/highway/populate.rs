//! The first state of an episode, with the random draws of highway-env in their order.
//!
//! Source: `HighwayEnv._create_vehicles`, `Vehicle.create_random`, `randomize_behavior` of the kinds of traffic.

use super::Config;
use crate::numpy_random::NumpyRandom;
use crate::traffic::Traffic;
use crate::traffic::map::RoadMap;
use crate::traffic::road::Road;
use crate::traffic::vehicles::{Driver, Gains, Vehicle};

/// Metres.
const ROAD_LENGTH: f64 = 10_000.0;
/// m/s.
pub(super) const SPEED_LIMIT: f64 = 30.0;
const CONTROLLED_SPEED: f64 = 25.0;

/// The road of that config, without vehicles.
pub(super) fn road(config: &Config) -> Traffic {
    Traffic::new(Road::straight(config.lanes, ROAD_LENGTH, SPEED_LIMIT), config.target_speeds.clone())
}

/// Takes all vehicles off the road and puts those of a new episode there.
pub(super) fn populate(traffic: &mut Traffic, config: &Config, rng: &mut NumpyRandom) {
    traffic.vehicles.clear();
    let mut foremost = None;
    let (each, more) = (config.vehicles / config.controlled, config.vehicles % config.controlled);
    for i in 0..config.controlled {
        let (x, lane, speed) =
            place(traffic, config, rng, Some(CONTROLLED_SPEED), config.initial_lane, config.ego_spacing, foremost);
        foremost = Some(x);
        let y = traffic.road.lane(lane).position(x, 0.0).1;
        traffic.add(&Vehicle::new(config.action.driver(), x, y, speed));
        for _ in 0..each + usize::from(i < more) {
            let (x, lane, speed) = place(traffic, config, rng, None, None, 1.0 / config.density, foremost);
            foremost = Some(x);
            let y = traffic.road.lane(lane).position(x, 0.0).1;
            let mut vehicle = Vehicle::new(config.driver, x, y, speed);
            vehicle.checks_collisions = config.all_collisions;
            randomize(&mut vehicle, rng);
            traffic.add(&vehicle);
        }
    }
}

/// Draws x, lane and speed of the next vehicle, in front of the foremost.
fn place(
    traffic: &Traffic,
    config: &Config,
    rng: &mut NumpyRandom,
    speed: Option<f64>,
    lane: Option<usize>,
    spacing: f64,
    foremost: Option<f64>,
) -> (f64, usize, f64) {
    let lane = lane.unwrap_or_else(|| rng.below(config.lanes as u32) as usize);
    let speed = speed.unwrap_or_else(|| rng.uniform(0.7 * SPEED_LIMIT, 0.8 * SPEED_LIMIT));
    let offset = spacing * (12.0 + speed) * (-5.0 / 40.0 * config.lanes as f64).exp();
    let s = foremost.unwrap_or(3.0 * offset) + offset * rng.uniform(0.9, 1.1);
    (traffic.road.lane(lane).position(s, 0.0).0, lane, speed)
}

fn randomize(vehicle: &mut Vehicle, rng: &mut NumpyRandom) {
    if vehicle.driver != Driver::Idm {
        vehicle.gains = Gains::draw(rng);
    }
    vehicle.delta = rng.uniform(3.5, 4.5);
}
