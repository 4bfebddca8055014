//! Results of episodes.

use serde::{Deserialize, Serialize};

/// Results of an episode that has ended. NaN before the first.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Episode {
    /// Steps.
    pub length: f64,
    /// Sum of the rewards, which all agents share.
    pub return_mean: f64,
    /// Agents.
    pub num_agents: f64,
    /// Share of the V2V links that have sent their payload in time.
    pub success: f64,
    /// Sum of the rates of the V2I links, mean over the steps, Mb/s.
    pub v2i_rate: f64,
}

impl Episode {
    pub const FIELDS: [&'static str; 5] = ["length", "return_mean", "num_agents", "success", "v2i_rate"];

    pub const NONE: Self =
        Self { length: f64::NAN, return_mean: f64::NAN, num_agents: f64::NAN, success: f64::NAN, v2i_rate: f64::NAN };

    /// All numbers, by `FIELDS`.
    pub fn numbers(&self) -> impl Iterator<Item = (&'static str, f64)> {
        let Self { length, return_mean, num_agents, success, v2i_rate } = *self;
        Self::FIELDS.into_iter().zip([length, return_mean, num_agents, success, v2i_rate])
    }
}
