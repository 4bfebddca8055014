//! Options of a cooperative environment. They are fixed while it lives, except for the [`Difficulty`] of each episode.

use crate::env::ActionKind;
pub use crate::traffic::difficulty::Difficulty;
use crate::traffic::links::config as links;

/// Metres between two vehicles of a lane at density 1, in the mean.
pub const SPACING: f64 = 50.0;
/// Speed limit of the road, m/s.
pub const SPEED_LIMIT: f64 = 30.0;
/// Speeds that agents with meta-actions choose from, m/s.
pub const TARGET_SPEEDS: [f64; 5] = [10.0, 15.0, 20.0, 25.0, 30.0];
/// Seconds that a wreck lies on the road before it is taken away.
pub const WRECK_TIME: f64 = 3.0;
/// Metres from the front of the traffic at the start to the end of the ramp.
pub const TO_RAMP_END: f64 = 200.0;
/// Metres from the end of the ramp to where an agent has arrived.
pub const TO_ARRIVAL: f64 = 150.0;

pub const MAX_LANES: usize = 16;
pub const MAX_AGENTS: usize = 64;
pub const MAX_BACKGROUND: usize = 200;
pub const MAX_DENSITY: f64 = 4.0;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Task {
    /// A straight road: drive fast without a crash until the time is over.
    Highway,
    /// A third of the agents begin on a ramp that ends at an obstacle; all must get past it.
    Merge,
}

/// The kind of the agents' actions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ActionType {
    /// highway-env's five: lane left, idle, lane right, faster, slower.
    Meta,
    /// Acceleration and steering, each from -1 to 1.
    Continuous,
}

/// Number of meta-actions.
pub const META_ACTIONS: usize = 5;

/// Weights of an agent's own reward in a step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Weights {
    /// Reward for a crash.
    pub collision: f64,
    /// Factor of the position of the speed in `speed_range`, from 0 to 1.
    pub speed: f64,
    /// Factor of the lane from 0, the leftmost, to 1, the rightmost of the main road; on a ramp it is 0.
    pub lane: f64,
    /// Reward for arriving at the end of the road, where it has one.
    pub arrival: f64,
    /// Factor of the mean age, in seconds, of what the others know of the agent.
    pub age: f64,
    /// Factor of the share of receivers within the range that its message reached.
    pub delivery: f64,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    pub task: Task,
    /// Lanes of the main road.
    pub lanes: usize,
    /// Rows of an environment.
    pub max_agents: usize,
    /// Background vehicles at density 1.
    pub background: usize,
    pub actions: ActionType,
    /// Frames a second.
    pub simulation_frequency: u32,
    /// Steps a second.
    pub policy_frequency: u32,
    /// Seconds of an episode.
    pub duration: f64,
    /// Share of the team's mean in an agent's reward, from 0 (its own alone) to 1.
    pub cooperation: f64,
    pub weights: Weights,
    /// Speeds that are worth 0 and 1, m/s.
    pub speed_range: [f64; 2],
    /// The radio links between agents; `None`: they see each other as they are.
    pub comms: Option<links::Config>,
}

impl Config {
    /// The defaults of a task.
    pub fn new(task: Task) -> Self {
        let (lanes, background, duration, lane) = match task {
            Task::Highway => (4, 20, 40.0, 0.1),
            Task::Merge => (2, 10, 60.0, 0.05),
        };
        Self {
            task,
            lanes,
            max_agents: 15,
            background,
            actions: ActionType::Meta,
            simulation_frequency: 5,
            policy_frequency: 1,
            duration,
            cooperation: 0.5,
            weights: Weights { collision: -1.0, speed: 0.4, lane, arrival: 1.0, age: 0.0, delivery: 0.0 },
            speed_range: [10.0, 30.0],
            comms: None,
        }
    }

    /// Checks every option; the error names the first that is out of range.
    pub fn check(&self) -> Result<(), String> {
        let whole = |name: &str, value: usize, low: usize, high: usize| {
            let fits = (low..=high).contains(&value);
            fits.then_some(()).ok_or_else(|| format!("{name}: expected {low} to {high}, got {value}"))
        };
        whole("lanes", self.lanes, 1, MAX_LANES)?;
        whole("max_agents", self.max_agents, 1, MAX_AGENTS)?;
        whole("background", self.background, 0, MAX_BACKGROUND)?;
        whole("simulation_frequency", self.simulation_frequency as usize, 1, 100)?;
        whole("policy_frequency", self.policy_frequency as usize, 1, 100)?;
        if !self.simulation_frequency.is_multiple_of(self.policy_frequency) {
            return Err(format!(
                "policy_frequency: expected a divisor of simulation_frequency {}, got {}",
                self.simulation_frequency, self.policy_frequency
            ));
        }
        if !(self.duration * f64::from(self.policy_frequency) >= 1.0 && self.duration <= 1e6) {
            return Err(format!("duration: expected seconds for one step to 1e6, got {}", self.duration));
        }
        if !(0.0..=1.0).contains(&self.cooperation) {
            return Err(format!("cooperation: expected 0 to 1, got {}", self.cooperation));
        }
        let Weights { collision, speed, lane, arrival, age, delivery } = self.weights;
        let weights = [
            ("collision_reward", collision),
            ("speed_reward", speed),
            ("lane_reward", lane),
            ("arrival_reward", arrival),
            ("age_reward", age),
            ("delivery_reward", delivery),
        ];
        for (name, value) in weights {
            if value.is_nan() || value.abs() > 1e6 {
                return Err(format!("{name}: expected a number from -1e6 to 1e6, got {value}"));
            }
        }
        let [low, high] = self.speed_range;
        if !(0.0 <= low && low < high && high <= 1e3) {
            return Err(format!("reward_speed_range: expected two rising speeds from 0 on, got ({low}, {high})"));
        }
        let Some(comms) = &self.comms else {
            let unused = [("age_reward", age), ("delivery_reward", delivery)].into_iter().find(|(_, x)| *x != 0.0);
            return match unused {
                Some((name, value)) => {
                    Err(format!("{name}: expected 0 with comms='perfect', which has no messages, got {value}"))
                }
                None => Ok(()),
            };
        };
        comms.check()?;
        let most = self.stations(Difficulty { agents: self.max_agents, density: MAX_DENSITY });
        if most > links::MAX_STATIONS {
            return Err(format!(
                "background: expected at most {} vehicles with radios at density {MAX_DENSITY}, got {most}",
                links::MAX_STATIONS
            ));
        }
        Ok(())
    }

