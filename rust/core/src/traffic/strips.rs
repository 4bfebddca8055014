//! Vehicles in strips along x, to find those that are near each other where roads lead in all directions: on roads along
//! y many have nearly the same x.

use super::vehicles::Vehicles;

/// Strips are a multiple of this wide, metres: they stay the same while the fastest speed changes a little.
const UNIT: f64 = 8.0;

/// The vehicles strip by strip, in each from the smallest x on.
#[derive(Clone, Debug, Default)]
pub(super) struct Strips {
    /// Number of the strip, x and vehicle.
    rows: Vec<(i64, f64, u32)>,
}

impl Strips {
    /// Puts the vehicles in order. Those within `reach` metres of each other are in one strip or in two side by side.
    pub(super) fn sort(&mut self, vehicles: &Vehicles, reach: f64) {
        let width = UNIT * (reach / UNIT).ceil().max(1.0);
        let row = |i: u32| ((vehicles.y[i as usize] / width).floor() as i64, vehicles.x[i as usize], i);
        if self.rows.len() == vehicles.len() {
            // In nearly the order of the last frame.
            self.rows.iter_mut().for_each(|old| *old = row(old.2));
        } else {
            self.rows.clear();
            self.rows.extend((0..vehicles.len() as u32).map(row));
        }
        self.rows.sort_by(|a, b| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1)));
    }

    /// Calls `visit` with every two vehicles in one strip or in two side by side whose x differ by at most `reach`.
    pub(super) fn visit_pairs(&self, reach: f64, mut visit: impl FnMut(u32, u32)) {
        let rows = &self.rows[..];
        let mut beside = 0;
        for (k, &(strip, x, i)) in rows.iter().enumerate() {
            let next = strip.saturating_add(1);
            while rows.get(beside).is_some_and(|&(other, at, _)| other < next || (other == next && x - at > reach)) {
                beside += 1;
            }
            for (rest, wanted) in [(&rows[k + 1..], strip), (&rows[beside..], next)] {
                let near = rest.iter().take_while(|&&(other, at, _)| other == wanted && at - x <= reach);
                near.for_each(|&(.., j)| visit(i, j));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::traffic::vehicles::{Driver, Vehicle};
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, cases: 500, ..ProptestConfig::default() })]

        #[test]
        fn all_that_are_near_are_visited_once(
            places in prop::collection::vec((-40i32..40, -40i32..40), 0..40),
            moves in prop::collection::vec((-40i32..40, -40i32..40), 0..40),
            reach in 1.0f64..20.0,
        ) {
            let mut strips = Strips::default();
            for places in [&places, &moves, &places] {
                let mut vehicles = Vehicles::default();
                for &(x, y) in places {
                    vehicles.push(&Vehicle::new(Driver::Idm, f64::from(x), f64::from(y), 10.0), 0, 10.0, 0);
                }
                strips.sort(&vehicles, reach);
                let mut found = Vec::new();
                strips.visit_pairs(reach, |a, b| found.push((a.min(b), a.max(b))));
                found.sort_unstable();
                let n = found.len();
                found.dedup();
                prop_assert_eq!(n, found.len());
                for j in 0..places.len() {
                    for i in 0..j {
                        let (dx, dy) = (vehicles.x[i] - vehicles.x[j], vehicles.y[i] - vehicles.y[j]);
                        let is_found = found.binary_search(&(i as u32, j as u32)).is_ok();
                        prop_assert!(dx.hypot(dy) > reach || is_found, "{i} and {j}");
                    }
                }
            }
        }
    }
}
