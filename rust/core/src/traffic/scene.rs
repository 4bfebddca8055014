//! The scene of a traffic simulator at one moment: lanes, cars, obstacles and the camera. Pictures and logs are made
//! from this alone.
//!
//! Metres, seconds and radians. As in highway-env's pictures x points right and y down, and headings turn from x to y.

use super::Traffic;
pub use super::lane::Line;
use super::lane::Shape;
use super::map::RoadMap;
pub use super::obstacle::{Landmark, Obstacle};
use super::vehicles;

/// A simulator that has a scene.
pub trait Scenic {
    fn scene(&self) -> Scene;
}

#[derive(Clone, Debug, PartialEq)]
pub struct Scene {
    /// Seconds since the episode began.
    pub time: f64,
    /// A lane's place in this list is its number.
    pub lanes: Vec<LaneStrip>,
    pub cars: Vec<Car>,
    pub obstacles: Vec<Obstacle>,
    /// Places to be reached.
    pub landmarks: Vec<Landmark>,
    /// Radio links between cars, where they have radios.
    pub links: Vec<Link>,
    pub camera: Camera,
    /// The range of speeds that colours show, m/s.
    pub speeds: [f64; 2],
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Camera {
    /// Moves along with the car at that place in the list.
    Follow(usize),
    /// Keeps all agents in the picture, from farther away if need be.
    Agents,
    /// Keeps the places between these two corners in the picture.
    Box([f64; 2], [f64; 2]),
    /// Shows the whole of the lanes.
    Whole,
}

/// A lane as it lies on the ground.
#[derive(Clone, Debug, PartialEq)]
pub struct LaneStrip {
    /// The centre line: straight pieces between these points, at least two.
    pub centre: Vec<[f64; 2]>,
    /// True if the last point leads back to the first.
    pub closed: bool,
    /// Length along the centre line, metres. The pieces of a curve are a little shorter.
    pub length: f64,
    pub width: f64,
    /// The left and the right marking, seen by a driver: at smaller and larger y if the lane runs along x.
    pub lines: [Line; 2],
}

impl LaneStrip {
    pub fn straight(start: [f64; 2], end: [f64; 2], width: f64, lines: [Line; 2]) -> Self {
        let length = (end[0] - start[0]).hypot(end[1] - start[1]);
        Self { centre: vec![start, end], closed: false, length, width, lines }
    }

    /// A circle around `middle`, driven clockwise as seen on a screen, of that `length`. It begins at the right.
    pub fn circle(middle: [f64; 2], length: f64, width: f64, lines: [Line; 2]) -> Self {
        const PIECES: usize = 180;
        let centre =
            (0..PIECES).map(|i| Self::on_circle(middle, length, length * i as f64 / PIECES as f64).0).collect();
        Self { centre, closed: true, length, width, lines }
    }

    /// The place and the heading `along` metres from where [`LaneStrip::circle`] begins.
    pub fn on_circle(middle: [f64; 2], length: f64, along: f64) -> ([f64; 2], f64) {
        let turn = std::f64::consts::TAU;
        let (radius, angle) = (length / turn, turn * (along / length));
        ([middle[0] + radius * angle.cos(), middle[1] + radius * angle.sin()], angle + turn / 4.0)
    }
}

/// A radio link between two cars, in one direction.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Link {
    /// [`Car::id`] of the sender and of the receiver.
    pub from: u32,
    pub to: u32,
    /// Probability that the last message arrived.
    pub quality: f64,
    /// Age of information at the end of the period, seconds.
    pub age: f64,
}

/// A vehicle of the scene.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Car {
    /// Identifies the car among those of the episode.
    pub id: u32,
    /// Centre, metres.
    pub x: f64,
    pub y: f64,
    pub heading: f64,
    pub length: f64,
    pub width: f64,
    pub speed: f64,
    /// Index of its lane, and position along it, metres.
    pub lane: u32,
    pub along: f64,
    /// The index of the agent that drives it in its environment. None: background traffic.
    pub agent: Option<u32>,
    pub crashed: bool,
}

