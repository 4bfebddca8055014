"""Steps environments together with one actor: the loop of every collector, over its vector backend."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastrl.collectors.failures import Failures
from fastrl.collectors.fragment_arrays import (
    Arrays,
    End,
    FragmentMeta,
    Step,
    allocate_steps,
    arrays_for,
    check_finite,
    check_masks,
    step_of,
)
from fastrl.collectors.protocol import ACTIVITIES, CollectError, Plan, Stopped
from fastrl.collectors.running import RunningEpisode, actions_of, reached, state_of
from fastrl.collectors.vector_backends import JointBackend, NativeBackend, VectorBackend
from fastrl.envs.serial_envs import NO_RESET
from fastrl.envs.worker_error import WorkerError
from fastrl.networks.compiled_actor import Actor, MlpActor, values_of
from fastrl.networks.team_actor import TeamActor
from fastrl.rollout.fragment import first_steps
from fastrl.utils.seeding import NO_ENV, act_streams, agent_streams, env_seeds

# Steps of environments that compiled code takes at a time, before it is seen whether the run stops.
_PASS = 2**14

# Arrays of agents that such a pass writes, where the fragment has them.
_ROLLED_OUT = (
    "obs",
    "alive",
    "actions",
    "log_probs",
    "rewards",
    "terminations",
    "truncations",
    "final_obs",
    "masks",
    "final_masks",
)


def episode_arrays(kept: Arrays, rows: NDArray[np.integer], length: int) -> list[Arrays]:
    """Copies the first steps of some rows, of all together; returns the arrays of each."""
    copies = {}
    for name, array in first_steps(kept, length).items():
        chosen = array if len(rows) == array.shape[1] else array[:, rows]
        copies[name] = chosen.swapaxes(0, 1).copy()[:, :, None]
    return [dict(zip(copies, arrays, strict=True)) for arrays in zip(*copies.values(), strict=True)]


class VectorEnvRunner:
    """Steps the R environments of a plan T steps at a time, or runs whole episodes, one in each row at a time.

    Args:
        failures: counts failures of workers.

    Attributes:
        env_indices, episode_numbers: int64 [R], of the running episodes.
        running: the running episodes to resume; may be set before the first fragment, which then replays them.
        restarted: rows whose episodes were restarted with the last fragment without having ended.
        diverged: how many of them because their replay diverged.
        seconds: by part, in the caller's thread.
        restarts: of workers.
        skipped: bool [T, R], the last fragment's steps of the backend that are no steps of the agent; None: there are
            none in any fragment.
        stop: a byte, perhaps of shared memory; the next step raises `Stopped` once it is not 0.
        before_step: called with its number in the fragment before a step of `run_steps`; None.
    """

    def __init__(self, plan: Plan, backend: VectorBackend, actor: Actor, failures: Failures) -> None:
        self.plan, self.backend, self.actor = plan, backend, actor
        self._failures = failures
        num_rows, whole = plan.num_envs, plan.unit == "episodes"
        self.env_indices = np.full(num_rows, NO_ENV) if whole else np.array(plan.env_indices)
        self.episode_numbers = np.zeros(num_rows, np.int64)
        self.running: Sequence[RunningEpisode] = ()
        self.restarted: list[int] = []
        self.diverged = 0
        self.seconds = dict.fromkeys(ACTIVITIES, 0.0)
        self.restarts = 0
        self.skipped: NDArray[np.bool_] | None = None
        self.stop: bytearray | memoryview = bytearray(1)
        self.before_step: Callable[[int], object] | None = None
        # Of many agents each has a stream of its own.
        self._streams = np.zeros((num_rows, *plan.agents), np.uint64)
        self._steps = np.zeros(num_rows, np.int64)
        self._states = plan.zero_states(num_rows)
        self._returns = np.zeros(num_rows)
        # Agents that have taken part in the running episode, bool [R, A].
        self._took_part = np.zeros((num_rows, *plan.agents), np.bool_)
        self._last = np.zeros((num_rows, *plan.agents, plan.obs_dim), plan.obs_rows.dtype)
        self._started = False
        # With unit "episodes" there may be fewer episodes left than rows.
        self._active = np.full(num_rows, not whole)
        # With unit "episodes", the next episode of each row; -1: none is left.
        self._reserved = np.full(num_rows, -1)
        self._actions, self._has_agents = plan.actions, bool(plan.agents)
        # What compiled passes act with; None: they cannot.
        self._network = actor.mlp if isinstance(actor, MlpActor | TeamActor) else None
        self._scaling = plan.actions.scaling
        self._step: Arrays | None = None
        self._episodes: Arrays | None = None

    def run_steps(self, out: Arrays, views: Iterable[Step] | None = None) -> FragmentMeta:
        """Takes T steps in every row, into arrays of `fastrl.rollout.fragment.allocate` whose flags and final
        observations are zero.

        Args:
            views: of the steps, for arrays that are used again; None: they are made.
        """
        ends: list[End] = []
        obs, rewards = out["obs"], out["rewards"]
        self.restarted = []
        if not self._started:
            running, self.running = self.running, ()
            if running:
                self._replay(running)
            else:
                self._start_episodes(self._active, self._last)
            self._started = True
        numbers, steps = self.episode_numbers.tolist(), self._steps.tolist()
        ignored = self.backend.ignored
        self.skipped = None if ignored is None else np.zeros(rewards.shape, np.bool_)
        obs[0] = self._last
        if self.backend.alive is not None:
            out["alive"][0] = self.backend.alive
        if self._states is not None:
            out["states"][...] = self._states
        has_agents, before_step = self._has_agents, self.before_step
        passes = self._passes()
        for part in passes:
            ends += self._roll_out(out, part)
        if passes:
            views = ()
        elif views is None:
            views = (step_of(out, t) for t in range(self.plan.num_steps))
        for t, step in enumerate(views):
            if before_step is not None:
                before_step(t)
            self._choose_actions(step)
            has_ends = self._step_envs(step)
            start = perf_counter()
            if ignored is None or self.skipped is None:
                self._steps += 1
            else:
                self.skipped[t] = ignored
                self._steps += ~ignored
                if self._states is not None:
                    self._states[ignored] = 0
            self._returns += self._of_envs(step.rewards)
            if has_ends:
                over = np.flatnonzero(self._ended(out, t))
                for row in over.tolist():
                    env_index, number = int(self.env_indices[row]), int(self.episode_numbers[row])
                    info = tuple(self.backend.ended_info[row].tolist())
                    ends.append((t, env_index, number, self._return(row), int(self._steps[row]), info))
                self.episode_numbers[over] += 1
                self._prepare_episodes(over)
            if has_agents:
                self._see_agents()
            self.seconds["buffer"] += perf_counter() - start
        self._last[...] = obs[-1]
        if self._states is not None:
            out["next_states"][...] = self._states
        self._check(out, self.plan.num_steps, numbers, steps, has_ends=has_agents or bool(ends))
        return FragmentMeta(self.plan.num_steps, sorted(ends))

    def _passes(self) -> list[slice]:
        """The steps of a fragment in parts, each of which compiled code takes without Python between steps; empty where
        it cannot."""
        num_steps = self.plan.num_steps
        is_known = self._actions.kind == "discrete" or self._scaling is not None
        if not (is_known and self.backend.has_rollouts and self._network is not None):
            return []
        if self.before_step is not None:
            return []
        length = max(_PASS // self._streams.size, 1)
        return [slice(first, min(first + length, num_steps)) for first in range(0, num_steps, length)]

    def _roll_out(self, out: Arrays, steps: slice) -> list[End]:
        """Takes some steps of a fragment in one pass; returns the episodes that ended."""
        if self.stop[0]:
            raise Stopped
        assert isinstance(self.backend, JointBackend) and self._network is not None
        start = perf_counter()
        agents, behind = self._streams.size, slice(2 + len(self.plan.agents), None)
        beyond = slice(steps.start, steps.stop + 1)
        parts = {
            name: out[name][beyond if name in ("obs", "alive") else steps]
            for name in _ROLLED_OUT
            if name in out
        }
        flat = {name: part.reshape(len(part), agents, *part.shape[behind]) for name, part in parts.items()}
        ended, inference = self.backend.rollout(
            self._network,
            seed=self.plan.seed,
            env_indices=self.env_indices,
            numbers=self.episode_numbers,
            steps=self._steps,
            returns=self._returns,
            streams=self._streams.reshape(agents),
            took_part=self._took_part.reshape(agents),
            scored=self.plan.env.scored_agents or self._streams[0].size,
            states=None if self._states is None else self._states.reshape(agents, -1),
            ends=out["ends"][steps] if self._has_agents else None,
            scaling=self._scaling,
            **dict.fromkeys(_ROLLED_OUT) | flat,
        )
        self.backend.next_seeds[:] = env_seeds(self.plan.seed, self.env_indices, self.episode_numbers + 1)
        seconds = perf_counter() - start
        self.seconds["inference"] += inference * seconds
        self.seconds["environment"] += (1 - inference) * seconds
        return [
            (steps.start + t, int(self.env_indices[row]), number, total, length, tuple(info))
            for t, row, number, total, length, info in ended
        ]

    def run_episode(self, number: int, out: Arrays) -> FragmentMeta:
        """Runs the episode of a number in the only row.

        Args:
            out: of `arrays_for`; written.
        """
        out = out | {"final_obs": out["obs"][1:]}
        self.episode_numbers[0], self._active[0] = number, True
        self._start_episodes(self._active, out["obs"][0])
        if self.backend.alive is not None:
            out["alive"][0] = self.backend.alive
        t, rewards, has_agents, has_ended = -1, out["rewards"], self._has_agents, False
        while not has_ended:
            t += 1
            step = step_of(out, t)
            self._choose_actions(step)
            has_ended = self._step_envs(step)
            start = perf_counter()
            self._steps += 1
            self._returns += self._of_envs(rewards[t])
            if has_agents:
                self._see_agents()
            self.seconds["buffer"] += perf_counter() - start
        self._active[0] = False
        self._check(out, t + 1, [number], [0])
        info = tuple(self.backend.ended_info[0].tolist())
        return FragmentMeta.of_episode(number, self._return(0), t + 1, info)

    def _check(
        self,
        arrays: Arrays,
        num_steps: int,
        numbers: Sequence[int],
        steps: Sequence[int],
        *,
        has_ends: bool = True,
    ) -> None:
        """Refuses what environments should not give; see `check_finite`."""
        if self.backend.needs_check:
            check_finite(self.plan, arrays, num_steps, self.env_indices, numbers, steps, has_ends=has_ends)
        check_masks(self.plan, arrays, num_steps)

    def _ended(self, arrays: Arrays, t: int) -> NDArray[np.bool_]:
        """The rows whose episodes step t ended, bool [R]."""
        if self._has_agents:
            return self.backend.over.copy()
        ended: NDArray[np.bool_] = arrays["terminations"][t] | arrays["truncations"][t]
        return ended

    def _see_agents(self) -> None:
        """Notes which of many agents take part in the running episodes."""
        if self.backend.alive is not None:
            self._took_part |= self.backend.alive

    def _of_envs(self, rewards: NDArray[np.floating]) -> NDArray[np.floating]:
        """Rewards by environment, [R], of all its scored agents together."""
        if not self._has_agents:
            return rewards
        return rewards[:, : self.plan.env.scored_agents].sum(1, dtype=np.float64)

    def _return(self, row: int) -> float:
        """The return of a row's episode so far; of many agents the mean over the scored ones that took part."""
        total = float(self._returns[row])
        if not self._has_agents:
            return total
        return total / int(self._took_part[row, : self.plan.env.scored_agents].sum())

    def refresh_observations(self) -> None:
        """Reads the observations again, as the owner of the environment has changed it since its last step."""
        if self._started and isinstance(self.backend, NativeBackend):
            self.backend.observe(self._last)

    def _replay(self, episodes: Sequence[RunningEpisode]) -> None:
        """Starts the episodes and replays their actions; those that diverge are restarted.

        All rows reach their last action at the same step: compiled environments step all rows together.
        """
        self.backend.start_replay(episodes)
        drawn = [actions_of(self.plan, each) for each in episodes]
        lengths = np.array([len(actions) for actions in drawn])
        first = lengths.max() - lengths
        step = allocate_steps(self.plan, 1, len(episodes))
        actions, rewards, final_obs = step["actions"][0], step["rewards"][0], step["final_obs"][0]
        terminations, truncations = step["terminations"][0], step["truncations"][0]
        arrays = self._last, rewards, terminations, truncations, final_obs, None
        lives = np.array([each.lives for each in episodes])
        self.episode_numbers -= lives
        failed, dead = np.zeros((2, len(episodes)), np.bool_)
        for t in range(lengths.max() + 1):
            if self.stop[0]:
                raise Stopped
            if (first == t).any():
                self._start_episodes((first == t) & ~failed, self._last)
            going = (first <= t) & ~failed
            if t == lengths.max() or not going.any():
                continue
            for row in np.flatnonzero(going).tolist():
                actions[row] = drawn[row][t - first[row]]
            start = perf_counter()
            try:
                given = self._to_env(actions)
                self.backend.step(given, arrays, going)
            except WorkerError as error:
                dead |= self._handle_deaths(error)
            self.seconds["environment"] += perf_counter() - start
            ended = going & self._ended(step, 0)
            again = ended & (lives > 0)
            failed |= dead | ended & ~again
            self._steps[going] += 1
            self._returns[going] += self._of_envs(rewards[going])
            self._see_agents()
            if again.any():
                lives -= again
                self.episode_numbers += again
                self._prepare_episodes(again)
        self.episode_numbers += lives
        failed |= lives > 0
        failed |= [not reached(each, obs) for each, obs in zip(episodes, self._last, strict=True)]
        self.restarted = np.flatnonzero(failed).tolist()
        self.diverged = int(np.count_nonzero(failed & ~dead))
        self.backend.end_replay()
        if self.restarted:
            self._start_episodes(failed, self._last)
        if self._states is not None:
            for row in np.flatnonzero(~failed).tolist():
                self._states[row] = state_of(self.plan, episodes[row])

    def _choose_actions(self, step: Step) -> None:
        """Chooses the actions of a step."""
        start = perf_counter()
        if step.masks is not None:
            self.backend.action_masks(step.masks)
            now = perf_counter()
            self.seconds["environment"] += now - start
            start = now
        if self._has_agents:
            self._choose_actions_of_agents(step)
            self.seconds["inference"] += perf_counter() - start
            return
        self.actor.act(
            step.obs, self._streams, self._steps, step.actions, step.log_probs, step.masks, self._states
        )
        if step.values is not None:
            step.values[...] = values_of(self.actor)
        self.seconds["inference"] += perf_counter() - start

    def _choose_again(self, step: Step, rows: NDArray[np.bool_]) -> None:
        """Chooses the actions of a step once more, of some rows alone."""
        given = step.actions, step.log_probs, step.masks, step.values, self._states
        chosen = [array for array in given if array is not None]
        before = [array[~rows] for array in chosen]
        self._choose_actions(step)
        for array, values in zip(chosen, before, strict=True):
            array[~rows] = values

    def _choose_actions_of_agents(self, step: Step) -> None:
        """Chooses the actions of all agents at a step."""
        actor: Any = self.actor
        agents = self._streams.size
        actor.act(
            step.obs.reshape(agents, -1),
            self._streams.reshape(agents),
            self._steps.repeat(agents // len(self._steps)),
            step.actions.reshape(agents, *self._actions.shape),
            step.log_probs.reshape(agents),
            None if step.masks is None else step.masks.reshape(agents, -1),
            None if self._states is None else self._states.reshape(agents, -1),
            alive=step.arrays["alive"][step.t].reshape(agents),
        )

    def _to_env(self, draws: NDArray[Any]) -> NDArray[Any]:
        """Actions of the environment, of many agents flat, [R * A, ...]."""
        return self._actions.to_env(draws.reshape(-1, *self._actions.shape) if self._has_agents else draws)

    def _step_envs(self, step: Step, mask: NDArray[np.bool_] | None = None) -> bool:
        """Steps the rows of a mask, or all. Where a worker dies, the episodes of its rows end as truncated, are
        restarted, and take this step. Returns whether an episode has ended, or may have."""
        if self.stop[0]:
            raise Stopped
        start = perf_counter()
        try:
            has_ends = self.backend.step(self._to_env(step.actions), step.env, mask)
        except WorkerError as error:
            mask = self._start_episodes(self._handle_deaths(error), step.obs, step.arrays, step.t)
            if mask.any():
                self._choose_again(step, mask)
                self._step_envs(step, mask)
            return True
        self.seconds["environment"] += perf_counter() - start
        if self._has_agents:
            out, t = step.arrays, step.t
            out["ends"][t], out["alive"][t + 1] = self.backend.over, self.backend.alive
            if self._states is not None:
                self._states[out["terminations"][t] | out["truncations"][t]] = 0
        return has_ends

    def _start_episodes(
        self, mask: NDArray[np.bool_], obs: NDArray[Any], out: Arrays | None = None, t: int = 0
    ) -> NDArray[np.bool_]:
        """Starts the episodes of some rows, and of those whose workers die meanwhile; returns all rows that it started.
        With ``out``, an episode that is running at step t of the fragment is truncated there."""
        start = perf_counter()
        while True:
            if out is not None and t > 0:
                cut = mask & ~(out["terminations"][t - 1] | out["truncations"][t - 1])
                out["truncations"][t - 1][cut] = True
                out["final_obs"][t - 1][cut] = obs[cut]
                if "final_masks" in out:
                    out["final_masks"][t - 1][cut] = out["masks"][t][cut]
            elif out is not None:
                self.restarted += np.flatnonzero(mask).tolist()
                if self._states is not None:
                    out["states"][mask] = 0
            self.backend.next_seeds[mask] = env_seeds(
                self.plan.seed, self.env_indices[mask], self.episode_numbers[mask]
            )
            try:
                if mask.any():
                    self.backend.reset(obs, mask)
                break
            except WorkerError as error:
                mask = mask | self._handle_deaths(error)
        self._prepare_episodes(mask)
        self.seconds["environment"] += perf_counter() - start
        return mask

    def _prepare_episodes(self, rows: NDArray[np.bool_] | NDArray[np.intp]) -> None:
        """Sets the random streams of episodes that have started, and the seeds of the next ones.

        Args:
            rows: a mask, or numbers of rows, which take half the time where there are few.
        """
        seed, env_indices, numbers = self.plan.seed, self.env_indices[rows], self.episode_numbers[rows]
        streams = act_streams(seed, env_indices, numbers)
        self._streams[rows] = (
            streams if self.plan.num_agents is None else agent_streams(streams, self.plan.num_agents)
        )
        self._steps[rows], self._returns[rows] = 0, 0.0
        if self.backend.alive is not None:
            self._took_part[rows] = self.backend.alive[rows]
        if self._states is not None:
            self._states[rows] = 0
        if self.plan.unit == "steps":
            self.backend.next_seeds[rows] = env_seeds(seed, env_indices, numbers + 1)
        else:
            following = self._reserved[rows]
            self.backend.next_seeds[rows] = np.where(
                following < 0, NO_RESET, env_seeds(seed, env_indices, np.maximum(following, 0))
            )

    def _handle_deaths(self, error: WorkerError) -> NDArray[np.bool_]:
        """Restarts dead workers; returns those of their rows that play.

        Raises:
            CollectError: an episode has failed too often, or an environment violates Gymnasium's interface.
        """
        dead = np.zeros(len(self.env_indices), np.bool_)
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
                started = [
                    (int(self.env_indices[i]), int(self.episode_numbers[i]))
                    for i in death.envs
                    if self._active[i]
                ]
                self._failures.add(death.worker, f"a step of {rows}", death.cause, death.traceback, started)
                self.restarts += 1
            try:
                self.backend.restart()
                return dead & self._active
            except WorkerError as again:
                error = again

    def run_episodes(self, numbers: range) -> Iterator[list[tuple[Arrays, FragmentMeta]]]:
        """Runs the episodes of these numbers; gives those that have ended at the same step."""
        if self._episodes is None or self._step is None:
            self._episodes = arrays_for(self.plan, len(self.env_indices))
            self._step = allocate_steps(self.plan, 1, len(self.env_indices))
        kept, step = self._episodes, self._step
        playing, waiting = self._active, iter(numbers)
        self._reserved[:] = [next(waiting, -1) for _ in self.env_indices]
        self._start_episodes(self._start_reserved(waiting), step["obs"][0])
        while playing.any():
            rows = np.flatnonzero(playing)
            if self.backend.alive is not None:
                step["alive"][0] = self.backend.alive
            views = step_of(step, 0)
            self._choose_actions(views)
            self._step_envs(views, None if len(rows) == len(playing) else playing)
            start = perf_counter()
            at = self._steps[rows]
            ended = playing & self._ended(step, 0)
            # All rows at the same step take a plain copy, which is several times as fast.
            same = len(rows) == len(playing) and at.min() == at.max()
            place, source = (int(at[0]), slice(None)) if same else ((at, rows), rows)
            for name in kept:
                kept[name][place] = step[name][0, source]
            self._steps[rows] += 1
            self._returns[rows] += self._of_envs(step["rewards"][0, rows])
            step["obs"][0, source] = step["obs"][1, source]
            if ended.any():
                yield self._take_ended(kept, step, np.flatnonzero(ended))
            self.seconds["buffer"] += perf_counter() - start
            if ended.any():
                late = self._steal_reserved(ended)
                self._prepare_episodes(self._start_reserved(waiting, ended))
                if late.any():
                    self._start_episodes(late, step["obs"][0])
            self._see_agents()

    def _take_ended(
        self, kept: Arrays, step: Arrays, rows: NDArray[np.intp]
    ) -> list[tuple[Arrays, FragmentMeta]]:
        """The episodes of rows that have ended with a step."""
        lengths = self._steps[rows]
        kept["obs"][lengths, rows] = step["final_obs"][0, rows]
        if "alive" in kept:
            kept["alive"][lengths, rows] = False
        ended = {}
        for length in np.unique(lengths).tolist():
            group = rows[lengths == length]
            for row, arrays in zip(group.tolist(), episode_arrays(kept, group, length), strict=True):
                number = int(self.episode_numbers[row])
                self._check(arrays, length, [number], [0])
                info = tuple(self.backend.ended_info[row].tolist())
                ended[row] = arrays, FragmentMeta.of_episode(number, self._return(row), length, info)
        return [ended[row] for row in rows.tolist()]

    def _start_reserved(
        self, waiting: Iterator[int], free: NDArray[np.bool_] | None = None
    ) -> NDArray[np.bool_]:
        """Gives free rows, by default all, the episodes that are reserved for them, and reserves further ones. Returns
        the rows that got one; the other free rows stop."""
        free = np.ones(len(self.env_indices), np.bool_) if free is None else free
        started = free & (self._reserved >= 0)
        self.episode_numbers[started] = self._reserved[started]
        self._active[free] = started[free]
        for row in np.flatnonzero(started).tolist():
            self._reserved[row] = next(waiting, -1)
        return started

    def _steal_reserved(self, ended: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Work stealing: rows that have ended with nothing reserved take what is reserved for rows that still play.
        Returns the rows that took something, whose environments have to be reset."""
        late = np.zeros(len(self.env_indices), np.bool_)
        idle = np.flatnonzero(ended & (self._reserved < 0)).tolist()
        stealable = np.flatnonzero(self._active & ~ended & (self._reserved >= 0)).tolist()
        for row, donor in zip(idle, stealable, strict=False):
            self._reserved[row], self._reserved[donor] = self._reserved[donor], -1
            self.backend.next_seeds[donor] = NO_RESET
            late[row] = True
        return late
