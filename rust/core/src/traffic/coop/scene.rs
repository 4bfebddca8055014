//! What a cooperative world shows.

use super::Coop;
use super::config::SPEED_LIMIT;
use crate::traffic::lane::{Lane, Line};
use crate::traffic::scene::{Camera, Car, LaneStrip, Marking, Obstacle, Scene, Scenic};
use crate::traffic::vehicles::{LENGTH, WIDTH};
use crate::world::World;

fn marking(line: Line) -> Marking {
    match line {
        Line::None => Marking::None,
        Line::Striped => Marking::Dashed,
        Line::Continuous => Marking::Solid,
    }
}

fn strip(lane: &Lane) -> LaneStrip {
    let ((x0, y0), (x1, y1)) = (lane.position(0.0, 0.0), lane.position(lane.length(), 0.0));
    LaneStrip::straight([x0, y0], [x1, y1], lane.width, lane.lines.map(marking))
}

impl Scenic for Coop {
    fn scene(&self) -> Scene {
        let state = self.state();
        let (road, v) = (&state.traffic.road, &state.traffic.vehicles);
        let car = |i: usize| Car {
            id: state.numbers[i],
            x: v.x[i],
            y: v.y[i],
            heading: v.heading[i],
            length: LENGTH,
            width: WIDTH,
            speed: v.speed[i],
            lane: v.lane[i] as u32,
            along: road.lane(v.lane[i]).local(v.x[i], v.y[i]).0,
            // A wreck is still known by the agent that drove it.
            agent: (state.numbers[i] < state.account.agents).then_some(state.numbers[i]),
            crashed: v.crashed[i],
        };
        let obstacle = |o: &crate::traffic::road::Obstacle| Obstacle {
            x: o.x,
            y: o.y,
            heading: o.heading,
            length: o.length,
            width: o.width,
        };
        Scene {
            time: f64::from(state.steps) / f64::from(self.config().policy_frequency),
            lanes: road.lanes().iter().map(strip).collect(),
            cars: (0..v.len()).map(car).collect(),
            obstacles: road.obstacles.iter().map(obstacle).collect(),
            camera: Camera::Agents,
            speeds: [0.0, SPEED_LIMIT],
        }
    }
}