impl Scene {
    /// The view of [`Camera::Agents`], from corner to corner: the agents that have not crashed, else all agents, else
    /// all cars. Across straight roads, their lanes too.
    pub(super) fn focus(&self) -> Option<([f64; 2], [f64; 2])> {
        let place = |car: &Car| [car.x, car.y];
        let agents = || self.cars.iter().filter(|car| car.agent.is_some());
        let (mut low, mut high) = bounds(agents().filter(|car| !car.crashed).map(place))
            .or_else(|| bounds(agents().map(place)))
            .or_else(|| bounds(self.cars.iter().map(place)))?;
        for [x, y] in self.lanes.iter().filter(|lane| !lane.closed).flat_map(|lane| &lane.centre) {
            let beside = self.lanes.iter().all(|lane| lane.centre.len() == 2) || (low[0]..=high[0]).contains(x);
            if beside && y.is_finite() {
                (low[1], high[1]) = (low[1].min(*y), high[1].max(*y));
            }
        }
        Some((low, high))
    }

    /// The scene between this one (`share` 0) and a later one of the same episode (`share` 1), for pictures in between
    /// two decisions: cars move along the curve that has the places, speeds and headings of both ends (cubic Hermite).
    /// A car that only one of them has is shown by the nearer one.
    pub fn between(&self, later: &Self, share: f64) -> Self {
        let seconds = later.time - self.time;
        let nearer = if share < 0.5 { self } else { later };
        let mut scene = nearer.clone();
        if self.camera == Camera::Agents
            && let (Some((low, high)), Some((later_low, later_high))) = (self.focus(), later.focus())
        {
            // Keeps the camera from jumping where an agent leaves.
            let blend = |a: [f64; 2], b: [f64; 2]| std::array::from_fn(|k| a[k] + share * (b[k] - a[k]));
            scene.camera = Camera::Box(blend(low, later_low), blend(high, later_high));
        }
        scene.time = self.time + share * seconds;
        for car in &mut scene.cars {
            let find = |scene: &Self| scene.cars.iter().find(|other| other.id == car.id).copied();
            if let (Some(a), Some(b)) = (find(self), find(later)) {
                *car = a.towards(&b, share, seconds, nearer.lanes.get(car.lane as usize));
            }
        }
        scene
    }
}

impl<M: RoadMap> Traffic<M> {
    /// The scene. `identify` gives the [`Car::id`] and [`Car::agent`] of a vehicle by its index.
    pub fn scene(
        &self,
        time: f64,
        camera: Camera,
        speeds: [f64; 2],
        identify: impl Fn(usize) -> (u32, Option<u32>),
    ) -> Scene {
        let lanes = self.road.lanes().iter().map(|lane| {
            let (centre, length) = (lane.shape().outline(), lane.length());
            LaneStrip { centre, closed: false, length, width: lane.width, lines: lane.lines }
        });
        let v = &self.vehicles;
        let cars = (0..v.len()).map(|i| {
            let (id, agent) = identify(i);
            Car {
                id,
                x: v.x[i],
                y: v.y[i],
                heading: v.heading[i],
                length: vehicles::LENGTH,
                width: vehicles::WIDTH,
                speed: v.speed[i],
                lane: v.lane[i] as u32,
                along: self.road.lane(v.lane[i]).local(v.x[i], v.y[i]).0,
                agent,
                crashed: v.crashed[i],
            }
        });
        Scene {
            time,
            lanes: lanes.collect(),
            cars: cars.collect(),
            obstacles: self.road.obstacles().to_vec(),
            landmarks: self.landmarks.clone(),
            links: Vec::new(),
            camera,
            speeds,
        }
    }
}

/// The smallest and largest coordinates of points, those left out that are not finite.
pub(super) fn bounds(points: impl Iterator<Item = [f64; 2]>) -> Option<([f64; 2], [f64; 2])> {
    points.filter(|at| at.iter().all(|x| x.is_finite())).fold(None, |all, at| {
        let (low, high): ([f64; 2], [f64; 2]) = all.unwrap_or((at, at));
        Some((std::array::from_fn(|k| low[k].min(at[k])), std::array::from_fn(|k| high[k].max(at[k]))))
    })
}

