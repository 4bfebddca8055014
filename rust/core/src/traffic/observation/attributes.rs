//! Numbers of the environment itself (`AttributesObservation`).

use crate::env::Real;

/// The attributes of highway-env's environments that are numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attribute {
    /// Seconds since the episode began.
    Time,
    /// Frames since then.
    Steps,
}

impl Attribute {
    /// highway-env's names, and the attributes.
    pub const ALL: [(&str, Self); 2] = [("time", Self::Time), ("steps", Self::Steps)];
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
pub struct Attributes(pub Vec<Attribute>);

impl Attributes {
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn write<R: Real>(&self, clock: Clock, out: &mut [R]) {
        for (attribute, out) in self.0.iter().zip(out) {
            *out = R::from_f64(match attribute {
                Attribute::Time => clock.time,
                Attribute::Steps => clock.frames as f64,
            });
        }
    }
}
