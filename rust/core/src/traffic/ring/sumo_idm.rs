//! The Intelligent Driver Model as SUMO 1.28 computes it, with its two ways to move (Euler and ballistic).
//!
//! Sources: M. Treiber, A. Hennecke, D. Helbing, "Congested traffic states in empirical observations and microscopic
//! simulations", Phys. Rev. E 62 (2000); SUMO's `MSCFModel_IDM::_v` and `MSCFModel::finalizeSpeed`, which limit the
//! speed that the model asks for by what the vehicle can do.

use serde::{Deserialize, Serialize};

/// A model step is cut into parts of about this length, s (SUMO's `stepping`).
const STEPPING: f64 = 0.25;
/// SUMO's `NUMERICAL_EPS`: the smallest gap that is divided by, m.
const EPS: f64 = 1e-3;
/// Speeds below this, times the step's length, are rest, m/s^2 (SUMO's `NUMERICAL_EPS_SPEED`).
const REST: f64 = 1e-4;
/// The gap of a vehicle without a leader, m.
const FAR: f64 = 1e6;

/// The parameters of a driver. SI units.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Idm {
    /// Vehicle length, m.
    pub length: f64,
    /// Speed on a free road, v0, m/s.
    pub desired_speed: f64,
    /// Time headway, T, s.
    pub headway: f64,
    /// Gap at rest, s0, m.
    pub min_gap: f64,
    /// Largest acceleration, a, m/s^2.
    pub accel: f64,
    /// Comfortable deceleration, b, m/s^2.
    pub decel: f64,
    /// Largest deceleration, m/s^2.
    pub emergency_decel: f64,
    /// Exponent of the free acceleration.
    pub delta: f64,
}

impl Idm {
    /// Flow's human: its `IDMController` in vehicles of 5 m.
    pub const HUMAN: Self = Self {
        length: 5.0,
        desired_speed: 30.0,
        headway: 1.0,
        min_gap: 2.0,
        accel: 1.0,
        decel: 1.5,
        emergency_decel: 9.0,
        delta: 4.0,
    };

    /// The IDM by which SUMO bounds the speed of Flow's learner, with Flow's defaults for a vehicle.
    pub const LEARNER: Self = Self { min_gap: 2.5, accel: 2.6, decel: 4.5, ..Self::HUMAN };

    /// Speed at which `vehicles` on a ring of `length` m, evenly spaced, neither brake nor accelerate, m/s; 0 where
    /// they have no room to move.
    pub fn equilibrium_speed(&self, vehicles: usize, length: f64) -> f64 {
        let gap = length / vehicles as f64 - self.length;
        let needed = |v: f64| {
            (self.min_gap + v * self.headway) / (1.0 - (v / self.desired_speed).powf(self.delta)).max(0.0).sqrt()
        };
        let (mut low, mut high) = (0.0, self.desired_speed);
        if gap <= needed(low) {
            return 0.0;
        }
        // Halved until nothing lies between them.
        loop {
            let middle = 0.5 * (low + high);
            if middle <= low || middle >= high {
                return low;
            }
            if needed(middle) < gap { low = middle } else { high = middle }
        }
    }
}

/// SUMO's ways to move a vehicle whose speed changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Integrator {
    /// The new speed holds for the whole step. SUMO's default.
    Euler,
    /// The acceleration holds for the whole step (`--step-method.ballistic`).
    Ballistic,
}

/// The model at a fixed step length, its constants worked out.
#[derive(Clone, Copy, Debug)]
pub struct Driver {
    pub idm: Idm,
    pub dt: f64,
    pub integrator: Integrator,
    parts: u32,
    part: f64,
    per_desired_speed: f64,
    per_two_sqrt_ab: f64,
    comfort_decel: f64,
}

/// Maximum without `f64::max`'s rule for NaN, which costs another comparison.
#[inline(always)]
fn max(a: f64, b: f64) -> f64 {
    if a > b { a } else { b }
}

#[inline(always)]
fn min(a: f64, b: f64) -> f64 {
    if a < b { a } else { b }
}

#[inline(always)]
fn fourth(r: f64) -> f64 {
    (r * r) * (r * r)
}

impl Driver {
    pub fn new(idm: Idm, dt: f64, integrator: Integrator) -> Self {
        let parts = ((dt / STEPPING + 0.5) as u32).max(1);
        Self {
            idm,
            dt,
            integrator,
            parts,
            part: dt / f64::from(parts),
            per_desired_speed: 1.0 / max(EPS, idm.desired_speed),
            per_two_sqrt_ab: 1.0 / (2.0 * (idm.accel * idm.decel).sqrt()),
            comfort_decel: max(idm.decel, min(idm.emergency_decel, 1.5)),
        }
    }

    /// SUMO's `_v`: the speed after this step that the model asks for at speed `v`, `gap` m behind (bumper to bumper) a
    /// leader at `lead_speed`.
    #[inline(always)]
    fn wish(&self, v: f64, gap: f64, lead_speed: f64, min_gap: f64, parts: u32, power: impl Fn(f64) -> f64) -> f64 {
        let (mut u, mut gap) = (v, gap);
        for _ in 0..parts {
            let s = max(0.0, u * self.idm.headway + u * (u - lead_speed) * self.per_two_sqrt_ab) + min_gap;
            gap = max(EPS, gap);
            let acc = self.idm.accel * (1.0 - power(u * self.per_desired_speed) - (s * s) / (gap * gap));
            u = max(0.0, u + acc * self.part);
            gap -= max(0.0, (u - lead_speed) * self.part);
        }
        u
    }

