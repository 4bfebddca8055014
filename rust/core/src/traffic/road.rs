//! A road: lanes side by side and what lies on them.
//!
//! Source: `highway_env/road/road.py` (`RoadNetwork.straight_road_network`), `highway_env/vehicle/objects.py`
//! ([`Obstacle`]).

use serde::{Deserialize, Serialize};

use std::ops::Range;

use super::Traffic;
use super::lane::{AlongX, Lane, Line, MARGIN, WIDTH};
use super::map::{Neighbour, RoadMap};
use super::obstacle::Obstacle;
use super::vehicles::Step;

/// Lanes from left to right: lanes `i` and `i + 1` lie beside each other. A lane may exist over a part of the road
/// only.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Road {
    lanes: Vec<Lane>,
    pub obstacles: Vec<Obstacle>,
    /// Within this of a lane's middle, and between its ends, no other lane can be as near, metres.
    clear: f64,
    /// Within this of a lane's middle, and between its ends, one is on no other lane, metres.
    alone: f64,
}

impl Road {
    /// A road of at least one lane.
    pub fn new(lanes: Vec<Lane>, obstacles: Vec<Obstacle>) -> Self {
        assert!(!lanes.is_empty(), "a road has lanes");
        let middle = |lane: &Lane| lane.position(0.0, 0.0).1;
        let gaps =
            lanes.iter().enumerate().flat_map(|(i, a)| lanes[..i].iter().map(move |b| (middle(a) - middle(b)).abs()));
        let nearest = gaps.fold(2.0 * WIDTH, f64::min);
        let reach = lanes.iter().map(|lane| lane.width / 2.0 + MARGIN).fold(0.0, f64::max);
        let least = lanes.iter().map(|lane| lane.width / 2.0 + MARGIN).fold(f64::INFINITY, f64::min);
        Self { lanes, obstacles, clear: nearest / 2.0 - 1e-6, alone: (nearest - reach - 1e-6).min(least) }
    }

    /// `lanes` lanes of that length beside each other from x = 0, the leftmost at y = 0.
    pub fn straight(lanes: usize, length: f64, speed_limit: f64) -> Self {
        let lane = |i: usize| {
            let mut lane = Lane::straight(0.0, length, i as f64 * WIDTH);
            lane.lines = [
                if i == 0 { Line::Chord } else { Line::Striped },
                if i + 1 == lanes { Line::Chord } else { Line::None },
            ];
            lane.speed_limit = Some(speed_limit);
            lane
        };
        Self::new((0..lanes).map(lane).collect(), Vec::new())
    }

    /// Returns whether a vehicle on lane `lane` is certainly on it, as its neighbours see it, and on no other.
    #[inline]
    pub(super) fn only_lane_near(&self, lane: usize, x: f64, y: f64) -> bool {
        let here = &self.lanes[lane];
        let (s, lateral) = here.local(x, y);
        lateral.abs() < self.alone && s >= 0.0 && s <= here.length()
    }
}

impl RoadMap for Road {
    type Shape = AlongX;

    const EXACT: bool = false;

    #[inline]
    fn lanes(&self) -> &[Lane] {
        &self.lanes
    }

    #[inline]
    fn obstacles(&self) -> &[Obstacle] {
        &self.obstacles
    }

    /// All lanes are one section.
    #[inline]
    fn section(&self, _lane: usize) -> Range<usize> {
        0..self.lanes.len()
    }

    #[inline]
    fn leads_to(&self, _from: usize, _to: usize, _route: &[Step]) -> bool {
        true
    }

    fn has_route(&self, route: &[Step]) -> bool {
        route.is_empty()
    }

    /// Nobody has a route here.
    #[inline]
    fn destination(&self, _lane: usize, _route: &[Step]) -> Option<[f64; 2]> {
        None
    }

    #[inline]
    fn still_closest_lane(&self, lane: usize, x: f64, y: f64, heading: f64) -> usize {
        let here = &self.lanes[lane];
        let (s, lateral) = here.local(x, y);
        // All lanes are parallel: the heading makes no difference here.
        if lateral.abs() < self.clear && s >= 0.0 && s <= here.length() {
            return lane;
        }
        self.closest_lane(x, y, heading)
    }

    /// There is no next lane.
    #[inline]
    fn follow_road(_traffic: &mut Traffic, _i: usize) {}

    #[inline]
    fn find_fronts(traffic: &mut Traffic) {
        traffic.find_fronts();
    }

    #[inline]
    fn in_front(traffic: &Traffic, i: usize, lane: usize) -> Option<Neighbour> {
        traffic.in_front(i, lane)
    }

    fn ahead(traffic: &mut Traffic, i: usize) -> Option<(Neighbour, f64)> {
        let front = traffic.neighbours(i, traffic.vehicles.lane[i]).0?;
        Some((front, traffic.distance_to(i, front)))
    }

    #[inline]
    fn behind(traffic: &Traffic, i: usize, lane: usize) -> Option<Neighbour> {
        traffic.behind(i, lane)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_are_side_by_side() {
        let road = Road::straight(3, 1000.0, 30.0);
        assert_eq!(road.side_lanes(0).collect::<Vec<_>>(), [1]);
        assert_eq!(road.side_lanes(1).collect::<Vec<_>>(), [0, 2]);
        assert_eq!(road.side_lanes(2).collect::<Vec<_>>(), [1]);
    }

    #[test]
    fn the_fast_search_finds_the_closest_lane() {
        let mut lanes = Road::straight(3, 500.0, 30.0).lanes().to_vec();
        lanes.push(Lane::straight(100.0, 200.0, 12.0));
        let road = Road::new(lanes, Vec::new());
        for i in -20..140 {
            for x in [-30.0, 50.0, 99.0, 150.0, 201.0, 600.0] {
                let y = f64::from(i) * 0.17;
                let slow = road.closest_lane(x, y, 0.3);
                for lane in 0..4 {
                    assert_eq!(road.still_closest_lane(lane, x, y, 0.3), slow, "({x}, {y}) from lane {lane}");
                }
            }
        }
        let alone = |y: f64| road.only_lane_near(1, 150.0, y);
        assert!(alone(4.9) && alone(3.1) && !alone(5.1) && !road.only_lane_near(1, -1.0, 4.0));
        // Halfway between two lanes the first one counts.
        assert_eq!(road.closest_lane(10.0, 2.0, 0.0), 0);
    }
}
