//! A lane: where it runs, how wide it is and what holds on it.
//!
//! Source: `highway_env/road/lane.py` (`AbstractLane`, `StraightLane`). All geometry is asked of a lane's [`Shape`].
//! Coordinates along a lane are (longitudinal, lateral), the lateral one growing to the right (the world's y axis points
//! down).

use serde::{Deserialize, Serialize};

use super::math::wrap_to_pi;

/// Usual width, metres.
pub const WIDTH: f64 = 4.0;
/// Distance off a lane's edge at which a vehicle still counts as being on it for its neighbours, metres.
pub(super) const MARGIN: f64 = 1.0;
/// A lane holds what is this far before its start or past its end, metres.
const OVERHANG: f64 = 5.0;

/// The marking along one side of a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Line {
    None,
    Striped,
    Continuous,
    /// Continuous, and drawn straight for agents that see pictures (highway-env's `CONTINUOUS_LINE`).
    Chord,
}

/// The course of a lane's middle.
pub trait Shape: Clone + std::fmt::Debug + PartialEq {
    /// Metres.
    fn length(&self) -> f64;

    /// World to lane.
    fn local(&self, x: f64, y: f64) -> (f64, f64);

    /// Lane to world.
    fn position(&self, longitudinal: f64, lateral: f64) -> (f64, f64);

    /// Direction of travel there, radians.
    fn heading_at(&self, longitudinal: f64) -> f64;

    /// A lower bound of the distance to the side, quicker to get than `local`, metres.
    #[inline]
    fn least_lateral(&self, _x: f64, _y: f64) -> f64 {
        0.0
    }

    /// Longitudinal places from and to which the middle may come within `reach` of a place, in two intervals; an interval
    /// that ends before it starts is empty.
    fn windows(&self, x: f64, y: f64, reach: f64) -> [[f64; 2]; 2];

    /// Points of the middle that straight pieces between them show well.
    fn outline(&self) -> Vec<[f64; 2]> {
        [0.0, self.length()].map(|s| self.position(s, 0.0).into()).to_vec()
    }
}

/// No interval of places.
pub(super) const NOWHERE: [f64; 2] = [f64::INFINITY, f64::NEG_INFINITY];

/// [`Shape::windows`] of a straight line for a place with these coordinates on it.
pub(super) fn straight_windows((along, lateral): (f64, f64), reach: f64) -> [[f64; 2]; 2] {
    if lateral.abs() > reach {
        return [NOWHERE; 2];
    }
    let half = (reach * reach - lateral * lateral).sqrt();
    [[along - half, along + half], NOWHERE]
}

/// A straight line along the x axis, from `start` to `end` at lateral place `y`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AlongX {
    start: f64,
    end: f64,
    y: f64,
}

impl Shape for AlongX {
    #[inline]
    fn length(&self) -> f64 {
        self.end - self.start
    }

    #[inline]
    fn local(&self, x: f64, y: f64) -> (f64, f64) {
        (x - self.start, y - self.y)
    }

    #[inline]
    fn position(&self, longitudinal: f64, lateral: f64) -> (f64, f64) {
        (self.start + longitudinal, self.y + lateral)
    }

    #[inline]
    fn heading_at(&self, _longitudinal: f64) -> f64 {
        0.0
    }

    fn windows(&self, x: f64, y: f64, reach: f64) -> [[f64; 2]; 2] {
        straight_windows(self.local(x, y), reach)
    }
}

/// A lane of some shape.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Lane<S = AlongX> {
    pub(super) shape: S,
    /// Metres.
    pub width: f64,
    /// Left and right.
    pub lines: [Line; 2],
    /// Drivers of the IDM keep to it, m/s.
    pub speed_limit: Option<f64>,
    /// No vehicle may change to this lane; vehicles on it may leave it.
    pub forbidden: bool,
    /// Priority: the vehicle on the lane of the lower one gives way, where there are rules.
    pub priority: i32,
}

impl Lane {
    /// A lane from (start, y) to (end, y), 4 m wide, striped on both sides, 20 m/s, open to all. `end` must be past
    /// `start`.
    pub fn straight(start: f64, end: f64, y: f64) -> Self {
        assert!(end > start, "a lane has a length");
        Self::new(AlongX { start, end, y })
    }
}

