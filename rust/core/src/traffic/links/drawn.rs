//! The links to show.

use super::config::Config;
use super::exchange::LinkState;
use crate::traffic::scene::Link;

impl LinkState {
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
