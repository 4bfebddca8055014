//! Difficulty of episodes with several agents.

use serde::{Deserialize, Serialize};

/// The options that may change from episode to episode.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Difficulty {
    pub agents: usize,
    /// Density of the other traffic: 1 is the configured number of vehicles.
    pub density: f64,
}

impl Difficulty {
    /// Checks it; the error names the first number that is out of range. `agents_name`: the option that limits agents.
    pub fn check_within(&self, most_agents: usize, agents_name: &str, most_density: f64) -> Result<(), String> {
        if !(1..=most_agents).contains(&self.agents) {
            return Err(format!("num_agents: expected 1 to {most_agents} ({agents_name}), got {}", self.agents));
        }
        if !(0.0..=most_density).contains(&self.density) {
            return Err(format!("density: expected 0 to {most_density}, got {}", self.density));
        }
        Ok(())
    }
}
