//! The classic control tasks of Gymnasium 1.x, with its numbers: the same seed and actions give the same episodes.
//!
//! Source: Gymnasium's `envs/classic_control`. Its arithmetic is NumPy's, where a square that is written as a power
//! differs from a product in the last bit, and where a float32 number stays one beside a Python float; the tasks say
//! where they follow it in that.

mod acrobot;
mod cart_pole;
mod mountain_car;
mod mountain_car_continuous;
mod pendulum;

use std::hint::black_box;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::env::{ActionKind, Actions, AgentRows, Env, Phase, Real, Refused, ensure};
use crate::numpy_random::NumpyRandom;

/// The variables of a task; those that a task does not need are zeros.
pub type Variables = [f64; 4];

/// Shapes and bounds of a task.
#[derive(Clone, Copy)]
pub struct Shape {
    pub obs_len: usize,
    /// Number of discrete actions; `None`: the action is one number.
    pub num_actions: Option<usize>,
    /// No variable of an episode is further from zero.
    pub largest: Variables,
}

/// The rules of a task, which are the same for all environments.
pub trait Task: Send + Sync {
    fn shape(&self) -> Shape;

    /// Draws the variables of a new episode.
    fn start(&self, rng: &mut NumpyRandom) -> Variables;

    /// Takes a step and returns the reward, and whether the task has ended the episode.
    ///
    /// # Arguments
    /// - `action`: an index or a number.
    /// - `first`: it is the first step of the episode.
    fn step(&self, variables: &mut Variables, action: f32, first: bool) -> (f64, bool);

    fn observe(&self, variables: &Variables, obs: &mut [f32]);
}

/// Names of the tasks, as Gymnasium's without a version.
pub const NAMES: [&str; 5] = ["CartPole", "Pendulum", "Acrobot", "MountainCar", "MountainCarContinuous"];

/// The task of a name with the value of its one option (Acrobot has none); `None`: there is no such task.
pub fn task(name: &str, option: f64) -> Option<Arc<dyn Task>> {
    Some(match name {
        "CartPole" => Arc::new(cart_pole::CartPole { sutton_barto_reward: option != 0.0 }),
        "Pendulum" => Arc::new(pendulum::Pendulum { g: option }),
        "Acrobot" => Arc::new(acrobot::Acrobot),
        "MountainCar" => Arc::new(mountain_car::MountainCar { goal_velocity: option }),
        "MountainCarContinuous" => Arc::new(mountain_car_continuous::MountainCarContinuous { goal_velocity: option }),
        _ => return None,
    })
}

/// NumPy's `x**2` of a float64 scalar: the C library's power, of which the compiler is not to make a product.
#[inline]
fn square(x: f64) -> f64 {
    x.powf(black_box(2.0))
}

/// All that changes.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct State {
    rng: NumpyRandom,
    variables: Variables,
    /// Steps of the episode.
    time: u32,
    over: bool,
}

/// One environment.
pub struct Classic {
    task: Arc<dyn Task>,
    shape: Shape,
    fingerprint: Arc<str>,
    limit: u32,
    state: State,
}

impl Classic {
    /// # Arguments
    /// - `fingerprint`: name and options.
    /// - `limit`: steps after which an episode is truncated.
    pub fn new(task: Arc<dyn Task>, fingerprint: Arc<str>, limit: u32) -> Self {
        let state = State { rng: NumpyRandom::new(0), variables: [0.0; 4], time: 0, over: true };
        Self { shape: task.shape(), task, fingerprint, limit, state }
    }

    /// The variables of the running or last episode, as Gymnasium's `env.unwrapped.state`.
    pub fn variables(&self) -> &Variables {
        &self.state.variables
    }
}

impl Env for Classic {
    type State = State;

    /// A step takes some 50 ns.
    const MIN_BLOCK: usize = 512;

    fn num_agents(&self) -> usize {
        1
    }

    fn obs_len(&self) -> usize {
        self.shape.obs_len
    }

    fn action_kind(&self) -> ActionKind {
        self.shape.num_actions.map_or(ActionKind::Box(1), |_| ActionKind::Discrete)
    }

    fn check(&self, actions: Actions<'_>) -> Result<(), Refused> {
        match (actions, self.shape.num_actions) {
            (Actions::Discrete(_), Some(count)) => actions.check_below(count),
            (Actions::Box([number]), None) if number.is_finite() => Ok(()),
            (Actions::Box(numbers), _) => {
                Err(Refused { agent: 0, expected: format!("one finite number, got {numbers:?}") })
            }
            _ => unreachable!("the kind of actions is checked before"),
        }
    }

    fn seed(&mut self, seed: u64) {
        self.state.rng = NumpyRandom::new(seed);
    }

