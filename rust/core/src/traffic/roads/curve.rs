//! The courses that lanes of a road network take.
//!
//! Source: `highway_env/road/lane.py` (`StraightLane`, `SineLane`, `CircularLane`).

use std::f64::consts::{FRAC_PI_2, TAU};

use serde::{Deserialize, Serialize};

use super::polyline::Polyline;
use crate::traffic::lane::{NOWHERE, Shape, straight_windows};
use crate::traffic::math::wrap_to_pi;

/// Longest piece of the outline of a curved lane, metres.
const PIECE: f64 = 1.0;

/// The middle of a lane.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Curve {
    Straight(Straight),
    /// A straight line whose middle swings to both sides.
    Sine {
        line: Straight,
        /// Metres.
        amplitude: f64,
        /// Radians a metre.
        pulsation: f64,
        /// Radians.
        phase: f64,
    },
    /// An arc of a circle.
    Circular {
        centre: [f64; 2],
        radius: f64,
        /// Angles of the start and the end as seen from the centre, radians.
        phases: [f64; 2],
        /// 1 clockwise as seen on a screen (y points down), -1 the other way.
        direction: f64,
    },
    /// Straight pieces, which highway-env does not have.
    Polyline(Polyline),
}

/// A line from one point to another.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Straight {
    start: [f64; 2],
    length: f64,
    heading: f64,
    /// Unit vector.
    direction: [f64; 2],
}

impl Straight {
    fn new(start: [f64; 2], end: [f64; 2]) -> Self {
        let along = [end[0] - start[0], end[1] - start[1]];
        let length = (along[0] * along[0] + along[1] * along[1]).sqrt();
        assert!(length > 0.0, "a lane has a length");
        let direction = [along[0] / length, along[1] / length];
        Self { start, length, heading: along[1].atan2(along[0]), direction }
    }

    #[inline]
    fn local(&self, x: f64, y: f64) -> (f64, f64) {
        let (dx, dy, [cos, sin]) = (x - self.start[0], y - self.start[1], self.direction);
        (dx * cos + dy * sin, dy * cos - dx * sin)
    }

    #[inline]
    fn position(&self, longitudinal: f64, lateral: f64) -> (f64, f64) {
        let ([x, y], [cos, sin]) = (self.start, self.direction);
        (x + longitudinal * cos - lateral * sin, y + longitudinal * sin + lateral * cos)
    }
}

impl Curve {
    /// From `start` to `end`, which differ.
    pub fn straight(start: [f64; 2], end: [f64; 2]) -> Self {
        Self::Straight(Straight::new(start, end))
    }

    /// Around the line from `start` to `end`.
    pub fn sine(start: [f64; 2], end: [f64; 2], amplitude: f64, pulsation: f64, phase: f64) -> Self {
        Self::Sine { line: Straight::new(start, end), amplitude, pulsation, phase }
    }

    /// Around a centre, between two angles as seen from there, radians.
    pub fn circular(centre: [f64; 2], radius: f64, phases: [f64; 2], clockwise: bool) -> Self {
        Self::Circular { centre, radius, phases, direction: if clockwise { 1.0 } else { -1.0 } }
    }

    /// The largest factor by which a way along this line is longer than the difference of longitudinal places.
    pub(super) fn stretch(&self) -> f64 {
        match self {
            Self::Sine { amplitude, pulsation, .. } => (amplitude * pulsation).hypot(1.0),
            _ => 1.0,
        }
    }
}

impl Shape for Curve {
    #[inline]
    fn length(&self) -> f64 {
        match self {
            Self::Straight(line) | Self::Sine { line, .. } => line.length,
            Self::Circular { radius, phases, direction, .. } => radius * (phases[1] - phases[0]) * direction,
            Self::Polyline(line) => line.length(),
        }
    }

