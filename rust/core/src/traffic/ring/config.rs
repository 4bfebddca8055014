//! The options of the ring road and what they may be.

use super::sumo_idm::{Idm, Integrator};

/// The drivers of the agents' vehicles, once the warm-up is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drive {
    /// The agents, by their actions. The other three ignore actions.
    Agents,
    /// Human drivers, as in all other vehicles.
    Humans,
    FollowerStopper,
    PiSaturation,
}

impl Drive {
    pub const ALL: [Self; 4] = [Self::Agents, Self::Humans, Self::FollowerStopper, Self::PiSaturation];
    pub const NAMES: [&'static str; 4] = ["agents", "humans", "follower_stopper", "pi_saturation"];
}

/// Most vehicles on a ring.
pub const MAX_VEHICLES: usize = 10_000;

/// Most steps of the simulation in one call: nothing can interrupt it.
pub const MAX_SIMULATIONS: u64 = 1_000_000;

/// The defaults are Flow's benchmark (`singleagent_ring`, `WaveAttenuationPOEnv`).
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    pub num_vehicles: usize,
    /// Agents drive evenly spaced vehicles, the last one among them.
    pub num_agents: usize,
    /// Each episode's circumference is drawn from here, evenly, m.
    pub ring_length: (f64, f64),
    /// Step of the simulation, s.
    pub dt: f64,
    pub integrator: Integrator,
    /// Steps of the simulation in one of the environment, during which an action holds.
    pub sims_per_step: u32,
    /// Steps of the environment that come before an episode's first observation; agents drive as humans do.
    pub warmup_steps: u32,
    /// Steps of the environment until an episode is truncated.
    pub horizon: u32,
    /// Standard deviation of what is added to human accelerations, times the root of `dt`, m/s^2.
    pub noise: f64,
    /// Stretch of road that is left free at the beginning, m; the rest is evenly filled with vehicles at rest.
    pub bunching: f64,
    /// Bounds of the action, m/s^2, both positive.
    pub max_accel: f64,
    pub max_decel: f64,
    /// Unit of distances in observations, m; none: the longest ring.
    pub distance_scale: Option<f64>,
    /// Time over which an agent's own speed is averaged for a fourth number of its observation, s; 0: there is none.
    pub memory: f64,
    /// True if SUMO bounds an agent's speed by that which keeps its distance ([`Idm::LEARNER`]). Without it agents can
    /// run into their leaders.
    pub safe_speed: bool,
    /// Weights of the reward's two parts.
    pub speed_weight: f64,
    pub action_weight: f64,
    pub human: Idm,
    pub drive: Drive,
    /// Desired speed of FollowerStopper, m/s; none: the equilibrium speed of each episode's ring.
    pub desired_speed: Option<f64>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            num_vehicles: 22,
            num_agents: 1,
            ring_length: (220.0, 270.0),
            dt: 0.1,
            integrator: Integrator::Euler,
            sims_per_step: 1,
            warmup_steps: 750,
            horizon: 3000,
            noise: 0.2,
            bunching: 50.0,
            max_accel: 1.0,
            max_decel: 1.0,
            distance_scale: None,
            memory: 0.0,
            safe_speed: true,
            speed_weight: 4.0,
            action_weight: 4.0,
            human: Idm::HUMAN,
            drive: Drive::Agents,
            desired_speed: None,
        }
    }
}

