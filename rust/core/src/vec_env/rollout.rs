//! Rollouts: many steps of environments of one agent, whose actions a network chooses, in one call.
//!
//! Threads take some environments each through all steps, and meet only at the end. Episode `number` of the sequence
//! `env_index` is reset with [`env_seed`] and acts by [`act_stream`], so it is the same for any number of threads.

use std::iter::repeat_with;
use std::time::{Duration, Instant};

use super::{Error, Slot, VecEnv};
use crate::actor::{ActionsOut, Policy, Rows};
use crate::env::{Actions, AgentRows, Env, Phase};
use crate::mlp::BLOCK;
use crate::streams::{act_stream, env_seed};

/// The arrays of T steps of N environments. Flags are bytes, 0 or 1.
pub struct Rollout<'a> {
    /// [N], the sequence of each environment's episodes.
    pub env_indices: &'a [i64],
    /// [N] each, of the running episodes: numbers, random streams, steps and returns so far.
    pub numbers: &'a mut [i64],
    pub streams: &'a mut [u64],
    pub steps: &'a mut [i64],
    pub returns: &'a mut [f64],
    /// [N, size], the network's memory of the running episodes; empty if it has none.
    pub states: &'a mut [f32],
    /// [T + 1, N, D], of which the first N rows are there.
    pub obs: &'a mut [f32],
    /// [T, N] each.
    pub actions: &'a mut [i64],
    pub log_probs: &'a mut [f32],
    pub rewards: &'a mut [f32],
    pub terminated: &'a mut [u8],
    pub truncated: &'a mut [u8],
    /// [T, N, D], of which rows of steps that end an episode are written.
    pub final_obs: &'a mut [f32],
    /// [T, N, actions]; empty: all are allowed.
    pub masks: &'a mut [u8],
    /// [T, N, actions], of which rows of steps that truncate an episode are written; empty: they are not asked for.
    pub final_masks: &'a mut [u8],
}

/// An episode that has ended.
#[derive(Clone, Debug, PartialEq)]
pub struct End {
    /// The step that ended it, and its environment.
    pub step: usize,
    pub env: usize,
    pub number: i64,
    pub total: f64,
    pub length: i64,
    /// Values of [`Env::episode_info`].
    pub info: Vec<f64>,
}

