//! Many environments stepped in parallel into arrays that the caller owns.
//!
//! ```text
//! actions[i]  ->  env i  ->  obs[i * obs_len ..], rewards[i], terminated[i], truncated[i] (, final_obs[i * obs_len ..])
//! ```
//!
//! Threads share the environments out in contiguous blocks. Each environment draws from its own stream, so
//! results are the same for any number of threads and any batch size.

use std::fmt;

use rayon::{ThreadPool, ThreadPoolBuilder};
use serde::{Deserialize, Serialize};

use crate::env::Env;

/// What follows the end of an episode (Gymnasium's `AutoresetMode`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Autoreset {
    /// The next `step` ignores the action and resets: reward 0, no end.
    NextStep,
    /// The step that ends an episode also resets; the true last observation goes to `final_obs`.
    SameStep,
    /// The caller resets, by mask.
    Disabled,
}

/// Why a call was refused. Nothing has been changed then.
#[derive(Debug, PartialEq, Eq)]
pub enum Error {
    /// `step` or `save` before the first `reset`.
    NeverReset {
        env: usize,
    },
    /// `step` of an ended episode with `Autoreset::Disabled`.
    Ended {
        env: usize,
    },
    Action {
        env: usize,
        expected: String,
    },
    /// A state that is damaged, foreign or of other options; in words.
    State(String),
    /// No threads could be started; in words.
    Threads(String),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NeverReset { env } => write!(f, "environment {env} was never reset: call reset() first"),
            Self::Ended { env } => write!(
                f,
                "the episode of environment {env} has ended and autoreset is disabled: \
                 reset it with options={{'reset_mask': mask}} before the next step"
            ),
            Self::Action { env, expected } => write!(f, "action of environment {env}: expected {expected}"),
            Self::State(why) | Self::Threads(why) => f.write_str(why),
        }
    }
}

impl std::error::Error for Error {}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Phase {
    NeverReset,
    Running,
    Ended,
}

struct Slot<E> {
    env: E,
    phase: Phase,
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

/// The arrays that a step fills, one row an environment. Flags are bytes, 0 or 1.
pub struct Rows<'a, R> {
    pub obs: &'a mut [f32],
    pub rewards: &'a mut [R],
    pub terminated: &'a mut [u8],
    pub truncated: &'a mut [u8],
    /// With `SameStep`: rows that ended get their true last observation, the others stay as they are.
    pub final_obs: Option<&'a mut [f32]>,
}

impl<'a, R> Rows<'a, R> {
    fn split(self, row: usize, obs_len: usize) -> (Self, Self) {
        let (obs, obs2) = self.obs.split_at_mut(row * obs_len);
        let (rewards, rewards2) = self.rewards.split_at_mut(row);
        let (terminated, terminated2) = self.terminated.split_at_mut(row);
        let (truncated, truncated2) = self.truncated.split_at_mut(row);
        let (final_obs, final_obs2) = match self.final_obs {
            Some(rows) => {
                let (a, b) = rows.split_at_mut(row * obs_len);
                (Some(a), Some(b))
            }
            None => (None, None),
        };
        (
            Rows { obs, rewards, terminated, truncated, final_obs },
            Rows {
                obs: obs2,
                rewards: rewards2,
                terminated: terminated2,
                truncated: truncated2,
                final_obs: final_obs2,
            },
        )
    }
}

/// Below this many environments a block, waking a thread costs more than it saves.
const MIN_BLOCK: usize = 64;

pub struct VecEnv<E> {
    slots: Vec<Slot<E>>,
    autoreset: Autoreset,
    obs_len: usize,
    pool: Option<ThreadPool>,
    threads: usize,
}

#[derive(Serialize, Deserialize)]
struct Saved<S> {
    fingerprint: String,
    slots: Vec<(Phase, S)>,
}

/// First bytes of every saved state: the format and its version.
const MAGIC: &[u8; 8] = b"fastrlv1";

