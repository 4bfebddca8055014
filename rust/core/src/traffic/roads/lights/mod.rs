//! `lights-v0`: the traffic lights of a network are agents, and choose the next green phase.
//!
//! Observations, actions and rewards are those of sumo-rl's defaults; `fastrl.envs.traffic.lights` tells users of them.

mod account;
mod signals;

use std::sync::Arc;

use serde::{Deserialize, Serialize};

pub use account::Episode;
use account::{Account, WAITING};
use signals::Signals;

use super::scenario::{Ends, Options, Place, Scenario};
use super::trips::Trips;
use super::world::World;
use crate::env::{ActionKind, Actions, AgentRows, Env, Phase, Real, Refused, ensure, number_named};
use crate::memory::arrays;
use crate::numpy_random::NumpyRandom;
use crate::traffic::scene::{Camera, Scene, Scenic};
use crate::traffic::vehicles::Driver;

/// Seconds of waiting that are worth a reward of 1.
const SCALE: f64 = 100.0;

/// Times are whole seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Times {
    /// Frames a second.
    pub frames: usize,
    /// Time between two actions.
    pub step: u32,
    pub amber: u32,
    /// Time that a green phase is kept at least.
    pub min_green: u32,
    /// Length of an episode.
    pub duration: u32,
}

impl Times {
    fn check(&self) -> Result<(), String> {
        let Self { frames, step, amber, min_green, duration } = *self;
        for (name, value, least, most) in [
            ("simulation_frequency", frames as u64, 1, 100),
            ("delta_time", step.into(), 1, 3600),
            ("yellow_time", amber.into(), 1, 3600),
            ("min_green", min_green.into(), 0, 3600),
            ("duration", duration.into(), 1, 1_000_000),
        ] {
            if !(least..=most).contains(&value) {
                return Err(format!("{name}: expected {least} to {most}, got {value}"));
            }
        }
        Ok(())
    }
}

#[derive(Debug)]
pub struct Config {
    times: Times,
    /// True if the lights follow the programs of the file and actions have no effect.
    fixed: bool,
    trips: Trips,
    signals: Signals,
}

impl Config {
    /// `options`: those of `trips`, without agents. The error says what is wrong.
    pub fn new(options: &Options, times: Times, fixed: bool) -> Result<Self, String> {
        times.check()?;
        let mut trips = Trips::with_agents(options, 0..=0)?;
        let signals = Signals::new(&mut trips.network, fixed)?;
        Ok(Self { times, fixed, trips, signals })
    }

    /// Green phases that an agent chooses from.
    pub fn num_actions(&self) -> usize {
        self.signals.most_greens
    }

    fn lights(&self) -> usize {
        self.signals.greens.len()
    }
}

/// A traffic light.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
struct Signal {
    /// The green phase that it shows, or will show after amber.
    green: usize,
    /// Seconds since that was chosen.
    since: u32,
    amber: bool,
}

/// All that changes while an episode runs.
#[derive(Clone, Serialize, Deserialize)]
pub struct State {
    world: World,
    rng: NumpyRandom,
    /// Seconds since the episode began.
    seconds: u32,
    running: bool,
    signals: Vec<Signal>,
    /// The phase that each light shows.
    held: Vec<u32>,
    /// Seconds that vehicles before each light had waited there at the last action.
    waited: Vec<f64>,
    account: Account,
    /// Episodes so far, and what became of the last.
    pub finished: u64,
    last: Episode,
}

pub struct LightsEnv {
    config: Arc<Config>,
    state: State,
}

impl LightsEnv {
    pub fn new(config: Arc<Config>) -> Self {
        let trips = &config.trips;
        let mut world = World::new(trips.network.clone(), vec![0.0], trips.model(), false);
        world.traffic.reserve(trips.vehicles());
        let n = config.lights();
        let state = State {
            world,
            rng: NumpyRandom::new(0),
            seconds: 0,
            running: false,
            signals: vec![Signal { green: 0, since: 0, amber: false }; n],
            held: vec![0; n],
            waited: vec![0.0; n],
            account: Account::default(),
            finished: 0,
            last: Episode::NONE,
        };
        Self { config, state }
    }

