//! Collisions between vehicles, and with obstacles.
//!
//! Source: `RoadObject.handle_collisions` (`highway_env/vehicle/objects.py`) and `utils.are_polygons_intersecting`: the
//! separating axis test on turned rectangles, which also looks ahead by one frame. See S. Gottschalk, M. Lin,
//! D. Manocha, "OBBTree", SIGGRAPH (1996).

use super::map::RoadMap;
use super::obstacle::{Landmark, Obstacle};
use super::vehicles::{LENGTH, WIDTH};
use super::{Scratch, Traffic};

/// A turned rectangle, and how far it moves in the next frame.
struct Body {
    corners: [[f64; 2]; 4],
    shift: [f64; 2],
}

impl Body {
    fn new([x, y]: [f64; 2], [cos, sin]: [f64; 2], length: f64, width: f64, shift: [f64; 2]) -> Self {
        let (a, b) = (length / 2.0, width / 2.0);
        let corner = |p: f64, q: f64| [cos * p - sin * q + x, sin * p + cos * q + y];
        Self { corners: [corner(-a, -b), corner(-a, b), corner(a, b), corner(a, -b)], shift }
    }

    fn project(&self, axis: [f64; 2]) -> (f64, f64) {
        self.corners.iter().fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), corner| {
            let at = dot(*corner, axis);
            (low.min(at), high.max(at))
        })
    }

    fn centre(&self) -> [f64; 2] {
        let mean = |k: usize| self.corners.iter().map(|corner| corner[k]).sum::<f64>() / 4.0;
        [mean(0), mean(1)]
    }
}

fn dot(a: [f64; 2], b: [f64; 2]) -> f64 {
    a[0] * b[0] + a[1] * b[1]
}

/// Space between two intervals, negative where they overlap.
fn space(a: (f64, f64), b: (f64, f64)) -> f64 {
    if a.0 < b.0 { b.0 - a.1 } else { a.0 - b.1 }
}

/// Returns whether the bodies overlap, and the shortest shift of the first that parts them if they do or will a frame
/// later.
fn meet(a: &Body, b: &Body) -> (bool, Option<[f64; 2]>) {
    let (mut overlap, mut will) = (true, true);
    let mut shortest = (f64::INFINITY, [0.0; 2]);
    let (from, to) = (a.centre(), b.centre());
    let between = [from[0] - to[0], from[1] - to[1]];
    let approach = [a.shift[0] - b.shift[0], a.shift[1] - b.shift[1]];
    for body in [a, b] {
        for k in 0..4 {
            let (p, q) = (body.corners[k], body.corners[(k + 1) % 4]);
            let normal = [p[1] - q[1], q[0] - p[0]];
            let norm = dot(normal, normal).sqrt();
            let normal = [normal[0] / norm, normal[1] / norm];
            let (mut of_a, of_b) = (a.project(normal), b.project(normal));
            if space(of_a, of_b) > 0.0 {
                overlap = false;
            }
            let along = dot(normal, approach);
            if along < 0.0 {
                of_a.0 += along;
            } else {
                of_a.1 += along;
            }
            let distance = space(of_a, of_b);
            if distance > 0.0 {
                will = false;
            }
            if !overlap && !will {
                return (false, None);
            }
            if distance.abs() < shortest.0 {
                let away = dot(between, normal) > 0.0;
                shortest = (distance.abs(), if away { normal } else { [-normal[0], -normal[1]] });
            }
        }
    }
    let (distance, axis) = shortest;
    (overlap, will.then(|| [distance * axis[0], distance * axis[1]]))
}

/// Returns whether a side of the first body separates the bodies now and a frame later; then they cannot collide.
fn apart(between: [f64; 2], approach: [f64; 2], a: [f64; 2], b: [f64; 2], half_a: [f64; 2], half_b: [f64; 2]) -> bool {
    let ([cos, sin], turn_cos, turn_sin) = (a, dot(a, b).abs(), (a[0] * b[1] - a[1] * b[0]).abs());
    let axes = [
        ([cos, sin], half_a[0] + half_b[0] * turn_cos + half_b[1] * turn_sin),
        ([-sin, cos], half_a[1] + half_b[0] * turn_sin + half_b[1] * turn_cos),
    ];
    axes.into_iter().any(|(axis, extent)| {
        let (distance, along) = (dot(between, axis), dot(approach, axis));
        // Away from what rounding could decide.
        let extent = extent + 1e-9;
        if distance > 0.0 { distance + along.min(0.0) > extent } else { -distance - along.max(0.0) > extent }
    })
}

