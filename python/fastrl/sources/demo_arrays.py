"""Demonstrations as arrays in the form that algorithms learn from."""

import dataclasses
import functools
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from gymnasium.spaces import Box, Space
from numpy.typing import NDArray

from fastrl._native._epochs import RowParts
from fastrl.envs.contract import ACTION_MASK, AGENT
from fastrl.envs.rows import ActionRows, ObsRows, RowError
from fastrl.networks.action_space import Actions
from fastrl.runs.errors import TrainError

if TYPE_CHECKING:
    from fastrl.replay.episodes import Episode

# Bytes of observations from which on they stay in their files.
MAPPED_BYTES = 1 << 28


class Demos(Protocol):
    """A data set of E episodes, each with the arrays of a `fastrl.replay.episodes.Episode`."""

    @property
    def lengths(self) -> NDArray[np.int64]: ...
    @property
    def returns(self) -> NDArray[np.float64]: ...
    @property
    def obs_space(self) -> Space[Any]: ...
    @property
    def action_space(self) -> Space[Any]: ...
    @property
    def meta(self) -> Mapping[str, Any]: ...
    @property
    def num_steps(self) -> int: ...
    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> Any: ...


@dataclasses.dataclass(frozen=True)
class DemoArrays:
    """E episodes one after the other, R = steps + E rows: each episode has a row for each step, and a last one with the
    observation that follows it. So the observation after row i is row i + 1.

    Attributes:
        obs: rows [R, D] as of `ObsRows`, in memory or mapped from files.
        actions: [R, ...] as a policy draws them, see `Actions`; zeros in last rows, as are all that follow.
        rewards: float32 [R].
        terminated, truncated: bool [R].
        firsts: int64 [E], the first row of each episode.
        lengths: int64 [E], steps.
        returns: float64 [E], undiscounted.
        masks: bool [R, M], the actions that were allowed at the observations; None: not recorded, or not asked for.
        is_mapped: observations are read from files.
        agents: int64 [R], of environments of many agents; None: of one.
    """

    obs: RowParts
    actions: NDArray[Any]
    rewards: NDArray[np.float32]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    firsts: NDArray[np.int64]
    lengths: NDArray[np.int64]
    returns: NDArray[np.float64]
    masks: NDArray[np.bool_] | None = None
    is_mapped: bool = False
    agents: NDArray[np.int64] | None = None

    @functools.cached_property
    def action_rows(self) -> RowParts:
        """The actions, of which rows are copied faster than numpy does."""
        return RowParts([self.actions])

    def __len__(self) -> int:
        """Number of steps."""
        return int(self.lengths.sum())

    def steps_of(self, episodes: NDArray[np.int64] | None = None) -> NDArray[np.int64]:
        """The rows of the steps of some episodes (None: of all), int64 [n], episode after episode."""
        firsts, lengths = self.firsts, self.lengths
        if episodes is not None:
            firsts, lengths = firsts[episodes], lengths[episodes]
        before = np.cumsum(lengths) - lengths
        return np.repeat(firsts - before, lengths) + np.arange(lengths.sum())

    def obs_at(self, rows: NDArray[np.int64]) -> NDArray[Any]:
        """Observations [n, D] of some rows, as a copy."""
        out = np.empty((len(rows), *self.obs.shape), self.obs.dtype)
        self.obs.take_into(np.ascontiguousarray(rows, np.int64), out)
        return out

    @classmethod
    def of(
        cls,
        demos: Demos,
        actions: Actions,
        *,
        own_actions: bool = False,
        num_masked: int = 0,
        many_agents: bool = False,
        name: str = "the data set",
    ) -> "DemoArrays":
        """The arrays of a data set.

        Args:
            demos: the data set.
            actions: of the policy that learns from it.
            own_actions: take the expert's actions before noise where there are any.
            num_masked: width of the action masks, if they are asked for: ``infos["action_mask"]``, [T + 1, M].
            many_agents: each episode is one agent's of many.
            name: of the data set, for errors.

        Raises:
            TrainError: an episode has NaN or infinity, values that its spaces do not have, or actions that its masks
                forbid; or there is no episode.
        """
        if not len(demos):
            raise TrainError(f"{name} has no episodes: record some, or choose another one")
        obs_rows, action_rows = ObsRows(demos.obs_space), ActionRows(demos.action_space)
        lengths = np.asarray(demos.lengths, np.int64)
        ends = np.cumsum(lengths + 1)
        total = int(ends[-1])
        firsts = ends - lengths - 1
        mapped = _mapped(demos, obs_rows)
        obs = np.zeros((0 if mapped else total, obs_rows.size), obs_rows.dtype)
        if mapped is not None:
            firsts, total = mapped.firsts, mapped.num_rows
        drawn = np.zeros((total, *actions.shape), actions.dtype)
        rewards = np.zeros(total, np.float32)
        terminated, truncated = np.zeros((2, total), np.bool_)
        masks = np.zeros((total, num_masked), np.bool_) if num_masked else None
        agents = np.zeros(total, np.int64) if many_agents else None
        for index, (first, length) in enumerate(zip(firsts.tolist(), lengths.tolist(), strict=True)):
            episode: Episode = demos[index]
            infos = getattr(episode, "infos", None) or {}
            rows = slice(first, first + length)
            try:
                if mapped is None:
                    seen = obs[first : first + length + 1]
                    obs_rows.write_batch(episode.observations, seen)
                else:
                    seen = episode.observations
                taken = episode.actions
                if own_actions and episode.expert_actions is not None:
                    taken = episode.expert_actions
                drawn[rows] = actions.from_env(action_rows.from_env(np.asarray(taken)))
                rewards[rows] = episode.rewards
                terminated[rows], truncated[rows] = episode.terminated, episode.truncated
                if agents is not None:
                    if AGENT not in infos:
                        raise ValueError("it does not say which agent's it is")
                    agents[rows] = infos[AGENT][:length]
                _check(seen, drawn[rows], rewards[rows], actions)
                given = infos.get(ACTION_MASK)
                if masks is None or given is None:
                    masks = None
                    continue
                written = masks[first : first + length + 1]
                written[:] = _masks(given, written.shape, drawn[rows], bool(terminated[rows].any()))
            except (RowError, ValueError, TypeError) as error:
                line = " ".join(str(error).split())
                file_of = getattr(demos, "file_of", None)
                place = name if file_of is None else file_of(index)
                raise TrainError(
                    f"{place}, episode {index}: {line}; leave the episode out, or record it again"
                ) from None
        return cls(
            RowParts([obs]) if mapped is None else RowParts(mapped.parts),
            drawn,
            rewards,
            terminated,
            truncated,
            firsts,
            lengths,
            np.asarray(demos.returns, np.float64),
            masks,
            is_mapped=mapped is not None,
            agents=agents,
        )


