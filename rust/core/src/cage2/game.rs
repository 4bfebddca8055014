//! CAGE 2 as a game of two agents: blue as in [`Cage2`](super::Cage2), and red, whose actions are given too. What blue
//! gets red loses.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::blue::BlueAction;
use super::events::{NUM_RED_ACTIONS, RedAction};
use super::red_view::{self, RedView};
use super::seeded_source::SeededSource;
use super::{Config, Episode};
use crate::env::{ActionKind, Actions, AgentRows, Env, Phase, Real, Refused};

/// Blue, then red.
pub const NUM_AGENTS: usize = 2;

/// All that changes during an episode.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct State {
    pub episode: Episode<SeededSource>,
    pub red: RedView,
}

/// The environment of both agents, with padded spaces: zeros follow an observation, actions without effect the others.
/// The red agent of the options is the one whose choices [`Cage2Game::choose_red`] gives.
pub struct Cage2Game {
    config: Arc<Config>,
    state: State,
}

impl Cage2Game {
    pub fn new(config: Arc<Config>) -> Self {
        let state = State { episode: config.new_episode(), red: RedView::default() };
        Self { config, state }
    }

    pub fn episode(&self) -> &Episode<SeededSource> {
        &self.state.episode
    }

    /// The index of the action that the scripted red agent takes next. It draws from the game's random source: a game
    /// in which red takes these actions is the one that [`Cage2`](super::Cage2) plays with the same seed, except on
    /// Python's generator, where blue draws first.
    pub fn choose_red(&mut self) -> usize {
        let episode = &mut self.state.episode;
        let choice = if episode.time < self.config.episode_length {
            episode.choose_red(&self.config.scenario)
        } else {
            RedAction::Sleep
        };
        choice.index()
    }

    fn write(&self, obs: &mut [f32]) {
        let State { episode, red } = &self.state;
        let (blue_row, red_row) = obs.split_at_mut(self.obs_len());
        let (values, padding) = blue_row.split_at_mut(self.config.obs_len());
        self.config.observe(episode, values);
        padding.fill(0.0);
        let (values, padding) = red_row.split_at_mut(red_view::LEN);
        red.write(&episode.knowledge, episode.time as f32 / self.config.episode_length as f32, values);
        padding.fill(0.0);
    }
}

impl Env for Cage2Game {
    type State = State;

    fn num_agents(&self) -> usize {
        NUM_AGENTS
    }

    fn obs_len(&self) -> usize {
        self.config.obs_len().max(red_view::LEN)
    }

    fn action_kind(&self) -> ActionKind {
        ActionKind::Discrete
    }

    fn check(&self, actions: Actions<'_>) -> Result<(), Refused> {
        actions.check_below(self.mask_len())
    }

    fn seed(&mut self, seed: u64) {
        self.state.episode.random = self.config.random_source(seed);
    }

    fn reset(&mut self, obs: &mut [f32], alive: &mut [u8]) {
        self.config.begin(&mut self.state.episode);
        self.state.red = RedView::default();
        alive.fill(1);
        self.write(obs);
    }

    fn observe(&self, obs: &mut [f32], _alive: &mut [u8]) {
        self.write(obs);
    }

    fn step<R: Real>(&mut self, actions: Actions<'_>, rows: AgentRows<'_, R>) -> bool {
        let Actions::Discrete(&[blue, red]) = actions else { unreachable!("actions are checked before a step") };
        let State { episode, red: view } = &mut self.state;
        let blue = if (blue as usize) < self.config.actions.len() {
            self.config.action(blue as usize)
        } else {
            BlueAction::Sleep
        };
        let red = RedAction::from_index(red as usize).unwrap_or(RedAction::Sleep);
        let is_allowed = episode.knowledge.allows(red);
        let reward = f64::from(episode.step_given(blue, red, &self.config.scenario)) / 10.0;
        if is_allowed {
            view.learn(red, &episode.knowledge);
        }
        rows.rewards[0] = R::from_f64(reward);
        // Not -0.0.
        rows.rewards[1] = R::from_f64(0.0 - reward);
        let has_ended = episode.time >= self.config.episode_length;
        self.write(rows.obs);
        rows.terminated.fill(0);
        rows.truncated.fill(has_ended.into());
        rows.alive.fill((!has_ended).into());
        has_ended
    }

    fn mask_len(&self) -> usize {
        self.config.actions.len().max(NUM_RED_ACTIONS)
    }

    fn action_mask(&self, mask: &mut [u8]) {
        let State { episode, .. } = &self.state;
        let (blue, red) = mask.split_at_mut(self.mask_len());
        let (blue, padding) = blue.split_at_mut(self.config.actions.len());
        self.config.write_mask(episode, blue);
        padding.fill(0);
        for (index, flag) in red.iter_mut().enumerate() {
            *flag = RedAction::from_index(index).is_some_and(|action| episode.knowledge.allows(action)).into();
        }
    }

    fn episode_info(&self, key: &str) -> f64 {
        self.state.episode.info(key)
    }

    fn fingerprint(&self) -> String {
        format!("CAGE 2 of two agents {:?}", self.config)
    }

    fn state(&self) -> &Self::State {
        &self.state
    }

    fn check_state(&self, state: &Self::State, phase: Phase) -> Result<(), String> {
        self.config.check(&state.episode, phase)?;
        state.red.check()
    }

    fn set_state(&mut self, state: Self::State) {
        self.state = state;
    }

    fn memory(&self) -> usize {
        self.config.memory()
    }
}
