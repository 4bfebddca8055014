//! The interface of a simulator of several agents, which [`crate::vec_env::VecEnv`] steps.
//!
//! Agents are rows: an environment has a fixed number of them, each with a flag that says whether its agent lives. The
//! action of a row that is not alive before a step is ignored, and its results are zeros. Every
//! [`crate::single_agent::SingleAgentEnv`] is an environment of one agent.

use serde::{Deserialize, Serialize, de::DeserializeOwned};

/// The actions of the agents of one or of several environments, row after row.
#[derive(Clone, Copy, Debug)]
pub enum Actions<'a> {
    /// One index a row.
    Discrete(&'a [i64]),
    /// Numbers, as many a row as [`ActionKind::Box`] says.
    Box(&'a [f32]),
    /// Actions in double precision, for environments that are [`Env::DOUBLE`].
    Double(&'a [f64]),
}

/// The kind of actions that an environment takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ActionKind {
    Discrete,
    /// Numbers, so many for each agent.
    Box(usize),
}

impl<'a> Actions<'a> {
    /// Refuses indices that are not below `count`. Panics if these are no indices.
    pub fn check_below(&self, count: usize) -> Result<(), Refused> {
        let Self::Discrete(all) = self else { unreachable!("the kind of actions is checked before") };
        match all.iter().position(|action| !(0..count as i64).contains(action)) {
            Some(agent) => Err(Refused { agent, expected: format!("an integer from 0 to {}", count - 1) }),
            None => Ok(()),
        }
    }

    /// Returns whether these are the actions of `rows` agents of that kind.
    pub fn fit(&self, kind: ActionKind, rows: usize) -> bool {
        match (self, kind) {
            (Self::Discrete(all), ActionKind::Discrete) => all.len() == rows,
            (Self::Box(all), ActionKind::Box(len)) => all.len() == rows * len,
            (Self::Double(all), ActionKind::Box(len)) => all.len() == rows * len,
            _ => false,
        }
    }

    /// Actions of the first `row` rows out of `rows`, and of the others.
    pub fn split_at(self, row: usize, rows: usize) -> (Self, Self) {
        match self {
            Self::Discrete(all) => {
                let (a, b) = all.split_at(row);
                (Self::Discrete(a), Self::Discrete(b))
            }
            Self::Box(all) => {
                let (a, b) = all.split_at(row * (all.len() / rows));
                (Self::Box(a), Self::Box(b))
            }
            Self::Double(all) => {
                let (a, b) = all.split_at(row * (all.len() / rows));
                (Self::Double(a), Self::Double(b))
            }
        }
    }

    /// Actions of environment `i`, each environment having `agents` of `rows` rows in all.
    // Always: it stands in the loop over the environments.
    #[inline(always)]
    pub fn of_env(self, i: usize, agents: usize, rows: usize) -> Self {
        match self {
            Self::Discrete(all) => Self::Discrete(&all[i * agents..(i + 1) * agents]),
            Self::Box(all) => {
                let len = all.len() / rows * agents;
                Self::Box(&all[i * len..(i + 1) * len])
            }
            Self::Double(all) => {
                let len = all.len() / rows * agents;
                Self::Double(&all[i * len..(i + 1) * len])
            }
        }
    }
}

/// The action of one agent that an environment does not take.
#[derive(Debug, PartialEq, Eq)]
pub struct Refused {
    pub agent: usize,
    /// Description of the actions that are taken.
    pub expected: String,
}

/// The phase of an environment's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Phase {
    NeverReset,
    Running,
    /// The episode has ended and the next one has not started.
    Ended,
}

/// The number of a name; NaN for another name.
pub(crate) fn number_named<'a>(key: &str, numbers: impl IntoIterator<Item = (&'a str, f64)>) -> f64 {
    numbers.into_iter().find(|(name, _)| *name == key).map_or(f64::NAN, |(_, number)| number)
}

/// Ok if `fits`, else the error `what`.
pub(crate) fn ensure(fits: bool, what: &str) -> Result<(), String> {
    if fits { Ok(()) } else { Err(what.into()) }
}

/// A floating-point type that rewards may be written as.
pub trait Real: Copy + Send {
    fn from_f64(x: f64) -> Self;
}