@dataclasses.dataclass(frozen=True)
class _Mapped:
    """Observations in files, which are rows as they are.

    Attributes:
        parts: arrays [rows, D], one a file.
        firsts: int64 [E], the first row of each episode in all of them.
        num_rows: of all files.
    """

    parts: list[NDArray[Any]]
    firsts: NDArray[np.int64]
    num_rows: int


def _mapped(demos: Demos, obs_rows: ObsRows) -> _Mapped | None:
    """The files of a data set whose observations are rows as they are; None where they have to be converted, or are
    few enough to be copied into memory, where they are found faster."""
    nbytes = demos.num_steps * obs_rows.size * obs_rows.dtype.itemsize
    parts_of = getattr(demos, "parts", None)
    is_row = obs_rows.is_plain and demos.obs_space.dtype == obs_rows.dtype
    if parts_of is None or not is_row or nbytes < MAPPED_BYTES:
        return None
    parts: dict[Path, NDArray[Any]] = {}
    before: dict[Path, int] = {}
    firsts, total = [], 0
    for shard, starts in parts_of():
        if shard.path not in parts:
            [column] = shard.group("observation").values()
            values = shard.values(column.name)
            parts[shard.path] = values.reshape(len(values), -1)
            before[shard.path], total = total, total + len(values)
        firsts.append(starts + before[shard.path])
    return _Mapped(list(parts.values()), np.concatenate(firsts), total)


def _check(obs: NDArray[Any], actions: NDArray[Any], rewards: NDArray[Any], kind: Actions) -> None:
    """Refuses what no policy can learn from.

    Raises:
        ValueError
    """
    for what, values in (("observations", obs), ("actions", actions), ("rewards", rewards)):
        if values.dtype.kind == "f" and not np.isfinite(values).all():
            step = int(np.argwhere(~np.isfinite(values))[0][0])
            raise ValueError(f"expected finite {what}, got NaN or infinity at step {step}")
    if not kind.is_box and ((actions < 0) | (actions >= kind.nvec)).any():
        raise ValueError(f"expected actions of {kind.space}, got others")


