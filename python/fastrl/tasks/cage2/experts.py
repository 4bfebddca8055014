"""Scripted defenders of CAGE 2 as experts, which run in worker processes.

This module loads no torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Space
from numpy.typing import NDArray

from fastrl.collectors.expert import ExpertError, ExpertSpec, RandomExpert
from fastrl.envs.cage2 import baselines
from fastrl.envs.cage2.env import ACTIONS, HOSTS, Cage2Env
from fastrl.envs.contract import env_name
from fastrl.envs.exact_rows import ExactRows
from fastrl.networks.compiled_actor import Rows
from fastrl.utils.names import suggestion


def find_expert(expert: str, env: gymnasium.Env[Any, Any]) -> ExpertSpec:
    """The defender of ``baseline:NAME``.

    Args:
        env: the environment, as the expert will see it.

    Raises:
        ConfigError: there is none, or it does not fit the environment.
    """
    # Workers import this module, and need no settings.
    from fastrl.utils.config import ConfigError

    name = expert.partition(":")[2]
    if name not in baselines.BASELINES:
        raise ConfigError(f"--expert {expert}: {suggestion(name, baselines.BASELINES)}")
    game = env.unwrapped
    if not isinstance(game, Cage2Env):
        raise ConfigError(f"--expert {expert} is a defender of fastrl/Cage2-v0, which {env_name(env)} is not")
    facts = {"kind": "baseline", "name": name}
    if name == "random":
        return ExpertSpec(expert, RandomExpert, facts, batched=True)
    sense = Alerts() if name.startswith("react") else None
    make = MakeDefender(name, game.agent_view.actions)
    return ExpertSpec(expert, make, facts, sense=sense, batched=True)


@dataclass(frozen=True)
class Alerts:
    """The alerts of CAGE 2, see `fastrl.envs.cage2.env.Cage2VectorEnv.alerts`."""

    name: str = "alerts"
    size: int = len(HOSTS)

    def read(self, env: gymnasium.Env[Any, Any]) -> NDArray[Any]:
        alerts: NDArray[Any] = env.get_wrapper_attr("alerts")()
        return alerts

    def read_vector(self, env: Any) -> NDArray[Any]:
        alerts: NDArray[Any] = env.alerts()
        return alerts


@dataclass(frozen=True)
class MakeDefender:
    """Makes a scripted defender of CAGE 2.

    Attributes:
        name: of `fastrl.envs.cage2.baselines.BASELINES`.
        actions: of the environment for each of `ACTIONS`, see `AgentView`.
    """

    name: str
    actions: tuple[int, ...]

    def __call__(self, rows: ExactRows, action_space: Space[Any]) -> DefenderExpert:
        return DefenderExpert(self, rows)


class DefenderExpert:
    """A scripted defender of CAGE 2; its queue of hosts is its state."""

    def __init__(self, made: MakeDefender, rows: ExactRows) -> None:
        self._rows, self._name = rows, made.name
        self._env_actions = np.array(made.actions)
        self.state_size = len(HOSTS) + 1 if made.name.startswith("react") else 0
        self._policy: baselines.BluePolicy | None = None
        self._count = -1

    def act(self, rows: Rows) -> NDArray[Any]:
        obs, states = rows.obs, rows.states
        if self._policy is None or self._count != len(obs):
            self._policy, self._count = baselines.make_baseline(self._name, len(obs)), len(obs)
        policy = self._policy
        if isinstance(policy, baselines.ReactPolicy) and states is not None:
            policy.load_memory(states)
            chosen = policy.act(self._rows.read_sense(obs) > 0)
            policy.store_memory(states)
        else:
            chosen = policy.act(np.zeros((len(obs), len(HOSTS)), np.bool_))
        taken = self._env_actions[chosen]
        if taken.min() < 0:
            row = int(taken.argmin())
            raise ExpertError(
                row, f"chose {ACTIONS[chosen[row]]}, which is not among the environment's actions,"
            )
        return taken
