//! The ring road as an environment of agents.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::config::{Config, Drive};
use super::controllers::{PiSaturation, follower_stopper};
use super::noise::standard_normals;
use super::platoon::Platoon;
use super::sumo_idm::{Driver, Idm};
use crate::env::{ActionKind, Actions, AgentRows, Env, Phase, Real, Refused, ensure};
use crate::memory::arrays;
use crate::rng::Rng;

/// Unit of speeds in observations, m/s.
const OBS_SPEED: f64 = 15.0;
/// Unit of the mean speed in the reward, m/s.
const REWARD_SPEED: f64 = 20.0;

/// Results of an episode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Episode {
    pub length: u32,
    /// Sum of the rewards, the same for all agents.
    pub reward: f64,
    /// Circumference, m.
    pub ring_length: f64,
    /// Mean speed of all vehicles over all steps, m/s.
    pub mean_speed: f64,
    /// The shortest time in which an agent would have run into its leader, had both kept their speeds, s.
    pub min_ttc: f64,
    /// Agents that ran into their leader or that their follower ran into.
    pub crashed: u32,
    /// True if it ended before its time, with a collision.
    pub collided: bool,
}

/// All that changes.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct State {
    rng: Rng,
    platoon: Platoon,
    /// Each agent's own speed, averaged (exponentially) over `memory` seconds, m/s; empty without memory.
    mean_speeds: Vec<f64>,
    /// One an agent, where that drives.
    pi_saturation: Vec<PiSaturation>,
    /// The episode that runs; `mean_speed` is a sum until it ends.
    episode: Episode,
    over: bool,
    finished: u64,
    last: Option<Episode>,
}

/// The ring road; [`Config`] has its options.
pub struct Ring {
    config: Arc<Config>,
    human: Driver,
    learner: Driver,
    /// The vehicle that each agent drives.
    agent_vehicles: Vec<usize>,
    normals: Vec<f64>,
    state: State,
}

impl Ring {
    /// `config` has been checked.
    pub fn new(config: Arc<Config>) -> Self {
        let state = State {
            rng: Rng::new(0),
            platoon: filled(&config, config.ring_length.1),
            mean_speeds: Vec::new(),
            pi_saturation: Vec::new(),
            episode: Episode::default(),
            over: true,
            finished: 0,
            last: None,
        };
        let learner = Idm { length: config.human.length, desired_speed: config.human.desired_speed, ..Idm::LEARNER };
        Self {
            human: Driver::new(config.human, config.dt, config.integrator),
            learner: Driver::new(learner, config.dt, config.integrator),
            agent_vehicles: (0..config.num_agents).map(|k| config.vehicle_of(k)).collect(),
            normals: vec![0.0; config.num_vehicles],
            state,
            config,
        }
    }

    pub fn config(&self) -> &Config {
        &self.config
    }

    pub fn platoon(&self) -> &Platoon {
        &self.state.platoon
    }

    /// Circumference, m.
    pub fn ring_length(&self) -> f64 {
        self.state.platoon.ring().expect("a ring")
    }

    /// The vehicle that each agent drives.
    pub fn agent_vehicles(&self) -> &[usize] {
        &self.agent_vehicles
    }

    /// Time since the episode's first observation, s.
    pub fn time(&self) -> f64 {
        f64::from(self.state.episode.length) * f64::from(self.config.sims_per_step) * self.config.dt
    }

    /// The number of episodes that have ended, and the results of the last.
    pub fn account(&self) -> (u64, Option<&Episode>) {
        (self.state.finished, self.state.last.as_ref())
    }

    /// Replaces positions and speeds, as for [`Platoon::new`], in the middle of the running episode.
    pub fn set_vehicles(&mut self, ring_length: f64, x: Vec<f64>, v: Vec<f64>) -> Result<(), String> {
        let n = self.config.num_vehicles;
        if x.len() != n {
            return Err(format!("positions: expected {n}, got {}", x.len()));
        }
        self.state.platoon = Platoon::new(Some(ring_length), x, v, self.config.human.length)?;
        self.state.episode.ring_length = ring_length;
        Ok(())
    }