const HALF: [f64; 2] = [LENGTH / 2.0, WIDTH / 2.0];

fn diagonal(length: f64, width: f64) -> f64 {
    (length * length + width * width).sqrt()
}

/// Vehicles on a network beyond which they are searched strip by strip.
const MANY: usize = 48;

/// Distance from the centre of what lies on the road within which a vehicle at rest may touch it.
fn reach(o: &Obstacle) -> f64 {
    (diagonal(LENGTH, WIDTH) + diagonal(o.length, o.width)) / 2.0
}

impl<M: RoadMap> Traffic<M> {
    fn body(&self, i: usize, dt: f64) -> Body {
        let v = &self.vehicles;
        let [vx, vy] = v.velocity(i);
        Body::new([v.x[i], v.y[i]], [v.cos[i], v.sin[i]], LENGTH, WIDTH, [vx * dt, vy * dt])
    }

    /// Marks overlapping vehicles as crashed, and pushes apart those that overlap or will within `dt` seconds.
    pub(super) fn collide(&mut self, dt: f64) {
        self.find_pairs(dt);
        let pairs = std::mem::take(&mut self.scratch.pairs);
        let n = self.vehicles.len();
        for &(i, j) in &pairs {
            let (i, j) = (i as usize, j as usize);
            let body = self.body(i, dt);
            let (overlap, shift) = match j.checked_sub(n) {
                None => meet(&body, &self.body(j, dt)),
                Some(j) => {
                    let o = &self.road.obstacles()[j];
                    let (sin, cos) = o.heading.sin_cos();
                    meet(&body, &Body::new([o.x, o.y], [cos, sin], o.length, o.width, [0.0; 2]))
                }
            };
            let v = &mut self.vehicles;
            match shift {
                Some([x, y]) if j < n => {
                    v.impact[i] = Some([x / 2.0, y / 2.0]);
                    v.impact[j] = Some([-x / 2.0, -y / 2.0]);
                }
                Some(_) => v.impact[i] = shift,
                None => {}
            }
            v.crashed[i] |= overlap;
            if j < n {
                v.crashed[j] |= overlap;
            }
        }
        self.scratch.pairs = pairs;
        self.reach_landmarks(dt);
    }

    /// Marks the landmarks that vehicles touch.
    fn reach_landmarks(&mut self, dt: f64) {
        for k in 0..self.landmarks.len() {
            let Landmark { body: o, direction, reached } = &self.landmarks[k];
            if *reached {
                continue;
            }
            let reach = reach(o);
            let v = &self.vehicles;
            let touches = |i: usize| {
                let (dx, dy) = (o.x - v.x[i], o.y - v.y[i]);
                let is_near = (dx * dx + dy * dy).sqrt() <= reach + v.speed[i] * dt;
                is_near && meet(&self.body(i, dt), &Body::new([o.x, o.y], *direction, o.length, o.width, [0.0; 2])).0
            };
            self.landmarks[k].reached = (0..v.len()).any(touches);
        }
    }

