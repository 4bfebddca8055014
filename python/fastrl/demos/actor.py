"""The actor of a recording: an expert, and noise on its actions.

This module runs in worker processes and loads no torch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium.spaces import Space
from numpy.typing import NDArray
from typing_extensions import Buffer

from fastrl.collectors.action_noise import Noise, NoiseSource
from fastrl.collectors.expert import ExpertError
from fastrl.collectors.failures import failed, own_traceback
from fastrl.collectors.protocol import CollectError
from fastrl.networks.compiled_actor import RowActor, Rows
from fastrl.utils.seeding import NO_ENV, act_streams, agent_streams, env_seed


class RecordingActor(RowActor):
    """Acts as an expert does, with noise. There is nothing to load.

    Args:
        make_expert: makes the `fastrl.collectors.expert.Expert`, given the rows and the action space.
        name: of the expert, for errors.
        rows: of observations.
        action_space: of the environment.
        noise: None: there is none.
        seed: of the plan; episodes: how many there are. By them an error names its episode.
        num_agents: of an environment of many, whose rows are those of all agents; None: of one.
    """

    weights_nbytes = 0

    def __init__(
        self,
        make_expert: Callable[[Any, Space[Any]], Any],
        name: str,
        rows: Any,
        action_space: Space[Any],
        noise: Noise | None,
        seed: int,
        episodes: int,
        num_agents: int | None = None,
    ) -> None:
        self._name, self._num_agents = name, num_agents
        self._noise = None if noise is None else NoiseSource(noise, action_space)
        self._seed, self._episodes = seed, episodes
        self._shape, self._dtype = tuple(action_space.shape or ()), action_space.dtype
        try:
            self._expert: Any = make_expert(rows, action_space)
        except CollectError:
            raise
        except Exception as error:
            raise failed(f"expert {name}", error) from error
        self.state_size = self._expert.state_size

    def load(self, weights: Buffer) -> None:
        raise ValueError("weights: this actor has none to load")

    def with_threads(self, num_threads: int) -> RecordingActor:
        """The actor itself, as of `fastrl.networks.team_actor.TeamActor`: an expert acts in one thread."""
        return self

    def choose(self, rows: Rows) -> tuple[NDArray[Any], float]:
        """Gives pairs of actions [K, 2, *shape], see `fastrl.demos.plan.RecordedActions`; zeros for agents that do not
        act."""
        alive = rows.alive
        if alive is None:
            chosen = self._chosen(rows)
            return np.stack([self._with_noise(chosen, rows), chosen], 1), 0.0
        pairs = np.zeros((len(alive), 2, *self._shape), self._dtype)
        if alive.any():
            pairs[alive, 1] = chosen = self._chosen(rows)[alive]
            pairs[alive, 0] = self._with_noise(chosen, rows.of(alive))
        return pairs, 0.0

    def _with_noise(self, chosen: NDArray[Any], rows: Rows) -> NDArray[Any]:
        if self._noise is None:
            return chosen
        return self._noise.add(chosen, rows.streams, rows.steps, rows.masks)

    def _chosen(self, rows: Rows) -> NDArray[Any]:
        """The actions that the expert chooses."""
        try:
            chosen: NDArray[Any] = self._expert.act(rows)
            return chosen
        except ExpertError as error:
            cause, step, stream = error.cause, int(rows.steps[error.row]), rows.streams[error.row]
            trace = "" if cause is None else own_traceback(cause)
            raise CollectError(
                f"expert {self._name} {error} at step {step} of {self._episode(stream)}:"
                " correct the expert, then --resume records from there",
                trace,
            ) from cause

    def _episode(self, stream: np.uint64) -> str:
        numbers = np.arange(self._episodes)
        streams = act_streams(self._seed, np.full(self._episodes, NO_ENV), numbers)
        if self._num_agents is not None:
            streams = agent_streams(streams, self._num_agents)
        found = np.argwhere(streams == stream)
        if not len(found):
            return "an episode"
        number = int(found[0, 0])
        return f"episode {number} (reset with seed {env_seed(self._seed, NO_ENV, number)})"
