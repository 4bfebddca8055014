//! Vectorised stepping: many environments in parallel, into arrays that the caller owns.
//!
//! ```text
//! row = environment * agents + agent
//! actions[row]  ->  environment  ->  obs[row * obs_len ..], rewards[row], terminated[row], truncated[row] (, final_obs[row * obs_len ..])
//! ```
//!
//! Threads step contiguous blocks of environments. Each environment draws from its own stream, so results are
//! the same for any number of threads and any batch size.

mod rollout;
mod saved;

use std::fmt;

use crate::env::{Actions, AgentRows, Endable, Env, Phase, Real, Refused};
use crate::memory::{ask_for, prefer_large_pages};
use crate::team::Team;

pub use rollout::{Drawn, End, Rollout, Scaling};

/// The behaviour at the end of an episode (Gymnasium's `AutoresetMode`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Autoreset {
    /// The next `step` ignores the action and resets: reward 0, no end.
    NextStep,
    /// The step that ends an episode also resets; the true last observation goes to `final_obs`.
    SameStep,
    /// The caller resets, by mask.
    Disabled,
}

/// The reason why a call was refused. Nothing has changed then.
#[derive(Debug, PartialEq, Eq)]
pub enum Error {
    /// `step` or `save` before the first `reset`.
    NeverReset { env: usize },
    /// `step` of an ended episode with `Autoreset::Disabled`.
    Ended { env: usize },
    Action {
        env: usize,
        refused: Refused,
        /// True if an environment has only that agent.
        alone: bool,
    },
    /// Actions of another kind or number than the environments take.
    Actions,
    /// A state that is damaged, foreign or of other options.
    State(String),
    /// There is not enough memory.
    Memory(String),
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
            Self::Action { env, refused: Refused { expected, .. }, alone: true } => {
                write!(f, "action of environment {env}: expected {expected}")
            }
            Self::Action { env, refused: Refused { agent, expected }, alone: false } => {
                write!(f, "action of agent {agent} of environment {env}: expected {expected}")
            }
            Self::Actions => f.write_str("actions of another kind or number than these environments take"),
            Self::State(why) | Self::Memory(why) => f.write_str(why),
        }
    }
}

impl std::error::Error for Error {}

struct Slot<E> {
    env: E,
    phase: Phase,
}

/// The arrays that a step fills, one row an agent. Flags are bytes, 0 or 1.
pub struct Rows<'a, R> {
    pub obs: &'a mut [f32],
    pub rewards: &'a mut [R],
    pub terminated: &'a mut [u8],
    pub truncated: &'a mut [u8],
    /// True last observations, with `SameStep`: only rows of environments that ended are written.
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

pub struct VecEnv<W> {
    slots: Vec<Slot<W>>,
    /// One flag a row: whether its agent acts next.
    alive: Vec<u8>,
    autoreset: Autoreset,
    num_agents: usize,
    obs_len: usize,
    /// Has no threads but the caller's before it is needed.
    team: Team,
    threads: usize,
}

impl<W: Env> VecEnv<W> {
    /// [`VecEnv::new`] of `count` environments that `make` makes, once it is known that there is memory for them
    /// and for their episodes.
    pub fn build(count: usize, make: impl Fn() -> W, autoreset: Autoreset, threads: usize) -> Result<Self, Error> {
        let mut envs = Vec::new();
        let first = make();
        let each = first.memory().saturating_add(2 * size_of::<Slot<W>>() + first.num_agents());
        let bytes = each.saturating_mul(count);
        ask_for(bytes).and_then(|()| envs.try_reserve_exact(count)).map_err(|_| {
            let megabytes = bytes.div_ceil(1 << 20);
            Error::Memory(format!("{count} environments need about {megabytes} MB of memory, more than there is"))
        })?;
        envs.extend(std::iter::repeat_with(make).take(count));
        Ok(Self::new(envs, autoreset, threads))
    }

    /// `threads` 0: one for each core; fewer where the system does not start them. Panics if `envs` is empty.
    pub fn new(envs: Vec<W>, autoreset: Autoreset, threads: usize) -> Self {
        let first = envs.first().expect("at least one environment");
        let (num_agents, obs_len) = (first.num_agents(), first.obs_len());
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let threads = if threads == 0 { cores } else { threads }.min(envs.len());
        let alive = vec![0; envs.len() * num_agents];
        let mut slots = Vec::with_capacity(envs.len());
        prefer_large_pages(slots.spare_capacity_mut());
        slots.extend(envs.into_iter().map(|env| Slot { env, phase: Phase::NeverReset }));
        Self { slots, alive, autoreset, num_agents, obs_len, team: Team::new(1), threads }
    }

