//! The environment of any scenario on a road network.
//!
//! Source: `highway_env/envs/common/abstract.py` (`AbstractEnv`, `MultiAgentWrapper`).

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::Network;
use super::links::Comms;
use super::scenario::{Ends, MOST_PARTS, Parts, Place, Scenario};
use super::template::Template;
use super::world::World;
use crate::env::{ActionKind, Actions, AgentRows, Endable, Env, Phase, Real, Refused, ensure, number_named};
use crate::memory::arrays;
use crate::numpy_random::NumpyRandom;
use crate::traffic::Traffic;
use crate::traffic::action::{ActionType, LastAction};
use crate::traffic::columns::Driven;
use crate::traffic::difficulty::Difficulty;
use crate::traffic::links::LinkState;
use crate::traffic::links::account::Account as LinkAccount;
use crate::traffic::links::choice::Choice;
use crate::traffic::metrics::{self, Account};
use crate::traffic::observation::Observation;
use crate::traffic::obstacle::Landmark;
use crate::traffic::scene::{Camera, Scene, Scenic};
use crate::traffic::vehicles::Driver;

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
    /// The template that `scenario` was made of, and easier ones are.
    pub template: Template,
    /// The radio links between agents; `None`: they see each other as they are. Observations are tables then.
    pub comms: Option<Comms>,
}

impl Config {
    /// Numbers of an agent's observation: those of [`Config::observation`], then the powers that it sensed.
    pub(super) fn obs_len(&self) -> usize {
        self.observation.len() + self.comms.as_ref().map_or(0, |comms| comms.links.sensed_len())
    }

    /// The scenario of a difficulty; the error says why there is none. Episodes can be easier than configured only.
    pub fn scenario_at(&self, difficulty: Difficulty) -> Result<Arc<dyn Scenario>, String> {
        difficulty.check_within(self.agents, "controlled_vehicles", 1.0)?;
        self.template.at(difficulty)
    }
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
    pub(super) alive: Vec<bool>,
    /// Order of the other vehicles' rows in each agent's present observation, where it is random.
    pub(super) orders: Vec<Vec<u32>>,
    /// The present observations, where vehicles come and go after they were made, or where later ones go on from them.
    pub(super) seen: Vec<f32>,
    /// With [`Config::comms`] only.
    pub links: Option<LinkState>,
    /// The number of the vehicle of each station after those of agents.
    pub(super) radios: Vec<u32>,
    /// Difficulty of this episode and of coming ones; `None`: as configured.
    difficulty: Option<Difficulty>,
    next_difficulty: Option<Difficulty>,
    steps: u32,
    account: Account,
    /// Episodes so far, and what became of the last.
    pub finished: u64,
    pub last: metrics::Episode,
    /// Statistics of the links in the last episode.
    pub last_links: LinkAccount,
    /// The present observations in double precision, where they are measured before the frames of a step.
    pub(super) measured: Vec<f64>,
}

