"""Running episodes, which continue from one fragment to the next, kept so that a resumed collector can replay them; and
the state of a collector as a checkpoint holds it: nested dicts with text as keys, of bytes and JSON values.

A running episode is its environment's index, its number and its actions so far. An environment that is reset with the
episode's seed and steps the same actions reaches the same state, if it is deterministic; the last observation is
compared to check. Where an episode continues the one before, as the lives of a game do (see
`fastrl.envs.contract.CONTINUES`), the actions are those since the game was reset.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastrl.collectors.protocol import Plan
from fastrl.envs import contract
from fastrl.rollout.fragment import Fragment

# Actions of longer episodes are not kept, to bound memory, checkpoints and the time of a resume.
LONGEST = 100_000


class RunningEpisode(NamedTuple):
    """The steps of a running episode so far.

    Attributes:
        actions: as they were drawn, in `action_dtype`; with those of earlier ``lives``.
        obs: the last observation's row [D], of many agents [A, D]; empty if the episode has not been reset yet.
        state: the actor's memory after these steps, float32 [state_size], of many agents [A, state_size]; empty without
            memory, or without ``obs``.
        lives: number of episodes before this one that it continues.
        difficulty: with which it started, see `TeamBackend.difficulties`; empty where that does not
            change.
    """

    actions: bytes = b""
    obs: bytes = b""
    state: bytes = b""
    lives: int = 0
    difficulty: bytes = b""


def action_dtype(plan: Plan) -> np.dtype[Any]:
    """The smallest dtype that holds every action of the plan."""
    actions = plan.actions
    return actions.dtype if actions.is_box else np.min_scalar_type(int(actions.nvec.max()) - 1)


def actions_of(plan: Plan, episode: RunningEpisode) -> NDArray[Any]:
    """The actions as fragments have them, int64 [L], or int64 or float32 [L, n]; of many agents [L, A, ...]."""
    actions = np.frombuffer(episode.actions, action_dtype(plan)).reshape(-1, *_step_shape(plan))
    return actions.astype(plan.actions.dtype, copy=False)


def _step_shape(plan: Plan) -> tuple[int, ...]:
    """The shape of the actions of a step of an environment."""
    return *plan.agents, *plan.actions.shape


def state_of(plan: Plan, episode: RunningEpisode) -> NDArray[np.float32]:
    """The actor's memory of an episode, float32 [state_size], of many agents [A, state_size]."""
    shape = (*plan.agents, plan.state_size)
    return np.frombuffer(episode.state or bytes(4 * math.prod(shape)), np.float32).reshape(shape)


def check_running(plan: Plan, episode: RunningEpisode) -> None:
    """Refuses actions or observations that do not fit the plan.

    Raises:
        ValueError
    """
    step = action_dtype(plan).itemsize * math.prod(_step_shape(plan))
    obs = plan.obs_rows.dtype.itemsize * plan.obs_dim * math.prod(plan.agents)
    if len(episode.actions) % step or len(episode.obs) not in (0, obs):
        raise ValueError("the state's running episodes have other actions or observations than the plan")
    if len(episode.difficulty) % 8 or len(episode.difficulty) in (8, 16):
        raise ValueError("the state's running episodes have another difficulty than the plan's environments")
    expected = 4 * plan.state_size * math.prod(plan.agents) if episode.obs else 0
    if len(episode.state) != expected or not np.isfinite(state_of(plan, episode)).all():
        raise ValueError("the state's running episodes have another memory than the plan's actor")
    if not plan.actions.is_box and (actions_of(plan, episode) >= plan.actions.nvec).any():
        raise ValueError(f"the state's running episodes have actions that are not in {plan.action_space}")


def reached(episode: RunningEpisode, obs: NDArray[Any]) -> bool:
    """True if the replayed episode's observation, a row [D], equals the saved one to the bit."""
    return not episode.obs or episode.obs == obs.tobytes()


