//! Traffic on a graph of roads: straight, sine and circular lanes, routes, and neighbours on any lane.

pub mod curve;
mod env;
mod exit;
mod intersection;
mod junctions;
mod lane_keeping;
pub mod lights;
mod linked;
pub mod links;
mod merge;
pub mod network;
mod observed;
mod parking;
mod plan;
mod polyline;
mod racetrack;
mod racetrack_roads;
pub mod registry;
mod regulation;
mod right_of_way;
mod roundabout;
pub mod scenario;
pub mod template;
mod trips;
mod two_way;
mod u_turn;
pub mod world;

use std::ops::Range;

pub use env::{Config, Episode, RoadEnv};
pub use network::{Builder, Network};
pub use scenario::Ends;

use super::Traffic;
use super::lane::Lane;
use super::map::{NO_NEIGHBOUR, Neighbour, RoadMap};
use super::obstacle::Obstacle;
use super::vehicles::{Step, Vehicles};
use curve::Curve;

impl RoadMap for Network {
    type Shape = Curve;

    const EXACT: bool = true;

    #[inline]
    fn lanes(&self) -> &[Lane<Curve>] {
        self.lanes()
    }

    #[inline]
    fn obstacles(&self) -> &[Obstacle] {
        &self.obstacles
    }

    #[inline]
    fn section(&self, lane: usize) -> Range<usize> {
        self.sections()[self.section_of(lane)].lanes.clone()
    }

    fn leads_to(&self, from: usize, to: usize, route: &[Step]) -> bool {
        self.is_connected(from, to, route)
    }

    fn has_route(&self, route: &[Step]) -> bool {
        self.has(route)
    }

    /// Where lanes are linked one by one it is the end of the present section, on a lane that leads on along the route.
    fn destination(&self, lane: usize, route: &[Step]) -> Option<[f64; 2]> {
        let last = route.last()?;
        if self.is_linked() {
            return Some(self.waypoint(lane, route));
        }
        let lane = self.lane(self.sections()[last.section as usize].lanes.start + last.lane.unwrap_or(0) as usize);
        Some(lane.position(lane.length(), 0.0).into())
    }

    #[inline]
    fn still_closest_lane(&self, lane: usize, x: f64, y: f64, heading: f64) -> usize {
        self.closest_to(lane, x, y, heading)
    }

    #[inline]
    fn locate(&self, v: &Vehicles, i: usize) -> usize {
        if self.is_linked() {
            return self.locate_linked(v, i);
        }
        self.still_closest_lane(v.lane[i], v.x[i], v.y[i], v.heading[i])
    }

    fn follow_road(traffic: &mut Traffic<Self>, i: usize) {
        let lane = traffic.vehicles.target_lane[i];
        if traffic.road.lane(lane).ends_near(traffic.local_on(i, lane).0) {
            let Traffic { road, vehicles: v, .. } = traffic;
            v.target_lane[i] = if road.is_linked() {
                road.next_linked(lane, &mut v.route[i])
            } else {
                road.next_lane(lane, &mut v.route[i], v.x[i], v.y[i])
            };
        }
    }

    #[inline]
    fn chooses_lane(traffic: &Traffic<Self>, i: usize) -> bool {
        let v = &traffic.vehicles;
        let navigated = || traffic.road.is_linked() && v.driver[i].has_targets();
        v.changes_lanes[i] && (v.driver[i].is_traffic() || navigated())
    }

    fn planned_lane(&self, lane: usize, route: &[Step]) -> Option<u32> {
        if self.is_linked() { self.lane_for_route(lane, route) } else { route.first().and_then(|step| step.lane) }
    }

    fn gap(traffic: &Traffic<Self>, i: usize, front: Neighbour) -> Option<f64> {
        if traffic.road.is_linked() { traffic.linked_gap(i, front) } else { None }
    }

    fn stop_line(traffic: &Traffic<Self>, i: usize) -> Option<(f64, Obstacle)> {
        let line = traffic.closed_line(i)?;
        Some((line.distance, traffic.road.line_of(line.lane)))
    }