    /// Lets the traffic come and go.
    fn place(&mut self, change: impl FnOnce(&Trips, &mut Place<'_>)) {
        let Self { config, state, .. } = self;
        let frames = config.times.frames;
        let (agent, other, ends) = (Driver::Meta, Driver::Idm, Ends::Together);
        let State { world, rng, .. } = state;
        let frame = 1.0 / frames as f64;
        change(&config.trips, &mut Place { world, rng, agent, other, frame, frames, step: 1.0, ends, alive: &[] });
    }

    /// Takes the choice of an agent; one that comes too early, or is of no phase, keeps the present one.
    fn choose(&mut self, light: usize, action: usize) {
        let Config { times, signals, .. } = &*self.config;
        let own = &mut self.state.signals[light];
        if action < signals.greens[light] && action != own.green && own.since >= times.amber + times.min_green {
            self.state.held[light] = signals.amber(light, own.green, action) as u32;
            *own = Signal { green: action, since: 0, amber: true };
        }
    }

    /// One second of traffic.
    fn second(&mut self) {
        let config = self.config.clone();
        let (times, state) = (config.times, &mut self.state);
        for (own, held) in state.signals.iter_mut().zip(&mut state.held) {
            if own.amber && own.since >= times.amber {
                own.amber = false;
                *held = own.green as u32;
            }
            own.since = own.since.saturating_add(1);
        }
        let held: &[u32] = if config.fixed { &[] } else { &state.held };
        for _ in 0..times.frames {
            state.world.frame_held(1.0 / times.frames as f64, held);
        }
        self.place(|trips, place| trips.after_step(place));
        let state = &mut self.state;
        state.account.count_second(&state.world);
        state.seconds += 1;
        if config.fixed {
            self.follow_programs();
        }
    }

    /// Notes the green phases of the programs.
    fn follow_programs(&mut self) {
        let Config { signals, times, .. } = &*self.config;
        let State { world, signals: own, .. } = &mut self.state;
        let Some(junctions) = &world.traffic.road.junctions else { return };
        let time = world.clock(1.0 / times.frames as f64);
        for (light, (own, program)) in own.iter_mut().zip(&junctions.programs).enumerate() {
            let green = signals.green_of[light][program.phase(time)];
            if green != own.green {
                *own = Signal { green, since: 0, amber: false };
            }
        }
    }

    /// Calls `see` with the lane before a light that a vehicle is on, and its index, for all vehicles on such.
    fn each_before_lights(&self, mut see: impl FnMut(&signals::Approach, usize)) {
        let lanes = &self.state.world.traffic.vehicles.lane;
        for (i, &lane) in lanes.iter().enumerate() {
            if let Some(approach) = &self.config.signals.approaches[lane] {
                see(approach, i);
            }
        }
    }

    /// Writes what the lights see.
    fn write(&self, obs: &mut [f32]) {
        let Config { signals, times, .. } = &*self.config;
        let (greens, lanes, len) = (signals.most_greens, signals.most_lanes, self.obs_len());
        obs.fill(0.0);
        for (row, own) in obs.chunks_exact_mut(len).zip(&self.state.signals) {
            row[own.green] = 1.0;
            row[greens] = f32::from(u8::from(own.since >= times.amber + times.min_green));
        }
        let speed = &self.state.world.traffic.vehicles.speed;
        self.each_before_lights(|approach, i| {
            let row = &mut obs[approach.light * len + greens + 1..][..2 * lanes];
            let mut add = |place: usize| row[place] = (row[place] + (1.0 / approach.room) as f32).min(1.0);
            add(approach.place);
            if speed[i].abs() < WAITING {
                add(lanes + approach.place);
            }
        });
    }

    fn end(&mut self) {
        let State { world, seconds, account, running, last, finished, .. } = &mut self.state;
        *running = false;
        let (entered, left) = (f64::from(world.entered()), world.numbers().len() as f64);
        let crashed_here = account.waits.iter().filter(|own| own.crashed).count() as f64;
        let lights = self.config.lights() as f64;
        *last = Episode {
            length: f64::from(seconds.div_ceil(self.config.times.step)),
            return_mean: account.rewards / lights,
            num_agents: lights,
            waiting_time: account.waited / (entered + world.waiting.len() as f64).max(1.0),
            arrived: entered - left - (f64::from(account.crashes) - crashed_here),
            crashes: f64::from(account.crashes),
        };
        *finished += 1;
    }
}

impl Env for LightsEnv {
    type State = State;

    /// A step is worth a thread.
    const MIN_BLOCK: usize = 2;

    fn num_agents(&self) -> usize {
        self.config.lights()
    }

    fn obs_len(&self) -> usize {
        self.config.signals.most_greens + 1 + 2 * self.config.signals.most_lanes
    }

    fn action_kind(&self) -> ActionKind {
        ActionKind::Discrete
    }

    fn check(&self, actions: Actions<'_>) -> Result<(), Refused> {
        if self.state.running { actions.check_below(self.config.num_actions()) } else { Ok(()) }
    }

    fn seed(&mut self, seed: u64) {
        self.state.rng = NumpyRandom::new(seed);
    }