    #[inline]
    fn local(&self, x: f64, y: f64) -> (f64, f64) {
        match self {
            Self::Straight(line) => line.local(x, y),
            Self::Sine { line, amplitude, pulsation, phase } => {
                let (s, lateral) = line.local(x, y);
                (s, lateral - amplitude * (pulsation * s + phase).sin())
            }
            Self::Circular { centre, radius, phases, direction } => {
                let (dx, dy) = (x - centre[0], y - centre[1]);
                let phi = phases[0] + wrap_to_pi(dy.atan2(dx) - phases[0]);
                let r = (dx * dx + dy * dy).sqrt();
                (direction * (phi - phases[0]) * radius, direction * (radius - r))
            }
            Self::Polyline(line) => line.local(x, y),
        }
    }

    fn position(&self, longitudinal: f64, lateral: f64) -> (f64, f64) {
        match self {
            Self::Straight(line) => line.position(longitudinal, lateral),
            Self::Sine { line, amplitude, pulsation, phase } => {
                line.position(longitudinal, lateral + amplitude * (pulsation * longitudinal + phase).sin())
            }
            Self::Circular { centre, radius, phases, direction } => {
                let (sin, cos) = (direction * longitudinal / radius + phases[0]).sin_cos();
                let r = radius - lateral * direction;
                (centre[0] + r * cos, centre[1] + r * sin)
            }
            Self::Polyline(line) => line.position(longitudinal, lateral),
        }
    }

    #[inline]
    fn heading_at(&self, longitudinal: f64) -> f64 {
        match self {
            Self::Straight(line) => line.heading,
            Self::Sine { line, amplitude, pulsation, phase } => {
                line.heading + (amplitude * pulsation * (pulsation * longitudinal + phase).cos()).atan()
            }
            Self::Circular { radius, phases, direction, .. } => {
                direction * longitudinal / radius + phases[0] + FRAC_PI_2 * direction
            }
            Self::Polyline(line) => line.heading_at(longitudinal),
        }
    }

    #[inline]
    fn least_lateral(&self, x: f64, y: f64) -> f64 {
        match self {
            Self::Circular { centre, radius, .. } => {
                let (dx, dy) = (x - centre[0], y - centre[1]);
                (radius - (dx * dx + dy * dy).sqrt()).abs()
            }
            _ => 0.0,
        }
    }

    fn windows(&self, x: f64, y: f64, reach: f64) -> [[f64; 2]; 2] {
        match self {
            Self::Straight(line) => straight_windows(line.local(x, y), reach),
            Self::Sine { line, amplitude, .. } => {
                let (s, lateral) = line.local(x, y);
                let [along, _] = straight_windows((s, (lateral.abs() - amplitude.abs()).max(0.0)), reach);
                [along, NOWHERE]
            }
            Self::Circular { centre, radius, phases, direction } => {
                let (dx, dy) = (x - centre[0], y - centre[1]);
                let r = (dx * dx + dy * dy).sqrt();
                if (radius - r).abs() > reach {
                    return [NOWHERE; 2];
                }
                // The angle between the place and the points of the circle that are as far away as `reach`.
                let cosine = (r * r + radius * radius - reach * reach) / (2.0 * r * radius);
                if cosine.is_nan() || cosine <= -1.0 {
                    return [[f64::NEG_INFINITY, f64::INFINITY], NOWHERE];
                }
                let half = cosine.min(1.0).acos() * radius;
                let (middle, round) = (self.length() / 2.0, TAU * radius);
                let s = direction * (dy.atan2(dx) - phases[0]) * radius;
                let s = middle + (s - middle + round / 2.0).rem_euclid(round) - round / 2.0;
                // The same place once more, one turn away, on the other side of the lane's middle.
                let again = if s < middle { s + round } else { s - round };
                [[s - half, s + half], [again - half, again + half]]
            }
            Self::Polyline(line) => {
                let near = line.local(x, y).1.abs() <= reach;
                [if near { [f64::NEG_INFINITY, f64::INFINITY] } else { NOWHERE }, NOWHERE]
            }
        }
    }

