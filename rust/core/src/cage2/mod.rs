//! CAGE Challenge 2 (CybORG 2.1): one red agent against one blue defender, on the 13 hosts of Scenario 2 or in another
//! scenario of [`tables`].
//!
//! A step: [`blue`] acts, [`red_agents`] choose and [`red_actions`] carry out, the [`network`] names the price, and
//! Monitor fills blue's [`view`], which [`memory`] follows. All randomness comes from a [`source`]. In [`game`] red's
//! actions are given too, by an agent that observes [`red_view`].

pub mod blue;
mod blue_action;
pub mod events;
pub mod fast_source;
pub mod game;
pub mod memory;
mod network;
mod python_source;
mod red_actions;
pub mod red_agents;
pub mod red_view;
pub mod render;
pub mod replay;
pub mod rows;
pub mod scenario;
pub mod seeded_source;
mod source;
pub mod tables;
pub mod truth;
pub mod view;
pub mod workflow;

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use self::blue::{BlueAction, NUM_ACTIONS};
use self::events::{BlueOutcome, RedAction, Traces};
use self::fast_source::FastSource;
use self::memory::{BlueMemory, Layout};
use self::network::Network;
use self::python_source::PythonSource;
use self::red_actions::Knowledge;
use self::red_agents::{RedAgent, RedKind};
use self::seeded_source::SeededSource;
use self::source::{Drawing, RandomSource};
use self::tables::Scenario;
use self::view::View;
use crate::env::{Phase, ensure};
use crate::memory::arrays;
use crate::rng::Rng;
use crate::single_agent::{SingleAgentEnv, Step};

/// The version of the challenge's code that is reproduced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ruleset {
    /// The repository's main branch.
    Main,
    /// Commit 606813b, on which the final leaderboard was scored.
    Leaderboard,
    /// The main branch as CybORG++ has mended it: every session of red's costs, EternalBlue works on Enterprise1 and 2,
    /// User3's mysql and the decoy Vsftpd listen on their own ports.
    PlusPlus,
}

impl Ruleset {
    pub const ALL: [Self; 3] = [Self::Main, Self::Leaderboard, Self::PlusPlus];
    pub const NAMES: [&str; 3] = ["main", "leaderboard", "plusplus"];
}

#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Truth and games of two agents are for Scenario 2 alone.
    pub scenario: Arc<Scenario>,
    /// Red agents with the chance of each to play an episode; the chances add up to 1.
    pub red: Vec<(RedKind, f64)>,
    pub episode_length: u32,
    /// The values of blue's memory in an observation.
    pub memory: Layout,
    /// Adds the true state of the game to an observation, which no defender can see.
    pub truth: bool,
    /// The actions on offer, as indices into those of the scenario.
    pub actions: Vec<u16>,
    /// Draw as CPython does; needs a single red agent.
    pub python_random: bool,
}

impl Config {
    /// Length of the challenge's observation with the values of blue's memory and of the true state.
    pub fn obs_len(&self) -> usize {
        self.num_bits() + self.memory.len(&self.scenario.memory) + if self.truth { truth::LEN } else { 0 }
    }

    /// Bits of the challenge's observation.
    fn num_bits(&self) -> usize {
        4 * self.scenario.len()
    }

    /// The memory that an episode keeps: the true state names the decoys too.
    fn kept(&self) -> Layout {
        if self.truth { self.memory.max(Layout::Decoys) } else { self.memory }
    }

    /// An episode that has not begun.
    pub fn new_episode(&self) -> Episode<SeededSource> {
        Episode::new(self.random_source(0), self.kept(), &self.scenario)
    }

    /// Writes an observation.
    #[inline]
    pub fn observe(&self, episode: &Episode<SeededSource>, obs: &mut [f32]) {
        let (bits, values) = obs.split_at_mut(self.num_bits());
        episode.view.write(bits);
        if values.is_empty() {
            return;
        }
        if let Some(memory) = &episode.memory {
            memory.write(self.memory, values, &self.scenario.memory);
        }
        if self.truth {
            truth::write(episode, &mut values[self.memory.len(&self.scenario.memory)..]);
        }
    }