    /// The kind of the actions: where agents choose what they send with, an index counts manoeuvres first, then
    /// resources, then powers, and a box has a number more for each.
    pub fn action_kind(&self) -> ActionKind {
        match self.actions {
            ActionType::Meta => ActionKind::Discrete,
            ActionType::Continuous => {
                let chosen =
                    |comms: &links::Config| usize::from(comms.chooses_resource()) + usize::from(comms.chooses_power());
                ActionKind::Box(2 + self.comms.as_ref().map_or(0, chosen))
            }
        }
    }

    /// Number of discrete actions.
    pub fn num_actions(&self) -> usize {
        META_ACTIONS * self.comms.as_ref().map_or(1, |comms| comms.choices().iter().product())
    }

    /// Vehicles with a radio in an episode.
    pub fn stations(&self, difficulty: Difficulty) -> usize {
        match &self.comms {
            None => 0,
            Some(comms) => difficulty.agents + (comms.connected * difficulty.background(self) as f64 + 0.5) as usize,
        }
    }

    /// Seconds of a step.
    pub fn period(&self) -> f64 {
        1.0 / f64::from(self.policy_frequency)
    }

    /// Lanes in an agent's observation: the main road's, and the ramp's where there is one.
    pub fn all_lanes(&self) -> usize {
        self.lanes + usize::from(self.task == Task::Merge)
    }

    pub fn frames_per_step(&self) -> u32 {
        self.simulation_frequency / self.policy_frequency
    }

    /// Steps of an episode.
    pub fn steps(&self) -> u32 {
        (self.duration * f64::from(self.policy_frequency) + 0.5) as u32
    }

    /// Steps that a wreck lies on the road.
    pub fn wreck_steps(&self) -> u32 {
        (WRECK_TIME * f64::from(self.policy_frequency) + 0.5) as u32
    }

    /// Agents that begin on the ramp, out of `agents`.
    pub fn on_ramp(&self, agents: usize) -> usize {
        if self.task == Task::Merge { agents.div_ceil(3) } else { 0 }
    }

    /// Metres of a lane that the traffic stands on at the start, whatever the density.
    pub fn stretch(&self, agents: usize) -> f64 {
        let on_ramp = self.on_ramp(agents);
        let rows = (agents - on_ramp + self.background).div_ceil(self.lanes).max(on_ramp);
        SPACING * rows as f64
    }

    /// Position of the front of the traffic at the start, metres; the road begins at 0.
    pub fn front(&self) -> f64 {
        self.stretch(self.max_agents) + SPACING
    }

    /// Position of the end of the ramp, if there is one.
    pub fn ramp_end(&self) -> Option<f64> {
        (self.task == Task::Merge).then(|| self.front() + TO_RAMP_END)
    }

    /// Position where an agent has arrived, if there is one.
    pub fn arrival(&self) -> Option<f64> {
        self.ramp_end().map(|end| end + TO_ARRIVAL)
    }

    /// Position where passing vehicles are counted.
    pub fn counter(&self) -> f64 {
        self.ramp_end().unwrap_or(self.front() + SPACING)
    }

    /// Name and options as text.
    pub fn fingerprint(&self) -> String {
        format!("{self:?}")
    }
}

impl Difficulty {
    /// Checks every option; the error names the first that is out of range.
    pub fn check(&self, config: &Config) -> Result<(), String> {
        self.check_within(config.max_agents, "max_agents", MAX_DENSITY)
    }

    /// All vehicles of an episode.
    pub fn vehicles(&self, config: &Config) -> usize {
        self.agents + self.background(config)
    }

    /// All vehicles of the most difficult episode.
    pub fn most_vehicles(config: &Config) -> usize {
        Self { agents: config.max_agents, density: MAX_DENSITY }.vehicles(config)
    }

    /// Background vehicles.
    pub fn background(&self, config: &Config) -> usize {
        (config.background as f64 * self.density + 0.5) as usize
    }
}
