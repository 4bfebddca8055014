//! Observations: the agent on its lane, and the nearest vehicles relative to it. All numbers lie in [-1, 1].
//!
//! ```text
//! lane offset, heading error, speed, target speed, one number a lane (1: this one), distance to the ramp's end,
//! then NEAREST times: present, dx, dy, dvx, dvy, cos, sin
//! ```

use std::f64::consts::FRAC_PI_2;

use super::config::Config;
use crate::traffic::vehicles::Vehicles;

/// Vehicles that an agent sees.
pub(super) const NEAREST: usize = 8;
/// Numbers of a vehicle.
pub(super) const VEHICLE_LEN: usize = 7;
/// Metres that an agent sees, and that dx is measured in.
pub(super) const RANGE: f64 = 150.0;
/// Metres that dy is measured in.
pub(super) const SIDE_RANGE: f64 = 12.0;
/// m/s that speeds are measured in.
pub(super) const SPEED: f64 = 40.0;
/// Metres that the distance to the ramp's end is measured in.
pub(super) const RAMP_RANGE: f64 = 300.0;

pub(super) fn obs_len(config: &Config) -> usize {
    5 + config.all_lanes() + NEAREST * VEHICLE_LEN
}

/// The position of an agent on its lane.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct OnLane {
    /// Index of the lane from the left.
    pub lane: usize,
    /// Metres from the middle of the lane, and half of its width.
    pub lateral: f64,
    pub half_width: f64,
    /// Radians from the lane's direction, in [-pi, pi].
    pub heading_error: f64,
}

/// Writes the observation of vehicle `me`.
pub(super) fn write(config: &Config, vehicles: &Vehicles, me: usize, on_lane: OnLane, out: &mut [f32]) {
    let put = |slot: &mut f32, value: f64| *slot = value.clamp(-1.0, 1.0) as f32;
    let lanes = config.all_lanes();
    put(&mut out[0], on_lane.lateral / on_lane.half_width);
    put(&mut out[1], on_lane.heading_error / FRAC_PI_2);
    put(&mut out[2], vehicles.speed[me] / SPEED);
    put(&mut out[3], vehicles.target_speed[me] / SPEED);
    out[4..4 + lanes].fill(0.0);
    out[4 + on_lane.lane] = 1.0;
    let to_ramp_end = config.ramp_end().map_or(1.0, |end| (end - vehicles.x[me]) / RAMP_RANGE);
    put(&mut out[4 + lanes], to_ramp_end);

    let (nearest, seen) = nearest(vehicles, me);
    let [own_vx, own_vy] = vehicles.velocity(me);
    let rows = out[5 + lanes..].chunks_exact_mut(VEHICLE_LEN);
    for (slot, row) in rows.enumerate() {
        if slot >= seen {
            row.fill(0.0);
            continue;
        }
        let other = nearest[slot];
        let [vx, vy] = vehicles.velocity(other);
        row[0] = 1.0;
        put(&mut row[1], (vehicles.x[other] - vehicles.x[me]) / RANGE);
        put(&mut row[2], (vehicles.y[other] - vehicles.y[me]) / SIDE_RANGE);
        put(&mut row[3], (vx - own_vx) / SPEED);
        put(&mut row[4], (vy - own_vy) / SPEED);
        put(&mut row[5], vehicles.cos[other]);
        put(&mut row[6], vehicles.sin[other]);
    }
}

/// The nearest vehicles within [`RANGE`], the nearest first, and how many they are.
fn nearest(vehicles: &Vehicles, me: usize) -> ([usize; NEAREST], usize) {
    let (x, y) = (vehicles.x[me], vehicles.y[me]);
    let mut found = [usize::MAX; NEAREST];
    let mut squares = [RANGE * RANGE; NEAREST];
    let mut seen = 0;
    for (i, (other_x, other_y)) in vehicles.x.iter().zip(&vehicles.y).enumerate() {
        let (dx, dy) = (other_x - x, other_y - y);
        let square = dx * dx + dy * dy;
        if square >= squares[NEAREST - 1] || i == me {
            continue;
        }
        seen = (seen + 1).min(NEAREST);
        let mut at = seen - 1;
        while at > 0 && squares[at - 1] > square {
            (found[at], squares[at]) = (found[at - 1], squares[at - 1]);
            at -= 1;
        }
        (found[at], squares[at]) = (i, square);
    }
    (found, seen)
}
