"""Scripted defenders of CAGE 2 as experts, which run in worker processes.

This module loads no torch.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Space
from numpy.typing import NDArray

from fastrl.collectors.expert import ExpertError, ExpertSpec, RandomExpert
from fastrl.envs.cage2 import baselines
from fastrl.envs.cage2.env import Cage2Env
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
    network = game.vector.network
    sense = Alerts(size=len(network.hosts)) if name.startswith("react") else None
    make = functools.partial(
        baselines.make_baseline, name, actions=network.actions, start=network.native.start
    )
    try:
        make(1)
    except ValueError as error:
        raise ConfigError(f"--expert {expert}: {error}") from None
    expert_of = functools.partial(DefenderExpert, make, game.agent_view.actions, network.actions)
    return ExpertSpec(expert, expert_of, facts, sense=sense, batched=True)


@dataclass(frozen=True)
class Alerts:
    """The alerts of CAGE 2, see `fastrl.envs.cage2.env.Cage2VectorEnv.alerts`."""

    size: int
    name: str = "alerts"

    def read(self, env: gymnasium.Env[Any, Any]) -> NDArray[Any]:
        alerts: NDArray[Any] = env.get_wrapper_attr("alerts")()
        return alerts

    def read_vector(self, env: Any) -> NDArray[Any]:
        alerts: NDArray[Any] = env.alerts()
        return alerts


class DefenderExpert:
    """A scripted defender of CAGE 2; its queue of hosts is its state.

    Args:
        make: makes the defender of so many games.
        actions: of the environment for each of the network's, see `AgentView`.
        names: of the network's actions.
    """

    def __init__(
        self,
        make: Callable[[int], baselines.BluePolicy],
        actions: tuple[int, ...],
        names: tuple[str, ...],
        rows: ExactRows,
        action_space: Space[Any],
    ) -> None:
        self._make, self._rows, self._names = make, rows, names
        self._env_actions = np.array(actions)
        self.state_size = make(1).state_size
        self._policy: baselines.BluePolicy | None = None
        self._count = -1

    def act(self, rows: Rows) -> NDArray[Any]:
        obs, states = rows.obs, rows.states
        if self._policy is None or self._count != len(obs):
            self._policy, self._count = self._make(len(obs)), len(obs)
        policy = self._policy
        if isinstance(policy, baselines.ReactPolicy) and states is not None:
            policy.load_memory(states)
            chosen = policy.act(self._rows.read_sense(obs) > 0)
            policy.store_memory(states)
        else:
            chosen = policy.act(np.zeros((len(obs), 0), np.bool_))
        taken = self._env_actions[chosen]
        if taken.min() < 0:
            row = int(taken.argmin())
            raise ExpertError(
                row, f"chose {self._names[chosen[row]]}, which is not among the environment's actions,"
            )
        return taken
