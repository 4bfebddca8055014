"""Fragments without a collector: a policy plays a small environment of ``fake_env`` in this process."""

import numpy as np
import torch

from fastrl.networks.action_space import Actions
from fastrl.networks.distributions import gaussian_log_probs, mask_logits, sample_actions
from fastrl.rollout.fragment import STEP_ARRAYS, Fragment
from fastrl.utils.seeding import NO_ENV


class Rows:
    """Rows of an environment that are stepped from one fragment to the next."""

    def __init__(self, env, seed=0):
        self.env = env
        self.generator = torch.Generator().manual_seed(seed)
        self.obs = np.zeros((env.num_envs, *env.single_observation_space.shape), np.float32)
        self.returns, self.lengths = np.zeros(env.num_envs), np.zeros(env.num_envs, np.int64)
        self.numbers = np.zeros(env.num_envs, np.int64)
        env.reset_into(self.obs, seed=seed)

    def play(self, policy, num_steps, version=1, env_indices=None, masks=False):
        """T steps of all rows; ``env_indices`` are 0, 1, 2 ... unless they are given."""
        env, rows, obs_dim = self.env, self.env.num_envs, self.obs.shape[1]
        env_indices = np.arange(rows) if env_indices is None else env_indices
        steps = (num_steps, rows)
        obs = np.zeros((num_steps + 1, rows, obs_dim), np.float32)
        takes = Actions(env.single_action_space)
        actions = np.zeros((*steps, takes.size), np.float32) if takes.is_box else np.zeros(steps, np.int64)
        log_probs = np.zeros(steps, np.float32)
        rewards, final_obs = np.zeros(steps, np.float32), np.full((*steps, obs_dim), np.nan, np.float32)
        terminations, truncations = np.zeros(steps, bool), np.zeros(steps, bool)
        allowed = np.zeros((*steps, takes.size), bool) if masks else None
        ended = []
        obs[0] = self.obs
        for t in range(num_steps):
            with torch.no_grad():
                outputs = policy.outputs(torch.from_numpy(obs[t]))
                if allowed is not None:
                    env.action_masks(allowed[t])
                    outputs = mask_logits(outputs, torch.from_numpy(allowed[t]))
                if takes.is_box:
                    noise = torch.randn((rows, takes.size), generator=self.generator)
                    chosen = outputs + policy.log_std.exp() * noise
                    chosen_log_probs = gaussian_log_probs(outputs, policy.log_std, chosen)
                else:
                    uniforms = torch.rand((rows, 1), generator=self.generator)
                    chosen, chosen_log_probs = sample_actions(outputs, uniforms)
            actions[t], log_probs[t] = chosen.numpy(), chosen_log_probs.numpy()
            env.step_into(
                takes.to_env(actions[t]),
                obs[t + 1],
                rewards[t],
                terminations[t],
                truncations[t],
                final_obs[t],
            )
            self.returns += rewards[t]
            self.lengths += 1
            for i in np.flatnonzero(terminations[t] | truncations[t]):
                ended.append((self.returns[i], self.lengths[i], env_indices[i], self.numbers[i]))
                self.returns[i], self.lengths[i] = 0, 0
                self.numbers[i] += 1
        self.obs[:] = obs[-1]
        return Fragment(
            obs,
            actions,
            log_probs,
            rewards,
            terminations,
            truncations,
            final_obs,
            version,
            np.asarray(env_indices, np.int64),
            np.array([each[0] for each in ended]),
            np.array([each[1] for each in ended], np.int64),
            np.array([each[2:] for each in ended], np.int64).reshape(-1, 2),
            allowed,
        )


def parts(fragment, *sizes):
    """The same rows in fragments of so many rows each."""
    assert sum(sizes) == fragment.num_rows
    found, start = [], 0
    for size in sizes:
        rows = np.s_[:, start : start + size]
        arrays = {name: getattr(fragment, name)[rows] for name in ("obs", *STEP_ARRAYS)}
        env_indices = fragment.env_indices[start : start + size]
        mine = np.isin(fragment.episodes[:, 0], env_indices)
        found.append(
            Fragment(
                **arrays,
                version=fragment.version,
                env_indices=env_indices,
                returns=fragment.returns[mine],
                lengths=fragment.lengths[mine],
                episodes=fragment.episodes[mine],
            )
        )
        start += size
    return found


def whole_episodes(fragment):
    """The episodes that begin and end in a fragment whose rows all begin one at its first step."""
    found = []
    for row in range(fragment.num_rows):
        start = 0
        for t in range(fragment.num_steps):
            if not (fragment.terminations[t, row] or fragment.truncations[t, row]):
                continue
            steps = np.s_[start : t + 1, row : row + 1]
            arrays = {name: getattr(fragment, name)[steps] for name in STEP_ARRAYS}
            obs = np.concatenate([fragment.obs[steps], fragment.final_obs[t : t + 1, row : row + 1]])
            found.append(
                Fragment(
                    obs=obs,
                    **arrays,
                    version=fragment.version,
                    env_indices=np.array([NO_ENV]),
                    returns=np.array([fragment.rewards[steps].sum()]),
                    lengths=np.array([t + 1 - start]),
                    episodes=np.array([[NO_ENV, len(found)]]),
                )
            )
            start = t + 1
    return found
