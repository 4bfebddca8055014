"""What learners of an actor and a critic have in common: network, optimiser, a rollout of fragments, saving."""

import contextlib
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import gymnasium
import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor, nn

from fastrl.algorithms.reward_scaling import ReturnScale
from fastrl.networks.action_space import Actions
from fastrl.networks.actor_critic import (
    LOG_STD_RANGE,
    Activation,
    ActorCritic,
    check_architecture,
    check_layers,
    check_moments,
    flatten_parameters,
    load_weights,
)
from fastrl.rollout.fragment import Fragment
from fastrl.rollout.layout import lay_out
from fastrl.rollout.rollout import Rollout
from fastrl.utils.config import section
from fastrl.utils.timer import Stopwatch

# Rows of the critic's forward passes over a whole rollout: large enough to be cheap a row, small enough for
# caches.
VALUE_CHUNK = 4096


@section
class ActorCriticConfig:
    """The hyper-parameters that all of them have. Schedules are linear in the environment steps done."""

    num_steps: Annotated[int, Field(ge=1, description="steps of each environment between updates")] = 100
    gamma: Annotated[float, Field(ge=0, le=1, description="discount of future rewards")] = 0.99
    value_coef: Annotated[float, Field(ge=0, description="weight of the value loss")] = 0.5
    learning_rate: Annotated[float, Field(ge=0, description="Adam's learning rate at the start")] = 1e-3
    final_learning_rate: Annotated[float, Field(ge=0, description="Adam's learning rate at the end")] = 0.0
    entropy_coef: Annotated[float, Field(ge=0, description="weight of the entropy bonus at the start")] = 0.01
    final_entropy_coef: Annotated[
        float, Field(ge=0, description="weight of the entropy bonus at the end")
    ] = 0.001
    max_grad_norm: Annotated[float, Field(gt=0, description="gradients are scaled down to this norm")] = 0.5
    normalize_advantages: Annotated[
        bool, Field(description="advantages of each rollout are brought to mean 0, deviation 1")
    ] = True
    normalize_obs: Annotated[bool, Field(description="observations are whitened by running statistics")] = (
        False
    )
    normalize_returns: Annotated[
        bool, Field(description="rewards are divided by the running deviation of the discounted return")
    ] = True
    reward_scale: Annotated[
        float, Field(gt=0, description="rewards are multiplied by this before they are learnt from")
    ] = 1.0
    hidden: Annotated[
        tuple[Annotated[int, Field(ge=1)], ...],
        Field(description="widths of the hidden layers of actor and critic, each of which has its own"),
    ] = (64, 64)
    activation: Annotated[
        Activation, Field(description="after each hidden layer; tanh is much slower on CPUs")
    ] = "relu"
    initial_log_std: Annotated[
        float,
        Field(
            ge=LOG_STD_RANGE[0],
            le=LOG_STD_RANGE[1],
            description="of continuous actions: logarithm of the deviation at first, in units of half their range",
        ),
    ] = 0.0


