//! Scenarios, which make a world an environment: its roads, the vehicles of a first state, rewards and ends. One file a scenario.

use std::collections::BTreeMap;
use std::fmt::Debug;

use super::Network;
use super::world::World;
use crate::numpy_random::NumpyRandom;
use crate::traffic::Model;
use crate::traffic::action::LastAction;
use crate::traffic::map::RoadMap;
use crate::traffic::vehicles::{Driver, Vehicle};

/// The agents for which an episode ends, and those that get the rewards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ends {
    /// All get the same reward and end together, when the scenario is over.
    Together,
    /// Each agent has its own reward and end and acts no more after it.
    Each,
    /// Each agent has its own reward and end, but all act until all have ended (`MultiAgentWrapper`).
    Wrapped,
}

/// The most parts that a reward has.
pub const MOST_PARTS: usize = 5;

/// The parts of a reward before they are weighed (`_rewards`), as many as the scenario names.
pub type Parts = [f64; MOST_PARTS];

/// A kind of environment with its options. Equal text of `Debug` means equal options.
pub trait Scenario: Debug + Send + Sync {
    /// The roads and what lies on them.
    fn network(&self, connected: bool) -> Network;

    /// The care with which the traffic follows.
    fn model(&self) -> Model {
        Model::default()
    }

    /// True if vehicles give way by the lanes' priorities.
    fn is_regulated(&self) -> bool {
        false
    }

    /// True if the controlled vehicles share the mean of their rewards; else the first one's counts.
    fn shares_reward(&self) -> bool {
        false
    }

    /// True if the action of a shared reward is all agents' together.
    fn joins_actions(&self) -> bool {
        false
    }

    /// Number of controlled vehicles.
    fn controlled(&self) -> usize {
        1
    }

    /// Number of landmarks of an episode.
    fn landmarks(&self) -> usize {
        0
    }

    /// Vehicles that there are at once, at most in usual episodes.
    fn vehicles(&self) -> usize;

    /// Puts the vehicles of a new episode into an empty world, with highway-env's draws in their order.
    fn populate(&self, place: &mut Place<'_>);

    /// highway-env's names of the parts of a reward.
    fn part_names(&self) -> &'static [&'static str];

    /// The parts for vehicle `i` after `action`.
    fn parts(&self, world: &World, i: usize, action: &LastAction) -> Parts;

    fn reward(&self, parts: &Parts) -> f64;

    /// The part of a common reward besides that of the first agent or the mean.
    fn reward_of_others(&self, _world: &World) -> f64 {
        0.0
    }

    /// Returns whether the episode ends for all (`_is_terminated`).
    fn is_over(&self, world: &World) -> bool;

    /// Returns whether it ends for the agent of vehicle `i` (`_agent_is_terminal`).
    fn is_done(&self, world: &World, i: usize) -> bool {
        world.traffic.vehicles.crashed[i]
    }

    /// Returns whether the agent of vehicle `i` has reached its goal.
    fn has_succeeded(&self, _world: &World, _i: usize) -> bool {
        false
    }

    /// True if agents have a goal; else they have done well if they are whole when the time is over.
    fn has_goal(&self) -> bool {
        false
    }

    /// Returns whether a building stands between two places, in a city.
    fn has_building_between(&self, _a: [f64; 2], _b: [f64; 2]) -> bool {
        false
    }

    /// Precedes a step, actions too.
    fn before_step(&self, _world: &mut World) {}

    /// True if a step shows the state after the action and before its frames, and clocks of observations stand still
    /// (`LaneKeepingEnv.step`).
    fn shows_past(&self) -> bool {
        false
    }

    /// True if `after_step` changes the world.
    fn is_open(&self) -> bool {
        false
    }

    /// Follows a step after everything else, observations too.
    fn after_step(&self, _place: &mut Place<'_>) {}
}

/// A world to put vehicles into.
pub struct Place<'a> {
    pub world: &'a mut World,
    pub rng: &'a mut NumpyRandom,
    /// Kinds of the vehicles of agents and of others.
    pub agent: Driver,
    pub other: Driver,
    /// Length of a frame, seconds, and their number in a second.
    pub frame: f64,
    pub frames: usize,
    /// Length of a step, seconds.
    pub step: f64,
    pub ends: Ends,
    /// True for the agents that act.
    pub alive: &'a [bool],
}