class RunningEpisodes:
    """The running episodes of some environments. Threads may add and read at the same time.

    Args:
        env_indices: of the fragments' environments, in order.
    """

    def __init__(self, plan: Plan, env_indices: Iterable[int]) -> None:
        self._plan, self._action_dtype = plan, action_dtype(plan)
        self._env_indices = list(env_indices)
        self._rows = {env_index: row for row, env_index in enumerate(self._env_indices)}
        rows = len(self._env_indices)
        self._episode_numbers = [0] * rows
        # Of each row, actions that are needed to replay its episode, and earlier lives among them.
        self._lengths = np.zeros(rows, np.int64)
        self._lives = np.zeros(rows, np.int64)
        # True once the row's episode has been reset and has an observation.
        self._started = np.zeros(rows, np.bool_)
        self._obs = np.zeros((rows, *plan.agents, plan.obs_dim), plan.obs_rows.dtype)
        self._states = np.zeros((rows, *plan.agents, plan.state_size), np.float32)
        # See `TeamBackend.difficulties`.
        self._difficulties: NDArray[np.float64] | None = None
        # Actions of all rows, [T, R, ...] each, the newest last; as far back as the longest episode needs.
        self._blocks: deque[NDArray[Any]] = deque()
        self.steps = 0
        self._lock = threading.Lock()

    def add(
        self,
        fragment: Fragment,
        restarted: Sequence[int] = (),
        difficulties: NDArray[np.float64] | None = None,
    ) -> None:
        """Adds the next fragment.

        Args:
            restarted: rows whose episodes were restarted at the start of this fragment without having ended.
            difficulties: as of `fastrl.collectors.fragment_arrays.FragmentMeta`.
        """
        ended = fragment.ended
        has_shorter = bool(restarted) or np.count_nonzero(ended) > 0
        with self._lock:
            if restarted:
                self._lengths[list(restarted)] = 0
                self._lives[list(restarted)] = 0
            self._lengths += len(ended)
            if contract.CONTINUES in fragment.episode_info:
                self._find_games(fragment, ended)
            elif has_shorter:
                since = ended[::-1].argmax(0)
                self._lengths = np.where(ended.any(0), since, self._lengths)
            self._started.fill(True)
            self._obs[...] = fragment.obs[-1]
            self._difficulties = difficulties
            if fragment.next_states is not None:
                self._states[...] = fragment.next_states
            for env_index, number in fragment.episodes.tolist():
                self._episode_numbers[self._rows[env_index]] = number + 1
            self._blocks.append(fragment.actions.astype(self._action_dtype))
            self.steps += len(ended)
            if not has_shorter and self.steps <= LONGEST:
                return
            longest = self._lengths[self._lengths <= LONGEST].max(initial=0)
            while self._blocks and self.steps - len(self._blocks[0]) >= longest:
                self.steps -= len(self._blocks.popleft())

    def _find_games(self, fragment: Fragment, ended: NDArray[np.bool_]) -> None:
        """Finds, in rows with ended episodes, where the running game was reset."""
        continued: dict[int, list[bool]] = {}
        flags = fragment.episode_info[contract.CONTINUES] == 1
        for (env_index, _), flag in zip(fragment.episodes.tolist(), flags.tolist(), strict=True):
            continued.setdefault(self._rows[env_index], []).append(flag)
        for row in np.flatnonzero(ended.any(0)).tolist():
            for t in np.flatnonzero(ended[:, row])[::-1].tolist():
                # Episodes that were truncated as a worker died are not among those of the fragment.
                if not fragment.terminations[t, row] or not continued[row].pop():
                    self._lengths[row] = len(ended) - 1 - t
                    self._lives[row] = 0
                    break
            self._lives[row] += ended[max(len(ended) - self._lengths[row], 0) :, row].sum()

    def forget(self) -> None:
        """Drops all actions: the episodes will be restarted."""
        with self._lock:
            self._lengths[:] = 0
            self._lives[:] = 0
            self._started[:] = False
            self._difficulties = None
            self._blocks.clear()
            self.steps = 0

    def state(self) -> tuple[dict[int, int], dict[int, RunningEpisode]]:
        """Returns the numbers of the episodes by environment, and the running episodes that are not too long."""
        with self._lock:
            running = {}
            actions = np.concatenate(self._blocks) if self._blocks else None
            for row, (env_index, length) in enumerate(
                zip(self._env_indices, self._lengths.tolist(), strict=True)
            ):
                if length <= LONGEST:
                    actions_taken = (
                        actions[len(actions) - length :, row].tobytes() if actions is not None else b""
                    )
                    obs, state = (
                        (self._obs[row].tobytes(), self._states[row].tobytes())
                        if self._started[row]
                        else (b"", b"")
                    )
                    difficulty = None if self._difficulties is None else self._difficulties[row]
                    running[env_index] = RunningEpisode(
                        actions_taken,
                        obs,
                        state,
                        int(self._lives[row]),
                        b"" if difficulty is None or np.isnan(difficulty[1:]).all() else difficulty.tobytes(),
                    )
            return dict(zip(self._env_indices, self._episode_numbers, strict=True)), running

    def load(self, numbers: Sequence[int], running: Mapping[int, RunningEpisode]) -> list[RunningEpisode]:
        """Resumes from what `state` gave; returns each row's episode, to be replayed.

        Raises:
            ValueError: one does not fit the plan.
        """
        episodes = [running.get(env_index, RunningEpisode()) for env_index in self._env_indices]
        for each, number in zip(episodes, numbers, strict=True):
            check_running(self._plan, each)
            if not 0 <= each.lives <= number:
                raise ValueError(f"episode {number} of the state continues {each.lives} episodes")
        actions_taken = [actions_of(self._plan, each) for each in episodes]
        with self._lock:
            self._episode_numbers[:] = numbers
            self._lengths[:] = [len(actions) for actions in actions_taken]
            self._lives[:] = [each.lives for each in episodes]
            self._started[:] = [bool(each.obs) for each in episodes]
            block = np.zeros(
                (self._lengths.max(initial=0), len(actions_taken), *_step_shape(self._plan)),
                action_dtype(self._plan),
            )
            for row, actions in enumerate(actions_taken):
                block[len(block) - len(actions) :, row] = actions
                if episodes[row].obs:
                    self._obs[row].reshape(-1)[:] = np.frombuffer(episodes[row].obs, self._obs.dtype)
                self._states[row] = state_of(self._plan, episodes[row])
            given = [np.frombuffer(each.difficulty) for each in episodes]
            width = max((len(each) for each in given), default=0)
            self._difficulties = None
            if width:
                # Of episodes that started as the environments are nothing was saved.
                self._difficulties = np.array([each if len(each) else [np.nan] * width for each in given])
            self._blocks, self.steps = deque([block]), len(block)
        return episodes