class ActorCriticLearner:
    """An actor and a critic that learn from rollouts.

    Args:
        config: hyper-parameters.
        obs_space: ``Box`` float32 of one dimension, of one environment.
        action_space: ``Discrete`` starting at 0, or float32 ``Box`` of one dimension, of one environment.
        num_envs: N, rows of environments.
        num_steps: of each between updates, in the first rollout.
        total_steps: environment steps of the whole training, over which schedules run; one update more or
            less is no error, and past the end the final values hold.
        seed: of the initial weights; not negative.
        device: where the network lives; "cpu" or "cuda". Rollouts stay in main memory.
        masks: keep action masks.
        precision: of the network's arithmetic on CUDA.
        compiled: ``torch.compile`` the network on CUDA.

    Attributes:
        policy: the network.
        actions: what it draws, and what environments get of that.
        rollout: what the next update learns from.
        steps: environment steps collected so far.
    """

    def __init__(
        self,
        config: ActorCriticConfig,
        obs_space: gymnasium.Space,
        action_space: gymnasium.Space,
        num_envs: int,
        *,
        num_steps: int,
        total_steps: int,
        seed: int,
        device: str = "cpu",
        masks: bool = False,
        precision: Literal["fp32", "bf16", "fp16"] = "fp32",
        compiled: bool = False,
    ) -> None:
        obs_dim = _obs_dim(obs_space)
        self.actions = Actions(action_space)
        if masks and self.actions.is_box:
            raise ValueError("action masks are for discrete actions: set action_masks to false")
        if total_steps < 1:
            raise ValueError(f"total_steps must be at least 1, got {total_steps}")
        self.total_steps = total_steps
        self.steps = 0
        self.device = torch.device(device)
        self._settings = config
        self.policy = ActorCritic(
            obs_dim,
            self.actions.size,
            config.hidden,
            config.activation,
            normalize_obs=config.normalize_obs,
            continuous=self.actions.is_box,
            initial_log_std=config.initial_log_std,
            generator=generator_of(np.random.SeedSequence(seed).spawn(1)[0]),
        ).to(self.device)
        self._parameters = flatten_parameters(self.policy)
        self._optimizer = torch.optim.Adam([self._parameters], eps=1e-5, fused=True)
        self._return_scale = ReturnScale(num_envs, config.gamma) if config.normalize_returns else None
        # What the next update multiplies rewards by.
        self._reward_scale = config.reward_scale
        self.rollout = Rollout(
            num_steps, num_envs, obs_dim, self.actions.size, masks=masks, continuous=self.actions.is_box
        )

        on_cuda = self.device.type == "cuda"
        self._amp_dtype = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}[precision]
        if not on_cuda:
            self._amp_dtype = None
        self._scaler = torch.amp.GradScaler(self.device.type, enabled=self._amp_dtype == torch.float16)
        self._forward = torch.compile(self.policy, dynamic=True) if compiled and on_cuda else self.policy
        _keep_freed_memory()

    def take_in(self, fragments: Sequence[Fragment], watch: Stopwatch) -> None:
        """Makes fragments, from any collector, what the next update learns from; they are copied.

        Raises:
            ValueError: they do not fit together, or not the network; see `lay_out`.
        """
        with watch("buffer"):
            self.rollout = lay_out(fragments, self.rollout)
        with watch("returns"):
            if self._return_scale is not None:
                self._reward_scale = self._settings.reward_scale * self._return_scale.take_in(fragments)
        self.steps += len(self.rollout)

    def _values(self, obs: NDArray[np.float32]) -> NDArray[np.float32]:
        """Values float32 [B] of observations [B, obs_dim]."""
        with torch.inference_mode(), self._autocast():
            chunks = torch.from_numpy(obs).split(VALUE_CHUNK)
            values = [self.policy.value(chunk.to(self.device)).float() for chunk in chunks]
            return torch.cat(values).cpu().numpy()

    def _flat(self, name: str) -> Tensor:
        """An array of the rollout as [T * N, ...]."""
        return self.rollout.tensors[name][: self.rollout.num_steps].flatten(0, 1)

    def _descend(self, outputs: Sequence[Tensor], gradients: Sequence[Tensor]) -> Tensor:
        """A step of the optimiser along what the gradients of some outputs are worth in the parameters; their norm
        before clipping."""
        self._optimizer.zero_grad(set_to_none=False)
        torch.autograd.backward(outputs, tuple(self._scaler.scale(gradients)))
        self._scaler.unscale_(self._optimizer)
        grad_norm = nn.utils.clip_grad_norm_(self._parameters, self._settings.max_grad_norm)
        self._scaler.step(self._optimizer)
        self._scaler.update()
        if self.policy.log_std is not None:
            self.policy.log_std.data.clamp_(*LOG_STD_RANGE)
        return grad_norm

    def _autocast(self) -> contextlib.AbstractContextManager[None]:
        if self._amp_dtype is None:
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, self._amp_dtype)

    def _scheduled(self, start: float, end: float) -> float:
        """Linear from the first rollout to ``total_steps``."""
        progress = min(max(self.steps - len(self.rollout), 0) / self.total_steps, 1.0)
        return start + (end - start) * progress

    def _check_parameters(self) -> None:
        for name, parameter in self.policy.named_parameters():
            if not parameter.isfinite().all():
                raise FloatingPointError(
                    f"the network's {name} is not finite (NaN or infinity) after {self.steps} steps;"
                    " go back to a checkpoint, and lower the learning rate or check the rewards"
                )

    def _check_outputs(self) -> None:
        """Of the networks that acted and of the critic, on the rollout."""
        if not (np.isfinite(self.rollout.log_probs).all() and np.isfinite(self.rollout.values).all()):
            self._check_parameters()
            raise FloatingPointError(
                "the policy gave NaN or infinity for observations of the environment; are those finite?"
            )

    def policy_state(self) -> dict[str, Any]:
        """What inference needs (see `ActorCritic.from_state`): weights and architecture. Not a copy."""
        return self.policy.state()

    def take_weights(self, state: Mapping[str, Any]) -> None:
        """Begins with the weights of a network that `policy_state` gave, statistics of observations included.

        Raises:
            ValueError: it is another one, or not finite.
        """
        # Older checkpoints do not say that their actions are discrete.
        saved = {"continuous": False} | state["architecture"]
        check_architecture(saved, self.policy.state()["architecture"])
        load_weights(self.policy, state["weights"])

    def state_dict(self) -> dict[str, Any]:
        """All that `load_state_dict` needs to go on.

        Nested dicts with string keys, of tensors and plain (JSON-able) values. Tensors of the network and
        optimiser are not copies: write them out before the next update. Call it after an update.
        """
        return {
            "steps": self.steps,
            "policy": self.policy.state(),
            "optimizer": dict(self._optimizer.state[self._parameters]),
            "scaler": self._scaler.state_dict(),
            "return_scale": None if self._return_scale is None else self._return_scale.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on where the other stood.

        Raises:
            ValueError: the state is of another network, number of environments or kind of normalisation, or
                is not finite.
        """
        architecture = self.policy.state()["architecture"]
        # Older checkpoints do not say that their actions are discrete.
        saved = {"continuous": False} | state["policy"]["architecture"]
        if saved != architecture:
            raise ValueError(f"the saved network is {saved}, this run's is {architecture}")
        if (state["return_scale"] is None) != (self._return_scale is None):
            raise ValueError("normalize_returns of the saved run and of this one differ")
        load_weights(self.policy, state["policy"]["weights"])
        check_moments(state["optimizer"], self._parameters)
        self._optimizer.state[self._parameters] = {
            key: value.to(self.device, copy=True) for key, value in state["optimizer"].items()
        }
        if self._scaler.is_enabled() and state["scaler"]:
            self._scaler.load_state_dict(state["scaler"])
        if self._return_scale is not None:
            self._return_scale.load_state_dict(state["return_scale"])
        self.steps = state["steps"]


def check_learner(state: Mapping[str, Any], hidden: Sequence[int]) -> None:
    """Compares what `ActorCriticLearner.state_dict` gave with settings, before memory is taken for what they claim.

    Raises:
        ValueError: its network has other hidden layers, or fewer weights than these.
    """
    check_layers(state["policy"], hidden=hidden)
    ActorCritic.check_size(state["policy"])


def _obs_dim(obs_space: gymnasium.Space) -> int:
    if (
        not isinstance(obs_space, gymnasium.spaces.Box)
        or len(obs_space.shape) != 1
        or obs_space.dtype != np.float32
    ):
        raise ValueError(f"the learner needs observations of a one-dimensional float32 Box, got {obs_space}")
    return obs_space.shape[0]


def _keep_freed_memory() -> None:
    """Stops glibc from returning each minibatch's memory to the system.

    It returns what is above twice the largest mapped block that it has seen freed, and minibatches are at
    that border: fetching the memory again would cost a quarter of an update. 32 MiB is the largest block that
    counts; nothing is written to it, so it costs nothing. Elsewhere this has no effect.
    """
    torch.empty(2**25 - 2**16, dtype=torch.uint8)


def generator_of(seed: np.random.SeedSequence) -> torch.Generator:
    return torch.Generator().manual_seed(int(seed.generate_state(1, np.uint64)[0]) >> 1)


def explained_variance(rollout: Rollout) -> float:
    """1: values are the returns; 0: they are no better than the mean return, or returns are constant."""
    variance = float(rollout.returns.var())
    return 0.0 if variance == 0 else 1 - float((rollout.returns - rollout.values[:-1]).var()) / variance
