//! Observations of the agents on a road network.

use super::RoadEnv;
use super::env::Episode;
use crate::env::Real;
use crate::traffic::observation::Clock;

impl RoadEnv {
    /// Writes what an agent sees in the precision of `out`. False: the kind of observation is single, and nothing was
    /// written.
    fn write_double<R: Real>(&self, agent: usize, out: &mut [R]) -> bool {
        let Episode { world, time, measured, .. } = &self.episode;
        let len = self.config.observation.len();
        if let Some(own) = measured.get(agent * len..(agent + 1) * len) {
            out.iter_mut().zip(own).for_each(|(out, &number)| *out = R::from_f64(number));
            return true;
        }
        let time = if self.scenario.shows_past() { 0.0 } else { *time };
        let clock = Clock { time, frames: world.frames() };
        let vehicle = world.vehicle_of(agent);
        vehicle.is_some_and(|i| self.config.observation.write_double(&world.traffic, i, clock, out))
    }

    /// Writes the observations of all agents in double precision, for the kinds that are; zeros without
    /// an episode.
    pub fn observe_double(&self, obs: &mut [f64]) {
        for (agent, out) in obs.chunks_exact_mut(self.config.observation.len()).enumerate() {
            if !(self.has_vehicles() && self.write_double(agent, out)) {
                out.fill(0.0);
            }
        }
    }

    pub(super) fn write(&self, obs: &mut [f32]) {
        let Episode { world, orders, alive, links, radios, .. } = &self.episode;
        let mut heard = Vec::new();
        for (agent, out) in obs.chunks_exact_mut(self.config.obs_len()).enumerate() {
            let (out, sensed) = out.split_at_mut(self.config.observation.len());
            if let (true, Some(comms), Some(links)) = (alive[agent], &self.config.comms, links) {
                heard.clear();
                heard.extend(comms.heard(links, radios, world, agent));
                if !sensed.is_empty() {
                    links.write_sensed(&comms.links, agent, sensed);
                }
            } else {
                sensed.fill(0.0);
            }
            match world.vehicle_of(agent).filter(|_| alive[agent]) {
                Some(i) => {
                    if !self.write_double(agent, out) {
                        self.config.observation.write(&world.traffic, i, &orders[agent], &heard, out);
                    }
                }
                None => out.fill(0.0),
            }
        }
    }

    /// Writes observations for the first time: they may be random.
    pub(super) fn draw(&mut self, obs: &mut [f32]) {
        for order in &mut self.episode.orders {
            self.config.observation.draw(&mut self.episode.rng, order);
        }
        self.measure();
        if self.config.observation.remembers() {
            match &self.episode.seen[..] {
                [] => obs.fill(0.0),
                seen => obs.copy_from_slice(seen),
            }
        }
        self.write(obs);
        if self.keeps_observations() {
            self.episode.seen.clear();
            self.episode.seen.extend_from_slice(obs);
        }
    }

    /// Draws what highway-env draws before the first observation: it looks twice to know its observation space.
    pub(super) fn learn_space(&mut self) {
        for _ in 0..2 {
            self.measure();
        }
    }

    /// Measures anew what is measured at all.
    fn measure(&mut self) {
        if self.is_measured() {
            // Taken away, because what is measured already would be written.
            let mut measured = std::mem::take(&mut self.episode.measured);
            measured.resize(self.config.agents * self.config.observation.len(), 0.0);
            self.observe_double(&mut measured);
            self.config.observation.disturb(&mut self.episode.rng, &mut measured);
            self.episode.measured = measured;
        }
    }

    /// Returns whether observations are kept in double precision.
    pub(super) fn is_measured(&self) -> bool {
        self.scenario.shows_past() && self.config.observation.is_double()
    }

    pub(super) fn keeps_observations(&self) -> bool {
        self.scenario.is_open() || self.scenario.shows_past() || self.config.observation.remembers()
    }
}
