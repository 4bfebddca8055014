//! The interface of a simulator of one agent with discrete actions. Simulators of several agents or of other actions
//! implement [`crate::env::Env`].

use serde::{Serialize, de::DeserializeOwned};

use crate::env::{ActionKind, Actions, AgentRows, Env, Phase, Real, Refused};

/// The result of one step, beside the observation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Step {
    pub reward: f64,
    /// The episode reached an end of the task itself: no future reward exists.
    pub terminated: bool,
    /// The episode was cut off, by a time limit for instance: the last observation still has a value.
    pub truncated: bool,
}

impl Step {
    pub fn ended(self) -> bool {
        self.terminated || self.truncated
    }
}

/// One environment. It owns its random generator: equal states have equal futures.
pub trait SingleAgentEnv: Send {
    /// All that changes while an episode runs, the generator included.
    type State: Serialize + DeserializeOwned + Clone;

    /// Number of `f32` in an observation.
    fn obs_len(&self) -> usize;

    /// Returns whether `step` may be called with this action.
    fn accepts(&self, action: i64) -> bool;

    /// Description of the actions that are accepted, for error messages.
    fn expected_action(&self) -> String;

    /// Starts the random stream of `seed`; the next `reset` draws from it.
    fn seed(&mut self, seed: u64);

    /// See [`Env::reseed`].
    fn reseed(&mut self, seed: u64) {
        self.seed(seed);
    }

    /// Starts the next episode and writes its first observation.
    fn reset(&mut self, obs: &mut [f32]);

    /// Writes the observation of the present state again.
    fn observe(&self, obs: &mut [f32]);

    /// Takes an accepted action and writes the observation that follows.
    fn step(&mut self, action: i64, obs: &mut [f32]) -> Step;

    /// See [`crate::env::Env::mask_len`].
    fn mask_len(&self) -> usize {
        0
    }

    /// See [`crate::env::Env::action_mask`].
    fn action_mask(&self, _mask: &mut [u8]) {}

    /// See [`crate::env::Env::episode_info`].
    fn episode_info(&self, _key: &str) -> f64 {
        f64::NAN
    }

    /// Name and options as text: a saved state is only restored into an environment with an equal fingerprint.
    fn fingerprint(&self) -> String;

    fn state(&self) -> &Self::State;

    /// See [`crate::env::Env::check_state`].
    fn check_state(&self, state: &Self::State, phase: Phase) -> Result<(), String>;

    /// Restores a state that [`SingleAgentEnv::check_state`] has accepted.
    fn set_state(&mut self, state: Self::State);

    /// See [`crate::env::Env::memory`].
    fn memory(&self) -> usize;
}

impl<E: SingleAgentEnv> Env for E {
    type State = E::State;

    fn num_agents(&self) -> usize {
        1
    }

    fn obs_len(&self) -> usize {
        SingleAgentEnv::obs_len(self)
    }

    fn action_kind(&self) -> ActionKind {
        ActionKind::Discrete
    }

    fn check(&self, actions: Actions<'_>) -> Result<(), Refused> {
        match actions {
            Actions::Discrete(&[action]) if self.accepts(action) => Ok(()),
            _ => Err(Refused { agent: 0, expected: self.expected_action() }),
        }
    }

    fn seed(&mut self, seed: u64) {
        SingleAgentEnv::seed(self, seed);
    }

    fn reseed(&mut self, seed: u64) {
        SingleAgentEnv::reseed(self, seed);
    }

    fn reset(&mut self, obs: &mut [f32], alive: &mut [u8]) {
        SingleAgentEnv::reset(self, obs);
        alive[0] = 1;
    }

    fn observe(&self, obs: &mut [f32], _alive: &mut [u8]) {
        SingleAgentEnv::observe(self, obs);
    }

    fn step<R: Real>(&mut self, actions: Actions<'_>, rows: AgentRows<'_, R>) -> bool {
        let Actions::Discrete(&[action]) = actions else { unreachable!("actions are checked before a step") };
        let step = SingleAgentEnv::step(self, action, rows.obs);
        rows.rewards[0] = R::from_f64(step.reward);
        rows.terminated[0] = u8::from(step.terminated);
        rows.truncated[0] = u8::from(step.truncated);
        rows.alive[0] = u8::from(!step.ended());
        step.ended()
    }

    fn mask_len(&self) -> usize {
        SingleAgentEnv::mask_len(self)
    }

    fn action_mask(&self, mask: &mut [u8]) {
        SingleAgentEnv::action_mask(self, mask);
    }

    fn episode_info(&self, key: &str) -> f64 {
        SingleAgentEnv::episode_info(self, key)
    }

    fn fingerprint(&self) -> String {
        SingleAgentEnv::fingerprint(self)
    }

    fn state(&self) -> &Self::State {
        SingleAgentEnv::state(self)
    }

    fn check_state(&self, state: &Self::State, phase: Phase) -> Result<(), String> {
        SingleAgentEnv::check_state(self, state, phase)
    }

    fn set_state(&mut self, state: Self::State) {
        SingleAgentEnv::set_state(self, state);
    }

    fn memory(&self) -> usize {
        SingleAgentEnv::memory(self)
    }
}