impl Place<'_> {
    /// Adds the vehicle of the next agent at a place of a lane, with the heading of the lane there.
    pub fn agent_on(&mut self, lane: usize, longitudinal: f64, speed: f64) -> usize {
        let vehicle = self.on_lane(self.agent, lane, longitudinal, speed);
        self.world.add_agent(&vehicle)
    }

    /// Adds another vehicle in the same way (`make_on_lane`).
    pub fn other_on(&mut self, lane: usize, longitudinal: f64, speed: f64) -> usize {
        let vehicle = self.on_lane(self.other, lane, longitudinal, speed);
        self.world.add(&vehicle)
    }

    /// A vehicle in the middle of a lane, to be added.
    pub fn on_lane(&self, driver: Driver, lane: usize, longitudinal: f64, speed: f64) -> Vehicle {
        let lane = self.world.traffic.road.lane(lane);
        let (x, y) = lane.position(longitudinal, 0.0);
        Vehicle { heading: lane.heading_at(longitudinal), ..Vehicle::new(driver, x, y, speed) }
    }

    pub fn randomize(&mut self, i: usize) {
        self.world.randomize(i, self.rng);
    }
}

/// The options of a scenario by highway-env's names: one number, or several; flags are 0 or 1, None is no number.
#[derive(Clone, Debug, Default)]
pub struct Options(pub BTreeMap<String, Vec<f64>>);

impl Options {
    /// All numbers of an option.
    pub fn get(&self, key: &str) -> Result<&[f64], String> {
        self.0.get(key).map(|values| &values[..]).ok_or_else(|| format!("the option {key} is missing"))
    }

    pub fn number(&self, key: &str) -> Result<f64, String> {
        match self.get(key)? {
            &[value] if value.is_finite() => Ok(value),
            other => Err(format!("{key}: expected a finite number, got {other:?}")),
        }
    }

    /// Finite numbers, as many as there are.
    pub fn numbers(&self, key: &str) -> Result<&[f64], String> {
        let values = self.get(key)?;
        let finite = values.iter().all(|value| value.is_finite());
        if finite { Ok(values) } else { Err(format!("{key}: expected finite numbers, got {values:?}")) }
    }

    /// A whole number within bounds.
    pub fn count(&self, key: &str, least: usize, most: usize) -> Result<usize, String> {
        let value = self.number(key)?;
        if value.fract() == 0.0 && value >= least as f64 && value <= most as f64 {
            Ok(value as usize)
        } else {
            Err(format!("{key}: expected a whole number from {least} to {most}, got {value}"))
        }
    }

    /// The same, or None.
    pub fn optional_count(&self, key: &str, least: usize, most: usize) -> Result<Option<usize>, String> {
        if self.get(key)?.is_empty() { Ok(None) } else { self.count(key, least, most).map(Some) }
    }

    /// Several whole numbers from 0 on.
    pub fn indices(&self, key: &str) -> Result<Vec<usize>, String> {
        let whole = |&value: &f64| {
            let is_index = value.fract() == 0.0 && (0.0..=f64::from(u32::MAX)).contains(&value);
            if is_index { Ok(value as usize) } else { Err(format!("{key}: expected whole numbers, got {value}")) }
        };
        self.get(key)?.iter().map(whole).collect()
    }

    pub fn flag(&self, key: &str) -> Result<bool, String> {
        Ok(self.count(key, 0, 1)? == 1)
    }

    pub fn pair(&self, key: &str) -> Result<[f64; 2], String> {
        match self.get(key)? {
            &[low, high] if low.is_finite() && high.is_finite() => Ok([low, high]),
            other => Err(format!("{key}: expected two finite numbers, got {other:?}")),
        }
    }
}

/// `utils.lmap` to [0, 1].
pub(super) fn share(value: f64, [low, high]: [f64; 2]) -> f64 {
    (value - low) / (high - low)
}

/// 1 where the action counts as a change of lanes: highway-env takes actions 0 and 2 of any kind for such.
pub(super) fn lane_change(action: &LastAction) -> f64 {
    f64::from(match action {
        LastAction::Discrete(action) => matches!(action, 0 | 2),
        LastAction::Box(numbers) => matches!(numbers[..], [number] if number == 0.0 || number == 2.0),
        LastAction::Double(numbers) => matches!(numbers[..], [number] if number == 0.0 || number == 2.0),
    })
}

/// The number of the lane that vehicle `i` is nearest to.
pub(super) fn lane_number(world: &World, lane: usize) -> f64 {
    (lane - world.traffic.road.section(lane).start) as f64
}
