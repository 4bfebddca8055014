//! Rollouts: many steps of environments whose actions a network chooses, in one call.
//!
//! Threads take some environments each through all steps, and meet only at the end. Episode `number` of the sequence
//! `env_index` is reset with [`env_seed`] and acts by [`act_stream`], or each of its agents by an [`agent_stream`], so it
//! is the same for any number of threads.

use std::iter::repeat_with;
use std::ops::Range;
use std::time::{Duration, Instant};

use super::{Error, Slot, VecEnv, prefetch_after};
use crate::actor::{ActionsOut, Memory, Policy, Rows};
use crate::env::{Actions, AgentRows, Env, Phase};
use crate::mlp::BLOCK;
use crate::streams::{act_stream, agent_stream, env_seed};

/// The arrays of T steps of N environments of A agents each. Flags are bytes, 0 or 1.
pub struct Rollout<'a> {
    /// [N], the sequence of each environment's episodes.
    pub env_indices: &'a [i64],
    /// [N] each, of the running episodes: numbers, steps and sums of rewards so far.
    pub numbers: &'a mut [i64],
    pub steps: &'a mut [i64],
    pub returns: &'a mut [f64],
    /// [N, A] each, of the running episodes: random streams, and which agents have taken part.
    pub streams: &'a mut [u64],
    pub took_part: &'a mut [u8],
    /// Agents of an environment, the first ones, whose rewards its returns have.
    pub scored: usize,
    /// [N, A, size], the network's memory of the running episodes; empty if it has none.
    pub states: &'a mut [f32],
    /// [T + 1, N, A, D], of which those before the first step are there.
    pub obs: &'a mut [f32],
    pub actions: Drawn<'a>,
    /// [T, N, A] each.
    pub log_probs: &'a mut [f32],
    pub rewards: &'a mut [f32],
    pub terminated: &'a mut [u8],
    pub truncated: &'a mut [u8],
    /// [T, N, A, D], of which environments are written where an episode or an agent is cut off or ends.
    pub final_obs: &'a mut [f32],
    /// [T, N, A, actions]; empty: all are allowed.
    pub masks: &'a mut [u8],
    /// As `masks`, of which environments are written where an episode is truncated; empty: they are not asked for.
    pub final_masks: &'a mut [u8],
    /// [T + 1, N, A], the agents that act, of which those before the first step are there, and [T, N], the ends of
    /// episodes. Both empty: an environment has a single agent, which draws from its episode's own stream.
    pub alive: &'a mut [u8],
    pub ends: &'a mut [u8],
}

/// The array of the actions that a network draws.
pub enum Drawn<'a> {
    /// [T, N, A].
    Discrete(&'a mut [i64]),
    /// [T, N, A, len], and what makes actions of them.
    Gaussian(&'a mut [f32], Scaling<'a>),
}

/// The way from draws of a Gaussian to actions, [4, len]: a draw u becomes `u * scale + middle`, kept from `low` to
/// `high`. As `fastrl.networks.action_space.Actions` does it, to the bit.
#[derive(Clone, Copy)]
pub struct Scaling<'a>(pub &'a [f32]);

impl Scaling<'_> {
    /// Writes the actions of some draws.
    pub fn write(self, draws: &[f32], actions: &mut [f32]) {
        let len = self.0.len() / 4;
        for (draws, actions) in draws.chunks_exact(len).zip(actions.chunks_exact_mut(len)) {
            for (k, (draw, to)) in draws.iter().zip(actions).enumerate() {
                let [scale, middle, low, high] = [0, 1, 2, 3].map(|part| self.0[part * len + k]);
                let action = draw * scale + middle;
                // NaN stays, and is refused.
                let action = if action < low { low } else { action };
                *to = if action > high { high } else { action };
            }
        }
    }
}

/// An episode that has ended.
#[derive(Clone, Debug, PartialEq)]
pub struct End {
    /// The step that ended it, and its environment.
    pub step: usize,
    pub env: usize,
    pub number: i64,
    /// The sum of rewards, of several agents the mean over those that took part.
    pub total: f64,
    pub length: i64,
    /// Values of [`Env::episode_info`].
    pub info: Vec<f64>,
}