    /// One step of the simulation. Without `actions` all vehicles drive as humans do.
    fn simulate(&mut self, actions: Option<&[f32]>) {
        let (config, state) = (&*self.config, &mut self.state);
        let dt = config.dt;
        let next = state.platoon.plan(&self.human);
        if config.noise > 0.0 {
            standard_normals(&mut state.rng, &mut self.normals);
            let (scale, top) = (config.noise * dt.sqrt() * dt, config.human.desired_speed);
            for (next, z) in next.iter_mut().zip(&self.normals) {
                *next = (*next + scale * z).clamp(0.0, top);
            }
        }
        if let Some(actions) = actions
            && config.drive != Drive::Humans
        {
            self.drive(actions);
        }
        let state = &mut self.state;
        state.platoon.advance(&self.human);
        for (mean, &i) in state.mean_speeds.iter_mut().zip(&self.agent_vehicles) {
            *mean += (state.platoon.v()[i] - *mean) * (self.config.dt / self.config.memory).min(1.0);
        }
    }

    /// Plans the speeds of the agents' vehicles.
    fn drive(&mut self, actions: &[f32]) {
        let (config, state) = (&*self.config, &mut self.state);
        let dt = config.dt;
        let platoon = &mut state.platoon;
        let bounds = &self.learner.idm;
        for (k, &i) in self.agent_vehicles.iter().enumerate() {
            let (v, gap) = (platoon.v()[i], platoon.gap(i, bounds.length));
            let lead_speed = platoon.v()[platoon.leader(i)];
            let wish = match config.drive {
                Drive::Agents => v + f64::from(actions[k]) * dt,
                Drive::FollowerStopper => {
                    let desired = config.desired_speed.unwrap_or_else(|| {
                        config.human.equilibrium_speed(config.num_vehicles, platoon.ring().expect("a ring"))
                    });
                    follower_stopper(desired, v, gap, lead_speed)
                }
                Drive::PiSaturation => state.pi_saturation[k].command(dt, v, gap, lead_speed),
                Drive::Humans => unreachable!("humans have planned already"),
            };
            let able = match config.drive {
                Drive::Agents => wish,
                _ => wish.clamp(v - bounds.emergency_decel * dt, v + bounds.accel * dt),
            };
            let safe = if config.safe_speed { self.learner.safe_speed(v, gap, lead_speed) } else { f64::INFINITY };
            platoon.planned()[i] = able.min(safe).clamp(0.0, bounds.desired_speed);
        }
    }

    /// Own speed / 15 m/s, the leader's minus the own / 15 m/s, the distance to the leader (front to front) / the
    /// longest ring, and with memory the own mean speed / 15 m/s.
    fn write_obs(&self, obs: &mut [f32]) {
        let platoon = &self.state.platoon;
        let per_length = 1.0 / self.config.distance_scale.unwrap_or(self.config.ring_length.1);
        for (k, row) in obs.chunks_exact_mut(Env::obs_len(self)).enumerate() {
            let i = self.agent_vehicles[k];
            let v = platoon.v()[i];
            row[0] = (v / OBS_SPEED) as f32;
            row[1] = ((platoon.v()[platoon.leader(i)] - v) / OBS_SPEED) as f32;
            row[2] = (platoon.distance(i) * per_length) as f32;
            if let Some(mean) = self.state.mean_speeds.get(k) {
                row[3] = (mean / OBS_SPEED) as f32;
            }
        }
    }

    /// Mean over the agents of the absolute acceleration, m/s^2.
    fn effort(&self, actions: &[f32]) -> f64 {
        let sum: f64 = match self.config.drive {
            Drive::Agents => actions.iter().map(|a| f64::from(a.abs())).sum(),
            _ => self.agent_vehicles.iter().map(|&i| self.state.platoon.acceleration()[i].abs()).sum(),
        };
        sum / self.agent_vehicles.len() as f64
    }

