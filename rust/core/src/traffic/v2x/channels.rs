//! Losses between vehicles, and between vehicles and the base station.

use serde::{Deserialize, Serialize};

use super::grid::STATION;
use crate::rng::Rng;

/// GHz.
const FREQUENCY: f64 = 2.0;
/// Heights of the antennas of vehicles and of the base station, metres.
const ANTENNA: f64 = 1.5;
const STATION_ANTENNA: f64 = 25.0;
/// Standard deviations of shadowing, dB.
const SHADOWING: f64 = 3.0;
const STATION_SHADOWING: f64 = 8.0;
/// Vehicles whose places differ by less than this along x or y are in one street, metres.
const STREET: f64 = 7.0;
/// Loss between transmitter and receiver of one vehicle, dB.
const SELF: f64 = 50.0;

/// Path loss along a street, dB.
fn along(d: f64) -> f64 {
    let breakpoint = 4.0 * (ANTENNA - 1.0) * (ANTENNA - 1.0) * FREQUENCY * 1e9 / 3e8;
    let lg = (FREQUENCY / 5.0).log10();
    if d < breakpoint.max(3.0) {
        22.7 * d.max(3.0).log10() + 41.0 + 20.0 * lg
    } else {
        40.0 * d.log10() + 9.45 - 2.0 * 17.3 * ANTENNA.log10() + 2.7 * lg
    }
}

/// Path loss around a corner, `a` metres along one street and `b` along the other, dB.
fn around(a: f64, b: f64) -> f64 {
    let n = (2.8 - 0.0024 * b).max(1.84);
    along(a) + 20.0 - 12.5 * n + 10.0 * n * b.log10() + 3.0 * (FREQUENCY / 5.0).log10()
}

/// Path loss between two vehicles, dB.
pub(super) fn between(a: [f64; 2], b: [f64; 2]) -> f64 {
    let (dx, dy) = ((a[0] - b[0]).abs(), (a[1] - b[1]).abs());
    if dx.min(dy) < STREET { along(dx.hypot(dy) + 0.001) } else { around(dx, dy).min(around(dy, dx)) }
}

/// Path loss between a vehicle and the base station, dB.
pub(super) fn to_station(a: [f64; 2]) -> f64 {
    let flat = (a[0] - STATION[0]).hypot(a[1] - STATION[1]);
    128.1 + 37.6 * (flat.hypot(STATION_ANTENNA - ANTENNA) / 1000.0).log10()
}

/// The losses of all channels, dB. `n` vehicles and blocks.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Channels {
    /// Without fast fading: [from, to], and [from] to the base station.
    pub(super) vehicles: Vec<f64>,
    pub(super) station: Vec<f64>,
    /// With fast fading, in each block: [from, to, block], and [from, block].
    pub(super) fast_vehicles: Vec<f64>,
    pub(super) fast_station: Vec<f64>,
}

impl Channels {
    /// Draws path loss and shadowing of vehicles at these places.
    pub(super) fn draw_slow(&mut self, places: &[[f64; 2]], rng: &mut Rng) {
        let n = places.len();
        self.vehicles.clear();
        self.vehicles.resize(n * n, 0.0);
        for i in 0..n {
            // As in the authors' simulation, which shadows a vehicle from itself too.
            self.vehicles[i * n + i] = SELF + SHADOWING * normals(rng)[0];
            for j in 0..i {
                let loss = between(places[i], places[j]) + SHADOWING * normals(rng)[0];
                self.vehicles[i * n + j] = loss;
                self.vehicles[j * n + i] = loss;
            }
        }
        self.station.clear();
        self.station.extend(places.iter().map(|&place| to_station(place) + STATION_SHADOWING * normals(rng)[0]));
    }

    /// Draws Rayleigh fading of all channels.
    pub(super) fn draw_fast(&mut self, rng: &mut Rng) {
        let n = self.station.len();
        self.fast_vehicles.clear();
        self.fast_station.clear();
        for (slow, fast) in [(&self.vehicles, &mut self.fast_vehicles), (&self.station, &mut self.fast_station)] {
            for &loss in slow {
                fast.extend((0..n).map(|_| {
                    // |h|^2 of a complex normal number is exponential.
                    let power = -(1.0 - rng.unit()).ln();
                    loss - 10.0 * power.max(f64::MIN_POSITIVE).log10()
                }));
            }
        }
    }
}

/// Two standard normal numbers, by Box and Muller.
fn normals(rng: &mut Rng) -> [f64; 2] {
    let radius = (-2.0 * (1.0 - rng.unit()).ln()).sqrt();
    let (sin, cos) = (std::f64::consts::TAU * rng.unit()).sin_cos();
    [radius * cos, radius * sin]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn losses_are_those_of_the_formulas() {
        let lg = 0.4_f64.log10();
        // The breakpoint is at 4 * 0.5 * 0.5 * 2e9 / 3e8 = 6.67 m.
        assert!((between([0.0, 0.0], [0.0, 4.999]) - (22.7 * 5.0_f64.log10() + 41.0 + 20.0 * lg)).abs() < 1e-9);
        let far = 40.0 * 2.0 + 9.45 - 34.6 * 1.5_f64.log10() + 2.7 * lg;
        assert!((between([0.0, 0.0], [0.0, 99.999]) - far).abs() < 1e-9);
        assert!(between([0.0, 0.0], [100.0, 100.0]) > far + 20.0, "around a corner more is lost");
        assert!((to_station(STATION) - (128.1 + 37.6 * (0.0235_f64).log10())).abs() < 1e-9);
    }

    #[test]
    fn fading_has_a_mean_power_of_one() {
        let mut channels = Channels { vehicles: vec![0.0; 16], station: vec![0.0; 4], ..Channels::default() };
        let mut rng = Rng::new(1);
        let mut sum = 0.0;
        for _ in 0..5000 {
            channels.draw_fast(&mut rng);
            sum += channels.fast_vehicles.iter().map(|loss| 10f64.powf(-loss / 10.0)).sum::<f64>() / 64.0;
        }
        assert!((sum / 5000.0 - 1.0).abs() < 0.01, "{}", sum / 5000.0);
    }
}