def _masks(
    given: Any, shape: tuple[int, ...], actions: NDArray[np.int64], terminated: bool
) -> NDArray[np.bool_]:
    """The action masks of an episode's observations.

    Raises:
        ValueError: another shape, or they forbid what was done, or everything where the episode continues.
    """
    # NaN stands for a missing value.
    masks: NDArray[np.bool_] = np.nan_to_num(given) != 0
    if masks.shape != shape:
        raise ValueError(
            f"expected action masks of shape {shape}, one for each observation, got shape {masks.shape}"
        )
    allowed = np.take_along_axis(masks[:-1], actions[:, None], 1)
    if not allowed.all():
        step = int(allowed.argmin())
        raise ValueError(f"action {actions[step]} was taken at step {step}, and its mask forbids it")
    if not terminated and not masks[-1].any():
        raise ValueError("the last action mask allows nothing, though the episode did not terminate")
    return masks


def check_env(demos: Demos, env: str, obs_space: Space[Any], action_space: Space[Any], name: str) -> None:
    """Refuses demonstrations of another environment, or of other spaces.

    Args:
        env: id of the environment.
        obs_space, action_space: of the environment itself.
        name: of the data set.

    Raises:
        TrainError: says what differs.
    """
    recorded = (demos.meta.get("env") or {}).get("id")
    if recorded not in (None, env):
        raise TrainError(
            f"{name} was recorded in {recorded}, not in {env}: choose a data set of that environment"
        )
    for what, theirs, own in (
        ("observations", demos.obs_space, obs_space),
        ("actions", demos.action_space, action_space),
    ):
        if not _is_same(theirs, own):
            raise TrainError(
                f"{name} has {what} {_shown(theirs)}, {env} has {_shown(own)}: it was recorded in another environment,"
                " or with other options: choose a data set of this environment"
            )


def _shown(space: Space[Any]) -> str:
    text = " ".join(str(space).split())
    return text if len(text) <= 100 else f"{text[:60]} ... {text[-30:]}"


def _is_same(a: Space[Any], b: Space[Any]) -> bool:
    """True for equal spaces; bounds may differ by rounding."""
    if isinstance(a, Box) and isinstance(b, Box):
        return (
            a.shape == b.shape
            and a.dtype == b.dtype
            and np.allclose(a.low, b.low, rtol=1e-5)
            and np.allclose(a.high, b.high, rtol=1e-5)
        )
    return bool(a == b)


def best_episodes(returns: NDArray[np.float64], top: float) -> NDArray[np.int64]:
    """The episodes of the highest returns, int64 [ceil(top * E)], in their order; of equal ones the first."""
    count = max(int(np.ceil(top * len(returns) - 1e-9)), 1)
    return np.sort(np.argsort(-returns, kind="stable")[:count])


def split_episodes(
    episodes: NDArray[np.int64], validation: float, seed: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Parts episodes by chance: those to learn from, and those to validate with, at least one of each if there are two.

    Args:
        validation: share of the second part; 0: it is empty.
    """
    if not validation or len(episodes) < 2:
        return episodes, episodes[:0]
    count = min(max(round(validation * len(episodes)), 1), len(episodes) - 1)
    order = np.random.default_rng([seed, 7]).permutation(episodes)
    return np.sort(order[count:]), np.sort(order[:count])


def packed_rows(
    firsts: NDArray[np.int64], lengths: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Rows of episodes in the order of PyTorch's ``PackedSequence``, int64 [n], and its batch sizes, int64 [L]."""
    order = np.argsort(-lengths, kind="stable")
    firsts, lengths = firsts[order], lengths[order]
    steps = np.arange(lengths[0])[:, None]
    there = steps < lengths
    return (firsts + steps)[there], there.sum(1)


def batches_of(lengths: Sequence[int] | NDArray[np.int64], size: int) -> Iterable[slice]:
    """Slices of episodes in a row, each of at least ``size`` steps but for the last."""
    start, total = 0, 0
    for index, length in enumerate(np.asarray(lengths).tolist()):
        total += length
        if total >= size:
            yield slice(start, index + 1)
            start, total = index + 1, 0
    if start < len(lengths):
        yield slice(start, len(lengths))
