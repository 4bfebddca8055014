"""Rollouts of environments of many agents, as experience for an algorithm that learns from them."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastrl.algorithms.protocol import Algorithm, MultiAgentAlgorithm, Problem
from fastrl.collectors.multi_agent import MultiAgentCollector
from fastrl.envs.adapters.parallel_copy import ParallelForm
from fastrl.envs.multi_agent import MultiAgentVectorEnv
from fastrl.envs.record_episodes import MEANS, RecordEpisodeStatistics, finite_mean
from fastrl.networks.action_space import Actions
from fastrl.networks.multi_agent import MultiAgentPolicy, PolicyNetwork
from fastrl.rollout.multi_agent import MultiAgentRollout
from fastrl.training.callbacks import Callback
from fastrl.training.checkpoint import CheckpointError
from fastrl.training.experience import Episodes, Source
from fastrl.training.metrics import percent
from fastrl.training.row import Number
from fastrl.utils.timer import Stopwatch

# Fields of an episode's record that are fields of `Episodes`, not of its info.
_OWN = {"return_mean": "returns", "length": "lengths"}


@dataclass(frozen=True)
class Difficulty:
    """Arguments of ``MultiAgentVectorEnv.set_difficulty``.

    Attributes:
        num_agents: agents that an episode starts with.
        density: of the traffic around them.
    """

    num_agents: int
    density: float


class MultiAgentSource(Source):
    """Steps a vector environment of many agents in this process; brings
    `MultiAgentRollout` of all its environments.

    The episodes' info has the fields of `fastrl.envs.record_episodes.EPISODE`, among them the level of difficulty.

    Args:
        env: in autoreset mode "same_step".
        env_id: of it.
        episode_steps: after which an episode ends at the latest.
    """

    collector = "native"
    steps: int = 0
    # Of a parallel environment of PettingZoo.
    form: ParallelForm | None = None

    def __init__(self, env: MultiAgentVectorEnv, env_id: str, episode_steps: int) -> None:
        self.env = RecordEpisodeStatistics(env)
        self.env_id = env_id
        self.episode_steps = episode_steps

    def check_ranks(self) -> None:
        """Each steps all environments."""

    def problem(self, total_timesteps: int, seed: int, device: str) -> Problem:
        return Problem(
            self.env.single_observation_space,
            self.env.single_action_space,
            self.env.num_envs,
            total_timesteps,
            num_agents=self.env.num_agents,
            seed=seed,
            device=device,
        )

    def attach(self, algorithm: Algorithm[Any]) -> None:
        assert isinstance(algorithm, MultiAgentAlgorithm), "it learns from rollouts of many agents"
        self._algorithm = algorithm
        self._collector = MultiAgentCollector(self.env, algorithm.act_into, algorithm.env_seeds)

    def set_difficulty(self, level: int, difficulty: Difficulty | None) -> None:
        """Sets the difficulty of each environment from its next reset on.

        Args:
            level: number of the difficulty, in the info of these episodes.
            difficulty: None: as it is.

        Raises:
            NotImplementedError: the environment's difficulty is fixed.
        """
        self.env.level = level
        if difficulty is not None:
            self.env.env.set_difficulty(num_agents=difficulty.num_agents, density=difficulty.density)

    def next(self, watch: Stopwatch) -> MultiAgentRollout | None:
        rollout = self._algorithm.rollout
        self._collector.collect(rollout, watch)
        self.steps += rollout.num_steps * self.env.num_envs
        return rollout

    def take_episodes(self) -> Episodes:
        return as_episodes(self.env.take())

    def state_dict(self) -> dict[str, Any]:
        return {
            "steps": self.steps,
            "env": self.env.save_state(),
            "collector": self._collector.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._collector.load_state_dict(state["collector"])
        self.env.load_state(state["env"])
        self.steps = state["steps"]


def as_episodes(records: NDArray[np.void]) -> Episodes:
    """Episodes from their records, `fastrl.envs.record_episodes.EPISODE` [E]."""
    info = {name: records[name] for name in records.dtype.names or () if name not in _OWN}
    return Episodes(records["return_mean"].copy(), records["length"].astype(np.int64), info)


class EpisodeMeans(Callback):
    """Adds means over the episodes of a row to it, such as ``rollout/ep_success_rate``; NaN of what is not known.

    Consoles show rates of the newest row in which episodes ended.
    """

    name = "episode_means"

    def __init__(self) -> None:
        self._latest: dict[str, float] = {}

    def numbers(self, ended: Episodes) -> Mapping[str, Number]:
        fields = {name: field for name, field in MEANS.items() if field not in _OWN}
        means = {
            name: finite_mean(ended.info[field]) if len(ended) else math.nan for name, field in fields.items()
        }
        if len(ended):
            self._latest = means
        return {f"rollout/ep_{name}": mean for name, mean in means.items()}

    def highlights(self) -> list[str]:
        shown = {"success": "success_rate", "collisions": "collision_rate"}
        return [f"{label} {percent(self._latest[name])}" for label, name in shown.items() if self._latest]


def check_fits(policy: MultiAgentPolicy, env: MultiAgentVectorEnv, images: Any = None) -> None:
    """Compares a policy with an environment.

    Args:
        images: the state of the `ObsRows` of observations with images.

    Raises:
        CheckpointError: it is of other agents.
    """
    shape, actors = env.single_observation_space.shape, policy.policies.values()
    if (
        any(
            (each.obs_dim,) != shape or each.images != images
            for each in actors
            if isinstance(each, PolicyNetwork)
        )
        or policy.num_agents != env.num_agents
        or policy.actions.state() != Actions(env.single_action_space).state()
    ):
        raise CheckpointError(f"the policy does not fit its environment, {env.name}")