/// Some environments with their part of a rollout.
struct Part<'a, W: Env> {
    /// Number of the first environment.
    first: usize,
    agents: usize,
    obs_len: usize,
    state_size: usize,
    scaling: Option<Scaling<'a>>,
    slots: &'a mut [Slot<W>],
    alive: &'a mut [u8],
    env_indices: &'a [i64],
    numbers: &'a mut [i64],
    steps: &'a mut [i64],
    returns: &'a mut [f64],
    streams: &'a mut [u64],
    took_part: &'a mut [u8],
    scored: usize,
    states: &'a mut [f32],
    /// The rows of each step.
    obs: Vec<&'a mut [f32]>,
    actions: Vec<ActionsOut<'a>>,
    log_probs: Vec<&'a mut [f32]>,
    rewards: Vec<&'a mut [f32]>,
    terminated: Vec<&'a mut [u8]>,
    truncated: Vec<&'a mut [u8]>,
    final_obs: Vec<&'a mut [f32]>,
    masks: Vec<&'a mut [u8]>,
    final_masks: Vec<&'a mut [u8]>,
    alive_after: Vec<&'a mut [u8]>,
    has_ended: Vec<&'a mut [u8]>,
    acting: Acting,
    /// Actions of an environment that draws have become.
    scaled: Vec<f32>,
    ends: Vec<End>,
    /// In all, and in the network.
    spent: [Duration; 2],
    result: Result<(), Error>,
}

/// Copies of the rows of agents that act, side by side.
#[derive(Default)]
struct Acting {
    rows: Vec<usize>,
    obs: Vec<f32>,
    streams: Vec<u64>,
    steps: Vec<i64>,
    masks: Vec<u8>,
    states: Vec<f32>,
    choices: Vec<i64>,
    draws: Vec<f32>,
    log_probs: Vec<f32>,
}

/// Copies some rows of an array of `count` rows.
fn gather<T: Copy>(array: &[T], count: usize, rows: &[usize], into: &mut Vec<T>) {
    let width = array.len() / count;
    into.clear();
    rows.iter().for_each(|row| into.extend_from_slice(&array[row * width..][..width]));
}

/// Copies rows back to where [`gather`] found them.
fn scatter<T: Copy>(from: &[T], count: usize, rows: &[usize], array: &mut [T]) {
    let width = array.len() / count;
    for (i, row) in rows.iter().enumerate() {
        array[row * width..][..width].copy_from_slice(&from[i * width..][..width]);
    }
}

/// Does what [`scatter`] does, and writes zeros into the other rows.
fn scatter_and_clear<T: Copy + Default>(from: &[T], count: usize, rows: &[usize], array: &mut [T]) {
    array.fill(T::default());
    scatter(from, count, rows, array);
}

/// An array [N, ...] in parts of `each` environments; as many empty ones as are asked for if it is empty.
fn parts<T>(array: &mut [T], num_envs: usize, each: usize) -> impl Iterator<Item = &mut [T]> {
    let width = array.len() / num_envs;
    array.chunks_mut((each * width).max(1)).chain(repeat_with(Default::default))
}

fn next<T>(parts: &mut impl Iterator<Item = T>) -> T {
    parts.next().expect("there are as many as environments have parts")
}

/// An array [T, N, ...] in parts of `each` environments: the rows of each step.
fn parts_of_steps<T>(
    array: &mut [T],
    num_steps: usize,
    num_envs: usize,
    each: usize,
) -> impl Iterator<Item = Vec<&mut [T]>> {
    let mut all: Vec<_> = repeat_with(|| Vec::with_capacity(num_steps)).take(num_envs.div_ceil(each)).collect();
    let width = array.len() / num_steps;
    for step in array.chunks_mut(width.max(1)).chain(repeat_with(Default::default)).take(num_steps) {
        all.iter_mut().zip(parts(step, num_envs, each)).for_each(|(rows, part)| rows.push(part));
    }
    all.into_iter()
}