def resumed(state: Mapping[str, Any], env_indices: Iterable[int]) -> list[int]:
    """Returns the episode numbers of environments in a collector's state.

    Raises:
        ValueError: the state is of another plan.
    """
    numbers = state["numbers"]
    env_indices = list(env_indices)
    if set(numbers) != set(env_indices):
        raise ValueError(
            f"the state is of {len(numbers)} environments, the plan of {len(env_indices)}: unit and num_envs should"
            " be as they were"
        )
    return [numbers[env_index] for env_index in env_indices]


def packed(state: Mapping[str, Any]) -> dict[str, Any]:
    """Packs what `Collector.state_dict` gave."""
    numbers, running = state["numbers"], state["running"]
    episodes = list(running.values())
    return {
        "version": state["version"],
        "env_indices": _int64(numbers),
        "numbers": _int64(numbers.values()),
        "running": {
            "env_indices": _int64(running),
            "action_bytes": _int64(len(each.actions) for each in episodes),
            "obs_bytes": _int64(len(each.obs) for each in episodes),
            "state_bytes": _int64(len(each.state) for each in episodes),
            "difficulty_bytes": _int64(len(each.difficulty) for each in episodes),
            "lives": _int64(each.lives for each in episodes),
            "actions": b"".join(each.actions for each in episodes),
            "obs": b"".join(each.obs for each in episodes),
            "states": b"".join(each.state for each in episodes),
            "difficulties": b"".join(each.difficulty for each in episodes),
        },
    }


def unpacked(saved: Mapping[str, Any]) -> dict[str, Any]:
    """The inverse of `packed`.

    Raises:
        ValueError, KeyError: it is damaged.
    """
    kept, running = saved["running"], {}
    left = [memoryview(kept[name]) for name in ("actions", "obs", "states", "difficulties")]
    lengths_of = ("action_bytes", "obs_bytes", "state_bytes", "difficulty_bytes")
    columns = (_ints(kept[name]) for name in ("env_indices", "lives", *lengths_of))
    for env_index, lives, *lengths in zip(*columns, strict=True):
        actions, obs, state, difficulty = (
            bytes(each[:length]) for each, length in zip(left, lengths, strict=True)
        )
        running[env_index] = RunningEpisode(actions, obs, state, lives, difficulty)
        left = [each[length:] for each, length in zip(left, lengths, strict=True)]
    numbers = dict(zip(_ints(saved["env_indices"]), _ints(saved["numbers"]), strict=True))
    return {"version": saved["version"], "numbers": numbers, "running": running}


def check_saved(plan: Plan, saved: Mapping[str, Any]) -> None:
    """Refuses a packed state that no collector of the plan can resume from.

    Raises:
        ValueError, KeyError
    """
    state = unpacked(saved)
    if type(state["version"]) is not int:
        raise ValueError(f"version should be a whole number, got {state['version']!r}")
    if plan.unit == "steps":
        env_indices = plan.env_indices
        RunningEpisodes(plan, env_indices).load(resumed(state, env_indices), state["running"])


def num_running(saved: Mapping[str, Any]) -> int:
    """Episodes that run in a packed state."""
    return len(_ints(saved["running"]["env_indices"]))


def _int64(values: Iterable[int]) -> bytes:
    return np.fromiter(values, np.int64).tobytes()


def _ints(data: bytes) -> list[int]:
    return np.frombuffer(data, np.int64).tolist()
