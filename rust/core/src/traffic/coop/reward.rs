//! Rewards of agents.

use super::config::Config;

/// The outcome of a step for an agent.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Outcome {
    pub crashed: bool,
    pub on_road: bool,
    pub arrived: bool,
    /// Speed along the road, m/s.
    pub forward_speed: f64,
    /// Index of the lane from the left.
    pub lane: usize,
    /// Mean age of what others know of it, seconds, and share of them that its message reached; 0 without receivers.
    pub age: f64,
    pub delivery: f64,
}

/// The agent's own reward.
pub(super) fn own(config: &Config, outcome: Outcome) -> f64 {
    let weights = &config.weights;
    let [low, high] = config.speed_range;
    let mut reward = 0.0;
    if outcome.crashed {
        reward += weights.collision;
    }
    if outcome.on_road {
        reward += weights.speed * ((outcome.forward_speed - low) / (high - low)).clamp(0.0, 1.0);
        if outcome.lane < config.lanes {
            reward += weights.lane * outcome.lane as f64 / (config.lanes - 1).max(1) as f64;
        }
    }
    if outcome.arrived {
        reward += weights.arrival;
    }
    if config.comms.is_some() {
        reward += weights.age * outcome.age + weights.delivery * outcome.delivery;
    }
    reward
}

/// The agent's reward with the team's share: `mean` is the mean own reward of all agents that acted.
pub(super) fn mixed(config: &Config, own: f64, mean: f64) -> f64 {
    (1.0 - config.cooperation) * own + config.cooperation * mean
}
