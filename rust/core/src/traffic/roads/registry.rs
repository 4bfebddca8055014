//! The scenarios by their names.

use super::scenario::{Options, Scenario};
use super::{exit, intersection, lane_keeping, merge, parking, racetrack, roundabout, trips, two_way, u_turn};

/// The scenario of that name with these options; the error says what is wrong.
pub fn make(name: &str, options: &Options) -> Result<Box<dyn Scenario>, String> {
    Ok(match name {
        "merge" => Box::new(merge::Merge::new(options)?),
        "merge-generic" => Box::new(merge::Merge::generic(options)?),
        "roundabout" => Box::new(roundabout::Roundabout::new(options)?),
        "roundabout-generic" => Box::new(roundabout::Roundabout::generic(options)?),
        "intersection" => Box::new(intersection::Intersection::new(options)?),
        "racetrack" => Box::new(racetrack::Racetrack::new(options)?),
        "racetrack-large" => Box::new(racetrack::Racetrack::large(options)?),
        "racetrack-oval" => Box::new(racetrack::Racetrack::oval(options)?),
        "exit" => Box::new(exit::Exit::new(options)?),
        "two-way" => Box::new(two_way::TwoWay::new(options)?),
        "lane-keeping" => Box::new(lane_keeping::LaneKeeping),
        "parking" => Box::new(parking::Parking::new(options)?),
        "u-turn" => Box::new(u_turn::UTurn::new(options)?),
        "trips" => Box::new(trips::Trips::new(options)?),
        _ => return Err(format!("scenario: '{name}' is not known")),
    })
}
