//! What the traffic asks of the roads that it drives on: [`super::road::Road`], parallel lanes along x, is the fast
//! one; [`super::roads::Network`], a graph of lanes of any shape, the general one.

use std::fmt::Debug;
use std::ops::Range;

use super::Traffic;
use super::lane::{Lane, Shape};
use super::obstacle::Obstacle;
use super::vehicles::{Step, Vehicles};

/// The index that stands for no neighbour.
pub(super) const NO_NEIGHBOUR: u32 = u32::MAX;

/// The nearest vehicle or obstacle in front of or behind a vehicle on a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Neighbour {
    Vehicle(usize),
    Obstacle(usize),
}

/// Lanes, how they hang together, and what lies on them.
pub trait RoadMap: Clone + Debug + PartialEq {
    type Shape: Shape;

    /// True if vehicles are computed one by one in highway-env's order of operations, for the same bits where its
    /// functions have them. At walking pace its steering multiplies every difference by more than one a frame, so that
    /// a stop ends at another place if one bit differs. False: several at a time, equal within rounding.
    const EXACT: bool;

    /// At least one.
    fn lanes(&self) -> &[Lane<Self::Shape>];

    fn obstacles(&self) -> &[Obstacle];

    /// The lanes of the same section of road, from left to right: lanes `i` and `i + 1` of it lie beside each other.
    fn section(&self, lane: usize) -> Range<usize>;

    /// Returns whether one who drives on lane `from` along `route` may come to lane `to` within a few sections.
    fn leads_to(&self, from: usize, to: usize, route: &[Step]) -> bool;

    /// Returns whether all steps of a route exist.
    fn has_route(&self, route: &[Step]) -> bool;

    /// Where one on a lane with a route is going: the end of the last step of the route; None without a route.
    fn destination(&self, lane: usize, route: &[Step]) -> Option<[f64; 2]>;

    /// `closest_lane`, quickly where the vehicle was on lane `lane` a frame ago.
    fn still_closest_lane(&self, lane: usize, x: f64, y: f64, heading: f64) -> usize;

    /// The lane that vehicle `i`, which has moved since, is on.
    #[inline]
    fn locate(&self, v: &Vehicles, i: usize) -> usize {
        self.still_closest_lane(v.lane[i], v.x[i], v.y[i], v.heading[i])
    }

    /// Returns whether a vehicle chooses its lane by itself.
    #[inline]
    fn chooses_lane(traffic: &Traffic<Self>, i: usize) -> bool {
        traffic.vehicles.driver[i].is_traffic() && traffic.vehicles.changes_lanes[i]
    }

    /// The number of the lane in the section of `lane` that a route needs, if it needs one.
    #[inline]
    fn planned_lane(&self, _lane: usize, route: &[Step]) -> Option<u32> {
        route.first().and_then(|step| step.lane)
    }

    /// The gap from vehicle `i` to its neighbour in front, metres, where that is not the difference of their places
    /// along its lane.
    #[inline]
    fn gap(_traffic: &Traffic<Self>, _i: usize, _front: Neighbour) -> Option<f64> {
        None
    }

    /// A line that vehicle `i` has to stop at: its distance, metres, and the line.
    #[inline]
    fn stop_line(_traffic: &Traffic<Self>, _i: usize) -> Option<(f64, Obstacle)> {
        None
    }

    /// Gives vehicle `i` the next lane as its target if its target lane is at an end (`follow_road`).
    fn follow_road(traffic: &mut Traffic<Self>, i: usize);

    /// Finds the neighbour in front of every vehicle of the traffic's own, on its own lane.
    fn find_fronts(traffic: &mut Traffic<Self>);

    /// The nearest neighbour in front of vehicle `i` on a lane, which need not be its own.
    fn in_front(traffic: &Traffic<Self>, i: usize, lane: usize) -> Option<Neighbour>;

    /// The nearest neighbour in front of vehicle `i` on its lane, at any time between frames, and the distance between
    /// their centres along its way, metres.
    fn ahead(traffic: &mut Traffic<Self>, i: usize) -> Option<(Neighbour, f64)>;

    /// The nearest neighbour behind vehicle `i` on a lane, which need not be its own.
    fn behind(traffic: &Traffic<Self>, i: usize, lane: usize) -> Option<Neighbour>;

    #[inline]
    fn lane(&self, i: usize) -> &Lane<Self::Shape> {
        &self.lanes()[i]
    }

    /// The lanes beside lane `i`, the left one first.
    #[inline]
    fn side_lanes(&self, i: usize) -> impl Iterator<Item = usize> + use<Self> {
        let section = self.section(i);
        let (left, right) = ((i > section.start).then(|| i - 1), (i + 1 < section.end).then_some(i + 1));
        left.into_iter().chain(right)
    }

    /// The lane nearest in place and heading, the first of several (`RoadNetwork.get_closest_lane_index`).
    fn closest_lane(&self, x: f64, y: f64, heading: f64) -> usize {
        let mut best = (f64::INFINITY, 0);
        for (i, lane) in self.lanes().iter().enumerate() {
            let distance = lane.distance_with_heading(x, y, heading);
            if distance < best.0 {
                best = (distance, i);
            }
        }
        best.1
    }
}
