//! Results of episodes.

use serde::{Deserialize, Serialize};

/// Upper bound of times to a collision, s.
pub const MAX_TTC: f64 = 100.0;

/// Results of an episode that has ended. NaN before the first.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Episode {
    /// Steps.
    pub length: f64,
    /// Mean over the agents of their sums of rewards.
    pub return_mean: f64,
    pub num_agents: f64,
    /// Share of the agents that crashed.
    pub collision_rate: f64,
    /// Mean speed of the agents while they drove, m/s.
    pub mean_speed: f64,
    /// Vehicles an hour, background included, past the counter; on roads without one, agents that arrived.
    pub throughput: f64,
    /// Shortest time to a collision of an agent with the vehicle ahead in its lane, at constant speeds, s: 0 after
    /// a crash of an agent, and at most [`MAX_TTC`].
    pub min_ttc: f64,
    /// Share of the agents that ended well: arrived, or whole at the end of the time where the road has no end.
    pub success: f64,
    /// Seconds that the agents drove, all together.
    pub driving_time: f64,
    /// Mean seconds until agents arrived, of those that did; NaN if none did.
    pub arrival_time: f64,
}

impl Episode {
    pub const FIELDS: [&str; 10] = [
        "length",
        "return_mean",
        "num_agents",
        "collision_rate",
        "mean_speed",
        "throughput",
        "min_ttc",
        "success",
        "driving_time",
        "arrival_time",
    ];

    pub const NONE: Self = Self {
        length: f64::NAN,
        return_mean: f64::NAN,
        num_agents: f64::NAN,
        collision_rate: f64::NAN,
        mean_speed: f64::NAN,
        throughput: f64::NAN,
        min_ttc: f64::NAN,
        success: f64::NAN,
        driving_time: f64::NAN,
        arrival_time: f64::NAN,
    };

    /// All numbers, by `FIELDS`.
    pub fn numbers(&self) -> impl Iterator<Item = (&'static str, f64)> {
        let Self { length, return_mean, num_agents, collision_rate, mean_speed, throughput, min_ttc, .. } = *self;
        let Self { success, driving_time, arrival_time, .. } = *self;
        let first = [length, return_mean, num_agents, collision_rate, mean_speed, throughput, min_ttc];
        Self::FIELDS.into_iter().zip(first.into_iter().chain([success, driving_time, arrival_time]))
    }
}

/// Counters of the running episode.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Account {
    pub agents: u32,
    pub crashed: u32,
    pub succeeded: u32,
    pub rewards: f64,
    /// Sum over steps and agents, and how many that are.
    pub speed_sum: f64,
    pub speed_count: u32,
    pub min_ttc: f64,
    /// Vehicles past the counter when they were taken from the road.
    pub passed: u32,
    /// Agents that arrived, and the sum of their times since the episode began, s.
    pub arrived: u32,
    pub arrival_seconds: f64,
}

impl Account {
    pub fn new(agents: usize) -> Self {
        Self {
            agents: agents as u32,
            crashed: 0,
            succeeded: 0,
            rewards: 0.0,
            speed_sum: 0.0,
            speed_count: 0,
            min_ttc: MAX_TTC,
            passed: 0,
            arrived: 0,
            arrival_seconds: 0.0,
        }
    }

    /// Counts the arrival of an agent, `seconds` after the episode began.
    pub fn arrive(&mut self, seconds: f64) {
        self.arrived += 1;
        self.arrival_seconds += seconds;
    }

    /// The results of the episode: after `steps` steps, in `seconds`, with `beyond` vehicles of the road past the
    /// counter.
    pub fn close(&self, steps: u32, seconds: f64, beyond: usize) -> Episode {
        let agents = f64::from(self.agents);
        Episode {
            length: f64::from(steps),
            return_mean: self.rewards / agents,
            num_agents: agents,
            collision_rate: f64::from(self.crashed) / agents,
            mean_speed: self.speed_sum / f64::from(self.speed_count),
            throughput: (f64::from(self.passed) + beyond as f64) / seconds * 3600.0,
            min_ttc: if self.crashed > 0 { 0.0 } else { self.min_ttc },
            success: f64::from(self.succeeded) / agents,
            driving_time: f64::from(self.speed_count) * seconds / f64::from(steps),
            arrival_time: self.arrival_seconds / f64::from(self.arrived),
        }
    }
}
