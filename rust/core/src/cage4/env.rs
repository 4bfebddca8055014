//! The environment of five blue agents. All get the same reward, and none of them ever dies.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::blue::NUM_ACTIONS;
use super::fast_source::FastSource;
use super::game::{BlueTask, Game};
use super::host_view::{self, HostView};
use super::ledger::Ledger;
use super::mind::RedAgent;
use super::numpy_source::NumpySource;
use super::observation::{self, OBS_LEN};
use super::red::Red;
use super::rules::Rules;
use super::scenario::{NUM_BLUE, NUM_RED};
use super::world::World;
use crate::env::{ActionKind, Actions, AgentRows, Env, Phase, Real, Refused, ensure, number_named};
use crate::memory::{arrays, prefetch, prefetch_line};

/// Longest episodes: process ids cannot run out in them.
pub const MOST_STEPS: u32 = 1000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    pub red: RedAgent,
    pub rules: Rules,
    /// Steps of an episode, 2 to [`MOST_STEPS`]; as in the original it is over one step earlier.
    pub steps: u32,
    /// Draw as NumPy does: the episodes of the original after its seed.
    pub numpy_random: bool,
    /// Observations and actions of [`host_view`] instead of the challenge's.
    pub host_view: bool,
    /// Bits of the messages that agents choose with their actions there, at most [`host_view::MOST_BITS`].
    pub messages: u32,
    /// Each agent is rewarded for its zone and its own actions, instead of the team's reward.
    pub zone_rewards: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            red: RedAgent::FiniteState,
            rules: Rules::default(),
            steps: 500,
            numpy_random: false,
            host_view: false,
            messages: 0,
            zone_rewards: false,
        }
    }
}

/// A game on a random source that a seed fixes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum SeededGame {
    Fast(Game<FastSource>),
    Numpy(Game<NumpySource>),
}

/// All that changes during an episode.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct State {
    game: SeededGame,
    view: Option<HostView>,
}

macro_rules! with_game {
    ($of:expr, $game:ident => $do:expr) => {
        match $of {
            SeededGame::Fast($game) => $do,
            SeededGame::Numpy($game) => $do,
        }
    };
}

/// The environment of the challenge, with padded spaces.
pub struct Cage4 {
    config: Arc<Config>,
    state: State,
}

impl Config {
    fn new_game(&self, seed: u64) -> SeededGame {
        if self.numpy_random {
            SeededGame::Numpy(Game::new(NumpySource::new(seed)))
        } else {
            SeededGame::Fast(Game::new(FastSource::new(seed)))
        }
    }
}

impl Cage4 {
    pub fn new(config: Arc<Config>) -> Self {
        let view = config.host_view.then(|| HostView::new(config.steps, config.messages));
        let state = State { game: config.new_game(0), view };
        Self { config, state }
    }

    pub fn config(&self) -> &Config {
        &self.config
    }

    /// See [`Game::send`].
    pub fn send(&mut self, messages: [u8; NUM_BLUE]) {
        with_game!(&mut self.state.game, game => game.send(messages));
    }

    /// The true state of the game.
    pub fn world(&self) -> &World {
        with_game!(&self.state.game, game => &game.world)
    }

    pub fn reds(&self) -> &[Red; NUM_RED] {
        with_game!(&self.state.game, game => &game.reds)
    }

    /// Rewards of the episode by phase and zone.
    pub fn ledger(&self) -> &Ledger {
        with_game!(&self.state.game, game => &game.ledger)
    }

    /// Actions of blue's in progress.
    pub fn tasks(&self) -> &[Option<BlueTask>; NUM_BLUE] {
        with_game!(&self.state.game, game => &game.tasks)
    }
}

impl Env for Cage4 {
    type State = State;

    const MIN_BLOCK: usize = 4;

    fn num_agents(&self) -> usize {
        NUM_BLUE
    }

    fn obs_len(&self) -> usize {
        if self.config.host_view { host_view::obs_len(self.config.messages) } else { OBS_LEN }
    }

    fn action_kind(&self) -> ActionKind {
        ActionKind::Discrete
    }

    fn check(&self, actions: Actions<'_>) -> Result<(), Refused> {
        actions.check_below(self.mask_len())
    }

    fn seed(&mut self, seed: u64) {
        match &mut self.state.game {
            SeededGame::Fast(game) => game.random = FastSource::new(seed),
            SeededGame::Numpy(game) => game.random.seed(seed),
        }
    }

    fn reset(&mut self, obs: &mut [f32], alive: &mut [u8]) {
        let State { game, view } = &mut self.state;
        with_game!(game, game => {
            game.reset();
            view.iter_mut().for_each(|view| view.start_on(&game.world.network));
        });
        alive.fill(1);
        self.observe(obs, alive);
    }