    /// The action on offer under this index.
    pub fn action(&self, index: usize) -> BlueAction {
        self.scenario.actions[usize::from(self.actions[index])]
    }

    /// Marks with 1 those among the actions on offer that may have an effect now. It tells blue nothing new: blue knows
    /// each host's own services, and which decoys it started.
    pub fn write_mask(&self, episode: &Episode<SeededSource>, mask: &mut [u8]) {
        for (entry, &action) in mask.iter_mut().zip(&self.actions) {
            *entry = self.scenario.may_have_effect(action.into(), &episode.network.ports).into();
        }
    }

    /// The random source of `seed`.
    pub fn random_source(&self, seed: u64) -> SeededSource {
        if self.python_random {
            SeededSource::Python(Box::new(PythonSource::new(seed, self.scenario.len())))
        } else {
            SeededSource::Fast(FastSource(Rng::new(seed)))
        }
    }

    /// Starts the next episode against a red agent that is drawn for it.
    pub fn begin(&self, episode: &mut Episode<SeededSource>) {
        let i = if self.red.len() == 1 {
            0
        } else {
            let weights: [f64; RedKind::ALL.len()] =
                std::array::from_fn(|i| self.red.get(i).map_or(0.0, |(_, weight)| *weight));
            episode.random.red_agent(&weights[..self.red.len()])
        };
        episode.begin(self.red[i].0, &self.scenario);
    }

    /// Refuses a decoded episode that no run of the simulator has; the error says why.
    pub fn check(&self, episode: &Episode<SeededSource>, phase: Phase) -> Result<(), String> {
        let Episode { random, network, knowledge, agent, view, memory, time, last_red } = episode;
        let scenario = &*self.scenario;
        let drawn = match random {
            SeededSource::Fast(random) => !self.python_random && random.is_sound(),
            SeededSource::Python(random) => self.python_random && random.is_sound(scenario.len()),
        };
        ensure(drawn, "the random generator has an impossible state or is of another kind")?;
        network.check(*time, scenario)?;
        knowledge.check(scenario)?;
        agent.check(scenario)?;
        let plays = self.red.iter().any(|(kind, _)| *kind == agent.kind());
        ensure(plays || phase == Phase::NeverReset, "its red agent is none of the options")?;
        view.check(scenario)?;
        ensure(memory.is_some() == (self.kept() != Layout::None), "blue's memory is of another layout")?;
        memory.as_ref().map_or(Ok(()), |memory| memory.check(self.memory, *time, &network.ports, scenario))?;
        ensure(
            *time < self.episode_length || phase == Phase::Ended && *time == self.episode_length,
            "the time is beyond the episode",
        )?;
        let red = RedAction::from_code(last_red.kind, last_red.target, scenario).is_some();
        ensure(red && (-1..=1).contains(&last_red.success), "red's last action does not exist")
    }

    /// See [`SingleAgentEnv::memory`].
    fn memory(&self) -> usize {
        let (labels, random) = if self.python_random {
            (4 * self.scenario.len() + 3, size_of::<PythonSource>() + PythonSource::MEMORY)
        } else {
            (0, 0)
        };
        // Sessions beyond the capacity that a network starts with.
        arrays(3 + labels, random + 32 * size_of::<network::Session>() + BlueMemory::heap(self.memory))
    }

    pub fn accepts(&self, action: i64) -> bool {
        usize::try_from(action).is_ok_and(|action| action < self.actions.len())
    }

    pub fn expected_action(&self) -> String {
        format!("an integer from 0 to {}", self.actions.len() - 1)
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            scenario: Ruleset::Main.scenario2().clone(),
            red: vec![(RedKind::BLine, 1.0)],
            episode_length: 100,
            memory: Layout::None,
            truth: false,
            actions: (0..NUM_ACTIONS as u16).collect(),
            python_random: false,
        }
    }
}