    pub fn num_envs(&self) -> usize {
        self.slots.len()
    }

    /// Rows of one environment.
    pub fn num_agents(&self) -> usize {
        self.num_agents
    }

    pub fn obs_len(&self) -> usize {
        self.obs_len
    }

    pub fn autoreset(&self) -> Autoreset {
        self.autoreset
    }

    /// One flag a row: whether its agent acts next.
    pub fn alive(&self) -> &[u8] {
        &self.alive
    }

    /// Environment `i`.
    pub fn env(&self, i: usize) -> &W {
        &self.slots[i].env
    }

    pub fn envs(&self) -> impl Iterator<Item = &W> {
        self.slots.iter().map(|slot| &slot.env)
    }

    /// The environments, to change settings of their next episodes.
    pub fn envs_mut(&mut self) -> impl Iterator<Item = &mut W> {
        self.slots.iter_mut().map(|slot| &mut slot.env)
    }

    /// Takes the environments out.
    pub fn into_envs(self) -> Vec<W> {
        self.slots.into_iter().map(|slot| slot.env).collect()
    }

    /// Returns whether environment `i` has started its first episode.
    pub fn was_reset(&self, i: usize) -> bool {
        self.slots[i].phase != Phase::NeverReset
    }

    /// Resets the environments that `mask` selects (all without one) and writes their rows of `obs`, no others.
    /// `seeds` restart their random streams; without, the streams continue.
    pub fn reset(&mut self, seeds: Option<&[u64]>, mask: Option<&[u8]>, obs: &mut [f32]) {
        let rows =
            self.alive.chunks_exact_mut(self.num_agents).zip(obs.chunks_exact_mut(self.num_agents * self.obs_len));
        for (i, (slot, (alive, obs))) in self.slots.iter_mut().zip(rows).enumerate() {
            if mask.is_some_and(|mask| mask[i] == 0) {
                continue;
            }
            if let Some(seeds) = seeds {
                slot.env.seed(seeds[i]);
            }
            slot.env.reset(obs, alive);
            slot.phase = Phase::Running;
        }
    }

    /// Writes every row's present observation.
    pub fn observe(&mut self, obs: &mut [f32]) {
        let rows =
            self.alive.chunks_exact_mut(self.num_agents).zip(obs.chunks_exact_mut(self.num_agents * self.obs_len));
        for (slot, (alive, obs)) in self.slots.iter().zip(rows) {
            slot.env.observe(obs, alive);
        }
    }

    /// Steps every environment. All lengths must fit; otherwise it panics before anything has changed.
    pub fn step<R: Real>(&mut self, actions: Actions<'_>, rows: Rows<'_, R>) -> Result<(), Error> {
        let n = self.slots.len() * self.num_agents;
        assert!(rows.rewards.len() == n && rows.terminated.len() == n && rows.truncated.len() == n);
        assert!(rows.obs.len() == n * self.obs_len);
        assert!(rows.final_obs.as_ref().is_none_or(|rows| rows.len() == n * self.obs_len));
        let too_wide = matches!(actions, Actions::Double(_)) && !W::DOUBLE;
        if too_wide || !actions.fit(self.slots[0].env.action_kind(), n) {
            return Err(Error::Actions);
        }
        let threads = self.threads.min(self.slots.len().div_ceil(W::MIN_BLOCK));
        let job = Job {
            first: 0,
            slots: &mut self.slots,
            alive: &mut self.alive,
            actions,
            rows,
            autoreset: self.autoreset,
            agents: self.num_agents,
            obs_len: self.obs_len,
        };
        if threads == 1 {
            let mut job = job;
            job.check()?;
            job.run();
            return Ok(());
        }
        self.team.resize(threads);
        let mut jobs: Vec<_> = job.parts(threads * PARTS).into_iter().map(|job| (job, Ok(()))).collect();
        self.team.each(&mut jobs, |(job, checked)| *checked = job.check());
        for (_, checked) in &mut jobs {
            std::mem::replace(checked, Ok(()))?;
        }
        self.team.each(&mut jobs, |(job, _)| job.run());
        Ok(())
    }
}