impl Config {
    /// Checks every option; the error names the first that is out of range.
    pub fn check(&self) -> Result<(), String> {
        let number = |name: &str, value: f64, fits: fn(f64) -> bool, what: &str| {
            if value.is_finite() && fits(value) { Ok(()) } else { Err(format!("{name}: expected {what}, got {value}")) }
        };
        let n = self.num_vehicles;
        if !(2..=MAX_VEHICLES).contains(&n) {
            return Err(format!("num_vehicles: expected 2 to {MAX_VEHICLES}, got {n}"));
        }
        if !(1..=n).contains(&self.num_agents) {
            return Err(format!(
                "num_agents: expected 1 to {n}, which is the number of vehicles, got {}",
                self.num_agents
            ));
        }
        let positive: fn(f64) -> bool = |x| x > 0.0;
        let from_zero: fn(f64) -> bool = |x| x >= 0.0;
        let idm = &self.human;
        for (name, value) in [
            ("ring_length", self.ring_length.0),
            ("ring_length", self.ring_length.1),
            ("dt", self.dt),
            ("max_accel", self.max_accel),
            ("max_decel", self.max_decel),
            ("distance_scale", self.distance_scale.unwrap_or(1.0)),
            ("length of a vehicle", idm.length),
            ("desired speed of the humans", idm.desired_speed),
            ("accel of the humans", idm.accel),
            ("decel of the humans", idm.decel),
            ("emergency_decel of the humans", idm.emergency_decel),
            ("delta of the humans", idm.delta),
        ] {
            number(name, value, positive, "a positive number")?;
        }
        for (name, value) in [
            ("noise", self.noise),
            ("bunching", self.bunching),
            ("memory", self.memory),
            ("speed_weight", self.speed_weight),
            ("action_weight", self.action_weight),
            ("headway of the humans", idm.headway),
            ("min_gap of the humans", idm.min_gap),
            ("desired_speed", self.desired_speed.unwrap_or(0.0)),
        ] {
            number(name, value, from_zero, "a number from 0")?;
        }
        if self.dt > 10.0 {
            return Err(format!("dt: expected at most 10 s, got {}", self.dt));
        }
        if self.sims_per_step == 0 || self.horizon == 0 {
            return Err("sims_per_step and horizon: expected at least 1, got 0".into());
        }
        let simulations = u64::from(self.sims_per_step) * u64::from(self.warmup_steps.max(1));
        if simulations > MAX_SIMULATIONS {
            return Err(format!(
                "warmup_steps and sims_per_step: expected at most {MAX_SIMULATIONS} steps of the simulation before an \
                 episode or in a step of it, got {simulations}"
            ));
        }
        let (low, high) = self.ring_length;
        if low > high {
            return Err(format!("ring_length: expected the shortest before the longest, got {low} and {high}"));
        }
        let needed = n as f64 * (idm.length + idm.min_gap);
        if low <= needed + self.bunching {
            return Err(format!(
                "ring_length: {n} vehicles of {} m, {} m between them and a free stretch (bunching) of {} m need more \
                 than {} m, got {low}",
                idm.length,
                idm.min_gap,
                self.bunching,
                needed + self.bunching,
            ));
        }
        Ok(())
    }

    /// The vehicle that agent `k` drives.
    pub fn vehicle_of(&self, k: usize) -> usize {
        (k + 1) * self.num_vehicles / self.num_agents - 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agents_are_evenly_spaced_and_each_has_a_vehicle_of_its_own() {
        for n in 2..40 {
            for num_agents in 1..=n {
                let config = Config { num_vehicles: n, num_agents, ..Config::default() };
                let places: Vec<usize> = (0..num_agents).map(|k| config.vehicle_of(k)).collect();
                assert_eq!(*places.last().unwrap(), n - 1);
                let steps: Vec<usize> =
                    (0..num_agents).map(|k| (places[(k + 1) % num_agents] + n - 1 - places[k]) % n + 1).collect();
                let (least, most) = (steps.iter().min().unwrap(), steps.iter().max().unwrap());
                assert!(*least >= 1 && most - least <= 1, "{n} {num_agents}: {places:?}");
            }
        }
    }

    #[test]
    fn errors_name_the_wrong_option() {
        let ok = Config::default();
        ok.check().unwrap();
        for (config, name) in [
            (Config { num_vehicles: 1, ..ok.clone() }, "num_vehicles"),
            (Config { num_agents: 23, ..ok.clone() }, "num_agents"),
            (Config { num_agents: 0, ..ok.clone() }, "num_agents"),
            (Config { ring_length: (270.0, 220.0), ..ok.clone() }, "ring_length"),
            (Config { ring_length: (f64::NAN, 220.0), ..ok.clone() }, "ring_length"),
            (Config { ring_length: (200.0, 220.0), ..ok.clone() }, "bunching"),
            (Config { dt: 0.0, ..ok.clone() }, "dt"),
            (Config { noise: -0.1, ..ok.clone() }, "noise"),
            (Config { horizon: 0, ..ok.clone() }, "horizon"),
            (Config { warmup_steps: 1 << 20, ..ok.clone() }, "warmup_steps"),
            (Config { sims_per_step: u32::MAX, warmup_steps: 0, ..ok.clone() }, "sims_per_step"),
            (Config { max_decel: f64::INFINITY, ..ok.clone() }, "max_decel"),
            (Config { desired_speed: Some(-1.0), ..ok.clone() }, "desired_speed"),
            (Config { human: Idm { desired_speed: -3.0, ..Idm::HUMAN }, ..ok.clone() }, "desired speed"),
        ] {
            let message = config.check().unwrap_err();
            assert!(message.contains(name), "{message}");
        }
    }
}
