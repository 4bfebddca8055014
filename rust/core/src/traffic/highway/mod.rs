//! `highway-v0` and `highway-fast-v0` of highway-env 1.12.1: one agent in the traffic of a straight road.
//!
//! Source: `highway_env/envs/highway_env.py`, `highway_env/envs/common/abstract.py`.

mod config;
mod populate;

use std::sync::Arc;

use serde::{Deserialize, Serialize};

pub use config::Config;

use super::Traffic;
use super::action::LastAction;
use super::columns::Driven;
use super::map::RoadMap;
use super::road::Road;
use super::scene::{Camera, Scene, Scenic};
use crate::env::{ActionKind, Actions, AgentRows, Endable, Env, Phase, Real, Refused, ensure};
use crate::memory::arrays;
use crate::numpy_random::NumpyRandom;

/// The agent's vehicle.
const EGO: usize = 0;

/// All that changes while an episode runs.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Episode {
    pub traffic: Traffic,
    pub rng: NumpyRandom,
    /// Seconds.
    pub time: f64,
    /// The agent's last action; the neutral action after a reset.
    pub action: LastAction,
    /// Order of the other vehicles' rows in the present observation, where it is random.
    order: Vec<u32>,
    /// The present observation, where later ones go on from it.
    seen: Vec<f32>,
}

/// The parts of a reward, before they are weighed (`_rewards`).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Parts {
    pub collision: f64,
    pub right_lane: f64,
    pub high_speed: f64,
    pub on_road: f64,
}

pub struct Highway {
    config: Arc<Config>,
    episode: Episode,
}

impl Highway {
    pub fn new(config: Arc<Config>) -> Self {
        let mut traffic = populate::road(&config);
        traffic.reserve(config.all_vehicles());
        let action = config.action.neutral_action();
        let rng = NumpyRandom::new(0);
        let episode = Episode { traffic, rng, time: 0.0, action, order: Vec::new(), seen: Vec::new() };
        Self { config, episode }
    }

    pub fn config(&self) -> &Config {
        &self.config
    }

    pub fn episode(&self) -> &Episode {
        &self.episode
    }

    /// Replaces the random generator.
    pub fn set_generator(&mut self, rng: NumpyRandom) {
        self.episode.rng = rng;
    }

    /// The parts of the reward of the present state.
    pub fn parts(&self) -> Parts {
        let v = &self.episode.traffic.vehicles;
        let lane = if v.driver[EGO].has_targets() { v.target_lane[EGO] } else { v.lane[EGO] };
        let [low, high] = self.config.reward_speed_range;
        Parts {
            collision: f64::from(v.crashed[EGO]),
            right_lane: lane as f64 / (self.config.lanes - 1).max(1) as f64,
            high_speed: ((v.speed[EGO] * v.cos[EGO] - low) / (high - low)).clamp(0.0, 1.0),
            on_road: f64::from(self.is_on_road()),
        }
    }

    fn is_on_road(&self) -> bool {
        let Traffic { road, vehicles: v, .. } = &self.episode.traffic;
        road.lane(v.lane[EGO]).holds(v.x[EGO], v.y[EGO], 0.0)
    }

    fn reward(&self) -> f64 {
        let (c, parts) = (&self.config, self.parts());
        let sum = c.collision_reward * parts.collision
            + c.right_lane_reward * parts.right_lane
            + c.high_speed_reward * parts.high_speed;
        let scaled = if c.normalize_reward {
            (sum - c.collision_reward) / (c.high_speed_reward + c.right_lane_reward - c.collision_reward)
        } else {
            sum
        };
        scaled * parts.on_road
    }

    fn is_terminated(&self) -> bool {
        self.episode.traffic.vehicles.crashed[EGO] || self.config.offroad_terminal && !self.is_on_road()
    }

    fn write(&self, obs: &mut [f32]) {
        self.config.observation.write(&self.episode.traffic, EGO, &self.episode.order, &[], obs);
    }

    /// Writes an observation for the first time: it may be random.
    fn draw(&mut self, obs: &mut [f32]) {
        self.config.observation.draw(&mut self.episode.rng, &mut self.episode.order);
        if self.config.observation.remembers() {
            match &self.episode.seen[..] {
                [] => obs.fill(0.0),
                seen => obs.copy_from_slice(seen),
            }
            self.write(obs);
            self.episode.seen.clear();
            self.episode.seen.extend_from_slice(obs);
        } else {
            self.write(obs);
        }
    }
}

impl Env for Highway {
    type State = Episode;

    /// A step is worth a thread.
    const MIN_BLOCK: usize = 2;

    const DOUBLE: bool = true;

    fn num_agents(&self) -> usize {
        1
    }

    fn obs_len(&self) -> usize {
        self.config.observation.len()
    }

    fn action_kind(&self) -> ActionKind {
        self.config.action.kind()
    }

    fn check(&self, actions: Actions<'_>) -> Result<(), Refused> {
        self.config.action.check(actions)
    }

