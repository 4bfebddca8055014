//! Observations: the agent on its lane, and the nearest vehicles relative to it. All numbers lie in [-1, 1].
//!
//! ```text
//! lane offset, heading error, speed, target speed, one number a lane (1: this one), distance to the ramp's end,
//! then NEAREST times: present, dx, dy, dvx, dvy, cos, sin, and with links: age
//! and where agents choose resources, the power that was sensed in each
//! ```
//!
//! With links, other vehicles with a radio are where their last message says.

use std::f64::consts::FRAC_PI_2;

use super::config::Config;
use crate::traffic::links::LinkState;
use crate::traffic::links::config as links;
use crate::traffic::links::table::Message;
use crate::traffic::vehicles::Vehicles;

/// Vehicles that an agent sees.
pub(super) const NEAREST: usize = 8;
/// Numbers of a vehicle without links.
pub(super) const VEHICLE_LEN: usize = 7;
/// Metres that an agent sees, and that dx is measured in.
pub(super) const RANGE: f64 = 150.0;
/// Metres that dy is measured in.
pub(super) const SIDE_RANGE: f64 = 12.0;
/// m/s that speeds are measured in.
pub(super) const SPEED: f64 = 40.0;
/// Metres that the distance to the ramp's end is measured in.
pub(super) const RAMP_RANGE: f64 = 300.0;

/// Numbers of a vehicle.
fn vehicle_len(config: &Config) -> usize {
    VEHICLE_LEN + usize::from(config.comms.is_some())
}

pub(super) fn obs_len(config: &Config) -> usize {
    5 + config.all_lanes() + NEAREST * vehicle_len(config) + config.comms.as_ref().map_or(0, links::Config::sensed_len)
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

#[inline]
fn put(slot: &mut f32, value: f64) {
    *slot = value.clamp(-1.0, 1.0) as f32;
}

/// Writes what vehicle `me` observes of itself and its lane. Returns the rest of `out`.
fn write_own<'a>(
    config: &Config,
    vehicles: &Vehicles,
    me: usize,
    on_lane: OnLane,
    out: &'a mut [f32],
) -> &'a mut [f32] {
    let lanes = config.all_lanes();
    put(&mut out[0], on_lane.lateral / on_lane.half_width);
    put(&mut out[1], on_lane.heading_error / FRAC_PI_2);
    put(&mut out[2], vehicles.speed[me] / SPEED);
    put(&mut out[3], vehicles.target_speed[me] / SPEED);
    out[4..4 + lanes].fill(0.0);
    out[4 + on_lane.lane] = 1.0;
    let to_ramp_end = config.ramp_end().map_or(1.0, |end| (end - vehicles.x[me]) / RAMP_RANGE);
    put(&mut out[4 + lanes], to_ramp_end);
    &mut out[5 + lanes..]
}

/// Writes the state of another vehicle relative to `me`.
#[inline]
fn write_other(vehicles: &Vehicles, me: usize, own_velocity: [f64; 2], other: Message, row: &mut [f32]) {
    row[0] = 1.0;
    put(&mut row[1], (other.x - vehicles.x[me]) / RANGE);
    put(&mut row[2], (other.y - vehicles.y[me]) / SIDE_RANGE);
    put(&mut row[3], (other.vx - own_velocity[0]) / SPEED);
    put(&mut row[4], (other.vy - own_velocity[1]) / SPEED);
    put(&mut row[5], other.cos);
    put(&mut row[6], other.sin);
}

/// Writes the observation of vehicle `me`, which sees all others as they are.
pub(super) fn write(config: &Config, vehicles: &Vehicles, me: usize, on_lane: OnLane, out: &mut [f32]) {
    let out = write_own(config, vehicles, me, on_lane, out);
    let places = vehicles.x.iter().zip(&vehicles.y).enumerate();
    let others = places.filter(|&(i, _)| i != me).map(|(i, (&x, &y))| (i, [x, y]));
    let (nearest, seen) = nearest([vehicles.x[me], vehicles.y[me]], others);
    let own_velocity = vehicles.velocity(me);
    for (slot, row) in out.chunks_exact_mut(VEHICLE_LEN).enumerate() {
        if slot >= seen {
            row.fill(0.0);
            continue;
        }
        write_other(vehicles, me, own_velocity, Message::of(vehicles, nearest[slot]), row);
    }
}

/// Writes the observation of vehicle `me`, whose agent has row `row`: it knows of vehicles with a radio what it has
/// received, and sees the others as they are. `numbers`: those of the vehicles, which are those of the stations.
pub(super) fn write_with_links(
    config: &Config,
    vehicles: &Vehicles,
    state: &LinkState,
    numbers: &[u32],
    (row, me): (usize, usize),
    on_lane: OnLane,
    out: &mut [f32],
) {
    let Some(comms) = &config.comms else { unreachable!("links without options") };
    let out = write_own(config, vehicles, me, on_lane, out);
    let entries = state.table().of(row);
    let heard = entries.iter().enumerate().filter(|&(number, entry)| number != row && entry.known);
    let heard = heard.map(|(number, entry)| (number, [entry.message.x, entry.message.y]));
    let stations = state.stations();
    // Vehicles stand in the order of their numbers, those with a radio before those without.
    let without = numbers.partition_point(|&number| (number as usize) < stations);
    // Numbers of places beyond the stations are indices of vehicles without a radio.
    let seen = (without..vehicles.len()).map(|i| (stations + i, [vehicles.x[i], vehicles.y[i]]));
    let (nearest, count) = nearest([vehicles.x[me], vehicles.y[me]], heard.chain(seen));
    let own_velocity = vehicles.velocity(me);
    let (others, sensed) = out.split_at_mut(NEAREST * vehicle_len(config));
    for (slot, row) in others.chunks_exact_mut(vehicle_len(config)).enumerate() {
        if slot >= count {
            row.fill(0.0);
            continue;
        }
        let (message, age) = match nearest[slot] {
            station if station < stations => (entries[station].message, entries[station].age.saturating_sub(1)),
            other => (Message::of(vehicles, other - stations), 0),
        };
        write_other(vehicles, me, own_velocity, message, row);
        put(&mut row[VEHICLE_LEN], f64::from(age) * config.period() / comms.max_age);
    }
    if !sensed.is_empty() {
        state.write_sensed(comms, row, sensed);
    }
}

/// The indices of the nearest places within [`RANGE`], the nearest first, and how many they are.
fn nearest([x, y]: [f64; 2], others: impl Iterator<Item = (usize, [f64; 2])>) -> ([usize; NEAREST], usize) {
    let mut found = [usize::MAX; NEAREST];
    let mut squares = [RANGE * RANGE; NEAREST];
    let mut seen = 0;
    for (i, [other_x, other_y]) in others {
        let (dx, dy) = (other_x - x, other_y - y);
        let square = dx * dx + dy * dy;
        if square >= squares[NEAREST - 1] {
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
