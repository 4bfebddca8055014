//! The streets of a city and vehicles in them.

use super::config::GROUP;
use crate::rng::Rng;

/// Half the size of TR 36.885's grid of 3 by 3 blocks, metres.
pub(super) const WIDTH: f64 = 375.0;
pub(super) const HEIGHT: f64 = 649.0;
/// The base station stands in the middle of the whole grid.
pub(super) const STATION: [f64; 2] = [375.0, 649.5];
/// Width of a lane.
pub(super) const LANE: f64 = 1.75;
/// Distances of the streets' first lanes along x and along y.
const STREETS: [[f64; 3]; 2] = [[0.0, 125.0, 250.0], [0.0, 216.5, 433.0]];
const ENDS: [[f64; 3]; 2] = [[125.0, 250.0, 375.0], [216.5, 433.0, 649.5]];

/// Middles of the lanes of one direction: upwards and to the left at the near side of a street (`far` false),
/// downwards and to the right at the far side. `axis` 0: lanes that cross the x axis.
pub(super) fn lanes(axis: usize, far: bool) -> [f64; 6] {
    std::array::from_fn(|i| {
        let aside = LANE * (0.5 + (i % 2) as f64);
        if far { ENDS[axis][i / 2] - 2.0 * LANE + aside } else { STREETS[axis][i / 2] + aside }
    })
}

/// Positions of so many vehicles: of each four one drives down, up, left and right, in lanes of the same number.
pub(super) fn drop_vehicles(vehicles: usize, rng: &mut Rng) -> Vec<[f64; 2]> {
    let mut places = Vec::with_capacity(vehicles);
    for _ in 0..vehicles / GROUP {
        let lane = rng.below(6) as usize;
        for (axis, far) in [(0, true), (0, false), (1, false), (1, true)] {
            let across = lanes(axis, far)[lane];
            places.push(if axis == 0 { [across, HEIGHT * rng.unit()] } else { [WIDTH * rng.unit(), across] });
        }
    }
    places
}
