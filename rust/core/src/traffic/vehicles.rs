//! The vehicles on a road, as arrays of their properties.
//!
//! The index of a vehicle is its place in highway-env's `road.vehicles`: the order of decisions, and the choice between
//! two equally near neighbours, depend on it. Source:
//! `highway_env/vehicle/{objects,kinematics,controller,behavior}.py`.

use serde::{Deserialize, Serialize};

use crate::numpy_random::NumpyRandom;

/// Length of every vehicle, metres.
pub const LENGTH: f64 = 5.0;
/// Width of every vehicle, metres.
pub const WIDTH: f64 = 2.0;
/// Speed beyond which vehicles brake, in either direction, m/s.
pub const MAX_SPEED: f64 = 40.0;

/// The kind of a vehicle's driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Driver {
    /// Speed and lane chosen from outside and held by its own controllers: highway-env's `MDPVehicle`.
    Meta,
    /// Acceleration and steering set from outside: highway-env's `Vehicle`.
    Manual,
    /// The same, with tyres that slip: highway-env's `BicycleVehicle`.
    Dynamic,
    /// `IDMVehicle`.
    Idm,
    /// `LinearVehicle`.
    Linear,
    /// `AggressiveVehicle`.
    Aggressive,
    /// `DefensiveVehicle`.
    Defensive,
}

impl Driver {
    /// Returns whether it chooses its lane and speed by itself.
    #[inline]
    pub fn is_traffic(self) -> bool {
        !matches!(self, Self::Meta | Self::Manual | Self::Dynamic)
    }

    /// Returns whether it follows a target lane and a target speed: highway-env's `ControlledVehicle`.
    #[inline]
    pub fn has_targets(self) -> bool {
        !matches!(self, Self::Manual | Self::Dynamic)
    }
}

/// Weights of the linear drivers (`ACCELERATION_PARAMETERS`, `STEERING_PARAMETERS`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Gains {
    /// Weights of the target speed, the speed of the neighbour in front, and the gap.
    pub acceleration: [f64; 3],
    /// Weights of the heading and the lateral offset.
    pub steering: [f64; 2],
}

impl Gains {
    /// The usual weights of a kind of driver.
    pub fn usual(driver: Driver) -> Self {
        // MERGE_ACC_GAIN, (1 - MERGE_VEL_RATIO) MERGE_TARGET_VEL and MERGE_VEL_RATIO MERGE_TARGET_VEL
        let merging = |gain: f64, gap: f64| [gain / 7.5, gain / 22.5, gap];
        let acceleration = match driver {
            Driver::Aggressive => merging(0.8, 0.5),
            Driver::Defensive => merging(1.2, 2.0),
            _ => [0.3, 0.3, 2.0],
        };
        Self { acceleration, steering: [1.0 / 0.2, 1.0 / 0.2 * (1.0 / 0.6)] }
    }

    /// Random weights (`LinearVehicle.randomize_behavior`): the ranges are those of the plain linear driver for all
    /// kinds, as there.
    pub(super) fn draw(rng: &mut NumpyRandom) -> Self {
        let Self { acceleration, steering: [heading, lateral] } = Self::usual(Driver::Linear);
        let acceleration = acceleration.map(|a| 0.5 * a + rng.random() * (1.5 * a - 0.5 * a));
        let steering = [(heading, 0.07), (lateral, 1.5)]
            .map(|(gain, spread)| gain - spread + rng.random() * (gain + spread - (gain - spread)));
        Self { acceleration, steering }
    }
}

/// A step of a route: a section of a road network, and a lane of it if that is planned, by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    pub section: u32,
    pub lane: Option<u32>,
}

/// One vehicle, to be put on a road by [`super::Traffic::add`].
#[derive(Clone, Debug, PartialEq)]
pub struct Vehicle {
    pub driver: Driver,
    /// Centre, metres.
    pub x: f64,
    pub y: f64,
    /// Radians.
    pub heading: f64,
    /// m/s.
    pub speed: f64,
    /// The closest lane if `None`.
    pub target_lane: Option<usize>,
    /// The present speed if `None`. A `Meta` driver takes the nearest of the road's target speeds.
    pub target_speed: Option<f64>,
    /// Exponent of the IDM's free-road term.
    pub delta: f64,
    /// Seconds since the last decision about changing lanes; derived from the position, as in highway-env, if `None`.
    pub timer: Option<f64>,
    pub gains: Gains,
    /// True if traffic of this kind may change lanes.
    pub changes_lanes: bool,
    /// Two vehicles can collide if this is set for one of them.
    pub checks_collisions: bool,
}

impl Vehicle {
    /// A vehicle as highway-env's constructors make it: present lane and speed as targets, exponent 4, the usual gains.
    pub fn new(driver: Driver, x: f64, y: f64, speed: f64) -> Self {
        Self {
            driver,
            x,
            y,
            heading: 0.0,
            speed,
            target_lane: None,
            target_speed: None,
            delta: 4.0,
            timer: None,
            gains: Gains::usual(driver),
            changes_lanes: true,
            checks_collisions: true,
        }
    }
}