impl<W: Env + Endable> VecEnv<W> {
    /// Ends the episode for the agents of the rows that `ended` marks, where they act, as if the environments had ended
    /// it in the last step.
    pub fn end(&mut self, ended: &[u8]) {
        let rows = self.alive.chunks_exact_mut(self.num_agents).zip(ended.chunks_exact(self.num_agents));
        for (slot, (alive, ended)) in self.slots.iter_mut().zip(rows) {
            let some = ended.iter().any(|&flag| flag != 0);
            if some && slot.phase == Phase::Running && slot.env.end(ended, alive) {
                slot.phase = Phase::Ended;
            }
        }
    }
}

/// Has the environments after number `i` bring into the caches what they soon read.
#[inline]
fn prefetch_after<W: Env>(slots: &[Slot<W>], i: usize) {
    for (round, ahead) in [6, 4, 2].into_iter().enumerate() {
        slots.get(i + ahead).into_iter().for_each(|slot| slot.env.prefetch(round));
    }
}

/// Parts of a step for each thread, so that one that comes late has something left to do.
const PARTS: usize = 4;

/// A block of environments with its rows.
struct Job<'a, W: Env, R> {
    /// Number of the first environment.
    first: usize,
    slots: &'a mut [Slot<W>],
    alive: &'a mut [u8],
    actions: Actions<'a>,
    rows: Rows<'a, R>,
    autoreset: Autoreset,
    agents: usize,
    obs_len: usize,
}

impl<W: Env, R: Real> Job<'_, W, R> {
    /// Parts whose numbers of environments differ by one at most.
    fn parts(self, parts: usize) -> Vec<Self> {
        let (autoreset, agents, obs_len) = (self.autoreset, self.agents, self.obs_len);
        let mut all = Vec::with_capacity(parts);
        let mut rest = self;
        for left in (2..=parts).rev() {
            let envs = rest.slots.len() / left;
            let (row, num_rows) = (envs * agents, rest.slots.len() * agents);
            let (slots, slots2) = rest.slots.split_at_mut(envs);
            let (alive, alive2) = rest.alive.split_at_mut(row);
            let (actions, actions2) = rest.actions.split_at(row, num_rows);
            let (rows, rows2) = rest.rows.split(row, obs_len);
            let first = rest.first;
            all.push(Job { first, slots, alive, actions, rows, autoreset, agents, obs_len });
            let (first, slots, alive, actions, rows) = (first + envs, slots2, alive2, actions2, rows2);
            rest = Job { first, slots, alive, actions, rows, autoreset, agents, obs_len };
        }
        all.push(rest);
        all
    }

    fn check(&self) -> Result<(), Error> {
        let num_rows = self.slots.len() * self.agents;
        for (i, slot) in self.slots.iter().enumerate() {
            let env = self.first + i;
            match slot.phase {
                Phase::NeverReset => return Err(Error::NeverReset { env }),
                Phase::Ended if self.autoreset == Autoreset::Disabled => return Err(Error::Ended { env }),
                // The actions of an environment that is about to be reset are ignored.
                Phase::Ended => {}
                Phase::Running => slot
                    .env
                    .check(self.actions.of_env(i, self.agents, num_rows))
                    .map_err(|refused| Error::Action { env, refused, alone: self.agents == 1 })?,
            }
        }
        Ok(())
    }

    fn run(&mut self) {
        let Rows { obs, rewards, terminated, truncated, final_obs } = &mut self.rows;
        let agents = self.agents;
        let rows = self.slots.len() * agents;
        for i in 0..self.slots.len() {
            prefetch_after(self.slots, i);
            let slot = &mut self.slots[i];
            let own = i * agents..(i + 1) * agents;
            let own_obs = own.start * self.obs_len..own.end * self.obs_len;
            let obs = &mut obs[own_obs.clone()];
            let alive = &mut self.alive[own.clone()];
            let rewards = &mut rewards[own.clone()];
            let (terminated, truncated) = (&mut terminated[own.clone()], &mut truncated[own]);
            if slot.phase == Phase::Ended {
                slot.env.reset(obs, alive);
                slot.phase = Phase::Running;
                rewards.fill(R::from_f64(0.0));
                terminated.fill(0);
                truncated.fill(0);
                continue;
            }
            let actions = self.actions.of_env(i, agents, rows);
            let fill = AgentRows { obs: &mut *obs, rewards, terminated, truncated, alive: &mut *alive };
            if slot.env.step(actions, fill) {
                if self.autoreset == Autoreset::SameStep {
                    if let Some(rows) = final_obs {
                        rows[own_obs].copy_from_slice(obs);
                    }
                    slot.env.reset(obs, alive);
                } else {
                    slot.phase = Phase::Ended;
                }
            }
        }
    }
}
