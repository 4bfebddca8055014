//! Numbers of the environment itself (`AttributesObservation`).

use crate::env::Real;
use crate::numpy_random::NumpyRandom;
use crate::traffic::Traffic;
use crate::traffic::map::RoadMap;

/// The attributes of highway-env's environments that are numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attribute {
    /// Seconds since the episode began.
    Time,
    /// Frames since then.
    Steps,
    /// y (m), heading (rad), speed to the side (m/s) and turning rate (rad/s) of the observer's vehicle.
    State,
    /// Their derivatives.
    Derivative,
    /// The y and the heading of the middle of the target lane, and two zeros.
    Reference,
}

impl Attribute {
    /// highway-env's names, and the attributes.
    pub const ALL: [(&str, Self); 5] = [
        ("time", Self::Time),
        ("steps", Self::Steps),
        ("state", Self::State),
        ("derivative", Self::Derivative),
        ("reference_state", Self::Reference),
    ];

    fn len(self) -> usize {
        if matches!(self, Self::Time | Self::Steps) { 1 } else { 4 }
    }

    /// Its numbers, [`Attribute::len`] of them, then zeros.
    fn of<M: RoadMap>(self, traffic: &Traffic<M>, i: usize, clock: Clock) -> [f64; 4] {
        // x and the speed ahead are left out.
        let lateral = |[_, y, heading, _, side, rate]: [f64; 6]| [y, heading, side, rate];
        match self {
            Self::Time => [clock.time, 0.0, 0.0, 0.0],
            Self::Steps => [clock.frames as f64, 0.0, 0.0, 0.0],
            Self::State => lateral(traffic.vehicles.bicycle(i)),
            Self::Derivative => lateral(traffic.vehicles.bicycle_derivative(i, M::EXACT)),
            Self::Reference => {
                let v = &traffic.vehicles;
                let lane = traffic.road.lane(v.target_lane[i]);
                let (along, lateral) = lane.local(v.x[i], v.y[i]);
                [v.y[i] - lateral, lane.heading_at(along), 0.0, 0.0]
            }
        }
    }
}

/// The time of an episode.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    /// Seconds.
    pub time: f64,
    pub frames: u64,
}

/// Attributes side by side.
#[derive(Clone, Debug, PartialEq)]
pub struct Attributes {
    pub shown: Vec<Attribute>,
    /// Those that are measured with errors, in the order of their draws, and the largest error of each.
    pub noise: Vec<(Attribute, f64)>,
}

impl Attributes {
    pub(super) fn len(&self) -> usize {
        self.shown.iter().map(|attribute| attribute.len()).sum()
    }

    pub(super) fn write<M: RoadMap, R: Real>(&self, traffic: &Traffic<M>, i: usize, clock: Clock, out: &mut [R]) {
        let numbers =
            self.shown.iter().flat_map(|attribute| attribute.of(traffic, i, clock).into_iter().take(attribute.len()));
        out.iter_mut().zip(numbers).for_each(|(out, number)| *out = R::from_f64(number));
    }

    /// Adds the errors of a look to what [`Attributes::write`] wrote.
    pub(super) fn disturb(&self, rng: &mut NumpyRandom, out: &mut [f64]) {
        for &(noisy, most) in &self.noise {
            let mut start = 0;
            for attribute in &self.shown {
                if *attribute == noisy {
                    out[start..start + attribute.len()].iter_mut().for_each(|x| *x += rng.uniform(-most, most));
                }
                start += attribute.len();
            }
        }
    }
}