    /// The shortest time to a collision of an agent with its leader, s, infinite if none closes in.
    fn time_to_collision(&self) -> f64 {
        let platoon = &self.state.platoon;
        let times = self.agent_vehicles.iter().map(|&i| {
            let closing = platoon.v()[i] - platoon.v()[platoon.leader(i)];
            if closing > 0.0 { platoon.gap(i, self.human.idm.length).max(0.0) / closing } else { f64::INFINITY }
        });
        times.fold(f64::INFINITY, f64::min)
    }

    /// Most speeds that a PI controller remembers in an episode.
    fn longest_memory(&self) -> usize {
        let Config { sims_per_step, horizon, warmup_steps, .. } = *self.config;
        let steps = (u64::from(horizon) + u64::from(warmup_steps)).saturating_mul(u64::from(sims_per_step));
        PiSaturation::longest_memory(self.config.dt).min(usize::try_from(steps).unwrap_or(usize::MAX)) + 1
    }

    fn crashed_agents(&self) -> u32 {
        let platoon = &self.state.platoon;
        let hit = |i: usize| platoon.gap(i, self.human.idm.length) < 0.0;
        let n = platoon.len();
        self.agent_vehicles.iter().filter(|&&i| hit(i) || hit((i + n - 1) % n)).count() as u32
    }
}

/// Vehicles at rest, evenly spaced but for the free stretch ahead of the last.
fn filled(config: &Config, length: f64) -> Platoon {
    let n = config.num_vehicles;
    let spacing = (length - config.bunching) / n as f64;
    let x = (0..n).map(|i| i as f64 * spacing).collect();
    Platoon::new(Some(length), x, vec![0.0; n], config.human.length).expect("a checked configuration has room")
}

impl Env for Ring {
    type State = State;

    fn num_agents(&self) -> usize {
        self.agent_vehicles.len()
    }

    fn obs_len(&self) -> usize {
        3 + usize::from(self.config.memory > 0.0)
    }

    fn action_kind(&self) -> ActionKind {
        ActionKind::Box(1)
    }

    fn check(&self, actions: Actions<'_>) -> Result<(), Refused> {
        let (low, high) = (-self.config.max_decel as f32, self.config.max_accel as f32);
        match actions {
            Actions::Box(all) if all.len() == self.agent_vehicles.len() => {
                match all.iter().position(|a| !(low..=high).contains(a)) {
                    None => Ok(()),
                    Some(agent) => Err(Refused {
                        agent,
                        expected: format!("an acceleration from {low} to {high} m/s^2, got {}", all[agent]),
                    }),
                }
            }
            _ => Err(Refused { agent: 0, expected: "one acceleration an agent".into() }),
        }
    }

    fn seed(&mut self, seed: u64) {
        self.state.rng = Rng::new(seed);
    }

    fn reset(&mut self, obs: &mut [f32], alive: &mut [u8]) {
        let (low, high) = self.config.ring_length;
        let length = low + (high - low) * self.state.rng.unit();
        self.state.platoon = filled(&self.config, length);
        if self.config.memory > 0.0 {
            self.state.mean_speeds = vec![0.0; self.agent_vehicles.len()];
        }
        if self.config.drive == Drive::PiSaturation {
            self.state.pi_saturation = vec![PiSaturation::default(); self.agent_vehicles.len()];
        }
        for _ in 0..u64::from(self.config.warmup_steps) * u64::from(self.config.sims_per_step) {
            self.simulate(None);
        }
        self.state.episode = Episode { ring_length: length, min_ttc: f64::INFINITY, ..Episode::default() };
        self.state.over = false;
        self.observe(obs, alive);
    }

    fn observe(&self, obs: &mut [f32], alive: &mut [u8]) {
        self.write_obs(obs);
        alive.fill(u8::from(!self.state.over));
    }