impl Car {
    fn towards(&self, later: &Self, share: f64, seconds: f64, lane: Option<&LaneStrip>) -> Self {
        let (t, t2, t3) = (share, share * share, share * share * share);
        let curve = |a: f64, da: f64, b: f64, db: f64| {
            (2.0 * t3 - 3.0 * t2 + 1.0) * a
                + (t3 - 2.0 * t2 + t) * seconds * da
                + (3.0 * t2 - 2.0 * t3) * b
                + (t3 - t2) * seconds * db
        };
        let blend = |a: f64, b: f64| a + t * (b - a);
        // The shorter way round.
        let turn = std::f64::consts::TAU;
        let mut along = later.along - self.along;
        if let Some(lane) = lane.filter(|lane| lane.closed && lane.length > 0.0) {
            along = (along + lane.length / 2.0).rem_euclid(lane.length) - lane.length / 2.0;
        }
        let turned = (later.heading - self.heading + turn / 2.0).rem_euclid(turn) - turn / 2.0;
        let (vx, vy) = (self.speed * self.heading.cos(), self.speed * self.heading.sin());
        let (wx, wy) = (later.speed * later.heading.cos(), later.speed * later.heading.sin());
        let nearer = if share < 0.5 { self } else { later };
        Self {
            x: curve(self.x, vx, later.x, wx),
            y: curve(self.y, vy, later.y, wy),
            heading: self.heading + t * turned,
            speed: blend(self.speed, later.speed),
            along: self.along + t * along,
            ..*nearer
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn car(x: f64, heading: f64, speed: f64) -> Car {
        let (length, width) = (5.0, 2.0);
        Car { id: 7, x, y: 0.0, heading, length, width, speed, lane: 0, along: x, agent: None, crashed: false }
    }

    fn scene(time: f64, cars: Vec<Car>) -> Scene {
        let lane = LaneStrip::circle([0.0, 0.0], 100.0, 4.0, [Line::Continuous; 2]);
        Scene {
            time,
            lanes: vec![lane],
            cars,
            obstacles: vec![],
            landmarks: vec![],
            links: vec![],
            camera: Camera::Whole,
            speeds: [0.0, 30.0],
        }
    }

    #[test]
    fn a_circle_has_its_length_and_drivers_face_along_it() {
        let lane = LaneStrip::circle([3.0, -2.0], 100.0, 4.0, [Line::Continuous; 2]);
        let n = lane.centre.len();
        let round: f64 = (0..n)
            .map(|i| {
                let (a, b) = (lane.centre[i], lane.centre[(i + 1) % n]);
                (b[0] - a[0]).hypot(b[1] - a[1])
            })
            .sum();
        assert!((round - 100.0).abs() < 0.01, "{round}");
        let (at, heading) = LaneStrip::on_circle([3.0, -2.0], 100.0, 20.0);
        let (next, _) = LaneStrip::on_circle([3.0, -2.0], 100.0, 20.0 + 1e-4);
        assert!((next[0] - at[0] - 1e-4 * heading.cos()).abs() < 1e-8);
        assert!((next[1] - at[1] - 1e-4 * heading.sin()).abs() < 1e-8);
    }

    #[test]
    fn between_two_scenes_cars_move_evenly_and_turn_the_shorter_way() {
        let (a, b) = (scene(1.0, vec![car(99.0, 3.1, 10.0)]), scene(2.0, vec![car(1.0, -3.1, 12.0)]));
        assert_eq!(a.between(&b, 0.0).cars, a.cars);
        let middle = a.between(&b, 0.5);
        assert_eq!(middle.time, 1.5);
        let half = middle.cars[0];
        assert!((half.along - 100.0).abs() < 1e-9 && (half.speed - 11.0).abs() < 1e-9);
        assert!((half.heading - std::f64::consts::PI).abs() < 1e-9, "{}", half.heading);
        // At constant speed it is simply a straight line.
        let (a, b) = (scene(0.0, vec![car(0.0, 0.0, 20.0)]), scene(1.0, vec![car(20.0, 0.0, 20.0)]));
        assert!((a.between(&b, 0.3).cars[0].x - 6.0).abs() < 1e-9);
    }

    #[test]
    fn the_camera_moves_evenly_where_an_agent_leaves() {
        let agents = |places: &[f64]| {
            let cars = places.iter().map(|&x| Car { agent: Some(0), id: x as u32, ..car(x, 0.0, 20.0) });
            Scene { camera: Camera::Agents, ..scene(0.0, cars.collect()) }
        };
        let (a, b) = (agents(&[0.0, 100.0]), agents(&[20.0]));
        let corners = |share: f64| match a.between(&b, share).camera {
            Camera::Box(low, high) => [low[0], high[0]],
            other => panic!("{other:?}"),
        };
        assert_eq!([corners(0.0), corners(0.5), corners(1.0)], [[0.0, 100.0], [10.0, 60.0], [20.0, 20.0]]);
    }

    #[test]
    fn a_car_that_leaves_is_shown_until_half_way() {
        let (a, b) = (scene(0.0, vec![car(0.0, 0.0, 20.0)]), scene(1.0, vec![]));
        assert_eq!(a.between(&b, 0.4).cars, a.cars);
        assert!(a.between(&b, 0.6).cars.is_empty());
    }
}
