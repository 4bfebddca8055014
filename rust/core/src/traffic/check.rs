//! Memory that traffic takes, and checks of traffic that was decoded from bytes.

use super::lane::Lane;
use super::map::RoadMap;
use super::obstacle::Landmark;
use super::vehicles::{Driver, Gains, Step, Vehicles};
use super::{Placed, Scratch, Traffic};
use crate::env::ensure;
use crate::memory::arrays;

/// Bytes of a vehicle in [`Vehicles`], and the arrays that it is in.
const VEHICLE: usize = size_of::<Driver>()
    + 14 * size_of::<f64>()
    + 3 * size_of::<usize>()
    + 4 * size_of::<bool>()
    + size_of::<Vec<Step>>()
    + size_of::<[f64; 2]>()
    + size_of::<Option<[f64; 2]>>()
    + size_of::<Option<u32>>()
    + size_of::<Gains>();
const VEHICLE_ARRAYS: usize = 27;
/// Bytes of a vehicle in [`Scratch`].
const SCRATCH: usize = 11 * size_of::<f64>() + 3 * size_of::<u32>() + size_of::<(u32, u32)>() + 2 * size_of::<Placed>();
const SCRATCH_ARRAYS: usize = 17;

impl Scratch {
    fn reserve(&mut self, vehicles: usize, lanes: usize) {
        self.fit(vehicles);
        self.order.reserve(vehicles, lanes);
        self.pairs.reserve_exact(vehicles);
    }
}

impl<M: RoadMap> Traffic<M> {
    /// Makes room for so many vehicles.
    pub fn reserve(&mut self, vehicles: usize) {
        self.vehicles.reserve(vehicles);
        self.scratch.reserve(vehicles, self.road.lanes().len());
    }

    /// Bytes that so many vehicles take on its road, and the road.
    pub(super) fn memory(&self, vehicles: usize) -> usize {
        let road = self.road.lanes().len() * (size_of::<Lane<M::Shape>>() + size_of::<u32>());
        let speeds = self.target_speeds.len() * size_of::<f64>();
        arrays(VEHICLE_ARRAYS + SCRATCH_ARRAYS + 3, vehicles.saturating_mul(VEHICLE + SCRATCH) + road + speeds)
    }

    /// Bytes that it has when it is saved with so many vehicles, at most: small numbers take less than in memory, large
    /// ones up to a quarter more.
    pub(super) fn most_saved(&self, vehicles: usize) -> usize {
        self.memory(vehicles).saturating_mul(2)
    }

    /// Refuses decoded values that do not fit the road of `own`; the error says why.
    pub(super) fn check(&self, own: &Self) -> Result<(), String> {
        ensure(self.road == own.road && self.target_speeds == own.target_speeds, "the road is another one")?;
        ensure(
            self.vehicles.route.iter().all(|route| self.road.has_route(route)),
            "a vehicle plans to drive on a road that is not there",
        )?;
        let of_landmark = |Landmark { body: o, direction: [cos, sin], .. }: &Landmark| {
            [o.x, o.y, o.heading, o.length, o.width, *cos, *sin]
        };
        ensure(
            self.landmarks.iter().flat_map(of_landmark).all(f64::is_finite),
            "a landmark has a number that is not finite",
        )?;
        self.vehicles.check(self.road.lanes().len(), self.target_speeds.len())
    }
}

impl Vehicles {
    fn check(&self, lanes: usize, speeds: usize) -> Result<(), String> {
        let n = self.len();
        let Self {
            driver,
            x,
            y,
            heading,
            cos,
            sin,
            speed,
            acceleration,
            slip,
            angle,
            lane,
            target_lane,
            target_speed,
            speed_index,
            delta,
            timer,
            crashed,
            impact,
            gains,
            changes_lanes,
            checks_collisions,
            min_speed,
            max_speed,
            route,
            yields,
            slide,
            permit,
            some_slide: _,
        } = self;
        let numbers = [
            x,
            y,
            heading,
            cos,
            sin,
            speed,
            acceleration,
            slip,
            angle,
            target_speed,
            delta,
            timer,
            min_speed,
            max_speed,
        ];
        let indices = [lane, target_lane, speed_index];
        let flags = [crashed, changes_lanes, checks_collisions, yields];
        let same_length = numbers.iter().all(|array| array.len() == n)
            && indices.iter().all(|array| array.len() == n)
            && flags.iter().all(|array| array.len() == n)
            && [driver.len(), impact.len(), gains.len(), route.len(), slide.len(), permit.len()] == [n; 6];
        ensure(same_length, "the properties of vehicles are not as many as the vehicles")?;
        ensure(lane.iter().chain(target_lane).all(|&lane| lane < lanes), "a vehicle is on a lane that is not there")?;
        ensure(speed_index.iter().all(|&index| index < speeds), "a vehicle aims at a speed that is not there")?;
        let of_gains = gains.iter().flat_map(|gains| gains.acceleration.into_iter().chain(gains.steering));
        let finite = numbers
            .into_iter()
            .flatten()
            .copied()
            .chain(of_gains)
            .chain(impact.iter().flatten().chain(slide).copied().flatten());
        ensure(finite.into_iter().all(f64::is_finite), "a property of a vehicle is not a finite number")
    }
}