impl<W: Env> VecEnv<W> {
    /// Steps every environment as often as `rollout` has rows, and starts the next episodes of those that end.
    ///
    /// # Arguments
    /// - `policy`: has this environment's observations and actions.
    /// - `seed`: of the run.
    /// - `keys`: of infos of episodes that end.
    ///
    /// # Returns
    /// The episodes that ended, and the share of the time that the network took.
    ///
    /// # Errors
    /// An environment that waits for a reset, or does not take an action that the network has. Some have been stepped
    /// then.
    ///
    /// # Panics
    /// Arrays that do not fit.
    pub fn rollout(
        &mut self,
        policy: &Policy,
        seed: u64,
        keys: &[String],
        rollout: Rollout<'_>,
    ) -> Result<(Vec<End>, f64), Error> {
        let (n, agents, mask_len) = (self.slots.len(), self.num_agents, self.slots[0].env.mask_len());
        let num_steps = rollout.rewards.len() / (n * agents);
        let rows = num_steps * n * agents;
        assert!(rollout.obs.len() == rows * self.obs_len + n * agents * self.obs_len);
        assert!(rollout.final_obs.len() == rows * self.obs_len);
        assert!([&rollout.masks, &rollout.final_masks].iter().all(|m| m.is_empty() || m.len() == rows * mask_len));
        assert!(rollout.env_indices.len() == n && rollout.states.len() == n * agents * policy.state_size());
        let is_team = !rollout.alive.is_empty();
        assert!(if is_team { rollout.alive.len() == rows + n * agents } else { agents == 1 });
        if let Some(env) = self.slots.iter().position(|slot| slot.phase != Phase::Running) {
            return Err(Error::NeverReset { env });
        }
        if num_steps == 0 {
            return Ok((vec![], 0.0));
        }
        // As many rows as suit the network, but some for each thread.
        let each = n.div_ceil(self.threads).min((BLOCK / agents).max(1));
        let mut numbers = parts(rollout.numbers, n, each);
        let mut steps = parts(rollout.steps, n, each);
        let mut returns = parts(rollout.returns, n, each);
        let mut streams = parts(rollout.streams, n, each);
        let mut took_part = parts(rollout.took_part, n, each);
        let mut states = parts(rollout.states, n, each);
        let mut obs = parts_of_steps(rollout.obs, num_steps + 1, n, each);
        let (choices, draws, scaling) = match rollout.actions {
            Drawn::Discrete(choices) => (choices, Default::default(), None),
            Drawn::Gaussian(draws, scaling) => (Default::default(), draws, Some(scaling)),
        };
        let mut choices = parts_of_steps(choices, num_steps, n, each);
        let mut draws = parts_of_steps(draws, num_steps, n, each);
        let mut log_probs = parts_of_steps(rollout.log_probs, num_steps, n, each);
        let mut rewards = parts_of_steps(rollout.rewards, num_steps, n, each);
        let mut terminated = parts_of_steps(rollout.terminated, num_steps, n, each);
        let mut truncated = parts_of_steps(rollout.truncated, num_steps, n, each);
        let mut final_obs = parts_of_steps(rollout.final_obs, num_steps, n, each);
        let mut masks = parts_of_steps(rollout.masks, num_steps, n, each);
        let mut final_masks = parts_of_steps(rollout.final_masks, num_steps, n, each);
        let mut alive_after = parts_of_steps(rollout.alive, if is_team { num_steps + 1 } else { 1 }, n, each);
        let mut has_ended = parts_of_steps(rollout.ends, num_steps, n, each);
        let alive = self.alive.chunks_mut(each * agents);
        let envs = self.slots.chunks_mut(each).zip(alive).zip(rollout.env_indices.chunks(each));
        let part = |(i, ((slots, alive), env_indices))| Part {
            first: i * each,
            agents,
            obs_len: self.obs_len,
            state_size: policy.state_size(),
            scaling,
            slots,
            alive,
            env_indices,
            numbers: next(&mut numbers),
            steps: next(&mut steps),
            returns: next(&mut returns),
            streams: next(&mut streams),
            took_part: next(&mut took_part),
            scored: rollout.scored,
            states: next(&mut states),
            obs: next(&mut obs),
            actions: match scaling {
                None => next(&mut choices).into_iter().map(ActionsOut::Discrete).collect(),
                Some(_) => next(&mut draws).into_iter().map(ActionsOut::Gaussian).collect(),
            },
            log_probs: next(&mut log_probs),
            rewards: next(&mut rewards),
            terminated: next(&mut terminated),
            truncated: next(&mut truncated),
            final_obs: next(&mut final_obs),
            masks: next(&mut masks),
            final_masks: next(&mut final_masks),
            alive_after: next(&mut alive_after),
            has_ended: next(&mut has_ended),
            acting: Acting::default(),
            scaled: vec![],
            ends: vec![],
            spent: [Duration::ZERO; 2],
            result: Ok(()),
        };
        let mut all: Vec<_> = envs.enumerate().map(part).collect();
        self.team.resize(self.threads);
        self.team.each(&mut all, |part| part.result = part.run(policy, seed, keys));
        let (mut ends, mut spent) = (vec![], [Duration::ZERO; 2]);
        for part in all {
            part.result?;
            ends.extend(part.ends);
            (0..2).for_each(|i| spent[i] += part.spent[i]);
        }
        Ok((ends, spent[1].as_secs_f64() / spent[0].as_secs_f64().max(f64::MIN_POSITIVE)))
    }
}

