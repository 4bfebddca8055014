"""Writing of recorded fragments as the episodes of a data set."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastrl.collectors.protocol import CollectError
from fastrl.demos.plan import RecordingPlan, recorded_pair
from fastrl.envs.exact_rows import ExactRows
from fastrl.replay.episode_writer import EpisodeWriter
from fastrl.replay.episodes import Episode
from fastrl.rollout.fragment import Fragment
from fastrl.utils.seeding import NO_ENV, env_seeds


def write_fragments(
    plan: RecordingPlan, writer: EpisodeWriter, fragments: list[Fragment], has_noise: bool
) -> None:
    """Writes the episodes of fragments, each a whole one.

    Args:
        plan: of the recording.
        writer: of the data set.
        fragments: in the order of the episodes.
        has_noise: the fragments have the expert's actions beside those that were taken.

    Raises:
        CollectError: an observation is not finite. The episodes before are written.
    """
    if not fragments:
        return
    exact = plan.obs_rows
    assert isinstance(exact, ExactRows)
    lengths = [len(fragment) for fragment in fragments]
    rows = _joined([fragment.obs[:, 0] for fragment in fragments])
    numbers = np.array([fragment.episodes[0, 1] for fragment in fragments])
    seeds = env_seeds(plan.seed, np.full(len(numbers), NO_ENV), numbers).tolist()
    # Collectors check rows of floats themselves.
    if exact.dtype == np.uint8 and (wrong := exact.not_finite(rows)) is not None:
        row, value = wrong
        firsts = np.cumsum([0, *lengths[:-1]]) + np.arange(len(lengths))
        at = int(np.searchsorted(firsts, row, side="right")) - 1
        write_fragments(plan, writer, fragments[:at], has_noise)
        raise CollectError(
            f"{plan.env.id}: the observation after step {row - firsts[at]} of episode {numbers[at]} (reset with seed"
            f" {seeds[at]}) has {value}; observations should be finite"
        )
    taken, experts = recorded_pair(_joined([fragment.actions for fragment in fragments]))
    steps = Episode(
        observations=exact.read(rows),
        actions=taken,
        rewards=_joined([fragment.rewards[:, 0] for fragment in fragments]).astype(np.float64, copy=False),
        terminated=_joined([fragment.terminations[:, 0] for fragment in fragments]),
        truncated=_joined([fragment.truncations[:, 0] for fragment in fragments]),
        expert_actions=experts if has_noise else None,
        infos=exact.read_infos(rows) if exact.infos else None,
    )
    writer.write_many(steps, lengths, seeds)


def _joined(parts: list[NDArray[Any]]) -> NDArray[Any]:
    """Arrays one after the other. `numpy.concatenate` gives up the interpreter's lock at each of them, so that a thread
    that collects meanwhile takes half as long again."""
    data = b"".join([np.ascontiguousarray(part).data for part in parts])
    return np.frombuffer(data, parts[0].dtype).reshape(sum(map(len, parts)), *parts[0].shape[1:])