impl Real for f32 {
    fn from_f64(x: f64) -> Self {
        x as f32
    }
}

impl Real for f64 {
    fn from_f64(x: f64) -> Self {
        x
    }
}

/// The arrays that a step of one environment fills, a row for each agent. Flags are bytes, 0 or 1; `alive` holds the
/// flags before the step at first.
pub struct AgentRows<'a, R> {
    /// An agent whose episode ends with this step still gets its true last observation.
    pub obs: &'a mut [f32],
    pub rewards: &'a mut [R],
    pub terminated: &'a mut [u8],
    pub truncated: &'a mut [u8],
    /// 1 if the row has an agent that acts next.
    pub alive: &'a mut [u8],
}

/// An environment whose caller may end the episodes of agents.
pub trait Endable {
    /// Ends the episode for those of `ended` that act, as if it had ended with the last step; clears their flags of
    /// `alive`. Returns whether it has ended for all.
    fn end(&mut self, ended: &[u8], alive: &mut [u8]) -> bool;
}

/// An environment of several agents. It owns its random generator: equal states have equal futures.
pub trait Env: Send {
    /// All that changes while an episode runs, the generator included.
    type State: Serialize + DeserializeOwned + Clone;

    /// Number of environments below which waking a thread costs more than it saves.
    const MIN_BLOCK: usize = 64;

    /// True if it takes [`Actions::Double`] as well as [`Actions::Box`].
    const DOUBLE: bool = false;

    /// Rows of an environment: the most agents that an episode can have.
    fn num_agents(&self) -> usize;

    /// Number of `f32` in the observation of one agent.
    fn obs_len(&self) -> usize;

    fn action_kind(&self) -> ActionKind;

    /// Returns whether `step` may be called with these actions of all rows. Those of rows that are not alive are not
    /// looked at.
    fn check(&self, actions: Actions<'_>) -> Result<(), Refused>;

    /// Starts the random stream of `seed`; the next `reset` draws from it.
    fn seed(&mut self, seed: u64);

    /// Starts the random stream of `seed` within an episode, which continues with it.
    fn reseed(&mut self, seed: u64) {
        self.seed(seed);
    }

    /// Starts the next episode; writes the first observations and the flags of living agents.
    fn reset(&mut self, obs: &mut [f32], alive: &mut [u8]);

    /// Writes the observations of the present state again, and the flags of living agents.
    fn observe(&self, obs: &mut [f32], alive: &mut [u8]);

    /// Takes checked actions and writes the results of all rows. Returns whether the episode has ended: no agent lives,
    /// or its time is over, and then the living agents are truncated.
    fn step<R: Real>(&mut self, actions: Actions<'_>, rows: AgentRows<'_, R>) -> bool;

    /// Brings what the next step reads into the caches. It is called while other environments are stepped, for each
    /// `round` from 0 to 2: what a round reads, those before have asked for.
    fn prefetch(&self, _round: usize) {}

    /// Number of the actions of an agent, each of which has an entry in its action mask; 0: there are no masks.
    fn mask_len(&self) -> usize {
        0
    }

    /// Writes the action masks of all agents: 1 where an action may have an effect now, as far as its agent can know, 0
    /// elsewhere.
    fn action_mask(&self, _mask: &mut [u8]) {}

    /// A number of the running episode or of the last that has ended, by its name; NaN for a name that the environment does
    /// not know.
    fn episode_info(&self, _key: &str) -> f64 {
        f64::NAN
    }

    /// Name and options as text: a saved state is only restored into an environment with an equal fingerprint.
    fn fingerprint(&self) -> String;

    fn state(&self) -> &Self::State;

    /// Refuses a decoded state that this environment cannot have in that phase; the error continues "in environment 3".
    /// With a state that passes, every method must terminate without a panic.
    fn check_state(&self, state: &Self::State, phase: Phase) -> Result<(), String>;

    /// Restores a state that [`Env::check_state`] has accepted.
    fn set_state(&mut self, state: Self::State);

    /// Bytes that it holds beside itself, at most, while it plays episodes of usual length.
    fn memory(&self) -> usize;

    /// Bytes that a saved state has at most.
    fn most_saved(&self) -> usize {
        usize::MAX
    }
}