    fn step<R: Real>(&mut self, actions: Actions<'_>, rows: AgentRows<'_, R>) -> bool {
        let Actions::Box(actions) = actions else { unreachable!("actions are checked before a step") };
        let mut collided = false;
        for _ in 0..self.config.sims_per_step {
            self.simulate(Some(actions));
            collided = self.state.platoon.smallest_gap(self.human.idm.length) < 0.0;
            if collided {
                break;
            }
        }
        let mean_speed = self.state.platoon.mean_speed();
        let reward = if collided {
            0.0
        } else {
            self.config.speed_weight * mean_speed / REWARD_SPEED - self.config.action_weight * self.effort(actions)
        };
        let ttc = self.time_to_collision();
        let episode = &mut self.state.episode;
        episode.length += 1;
        episode.reward += reward;
        episode.mean_speed += mean_speed;
        episode.min_ttc = episode.min_ttc.min(ttc);
        let over = episode.length >= self.config.horizon;
        let ended = collided || over;
        self.state.over = ended;
        if ended {
            let crashed = self.crashed_agents();
            let episode = &mut self.state.episode;
            episode.mean_speed /= f64::from(episode.length);
            (episode.collided, episode.crashed) = (collided, crashed);
            self.state.last = Some(*episode);
            self.state.finished += 1;
        }
        self.write_obs(rows.obs);
        rows.rewards.fill(R::from_f64(reward));
        rows.terminated.fill(u8::from(collided));
        rows.truncated.fill(u8::from(over && !collided));
        rows.alive.fill(u8::from(!ended));
        ended
    }

    fn episode_info(&self, key: &str) -> f64 {
        let (Some(last), agents) = (&self.state.last, self.agent_vehicles.len() as f64) else { return f64::NAN };
        match key {
            "length" => f64::from(last.length),
            "return_mean" => last.reward,
            "num_agents" => agents,
            "collision_rate" => f64::from(last.crashed) / agents,
            "mean_speed" => last.mean_speed,
            "throughput" => 3600.0 * last.mean_speed * self.config.num_vehicles as f64 / last.ring_length,
            "min_ttc" => last.min_ttc,
            "success" => f64::from(u8::from(!last.collided)),
            "driving_time" => f64::from(last.length) * f64::from(self.config.sims_per_step) * self.config.dt * agents,
            _ => f64::NAN,
        }
    }

    fn fingerprint(&self) -> String {
        format!("ring-v0 with {:?}", self.config)
    }

    fn state(&self) -> &State {
        &self.state
    }

    fn check_state(&self, state: &State, phase: Phase) -> Result<(), String> {
        let config = &*self.config;
        state.platoon.check(config.num_vehicles)?;
        ensure(state.rng.is_sound(), "the random generator has an impossible state")?;
        let was_reset = phase != Phase::NeverReset;
        let agents = |has: bool| if has && was_reset { self.agent_vehicles.len() } else { 0 };
        ensure(
            state.mean_speeds.len() == agents(config.memory > 0.0),
            "there are more or fewer mean speeds than agents",
        )?;
        ensure(state.mean_speeds.iter().all(|mean| mean.is_finite()), "a mean speed is not a finite number")?;
        let controllers = agents(config.drive == Drive::PiSaturation);
        ensure(state.pi_saturation.len() == controllers, "there are more or fewer controllers than agents")?;
        ensure(state.pi_saturation.iter().all(|pi| pi.is_sound(config.dt)), "a controller's memory is impossible")?;
        ensure(state.over == (phase != Phase::Running), "the phase contradicts the end of the episode")?;
        let length = state.episode.length;
        ensure(length < config.horizon || state.over && length == config.horizon, "the time is beyond the episode")?;
        ensure(state.finished < 1 << 62, "the counters of the episode are impossible")
    }

    fn set_state(&mut self, state: State) {
        self.state = state;
    }

    fn memory(&self) -> usize {
        let (n, agents) = (self.config.num_vehicles, self.agent_vehicles.len());
        let memories = if self.config.drive == Drive::PiSaturation { self.longest_memory() } else { 0 };
        let of_agents = size_of::<PiSaturation>() + 2 * size_of::<f64>() + arrays(1, memories * size_of::<f64>());
        // Positions, speeds, accelerations, plans and noise.
        arrays(8, 5 * n * size_of::<f64>() + agents * of_agents)
    }

    fn most_saved(&self) -> usize {
        let of_agents = 64 + if self.config.drive == Drive::PiSaturation { 8 * self.longest_memory() } else { 0 };
        1024 + 24 * self.config.num_vehicles + self.agent_vehicles.len() * of_agents
    }
}
