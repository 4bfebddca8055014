//! Who runs into whom.
//!
//! Source: `RoadObject.handle_collisions` (`highway_env/vehicle/objects.py`) and `utils.are_polygons_intersecting`: the
//! separating axis test on turned rectangles, which also looks ahead by one frame. See S. Gottschalk, M. Lin,
//! D. Manocha, "OBBTree", SIGGRAPH (1996).

use super::Traffic;
use super::vehicles::{LENGTH, WIDTH};

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

/// Whether the bodies overlap, and the shortest shift of the first that parts them if they do or will a frame later.
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

impl Traffic {
    fn body(&self, i: usize, dt: f64) -> Body {
        let v = &self.vehicles;
        let [vx, vy] = v.velocity(i);
        Body::new([v.x[i], v.y[i]], [v.cos[i], v.sin[i]], LENGTH, WIDTH, [vx * dt, vy * dt])
    }

    /// Marks those that overlap as crashed, and pushes apart those that do or will within `dt` seconds.
    pub(super) fn collide(&mut self, dt: f64) {
        let diagonal = LENGTH.hypot(WIDTH);
        for i in 0..self.vehicles.len() {
            let reach = diagonal + self.vehicles.speed[i] * dt;
            for j in i + 1..self.vehicles.len() {
                let v = &self.vehicles;
                if !v.checks_collisions[i] && !v.checks_collisions[j]
                    || (v.x[j] - v.x[i]).hypot(v.y[j] - v.y[i]) > reach
                {
                    continue;
                }
                let (overlap, shift) = meet(&self.body(i, dt), &self.body(j, dt));
                let v = &mut self.vehicles;
                if let Some([x, y]) = shift {
                    v.impact[i] = Some([x / 2.0, y / 2.0]);
                    v.impact[j] = Some([-x / 2.0, -y / 2.0]);
                }
                if overlap {
                    v.crashed[i] = true;
                    v.crashed[j] = true;
                }
            }
            for obstacle in &self.road.obstacles {
                let v = &self.vehicles;
                let reach = (diagonal + obstacle.length.hypot(obstacle.width)) / 2.0 + v.speed[i] * dt;
                if (obstacle.x - v.x[i]).hypot(obstacle.y - v.y[i]) > reach {
                    continue;
                }
                let (sin, cos) = obstacle.heading.sin_cos();
                let still = Body::new([obstacle.x, obstacle.y], [cos, sin], obstacle.length, obstacle.width, [0.0; 2]);
                let (overlap, shift) = meet(&self.body(i, dt), &still);
                if shift.is_some() {
                    self.vehicles.impact[i] = shift;
                }
                if overlap {
                    self.vehicles.crashed[i] = true;
                }
            }
        }
    }
}