    fn outline(&self) -> Vec<[f64; 2]> {
        if let Self::Polyline(line) = self {
            return line.points();
        }
        let pieces = if matches!(self, Self::Straight(_)) { 1.0 } else { (self.length() / PIECE).ceil().max(1.0) };
        (0..=pieces as usize).map(|i| self.position(self.length() * i as f64 / pieces, 0.0).into()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::f64::consts::PI;

    fn curves() -> impl Strategy<Value = Curve> {
        let point = || (-50.0f64..50.0, -50.0f64..50.0).prop_map(<[f64; 2]>::from);
        let ends = || {
            (point(), 0.0f64..6.3, 10.0f64..100.0).prop_map(|(start, heading, length)| {
                (start, [start[0] + length * heading.cos(), start[1] + length * heading.sin()])
            })
        };
        prop_oneof![
            ends().prop_map(|(start, end)| Curve::straight(start, end)),
            (ends(), 0.5f64..6.0, 0.02f64..0.1, -3.0f64..3.0)
                .prop_map(|((start, end), a, w, phase)| Curve::sine(start, end, a, w, phase)),
            (point(), 5.0f64..60.0, -4.0f64..4.0, 0.2f64..3.0, any::<bool>()).prop_map(|(centre, r, from, by, cw)| {
                Curve::circular(centre, r, [from, if cw { from + by } else { from - by }], cw)
            }),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, cases: 2000, ..ProptestConfig::default() })]

        #[test]
        fn places_and_coordinates_are_inverse(curve in curves(), share in 0.0f64..1.0, lateral in -4.0f64..4.0) {
            let s = share * curve.length();
            let (x, y) = curve.position(s, lateral);
            let (found_s, found_lateral) = curve.local(x, y);
            prop_assert!((found_s - s).abs() < 1e-9 && (found_lateral - lateral).abs() < 1e-9);
            prop_assert!(curve.least_lateral(x, y) <= found_lateral.abs());
        }

        #[test]
        fn what_is_near_lies_in_a_window(
            curve in curves(), share in 0.0f64..1.0, lateral in -40.0f64..40.0, reach in 1.0f64..40.0,
        ) {
            let (x, y) = curve.position(share * curve.length(), lateral);
            let windows = curve.windows(x, y, reach);
            for i in 0..=200 {
                let s = curve.length() * f64::from(i) / 200.0;
                let at = curve.position(s, 0.0);
                let near = (at.0 - x).hypot(at.1 - y) < reach - 1e-6;
                prop_assert!(!near || windows.iter().any(|[from, to]| (*from..=*to).contains(&s)), "{s} {windows:?}");
            }
        }

        #[test]
        fn the_heading_is_the_direction_of_the_middle(curve in curves(), share in 0.05f64..0.95) {
            let (s, step) = (share * curve.length(), 1e-5);
            let (a, b) = (curve.position(s - step, 0.0), curve.position(s + step, 0.0));
            let turned = wrap_to_pi((b.1 - a.1).atan2(b.0 - a.0) - curve.heading_at(s));
            prop_assert!(turned.abs() < 1e-6, "{turned}");
            let way = (b.0 - a.0).hypot(b.1 - a.1) / (2.0 * step);
            prop_assert!(way <= curve.stretch() + 1e-6);
        }

        #[test]
        fn the_outline_keeps_to_the_middle(curve in curves()) {
            for pair in curve.outline().windows(2) {
                let middle = [(pair[0][0] + pair[1][0]) / 2.0, (pair[0][1] + pair[1][1]) / 2.0];
                prop_assert!(curve.local(middle[0], middle[1]).1.abs() < 0.05);
            }
        }
    }

    #[test]
    fn a_circle_turns_either_way() {
        let right = Curve::circular([0.0, 0.0], 10.0, [0.0, PI / 2.0], true);
        assert_eq!((right.length(), right.heading_at(0.0)), (5.0 * PI, PI / 2.0));
        let left = Curve::circular([0.0, 0.0], 10.0, [PI / 2.0, 0.0], false);
        let (x, y) = left.position(5.0 * PI, 1.0);
        assert!((x - 11.0).abs() < 1e-12 && y.abs() < 1e-12);
    }
}
