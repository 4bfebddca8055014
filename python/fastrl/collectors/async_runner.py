"""Rows of compiled environments that do not wait for each other, for the collector "native"."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter

import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from fastrl.collectors.env_runner import PARTS, Arrays, Stopped, arrays_for
from fastrl.collectors.protocol import Plan, expect_spaces
from fastrl.collectors.running import Begun, actions_of, reached
from fastrl.collectors.vector_backends import native_vector_env
from fastrl.collectors.vector_runner import End, EpisodeSink, episode_arrays
from fastrl.envs.async_vector import AsyncNativeVectorEnv, Batch
from fastrl.networks.action_space import Actions
from fastrl.utils.seeding import EPISODES, act_streams


class AsyncWorlds:
    """The compiled environments of a plan."""

    num_workers = 0

    def __init__(self, plan: Plan, num_threads: int) -> None:
        env = native_vector_env(plan, plan.num_envs, num_threads=1)
        try:
            expect_spaces(plan, env.single_observation_space, env.single_action_space)
            whole = plan.unit == "episodes"
            mode = AutoresetMode.DISABLED if whole else AutoresetMode.SAME_STEP
            self.env = AsyncNativeVectorEnv(env, seed=plan.seed, autoreset_mode=mode, num_threads=num_threads)
        finally:
            env.close()

    def seconds(self) -> tuple[float, float]:
        return 0.0, 0.0

    def memory(self) -> tuple[float, ...]:
        return ()

    def close(self) -> None:
        self.env.close()


class AsyncRows:
    """Plays all rows of a plan, T steps each or whole episodes, whoever is ready first; otherwise as
    `fastrl.collectors.vector_runner.Rows`.

    Args:
        ready: how many rows are waited for at a time, before actions are chosen for them.
    """

    first = 0
    restarts = 0

    def __init__(self, plan: Plan, worlds: AsyncWorlds, ready: int) -> None:
        self.plan, self.worlds = plan, worlds
        self.actor = plan.make_actor()
        self.stops = False
        self.seconds = dict.fromkeys(PARTS, 0.0)
        rows = plan.num_envs
        self.lanes = np.full(rows, EPISODES) if plan.unit == "episodes" else np.arange(rows)
        self.numbers = np.zeros(rows, np.int64)
        self.begun: Sequence[Begun] = ()
        self.anew: list[int] = []
        self.elsewhere = 0
        self._ready = ready
        self._actions = Actions(plan.action_space)
        self._streams, self._steps = np.zeros(rows, np.uint64), np.zeros(rows, np.int64)
        self._returns = np.zeros(rows)
        self._last = np.zeros((rows, plan.obs_dim), np.float32)
        self._running = False
        self._episodes: Arrays | None = None

    def play_steps(self, out: Arrays) -> list[End]:
        """The next T steps of every row, into arrays of `fastrl.rollout.fragment.allocate` whose flags and final
        observations are zero; the episodes that ended."""
        ends: list[End] = []
        everyone = np.arange(self.plan.num_envs)
        self.anew = []
        if not self._running:
            self._show_beginnings(everyone)
            begun, self.begun = self.begun, ()
            if begun:
                self._play_again(begun)
            self._running = True
        out["obs"][0] = self._last
        at = np.zeros(self.plan.num_envs, np.int64)
        self._act(everyone, self._last, at, out)
        while self.worlds.env.in_flight:
            batch = self._receive(self._ready)
            start = perf_counter()
            rows = batch.env_ids
            ended = self._store(batch, at[rows], out)
            self._steps[rows] += 1
            if ended.any():
                over = rows[ended]
                out["final_obs"][at[over], over] = batch.final_obs[ended]
                for row in over.tolist():
                    episode = int(self.lanes[row]), int(self.numbers[row])
                    ends.append(
                        (int(at[row]), *episode, float(self._returns[row]), int(self._steps[row]), row, ())
                    )
                self.numbers[over] += 1
                self._started(over)
            at[rows] += 1
            out["obs"][at[rows], rows] = batch.obs
            more = at[rows] < self.plan.num_steps
            self.seconds["buffer"] += perf_counter() - start
            if more.any():
                self._act(rows[more], batch.obs[more], at, out)
        self._last[...] = out["obs"][-1]
        return ends

    def _show_beginnings(self, rows: NDArray[np.int64]) -> None:
        """Begins the episodes of rows, and waits for what they show."""
        self._begin(rows)
        batch = self._receive(len(rows))
        self._last[batch.env_ids] = batch.obs

    def _play_again(self, begun: Sequence[Begun]) -> None:
        """Plays the actions of the episodes, which have just begun, again; where these lead elsewhere, they begin
        anew."""
        drawn = [actions_of(self.plan, each) for each in begun]
        lengths = np.array([len(actions) for actions in drawn])
        failed = np.zeros(len(begun), np.bool_)
        for t in range(lengths.max()):
            rows = np.flatnonzero((lengths > t) & ~failed)
            if not rows.size:
                break
            self.worlds.env.send(self._actions.to_env(np.stack([drawn[row][t] for row in rows])), rows)
            batch = self._receive(len(rows))
            self._last[batch.env_ids] = batch.obs
            self._steps[batch.env_ids] += 1
            self._returns[batch.env_ids] += batch.rewards
            failed[batch.env_ids] = batch.terminations | batch.truncations
        failed |= [not reached(each, obs) for each, obs in zip(begun, self._last, strict=True)]
        self.anew = np.flatnonzero(failed).tolist()
        self.elsewhere = len(self.anew)
        if self.anew:
            self._show_beginnings(np.flatnonzero(failed))

    def play_episodes(self, numbers: range, over: EpisodeSink) -> None:
        """Plays episodes of these numbers.

        Args:
            over: is given each when it has ended.
        """
        if self._episodes is None:
            self._episodes = arrays_for(self.plan, self.plan.num_envs)
        kept = self._episodes
        waiting = np.array(numbers, np.int64)
        free = np.arange(self.plan.num_envs)
        begins = np.zeros(self.plan.num_envs, np.bool_)
        while True:
            seated = free[: len(waiting)]
            if seated.size:
                self.numbers[seated], waiting = np.split(waiting, [seated.size])
                begins[seated] = True
                self._begin(seated)
            if not self.worlds.env.in_flight:
                return
            batch = self._receive(self._ready)
            start = perf_counter()
            rows = batch.env_ids
            # What a beginning gives as its step, nothing, is written over by the first one.
            steps = self._steps[rows]
            self._steps[rows] += ~begins[rows]
            begins[rows] = False
            longest = self._steps[rows] == self.plan.num_steps
            np.logical_or(batch.truncations, longest & ~batch.terminations, out=batch.truncations)
            ended = self._store(batch, steps, kept)
            kept["obs"][self._steps[rows], rows] = batch.obs
            free = rows[ended]
            for row in free.tolist():
                length = int(self._steps[row])
                arrays = episode_arrays(kept, row, length)
                over(arrays, int(self.numbers[row]), float(self._returns[row]), ())
            self.seconds["buffer"] += perf_counter() - start
            if not ended.all():
                self._act(rows[~ended], batch.obs[~ended], self._steps, kept)

    def _act(
        self, rows: NDArray[np.int64], obs: NDArray[np.float32], at: NDArray[np.int64], out: Arrays
    ) -> None:
        """Chooses the actions of step ``at[row]`` of the arrays for rows that stand at ``obs``, and sends them."""
        start = perf_counter()
        actions = np.empty((len(rows), *self.plan.action_shape), out["actions"].dtype)
        log_probs = np.empty(len(rows), np.float32)
        self.actor.act(obs, self._streams[rows], self._steps[rows], actions, log_probs)
        out["actions"][at[rows], rows], out["log_probs"][at[rows], rows] = actions, log_probs
        now = perf_counter()
        self.seconds["inference"] += now - start
        self.worlds.env.send(self._actions.to_env(actions), rows)
        self.seconds["environment"] += perf_counter() - now

    def _store(self, batch: Batch, at: NDArray[np.int64], out: Arrays) -> NDArray[np.bool_]:
        """Writes what the steps ``at`` of a batch's rows gave, but for observations; which rows ended."""
        place = at, batch.env_ids
        for name in ("rewards", "terminations", "truncations"):
            out[name][place] = getattr(batch, name)
        self._returns[batch.env_ids] += batch.rewards
        return batch.terminations | batch.truncations

    def _begin(self, rows: NDArray[np.int64]) -> None:
        """Sends rows to begin the episodes of their lanes and numbers."""
        self._started(rows)
        self.worlds.env.reset(rows, lanes=self.lanes[rows], numbers=self.numbers[rows])

    def _started(self, rows: NDArray[np.int64]) -> None:
        self._streams[rows] = act_streams(self.plan.seed, self.lanes[rows], self.numbers[rows])
        self._steps[rows], self._returns[rows] = 0, 0.0

    def _receive(self, count: int) -> Batch:
        """As many rows as are ready first, or all that are on their way.

        Raises:
            Stopped: nobody wants them any more.
        """
        if self.stops:
            raise Stopped
        start = perf_counter()
        env = self.worlds.env
        batch = env.recv(min(count, env.in_flight))
        self.seconds["environment"] += perf_counter() - start
        return batch
