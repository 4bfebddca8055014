//! Vehicles in one lane, one behind the other, on a ring or on an open road.

use serde::{Deserialize, Serialize};

use super::sumo_idm::Driver;
use crate::env::ensure;

/// Positions and speeds. A step is [`Platoon::plan`], then whatever changes the planned speeds, then
/// [`Platoon::advance`].
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Platoon {
    /// Circumference, m; none on an open road, where the last vehicle has no leader.
    ring: Option<f64>,
    /// Fronts along the road, m, ascending: vehicle i follows vehicle i + 1. On a ring the last follows the first,
    /// which is less than one lap ahead of it, and all are counted down by a lap when the first has done one.
    x: Vec<f64>,
    /// m/s.
    v: Vec<f64>,
    /// Accelerations of the last step, m/s^2.
    acceleration: Vec<f64>,
    /// Planned speeds, m/s.
    #[serde(skip)]
    next: Vec<f64>,
}

impl Platoon {
    /// Refuses vehicles that are out of order, overlap, or are no finite numbers.
    pub fn new(ring: Option<f64>, x: Vec<f64>, v: Vec<f64>, vehicle_length: f64) -> Result<Self, String> {
        let n = x.len();
        if n == 0 || v.len() != n {
            return Err(format!("expected as many speeds as positions, at least one, got {} and {n}", v.len()));
        }
        if let Some(length) = ring
            && !(length.is_finite() && length > 0.0)
        {
            return Err(format!("ring_length: expected a positive number of metres, got {length}"));
        }
        if let Some(i) = (0..n).find(|&i| !x[i].is_finite()) {
            return Err(format!("positions: expected numbers, got {} at {i}", x[i]));
        }
        if let Some(i) = (0..n).find(|&i| !(v[i].is_finite() && v[i] >= 0.0)) {
            return Err(format!("speeds: expected numbers from 0, got {} at {i}", v[i]));
        }
        let platoon = Self { ring, x, v, acceleration: vec![0.0; n], next: vec![0.0; n] };
        if let Some(i) = (0..n).find(|&i| platoon.gap(i, vehicle_length) < 0.0) {
            return Err(format!(
                "positions: expected ascending ones, each at least a vehicle's length ({vehicle_length} m) behind the \
                 next{}, got {} at {i} and {} ahead of it",
                if ring.is_some() { ", the last behind the first's next lap" } else { "" },
                platoon.x[i],
                platoon.x[platoon.leader(i)],
            ));
        }
        Ok(platoon)
    }

    /// Refuses a decoded platoon that is no ring of so many vehicles; the error says why.
    pub(super) fn check(&self, vehicles: usize) -> Result<(), String> {
        let arrays = [&self.x, &self.v, &self.acceleration];
        ensure(
            arrays.iter().all(|array| array.len() == vehicles),
            "there are more or fewer vehicles than in an episode",
        )?;
        ensure(self.ring.is_some_and(|ring| ring.is_finite() && ring > 0.0), "the ring has no length")?;
        let finite = arrays.into_iter().flatten().all(|x| x.is_finite());
        ensure(finite && self.v.iter().all(|v| *v >= 0.0), "a position is not finite, or a vehicle drives backwards")
    }

    pub fn len(&self) -> usize {
        self.x.len()
    }

    pub fn is_empty(&self) -> bool {
        self.x.is_empty()
    }

    /// Circumference of the ring, m.
    pub fn ring(&self) -> Option<f64> {
        self.ring
    }

    /// Fronts, m; on a ring they may be up to two laps.
    pub fn x(&self) -> &[f64] {
        &self.x
    }

    pub fn v(&self) -> &[f64] {
        &self.v
    }

    pub fn acceleration(&self) -> &[f64] {
        &self.acceleration
    }

    pub fn mean_speed(&self) -> f64 {
        self.v.iter().sum::<f64>() / self.v.len() as f64
    }

    /// Index of the vehicle that vehicle `i` follows; on an open road the last follows itself.
    #[inline]
    pub fn leader(&self, i: usize) -> usize {
        match self.ring {
            Some(_) if i + 1 == self.x.len() => 0,
            None if i + 1 == self.x.len() => i,
            _ => i + 1,
        }
    }

    /// Distance from the front of vehicle `i` to that of its leader, m; infinite without one.
    #[inline]
    pub fn distance(&self, i: usize) -> f64 {
        if i + 1 < self.x.len() {
            return self.x[i + 1] - self.x[i];
        }
        self.ring.map_or(f64::INFINITY, |ring| self.x[0] + ring - self.x[i])
    }

    /// Gap from the front of vehicle `i` to the rear of its leader, m.
    #[inline]
    pub fn gap(&self, i: usize, vehicle_length: f64) -> f64 {
        self.distance(i) - vehicle_length
    }

    /// The smallest gap, m: below 0 two vehicles have run into each other.
    pub fn smallest_gap(&self, vehicle_length: f64) -> f64 {
        let last = self.x.len() - 1;
        let pairs = self.x[..last].iter().zip(&self.x[1..]);
        pairs.map(|(x, lead)| lead - x).fold(self.distance(last), |a, b| if b < a { b } else { a }) - vehicle_length
    }

    /// Lets every driver plan on the present state. Returns the speeds that they plan, m/s, for the caller to change;
    /// none may be negative.
    pub fn plan(&mut self, driver: &Driver) -> &mut [f64] {
        let last = self.x.len() - 1;
        self.next.resize(last + 1, 0.0);
        driver.follow_all(&self.x, &self.v, &mut self.next);
        self.next[last] = match self.ring {
            Some(_) => driver.follow(self.v[last], self.gap(last, driver.idm.length), self.v[self.leader(last)]),
            None => driver.free(self.v[last]),
        };
        &mut self.next
    }

    /// The speeds that [`Platoon::plan`] returned.
    pub fn planned(&mut self) -> &mut [f64] {
        &mut self.next
    }

    /// Moves every vehicle with its planned speed.
    pub fn advance(&mut self, driver: &Driver) {
        let n = self.x.len();
        let (x, v, next) = (&mut self.x[..n], &mut self.v[..n], &self.next[..n]);
        let acceleration = &mut self.acceleration[..n];
        let per_dt = 1.0 / driver.dt;
        for i in 0..n {
            acceleration[i] = (next[i] - v[i]) * per_dt;
            x[i] += driver.travel(v[i], next[i]);
            v[i] = next[i];
        }
        if let Some(ring) = self.ring
            && self.x[0] >= ring
        {
            for x in &mut self.x {
                *x -= ring;
            }
        }
    }
}