impl<E: Env> VecEnv<E> {
    /// `threads` 0 means one a core. Panics if `envs` is empty.
    pub fn new(envs: Vec<E>, autoreset: Autoreset, threads: usize) -> Result<Self, Error> {
        let obs_len = envs.first().expect("at least one environment").obs_len();
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let wanted = if threads == 0 { cores } else { threads };
        let threads = wanted.min(envs.len().div_ceil(MIN_BLOCK));
        let pool = (threads > 1)
            .then(|| ThreadPoolBuilder::new().num_threads(threads).thread_name(|i| format!("fastrl-env-{i}")).build())
            .transpose()
            .map_err(|e| {
                Error::Threads(format!("could not start {threads} threads: {e}; pass a smaller num_threads"))
            })?;
        let slots = envs.into_iter().map(|env| Slot { env, phase: Phase::NeverReset }).collect();
        Ok(Self { slots, autoreset, obs_len, pool, threads })
    }

    pub fn num_envs(&self) -> usize {
        self.slots.len()
    }

    pub fn obs_len(&self) -> usize {
        self.obs_len
    }

    pub fn autoreset(&self) -> Autoreset {
        self.autoreset
    }

    /// Environment `i`, to look at.
    pub fn env(&self, i: usize) -> &E {
        &self.slots[i].env
    }

    pub fn envs(&self) -> impl Iterator<Item = &E> {
        self.slots.iter().map(|slot| &slot.env)
    }

    /// Whether environment `i` has begun its first episode.
    pub fn was_reset(&self, i: usize) -> bool {
        self.slots[i].phase != Phase::NeverReset
    }

    /// Resets the environments that `mask` selects (all without one) and writes their rows of `obs`, no others.
    /// With `seeds`, each starts its stream anew; without, the streams run on.
    pub fn reset(&mut self, seeds: Option<&[u64]>, mask: Option<&[u8]>, obs: &mut [f32]) {
        let rows = self.slots.iter_mut().zip(obs.chunks_exact_mut(self.obs_len));
        for (i, (slot, obs)) in rows.enumerate() {
            if mask.is_some_and(|mask| mask[i] == 0) {
                continue;
            }
            if let Some(seeds) = seeds {
                slot.env.seed(seeds[i]);
            }
            slot.env.reset(obs);
            slot.phase = Phase::Running;
        }
    }

    /// Writes every environment's present observation.
    pub fn observe(&self, obs: &mut [f32]) {
        for (slot, obs) in self.slots.iter().zip(obs.chunks_exact_mut(self.obs_len)) {
            slot.env.observe(obs);
        }
    }

    /// Steps every environment. All lengths must fit `num_envs`; otherwise it panics before anything has changed.
    pub fn step<R: Real>(&mut self, actions: &[E::Action], rows: Rows<'_, R>) -> Result<(), Error> {
        let n = self.slots.len();
        assert!(
            actions.len() == n && rows.rewards.len() == n && rows.terminated.len() == n && rows.truncated.len() == n
        );
        assert!(rows.obs.len() == n * self.obs_len);
        assert!(rows.final_obs.as_ref().is_none_or(|rows| rows.len() == n * self.obs_len));
        for (i, (slot, &action)) in self.slots.iter().zip(actions).enumerate() {
            match slot.phase {
                Phase::NeverReset => return Err(Error::NeverReset { env: i }),
                Phase::Ended if self.autoreset == Autoreset::Disabled => return Err(Error::Ended { env: i }),
                // The action of a row that is about to be reset is ignored.
                Phase::Ended => {}
                Phase::Running if !slot.env.accepts(action) => {
                    return Err(Error::Action { env: i, expected: slot.env.expected_action() });
                }
                Phase::Running => {}
            }
        }
        let job = Job { slots: &mut self.slots, actions, rows, autoreset: self.autoreset, obs_len: self.obs_len };
        match &self.pool {
            Some(pool) => pool.install(|| job.run(self.threads)),
            None => job.run(1),
        }
        Ok(())
    }