pub struct RoadEnv {
    pub(super) config: Arc<Config>,
    /// Scenarios of this episode and of coming ones.
    pub(super) scenario: Arc<dyn Scenario>,
    next_scenario: Arc<dyn Scenario>,
    pub(super) episode: Episode,
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
            links: config.comms.is_some().then(|| LinkState::new(0)),
            radios: Vec::new(),
            difficulty: None,
            next_difficulty: None,
            steps: 0,
            account: Account::new(config.agents),
            finished: 0,
            last: metrics::Episode::NONE,
            last_links: LinkAccount::default(),
            measured: Vec::new(),
        };
        let scenario = config.scenario.clone();
        Self { config, next_scenario: scenario.clone(), scenario, episode }
    }

    /// The difficulty of coming episodes.
    pub fn difficulty(&self) -> Difficulty {
        self.episode.next_difficulty.unwrap_or(Difficulty { agents: self.config.agents, density: 1.0 })
    }

    /// Sets the difficulty of coming episodes. `scenario`: that of [`Config::scenario_at`] for it.
    pub fn set_difficulty(&mut self, difficulty: Difficulty, scenario: Arc<dyn Scenario>) {
        self.episode.next_difficulty = Some(difficulty);
        self.next_scenario = scenario;
    }

    /// The scenarios of a state, of its episode and of the coming ones; the error says why there are none.
    fn scenarios_of(&self, state: &Episode) -> Result<[Arc<dyn Scenario>; 2], String> {
        let known = [(self.episode.difficulty, &self.scenario), (self.episode.next_difficulty, &self.next_scenario)];
        let find = |wanted: Option<Difficulty>| match (wanted, known.iter().find(|(other, _)| *other == wanted)) {
            (_, Some((_, scenario))) => Ok(Arc::clone(scenario)),
            (None, None) => Ok(Arc::clone(&self.config.scenario)),
            (Some(difficulty), None) => self.config.scenario_at(difficulty),
        };
        Ok([find(state.difficulty)?, find(state.next_difficulty)?])
    }

    /// Number of agents in the present episode.
    fn present_agents(&self) -> usize {
        self.episode.difficulty.map_or(self.config.agents, |difficulty| difficulty.agents)
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
        let scenario = &self.scenario;
        let Some(vehicle) = world.vehicle_of(agent) else { return [0.0; MOST_PARTS] };
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
        if self.scenario.shares_reward() { self.episode.world.agents().len() } else { 1 }
    }

    /// The reward of one controlled vehicle in the present state (`_agent_reward`).
    pub fn own_reward(&self, agent: usize) -> f64 {
        self.scenario.reward(&self.own_parts(agent))
    }

    /// The share of the last message of an agent in its reward.
    fn reward_of_links(&self, agent: usize) -> f64 {
        match (&self.config.comms, &self.episode.links) {
            (Some(comms), Some(links)) => comms.reward(links, agent),
            _ => 0.0,
        }
    }

    /// Returns whether the episode is over for one agent (`_agent_is_terminal`).
    pub fn is_done(&self, agent: usize) -> bool {
        let world = &self.episode.world;
        world.vehicle_of(agent).is_none_or(|i| self.scenario.is_done(world, i))
    }

    /// Returns whether an agent has reached its goal.
    pub fn has_succeeded(&self, agent: usize) -> bool {
        let world = &self.episode.world;
        world.vehicle_of(agent).is_none_or(|i| self.scenario.has_succeeded(world, i))
    }

    /// Lets the scenario add and remove vehicles.
    fn place(&mut self, change: impl FnOnce(&dyn Scenario, &mut Place<'_>)) {
        let Self { config, scenario, episode, .. } = self;
        let Episode { world, rng, alive, difficulty, .. } = episode;
        let (frame, frames) = (1.0 / config.simulation_frequency, config.simulation_frequency as usize);
        let step = frame * config.frames as f64;
        let (agent, other, ends) = (config.agent, config.other, config.ends);
        let alive = &alive[..difficulty.map_or(alive.len(), |difficulty| difficulty.agents)];
        change(&**scenario, &mut Place { world, rng, agent, other, frame, frames, step, ends, alive });
    }

    fn write_alive(&self, alive: &mut [u8]) {
        alive.iter_mut().zip(&self.episode.alive).for_each(|(out, &alive)| *out = u8::from(alive));
    }

    /// Applies the actions. Controlled vehicles without an agent that acts keep their lanes and speeds. Returns what the
    /// agents send with, if there are links.
    fn act(&mut self, actions: Actions<'_>) -> Vec<Option<Choice>> {
        let Episode { world, actions: last, alive, .. } = &mut self.episode;
        let Config { agents, action, comms, .. } = &*self.config;
        let mut choices = vec![None; if comms.is_some() { *agents } else { 0 }];
        for agent in (0..*agents).filter(|&agent| alive[agent]) {
            let mut index = [0];
            let mut own = actions.of_env(agent, 1, *agents);
            if let Some(comms) = comms {
                let (driving, choice) = comms.split(action, own, &mut index).expect("a checked action");
                own = driving;
                choices[agent] = Some(choice);
            }
            last[agent].set(own);
            if let Some(vehicle) = world.vehicle_of(agent) {
                action.apply(&mut world.traffic, vehicle, own);
            }
        }
        choices
    }

    /// Lets all vehicles with a radio send their states.
    fn exchange(&mut self, choices: &[Option<Choice>]) {
        let Episode { world, alive, links, radios, .. } = &mut self.episode;
        if let (Some(links), Some(comms)) = (links, &self.config.comms) {
            let between = |a, b| self.scenario.has_building_between(a, b);
            comms.exchange(links, radios, world, alive, choices, between);
        }
    }

    /// Counts a step of an agent that acted.
    fn count(&mut self, agent: usize, reward: f64) {
        let Episode { world, account, .. } = &mut self.episode;
        account.rewards += reward;
        if let Some(vehicle) = world.vehicle_of(agent) {
            account.speed_sum += world.traffic.vehicles.speed[vehicle];
            account.speed_count = account.speed_count.saturating_add(1);
        }
    }

    /// Counts what has become of an agent that acts no more.
    fn settle(&mut self, agent: usize) {
        let scenario = &self.scenario;
        let Episode { world, time, account, .. } = &mut self.episode;
        // One whose vehicle has left the roads has arrived.
        let (crashed, done_well) = world.vehicle_of(agent).map_or((false, true), |vehicle| {
            let done_well = if scenario.has_goal() {
                scenario.has_succeeded(world, vehicle)
            } else {
                !scenario.is_done(world, vehicle)
            };
            (world.traffic.vehicles.crashed[vehicle], done_well)
        });
        account.crashed += u32::from(crashed);
        account.succeeded += u32::from(!crashed && done_well);
        if !crashed && done_well && scenario.has_goal() {
            account.arrive(*time);
        }
    }

    fn close_account(&mut self) {
        let Episode { account, steps, links, .. } = &self.episode;
        let seconds = f64::from(*steps) / self.config.policy_frequency;
        let mut last = account.close(*steps, seconds, account.arrived as usize);
        // Nobody counts times to a collision on roads of any shape, and vehicles where none has a goal.
        last.min_ttc = f64::NAN;
        if !self.scenario.has_goal() {
            last.throughput = f64::NAN;
        }
        self.episode.last_links = links.as_ref().map_or_else(LinkAccount::default, |links| *links.total());
        self.episode.last = last;
        self.episode.finished += 1;
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
        self.config.obs_len()
    }

    fn action_kind(&self) -> ActionKind {
        let action = &self.config.action;
        self.config.comms.as_ref().map_or_else(|| action.kind(), |comms| comms.action_kind(action))
    }

    fn check(&self, actions: Actions<'_>) -> Result<(), Refused> {
        let agents = self.config.agents;
        (0..agents).filter(|&agent| self.episode.alive[agent]).try_for_each(|agent| {
            let own = actions.of_env(agent, 1, agents);
            let checked = match &self.config.comms {
                None => self.config.action.check(own),
                Some(comms) => comms
                    .split(&self.config.action, own, &mut [0])
                    .and_then(|(driving, _)| self.config.action.check(driving)),
            };
            checked.map_err(|refused| Refused { agent, ..refused })
        })
    }

    fn seed(&mut self, seed: u64) {
        self.episode.rng = NumpyRandom::new(seed);
        self.episode.links = self.config.comms.is_some().then(|| LinkState::new(seed));
    }

    fn reseed(&mut self, seed: u64) {
        self.episode.rng = NumpyRandom::new(seed);
        if let Some(links) = &mut self.episode.links {
            links.reseed(seed);
        }
    }

    fn reset(&mut self, obs: &mut [f32], alive: &mut [u8]) {
        self.episode.difficulty = self.episode.next_difficulty;
        self.scenario = self.next_scenario.clone();
        let agents = self.present_agents();
        self.episode.time = 0.0;
        self.episode.actions.fill(self.config.action.neutral_action());
        self.episode.alive.iter_mut().enumerate().for_each(|(agent, alive)| *alive = agent < agents);
        self.episode.seen.clear();
        self.episode.world.clear();
        self.place(|scenario, place| scenario.populate(place));
        (self.episode.steps, self.episode.account) = (0, Account::new(agents));
        if let (Some(links), Some(comms)) = (&mut self.episode.links, &self.config.comms) {
            comms.reset(links, &mut self.episode.radios, &*self.scenario, agents);
        }
        self.exchange(&[]);
        self.learn_space();
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
        self.episode.steps = self.episode.steps.saturating_add(1);
        self.scenario.before_step(&mut self.episode.world);
        let choices = self.act(actions);
        if self.scenario.shows_past() {
            self.draw(rows.obs);
        }
        for _ in 0..self.config.frames {
            self.episode.world.frame(1.0 / self.config.simulation_frequency);
        }
        self.exchange(&choices);
        if !self.scenario.shows_past() {
            self.draw(rows.obs);
        }
        let is_late = self.episode.time >= self.config.duration;
        let together = self.config.ends == Ends::Together;
        let (over, shared) = if together {
            let n = self.sharing();
            let sum: f64 = (0..n).map(|agent| self.own_reward(agent)).sum();
            let world = &self.episode.world;
            (self.scenario.is_over(world), sum / n as f64 + self.scenario.reward_of_others(world))
        } else {
            ((0..self.config.agents).all(|agent| !self.episode.alive[agent] || self.is_done(agent)), 0.0)
        };
        for agent in 0..self.config.agents {
            let acted = self.episode.alive[agent];
            let done = acted && if together { over } else { self.is_done(agent) };
            let reward = match (acted, together) {
                (false, _) => 0.0,
                (true, true) => shared,
                (true, false) => self.own_reward(agent) + self.reward_of_links(agent),
            };
            if acted {
                self.count(agent, reward);
            }
            rows.rewards[agent] = R::from_f64(reward);
            rows.terminated[agent] = u8::from(done);
            rows.truncated[agent] = u8::from(acted && is_late && (self.config.ends != Ends::Each || !done));
        }
        for agent in 0..self.config.agents {
            let stays = self.config.ends == Ends::Wrapped || rows.terminated[agent] == 0;
            let acted = std::mem::replace(&mut self.episode.alive[agent], false);
            self.episode.alive[agent] = acted && stays && !(over || is_late);
            if acted && !self.episode.alive[agent] {
                self.settle(agent);
            }
        }
        self.write_alive(rows.alive);
        if over || is_late {
            self.close_account();
        }
        self.place(|scenario, place| scenario.after_step(place));
        over || is_late
    }

    /// Only meta-actions have masks.
    fn mask_len(&self) -> usize {
        self.config.action.metas().len()
    }

    fn action_mask(&self, mask: &mut [u8]) {
        let world = &self.episode.world;
        for (agent, out) in mask.chunks_exact_mut(self.mask_len().max(1)).enumerate() {
            // Without an episode or a vehicle no action has an effect.
            match world.vehicle_of(agent) {
                Some(vehicle) => self.config.action.mask(&world.traffic, vehicle, out),
                None => out.fill(0),
            }
        }
    }

    fn episode_info(&self, key: &str) -> f64 {
        number_named(key, self.episode.last.numbers().chain(self.episode.last_links.numbers()))
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
        let [scenario, _] = self.scenarios_of(state)?;
        let present = state.difficulty.map_or(config.agents, |difficulty| difficulty.agents);
        let (controlled, landmarks) = if began { (scenario.controlled(), scenario.landmarks()) } else { (0, 0) };
        state.world.check(&self.episode.world, controlled, landmarks, config.agent)?;
        ensure(state.rng.is_sound(), "the random generator has an impossible state")?;
        let late = state.time >= config.duration;
        ensure(state.time >= 0.0 && (phase != Phase::Running || !late), "the time is beyond the episode")?;
        let lengths = [state.actions.len(), state.alive.len(), state.orders.len()];
        ensure(lengths == [config.agents; 3], "the agents are more or fewer")?;
        let alive = state.alive.iter().any(|&alive| alive);
        ensure(alive == (phase == Phase::Running), "the agents act when there is no episode, or none does in one")?;
        let seen = if self.keeps_observations() && began { config.agents * config.obs_len() } else { 0 };
        let measured = if self.is_measured() && began { config.agents * config.observation.len() } else { 0 };
        ensure([state.seen.len(), state.measured.len()] == [seen, measured], "the observations have another size")?;
        ensure(state.actions.iter().all(|action| config.action.takes(action)), "the last action does not exist")?;
        let account = &state.account;
        let acting = state.alive.iter().filter(|&&alive| alive).count();
        let settled = account.crashed as usize + account.succeeded as usize;
        let counted = account.agents as usize == present
            && settled + acting <= present
            && account.arrived <= account.succeeded
            && state.finished < 1 << 62;
        ensure(counted, "the counters of the episode are impossible")?;
        match (&config.comms, &state.links) {
            (None, None) => ensure(state.radios.is_empty(), "there are radios without messages")?,
            (Some(comms), Some(links)) => {
                let (agents, others) = if began { (present, comms.others(&*scenario, present)) } else { (0, 0) };
                ensure(state.radios.len() == others, "the radios are more or fewer")?;
                links.check(&comms.links, agents, agents + others)?;
            }
            _ => return Err("there are links without messages, or messages without links".into()),
        }
        ensure(
            state.orders.iter().all(|order| config.observation.takes_order(order, began)),
            "the order of the observation's rows is no permutation",
        )
    }

    fn set_state(&mut self, state: Episode) {
        [self.scenario, self.next_scenario] = self.scenarios_of(&state).expect("a checked state");
        self.episode = state;
    }

    fn memory(&self) -> usize {
        let orders = self.config.agents * self.config.observation.len() * size_of::<u32>();
        let routes = self.config.scenario.vehicles() * 256;
        let landmarks = self.config.scenario.landmarks() * size_of::<Landmark>();
        let agents = self.config.agents;
        let links = self.config.comms.as_ref().map_or(0, |comms| comms.memory(&*self.config.scenario, agents));
        let traffic = &self.episode.world.traffic;
        let own = traffic.memory(self.config.scenario.vehicles()).saturating_add(2 * traffic.road.memory());
        own.saturating_add(arrays(9, orders + routes + landmarks)).saturating_add(links)
    }
}

