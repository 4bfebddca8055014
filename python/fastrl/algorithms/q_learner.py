"""A network of action values that acts greedily but for a share of random actions: what DQN and PQN have in common."""

import functools
from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, Literal

import gymnasium
import numpy as np
import torch
from torch import nn

from fastrl.algorithms.optimizer import Optimizer, keep_freed_memory
from fastrl.algorithms.protocol import Algorithm, Problem
from fastrl.algorithms.schedules import TimestepSchedule, first_value
from fastrl.networks.action_space import Actions
from fastrl.networks.compiled_actor import ActorSpec
from fastrl.networks.encoded_q import OwnQ
from fastrl.networks.epsilon_greedy import EpsilonGreedyActor
from fastrl.networks.own_network import check_network
from fastrl.networks.parameters import check_shards, flatten_parameters, generator_of, load_weights
from fastrl.networks.q_network import ActionValues
from fastrl.networks.wider import widening
from fastrl.utils.env_options import parse_options


class QLearner(Algorithm[Any]):
    """Base of algorithms that learn values of discrete actions.

    Args:
        config: hyper-parameters.
        problem: observations of any kind that has rows (see `fastrl.envs.rows`). Its actions are ``Discrete`` from 0
            on.
        precision: of the network's arithmetic when learning.

    Attributes:
        network: values of actions, in ``eval()`` mode.
        parameters: of the network, as one vector.
        updates: gradient steps so far.
    """

    network: ActionValues
    device: torch.device

    def __init__(
        self,
        config: Any,
        problem: Problem,
        *,
        precision: Literal["auto", "fp32", "bf16", "fp16"] = "fp32",
    ) -> None:
        self.config, self.ranks = config, problem.ranks
        self.steps = self.updates = 0
        self.device = torch.device(problem.device)
        self._obs_rows, self._actions = problem.obs_rows, self._discrete_actions(problem)
        [seed] = np.random.SeedSequence(problem.seed).spawn(1)
        make = self._make_network if config.network is None else self._own_network
        self.network = make(generator_of(seed)).to(self.device).eval()
        self.parameters = flatten_parameters(self.network)
        if self.ranks.shards:
            check_shards(self.network)
        self._optimizer = Optimizer(
            self.parameters,
            precision,
            eps=config.adam_eps,
            learning_rate=first_value(config.learning_rate),
        )
        self._learning_rate = problem.schedule(config.learning_rate, config.final_learning_rate)
        keep_freed_memory()

    @abstractmethod
    def _make_network(self, generator: torch.Generator) -> ActionValues:
        """The network that settings ask for, which name none of the user's own.

        Raises:
            ValueError: settings that do not suit the observations.
        """

    def _own_network(self, generator: torch.Generator) -> OwnQ:
        """The network of the user's own that settings name.

        Raises:
            ValueError: it does not fit.
        """
        options = parse_options(self.config.network_options)
        obs, actions = self._obs_rows.state(), self._actions.state()
        return OwnQ(self.config.network, options, obs, actions, generator=generator)

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

    @classmethod
    @abstractmethod
    def _network_in(cls, state: Mapping[str, Any]) -> Mapping[str, Any]:
        """The network's state in what `state_dict` gave."""

    @classmethod
    def check_state(cls, config: Any, state: Mapping[str, Any]) -> None:
        check_network(config, cls._network_in(state))

    def load_policy(self, state: Mapping[str, Any]) -> list[str]:
        network, saved = self.network, self._network_in(state)
        wider = widening(saved["architecture"], network.state()["architecture"], self._obs_rows)
        load_weights(network, wider.weights(saved["weights"], network))
        return wider.remark()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        saved, architecture = self._network_in(state), self.network.state()["architecture"]
        if saved["architecture"] != architecture:
            raise ValueError(f"the saved network is {saved['architecture']}, this run's is {architecture}")
        load_weights(self.network, saved["weights"])
        self._optimizer.load_state_dict(state["optimizer"])
        self.steps, self.updates = state["steps"], state["updates"]