    fn reset(&mut self, obs: &mut [f32], alive: &mut [u8]) {
        let state = &mut self.state;
        state.variables = self.task.start(&mut state.rng);
        (state.time, state.over) = (0, false);
        self.observe(obs, alive);
    }

    fn observe(&self, obs: &mut [f32], alive: &mut [u8]) {
        self.task.observe(&self.state.variables, obs);
        alive[0] = u8::from(!self.state.over);
    }

    fn step<R: Real>(&mut self, actions: Actions<'_>, rows: AgentRows<'_, R>) -> bool {
        let action = match actions {
            Actions::Discrete(&[index]) => index as f32,
            Actions::Box(&[number]) => number,
            _ => unreachable!("actions are checked before a step"),
        };
        let state = &mut self.state;
        let (reward, terminated) = self.task.step(&mut state.variables, action, state.time == 0);
        state.time = state.time.saturating_add(1);
        let truncated = state.time >= self.limit;
        state.over = terminated || truncated;
        self.task.observe(&state.variables, rows.obs);
        rows.rewards[0] = R::from_f64(reward);
        rows.terminated[0] = u8::from(terminated);
        rows.truncated[0] = u8::from(truncated);
        rows.alive[0] = u8::from(!state.over);
        state.over
    }

    fn fingerprint(&self) -> String {
        format!("classic {} limit {}", self.fingerprint, self.limit)
    }

    fn state(&self) -> &State {
        &self.state
    }

    fn check_state(&self, state: &State, phase: Phase) -> Result<(), String> {
        let fits = |(x, most): (&f64, f64)| x.abs() <= most;
        ensure(state.rng.is_sound(), "its generator is of another kind")?;
        ensure(state.variables.iter().zip(self.shape.largest).all(fits), "its variables are out of range")?;
        ensure(state.over == (phase != Phase::Running), "its phase is another")?;
        ensure(phase != Phase::Running || state.time < self.limit, "its episode is longer than the limit")
    }

    fn set_state(&mut self, state: State) {
        self.state = state;
    }

    fn memory(&self) -> usize {
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vec_env::{Autoreset, Rows, VecEnv};

    fn vec_env(name: &str, limit: u32) -> VecEnv<Classic> {
        let task = task(name, 0.0).expect("a known task");
        VecEnv::new(vec![Classic::new(task, name.into(), limit)], Autoreset::NextStep, 1)
    }

    #[test]
    fn variables_stay_in_range() {
        for name in NAMES {
            let mut venv = vec_env(name, 300);
            let shape = venv.env(0).shape;
            let (mut obs, mut rng) = (vec![0.0; shape.obs_len], NumpyRandom::new(1));
            venv.reset(Some(&[5]), None, &mut obs);
            let mut ends = 0;
            for step in 0..3_000 {
                // Long pushes in one direction reach far.
                let far = if step / 40 % 2 == 0 { 2.0 } else { -2.0 };
                let (mut reward, mut terminated, mut truncated) = ([0f64], [0], [0]);
                let rows = Rows {
                    obs: &mut obs,
                    rewards: &mut reward,
                    terminated: &mut terminated,
                    truncated: &mut truncated,
                    final_obs: None,
                };
                match shape.num_actions {
                    Some(count) => venv.step(Actions::Discrete(&[i64::from(rng.below(count as u32))]), rows),
                    None => venv.step(Actions::Box(&[far]), rows),
                }
                .expect("a running environment");
                ends += usize::from(terminated[0] + truncated[0] > 0);
                assert!(venv.env(0).variables().iter().zip(shape.largest).all(|(x, most)| x.abs() <= most), "{name}");
                let saved = venv.save().expect("it was reset");
                assert_eq!(venv.load(&saved), Ok(()), "{name}");
            }
            assert!(ends > 5, "{name}");
        }
    }

    #[test]
    fn altered_states_are_refused() {
        for name in NAMES {
            let mut env = Classic::new(task(name, 0.0).expect("a known task"), name.into(), 10);
            env.reset(&mut vec![0.0; env.shape.obs_len], &mut [0]);
            assert_eq!(env.check_state(&env.state, Phase::Running), Ok(()));
            let altered: [fn(&mut State); 4] = [
                |state| state.variables[1] = f64::NAN,
                |state| state.variables[1] = 1e300,
                |state| state.over = true,
                |state| state.time = 10,
            ];
            for alter in altered {
                let mut state = env.state.clone();
                alter(&mut state);
                assert!(env.check_state(&state, Phase::Running).is_err(), "{name}: {state:?}");
            }
        }
        assert!(task("CartPole-v1", 0.0).is_none());
    }
}
