//! Observations of the traffic around an agent's vehicle.
//!
//! Source: `highway_env/envs/common/observation.py`, `highway_env/vehicle/kinematics.py` (`Vehicle.to_dict`).

mod attributes;
mod goal;
mod grayscale;
mod kinematics;
mod lidar;
mod occupancy_grid;
mod time_to_collision;

pub use attributes::{Attribute, Attributes, Clock};
pub use goal::Goal;
pub use grayscale::Grayscale;
pub use kinematics::Kinematics;
pub use lidar::Lidar;
pub use occupancy_grid::{Layer, OccupancyGrid};
pub use time_to_collision::TimeToCollision;

use super::Traffic;
use super::links::table::Message;
use super::map::RoadMap;
use super::math::wrap_to_pi;
use super::obstacle::Obstacle;
use crate::env::Real;
use crate::numpy_random::NumpyRandom;

/// One property of a vehicle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Feature {
    /// 1 where there is a vehicle.
    Presence,
    /// Centre, metres.
    X,
    Y,
    /// m/s.
    Vx,
    Vy,
    /// Radians.
    Heading,
    CosH,
    SinH,
    /// Direction to the end of its route; 0 without a route.
    CosD,
    SinD,
    /// Place on its own lane, metres, and angle to it, radians.
    LongOff,
    LatOff,
    AngOff,
    /// Age of what is known of it, as a share of the age at which it is forgotten; only of vehicles with a radio.
    Age,
}

impl Feature {
    /// Those of highway-env, in the order of `NAMES`.
    pub const ALL: [Self; 13] = [
        Self::Presence,
        Self::X,
        Self::Y,
        Self::Vx,
        Self::Vy,
        Self::Heading,
        Self::CosH,
        Self::SinH,
        Self::CosD,
        Self::SinD,
        Self::LongOff,
        Self::LatOff,
        Self::AngOff,
    ];
    /// highway-env's names.
    pub const NAMES: [&str; 13] = [
        "presence", "x", "y", "vx", "vy", "heading", "cos_h", "sin_h", "cos_d", "sin_d", "long_off", "lat_off",
        "ang_off",
    ];

    /// The feature of vehicle `i`; position and speed relative to vehicle `origin`, if there is one.
    fn of<M: RoadMap>(self, traffic: &Traffic<M>, i: usize, origin: Option<usize>) -> f64 {
        let v = &traffic.vehicles;
        let relative = |value: f64, of: &dyn Fn(usize) -> f64| origin.map_or(value, |o| value - of(o));
        let on_lane = || traffic.road.lane(v.lane[i]).local(v.x[i], v.y[i]);
        match self {
            Self::Presence => 1.0,
            Self::X => relative(v.x[i], &|o| v.x[o]),
            Self::Y => relative(v.y[i], &|o| v.y[o]),
            Self::Vx => relative(v.velocity(i)[0], &|o| v.velocity(o)[0]),
            Self::Vy => relative(v.velocity(i)[1], &|o| v.velocity(o)[1]),
            Self::Heading => v.heading[i],
            Self::CosH => v.cos[i],
            Self::SinH => v.sin[i],
            Self::CosD => towards_destination(traffic, i)[0],
            Self::SinD => towards_destination(traffic, i)[1],
            Self::LongOff => on_lane().0,
            Self::LatOff => on_lane().1,
            Self::AngOff => wrap_to_pi(v.heading[i] - traffic.road.lane(v.lane[i]).heading_at(on_lane().0)),
            Self::Age => 0.0,
        }
    }
    /// The feature of an obstacle, which has no place on a lane: highway-env shows NaN there.
    fn of_object<M: RoadMap>(self, traffic: &Traffic<M>, object: &Obstacle, origin: Option<usize>) -> f64 {
        if matches!(self, Self::Heading | Self::LongOff | Self::LatOff | Self::AngOff) {
            return f64::NAN;
        }
        let (sin, cos) = (object.heading.sin(), object.heading.cos());
        self.of_state(traffic, Message { x: object.x, y: object.y, vx: 0.0, vy: 0.0, cos, sin }, 0.0, origin)
    }