impl<W: Env> Part<'_, W> {
    fn run(&mut self, policy: &Policy, seed: u64, keys: &[String]) -> Result<(), Error> {
        let start = Instant::now();
        let mut memory = policy.memory(self.alive.len());
        self.see_agents(0..self.alive.len());
        for t in 0..self.rewards.len() {
            self.write_masks(t);
            let chosen = Instant::now();
            self.act(t, policy, &mut memory);
            self.spent[1] += chosen.elapsed();
            for i in 0..self.slots.len() {
                prefetch_after(self.slots, i);
                self.step(t, i, seed, keys)?;
            }
        }
        self.spent[0] = start.elapsed();
        Ok(())
    }

    /// Writes the masks of step `t`, if any are asked for. Of an agent that does not act all actions are allowed.
    fn write_masks(&mut self, t: usize) {
        let masks = &mut *self.masks[t];
        if masks.is_empty() {
            return;
        }
        let mask_len = self.slots[0].env.mask_len();
        let of_envs = masks.chunks_exact_mut(self.agents * mask_len);
        self.slots.iter().zip(of_envs).for_each(|(slot, mask)| slot.env.action_mask(mask));
        let idle = masks.chunks_exact_mut(mask_len).zip(&*self.alive).filter(|(_, alive)| **alive == 0);
        idle.for_each(|(mask, _)| mask.fill(1));
    }

    /// Chooses the actions of step `t`; those of agents that do not act are zeros.
    fn act(&mut self, t: usize, policy: &Policy, memory: &mut Memory<'_>) {
        let (masks, has_masks) = (&*self.masks[t], !self.masks[t].is_empty());
        if self.agents == 1 {
            let mut rows = Rows {
                obs: self.obs[t],
                streams: self.streams,
                steps: self.steps,
                masks: has_masks.then_some(masks),
                states: self.states,
                actions: self.actions[t].reborrow(),
                log_probs: self.log_probs[t],
            };
            policy.act_with(&mut rows, false, memory);
            return;
        }
        let (all, agents) = (self.alive.len(), self.agents);
        let Acting { rows, obs, streams, steps, masks: allowed, states, choices, draws, log_probs } = &mut self.acting;
        rows.clear();
        rows.extend((0..all).filter(|&row| self.alive[row] != 0));
        steps.clear();
        steps.extend(rows.iter().map(|row| self.steps[row / agents]));
        gather(self.obs[t], all, rows, obs);
        gather(self.streams, all, rows, streams);
        gather(masks, all, rows, allowed);
        gather(self.states, all, rows, states);
        log_probs.resize(rows.len(), 0.0);
        let actions = match &self.actions[t] {
            ActionsOut::Gaussian(array) => {
                draws.resize(array.len() / all * rows.len(), 0.0);
                ActionsOut::Gaussian(draws)
            }
            _ => {
                choices.resize(rows.len(), 0);
                ActionsOut::Discrete(choices)
            }
        };
        let masks = has_masks.then_some(&**allowed);
        policy.act_with(&mut Rows { obs, streams, steps, masks, states, actions, log_probs }, false, memory);
        match &mut self.actions[t] {
            ActionsOut::Gaussian(array) => scatter_and_clear(draws, all, rows, array),
            ActionsOut::Discrete(array) | ActionsOut::MultiDiscrete(array) => {
                scatter_and_clear(choices, all, rows, array);
            }
        }
        scatter_and_clear(log_probs, all, rows, self.log_probs[t]);
        scatter(states, all, rows, self.states);
    }

    /// Takes step `t` of environment `i`.
    #[inline]
    fn step(&mut self, t: usize, i: usize, seed: u64, keys: &[String]) -> Result<(), Error> {
        let env = &mut self.slots[i].env;
        let rows = i * self.agents..(i + 1) * self.agents;
        let of_env = rows.start * self.obs_len..rows.end * self.obs_len;
        let obs = &mut self.obs[t + 1][of_env.clone()];
        let action = match (&self.actions[t], self.scaling) {
            (ActionsOut::Gaussian(draws), Some(scaling)) => {
                let len = draws.len() / self.alive.len();
                self.scaled.resize(rows.len() * len, 0.0);
                scaling.write(&draws[rows.start * len..rows.end * len], &mut self.scaled);
                Actions::Box(&self.scaled)
            }
            (ActionsOut::Discrete(choices), _) => Actions::Discrete(&choices[rows.clone()]),
            _ => unreachable!("a Gaussian has a scaling"),
        };
        let alone = self.agents == 1;
        env.check(action).map_err(|refused| Error::Action { env: self.first + i, refused, alone })?;
        let fill = AgentRows {
            obs: &mut *obs,
            rewards: &mut self.rewards[t][rows.clone()],
            terminated: &mut self.terminated[t][rows.clone()],
            truncated: &mut self.truncated[t][rows.clone()],
            alive: &mut self.alive[rows.clone()],
        };
        let has_ended = env.step(action, fill);
        self.steps[i] += 1;
        self.returns[i] += self.rewards[t][rows.clone()][..self.scored].iter().copied().map(f64::from).sum::<f64>();
        let (terminated, truncated) = (&self.terminated[t][rows.clone()], &self.truncated[t][rows.clone()]);
        let size = self.state_size;
        if size > 0 {
            for (row, _) in rows.clone().zip(terminated.iter().zip(truncated)).filter(|(_, (a, b))| **a + **b > 0) {
                self.states[row * size..][..size].fill(0.0);
            }
        }
        if has_ended || truncated.contains(&1) {
            self.final_obs[t][of_env].copy_from_slice(obs);
        }
        if !self.has_ended[t].is_empty() {
            self.has_ended[t][i] = u8::from(has_ended);
        }
        if has_ended {
            self.start_next(t, i, seed, keys);
        }
        if let Some(alive) = self.alive_after.get_mut(t + 1) {
            alive[rows.clone()].copy_from_slice(&self.alive[rows.clone()]);
        }
        self.see_agents(rows);
        Ok(())
    }

    /// Keeps the account of the episode that step `t` of environment `i` has ended, and starts the next one.
    fn start_next(&mut self, t: usize, i: usize, seed: u64, keys: &[String]) {
        let env = &mut self.slots[i].env;
        let rows = i * self.agents..(i + 1) * self.agents;
        let is_cut = self.truncated[t][rows.start] != 0 && self.terminated[t][rows.start] == 0;
        if is_cut && !self.final_masks[t].is_empty() {
            let len = env.mask_len();
            env.action_mask(&mut self.final_masks[t][rows.start * len..rows.end * len]);
        }
        let took_part = &mut self.took_part[rows.clone()];
        self.ends.push(End {
            step: t,
            env: self.first + i,
            number: self.numbers[i],
            total: self.returns[i] / took_part[..self.scored].iter().map(|&agent| f64::from(agent)).sum::<f64>(),
            length: self.steps[i],
            info: keys.iter().map(|key| env.episode_info(key)).collect(),
        });
        took_part.fill(0);
        self.numbers[i] += 1;
        (self.steps[i], self.returns[i]) = (0, 0.0);
        let (env_index, number) = (self.env_indices[i] as u64, self.numbers[i] as u64);
        env.seed(env_seed(seed, env_index, number));
        let of_env = rows.start * self.obs_len..rows.end * self.obs_len;
        env.reset(&mut self.obs[t + 1][of_env], &mut self.alive[rows.clone()]);
        let stream = act_stream(seed, env_index, number);
        let is_team = !self.alive_after[0].is_empty();
        for (agent, own) in self.streams[rows].iter_mut().enumerate() {
            *own = if is_team { agent_stream(stream, agent) } else { stream };
        }
    }

    /// Notes which agents take part in the running episodes.
    fn see_agents(&mut self, rows: Range<usize>) {
        self.took_part[rows.clone()].iter_mut().zip(&self.alive[rows]).for_each(|(seen, alive)| *seen |= alive);
    }
}