/// Some environments with their part of a rollout.
struct Part<'a, W: Env> {
    /// Number of the first environment.
    first: usize,
    slots: &'a mut [Slot<W>],
    alive: &'a mut [u8],
    env_indices: &'a [i64],
    numbers: &'a mut [i64],
    streams: &'a mut [u64],
    steps: &'a mut [i64],
    returns: &'a mut [f64],
    states: &'a mut [f32],
    /// The rows of each step.
    obs: Vec<&'a mut [f32]>,
    actions: Vec<&'a mut [i64]>,
    log_probs: Vec<&'a mut [f32]>,
    rewards: Vec<&'a mut [f32]>,
    terminated: Vec<&'a mut [u8]>,
    truncated: Vec<&'a mut [u8]>,
    final_obs: Vec<&'a mut [f32]>,
    masks: Vec<&'a mut [u8]>,
    final_masks: Vec<&'a mut [u8]>,
    ends: Vec<End>,
    /// In all, and in the network.
    spent: [Duration; 2],
    result: Result<(), Error>,
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
    /// Environments of several agents, or arrays that do not fit.
    pub fn rollout(
        &mut self,
        policy: &Policy,
        seed: u64,
        keys: &[String],
        rollout: Rollout<'_>,
    ) -> Result<(Vec<End>, f64), Error> {
        let (n, num_steps) = (self.slots.len(), rollout.rewards.len() / self.slots.len());
        let (rows, mask_len) = (n * num_steps, self.slots[0].env.mask_len());
        assert_eq!(self.num_agents, 1, "environments of one agent");
        assert!(
            rollout.obs.len() == (num_steps + 1) * n * self.obs_len && rollout.final_obs.len() == rows * self.obs_len
        );
        assert!([&rollout.masks, &rollout.final_masks].iter().all(|m| m.is_empty() || m.len() == rows * mask_len));
        assert!(rollout.env_indices.len() == n && rollout.states.len() == n * policy.state_size());
        if let Some(env) = self.slots.iter().position(|slot| slot.phase != Phase::Running) {
            return Err(Error::NeverReset { env });
        }
        if num_steps == 0 {
            return Ok((vec![], 0.0));
        }
        // As many rows as suit the network, but some for each thread.
        let each = n.div_ceil(self.threads).min(BLOCK);
        let mut numbers = parts(rollout.numbers, n, each);
        let mut streams = parts(rollout.streams, n, each);
        let mut steps = parts(rollout.steps, n, each);
        let mut returns = parts(rollout.returns, n, each);
        let mut states = parts(rollout.states, n, each);
        let mut obs = parts_of_steps(rollout.obs, num_steps + 1, n, each);
        let mut actions = parts_of_steps(rollout.actions, num_steps, n, each);
        let mut log_probs = parts_of_steps(rollout.log_probs, num_steps, n, each);
        let mut rewards = parts_of_steps(rollout.rewards, num_steps, n, each);
        let mut terminated = parts_of_steps(rollout.terminated, num_steps, n, each);
        let mut truncated = parts_of_steps(rollout.truncated, num_steps, n, each);
        let mut final_obs = parts_of_steps(rollout.final_obs, num_steps, n, each);
        let mut masks = parts_of_steps(rollout.masks, num_steps, n, each);
        let mut final_masks = parts_of_steps(rollout.final_masks, num_steps, n, each);
        let envs = self.slots.chunks_mut(each).zip(self.alive.chunks_mut(each)).zip(rollout.env_indices.chunks(each));
        let part = |(i, ((slots, alive), env_indices))| Part {
            first: i * each,
            slots,
            alive,
            env_indices,
            numbers: next(&mut numbers),
            streams: next(&mut streams),
            steps: next(&mut steps),
            returns: next(&mut returns),
            states: next(&mut states),
            obs: next(&mut obs),
            actions: next(&mut actions),
            log_probs: next(&mut log_probs),
            rewards: next(&mut rewards),
            terminated: next(&mut terminated),
            truncated: next(&mut truncated),
            final_obs: next(&mut final_obs),
            masks: next(&mut masks),
            final_masks: next(&mut final_masks),
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
        let mut memory = policy.memory(self.slots.len());
        for t in 0..self.rewards.len() {
            if !self.masks[t].is_empty() {
                let mask_len = self.slots[0].env.mask_len();
                let masks = self.masks[t].chunks_exact_mut(mask_len);
                self.slots.iter().zip(masks).for_each(|(slot, mask)| slot.env.action_mask(mask));
            }
            let chosen = Instant::now();
            let mut rows = Rows {
                obs: self.obs[t],
                streams: self.streams,
                steps: self.steps,
                masks: Some(&*self.masks[t]).filter(|masks| !masks.is_empty()),
                states: self.states,
                actions: ActionsOut::Discrete(self.actions[t]),
                log_probs: self.log_probs[t],
            };
            policy.act_with(&mut rows, false, &mut memory);
            self.spent[1] += chosen.elapsed();
            for i in 0..self.slots.len() {
                self.step(t, i, policy.state_size(), seed, keys)?;
            }
        }
        self.spent[0] = start.elapsed();
        Ok(())
    }

    /// Takes step `t` of environment `i`.
    #[inline]
    fn step(&mut self, t: usize, i: usize, state_size: usize, seed: u64, keys: &[String]) -> Result<(), Error> {
        let env = &mut self.slots[i].env;
        let width = self.obs[t].len() / self.rewards[t].len();
        let of_env = i * width..(i + 1) * width;
        let obs = &mut self.obs[t + 1][of_env.clone()];
        let action = Actions::Discrete(&self.actions[t][i..=i]);
        env.check(action).map_err(|refused| Error::Action { env: self.first + i, refused, alone: true })?;
        let rows = AgentRows {
            obs: &mut *obs,
            rewards: &mut self.rewards[t][i..=i],
            terminated: &mut self.terminated[t][i..=i],
            truncated: &mut self.truncated[t][i..=i],
            alive: &mut self.alive[i..=i],
        };
        let has_ended = env.step(action, rows);
        self.steps[i] += 1;
        self.returns[i] += f64::from(self.rewards[t][i]);
        if !has_ended {
            return Ok(());
        }
        self.final_obs[t][of_env].copy_from_slice(obs);
        let is_cut = self.truncated[t][i] != 0 && self.terminated[t][i] == 0;
        if is_cut && !self.final_masks[t].is_empty() {
            let mask_len = env.mask_len();
            env.action_mask(&mut self.final_masks[t][i * mask_len..][..mask_len]);
        }
        self.ends.push(End {
            step: t,
            env: self.first + i,
            number: self.numbers[i],
            total: self.returns[i],
            length: self.steps[i],
            info: keys.iter().map(|key| env.episode_info(key)).collect(),
        });
        self.numbers[i] += 1;
        let (env_index, number) = (self.env_indices[i] as u64, self.numbers[i] as u64);
        env.seed(env_seed(seed, env_index, number));
        env.reset(obs, &mut self.alive[i..=i]);
        self.streams[i] = act_stream(seed, env_index, number);
        (self.steps[i], self.returns[i]) = (0, 0.0);
        self.states[i * state_size..][..state_size].fill(0.0);
        Ok(())
    }
}
