"""Base of algorithms that learn an actor and a critic from rollouts: network, optimiser, loading, saving."""

import sys
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Annotated, Any, Literal

import gymnasium
import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from fastrl.algorithms import hyper_parameters as hp
from fastrl.algorithms.network_settings import NetworkConfig, make_network
from fastrl.algorithms.optimizer import Optimizer
from fastrl.algorithms.protocol import Algorithm, Problem
from fastrl.algorithms.reward_scaling import ReturnScale
from fastrl.algorithms.schedules import LinearSchedule
from fastrl.algorithms.sequence_passes import SequenceBatch, SequencePasses
from fastrl.envs.rows import ActionRows, ObsRows
from fastrl.networks.action_space import Actions
from fastrl.networks.actor_critic import ActorCritic
from fastrl.networks.compiled_actor import Actor, ActorSpec
from fastrl.networks.distributions import LOG_STD_RANGE, choices_of
from fastrl.networks.own_network import check_own_network
from fastrl.networks.parameters import (
    check_architecture,
    check_layers,
    flatten_parameters,
    generator_of,
    load_weights,
)
from fastrl.networks.torch_actor import (
    CHUNK,
    PolicyNet,
    actor_spec,
    loaded_actor,
    policy_from_state,
    policy_type,
)
from fastrl.rollout.fragment import Fragment
from fastrl.rollout.layout import lay_out
from fastrl.rollout.rollout import Rollout
from fastrl.utils.config import section
from fastrl.utils.env_options import parse_options
from fastrl.utils.seeding import stream
from fastrl.utils.timer import Stopwatch

# Rows of the critic's forward passes over a whole rollout: large enough to be cheap a row, small enough for
# caches.
VALUE_CHUNK = 4096


@section
class ActorCriticConfig(NetworkConfig):
    """Hyper-parameters of actor-critic algorithms. Schedules are linear in the environment steps done."""

    num_steps: hp.NumSteps = 100
    gamma: hp.Gamma = 0.99
    value_coef: Annotated[float, Field(ge=0, description="weight of the value loss")] = 0.5
    learning_rate: hp.LearningRate = 1e-3
    final_learning_rate: hp.FinalLearningRate = 0.0
    entropy_coef: hp.EntropyCoef = 0.01
    final_entropy_coef: hp.FinalEntropyCoef = 0.001
    max_grad_norm: Annotated[float, Field(gt=0, description="gradients are scaled down to this norm")] = 0.5
    normalize_advantages: Annotated[
        bool, Field(description="advantages of each rollout are brought to mean 0, deviation 1")
    ] = True
    normalize_obs: hp.NormalizeObs = False
    normalize_returns: hp.NormalizeReturns = True
    reward_scale: Annotated[
        float, Field(gt=0, description="rewards are multiplied by this before learning")
    ] = 1.0
    squash_actions: Annotated[
        bool,
        Field(
            description="continuous actions are brought within their bounds by tanh instead of being clipped to them"
        ),
    ] = False


