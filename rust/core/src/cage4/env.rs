//! The environment of five blue agents. All get the same reward, and none of them ever dies.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::blue::NUM_ACTIONS;
use super::fast_source::FastSource;
use super::game::{BlueTask, Game};
use super::mind::RedAgent;
use super::network::Network;
use super::numpy_source::NumpySource;
use super::observation::{self, OBS_LEN};
use super::red::Red;
use super::rules::Rules;
use super::scenario::{NUM_BLUE, NUM_RED};
use super::watch::Watch;
use super::world::World;
use crate::env::{ActionKind, Actions, AgentRows, Env, Phase, Real, Refused, ensure, number_named};
use crate::memory::arrays;

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
}

impl Default for Config {
    fn default() -> Self {
        Self { red: RedAgent::FiniteState, rules: Rules::default(), steps: 500, numpy_random: false }
    }
}

/// A game on a random source that a seed fixes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SeededGame {
    Fast(Game<FastSource>),
    Numpy(Game<NumpySource>),
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
    game: SeededGame,
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
        let game = config.new_game(0);
        Self { config, game }
    }

    pub fn config(&self) -> &Config {
        &self.config
    }

    /// As [`Game::send`].
    pub fn send(&mut self, messages: [u8; NUM_BLUE]) {
        with_game!(&mut self.game, game => game.send(messages));
    }

    /// The true state of the game.
    pub fn world(&self) -> &World {
        with_game!(&self.game, game => &game.world)
    }

    pub fn reds(&self) -> &[Red; NUM_RED] {
        with_game!(&self.game, game => &game.reds)
    }

    /// Actions of blue's in progress.
    pub fn tasks(&self) -> &[Option<BlueTask>; NUM_BLUE] {
        with_game!(&self.game, game => &game.tasks)
    }
}

impl Env for Cage4 {
    type State = SeededGame;

    const MIN_BLOCK: usize = 4;

    fn num_agents(&self) -> usize {
        NUM_BLUE
    }

    fn obs_len(&self) -> usize {
        OBS_LEN
    }

    fn action_kind(&self) -> ActionKind {
        ActionKind::Discrete
    }

    fn check(&self, actions: Actions<'_>) -> Result<(), Refused> {
        let Actions::Discrete(actions) = actions else { unreachable!("the kind of actions is checked before") };
        match actions.iter().position(|action| !(0..NUM_ACTIONS as i64).contains(action)) {
            Some(agent) => Err(Refused { agent, expected: format!("an integer from 0 to {}", NUM_ACTIONS - 1) }),
            None => Ok(()),
        }
    }

    fn seed(&mut self, seed: u64) {
        match &mut self.game {
            SeededGame::Fast(game) => game.random = FastSource::new(seed),
            SeededGame::Numpy(game) => game.random.seed(seed),
        }
    }

    fn reset(&mut self, obs: &mut [f32], alive: &mut [u8]) {
        with_game!(&mut self.game, game => game.reset());
        alive.fill(1);
        self.observe(obs, alive);
    }

    fn observe(&self, obs: &mut [f32], _alive: &mut [u8]) {
        with_game!(&self.game, game => game.observe(obs));
    }

    fn step<R: Real>(&mut self, actions: Actions<'_>, rows: AgentRows<'_, R>) -> bool {
        let Actions::Discrete(indices) = actions else { unreachable!("actions are checked before a step") };
        let actions = std::array::from_fn(|agent| indices[agent] as u8);
        let Config { red, rules, steps, .. } = *self.config;
        let (reward, has_ended) = with_game!(&mut self.game, game => {
            let reward = game.step(actions, red, rules, steps, &mut ());
            game.observe(rows.obs);
            (reward, game.time >= steps - 1)
        });
        rows.rewards.fill(R::from_f64(reward.sum().into()));
        rows.terminated.fill(0);
        rows.truncated.fill(has_ended.into());
        rows.alive.fill((!has_ended).into());
        has_ended
    }

    fn prefetch(&self, is_soon: bool) {
        with_game!(&self.game, game => if is_soon { game.prefetch_arrays() } else { game.prefetch() });
    }

    fn mask_len(&self) -> usize {
        NUM_ACTIONS
    }

    fn action_mask(&self, mask: &mut [u8]) {
        for (agent, mask) in mask.chunks_exact_mut(NUM_ACTIONS).enumerate() {
            observation::write_mask(agent, &self.world().network, mask);
        }
    }

    fn episode_info(&self, key: &str) -> f64 {
        let total = with_game!(&self.game, game => &game.total);
        let numbers = [
            ("work_failed", total.work_failed),
            ("access_failed", total.access_failed),
            ("impact", total.impact),
            ("action_cost", total.action_cost),
        ];
        number_named(key, numbers.map(|(name, number)| (name, number.into())))
    }

    fn fingerprint(&self) -> String {
        format!("CAGE 4 {:?}", self.config)
    }

    fn state(&self) -> &Self::State {
        &self.game
    }

    fn check_state(&self, state: &Self::State, phase: Phase) -> Result<(), String> {
        let (is_sound, is_ours) = match state {
            SeededGame::Fast(_) => (true, !self.config.numpy_random),
            SeededGame::Numpy(game) => (game.random.is_sound(), self.config.numpy_random),
        };
        ensure(is_sound && is_ours, "the random generator has an impossible state or is of another kind")?;
        with_game!(state, game => {
            if phase == Phase::NeverReset {
                return ensure(*game == Game::new(game.random.clone()), "a game that never started has a state");
            }
            let last = self.config.steps - 1;
            let fits = if phase == Phase::Ended { game.time == last } else { game.time < last };
            ensure(fits, "the time is beyond the episode")?;
            game.check()
        })
    }

    fn set_state(&mut self, state: Self::State) {
        self.game = state;
    }

    fn memory(&self) -> usize {
        let random = if self.config.numpy_random { NumpySource::MEMORY } else { 0 };
        arrays(3 + 4 * NUM_RED, Network::MEMORY + Watch::MEMORY + NUM_RED * Red::MEMORY + random)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_game_in_fast_mode_takes_at_most_16_kilobytes() {
        let game = Cage4::new(Arc::new(Config::default()));
        assert!(size_of::<Cage4>() + game.memory() <= 16 << 10);
    }
}
