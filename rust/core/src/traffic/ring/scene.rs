//! The scene of the ring road.

use super::env::Ring;
use crate::traffic::scene::{Camera, Car, LaneStrip, Line, Scene, Scenic};

const LANE_WIDTH: f64 = 4.0;
const CAR_WIDTH: f64 = 2.0;
/// The range of speeds that colours show: a wave is at rest, and vehicles on a full ring are hardly faster than this,
/// m/s.
const SPEEDS: [f64; 2] = [0.0, 8.0];

impl Scenic for Ring {
    fn scene(&self) -> Scene {
        let (platoon, ring) = (self.platoon(), self.ring_length());
        let length = self.config().human.length;
        let middle = [0.0, 0.0];
        let car = |i: usize| {
            let along = platoon.x()[i].rem_euclid(ring);
            let ([x, y], heading) = LaneStrip::on_circle(middle, ring, along - 0.5 * length);
            let behind = (i + platoon.len() - 1) % platoon.len();
            Car {
                id: i as u32,
                x,
                y,
                heading,
                length,
                width: CAR_WIDTH,
                speed: platoon.v()[i],
                lane: 0,
                along,
                agent: self.agent_vehicles().iter().position(|&vehicle| vehicle == i).map(|k| k as u32),
                crashed: platoon.gap(i, length) < 0.0 || platoon.gap(behind, length) < 0.0,
            }
        };
        Scene {
            time: self.time(),
            lanes: vec![LaneStrip::circle(middle, ring, LANE_WIDTH, [Line::Continuous; 2])],
            cars: (0..platoon.len()).map(car).collect(),
            obstacles: Vec::new(),
            landmarks: Vec::new(),
            links: Vec::new(),
            camera: Camera::Whole,
            speeds: SPEEDS,
        }
    }
}