class ActorCriticLearner(Algorithm[Sequence[Fragment]]):
    """Learns an actor and a critic from rollouts.

    Args:
        config: hyper-parameters.
        problem: spaces of any kind that has rows (see `fastrl.envs.rows`). Rollouts stay in main memory; of images
            minibatches alone become float32.
        precision: of the network's arithmetic on CUDA.
        compiled: ``torch.compile`` the network on CUDA.

    Attributes:
        policy: the network.
        actions: how the network's draws become actions of the environment.
        rollout: what the last update learned from.
    """

    learns_from = "rollouts"
    config: ActorCriticConfig

    def __init__(
        self,
        config: ActorCriticConfig,
        problem: Problem,
        *,
        precision: Literal["fp32", "bf16", "fp16"] = "fp32",
        compiled: bool = False,
    ) -> None:
        self.config = config
        if self.burn_in >= config.num_steps:
            raise ValueError(
                f"burn_in should be less than num_steps, {config.num_steps}, got {self.burn_in}: nothing would be left"
                " to learn from"
            )
        self.obs_rows = problem.obs_rows
        self.actions = Actions(problem.action_space, config.squash_actions)
        self._choices = choices_of(self.actions)
        if self.action_masks and self.actions.is_box:
            raise ValueError("action masks are for discrete actions: set action_masks to false")
        self.total_timesteps = problem.total_timesteps
        self.steps = 0
        self.device = torch.device(problem.device)
        self._seed = problem.seed
        self.policy: PolicyNet = make_network(
            config,
            self.obs_rows,
            self.actions,
            normalize_obs=config.normalize_obs,
            generator=generator_of(np.random.SeedSequence(problem.seed).spawn(1)[0]),
        ).to(self.device)
        self.policy.eval()
        self._parameters = flatten_parameters(self.policy)
        on_cuda = self.device.type == "cuda"
        self._optimizer = Optimizer(self._parameters, precision if on_cuda else "fp32", eps=1e-5)
        self._return_scale = ReturnScale(problem.num_envs, config.gamma) if config.normalize_returns else None
        # The next update multiplies rewards by it.
        self._reward_scale = config.reward_scale
        self.rollout = Rollout(
            config.num_steps,
            problem.num_envs,
            self.obs_rows.size,
            self.actions.size,
            masks=self.action_masks,
            continuous=self.actions.is_box,
            action_width=0 if self._choices is None else self._choices.num_parts,
            obs_dtype=self.obs_rows.dtype,
            state_size=0 if isinstance(self.policy, ActorCritic) else self.policy.state_size,
        )
        # Images that are equal are so rare that to look for them does not pay.
        self._has_images = self.obs_rows.dtype == np.uint8
        self._chunk = CHUNK if self._has_images else VALUE_CHUNK
        # Passes in train() mode since the last rollout was loaded.
        self._passes = 0
        self._metrics: Any = None

        self._forward = torch.compile(self.policy, dynamic=True) if compiled and on_cuda else self.policy
        # Of networks with a memory, which see the steps of episodes in their order.
        self._sequences: SequencePasses | None = None
        if not isinstance(self.policy, ActorCritic) and self.policy.state_size:
            chunk = self._chunk if self._has_images else sys.maxsize
            self._sequences = SequencePasses(
                self.policy, self._optimizer.autocast, self.device, self.burn_in, chunk
            )
        _keep_freed_memory()

    def actor_spec(self) -> ActorSpec:
        return actor_spec(self.policy, self.actions)

    @property
    def squash_actions(self) -> bool:
        return self.config.squash_actions

    @property
    def weights_nbytes(self) -> int:
        return self.policy.actor_nbytes

    def write_weights(self, out: Any) -> None:
        self.policy.actor_weights(np.frombuffer(out, np.float32))

    def update(self, experience: Sequence[Fragment], watch: Stopwatch) -> None:
        self.load_rollout(experience, watch)
        self._metrics = self.learn(watch)

    @abstractmethod
    def learn(self, watch: Stopwatch) -> Any:
        """Learns from `rollout`; returns a dataclass of numbers.

        Raises:
            FloatingPointError: the policy gave NaN or infinity, or parameters have become so.
        """

    def metrics(self) -> dict[str, float]:
        return {} if self._metrics is None else asdict(self._metrics)

    def load_rollout(self, fragments: Sequence[Fragment], watch: Stopwatch) -> None:
        """Copies fragments, from any collector, into `rollout`, from which the next update learns.

        Raises:
            ValueError: they do not fit together, or not the network; see `lay_out`.
        """
        with watch("buffer"):
            self.rollout = lay_out(fragments, self.rollout)
        with watch("returns"):
            if self._return_scale is not None:
                self._reward_scale = self.config.reward_scale * self._return_scale.update(fragments)
        self.steps += len(self.rollout)
        self._passes = 0

    def _values(self, obs: NDArray[Any]) -> NDArray[np.float32]:
        """Values float32 [B] of observations [B, obs_dim]."""
        return self._in_chunks(self.policy.value, obs).numpy() if len(obs) else np.zeros(0, np.float32)

    def _in_chunks(self, network: Callable[[Tensor], Tensor], obs: NDArray[Any]) -> Tensor:
        """Outputs float32 [B, ...] of a network at observations [B, obs_dim]."""
        with torch.inference_mode(), self._optimizer.autocast():
            chunks = torch.from_numpy(obs).split(self._chunk)
            return torch.cat([network(chunk.to(self.device)).float() for chunk in chunks]).cpu()

    @property
    def burn_in(self) -> int:
        """Steps at the start of fragments that bring a network's memory up to date, and are not learned from."""
        return 0

    def _train_pass(self, obs: Tensor | SequenceBatch) -> tuple[Tensor, Tensor]:
        """Outputs and values float [B, ...] at observations [B, obs_dim] or along sequences, for gradients. Dropout is
        on; what it draws follows from the seed and the steps done, so that a resumed run draws the same."""
        if isinstance(self.policy, ActorCritic) or not self.policy.has_noise:
            return self._outputs_and_values(obs)
        self._passes += 1
        # Within it PyTorch's global generator is ours.
        with torch.random.fork_rng([self.device] if self.device.type == "cuda" else []):
            torch.manual_seed(int(stream(self._seed, self.steps, self._passes)) >> 1)
            self.policy.train()
            try:
                return self._outputs_and_values(obs)
            finally:
                self.policy.eval()

    def _outputs_and_values(self, obs: Tensor | SequenceBatch) -> tuple[Tensor, Tensor]:
        if isinstance(obs, Tensor):
            return self._forward(obs)
        assert not isinstance(self.policy, ActorCritic)
        outputs, values, _ = self.policy.sequences(*obs[:3])
        return outputs, values

    def _descend(
        self, outputs: Sequence[Tensor], gradients: Sequence[Tensor], learning_rate: float
    ) -> Tensor:
        """Takes a step of the optimiser along the gradients of some outputs; returns the norm of the parameters'
        gradient before clipping."""
        torch.autograd.backward(outputs, self._optimizer.scale(tuple(gradients)))
        grad_norm = self._optimizer.step(self.config.max_grad_norm, learning_rate)
        if self.policy.log_std is not None:
            self.policy.log_std.data.clamp_(*LOG_STD_RANGE)
        return grad_norm

    def _scheduled(self, start: float, end: float) -> float:
        """Linear from the first rollout to ``total_timesteps``."""
        return LinearSchedule(start, end, self.total_timesteps)(max(self.steps - len(self.rollout), 0))

    def _check_parameters(self) -> None:
        for name, parameter in self.policy.named_parameters():
            if not parameter.isfinite().all():
                raise FloatingPointError(
                    f"the network's {name} is not finite (NaN or infinity) after {self.steps} steps;"
                    " go back to a checkpoint, and lower the learning rate or check the rewards"
                )

    def _check_outputs(self) -> None:
        """Refuses log-probabilities and values of the rollout that are not finite."""
        if not (np.isfinite(self.rollout.log_probs).all() and np.isfinite(self.rollout.values).all()):
            self._check_parameters()
            raise FloatingPointError(
                "the policy gave NaN or infinity for observations of the environment; are those finite?"
            )

    def policy_state(self) -> dict[str, Any]:
        """Weights, architecture (see `fastrl.networks.torch_actor.policy_from_state`) and action space. Not a copy."""
        return {**self.policy.state(), "action_space": self.actions.state()}

    @classmethod
    def make_actor(
        cls,
        policy: Mapping[str, Any],
        obs_space: gymnasium.Space[Any],
        action_space: gymnasium.Space[Any],
    ) -> Actor:
        network, own = policy_from_state(policy), policy["action_space"]
        obs_rows = ObsRows(obs_space)
        actions = Actions(ActionRows(action_space).flat_space, bool(own.get("squash")))
        if isinstance(network, ActorCritic):
            fits = obs_rows.dtype == np.float32 and obs_rows.size == network.obs_dim
        else:
            fits = obs_rows.state() == network.obs_rows.state()
        if not fits or own != actions.state() or network.num_actions != actions.size:
            takes = network.obs_dim if isinstance(network, ActorCritic) else network.obs_rows.size
            raise ValueError(
                f"the policy takes {takes} numbers for {own}, the environment has {obs_rows.size} for {actions.state()}"
            )
        return loaded_actor(network, actions)

    def load_policy(self, state: Mapping[str, Any]) -> list[str]:
        """Statistics of observations are loaded, too."""
        ours, theirs = self.actions.state(), state["actions"]
        if ours != theirs:
            raise ValueError(f"its actions are {theirs}, not {ours}")
        check_architecture(_described(state["policy"]), _described(self.policy.state()))
        load_weights(self.policy, state["policy"]["weights"])
        return []

    @classmethod
    def check_state(cls, config: Any, state: Mapping[str, Any]) -> None:
        policy = state["policy"]
        check_own_network(config.network, parse_options(config.network_options), policy)
        if config.network is None:
            check_layers(policy, hidden=config.hidden)
        policy_type(policy).check_size(policy)

    def state_dict(self) -> dict[str, Any]:
        return {
            "steps": self.steps,
            "actions": self.actions.state(),
            "policy": self.policy.state(),
            "optimizer": self._optimizer.state_dict(),
            "return_scale": None if self._return_scale is None else self._return_scale.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        architecture, saved = _described(self.policy.state()), _described(state["policy"])
        if saved != architecture:
            raise ValueError(f"the saved network is {saved}, this run's is {architecture}")
        if (state["return_scale"] is None) != (self._return_scale is None):
            raise ValueError("normalize_returns of the saved run and of this one differ")
        load_weights(self.policy, state["policy"]["weights"])
        self._optimizer.load_state_dict(state["optimizer"])
        if self._return_scale is not None:
            self._return_scale.load_state_dict(state["return_scale"])
        self.steps = state["steps"]


def _described(policy: Mapping[str, Any]) -> dict[str, Any]:
    """The architecture of a saved policy, with its kind if it has one."""
    return policy["architecture"] | ({"kind": policy["kind"]} if "kind" in policy else {})


def _keep_freed_memory() -> None:
    """Stops glibc from returning each minibatch's memory to the system.

    It returns what is above twice the largest mapped block that it has seen freed, and minibatches are at
    that border: fetching the memory again would cost a quarter of an update. 32 MiB is the largest block that
    counts; nothing is written to it, so it costs nothing. Elsewhere this has no effect.
    """
    torch.empty(2**25 - 2**16, dtype=torch.uint8)