    /// Everything that the future depends on, as bytes.
    pub fn save(&self) -> Vec<u8>
    where
        E::State: Clone,
    {
        let saved = Saved {
            fingerprint: self.fingerprint(),
            slots: self.slots.iter().map(|slot| (slot.phase, slot.env.state().clone())).collect(),
        };
        let body = postcard::to_stdvec(&saved).expect("states serialise");
        let mut bytes = Vec::with_capacity(body.len() + 12);
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(&crc32fast::hash(&body).to_le_bytes());
        bytes.extend_from_slice(&body);
        bytes
    }

    /// Restores what `save` gave. On an error nothing has changed.
    pub fn load(&mut self, bytes: &[u8]) -> Result<(), Error> {
        let refuse = |why: &str| Err(Error::State(format!("this environment state cannot be restored: {why}")));
        if bytes.len() < 12 || &bytes[..8] != MAGIC {
            return refuse("it is not a state saved by this version of fastrl");
        }
        let (sum, body) = bytes[8..].split_at(4);
        if sum != crc32fast::hash(body).to_le_bytes() {
            return refuse("it is damaged (its checksum differs)");
        }
        let Ok(saved) = postcard::from_bytes::<Saved<E::State>>(body) else {
            return refuse("it is of another kind of environment");
        };
        if saved.fingerprint != self.fingerprint() {
            let (ours, theirs) = (self.fingerprint(), saved.fingerprint);
            return refuse(&format!("it was saved by {theirs}, this is {ours}"));
        }
        if saved.slots.len() != self.slots.len() {
            return refuse(&format!("it holds {} environments, here are {}", saved.slots.len(), self.slots.len()));
        }
        for (slot, (phase, state)) in self.slots.iter_mut().zip(saved.slots) {
            slot.phase = phase;
            slot.env.set_state(state);
        }
        Ok(())
    }

    fn fingerprint(&self) -> String {
        format!("{} with autoreset {:?}", self.slots[0].env.fingerprint(), self.autoreset)
    }
}

/// A block of environments with its rows.
struct Job<'a, E: Env, R> {
    slots: &'a mut [Slot<E>],
    actions: &'a [E::Action],
    rows: Rows<'a, R>,
    autoreset: Autoreset,
    obs_len: usize,
}

impl<E: Env, R: Real> Job<'_, E, R> {
    fn run(self, threads: usize) {
        if threads <= 1 {
            return self.run_here();
        }
        let left = threads / 2;
        let row = self.slots.len() * left / threads;
        let (slots, slots2) = self.slots.split_at_mut(row);
        let (actions, actions2) = self.actions.split_at(row);
        let (rows, rows2) = self.rows.split(row, self.obs_len);
        let (autoreset, obs_len) = (self.autoreset, self.obs_len);
        rayon::join(
            || Job { slots, actions, rows, autoreset, obs_len }.run(left),
            || Job { slots: slots2, actions: actions2, rows: rows2, autoreset, obs_len }.run(threads - left),
        );
    }

    fn run_here(self) {
        let Rows { obs, rewards, terminated, truncated, mut final_obs } = self.rows;
        let envs = self.slots.iter_mut().zip(self.actions).zip(obs.chunks_exact_mut(self.obs_len)).enumerate();
        for (i, ((slot, &action), obs)) in envs {
            if slot.phase == Phase::Ended {
                slot.env.reset(obs);
                slot.phase = Phase::Running;
                (rewards[i], terminated[i], truncated[i]) = (R::from_f64(0.0), 0, 0);
                continue;
            }
            let step = slot.env.step(action, obs);
            rewards[i] = R::from_f64(step.reward);
            terminated[i] = u8::from(step.terminated);
            truncated[i] = u8::from(step.truncated);
            if step.ended() {
                if self.autoreset == Autoreset::SameStep {
                    if let Some(rows) = &mut final_obs {
                        rows[i * self.obs_len..(i + 1) * self.obs_len].copy_from_slice(obs);
                    }
                    slot.env.reset(obs);
                } else {
                    slot.phase = Phase::Ended;
                }
            }
        }
    }
}