/// The actions that can ever have an effect: those that have one when an episode begins.
pub fn effective_actions(scenario: &Scenario) -> Vec<u16> {
    let has_effect = |&i: &u16| scenario.may_have_effect(i.into(), &scenario.ports);
    (0..scenario.actions.len() as u16).filter(has_effect).collect()
}

/// Red's last action, in the numbering of the reference traces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastRed {
    pub kind: i8,
    pub target: i8,
    /// 1 it worked, 0 it failed, -1 unknown.
    pub success: i8,
}

const NO_ACTION: LastRed = LastRed { kind: 0, target: -1, success: -1 };

/// All that changes during an episode.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Episode<D> {
    pub random: D,
    pub network: Network,
    pub knowledge: Knowledge,
    pub agent: RedAgent,
    pub view: View,
    /// None where no value of it is observed.
    pub memory: Option<BlueMemory>,
    /// Steps taken.
    pub time: u32,
    pub last_red: LastRed,
}

impl<D: RandomSource> Episode<D> {
    pub fn new(random: D, memory: Layout, scenario: &Scenario) -> Self {
        Self {
            random,
            network: Network::new(scenario),
            knowledge: Knowledge::new(scenario),
            agent: RedAgent::Sleep,
            view: View::default(),
            memory: (memory != Layout::None).then(|| BlueMemory::new(memory)),
            time: 0,
            last_red: NO_ACTION,
        }
    }

    /// Starts the next episode against `red`.
    pub fn begin(&mut self, red: RedKind, scenario: &Scenario) {
        self.random.start_episode(scenario);
        self.network.reset(scenario);
        self.knowledge = Knowledge::new(scenario);
        self.agent = red.new_agent();
        self.view = View::default();
        self.memory.iter_mut().for_each(BlueMemory::reset);
        self.time = 0;
        self.last_red = NO_ACTION;
    }

    /// See [`SingleAgentEnv::episode_info`]: `red_agent` is the index of its kind in [`RedKind::ALL`], `service_stopped`
    /// 1 while Impact has stopped OTService.
    pub fn info(&self, key: &str) -> f64 {
        match key {
            "red_agent" => f64::from(self.agent.kind() as u8),
            "service_stopped" => f64::from(u8::from(!self.network.ot_service.up)),
            _ => f64::NAN,
        }
    }

    /// One step against the red agent; returns blue's reward in tenths.
    pub fn step(&mut self, action: BlueAction, scenario: &Scenario) -> i32 {
        self.play(action, None, scenario)
    }

    /// One step in which red takes the given action; returns blue's reward in tenths. An action whose target red cannot
    /// name fails without an effect, as in CybORG.
    pub fn step_given(&mut self, action: BlueAction, red: RedAction, scenario: &Scenario) -> i32 {
        self.play(action, Some(red), scenario)
    }

    /// The red agent's next action, for [`Episode::step_given`].
    pub fn choose_red(&mut self, scenario: &Scenario) -> RedAction {
        self.agent.choose(&self.knowledge, scenario, &mut self.random)
    }

    /// One step in which red takes the given action, or that of its agent. Both ways are one function so that all that a
    /// step calls has one caller, into which the compiler puts it.
    #[inline(never)]
    fn play(&mut self, action: BlueAction, given: Option<RedAction>, scenario: &Scenario) -> i32 {
        let Self { random, network, knowledge, agent, view, memory, .. } = self;
        let effect = memory.is_some() && scenario.may_have_effect(action.index(scenario.len()), &network.ports);
        let (blue, red, traces) = random.serve(Turns { action, given, scenario, network, knowledge, agent, view });
        view.monitor(traces, blue);
        if let Some(memory) = memory {
            memory.update(action, effect, view.words(), &scenario.memory);
        }
        let (kind, target) = red.code();
        let success = knowledge.success.map_or(-1, i8::from);
        self.last_red = LastRed { kind, target, success };
        self.time += 1;
        -self.network.penalty_tenths(scenario) - blue.cost_tenths
    }
}

