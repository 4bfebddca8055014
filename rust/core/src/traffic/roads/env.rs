//! The environment of any scenario on a road network.
//!
//! Source: `highway_env/envs/common/abstract.py` (`AbstractEnv`, `MultiAgentWrapper`).

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::scenario::{MOST_PARTS, Parts, Place, Scenario};
use super::world::World;
use crate::env::{ActionKind, Actions, AgentRows, Env, Phase, Real, Refused, ensure};
use crate::memory::arrays;
use crate::traffic::action::{ActionType, LastAction};
use crate::traffic::numpy_random::NumpyRandom;
use crate::traffic::observation::{Clock, Observation};
use crate::traffic::obstacle::Landmark;
use crate::traffic::scene::{Camera, Scene, Scenic};
use crate::traffic::vehicles::Driver;

/// Who an episode ends for, and whose the rewards are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ends {
    /// All get the same reward and end together, when the scenario is over.
    Together,
    /// Each agent has its own reward and end and acts no more after it.
    Each,
    /// Each agent has its own reward and end, but all act until all have ended (`MultiAgentWrapper`).
    Wrapped,
}

/// The options that all scenarios have.
#[derive(Clone, Debug)]
pub struct Config {
    /// Frames a second.
    pub simulation_frequency: f64,
    /// Steps a second.
    pub policy_frequency: f64,
    /// Frames of a step, at least 1.
    pub frames: usize,
    /// Seconds until an episode is truncated.
    pub duration: f64,
    /// The kind of the agents' vehicles.
    pub agent: Driver,
    /// `other_vehicles_type`.
    pub other: Driver,
    /// Speeds of meta-actions, from low to high, m/s.
    pub target_speeds: Vec<f64>,
    pub observation: Observation,
    pub action: ActionType,
    /// Agents that act: 1, or all controlled vehicles.
    pub agents: usize,
    pub ends: Ends,
    /// `neighbour_vehicles_connected_lanes`.
    pub connected: bool,
    pub scenario: Arc<dyn Scenario>,
}

/// All that changes while an episode runs.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Episode {
    pub world: World,
    pub rng: NumpyRandom,
    /// Seconds.
    pub time: f64,
    /// Last action of each agent; the neutral action after a reset.
    pub actions: Vec<LastAction>,
    /// True for the agents that act.
    alive: Vec<bool>,
    /// Order of the other vehicles' rows in each agent's present observation, where it is random.
    orders: Vec<Vec<u32>>,
    /// The present observations, where vehicles come and go after they were made, or where later ones go on from them.
    seen: Vec<f32>,
}

pub struct RoadEnv {
    config: Arc<Config>,
    episode: Episode,
}

