//! The links to show, in pictures and to agents.

use super::config::Config;
use super::exchange::LinkState;
use super::radio::decibels;
use crate::traffic::scene::Link;

/// dBm that observed powers are measured from, and dB that they are measured in.
const QUIET: f64 = -80.0;
const LOUD: f64 = 40.0;

impl LinkState {
    /// Writes the power that an agent sensed in each resource, from [`QUIET`] in [`LOUD`], clipped to [-1, 1].
    pub fn write_sensed(&self, config: &Config, receiver: usize, out: &mut [f32]) {
        for (slot, &power) in out.iter_mut().zip(self.sensed(config, receiver)) {
            // Unknown is as bad as loud: the agent itself sent in that slot.
            let share = if power.is_nan() { 1.0 } else { (decibels(power) - QUIET) / LOUD };
            *slot = share.clamp(-1.0, 1.0) as f32;
        }
    }

    /// The links of the last message, from all who sent to all agents that listened within the range. `period`: seconds
    /// between two messages; `number`: of the vehicle of a station.
    pub fn drawn(&self, config: &Config, period: f64, number: impl Fn(usize) -> u32) -> Vec<Link> {
        let places = self.places();
        let near =
            |a: usize, b: usize| (places[a][0] - places[b][0]).hypot(places[a][1] - places[b][1]) <= config.range;
        let mut links = Vec::new();
        for receiver in 0..self.agents() {
            let entries = self.quality(receiver).iter().zip(self.table().of(receiver));
            for (sender, (quality, entry)) in entries.enumerate() {
                if !quality.success.is_nan() && near(sender, receiver) {
                    let (from, to) = (number(sender), number(receiver));
                    links.push(Link { from, to, quality: quality.success, age: period * f64::from(entry.age) });
                }
            }
        }
        links
    }
}