    fn find_fronts(traffic: &mut Traffic<Self>) {
        if traffic.road.is_linked() {
            return traffic.find_linked_fronts();
        }
        for i in 0..traffic.vehicles.len() {
            let v = &traffic.vehicles;
            let front = if v.driver[i].is_traffic() { traffic.around(i, v.lane[i]).0 } else { None };
            traffic.scratch.front[i] = match front {
                None => NO_NEIGHBOUR,
                Some(Neighbour::Vehicle(j)) => j as u32,
                Some(Neighbour::Obstacle(j)) => (v.len() + j) as u32,
            };
        }
    }

    fn in_front(traffic: &Traffic<Self>, i: usize, lane: usize) -> Option<Neighbour> {
        if traffic.road.is_linked() {
            return traffic.next_ahead(i, lane).map(|(j, _)| Neighbour::Vehicle(j));
        }
        traffic.around(i, lane).0
    }

    fn ahead(traffic: &mut Traffic<Self>, i: usize) -> Option<(Neighbour, f64)> {
        let lane = traffic.vehicles.lane[i];
        if traffic.road.is_linked() {
            traffic.list_places();
            return traffic.next_ahead(i, lane).map(|(j, distance)| (Neighbour::Vehicle(j), distance));
        }
        let [(distance, front), _] = traffic.distances_around(i, lane);
        Some((front?, distance))
    }

    fn behind(traffic: &Traffic<Self>, i: usize, lane: usize) -> Option<Neighbour> {
        if traffic.road.is_linked() {
            return traffic.next_behind(i, lane).map(Neighbour::Vehicle);
        }
        traffic.around(i, lane).1
    }
}

impl Traffic<Network> {
    /// The nearest neighbours in front of and behind vehicle `i` on a lane and, where they are connected, on those
    /// before and behind it (`Road.neighbour_vehicles`). Of equally near ones the last of the list counts in front and
    /// the first behind.
    #[inline]
    fn around(&self, i: usize, lane: usize) -> (Option<Neighbour>, Option<Neighbour>) {
        let [(_, front), (_, rear)] = self.distances_around(i, lane);
        (front, rear)
    }

    /// The same with the distances along the lane, metres, negative behind.
    #[inline]
    fn distances_around(&self, i: usize, lane: usize) -> [(f64, Option<Neighbour>); 2] {
        let (road, v) = (&self.road, &self.vehicles);
        let own = road.lane(lane);
        let s = own.local(v.x[i], v.y[i]).0;
        let (mut front, mut rear) = ((f64::INFINITY, None), (f64::NEG_INFINITY, None));
        let mut see = |x: f64, y: f64, neighbour: Neighbour| {
            let here = road.along(lane, x, y);
            let elsewhere = || {
                let ahead = road.before(lane).iter().map(|&next| (next, own.length()));
                let back = road.behind(lane).iter().map(|&last| (last, -road.lane(last).length()));
                ahead.chain(back).find_map(|(lane, offset)| Some(road.along(lane, x, y)? + offset))
            };
            let Some(at) = (if road.connected { here.or_else(elsewhere) } else { here }) else { return };
            if s <= at && at <= front.0 {
                front = (at, Some(neighbour));
            }
            if at < s && at > rear.0 {
                rear = (at, Some(neighbour));
            }
        };
        for j in (0..v.len()).filter(|&j| j != i) {
            see(v.x[j], v.y[j], Neighbour::Vehicle(j));
        }
        for (j, o) in road.obstacles.iter().enumerate() {
            see(o.x, o.y, Neighbour::Obstacle(j));
        }
        [(front.0 - s, front.1), (rear.0 - s, rear.1)]
    }

    /// Sends vehicle `i` to a node (`plan_route_to`).
    pub fn plan_route(&mut self, i: usize, goal: &str) {
        self.vehicles.route[i] = self.road.route(self.vehicles.lane[i], goal);
    }
}