impl RoadEnv {
    pub fn new(config: Arc<Config>) -> Self {
        let scenario = &config.scenario;
        let road = scenario.network(config.connected);
        let mut world = World::new(road, config.target_speeds.clone(), scenario.model(), scenario.is_regulated());
        world.traffic.reserve(scenario.vehicles());
        let episode = Episode {
            world,
            rng: NumpyRandom::new(0),
            time: 0.0,
            actions: vec![config.action.neutral_action(); config.agents],
            alive: vec![false; config.agents],
            orders: vec![Vec::new(); config.agents],
            seen: Vec::new(),
        };
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

    /// Returns whether there is an episode.
    pub fn has_vehicles(&self) -> bool {
        !self.episode.world.agents().is_empty()
    }

    /// The parts of the reward of one controlled vehicle in the present state.
    fn own_parts(&self, agent: usize) -> Parts {
        let Episode { world, actions, .. } = &self.episode;
        let scenario = &self.config.scenario;
        let vehicle = world.agents()[agent];
        if self.config.ends == Ends::Together && actions.len() > 1 && scenario.joins_actions() {
            return scenario.parts(world, vehicle, &LastAction::joined(actions));
        }
        scenario.parts(world, vehicle, &actions[agent.min(actions.len() - 1)])
    }

    /// Those of the shared reward: the means over the controlled vehicles that share it.
    pub fn parts(&self) -> Parts {
        let n = self.sharing();
        let mut mean = [0.0; MOST_PARTS];
        for agent in 0..n {
            let own = self.own_parts(agent);
            mean.iter_mut().zip(own).for_each(|(mean, own)| *mean += own);
        }
        mean.map(|sum| sum / n as f64)
    }

    /// Number of the controlled vehicles that share the reward.
    fn sharing(&self) -> usize {
        if self.config.scenario.shares_reward() { self.episode.world.agents().len() } else { 1 }
    }

    /// The reward of one controlled vehicle in the present state (`_agent_reward`).
    pub fn own_reward(&self, agent: usize) -> f64 {
        self.config.scenario.reward(&self.own_parts(agent))
    }

    /// Returns whether the episode is over for one agent (`_agent_is_terminal`).
    pub fn is_done(&self, agent: usize) -> bool {
        let world = &self.episode.world;
        self.config.scenario.is_done(world, world.agents()[agent])
    }

    /// Returns whether an agent has reached its goal.
    pub fn has_succeeded(&self, agent: usize) -> bool {
        let world = &self.episode.world;
        self.config.scenario.has_succeeded(world, world.agents()[agent])
    }

    /// Writes what an agent sees in the precision of `out`. False: the kind of observation is single, and nothing was
    /// written.
    fn write_double<R: Real>(&self, agent: usize, out: &mut [R]) -> bool {
        let Episode { world, time, .. } = &self.episode;
        let clock = Clock { time: *time, frames: world.frames() };
        self.config.observation.write_double(&world.traffic, world.agents()[agent], clock, out)
    }

    /// Writes the observations of all agents in double precision, for the kinds that are; zeros without
    /// an episode.
    pub fn observe_double(&self, obs: &mut [f64]) {
        for (agent, out) in obs.chunks_exact_mut(self.config.observation.len()).enumerate() {
            if !(self.has_vehicles() && self.write_double(agent, out)) {
                out.fill(0.0);
            }
        }
    }

    fn write(&self, obs: &mut [f32]) {
        let Episode { world, orders, alive, .. } = &self.episode;
        let rows = obs.chunks_exact_mut(self.config.observation.len());
        for (agent, out) in rows.enumerate() {
            if !alive[agent] {
                out.fill(0.0);
            } else if !self.write_double(agent, out) {
                self.config.observation.write(&world.traffic, world.agents()[agent], &orders[agent], out);
            }
        }
    }

    /// Writes observations for the first time: they may be random.
    fn draw(&mut self, obs: &mut [f32]) {
        for order in &mut self.episode.orders {
            self.config.observation.draw(&mut self.episode.rng, order);
        }
        if self.config.observation.remembers() {
            match &self.episode.seen[..] {
                [] => obs.fill(0.0),
                seen => obs.copy_from_slice(seen),
            }
        }
        self.write(obs);
        if self.keeps_observations() {
            self.episode.seen.clear();
            self.episode.seen.extend_from_slice(obs);
        }
    }

    fn keeps_observations(&self) -> bool {
        self.config.scenario.is_open() || self.config.observation.remembers()
    }

    /// Lets the scenario add and remove vehicles.
    fn place(&mut self, change: impl FnOnce(&dyn Scenario, &mut Place<'_>)) {
        let config = &self.config;
        let Episode { world, rng, .. } = &mut self.episode;
        let (frame, frames) = (1.0 / config.simulation_frequency, config.simulation_frequency as usize);
        let (agent, other, ends) = (config.agent, config.other, config.ends);
        change(&*config.scenario, &mut Place { world, rng, agent, other, frame, frames, ends });
    }

    fn write_alive(&self, alive: &mut [u8]) {
        alive.iter_mut().zip(&self.episode.alive).for_each(|(out, &alive)| *out = u8::from(alive));
    }

    /// Applies the actions. Controlled vehicles without an agent that acts keep their lanes and speeds.
    fn act(&mut self, actions: Actions<'_>) {
        let Episode { world, actions: last, alive, .. } = &mut self.episode;
        let agents = self.config.agents;
        for agent in (0..agents).filter(|&agent| alive[agent]) {
            let own = actions.of_env(agent, 1, agents);
            last[agent].set(own);
            let vehicle = world.agents()[agent];
            self.config.action.apply(&mut world.traffic, vehicle, own);
        }
    }
}

impl Env for RoadEnv {
    type State = Episode;

    /// A step is worth a thread.
    const MIN_BLOCK: usize = 2;

    const DOUBLE: bool = true;

    fn num_agents(&self) -> usize {
        self.config.agents
    }

    fn obs_len(&self) -> usize {
        self.config.observation.len()
    }

    fn action_kind(&self) -> ActionKind {
        self.config.action.kind()
    }

    fn check(&self, actions: Actions<'_>) -> Result<(), Refused> {
        let agents = self.config.agents;
        (0..agents).filter(|&agent| self.episode.alive[agent]).try_for_each(|agent| {
            let own = self.config.action.check(actions.of_env(agent, 1, agents));
            own.map_err(|refused| Refused { agent, ..refused })
        })
    }

    fn seed(&mut self, seed: u64) {
        self.episode.rng = NumpyRandom::new(seed);
    }

    fn reset(&mut self, obs: &mut [f32], alive: &mut [u8]) {
        self.episode.time = 0.0;
        self.episode.actions.fill(self.config.action.neutral_action());
        self.episode.alive.fill(true);
        self.episode.seen.clear();
        self.episode.world.clear();
        self.place(|scenario, place| scenario.populate(place));
        self.draw(obs);
        self.write_alive(alive);
    }

    fn observe(&self, obs: &mut [f32], alive: &mut [u8]) {
        if self.episode.seen.is_empty() {
            self.write(obs);
        } else {
            obs.copy_from_slice(&self.episode.seen);
        }
        self.write_alive(alive);
    }

    fn step<R: Real>(&mut self, actions: Actions<'_>, rows: AgentRows<'_, R>) -> bool {
        self.episode.time += 1.0 / self.config.policy_frequency;
        self.act(actions);
        for _ in 0..self.config.frames {
            self.episode.world.frame(1.0 / self.config.simulation_frequency);
        }
        self.draw(rows.obs);
        let is_late = self.episode.time >= self.config.duration;
        let together = self.config.ends == Ends::Together;
        let (over, shared) = if together {
            let n = self.sharing();
            let sum: f64 = (0..n).map(|agent| self.own_reward(agent)).sum();
            let world = &self.episode.world;
            (self.config.scenario.is_over(world), sum / n as f64 + self.config.scenario.reward_of_others(world))
        } else {
            ((0..self.config.agents).all(|agent| !self.episode.alive[agent] || self.is_done(agent)), 0.0)
        };
        for agent in 0..self.config.agents {
            let acted = self.episode.alive[agent];
            let done = acted && if together { over } else { self.is_done(agent) };
            let reward = match (acted, together) {
                (false, _) => 0.0,
                (true, true) => shared,
                (true, false) => self.own_reward(agent),
            };
            rows.rewards[agent] = R::from_f64(reward);
            rows.terminated[agent] = u8::from(done);
            rows.truncated[agent] = u8::from(acted && is_late && (self.config.ends != Ends::Each || !done));
        }
        for agent in 0..self.config.agents {
            let stays = self.config.ends == Ends::Wrapped || rows.terminated[agent] == 0;
            self.episode.alive[agent] &= stays && !(over || is_late);
        }
        self.write_alive(rows.alive);
        self.place(|scenario, place| scenario.after_step(place));
        over || is_late
    }

    /// Only meta-actions have masks.
    fn mask_len(&self) -> usize {
        self.config.action.metas().len()
    }

    fn action_mask(&self, mask: &mut [u8]) {
        let world = &self.episode.world;
        for (agent, out) in mask.chunks_exact_mut(self.mask_len()).enumerate() {
            // Without an episode no action has an effect.
            match world.agents().get(agent) {
                Some(&vehicle) => self.config.action.mask(&world.traffic, vehicle, out),
                None => out.fill(0),
            }
        }
    }

    fn fingerprint(&self) -> String {
        format!("roads {:?}", self.config)
    }

    fn state(&self) -> &Episode {
        &self.episode
    }

    fn check_state(&self, state: &Episode, phase: Phase) -> Result<(), String> {
        let config = &self.config;
        let began = phase != Phase::NeverReset;
        let (controlled, landmarks) =
            if began { (config.scenario.controlled(), config.scenario.landmarks()) } else { (0, 0) };
        state.world.check(&self.episode.world, controlled, landmarks, config.agent)?;
        ensure(state.rng.is_sound(), "the random generator has an impossible state")?;
        let late = state.time >= config.duration;
        ensure(state.time >= 0.0 && (phase != Phase::Running || !late), "the time is beyond the episode")?;
        let lengths = [state.actions.len(), state.alive.len(), state.orders.len()];
        ensure(lengths == [config.agents; 3], "the agents are more or fewer")?;
        let alive = state.alive.iter().any(|&alive| alive);
        ensure(alive == (phase == Phase::Running), "the agents act when there is no episode, or none does in one")?;
        let seen = if self.keeps_observations() && began { config.agents * config.observation.len() } else { 0 };
        ensure(state.seen.len() == seen, "the observations have another size")?;
        ensure(state.actions.iter().all(|action| config.action.takes(action)), "the last action does not exist")?;
        ensure(
            state.orders.iter().all(|order| config.observation.takes_order(order, began)),
            "the order of the observation's rows is no permutation",
        )
    }

    fn set_state(&mut self, state: Episode) {
        self.episode = state;
    }

    fn memory(&self) -> usize {
        let orders = self.config.agents * self.config.observation.len() * size_of::<u32>();
        let routes = self.config.scenario.vehicles() * 256;
        let landmarks = self.config.scenario.landmarks() * size_of::<Landmark>();
        self.episode
            .world
            .traffic
            .memory(self.config.scenario.vehicles())
            .saturating_add(arrays(9, orders + routes + landmarks))
    }
}

impl Scenic for RoadEnv {
    fn scene(&self) -> Scene {
        let Episode { world, time, .. } = &self.episode;
        let camera = if self.config.agents > 1 {
            Camera::Agents
        } else {
            Camera::Follow(world.agents().first().copied().unwrap_or(0))
        };
        let fastest = self.config.target_speeds.iter().copied().fold(0.0, f64::max).max(10.0);
        world.traffic.scene(*time, camera, [0.0, fastest], |i| {
            let agent = world.agents().iter().position(|&agent| agent == i);
            (world.numbers()[i], agent.map(|agent| agent as u32))
        })
    }
}