    /// The feature of what was heard of a vehicle, whose destination is not known. `age`: see [`Self::Age`].
    fn of_state<M: RoadMap>(self, traffic: &Traffic<M>, state: Message, age: f64, origin: Option<usize>) -> f64 {
        let v = &traffic.vehicles;
        let relative = |value: f64, of: &dyn Fn(usize) -> f64| origin.map_or(value, |o| value - of(o));
        let heading = || state.sin.atan2(state.cos);
        let on_lane = || {
            let lane = traffic.road.lane(traffic.road.closest_lane(state.x, state.y, heading()));
            let (longitudinal, lateral) = lane.local(state.x, state.y);
            [longitudinal, lateral, wrap_to_pi(heading() - lane.heading_at(longitudinal))]
        };
        match self {
            Self::Presence => 1.0,
            Self::X => relative(state.x, &|o| v.x[o]),
            Self::Y => relative(state.y, &|o| v.y[o]),
            Self::Vx => relative(state.vx, &|o| v.velocity(o)[0]),
            Self::Vy => relative(state.vy, &|o| v.velocity(o)[1]),
            Self::Heading => heading(),
            Self::CosH => state.cos,
            Self::SinH => state.sin,
            Self::CosD | Self::SinD => 0.0,
            Self::LongOff => on_lane()[0],
            Self::LatOff => on_lane()[1],
            Self::AngOff => on_lane()[2],
            Self::Age => age,
        }
    }
}

/// The knowledge of an observer about a vehicle with a radio, of which it sees nothing.
#[derive(Clone, Copy, Debug)]
pub struct Heard {
    pub vehicle: usize,
    /// The last state that was heard, and its [`Feature::Age`]; `None`: nothing is known.
    pub state: Option<(Message, f64)>,
}

/// The direction to the end of a vehicle's route (`destination_direction`).
fn towards_destination<M: RoadMap>(traffic: &Traffic<M>, i: usize) -> [f64; 2] {
    let v = &traffic.vehicles;
    let Some([x, y]) = traffic.road.destination(v.lane[i], &v.route[i]) else { return [0.0; 2] };
    let (dx, dy) = (x - v.x[i], y - v.y[i]);
    let far = (dx * dx + dy * dy).sqrt();
    if far == 0.0 { [0.0; 2] } else { [dx / far, dy / far] }
}

/// The limits of a feature that are mapped to -1 and 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limits {
    pub low: f64,
    pub high: f64,
}

impl Limits {
    fn scale(self, value: f64) -> f64 {
        -1.0 + (value - self.low) * 2.0 / (self.high - self.low)
    }

    fn unscale(self, value: f64) -> f64 {
        self.low + (value + 1.0) * (self.high - self.low) / 2.0
    }
}

/// A feature with the limits that it is scaled by, if it is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Column {
    pub feature: Feature,
    pub limits: Option<Limits>,
}

impl Column {
    fn of<M: RoadMap>(self, traffic: &Traffic<M>, i: usize, origin: Option<usize>) -> f64 {
        let value = self.feature.of(traffic, i, origin);
        self.limits.map_or(value, |limits| limits.scale(value))
    }
}

/// A kind of observation with its options.
#[derive(Clone, Debug, PartialEq)]
pub enum Observation {
    Kinematics(Kinematics),
    TimeToCollision(TimeToCollision),
    OccupancyGrid(OccupancyGrid),
    Goal(Goal),
    Attributes(Attributes),
    Lidar(Lidar),
    Grayscale(Grayscale),
    /// Several side by side (`TupleObservation`).
    Tuple(Vec<Self>),
}