    fn seed(&mut self, seed: u64) {
        self.episode.rng = NumpyRandom::new(seed);
    }

    fn reset(&mut self, obs: &mut [f32], alive: &mut [u8]) {
        self.episode.time = 0.0;
        self.episode.action = self.config.action.neutral_action();
        self.episode.seen.clear();
        populate::populate(&mut self.episode.traffic, &self.config, &mut self.episode.rng);
        self.draw(obs);
        alive[0] = 1;
    }

    fn observe(&self, obs: &mut [f32], alive: &mut [u8]) {
        // Without an episode there is nothing to see.
        if self.episode.traffic.vehicles.is_empty() {
            obs.fill(0.0);
            alive[0] = 0;
        } else if self.config.observation.remembers() {
            obs.copy_from_slice(&self.episode.seen);
        } else {
            self.write(obs);
        }
    }

    fn step<R: Real>(&mut self, actions: Actions<'_>, rows: AgentRows<'_, R>) -> bool {
        self.episode.time += 1.0 / self.config.policy_frequency;
        self.episode.action.set(actions);
        self.config.action.apply(&mut self.episode.traffic, EGO, actions);
        for _ in 0..self.config.frames {
            self.episode.traffic.frame(1.0 / self.config.simulation_frequency);
        }
        self.draw(rows.obs);
        let (terminated, truncated) = (self.is_terminated(), self.episode.time >= self.config.duration);
        rows.rewards[0] = R::from_f64(self.reward());
        rows.terminated[0] = u8::from(terminated);
        rows.truncated[0] = u8::from(truncated);
        rows.alive[0] = u8::from(!(terminated || truncated));
        terminated || truncated
    }

    /// Only meta-actions have masks.
    fn mask_len(&self) -> usize {
        self.config.action.metas().len()
    }

    fn action_mask(&self, mask: &mut [u8]) {
        // Without an episode no action has an effect.
        if self.episode.traffic.vehicles.is_empty() {
            mask.fill(0);
        } else {
            self.config.action.mask(&self.episode.traffic, EGO, mask);
        }
    }

    fn fingerprint(&self) -> String {
        format!("highway {:?}", self.config)
    }

    fn state(&self) -> &Episode {
        &self.episode
    }

    fn check_state(&self, state: &Episode, phase: Phase) -> Result<(), String> {
        let (config, v) = (&self.config, &state.traffic.vehicles);
        state.traffic.check(&self.episode.traffic)?;
        let expected = if phase == Phase::NeverReset { 0 } else { config.all_vehicles() };
        ensure(v.len() == expected, "there are more or fewer vehicles than in an episode")?;
        ensure(
            v.driver.first().is_none_or(|&ego| ego == config.action.driver()),
            "another kind of driver has the agent's place",
        )?;
        ensure(state.rng.is_sound(), "the random generator has an impossible state")?;
        let over = state.time >= config.duration;
        ensure(state.time >= 0.0 && (phase != Phase::Running || !over), "the time is beyond the episode")?;
        ensure(config.action.takes(&state.action), "the last action does not exist")?;
        let seen = if config.observation.remembers() && expected > 0 { config.observation.len() } else { 0 };
        ensure(state.seen.len() == seen, "the observation has another size")?;
        ensure(
            config.observation.takes_order(&state.order, expected > 0),
            "the order of the observation's rows is no permutation",
        )
    }

    fn set_state(&mut self, state: Episode) {
        self.episode = state;
    }

    fn memory(&self) -> usize {
        let order = self.config.observation.len() * size_of::<u32>();
        self.episode.traffic.memory(self.config.all_vehicles()).saturating_add(arrays(2, 2 * order))
    }

    fn most_saved(&self) -> usize {
        self.episode
            .traffic
            .most_saved(self.config.all_vehicles())
            .saturating_add(256 + 9 * self.config.observation.len())
    }
}

impl Driven for Highway {
    type Map = Road;

    fn traffic(&self) -> &Traffic {
        &self.episode.traffic
    }

    fn traffic_mut(&mut self) -> &mut Traffic {
        &mut self.episode.traffic
    }

    fn vehicle_of(&self, _agent: usize) -> Option<usize> {
        (!self.episode.traffic.vehicles.is_empty()).then_some(EGO)
    }

    /// There is no goal.
    fn has_arrived(&self, _agent: usize) -> bool {
        false
    }

    fn time(&self) -> f64 {
        self.episode.time
    }
}

impl Endable for Highway {
    /// Vehicles of agents stay on the road.
    fn end(&mut self, _ended: &[u8], alive: &mut [u8]) -> bool {
        alive[0] = 0;
        true
    }
}

impl Scenic for Highway {
    fn scene(&self) -> Scene {
        let Episode { traffic, time, .. } = &self.episode;
        traffic.scene(*time, Camera::Follow(EGO), [0.0, populate::SPEED_LIMIT], |i| (i as u32, (i == EGO).then_some(0)))
    }
}