/// The turns of blue and red in a step.
struct Turns<'a> {
    action: BlueAction,
    given: Option<RedAction>,
    scenario: &'a Scenario,
    network: &'a mut Network,
    knowledge: &'a mut Knowledge,
    agent: &'a mut RedAgent,
    view: &'a mut View,
}

impl Drawing for Turns<'_> {
    type Output = (BlueOutcome, RedAction, Traces);

    #[inline(always)]
    fn draw(self, random: &mut impl RandomSource) -> Self::Output {
        let Self { action, given, scenario, network, knowledge, agent, view } = self;
        let blue = blue::act(action, scenario, network, view, random);
        let red = given.unwrap_or_else(|| {
            let chosen = agent.choose(knowledge, scenario, random);
            random.red_action(chosen)
        });
        let traces = if given.is_none() || knowledge.allows(red) {
            red_actions::act(red, scenario, network, knowledge, random)
        } else {
            knowledge.success = Some(false);
            knowledge.saw_data = false;
            Traces::default()
        };
        (blue, red, traces)
    }
}

/// An environment built on an [`Episode`] of CAGE 2.
pub trait Game: SingleAgentEnv {
    fn config(&self) -> &Config;

    fn episode(&self) -> &Episode<SeededSource>;
}

/// The plain environment of the challenge.
pub struct Cage2 {
    config: Arc<Config>,
    episode: Episode<SeededSource>,
}

impl Cage2 {
    pub fn new(config: Arc<Config>) -> Self {
        let episode = config.new_episode();
        Self { config, episode }
    }
}

impl Game for Cage2 {
    fn config(&self) -> &Config {
        &self.config
    }

    fn episode(&self) -> &Episode<SeededSource> {
        &self.episode
    }
}

impl SingleAgentEnv for Cage2 {
    type State = Episode<SeededSource>;

    fn obs_len(&self) -> usize {
        self.config.obs_len()
    }

    fn accepts(&self, action: i64) -> bool {
        self.config.accepts(action)
    }

    fn expected_action(&self) -> String {
        self.config.expected_action()
    }

    fn seed(&mut self, seed: u64) {
        self.episode.random = self.config.random_source(seed);
    }

    fn reseed(&mut self, seed: u64) {
        self.episode.random.reseed(seed);
    }

    fn reset(&mut self, obs: &mut [f32]) {
        self.config.begin(&mut self.episode);
        self.observe(obs);
    }

    fn observe(&self, obs: &mut [f32]) {
        self.config.observe(&self.episode, obs);
    }

    fn step(&mut self, action: i64, obs: &mut [f32]) -> Step {
        let tenths = self.episode.step(self.config.action(action as usize), &self.config.scenario);
        self.observe(obs);
        let truncated = self.episode.time >= self.config.episode_length;
        Step { reward: f64::from(tenths) / 10.0, terminated: false, truncated }
    }

    fn mask_len(&self) -> usize {
        self.config.actions.len()
    }

    fn action_mask(&self, mask: &mut [u8]) {
        self.config.write_mask(&self.episode, mask);
    }

    fn episode_info(&self, key: &str) -> f64 {
        self.episode.info(key)
    }

    fn fingerprint(&self) -> String {
        format!("CAGE 2 {:?}", self.config)
    }

    fn state(&self) -> &Self::State {
        &self.episode
    }

    fn check_state(&self, state: &Self::State, phase: Phase) -> Result<(), String> {
        self.config.check(state, phase)
    }

    fn set_state(&mut self, state: Self::State) {
        self.episode = state;
    }

    fn memory(&self) -> usize {
        self.config.memory()
    }
}
