"""Steps compiled environments without a barrier, for the collector "native" with its option ``asynchronous``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from time import perf_counter

import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from fastrl.collectors.fragment_arrays import Arrays, End, FragmentMeta, arrays_for, check_masks
from fastrl.collectors.protocol import ACTIVITIES, Plan, Stopped
from fastrl.collectors.running import RunningEpisode, actions_of, reached, state_of
from fastrl.collectors.vector_backends import expect_masks, expect_native_spaces, native_vector_env
from fastrl.collectors.vector_runner import episode_arrays
from fastrl.envs.async_vector import AsyncNativeVectorEnv, Batch
from fastrl.networks.compiled_actor import values_of
from fastrl.utils.seeding import NO_ENV, act_streams


class AsyncBackend:
    """The compiled environments of a plan, stepped asynchronously."""

    num_workers = 0

    def __init__(self, plan: Plan, num_threads: int) -> None:
        env = native_vector_env(plan, num_threads=1)
        try:
            expect_native_spaces(plan, env)
            expect_masks(plan, env)
            whole = plan.unit == "episodes"
            mode = AutoresetMode.DISABLED if whole else AutoresetMode.SAME_STEP
            self.env = AsyncNativeVectorEnv(
                env,
                seed=plan.seed,
                autoreset_mode=mode,
                num_threads=num_threads,
                episode_info=plan.episode_info,
            )
        finally:
            env.close()

    def seconds(self) -> tuple[float, float]:
        return 0.0, 0.0

    def memory(self) -> tuple[float, ...]:
        return ()

    def close(self) -> None:
        self.env.close()


class AsyncEnvRunner:
    """Steps all environments of a plan, those that are ready first; otherwise as
    `fastrl.collectors.vector_runner.VectorEnvRunner`.

    Args:
        ready: how many environments to wait for before actions are chosen for them.
    """

    restarts = 0
    skipped: NDArray[np.bool_] | None = None

    def __init__(self, plan: Plan, backend: AsyncBackend, ready: int) -> None:
        self.plan, self.backend = plan, backend
        self.actor = plan.make_local_actor()
        self.stop = bytearray(1)
        self.seconds = dict.fromkeys(ACTIVITIES, 0.0)
        rows = plan.num_envs
        self.env_indices = np.full(rows, NO_ENV) if plan.unit == "episodes" else np.array(plan.env_indices)
        self.episode_numbers = np.zeros(rows, np.int64)
        self.running: Sequence[RunningEpisode] = ()
        self.restarted: list[int] = []
        self.diverged = 0
        self._ready = ready
        self._actions = plan.actions
        self._streams, self._steps = np.zeros(rows, np.uint64), np.zeros(rows, np.int64)
        self._states = plan.zero_states(rows)
        self._returns = np.zeros(rows)
        self._last = np.zeros((rows, plan.obs_dim), plan.obs_rows.dtype)
        self._started = False
        self._episodes: Arrays | None = None

    def run_steps(self, out: Arrays) -> FragmentMeta:
        """Takes T steps in every row, into arrays of `fastrl.rollout.fragment.allocate` whose flags and final
        observations are zero."""
        ends: list[End] = []
        everyone = np.arange(self.plan.num_envs)
        self.restarted = []
        if not self._started:
            self._start_and_observe(everyone)
            running, self.running = self.running, ()
            if running:
                self._replay(running)
            self._started = True
        out["obs"][0] = self._last
        if self._states is not None:
            out["states"][...] = self._states
        at = np.zeros(self.plan.num_envs, np.int64)
        self._choose_actions(everyone, self._last, at, out)
        while self.backend.env.in_flight:
            batch = self._receive(self._ready)
            start = perf_counter()
            rows = batch.env_ids
            ended = self._store(batch, at[rows], out)
            self._steps[rows] += 1
            if ended.any():
                over = rows[ended]
                out["final_obs"][at[over], over] = batch.final_obs[ended]
                if "final_masks" in out:
                    out["final_masks"][at[over], over] = batch.final_masks[ended]
                for row, info in zip(over.tolist(), batch.episode_info[ended].tolist(), strict=True):
                    episode = int(self.env_indices[row]), int(self.episode_numbers[row])
                    length = int(self._steps[row])
                    ends.append((int(at[row]), *episode, float(self._returns[row]), length, tuple(info)))
                self.episode_numbers[over] += 1
                self._prepare_episodes(over)
            at[rows] += 1
            out["obs"][at[rows], rows] = batch.obs
            more = at[rows] < self.plan.num_steps
            self.seconds["buffer"] += perf_counter() - start
            if more.any():
                self._choose_actions(rows[more], batch.obs[more], at, out)
        self._last[...] = out["obs"][-1]
        if self._states is not None:
            out["next_states"][...] = self._states
        check_masks(self.plan, out, self.plan.num_steps)
        return FragmentMeta(self.plan.num_steps, sorted(ends))

    def _start_and_observe(self, rows: NDArray[np.int64]) -> None:
        """Starts the episodes of rows and waits for their first observations."""
        self._start_episodes(rows)
        batch = self._receive(len(rows))
        self._last[batch.env_ids] = batch.obs

    def _replay(self, episodes: Sequence[RunningEpisode]) -> None:
        """Replays the actions of the episodes, which were just reset; those that diverge are restarted."""
        drawn = [actions_of(self.plan, each) for each in episodes]
        lengths = np.array([len(actions) for actions in drawn])
        failed = np.zeros(len(episodes), np.bool_)
        for t in range(lengths.max()):
            rows = np.flatnonzero((lengths > t) & ~failed)
            if not rows.size:
                break
            self.backend.env.send(self._actions.to_env(np.stack([drawn[row][t] for row in rows])), rows)
            batch = self._receive(len(rows))
            self._last[batch.env_ids] = batch.obs
            self._steps[batch.env_ids] += 1
            self._returns[batch.env_ids] += batch.rewards
            failed[batch.env_ids] = batch.terminations | batch.truncations
        failed |= [not reached(each, obs) for each, obs in zip(episodes, self._last, strict=True)]
        self.restarted = np.flatnonzero(failed).tolist()
        self.diverged = len(self.restarted)
        if self.restarted:
            self._start_and_observe(np.flatnonzero(failed))
        if self._states is not None:
            for row in np.flatnonzero(~failed).tolist():
                self._states[row] = state_of(self.plan, episodes[row])

    def run_episodes(self, numbers: range) -> Iterator[list[tuple[Arrays, FragmentMeta]]]:
        """Runs the episodes of these numbers; gives those that have ended."""
        if self._episodes is None:
            self._episodes = arrays_for(self.plan, self.plan.num_envs)
        kept = self._episodes
        waiting = np.array(numbers, np.int64)
        free = np.arange(self.plan.num_envs)
        begins = np.zeros(self.plan.num_envs, np.bool_)
        while True:
            starting = free[: len(waiting)]
            if starting.size:
                self.episode_numbers[starting], waiting = np.split(waiting, [starting.size])
                begins[starting] = True
                self._start_episodes(starting)
            if not self.backend.env.in_flight:
                return
            batch = self._receive(self._ready)
            start = perf_counter()
            rows = batch.env_ids
            # A reset arrives like a step; the first step overwrites what it stored.
            steps = self._steps[rows]
            self._steps[rows] += ~begins[rows]
            begins[rows] = False
            longest = self._steps[rows] == self.plan.num_steps
            np.logical_or(batch.truncations, longest & ~batch.terminations, out=batch.truncations)
            ended = self._store(batch, steps, kept)
            kept["obs"][self._steps[rows], rows] = batch.obs
            free = rows[ended]
            if "final_masks" in kept:
                kept["final_masks"][self._steps[free] - 1, free] = self.backend.env.action_masks(free)
            for row, info in zip(free.tolist(), batch.episode_info[ended].tolist(), strict=True):
                length = int(self._steps[row])
                [arrays] = episode_arrays(kept, np.array([row]), length)
                check_masks(self.plan, arrays, length)
                number, total = int(self.episode_numbers[row]), float(self._returns[row])
                yield [(arrays, FragmentMeta.of_episode(number, total, length, tuple(info)))]
            self.seconds["buffer"] += perf_counter() - start
            if not ended.all():
                self._choose_actions(rows[~ended], batch.obs[~ended], self._steps, kept)

    def _choose_actions(
        self, rows: NDArray[np.int64], obs: NDArray[np.float32], at: NDArray[np.int64], out: Arrays
    ) -> None:
        """Chooses actions for rows at their observations, stores them at step ``at[row]``, and sends them."""
        env, start = self.backend.env, perf_counter()
        masks = None
        if self.plan.action_masks:
            masks = out["masks"][at[rows], rows] = env.action_masks(rows)
            now = perf_counter()
            self.seconds["environment"] += now - start
            start = now
        actions = np.empty((len(rows), *self._actions.shape), self._actions.dtype)
        log_probs = np.empty(len(rows), np.float32)
        states = None if self._states is None else self._states[rows]
        self.actor.act(obs, self._streams[rows], self._steps[rows], actions, log_probs, masks, states)
        if self._states is not None:
            self._states[rows] = states
        out["actions"][at[rows], rows], out["log_probs"][at[rows], rows] = actions, log_probs
        if "values" in out:
            out["values"][at[rows], rows] = values_of(self.actor)
        now = perf_counter()
        self.seconds["inference"] += now - start
        env.send(self._actions.to_env(actions), rows)
        self.seconds["environment"] += perf_counter() - now

    def _store(self, batch: Batch, at: NDArray[np.int64], out: Arrays) -> NDArray[np.bool_]:
        """Stores rewards and flags of a batch at the steps ``at`` of its rows. Returns which rows ended."""
        place = at, batch.env_ids
        for name in ("rewards", "terminations", "truncations"):
            out[name][place] = getattr(batch, name)
        self._returns[batch.env_ids] += batch.rewards
        return batch.terminations | batch.truncations

    def _start_episodes(self, rows: NDArray[np.int64]) -> None:
        """Sends rows to start the episodes of their environments and numbers."""
        self._prepare_episodes(rows)
        self.backend.env.reset(rows, streams=self.env_indices[rows], numbers=self.episode_numbers[rows])

    def _prepare_episodes(self, rows: NDArray[np.int64]) -> None:
        self._streams[rows] = act_streams(self.plan.seed, self.env_indices[rows], self.episode_numbers[rows])
        self._steps[rows], self._returns[rows] = 0, 0.0
        if self._states is not None:
            self._states[rows] = 0

    def _receive(self, count: int) -> Batch:
        """Receives as many rows as are ready first, or all that are in flight.

        Raises:
            Stopped: the collector is closed.
        """
        if self.stop[0]:
            raise Stopped
        start = perf_counter()
        env = self.backend.env
        batch = env.recv(min(count, env.in_flight))
        self.seconds["environment"] += perf_counter() - start
        return batch
