"""Base of algorithms that learn a policy's network: network, optimiser, actors, loading, saving."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

import numpy as np
import torch
from gymnasium.spaces import Space
from torch import Tensor, nn

from fastrl.algorithms.network_settings import NetworkConfig
from fastrl.algorithms.optimizer import Optimizer
from fastrl.algorithms.protocol import Algorithm, Problem
from fastrl.envs.rows import ObsRows
from fastrl.networks.acting_network import PolicyNet, network_in, network_type
from fastrl.networks.action_space import Actions
from fastrl.networks.actor_critic import ActorCritic
from fastrl.networks.compiled_actor import MAX_OBS_DIM, Actor, ActorSpec
from fastrl.networks.distributions import choices_of
from fastrl.networks.encoders import check_encoder
from fastrl.networks.kinds import LOG_STD_RANGE
from fastrl.networks.own_network import OwnPolicy, check_network
from fastrl.networks.parameters import (
    check_shards,
    draw_uniform,
    flatten_parameters,
    generator_of,
    load_weights,
    write_tensors,
)
from fastrl.networks.policy_network import EncodedPolicy
from fastrl.networks.torch_actor import TorchActor
from fastrl.utils.env_options import parse_options
from fastrl.utils.ranks import Shard
from fastrl.utils.seeding import stream

if TYPE_CHECKING:
    from fastrl.networks.wider import Widening

E = TypeVar("E")

_SEPARATE = (
    "is for policies and value functions that are separate perceptrons of vectors: set it to 0, or leave out images,"
    " memory, shared_trunk, layer_norm, dropout and a network of your own"
)


class PolicyLearner(Algorithm[E], Generic[E]):
    """Base of algorithms with one network, of a policy and a value function, and its optimiser.

    Args:
        config: settings of the network; those that `NetworkConfig` has only defaults of may be fields of a subclass.
        problem: spaces of any kind that has rows (see `fastrl.envs.rows`).

    Class attributes:
        actor_type: a `TorchActor` with another ``draw``, which acts wherever the policy does; None: the network's own
            actor.

    Attributes:
        policy: the network.
        actions: how the network's draws become actions of the environment.
        device: where the network lives.
    """

    actor_type: ClassVar[type[TorchActor] | None] = None
    device: torch.device
    config: NetworkConfig

    def __init__(
        self,
        config: NetworkConfig,
        problem: Problem,
    ) -> None:
        self.config = config
        self.obs_rows = problem.obs_rows
        self.actions = Actions(problem.action_space, config.squash_actions)
        self._choices = choices_of(self.actions)
        self.total_timesteps, self._problem = problem.total_timesteps, problem
        self.steps = 0
        self.device = torch.device(problem.device)
        self._seed, self.ranks = problem.seed, problem.ranks
        self.policy: PolicyNet = make_network(
            config,
            self.obs_rows,
            self.actions,
            normalize_obs=config.normalize_obs,
            actor_inputs=config.actor_inputs,
            generator=generator_of(np.random.SeedSequence(problem.seed).spawn(1)[0]),
        ).to(self.device)
        self.policy.eval()
        self._parameters = flatten_parameters(self.policy)
        if self.ranks.shards:
            check_shards(self.policy)
        self._optimizer = self._new_optimizer()
        # Images that are equal are so rare that to look for them does not pay.
        self._has_images = self.obs_rows.dtype == np.uint8
        # Passes in train() mode since the count of steps changed; and whether the last one drew random numbers.
        self._passes = 0
        self._has_drawn = False
        self._forward = (
            torch.compile(self.policy, dynamic=True)
            if config.compile and self.device.type == "cuda"
            else self.policy
        )

    def _new_optimizer(self) -> Optimizer:
        """An optimiser of all parameters that has taken no step."""
        return Optimizer(self._parameters, self.config.precision, eps=1e-5)

    def actor_spec(self) -> ActorSpec:
        if self.actor_type is None:
            return self.policy.actor_spec(self.actions)
        return functools.partial(self.actor_type, self.policy.maker(), self.actions.state())

    @classmethod
    def make_actor(cls, policy: Mapping[str, Any], obs_space: Space[Any], action_space: Space[Any]) -> Actor:
        if cls.actor_type is None:
            return super().make_actor(policy, obs_space, action_space)
        network, actions = network_in(policy, obs_space, action_space)
        return cls.actor_type(lambda: network, actions.state())

    @property
    def squash_actions(self) -> bool:
        return self.config.squash_actions

    @property
    def weights_nbytes(self) -> int:
        return 4 * sum(tensor.numel() for tensor in self._actor_tensors())

    def write_weights(self, out: Any) -> None:
        write_tensors(self._actor_tensors(), np.frombuffer(out, np.float32))

    def _actor_tensors(self) -> list[Tensor]:
        """Tensors that the actor reads, in order."""
        return (
            self.policy.actor_tensors()
            if self.actor_type is None
            else list(self.policy.state_dict().values())
        )

    @property
    def _may_draw(self) -> bool:
        """True if passes for gradients may draw random numbers, as dropout does."""
        return self.policy.has_noise

    def _train_pass(self, obs: Any) -> tuple[Tensor, Tensor]:
        """Outputs and values float [B, ...] at observations [B, obs_dim] or along sequences, for gradients. Dropout is
        on; what it draws follows from the seed and the steps done, so that a resumed run draws the same."""
        if not self._may_draw:
            return self._outputs_and_values(obs)
        self._passes += 1
        return self._noisy_pass(obs)

    def _noisy_pass(self, obs: Any) -> tuple[Tensor, Tensor]:
        """A pass in train() mode, with the dropout of the present count of passes."""
        is_cuda = self.device.type == "cuda"
        # Within it PyTorch's global generator is ours.
        with torch.random.fork_rng([self.device] if is_cuda else []):
            seed = int(stream(self._seed, self.steps, self._passes)) >> 1
            # That of all devices formats a stack trace, which takes longer than a small network.
            (torch.manual_seed if is_cuda else torch.default_generator.manual_seed)(seed)
            state = torch.cuda.get_rng_state if is_cuda else torch.random.get_rng_state
            before = state()
            self.policy.train()
            try:
                return self._outputs_and_values(obs)
            finally:
                self.policy.eval()
                self._has_drawn = not torch.equal(state(), before)

    def _pass_with(self, parameters: Tensor, obs: Any) -> tuple[Tensor, Tensor, Tensor | None]:
        """The last `_train_pass`, with the same dropout, of a policy with other parameters (as one vector): outputs and
        values, float32, and the logarithms of a Gaussian's deviations."""
        before, buffers = self._parameters.data.clone(), [each.clone() for each in self.policy.buffers()]
        self._parameters.data.copy_(parameters)
        try:
            # A compiled network draws the same for certain if it is compiled in the same way, for gradients.
            is_compiled = self._forward is not self.policy
            with torch.set_grad_enabled(is_compiled), self._optimizer.autocast():
                outputs, values = self._noisy_pass(obs)
            log_std = None if self.policy.log_std is None else self.policy.log_std.detach().clone()
            return outputs.detach().float(), values.detach().float(), log_std
        finally:
            self._parameters.data.copy_(before)
            # Statistics of batches.
            for buffer, kept in zip(self.policy.buffers(), buffers, strict=True):
                buffer.copy_(kept)

    def _outputs_and_values(self, obs: Any) -> tuple[Tensor, Tensor]:
        if isinstance(obs, Tensor):
            return self._forward(obs)
        outputs, values, _ = self.policy.sequences(*obs[:3])
        return outputs, values

    def _reduce(self, size: int, num_means: int, learn: Callable[[Shard], Tensor | None]) -> Tensor:
        """Adds up the gradient of a batch; see `Ranks.reduce`. Each shard draws dropout of its own."""
        gradient, before = self._parameters.grad, self._passes
        assert gradient is not None

        def learn_shard(shard: Shard) -> Tensor | None:
            self._passes = before + shard.number
            return learn(shard)

        found = self.ranks.reduce(gradient, size, num_means, learn_shard)
        if self.ranks.shards:
            self._passes = before + self.ranks.shards
        return found

    def _backpropagate(self, loss: Tensor, optimizer: Optimizer | None = None) -> None:
        """Adds the gradient of a loss to that of the parameters, for an optimiser (None: the policy's own)."""
        torch.autograd.backward((optimizer or self._optimizer).scale(loss))

    def descend(self, learning_rate: float, optimizer: Optimizer | None = None) -> Tensor:
        """Takes a step of an optimiser (None: the policy's own); returns the norm of the parameters' gradient before
        clipping."""
        grad_norm = (optimizer or self._optimizer).step(self.config.max_grad_norm, learning_rate)
        if self.policy.log_std is not None:
            self.policy.log_std.data.clamp_(*LOG_STD_RANGE)
        return grad_norm

    def _check_parameters(self) -> None:
        for name, parameter in self.policy.named_parameters():
            if not parameter.isfinite().all():
                raise FloatingPointError(
                    f"the network's {name} is not finite (NaN or infinity) after {self.steps} steps;"
                    " go back to a checkpoint, and lower the learning rate or check the rewards"
                )

    def networks(self) -> list[nn.Module]:
        return [self.policy]

    def policy_state(self) -> dict[str, Any]:
        """Weights, architecture (see `fastrl.networks.acting_network.saved_network`), action space, and the name of
        another actor than the network's own, which no file makes. Not a copy."""
        named = {} if self.actor_type is None else {"actor": self.actor_type.__qualname__}
        return {**self.policy.state(), "action_space": self.actions.state(), **named}

    def load_policy(self, state: Mapping[str, Any]) -> list[str]:
        """Statistics of observations are loaded, too."""
        wider = self._widening(state)
        load_weights(self.policy, wider.weights(state["policy"]["weights"], self.policy))
        return wider.remark()

    def _widening(self, state: Mapping[str, Any]) -> Widening:
        """The widening that turns the network of a state, which may have fewer inputs, into this one."""
        from fastrl.networks.wider import widening  # what runs that start from nothing do not need

        ours, theirs = self.actions.state(), state["actions"]
        if ours != theirs:
            raise ValueError(f"its actions are {theirs}, not {ours}")
        return widening(described(state["policy"]), described(self.policy.state()), self.obs_rows)

    @classmethod
    def check_state(cls, config: Any, state: Mapping[str, Any]) -> None:
        check_network(config, state["policy"])

    def state_dict(self) -> dict[str, Any]:
        return {
            "steps": self.steps,
            "actions": self.actions.state(),
            "policy": self.policy.state(),
            "optimizer": self._optimizer.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        architecture, saved = described(self.policy.state()), described(state["policy"])
        if saved != architecture:
            raise ValueError(f"the saved network is {saved}, this run's is {architecture}")
        load_weights(self.policy, state["policy"]["weights"])
        self._optimizer.load_state_dict(state["optimizer"])
        self.steps = state["steps"]


def described(policy: Mapping[str, Any]) -> dict[str, Any]:
    """The architecture of a saved policy, with the kind of its network if that is no perceptron."""
    kind = network_type(policy).kind
    return policy["architecture"] | ({} if kind == ActorCritic.kind else {"kind": kind})


def make_network(
    config: NetworkConfig,
    obs_rows: ObsRows,
    actions: Actions,
    *,
    normalize_obs: bool,
    actor_inputs: int = 0,
    generator: torch.Generator,
) -> PolicyNet:
    """The network that settings ask for: two perceptrons, which have a compiled actor, where they are all that is asked
    for.

    Args:
        obs_rows: the observations.
        actions: as the policy draws them.
        normalize_obs: whiten observations that are not images.
        actor_inputs: numbers of an observation that the policy sees, the first ones; 0: all.
        generator: where the initial weights come from.

    Raises:
        ValueError: settings that do not suit the observations, or a network of the user's that does not fit.
    """
    if config.memory != "none" and (config.network is not None or config.shared_trunk is False):
        other = "a network of your own" if config.network is not None else "shared_trunk false"
        raise ValueError(f"memory does not go with {other}: set memory to none, or leave that out")
    if config.network is not None:
        if actor_inputs:
            raise ValueError(f"actor_inputs {_SEPARATE}")
        return OwnPolicy(
            config.network,
            parse_options(config.network_options),
            obs_rows.state(),
            actions.state(),
            normalize_obs=normalize_obs,
            initial_log_std=config.initial_log_std,
            generator=generator,
        )
    if config.network_options:
        raise ValueError(
            "network_options are for a network of your own: set network to its module:Class, too"
        )
    has_images = obs_rows.dtype == np.uint8
    if config.encoder == "pointer":
        policy = _pointer_policy(
            config, obs_rows, actions, generator, plain=not (normalize_obs or actor_inputs)
        )
        if not config.orthogonal_init:
            draw_uniform(policy, generator)
        return policy
    check_encoder(config.encoder, has_images)
    remembers = config.memory != "none"
    shared = has_images or remembers if config.shared_trunk is None else config.shared_trunk
    plain = not (has_images or shared or config.layer_norm or config.dropout or config.encoder == "rows")
    if actor_inputs and not (plain and obs_rows.size <= MAX_OBS_DIM):
        raise ValueError(f"actor_inputs {_SEPARATE}")
    network: PolicyNet
    if plain and obs_rows.size <= MAX_OBS_DIM:
        network = ActorCritic(
            obs_rows.size,
            actions.size,
            config.hidden,
            config.activation,
            normalize_obs=normalize_obs,
            continuous=actions.is_box,
            initial_log_std=config.initial_log_std,
            actor_inputs=actor_inputs or None,
            generator=generator,
        )
    else:
        network = EncodedPolicy(
            obs_rows.state(),
            actions.size,
            encoder=config.encoder,
            hidden=config.hidden,
            activation=config.activation,
            shared_trunk=shared,
            layer_norm=config.layer_norm,
            dropout=config.dropout,
            normalize_obs=normalize_obs,
            memory=config.memory,
            memory_size=config.memory_size,
            continuous=actions.is_box,
            initial_log_std=config.initial_log_std,
            generator=generator,
        )
    if not config.orthogonal_init:
        draw_uniform(network, generator)
    return network


def _pointer_policy(
    config: NetworkConfig, obs_rows: ObsRows, actions: Actions, generator: torch.Generator, *, plain: bool
) -> PolicyNet:
    """The network of the encoder pointer.

    Args:
        plain: the settings beside ``config`` ask for nothing that it lacks.

    Raises:
        ValueError: it does not suit the environment or the other settings.
    """
    from fastrl.networks.pointer_policy import PointerPolicy  # what other networks do not need

    if actions.kind != "discrete":
        raise ValueError("the encoder pointer is for discrete actions: set encoder to auto")
    if not plain or config.layer_norm or config.dropout or config.memory != "none" or config.shared_trunk:
        raise ValueError(
            "the encoder pointer has neither normalize_obs, layer_norm, dropout, memory, shared_trunk nor actor_inputs:"
            " leave them out, or set encoder to rows or auto"
        )
    return PointerPolicy(
        obs_rows.state(),
        actions.size,
        hidden=config.hidden,
        activation=config.activation,
        generator=generator,
    )