/// All vehicles of a road; every array has one entry a vehicle.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Vehicles {
    pub driver: Vec<Driver>,
    /// Centre, metres.
    pub x: Vec<f64>,
    pub y: Vec<f64>,
    /// Radians. [`Vehicles::turn_to`] sets it together with `cos` and `sin`.
    pub heading: Vec<f64>,
    /// Cosine and sine of the heading.
    pub cos: Vec<f64>,
    pub sin: Vec<f64>,
    /// m/s.
    pub speed: Vec<f64>,
    /// Last command, m/s².
    pub acceleration: Vec<f64>,
    /// Last command as the sine of the slip angle beta = atan(tan(steering) / 2), where vehicles are not computed
    /// exactly; [`Vehicles::steering`] gives the angle.
    pub slip: Vec<f64>,
    /// Last steering command where vehicles are computed exactly ([`RoadMap::EXACT`](super::map::RoadMap::EXACT)),
    /// radians.
    pub angle: Vec<f64>,
    /// The closest lane.
    pub lane: Vec<usize>,
    pub target_lane: Vec<usize>,
    /// m/s.
    pub target_speed: Vec<f64>,
    /// Index of the target speed that a `Meta` driver holds.
    pub speed_index: Vec<usize>,
    /// Exponent of the IDM's free-road term.
    pub delta: Vec<f64>,
    /// Seconds since the last decision about changing lanes.
    pub timer: Vec<f64>,
    pub crashed: Vec<bool>,
    /// Shift by a collision in the next frame, metres.
    pub impact: Vec<Option<[f64; 2]>>,
    pub gains: Vec<Gains>,
    pub changes_lanes: Vec<bool>,
    pub checks_collisions: Vec<bool>,
    /// m/s.
    pub min_speed: Vec<f64>,
    pub max_speed: Vec<f64>,
    /// The planned way; empty without a plan.
    pub route: Vec<Vec<Step>>,
    /// True for those that stop because others have the right of way.
    pub yields: Vec<bool>,
    /// Speed to the side (m/s) and turning rate (rad/s) of `Dynamic` drivers.
    pub slide: Vec<[f64; 2]>,
    /// The lane across a junction that it may enter, where junctions have rules.
    pub permit: Vec<Option<u32>>,
    /// True if there may be `Dynamic` drivers.
    pub(super) some_slide: bool,
}

/// Calls a method of every array: `each!(vehicles, clear())`.
macro_rules! each {
    ($vehicles:expr, $method:ident $arguments:tt) => {
        each!($vehicles, $method $arguments:
            driver x y heading cos sin speed acceleration slip angle lane target_lane target_speed speed_index delta timer
            crashed impact gains changes_lanes checks_collisions min_speed max_speed route yields slide
            permit)
    };
    ($vehicles:expr, $method:ident $arguments:tt: $($array:ident)*) => {{
        $( $vehicles.$array.$method $arguments; )*
    }};
}

impl Vehicles {
    #[inline]
    pub fn len(&self) -> usize {
        self.x.len()
    }

    pub fn is_empty(&self) -> bool {
        self.x.is_empty()
    }

    pub(super) fn reserve(&mut self, vehicles: usize) {
        each!(self, reserve_exact(vehicles));
    }

    pub fn clear(&mut self) {
        each!(self, clear());
        self.some_slide = false;
    }

    /// Removes vehicle `i`; the indices of later ones decrease by one.
    pub fn remove(&mut self, i: usize) {
        each!(self, remove(i));
    }

    /// Sets the heading of vehicle `i`, radians.
    pub fn turn_to(&mut self, i: usize, heading: f64) {
        self.heading[i] = heading;
        (self.sin[i], self.cos[i]) = heading.sin_cos();
    }

    /// Last steering command of vehicle `i`, radians.
    pub fn steering(&self, i: usize) -> f64 {
        (2.0 * self.slip[i].asin().tan()).atan()
    }

    /// (vx, vy) of vehicle `i` as highway-env gives it, slip left out, m/s.
    #[inline]
    pub fn velocity(&self, i: usize) -> [f64; 2] {
        [self.speed[i] * self.cos[i], self.speed[i] * self.sin[i]]
    }

    /// Puts a vehicle, whose targets are decided, at the end.
    pub(super) fn push(&mut self, vehicle: &Vehicle, lane: usize, target_speed: f64, speed_index: usize) {
        let (sin, cos) = vehicle.heading.sin_cos();
        self.driver.push(vehicle.driver);
        self.x.push(vehicle.x);
        self.y.push(vehicle.y);
        self.heading.push(vehicle.heading);
        self.cos.push(cos);
        self.sin.push(sin);
        self.speed.push(vehicle.speed);
        self.acceleration.push(0.0);
        self.slip.push(0.0);
        self.angle.push(0.0);
        self.lane.push(lane);
        self.target_lane.push(vehicle.target_lane.unwrap_or(lane));
        self.target_speed.push(target_speed);
        self.speed_index.push(speed_index);
        self.delta.push(vehicle.delta);
        let by_place = || ((vehicle.x + vehicle.y) * std::f64::consts::PI).rem_euclid(1.0);
        self.timer.push(vehicle.timer.unwrap_or_else(by_place));
        self.crashed.push(false);
        self.impact.push(None);
        self.gains.push(vehicle.gains);
        self.changes_lanes.push(vehicle.changes_lanes);
        self.checks_collisions.push(vehicle.checks_collisions);
        self.min_speed.push(-MAX_SPEED);
        self.max_speed.push(MAX_SPEED);
        self.route.push(Vec::new());
        self.yields.push(false);
        self.slide.push([0.0; 2]);
        self.permit.push(None);
        self.some_slide |= vehicle.driver == Driver::Dynamic;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vehicle_comes_and_goes_with_all_its_properties() {
        let mut vehicles = Vehicles::default();
        for x in [1.0, 2.0, 3.0] {
            vehicles.push(&Vehicle::new(Driver::Idm, x, 4.0, 20.0), 1, 20.0, 0);
        }
        let mut two = Vehicles::default();
        for x in [1.0, 3.0] {
            two.push(&Vehicle::new(Driver::Idm, x, 4.0, 20.0), 1, 20.0, 0);
        }
        vehicles.remove(1);
        assert_eq!(vehicles, two);
        vehicles.clear();
        assert_eq!(vehicles, Vehicles::default());
    }
}
