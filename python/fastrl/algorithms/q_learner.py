"""A network of action values that acts greedily but for a share of random actions: what DQN and PQN have in common."""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium
import numpy as np
import torch
from torch import nn

from fastrl.algorithms.protocol import Algorithm, Problem
from fastrl.algorithms.schedules import TimestepSchedule
from fastrl.envs.rows import ObsRows
from fastrl.networks.acting_network import network_type
from fastrl.networks.action_space import Actions
from fastrl.networks.compiled_actor import ActorSpec
from fastrl.networks.encoded_q import OwnQ
from fastrl.networks.epsilon_greedy import EpsilonGreedyActor
from fastrl.networks.own_network import check_own_network
from fastrl.networks.parameters import check_layers
from fastrl.networks.q_network import ActionValues
from fastrl.utils.env_options import parse_options


class QLearner(Algorithm[Any]):
    """Base of algorithms that learn values of discrete actions.

    Attributes:
        network: values of actions, in ``eval()`` mode.
    """

    network: ActionValues
    _actions: Actions

    def _discrete_actions(self, problem: Problem) -> Actions:
        """The actions of a problem.

        Raises:
            ValueError: they are not ``Discrete`` from 0 on.
        """
        space = problem.action_space
        if not isinstance(space, gymnasium.spaces.Discrete) or space.start != 0:
            raise ValueError(
                f"{self.name.upper()} needs a Discrete action space that starts at 0, got {space}"
            )
        return Actions(space)

    def actor_spec(self) -> ActorSpec:
        network = self.network
        return functools.partial(EpsilonGreedyActor, network.actor_spec(self._actions), network.num_actions)

    @property
    def weights_nbytes(self) -> int:
        return 4 + self.network.actor_nbytes

    def write_weights(self, out: Any) -> None:
        """Writes epsilon after ``steps`` and the network."""
        target = np.frombuffer(out, np.float32)
        self.network.actor_weights(target[1:])
        target[0] = self.exploration()(self.steps)

    @property
    def action_masks(self) -> bool:
        return bool(self.config.action_masks)

    def exploration(self) -> Callable[[int], float]:
        """The share of random actions by environment steps."""
        config = self.config
        return TimestepSchedule(config.epsilon, config.final_epsilon, config.epsilon_steps)

    def networks(self) -> list[nn.Module]:
        return [self.network]

    def policy_state(self) -> dict[str, Any]:
        """Weights, architecture and kind, see `fastrl.networks.acting_network.saved_network`, and the last
        ``epsilon``. Not a copy."""
        return {**self.network.state(), "epsilon": self.exploration()(self.steps)}


def check_network(config: Any, state: Mapping[str, Any]) -> None:
    """Refuses the saved state of a network that is not the one of the settings.

    Raises:
        ValueError
    """
    check_own_network(config.network, parse_options(config.network_options), state)
    if config.network is None:
        check_layers(state, hidden=config.hidden)
    network_type(state).check_size(state)


def own_network(config: Any, obs_rows: ObsRows, num_actions: int, generator: torch.Generator) -> OwnQ:
    """The network of the user's own that settings name.

    Raises:
        ValueError: it does not fit.
    """
    actions = {"kind": "discrete", "size": num_actions}
    options = parse_options(config.network_options)
    return OwnQ(config.network, options, obs_rows.state(), actions, generator=generator)
