//! Distances to what is solid around the observer, and speeds at which it comes nearer (`LidarObservation`).

use std::f64::consts::{PI, TAU};

use crate::traffic::Traffic;
use crate::traffic::map::RoadMap;
use crate::traffic::vehicles::{LENGTH, WIDTH};

/// Cells [directions, 2] around the observer, from the x axis towards the y axis: distance, and speed away from the
/// observer; both are the range where nothing is.
#[derive(Clone, Debug, PartialEq)]
pub struct Lidar {
    /// Directions.
    pub cells: usize,
    /// Metres.
    pub range: f64,
    /// True if both are divided by the range.
    pub normalize: bool,
}

/// Something solid.
struct Target {
    at: [f64; 2],
    /// Cosine and sine of its heading.
    turn: [f64; 2],
    size: [f64; 2],
    velocity: [f64; 2],
}

impl Target {
    /// In highway-env's order.
    fn corners(&self) -> [[f64; 2]; 4] {
        let ([x, y], [cos, sin], [a, b]) = (self.at, self.turn, [self.size[0] / 2.0, self.size[1] / 2.0]);
        [[-a, -b], [-a, b], [a, b], [a, -b]].map(|[p, q]| [cos * p + -sin * q + x, sin * p + cos * q + y])
    }
}

/// A cast of rays from one place.
struct Scan<'a> {
    lidar: &'a Lidar,
    origin: [f64; 2],
    velocity: [f64; 2],
}

impl Lidar {
    pub(super) fn len(&self) -> usize {
        2 * self.cells
    }

    /// Width of a cell, radians.
    fn angle(&self) -> f64 {
        TAU / self.cells as f64
    }

    fn direction(&self, cell: usize) -> [f64; 2] {
        let (sin, cos) = (cell as f64 * self.angle()).sin_cos();
        [cos, sin]
    }

    /// The cell of an angle.
    fn cell(&self, angle: f64) -> usize {
        ((angle / self.angle()).floor() as i64).rem_euclid(self.cells as i64) as usize
    }

    pub(super) fn write<M: RoadMap>(&self, traffic: &Traffic<M>, observer: usize, out: &mut [f32]) {
        let v = &traffic.vehicles;
        out.fill(self.range as f32);
        let scan = Scan { lidar: self, origin: [v.x[observer], v.y[observer]], velocity: v.velocity(observer) };
        for i in (0..v.len()).filter(|&i| i != observer) {
            let (at, turn) = ([v.x[i], v.y[i]], [v.cos[i], v.sin[i]]);
            scan.see(&Target { at, turn, size: [LENGTH, WIDTH], velocity: v.velocity(i) }, out);
        }
        for o in traffic.road.obstacles() {
            let (sin, cos) = o.heading.sin_cos();
            let (at, size) = ([o.x, o.y], [o.length, o.width]);
            scan.see(&Target { at, turn: [cos, sin], size, velocity: [0.0; 2] }, out);
        }
        if self.normalize {
            out.iter_mut().for_each(|value| *value /= self.range as f32);
        }
    }
}

impl Scan<'_> {
    fn angle_to(&self, [x, y]: [f64; 2]) -> f64 {
        (y - self.origin[1]).atan2(x - self.origin[0]) + self.lidar.angle() / 2.0
    }

    /// Enters a distance where nothing nearer was found before.
    fn enter(&self, cell: usize, distance: f64, target: &Target, out: &mut [f32]) {
        if distance <= f64::from(out[2 * cell]) {
            let ([vx, vy], [cos, sin]) = (target.velocity, self.lidar.direction(cell));
            let away = (vx - self.velocity[0]) * cos + (vy - self.velocity[1]) * sin;
            (out[2 * cell], out[2 * cell + 1]) = (distance as f32, away as f32);
        }
    }

    fn see(&self, target: &Target, out: &mut [f32]) {
        let (dx, dy) = (target.at[0] - self.origin[0], target.at[1] - self.origin[1]);
        let far = (dx * dx + dy * dy).sqrt();
        if far > self.lidar.range {
            return;
        }
        let middle = self.lidar.cell(self.angle_to(target.at));
        self.enter(middle, far - target.size[1] / 2.0, target, out);
        let corners = target.corners();
        let angles = corners.map(|corner| self.angle_to(corner));
        let mut low = angles.into_iter().fold(f64::INFINITY, f64::min);
        let mut high = angles.into_iter().fold(f64::NEG_INFINITY, f64::max);
        if low < -PI / 2.0 && PI / 2.0 < high {
            // The corners lie on both sides of the negative x axis.
            (low, high) = (high, low + TAU);
        }
        let (start, end) = (self.lidar.cell(low), self.lidar.cell(high));
        // As there, all cells of a target that lies in one.
        let wraps = start >= end;
        let cells = start..if wraps { self.lidar.cells } else { end + 1 };
        for cell in cells.chain(0..if wraps { end + 1 } else { 0 }) {
            self.enter(cell, self.ray(cell, &corners), target, out);
        }
    }

    /// The distance at which the ray of a cell enters a rectangle, infinite if it misses it (`distance_to_rect`).
    fn ray(&self, cell: usize, [a, b, _, d]: &[[f64; 2]; 4]) -> f64 {
        let (r, direction, range) = (self.origin, self.lidar.direction(cell), self.lidar.range);
        let minus = |a: [f64; 2], b: [f64; 2]| [a[0] - b[0], a[1] - b[1]];
        let dot = |a: [f64; 2], b: [f64; 2]| a[0] * b[0] + a[1] * b[1];
        let ray = minus([r[0] + range * direction[0], r[1] + range * direction[1]], r);
        let interval = |to: [f64; 2]| {
            let side = minus(to, *a);
            let length = dot(side, side).sqrt();
            let side = [side[0] / length, side[1] / length];
            let along = dot(ray, side);
            let ends = [dot(minus(*a, r), side) / along, dot(minus(to, r), side) / along];
            if along >= 0.0 { ends } else { [ends[1], ends[0]] }
        };
        let (first, second) = (interval(*b), interval(*d));
        let space = |a: [f64; 2], b: [f64; 2]| if a[0] < b[0] { b[0] - a[1] } else { a[0] - b[1] };
        if space(first, second) <= 0.0 && space([0.0, 1.0], first) <= 0.0 && space([0.0, 1.0], second) <= 0.0 {
            let entry = if second[0] > first[0] { second[0] } else { first[0] };
            entry * dot(ray, ray).sqrt()
        } else {
            f64::INFINITY
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::traffic;
    use super::*;

    #[test]
    fn the_nearest_in_a_direction_is_seen() {
        let traffic = traffic(&[(130.0, 1, 20.0), (150.0, 1, 30.0), (80.0, 1, 25.0)]);
        let lidar = Lidar { cells: 8, range: 60.0, normalize: false };
        let mut out = vec![f32::NAN; lidar.len()];
        lidar.write(&traffic, 0, &mut out);
        // Ahead 27.5 m to its rear, 5 m/s slower than the observer; behind 17.5 m; nothing to the sides.
        assert_eq!((out[0], out[1]), (27.5, -5.0));
        assert_eq!(out[8], 17.5);
        assert_eq!((out[4], out[5]), (60.0, 60.0));
        let mut shares = vec![f32::NAN; lidar.len()];
        Lidar { normalize: true, ..lidar }.write(&traffic, 0, &mut shares);
        assert!(shares.iter().zip(&out).all(|(share, value)| *share == value / 60.0));
    }
}
