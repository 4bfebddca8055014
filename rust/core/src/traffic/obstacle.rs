//! What lies on the road: obstacles, and places to be reached.

use serde::{Deserialize, Serialize};

/// Something solid that stands still on the road.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Obstacle {
    /// Centre, metres.
    pub x: f64,
    pub y: f64,
    /// Radians.
    pub heading: f64,
    /// Metres.
    pub length: f64,
    pub width: f64,
}

impl Obstacle {
    /// 2 m by 2 m, as at the end of highway-env's access ramp.
    pub fn new(x: f64, y: f64) -> Self {
        Self { x, y, heading: 0.0, length: 2.0, width: 2.0 }
    }
}

/// A place to be reached; vehicles drive over it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Landmark {
    pub body: Obstacle,
    /// Cosine and sine of its heading.
    pub direction: [f64; 2],
    /// True once a vehicle has touched it.
    pub reached: bool,
}

impl Landmark {
    pub fn new(body: Obstacle) -> Self {
        let (sin, cos) = body.heading.sin_cos();
        Self { body, direction: [cos, sin], reached: false }
    }
}