impl Driven for RoadEnv {
    type Map = Network;

    fn traffic(&self) -> &Traffic<Network> {
        &self.episode.world.traffic
    }

    fn traffic_mut(&mut self) -> &mut Traffic<Network> {
        &mut self.episode.world.traffic
    }

    fn vehicle_of(&self, agent: usize) -> Option<usize> {
        self.episode.world.vehicle_of(agent)
    }

    fn has_arrived(&self, agent: usize) -> bool {
        agent < self.episode.world.agents().len() && self.has_succeeded(agent)
    }

    fn time(&self) -> f64 {
        self.episode.time
    }
}

impl Endable for RoadEnv {
    /// Vehicles of agents stay on the road.
    fn end(&mut self, ended: &[u8], alive: &mut [u8]) -> bool {
        let Episode { world, alive: acting, .. } = &mut self.episode;
        for (agent, acts) in acting.iter_mut().enumerate().filter(|(agent, acts)| **acts && ended[*agent] != 0) {
            *acts = false;
            if let Some(vehicle) = world.vehicle_of(agent).filter(|_| !self.config.agent.has_targets()) {
                world.traffic.drive(vehicle, 0.0, 0.0);
            }
        }
        self.write_alive(alive);
        let over = !self.episode.alive.contains(&true);
        if over {
            self.close_account();
        }
        over
    }
}

impl Scenic for RoadEnv {
    fn scene(&self) -> Scene {
        let Episode { world, time, links, radios, .. } = &self.episode;
        let camera =
            if self.config.agents > 1 { Camera::Agents } else { Camera::Follow(world.vehicle_of(0).unwrap_or(0)) };
        let fastest = self.config.target_speeds.iter().copied().fold(0.0, f64::max).max(10.0);
        let mut scene = world.traffic.scene(*time, camera, [0.0, fastest], |i| {
            let agent = world.agents().iter().position(|&agent| agent == i);
            (world.numbers()[i], agent.map(|agent| agent as u32))
        });
        scene.obstacles.extend(world.traffic.road.red_lights(world.clock(1.0 / self.config.simulation_frequency), &[]));
        match (&self.config.comms, links) {
            (Some(comms), Some(links)) => Scene { links: comms.drawn(links, radios, world), ..scene },
            _ => scene,
        }
    }
}