    /// Limits the speed that the model asks for to what the vehicle does within a step.
    #[inline(always)]
    fn limited(&self, v: f64, wish: f64) -> f64 {
        let top = min(v + self.idm.accel * self.dt, self.idm.desired_speed);
        let safe = min(wish, top);
        let floor = match self.integrator {
            Integrator::Euler => 0.0,
            Integrator::Ballistic => f64::NEG_INFINITY,
        };
        let comfort = max(v - self.comfort_decel * self.dt, floor);
        let emergency = max(v - self.idm.emergency_decel * self.dt, floor);
        let next = max(min(comfort, max(safe, emergency)), safe);
        if next < REST * self.dt { 0.0 } else { next }
    }

    /// The speed after this step, m/s, of a driver at speed `v`, `gap` m behind a leader at `lead_speed`.
    pub fn follow(&self, v: f64, gap: f64, lead_speed: f64) -> f64 {
        let power = |r: f64| if self.idm.delta == 4.0 { fourth(r) } else { r.powf(self.idm.delta) };
        self.limited(v, self.wish(v, gap, lead_speed, self.idm.min_gap, self.parts, power))
    }

    /// [`Driver::follow`] without a leader.
    pub fn free(&self, v: f64) -> f64 {
        let power = |r: f64| if self.idm.delta == 4.0 { fourth(r) } else { r.powf(self.idm.delta) };
        self.limited(v, self.wish(v, FAR, self.idm.desired_speed, 0.0, self.parts, power))
    }

    /// The largest speed after this step that keeps this driver's distance, m/s.
    pub fn safe_speed(&self, v: f64, gap: f64, lead_speed: f64) -> f64 {
        self.wish(v, gap, lead_speed, self.idm.min_gap, self.parts, fourth)
    }

    /// [`Driver::follow`] for vehicles one behind the other: vehicle i, at `x[i]` (its front, m) and `v[i]`, follows
    /// vehicle i + 1. Writes the speeds after this step of all but the last.
    pub fn follow_all(&self, x: &[f64], v: &[f64], next: &mut [f64]) {
        // In the usual case nothing is left to decide within the loop, and the compiler does several vehicles at once.
        match (self.idm.delta == 4.0, self.parts) {
            (true, 1) => self.follow_each(x, v, next, 1, fourth),
            (true, parts) => self.follow_each(x, v, next, parts, fourth),
            (false, parts) => self.follow_each(x, v, next, parts, |r| r.powf(self.idm.delta)),
        }
    }

    #[inline(always)]
    fn follow_each(&self, x: &[f64], v: &[f64], next: &mut [f64], parts: u32, power: impl Fn(f64) -> f64 + Copy) {
        let n = x.len() - 1;
        let (lead_x, lead_v) = (&x[1..=n], &v[1..=n]);
        let (x, v, next) = (&x[..n], &v[..n], &mut next[..n]);
        for i in 0..n {
            let gap = lead_x[i] - self.idm.length - x[i];
            next[i] = self.limited(v[i], self.wish(v[i], gap, lead_v[i], self.idm.min_gap, parts, power));
        }
    }

    /// Distance that a vehicle covers while its speed goes from `v` to `next`, m.
    #[inline(always)]
    pub fn travel(&self, v: f64, next: f64) -> f64 {
        match self.integrator {
            Integrator::Euler => next * self.dt,
            Integrator::Ballistic => 0.5 * (v + next) * self.dt,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equilibrium_speeds_are_those_of_the_paper() {
        let speeds: Vec<f64> = (0..6).map(|i| Idm::HUMAN.equilibrium_speed(22, 220.0 + 10.0 * f64::from(i))).collect();
        for (got, expected) in speeds.iter().zip([3.00, 3.45, 3.91, 4.36, 4.82, 5.27]) {
            assert!((got - expected).abs() < 0.006, "{speeds:?}");
        }
        assert_eq!(Idm::HUMAN.equilibrium_speed(22, 154.0), 0.0);
    }

    #[test]
    fn no_vehicle_accelerates_at_the_equilibrium() {
        let speed = Idm::HUMAN.equilibrium_speed(22, 260.0);
        let gap = 260.0 / 22.0 - 5.0;
        for integrator in [Integrator::Euler, Integrator::Ballistic] {
            let driver = Driver::new(Idm::HUMAN, 0.1, integrator);
            assert!((driver.follow(speed, gap, speed) - speed).abs() < 1e-12);
        }
    }

    #[test]
    fn the_loop_over_all_gives_what_each_alone_gives() {
        let x = [0.0, 9.0, 30.0, 37.5, 60.0];
        let v = [3.0, 8.0, 0.0, 12.0, 5.0];
        for delta in [4.0, 3.7] {
            for dt in [0.1, 0.5, 1.0] {
                let driver = Driver::new(Idm { delta, ..Idm::HUMAN }, dt, Integrator::Ballistic);
                let mut next = [f64::NAN; 5];
                driver.follow_all(&x, &v, &mut next);
                for i in 0..4 {
                    assert_eq!(next[i], driver.follow(v[i], x[i + 1] - 5.0 - x[i], v[i + 1]));
                }
                assert!(next[4].is_nan());
            }
        }
    }
}
