"""Rows of environments in lockstep, played by one actor."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from fastrl.collectors.env_runner import PARTS, Arrays, Stopped, arrays_for, check_finite, check_masks
from fastrl.collectors.failures import Failures
from fastrl.collectors.protocol import CollectError, Plan
from fastrl.collectors.running import Begun, actions_of, reached
from fastrl.collectors.vector_backends import NO_RESET, NativeWorlds, Worlds
from fastrl.envs.process_pool import WorkerError
from fastrl.networks.action_space import Actions
from fastrl.networks.compiled_actor import Actor
from fastrl.rollout.fragment import allocate
from fastrl.utils.seeding import EPISODES, act_streams, env_seeds

# Of an episode that has ended: step of the fragment, lane, number, return, length, row, values of its infos.
End = tuple[int, int, int, float, int, int, tuple[float, ...]]


# Takes an episode that has ended: its arrays [T, 1, ...], number, return and values of its infos.
EpisodeSink = Callable[[Arrays, int, float, tuple[float, ...]], None]


def episode_arrays(kept: Arrays, row: int, length: int) -> Arrays:
    """A copy of the first steps of a row, as of `arrays_for`."""
    return {name: array[: length + (name == "obs"), row : row + 1].copy() for name, array in kept.items()}


class Rows:
    """Plays rows T steps at a time, or whole episodes, one in each row at a time.

    Args:
        first: the first row, of the plan's; with unit "steps" their lanes go on from there.
        num_rows: how many.
        failures: where those of workers are counted.

    Attributes:
        lanes, numbers: int64 [R], of the episodes that run.
        begun: what has been played of these; may be set before the first fragment, which then goes on from there.
        anew: rows whose episodes began anew with the last fragment, though nothing in it says that they had ended.
        elsewhere: how many did so because their actions led elsewhere when they were played again.
        seconds: spent, by part, in the caller's thread.
        restarts: of workers.
        stops: set by another thread, makes `Stopped` come out of the next step.
    """

    def __init__(
        self, plan: Plan, worlds: Worlds, actor: Actor, first: int, num_rows: int, failures: Failures
    ) -> None:
        self.plan, self.worlds, self.actor, self.first = plan, worlds, actor, first
        self._failures = failures
        whole = plan.unit == "episodes"
        self.lanes = np.full(num_rows, EPISODES) if whole else np.arange(first, first + num_rows)
        self.numbers = np.zeros(num_rows, np.int64)
        self.begun: Sequence[Begun] = ()
        self.anew: list[int] = []
        self.elsewhere = 0
        self.seconds = dict.fromkeys(PARTS, 0.0)
        self.restarts = 0
        self.stops = False
        self._streams, self._steps = np.zeros(num_rows, np.uint64), np.zeros(num_rows, np.int64)
        self._returns = np.zeros(num_rows)
        self._last = np.zeros((num_rows, plan.obs_dim), np.float32)
        self._running = False
        # With unit "episodes" there may be fewer left than rows.
        self._playing = np.full(num_rows, not whole)
        # And then, what each row plays next; -1: nothing is left.
        self._reserved = np.full(num_rows, -1)
        self._actions = Actions(plan.action_space)
        self._step: Arrays | None = None
        self._episodes: Arrays | None = None

    def play_steps(self, out: Arrays) -> list[End]:
        """The next T steps of every row, into arrays of `fastrl.rollout.fragment.allocate` whose flags and final
        observations are zero; the episodes that ended."""
        ends: list[End] = []
        obs, rewards = out["obs"], out["rewards"]
        terminations, truncations = out["terminations"], out["truncations"]
        self.anew = []
        if not self._running:
            begun, self.begun = self.begun, ()
            if begun:
                self._play_again(begun)
            else:
                self._begin(self._playing, self._last)
            self._running = True
        numbers, steps = self.numbers.tolist(), self._steps.tolist()
        obs[0] = self._last
        for t in range(self.plan.num_steps):
            self._act(out, t)
            self._advance(out, t)
            start = perf_counter()
            self._steps += 1
            self._returns += rewards[t]
            ended = terminations[t] | truncations[t]
            if ended.any():
                for row in np.flatnonzero(ended).tolist():
                    lane, number = int(self.lanes[row]), int(self.numbers[row])
                    info = tuple(self.worlds.ended_info[row].tolist())
                    ends.append(
                        (t, lane, number, float(self._returns[row]), int(self._steps[row]), row, info)
                    )
                self.numbers[ended] += 1
                self._started(ended)
            self.seconds["buffer"] += perf_counter() - start
        self._last[...] = obs[-1]
        if self.worlds.num_workers:
            # They are not compiled ones of fastrl.
            check_finite(self.plan, out, self.plan.num_steps, self.lanes.tolist(), numbers, steps)
        check_masks(self.plan, out, self.plan.num_steps)
        return ends

    def refresh_observations(self) -> None:
        """Reads the observations again, as the owner of the environment has changed it since its last step."""
        if self._running and isinstance(self.worlds, NativeWorlds):
            self.worlds.observe(self._last)

    def _play_again(self, begun: Sequence[Begun]) -> None:
        """Begins the episodes, and plays their actions again; where these lead elsewhere, they begin anew.

        All come to the end of their actions at the same step: compiled environments step all rows together.
        """
        drawn = [actions_of(self.plan, each) for each in begun]
        lengths = np.array([len(actions) for actions in drawn])
        first = lengths.max() - lengths
        step = allocate(1, len(begun), self.plan.obs_dim, self.plan.action_shape)
        actions, rewards, final_obs = step["actions"][0], step["rewards"][0], step["final_obs"][0]
        terminations, truncations = step["terminations"][0], step["truncations"][0]
        failed, dead = np.zeros((2, len(begun)), np.bool_)
        for t in range(lengths.max() + 1):
            if self.stops:
                raise Stopped
            if (first == t).any():
                self._begin((first == t) & ~failed, self._last)
            going = (first <= t) & ~failed
            if t == lengths.max() or not going.any():
                continue
            for row in np.flatnonzero(going).tolist():
                actions[row] = drawn[row][t - first[row]]
            start = perf_counter()
            try:
                given = self._actions.to_env(actions)
                self.worlds.step(given, self._last, rewards, terminations, truncations, final_obs, going)
            except WorkerError as error:
                dead |= self._bury(error)
            self.seconds["environment"] += perf_counter() - start
            failed |= dead | going & (terminations | truncations)
            self._steps[going] += 1
            self._returns[going] += rewards[going]
        failed |= [not reached(each, obs) for each, obs in zip(begun, self._last, strict=True)]
        self.anew = np.flatnonzero(failed).tolist()
        self.elsewhere = int(np.count_nonzero(failed & ~dead))
        if self.anew:
            self._begin(failed, self._last)

    def _act(self, out: Arrays, t: int, rows: NDArray[np.bool_] | None = None) -> None:
        """Chooses the actions of step t; of some rows alone, where a mask is given."""
        start = perf_counter()
        names = ("actions", "log_probs", "masks") if self.plan.action_masks else ("actions", "log_probs")
        arrays = {name: out[name][t] if rows is None else out[name][t].copy() for name in names}
        if self.plan.action_masks:
            self.worlds.action_masks(arrays["masks"])
            now = perf_counter()
            self.seconds["environment"] += now - start
            start = now
        self.actor.act(
            out["obs"][t],
            self._streams,
            self._steps,
            arrays["actions"],
            arrays["log_probs"],
            arrays.get("masks"),
        )
        if rows is not None:
            for name, array in arrays.items():
                out[name][t][rows] = array[rows]
        self.seconds["inference"] += perf_counter() - start

    def _advance(self, out: Arrays, t: int) -> None:
        """Steps every row that plays. Those whose worker dies end where they are, as truncated, begin their episodes
        anew, and take this step there."""
        if self.stops:
            raise Stopped
        mask = None if self._playing.all() else self._playing
        while True:
            try:
                self._step_worlds(out, t, mask)
                return
            except WorkerError as error:
                mask = self._bury(error)
            mask = self._begin(mask, out["obs"][t], out, t)
            if not mask.any():
                return
            self._act(out, t, mask)

    def _step_worlds(self, out: Arrays, t: int, mask: NDArray[np.bool_] | None) -> None:
        start = perf_counter()
        actions = self._actions.to_env(out["actions"][t])
        try:
            self.worlds.step(
                actions,
                out["obs"][t + 1],
                out["rewards"][t],
                out["terminations"][t],
                out["truncations"][t],
                out["final_obs"][t],
                mask,
            )
        finally:
            self.seconds["environment"] += perf_counter() - start

    def _begin(
        self, mask: NDArray[np.bool_], obs: NDArray[np.float32], out: Arrays | None = None, t: int = 0
    ) -> NDArray[np.bool_]:
        """Begins the episodes of rows, also of those whose workers die meanwhile; which rows it did begin. What is cut
        short at step t of a fragment ends there."""
        start = perf_counter()
        while True:
            if out is not None and t > 0:
                cut = mask & ~(out["terminations"][t - 1] | out["truncations"][t - 1])
                out["truncations"][t - 1][cut] = True
                out["final_obs"][t - 1][cut] = obs[cut]
            elif out is not None:
                self.anew += np.flatnonzero(mask).tolist()
            self.worlds.next_seeds[mask] = env_seeds(self.plan.seed, self.lanes[mask], self.numbers[mask])
            try:
                if mask.any():
                    self.worlds.reset(obs, mask)
                break
            except WorkerError as error:
                mask = mask | self._bury(error)
        self._started(mask)
        self.seconds["environment"] += perf_counter() - start
        return mask

    def _started(self, mask: NDArray[np.bool_]) -> None:
        """Episodes have begun in rows: where their draws come from, and the seeds of the next ones."""
        seed, lanes, numbers = self.plan.seed, self.lanes[mask], self.numbers[mask]
        self._streams[mask] = act_streams(seed, lanes, numbers)
        self._steps[mask], self._returns[mask] = 0, 0.0
        following = self._reserved[mask] if self.plan.unit == "episodes" else numbers + 1
        self.worlds.next_seeds[mask] = np.where(
            following < 0, NO_RESET, env_seeds(seed, lanes, np.maximum(following, 0))
        )

    def _bury(self, error: WorkerError) -> NDArray[np.bool_]:
        """Replaces dead workers; those of their rows that play.

        Raises:
            CollectError: an episode has failed too often, or an environment gave what it should not.
        """
        dead = np.zeros(len(self.lanes), np.bool_)
        while True:
            for death in error.deaths:
                if death.refused:
                    raise CollectError(death.cause)
                dead[death.envs] = True
                rows = (
                    f"rows {death.envs[0]} to {death.envs[-1]}"
                    if len(death.envs) > 1
                    else f"row {death.envs[0]}"
                )
                begun = [(int(self.lanes[i]), int(self.numbers[i])) for i in death.envs if self._playing[i]]
                self._failures.add(death.worker, f"a step of {rows}", death.cause, death.traceback, begun)
                self.restarts += 1
            try:
                self.worlds.restart()
                return dead & self._playing
            except WorkerError as again:
                error = again

    def play_episodes(self, numbers: range, over: EpisodeSink) -> None:
        """Plays episodes of these numbers.

        Args:
            over: is given each when it has ended.
        """
        if self._episodes is None or self._step is None:
            self._episodes = arrays_for(self.plan, len(self.lanes))
            self._step = allocate(
                1, len(self.lanes), self.plan.obs_dim, self.plan.action_shape, self.plan.num_masked
            )
        kept, step = self._episodes, self._step
        playing, waiting = self._playing, iter(numbers)
        self._reserved[:] = [next(waiting, -1) for _ in self.lanes]
        self._begin(self._take_reserved(waiting), step["obs"][0])
        while playing.any():
            rows = np.flatnonzero(playing)
            self._act(step, 0)
            self._advance(step, 0)
            start = perf_counter()
            at = self._steps[rows]
            kept["obs"][at, rows] = step["obs"][0, rows]
            for name in kept.keys() - {"obs"}:
                kept[name][at, rows] = step[name][0, rows]
            self._steps[rows] += 1
            self._returns[rows] += step["rewards"][0, rows]
            step["obs"][0, rows] = step["obs"][1, rows]
            ended = playing & (step["terminations"][0] | step["truncations"][0])
            for row in np.flatnonzero(ended).tolist():
                length = int(self._steps[row])
                kept["obs"][length, row] = step["final_obs"][0, row]
                arrays = episode_arrays(kept, row, length)
                check_masks(self.plan, arrays, length)
                if self.worlds.num_workers:
                    check_finite(self.plan, arrays, length, [EPISODES], [int(self.numbers[row])], [0])
                info = tuple(self.worlds.ended_info[row].tolist())
                over(arrays, int(self.numbers[row]), float(self._returns[row]), info)
            self.seconds["buffer"] += perf_counter() - start
            if ended.any():
                late = self._pass_on(ended)
                self._started(self._take_reserved(waiting, ended))
                if late.any():
                    self._begin(late, step["obs"][0])

    def _take_reserved(
        self, waiting: Iterator[int], free: NDArray[np.bool_] | None = None
    ) -> NDArray[np.bool_]:
        """Free rows, by default all, go on to what is reserved for them, and further numbers are reserved; the rows
        that had something to go on to. The others rest."""
        free = np.ones(len(self.lanes), np.bool_) if free is None else free
        begun = free & (self._reserved >= 0)
        self.numbers[begun] = self._reserved[begun]
        self._playing[free] = begun[free]
        for row in np.flatnonzero(begun).tolist():
            self._reserved[row] = next(waiting, -1)
        return begun

    def _pass_on(self, ended: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Rows that have ended with nothing reserved take over what is reserved for rows that still play; those that
        did, whose environments were not reset for it."""
        late = np.zeros(len(self.lanes), np.bool_)
        idle = np.flatnonzero(ended & (self._reserved < 0)).tolist()
        donors = np.flatnonzero(self._playing & ~ended & (self._reserved >= 0)).tolist()
        for row, donor in zip(idle, donors, strict=False):
            self._reserved[row], self._reserved[donor] = self._reserved[donor], -1
            self.worlds.next_seeds[donor] = NO_RESET
            late[row] = True
        return late
