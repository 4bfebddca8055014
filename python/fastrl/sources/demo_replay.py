"""Demonstrations in a replay of their own, beside that of a run."""

import zlib
from typing import Any

import numpy as np

from fastrl.networks.action_space import Actions
from fastrl.replay import Replay
from fastrl.runs.errors import TrainError
from fastrl.sources.demo_arrays import DemoArrays, Demos, best_episodes
from fastrl.sources.settings import OfflineConfig


class DemoReplay:
    """A replay that has demonstrations, and nothing else.

    Args:
        demos: the data set.
        config: what is used of it.
        actions: of the policy that learns from it.
        name: of the data set, for errors.
        row: arguments of `fastrl.replay.Replay` that describe its rows. A data set without action masks is refused if
            there are ``final_masks``; if not, everything counts as allowed.

    Attributes:
        replay: the replay.
        checksum: of its rows.
        config: what is used of the data set, and how.

    Raises:
        TrainError: as of `DemoArrays.of`.
    """

    def __init__(
        self,
        demos: Demos,
        config: OfflineConfig,
        actions: Actions,
        name: str,
        row: dict[str, Any],
    ) -> None:
        arrays = DemoArrays.of(demos, actions, num_masked=row["num_masked"], name=name)
        if arrays.masks is None and row["final_masks"]:
            raise TrainError(
                f"{name} has no action masks of its observations, and with action_masks only allowed actions count:"
                " record it with --infos action_mask, or set action_masks to false"
            )
        episodes = best_episodes(arrays.returns, config.top)
        self.config = config
        capacity = int((arrays.lengths[episodes] + 1).sum())
        self.replay = Replay(capacity, num_envs=1, **row)
        self.checksum = 0
        for episode in episodes.tolist():
            first, length = int(arrays.firsts[episode]), int(arrays.lengths[episode])
            if not length:
                continue
            records = np.zeros(length + 1, self.replay.dtype)
            rows = np.arange(first, first + length + 1)
            records["obs"] = arrays.obs_at(rows)
            if self.replay.num_masked:
                records["mask"] = True if arrays.masks is None else arrays.masks[rows]
            for field, values in (
                ("action", arrays.actions),
                ("reward", arrays.rewards),
                ("terminated", arrays.terminated),
                ("truncated", arrays.truncated),
            ):
                records[field][:-1] = values[first : first + length]
                records[field][-1] = records[field][-2]
            # What was recorded of an episode may end before the episode does.
            records["truncated"][-2:] |= ~records["terminated"][-2:]
            records["end"][-1] = True
            self.replay.append(records)
            self.checksum = zlib.crc32(records.tobytes(), self.checksum)