    fn reset(&mut self, obs: &mut [f32], alive: &mut [u8]) {
        let state = &mut self.state;
        state.world.clear();
        state.account.clear();
        state.signals.fill(Signal { green: 0, since: 0, amber: false });
        state.held.fill(0);
        state.waited.fill(0.0);
        (state.seconds, state.running) = (0, true);
        self.place(|trips, place| trips.populate(place));
        if self.config.fixed {
            self.follow_programs();
        }
        self.observe(obs, alive);
    }

    fn observe(&self, obs: &mut [f32], alive: &mut [u8]) {
        if self.state.running {
            self.write(obs);
        } else {
            obs.fill(0.0);
        }
        alive.fill(u8::from(self.state.running));
    }

    fn step<R: Real>(&mut self, actions: Actions<'_>, rows: AgentRows<'_, R>) -> bool {
        let Actions::Discrete(all) = actions else { unreachable!("these environments take indices only") };
        let config = self.config.clone();
        if !config.fixed {
            for (light, &action) in all.iter().enumerate() {
                self.choose(light, action as usize);
            }
        }
        let left = config.times.duration - self.state.seconds;
        for _ in 0..config.times.step.min(left) {
            self.second();
        }
        let mut now = vec![0.0; config.lights()];
        self.each_before_lights(|approach, i| {
            now[approach.light] += f64::from(self.state.account.waits[i].seconds) / SCALE;
        });
        let ended = self.state.seconds >= config.times.duration;
        for (row, (before, now)) in self.state.waited.iter_mut().zip(now).enumerate() {
            let reward = std::mem::replace(before, now) - now;
            self.state.account.rewards += reward;
            rows.rewards[row] = R::from_f64(reward);
            (rows.terminated[row], rows.truncated[row]) = (0, u8::from(ended));
            rows.alive[row] = u8::from(!ended);
        }
        self.write(rows.obs);
        if ended {
            self.end();
        }
        ended
    }

    fn episode_info(&self, key: &str) -> f64 {
        number_named(key, self.state.last.numbers())
    }

    fn fingerprint(&self) -> String {
        format!("lights {:?}", self.config)
    }

    fn state(&self) -> &State {
        &self.state
    }

    fn check_state(&self, state: &State, phase: Phase) -> Result<(), String> {
        let Config { times, signals, .. } = &*self.config;
        let n = signals.greens.len();
        state.world.check(&self.state.world, 0, 0, Driver::Meta)?;
        ensure([state.signals.len(), state.held.len(), state.waited.len()] == [n; 3], "the lights are more or fewer")?;
        let greens = state.signals.iter().zip(&signals.greens).all(|(own, &greens)| own.green < greens);
        let shown = state.held.iter().zip(&signals.greens).all(|(&held, &g)| (held as usize) < g + g * g);
        ensure(greens && shown, "a light shows a phase that it does not have")?;
        let vehicles = state.world.traffic.vehicles.len();
        let counted = state.account.waits.len() == vehicles || state.seconds == 0 && state.account.waits.is_empty();
        ensure(counted, "the vehicles that wait are more or fewer than the vehicles")?;
        let numbers = state.waited.iter().chain([&state.account.waited, &state.account.rewards]);
        ensure(numbers.into_iter().all(|number| number.is_finite()), "a sum is not a finite number")?;
        ensure(state.running == (phase == Phase::Running), "the episode is not where it should be")?;
        let beyond = if state.running { state.seconds >= times.duration } else { state.seconds > times.duration };
        ensure(!beyond && state.finished < 1 << 62, "the time is beyond the episode")?;
        ensure(state.rng.is_sound(), "the random generator has an impossible state")
    }

    fn set_state(&mut self, state: State) {
        self.state = state;
    }

    fn memory(&self) -> usize {
        let (vehicles, lights) = (self.config.trips.vehicles(), self.config.lights());
        let traffic = &self.state.world.traffic;
        let own = traffic.memory(vehicles).saturating_add(2 * traffic.road.memory());
        own.saturating_add(arrays(9, vehicles * (256 + size_of::<account::Wait>()) + 64 * lights))
    }
}

impl Scenic for LightsEnv {
    fn scene(&self) -> Scene {
        let State { world, seconds, held, .. } = &self.state;
        let held: &[u32] = if self.config.fixed { &[] } else { held };
        let (time, numbers) = (f64::from(*seconds), world.numbers());
        let mut scene = world.traffic.scene(time, Camera::Whole, [0.0, 15.0], |i| (numbers[i], None));
        scene.obstacles.extend(world.traffic.road.red_lights(world.clock(1.0 / self.config.times.frames as f64), held));
        scene
    }
}