    /// Lists the pairs that are near enough to collide, in highway-env's order.
    fn find_pairs(&mut self, dt: f64) {
        let Self { road, vehicles: v, scratch, .. } = self;
        let Scratch { order, strips, pairs, .. } = scratch;
        pairs.clear();
        let diagonal = diagonal(LENGTH, WIDTH);
        let farthest = diagonal + v.speed.iter().fold(0.0, |a, &b| if b > a { b } else { a }) * dt;
        let mut add = |a: u32, b: u32| {
            let (i, j) = (a.min(b) as usize, a.max(b) as usize);
            let (dx, dy) = (v.x[i] - v.x[j], v.y[i] - v.y[j]);
            if dy.abs() > farthest || !v.checks_collisions[i] && !v.checks_collisions[j] {
                return;
            }
            let ([vx, vy], [wx, wy]) = (v.velocity(i), v.velocity(j));
            let approach = [(vx - wx) * dt, (vy - wy) * dt];
            let (own, other) = ([v.cos[i], v.sin[i]], [v.cos[j], v.sin[j]]);
            if (dx * dx + dy * dy).sqrt() <= diagonal + v.speed[i] * dt
                && !apart([dx, dy], approach, own, other, HALF, HALF)
            {
                pairs.push((i as u32, j as u32));
            }
        };
        if M::EXACT && v.len() > MANY {
            strips.sort(v, farthest);
            strips.visit_pairs(farthest, add);
        } else {
            order.sort(v);
            let by_rank = order.by_rank();
            for (rank, &a) in by_rank.iter().enumerate() {
                let rest = &by_rank[rank + 1..];
                let near = rest.iter().take_while(|&&b| (v.x[a as usize] - v.x[b as usize]).abs() <= farthest);
                near.for_each(|&b| add(a, b));
            }
        }
        for (j, o) in road.obstacles().iter().enumerate() {
            let reach = reach(o);
            for i in 0..v.len() {
                let (dx, dy) = (o.x - v.x[i], o.y - v.y[i]);
                if (dx * dx + dy * dy).sqrt() <= reach + v.speed[i] * dt {
                    pairs.push((i as u32, (v.len() + j) as u32));
                }
            }
        }
        pairs.sort_unstable();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::traffic::road::Road;
    use crate::traffic::vehicles::{Driver, Vehicle};
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, cases: 20_000, ..ProptestConfig::default() })]

        #[test]
        fn separated_bodies_do_not_collide(
            (dx, dy) in (-9.0f64..9.0, -9.0f64..9.0),
            (a, b) in (-1.0f64..1.0, -1.0f64..1.0),
            (v, w) in (-3.0f64..3.0, -3.0f64..3.0),
        ) {
            let (axis_a, axis_b) = ([a.cos(), a.sin()], [b.cos(), b.sin()]);
            let (shift_a, shift_b) = ([v * a.cos(), v * a.sin()], [w * b.cos(), w * b.sin()]);
            let body_a = Body::new([100.0 + dx, 4.0 + dy], axis_a, LENGTH, WIDTH, shift_a);
            let body_b = Body::new([100.0, 4.0], axis_b, LENGTH, WIDTH, shift_b);
            let approach = [shift_a[0] - shift_b[0], shift_a[1] - shift_b[1]];
            if apart([dx, dy], approach, axis_a, axis_b, HALF, HALF) {
                prop_assert_eq!(meet(&body_a, &body_b), (false, None));
            }
        }
    }

    #[test]
    fn bodies_part_the_short_way() {
        let body = |x: f64, y: f64, speed: f64| Body::new([x, y], [1.0, 0.0], LENGTH, WIDTH, [speed, 0.0]);
        assert_eq!(meet(&body(0.0, 0.0, 0.0), &body(5.5, 0.0, 0.0)), (false, None));
        // It will run into the other one by half a metre.
        assert_eq!(meet(&body(0.0, 0.0, 1.0), &body(5.5, 0.0, 0.0)), (false, Some([-0.5, 0.0])));
        assert_eq!(meet(&body(0.0, 0.0, 0.0), &body(1.0, 1.5, 0.0)), (true, Some([0.0, -0.5])));
    }

    #[test]
    fn a_landmark_is_reached_by_the_first_touch_and_hinders_nobody() {
        let mut traffic = Traffic::new(Road::straight(1, 1000.0, 30.0), vec![20.0]);
        traffic.add(&Vehicle::new(Driver::Manual, 10.0, 0.0, 6.0));
        let body = Obstacle::new(14.5, 0.0);
        traffic.landmarks.push(Landmark::new(body));
        let mut reached = Vec::new();
        for _ in 0..8 {
            traffic.frame(0.25);
            reached.push(traffic.landmarks[0].reached);
        }
        // Half of both lengths is 3.5 m: touched from x = 11 on, left behind at x = 18.
        assert_eq!(reached, [true; 8]);
        assert_eq!((traffic.vehicles.x[0], traffic.vehicles.speed[0]), (22.0, 6.0));
        assert!(!traffic.vehicles.crashed[0] && traffic.vehicles.impact[0].is_none());
        traffic.landmarks[0].reached = false;
        traffic.frame(0.25);
        assert!(!traffic.landmarks[0].reached, "too far away");
    }
}