impl<S: Shape> Lane<S> {
    /// A lane 4 m wide, striped on both sides, 20 m/s, open to all, of priority 0.
    pub fn new(shape: S) -> Self {
        let lines = [Line::Striped; 2];
        Self { shape, width: WIDTH, lines, speed_limit: Some(20.0), forbidden: false, priority: 0 }
    }

    pub fn shape(&self) -> &S {
        &self.shape
    }

    #[inline]
    pub fn length(&self) -> f64 {
        self.shape.length()
    }

    /// World to lane.
    #[inline]
    pub fn local(&self, x: f64, y: f64) -> (f64, f64) {
        self.shape.local(x, y)
    }

    /// Lane to world.
    #[inline]
    pub fn position(&self, longitudinal: f64, lateral: f64) -> (f64, f64) {
        self.shape.position(longitudinal, lateral)
    }

    /// Direction of travel there, radians.
    #[inline]
    pub fn heading_at(&self, longitudinal: f64) -> f64 {
        self.shape.heading_at(longitudinal)
    }

    /// Returns whether the place is on the lane, widened by `margin` on either side.
    #[inline]
    pub fn holds(&self, x: f64, y: f64, margin: f64) -> bool {
        self.along(x, y, margin).is_some()
    }

    /// The longitudinal place of what is on the lane, widened by `margin` on either side; None off the lane.
    #[inline]
    pub fn along(&self, x: f64, y: f64, margin: f64) -> Option<f64> {
        let reach = self.width / 2.0 + margin;
        if self.shape.least_lateral(x, y) > reach {
            return None;
        }
        let (s, lateral) = self.local(x, y);
        (lateral.abs() <= reach && -OVERHANG <= s && s < self.length() + OVERHANG).then_some(s)
    }

    /// Returns whether a vehicle there may change to this lane.
    #[inline]
    pub fn reachable_from(&self, x: f64, y: f64) -> bool {
        let (s, lateral) = self.local(x, y);
        !self.forbidden && lateral.abs() <= 2.0 * self.width && 0.0 <= s && s < self.length() + OVERHANG
    }

    /// Returns whether a vehicle there is so near the end that it looks for the next lane.
    #[inline]
    pub fn is_behind(&self, x: f64, y: f64) -> bool {
        self.ends_near(self.local(x, y).0)
    }

    /// The same by the place along it, metres.
    #[inline]
    pub fn ends_near(&self, along: f64) -> bool {
        along > self.length() - OVERHANG / 2.0
    }

    /// Distance of a position from the lane: to its side plus past its ends, metres.
    #[inline]
    pub fn distance(&self, x: f64, y: f64) -> f64 {
        let (s, lateral) = self.local(x, y);
        lateral.abs() + (s - self.length()).max(0.0) + (-s).max(0.0)
    }

    /// The same plus the angle between a heading and the direction of the lane, radians (`distance_with_heading`).
    pub fn distance_with_heading(&self, x: f64, y: f64, heading: f64) -> f64 {
        let angle = wrap_to_pi(heading - self.heading_at(self.local(x, y).0)).abs();
        self.distance(x, y) + angle
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lane_holds_what_hangs_over_its_ends() {
        let lane = Lane::straight(100.0, 200.0, 4.0);
        assert_eq!(lane.local(130.0, 5.0), (30.0, 1.0));
        assert_eq!(lane.position(30.0, 1.0), (130.0, 5.0));
        assert!(lane.holds(95.0, 6.0, 0.0) && !lane.holds(94.9, 6.0, 0.0) && !lane.holds(205.0, 4.0, 0.0));
        assert!(lane.holds(150.0, 7.0, 1.0) && !lane.holds(150.0, 7.0, 0.5));
    }

    #[test]
    fn a_lane_is_reached_from_beside_it_only() {
        let mut lane = Lane::straight(100.0, 200.0, 4.0);
        assert!(lane.reachable_from(100.0, 12.0) && lane.reachable_from(204.9, 4.0));
        assert!(!lane.reachable_from(99.9, 4.0) && !lane.reachable_from(150.0, 12.1));
        lane.forbidden = true;
        assert!(!lane.reachable_from(150.0, 4.0));
        assert_eq!(lane.distance(90.0, 1.0), 13.0);
        assert_eq!(lane.distance(210.0, 4.0), 10.0);
    }
}
