"""An actor and a critic of one agent."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fastrl.envs.rows import ObsRows
from fastrl.networks.acting_network import ActingNetwork, PolicyNet
from fastrl.networks.distributions import log_std_parameter
from fastrl.networks.kinds import Activation
from fastrl.networks.normalization import RunningNorm
from fastrl.networks.perceptron import Linear, Perceptron


class ActorCritic(PolicyNet):
    """A policy and a value function: two separate multi-layer perceptrons.

    Discrete actions have a categorical distribution. Continuous ones have a Gaussian, its mean the policy's output and
    its deviation a parameter of its own, the same everywhere; `fastrl.networks.action_space.Actions` says what
    becomes of a draw.

    Weights are orthogonal with gain sqrt(2) in hidden layers, 0.01 in the policy's last layer and 1 in the
    value's; biases are zero (Huang et al., "The 37 Implementation Details of Proximal Policy Optimization",
    2022, detail 2).

    Args:
        obs_dim: length of an observation.
        num_actions: number of discrete actions, or of numbers in a continuous one.
        hidden: width of each hidden layer; empty for linear functions of the observation.
        activation: after each hidden layer. On CPUs ReLU is many times cheaper than tanh.
        normalize_obs: whiten observations by the running statistics in ``obs_norm``.
        continuous: whether actions are.
        initial_log_std: of the Gaussian, in units of half the range of an action.
        actor_inputs: the policy sees the first so many numbers of an observation, the value function all; None: both
            see all.
        generator: where the initial weights come from; None leaves them to torch's global generator.

    Attributes:
        log_std: Parameter [num_actions], or None for discrete actions; kept within `LOG_STD_RANGE` by the learner.
    """

    kind = "actor_critic"

    def __init__(
        self,
        obs_dim: int,
        num_actions: int,
        hidden: Sequence[int] = (64, 64),
        activation: Activation = "tanh",
        *,
        normalize_obs: bool = False,
        continuous: bool = False,
        initial_log_std: float = 0.0,
        actor_inputs: int | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        self.obs_dim = obs_dim
        self.actor_inputs = obs_dim if actor_inputs is None else actor_inputs
        if actor_inputs is not None and not 1 <= actor_inputs <= obs_dim:
            raise ValueError(f"actor_inputs should be from 1 to {obs_dim}, got {actor_inputs}")
        self.num_actions = num_actions
        self.obs_norm = RunningNorm(obs_dim) if normalize_obs else None
        self.actor = Perceptron(
            [self.actor_inputs, *hidden, num_actions], activation, "orthogonal", 0.01, generator
        )
        self.critic = Perceptron([obs_dim, *hidden, 1], activation, "orthogonal", 1.0, generator)
        self.log_std = log_std_parameter(num_actions, initial_log_std) if continuous else None

    def outputs(self, obs: Tensor) -> Tensor:
        """See `PolicyNet.outputs`; of observations the first `actor_inputs` numbers are enough."""
        return self.actor(self.normalized(obs[..., : self.actor_inputs]))

    def value(self, obs: Tensor) -> Tensor:
        return self.critic(self.normalized(obs)).squeeze(-1)

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        obs = self.normalized(obs)
        return self.actor(obs[..., : self.actor_inputs]), self.critic(obs).squeeze(-1)

    @torch.no_grad()
    def blind(self) -> "ActorCritic":
        """A copy of the policy for observations of `actor_inputs` numbers, with a value function of no use; the network
        itself if it sees all."""
        if self.actor_inputs == self.obs_dim:
            return self
        architecture = {**self._architecture, "obs_dim": self.actor_inputs, "actor_inputs": None}
        network = ActorCritic(**architecture, generator=torch.Generator())
        weights = self.state_dict()
        for name, tensor in network.state_dict().items():
            tensor.copy_(weights[name][..., : tensor.shape[-1]] if tensor.dim() else weights[name])
        return network

    def takes(self, obs_rows: ObsRows) -> bool:
        return obs_rows.dtype == np.float32 and obs_rows.size == self.obs_dim

    def for_observations(self, obs_rows: ObsRows) -> ActingNetwork:
        return self.blind() if obs_rows.size == self.actor_inputs else self

    def update_statistics(self, obs: Tensor) -> None:
        if self.obs_norm is not None:
            self.obs_norm.update(obs.to(self.obs_norm.mean.device))

    def normalized(self, obs: Tensor) -> Tensor:
        """Observations float [B, obs_dim], or their first numbers, as the perceptrons take them."""
        return obs if self.obs_norm is None else self.obs_norm(obs)

    def update_architecture(self) -> dict[str, Any]:
        return {
            "obs_dim": self.obs_dim,
            "hidden": self._architecture["hidden"],
            "activation": self._architecture["activation"],
            "actor_inputs": self.actor_inputs,
        }

    def actor_architecture(self) -> dict[str, Any]:
        return {
            "kind": "discrete" if self.log_std is None else "gaussian",
            "obs_dim": self.obs_dim,
            "outputs": self.num_actions,
            "hidden": self._architecture["hidden"],
            "activation": self._architecture["activation"],
            "obs_clip": None if self.obs_norm is None else self.obs_norm.clip,
        }

    def actor_tensors(self) -> list[Tensor]:
        tensors = [] if self.obs_norm is None else [self.obs_norm.mean, self.obs_norm.scale()]
        # The actor is given whole observations: zeros for what the policy does not see.
        unseen = self.obs_dim - self.actor_inputs
        for layer in self.actor:
            assert isinstance(layer, Linear)
            weight = layer.weight.t()
            tensors += [nn.functional.pad(weight, (0, 0, 0, unseen)) if unseen else weight, layer.bias]
            unseen = 0
        if self.log_std is not None:
            tensors.append(self.log_std)
        return tensors