    fn observe(&self, obs: &mut [f32], _alive: &mut [u8]) {
        match &self.state.view {
            Some(view) => view.write(obs),
            None => with_game!(&self.state.game, game => game.observe(obs)),
        }
    }

    fn step<R: Real>(&mut self, actions: Actions<'_>, rows: AgentRows<'_, R>) -> bool {
        let Actions::Discrete(indices) = actions else { unreachable!("actions are checked before a step") };
        let Config { red, rules, steps, zone_rewards, .. } = *self.config;
        let State { game, view } = &mut self.state;
        let choices: [usize; NUM_BLUE] = std::array::from_fn(|agent| indices[agent] as usize);
        let actions = match view {
            Some(view) => view.act(choices).map(|index| index as u8),
            None => choices.map(|choice| choice as u8),
        };
        let has_ended = with_game!(game, game => {
            let rewards = game.step(actions, red, rules, steps, &mut ());
            match view {
                Some(view) => {
                    view.note(&game.world);
                    view.write(rows.obs);
                }
                None => game.observe(rows.obs),
            }
            let team = rewards.team();
            for (out, own) in rows.rewards.iter_mut().zip(rewards.zones()) {
                *out = R::from_f64(if zone_rewards { *own } else { team }.sum().into());
            }
            game.time >= steps - 1
        });
        rows.terminated.fill(0);
        rows.truncated.fill(has_ended.into());
        rows.alive.fill((!has_ended).into());
        has_ended
    }

    fn prefetch(&self, round: usize) {
        match round {
            0 => {
                prefetch(&self.config);
                prefetch_line(&self.state.game);
                prefetch_line(&self.state.view);
            }
            1 => with_game!(&self.state.game, game => game.prefetch()),
            _ => with_game!(&self.state.game, game => game.prefetch_arrays()),
        }
    }

    fn mask_len(&self) -> usize {
        if self.config.host_view { host_view::num_choices(self.config.messages) } else { NUM_ACTIONS }
    }

    fn action_mask(&self, mask: &mut [u8]) {
        if let Some(view) = &self.state.view {
            return view.write_masks(mask);
        }
        for (agent, mask) in mask.chunks_exact_mut(NUM_ACTIONS).enumerate() {
            observation::write_mask(agent, &self.world().network, mask);
        }
    }

    fn episode_info(&self, key: &str) -> f64 {
        let (total, time, phase) = with_game!(&self.state.game, game => (game.ledger.total(), game.time, game.phase));
        let numbers = [
            ("time", time as i32),
            ("phase", phase.into()),
            ("work_failed", total.work_failed),
            ("access_failed", total.access_failed),
            ("impact", total.impact),
            ("action_cost", total.action_cost),
        ];
        number_named(key, numbers.map(|(name, number)| (name, number.into())))
    }

    fn fingerprint(&self) -> String {
        // The number is that of the order of fields in saved states.
        format!("CAGE 4 (2) {:?}", self.config)
    }

    fn state(&self) -> &Self::State {
        &self.state
    }

    fn check_state(&self, state: &Self::State, phase: Phase) -> Result<(), String> {
        let State { game, view } = state;
        let (is_sound, is_ours) = match game {
            SeededGame::Fast(_) => (true, !self.config.numpy_random),
            SeededGame::Numpy(game) => (game.random.is_sound(), self.config.numpy_random),
        };
        ensure(is_sound && is_ours, "the random generator has an impossible state or is of another kind")?;
        ensure(view.is_some() == self.config.host_view, "the view of hosts is of other options")?;
        let options = (self.config.steps, self.config.messages);
        with_game!(game, game => {
            if phase == Phase::NeverReset {
                let is_new = *game == Game::new(game.random.clone())
                    && view.as_ref().is_none_or(|view| *view == HostView::new(self.config.steps, self.config.messages));
                return ensure(is_new, "a game that never started has a state");
            }
            let last = self.config.steps - 1;
            let fits = if phase == Phase::Ended { game.time == last } else { game.time < last };
            ensure(fits, "the time is beyond the episode")?;
            game.check()?;
            view.iter().try_for_each(|view| view.check(options, game.time, &game.world.network, &game.tasks))
        })
    }

    fn set_state(&mut self, state: Self::State) {
        self.state = state;
    }

    fn memory(&self) -> usize {
        let random = if self.config.numpy_random { NumpySource::MEMORY } else { 0 };
        let view = if self.config.host_view { HostView::MEMORY } else { 0 };
        arrays(9, random + view)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_game_in_fast_mode_takes_at_most_12_kilobytes() {
        let game = Cage4::new(Arc::new(Config::default()));
        assert!(size_of::<Cage4>() + game.memory() <= 12 << 10);
    }
}