impl Observation {
    /// Number of values.
    pub fn len(&self) -> usize {
        match self {
            Self::Kinematics(o) => o.len(),
            Self::TimeToCollision(o) => o.len(),
            Self::OccupancyGrid(o) => o.len(),
            Self::Goal(o) => o.len(),
            Self::Attributes(o) => o.len(),
            Self::Lidar(o) => o.len(),
            Self::Grayscale(o) => o.len(),
            Self::Tuple(parts) => parts.iter().map(Self::len).sum(),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Draws what is random of the next observation: the order of the rows of others, to be kept for `write`.
    pub fn draw(&self, rng: &mut NumpyRandom, order: &mut Vec<u32>) {
        match self {
            Self::Kinematics(o) => o.draw(rng, order),
            Self::Tuple(parts) => {
                let mut all = Vec::new();
                for part in parts {
                    order.clear();
                    part.draw(rng, order);
                    all.extend_from_slice(order);
                }
                *order = all;
            }
            _ => {}
        }
    }

    /// Number of indices that `draw` leaves.
    fn order_len(&self) -> usize {
        match self {
            Self::Kinematics(o) => o.order_len(),
            Self::Tuple(parts) => parts.iter().map(Self::order_len).sum(),
            _ => 0,
        }
    }

    /// Returns whether `write` goes on from the last observation of the episode, at first from zeros, which `out` has to
    /// have then.
    pub fn remembers(&self) -> bool {
        match self {
            Self::Grayscale(_) => true,
            Self::Tuple(parts) => parts.iter().any(Self::remembers),
            _ => false,
        }
    }

    /// Returns whether `order` is what `draw` leaves, if it was called at all.
    pub fn takes_order(&self, order: &[u32], drawn: bool) -> bool {
        match self {
            Self::Kinematics(o) => o.takes_order(order, drawn),
            Self::Tuple(parts) if order.len() == if drawn { self.order_len() } else { 0 } => {
                let mut rest = order;
                parts.iter().all(|part| {
                    let (own, others) = rest.split_at(if drawn { part.order_len() } else { 0 });
                    rest = others;
                    part.takes_order(own, drawn)
                })
            }
            _ => order.is_empty(),
        }
    }

    /// Writes what vehicle `observer` sees; `order` is what `draw` left. `heard`: of vehicles with a radio, only in
    /// tables.
    pub fn write<M: RoadMap>(
        &self,
        traffic: &Traffic<M>,
        observer: usize,
        order: &[u32],
        heard: &[Heard],
        out: &mut [f32],
    ) {
        match self {
            Self::Kinematics(o) => o.write(traffic, observer, order, heard, out),
            Self::TimeToCollision(o) => o.write(traffic, observer, out),
            Self::OccupancyGrid(o) => o.write(traffic, observer, out),
            Self::Goal(o) => o.write(traffic, observer, out),
            // The traffic knows no clock: [`Observation::write_double`] has one.
            Self::Attributes(_) => out.fill(0.0),
            Self::Lidar(o) => o.write(traffic, observer, out),
            Self::Grayscale(o) => o.write(traffic, observer, out),
            Self::Tuple(parts) => {
                let (mut orders, mut out) = (order, out);
                for part in parts {
                    let (order, other_orders) = orders.split_at(part.order_len());
                    let (own, others) = out.split_at_mut(part.len());
                    part.write(traffic, observer, order, heard, own);
                    (orders, out) = (other_orders, others);
                }
            }
        }
    }

    /// The same in the precision of `out`, for the kinds that are double in highway-env. False: this kind is not, and
    /// nothing was written.
    pub fn write_double<M: RoadMap, R: Real>(
        &self,
        traffic: &Traffic<M>,
        observer: usize,
        clock: Clock,
        out: &mut [R],
    ) -> bool {
        match self {
            Self::Goal(o) => o.write(traffic, observer, out),
            Self::Attributes(o) => o.write(traffic, observer, clock, out),
            _ => return false,
        }
        true
    }

    /// Adds the errors of a look to what `write_double` wrote.
    pub fn disturb(&self, rng: &mut NumpyRandom, out: &mut [f64]) {
        if let Self::Attributes(o) = self {
            o.disturb(rng, out);
        }
    }

    /// Returns whether `write_double` writes this kind.
    pub fn is_double(&self) -> bool {
        matches!(self, Self::Goal(_) | Self::Attributes(_))
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::traffic::road::Road;
    use crate::traffic::vehicles::{Driver, Vehicle};

    /// Three lanes with an observer, vehicle 0, at x = 100 on the middle one; others by (x, lane, speed).
    pub(crate) fn traffic(others: &[(f64, usize, f64)]) -> Traffic {
        let mut traffic = Traffic::new(Road::straight(3, 10_000.0, 30.0), vec![20.0, 25.0, 30.0]);
        traffic.add(&Vehicle::new(Driver::Meta, 100.0, 4.0, 25.0));
        for &(x, lane, speed) in others {
            traffic.add(&Vehicle::new(Driver::Idm, x, lane as f64 * 4.0, speed));
        }
        traffic
    }

    pub(crate) fn column(name: &str, limits: Option<(f64, f64)>) -> Column {
        let place = Feature::NAMES.iter().position(|n| *n == name).unwrap();
        Column { feature: Feature::ALL[place], limits: limits.map(|(low, high)| Limits { low, high }) }
    }

    #[test]
    fn features_have_their_meaning() {
        let mut traffic = traffic(&[(130.0, 2, 20.0)]);
        traffic.vehicles.turn_to(1, 0.5);
        traffic.vehicles.y[1] = 9.0;
        let all = Feature::ALL.map(|feature| feature.of(&traffic, 1, Some(0)));
        let (sin, cos) = 0.5f64.sin_cos();
        let expected = [1.0, 30.0, 5.0, 20.0 * cos - 25.0, 20.0 * sin, 0.5, cos, sin, 0.0, 0.0, 130.0, 1.0, 0.5];
        for (name, (value, expected)) in Feature::NAMES.iter().zip(all.iter().zip(expected)) {
            assert!((value - expected).abs() < 1e-12, "{name}: {value}");
        }
        assert_eq!(Feature::X.of(&traffic, 1, None), 130.0);
    }

    #[test]
    fn limits_map_to_one() {
        let limits = Limits { low: 10.0, high: 30.0 };
        assert_eq!([10.0, 20.0, 30.0].map(|v| limits.scale(v)), [-1.0, 0.0, 1.0]);
        assert_eq!(limits.unscale(0.5), 25.0);
    }
}
