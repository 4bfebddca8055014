//! The options of a highway.

use crate::traffic::action::ActionType;
use crate::traffic::observation::Observation;
use crate::traffic::vehicles::Driver;

/// highway-env's config of `highway-v0`, in its words where they differ.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// `lanes_count`, at least 1.
    pub lanes: usize,
    /// `vehicles_count`: those that are not controlled.
    pub vehicles: usize,
    /// `controlled_vehicles`, at least 1. The agent drives the first; the others keep their lane and speed.
    pub controlled: usize,
    /// `other_vehicles_type`.
    pub driver: Driver,
    /// `initial_lane_id`.
    pub initial_lane: Option<usize>,
    /// Frames a second.
    pub simulation_frequency: f64,
    /// Steps a second.
    pub policy_frequency: f64,
    /// Frames of a step, at least 1.
    pub frames: usize,
    /// Seconds until an episode is truncated.
    pub duration: f64,
    /// Room before a controlled vehicle at first, as a multiple of the usual.
    pub ego_spacing: f64,
    /// `vehicles_density`.
    pub density: f64,
    pub collision_reward: f64,
    pub right_lane_reward: f64,
    pub high_speed_reward: f64,
    /// Speeds that are worth 0 and 1, m/s.
    pub reward_speed_range: [f64; 2],
    pub normalize_reward: bool,
    pub offroad_terminal: bool,
    /// True if all vehicles look for collisions; only the controlled ones in `highway-fast-v0`.
    pub all_collisions: bool,
    /// Speeds of meta-actions, from low to high, m/s.
    pub target_speeds: Vec<f64>,
    pub observation: Observation,
    pub action: ActionType,
}

impl Config {
    /// Vehicles of an episode, the controlled ones too.
    pub fn all_vehicles(&self) -> usize {
        self.vehicles + self.controlled
    }
}
