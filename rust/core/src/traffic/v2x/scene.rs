//! The scene of resource allocation: streets, vehicles and V2V links, coloured by their rates.

use super::V2x;
use super::config::{RATE_SCALE, STEP};
use super::grid::{self, HEIGHT, LANE, WIDTH};
use crate::env::Env;
use crate::traffic::scene::{Camera, Car, LaneStrip, Line, Link, Scene, Scenic};

/// Cars are drawn larger than they are, metres: the picture shows half a kilometre.
const SIZE: [f64; 2] = [10.0, 5.0];

impl Scenic for V2x {
    fn scene(&self) -> Scene {
        let state = self.state();
        let lanes = |axis: usize, far: bool| {
            grid::lanes(axis, far).into_iter().map(move |across| {
                let [start, end] =
                    if axis == 0 { [[across, 0.0], [across, HEIGHT]] } else { [[0.0, across], [WIDTH, across]] };
                LaneStrip::straight(start, end, LANE, [Line::None; 2])
            })
        };
        let all = [(0, true), (0, false), (1, false), (1, true)];
        let heading = [-1.0, 1.0, 2.0, 0.0].map(|quarters| quarters * std::f64::consts::FRAC_PI_2);
        let cars = state.places.iter().enumerate().map(|(i, &[x, y])| Car {
            id: i as u32,
            x,
            y,
            heading: heading[i % 4],
            length: SIZE[0],
            width: SIZE[1],
            speed: 0.0,
            lane: 0,
            along: 0.0,
            agent: Some(i as u32),
            crashed: false,
        });
        let links = state.receivers.iter().zip(&state.rates).enumerate().map(|(i, (&to, rate))| Link {
            from: i as u32,
            to,
            quality: (rate / RATE_SCALE).clamp(0.0, 1.0),
            age: f64::from(state.steps) * STEP,
        });
        Scene {
            time: f64::from(state.steps) * STEP,
            lanes: all.into_iter().flat_map(|(axis, far)| lanes(axis, far)).collect(),
            cars: cars.collect(),
            obstacles: Vec::new(),
            landmarks: Vec::new(),
            links: links.collect(),
            camera: Camera::Whole,
            speeds: [0.0, 1.0],
        }
    }
}
