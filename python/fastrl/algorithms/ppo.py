"""Proximal policy optimisation with a clipped objective (Schulman et al., 2017, arXiv:1707.06347)."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import gymnasium
import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor, nn

from fastrl.algorithms.return_scale import ReturnScale
from fastrl.collect.native import CollectStats, NativeCollector
from fastrl.config import section
from fastrl.networks import (
    ActorCritic,
    flatten_parameters,
    load_weights,
    mask_logits,
    sample_actions,
)
from fastrl.rollout import Rollout
from fastrl.stopwatch import Stopwatch

if TYPE_CHECKING:
    from fastrl.envs.vector import NativeVectorEnv

# Rows of the critic's forward passes over a whole rollout: large enough to be cheap a row, small enough for
# caches.
_VALUE_CHUNK = 4096


@section
class PPOConfig:
    """Hyper-parameters of PPO. Schedules are linear in the environment steps done."""

    num_steps: Annotated[int, Field(ge=1, description="steps of each environment between updates")] = 100
    num_epochs: Annotated[int, Field(ge=1, description="passes over the rollout in an update")] = 4
    minibatch_size: Annotated[
        int,
        Field(
            ge=1, description="at most this many samples in a gradient step; minibatches are of equal size"
        ),
    ] = 4096
    gamma: Annotated[float, Field(ge=0, le=1, description="discount of future rewards")] = 0.99
    gae_lambda: Annotated[
        float,
        Field(ge=0, le=1, description="advantage estimation: 0 trusts the value function, 1 the rewards"),
    ] = 0.95
    clip_range: Annotated[
        float, Field(gt=0, description="how far the probability ratio may move before the gradient stops")
    ] = 0.2
    value_clip: Annotated[
        float | None, Field(gt=0, description="the same for value predictions, in units of return; none: off")
    ] = None
    value_coef: Annotated[float, Field(ge=0, description="weight of the value loss")] = 0.5
    learning_rate: Annotated[float, Field(ge=0, description="Adam's learning rate at the start")] = 1e-3
    final_learning_rate: Annotated[float, Field(ge=0, description="Adam's learning rate at the end")] = 0.0
    entropy_coef: Annotated[float, Field(ge=0, description="weight of the entropy bonus at the start")] = 0.01
    final_entropy_coef: Annotated[
        float, Field(ge=0, description="weight of the entropy bonus at the end")
    ] = 0.001
    max_grad_norm: Annotated[float, Field(gt=0, description="gradients are scaled down to this norm")] = 0.5
    target_kl: Annotated[
        float | None,
        Field(gt=0, description="an update stops once the policy has moved this far; none: never"),
    ] = None
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
        Literal["tanh", "relu"], Field(description="after each hidden layer; tanh is much slower on CPUs")
    ] = "relu"
    action_masks: Annotated[
        bool, Field(description="never take actions that the environment says cannot have an effect")
    ] = False
    precision: Annotated[
        Literal["fp32", "bf16", "fp16"],
        Field(description="of the network's arithmetic on CUDA (mixed precision); CPUs always use fp32"),
    ] = "fp32"
    compile: Annotated[bool, Field(description="torch.compile the network on CUDA; CPUs never do")] = False


@dataclass(frozen=True)
class PPOMetrics:
    """What one update did: means over its gradient steps, unless noted.

    Attributes:
        policy_loss: clipped surrogate, negated.
        value_loss: half the mean squared error.
        entropy: of the policy, in nats.
        approx_kl: KL(old, new), Schulman's estimator ``ratio - 1 - log(ratio)``.
        clip_fraction: share of samples whose ratio was outside the clip range.
        grad_norm: before clipping.
        explained_variance: 1 - var(returns - values) / var(returns) over the rollout, before the update.
        learning_rate, entropy_coef: in force.
        gradient_steps: number of them.
    """

    policy_loss: float
    value_loss: float
    entropy: float
    approx_kl: float
    clip_fraction: float
    grad_norm: float
    explained_variance: float
    learning_rate: float
    entropy_coef: float
    gradient_steps: int


class Minibatch(NamedTuple):
    """B samples to learn from. Those of equal observation and mask share a row of the D different ones.

    What the network does with a row is then done once for all its samples. Environments with discrete
    observations repeat them a lot: a trained defender of CAGE 2 sees the same observation fifty times a
        rollout.
    """

    obs: Tensor  # float32 [D, obs_dim], the different observations
    rows: Tensor  # int64 [B], which of them each sample has
    actions: Tensor  # int64 [B]
    log_probs: Tensor  # float32 [B], when the actions were chosen
    advantages: Tensor  # float32 [B]
    returns: Tensor  # float32 [B]
    values: Tensor  # float32 [B], when the actions were chosen
    masks: Tensor | None = None  # bool [D, num_actions], True = allowed


class Losses(NamedTuple):
    """Scalars (0-dimensional tensors) of one minibatch, as in `PPOMetrics`."""

    policy_loss: Tensor
    value_loss: Tensor
    entropy: Tensor
    approx_kl: Tensor
    clip_fraction: Tensor


def policy_gradient(
    logits: Tensor, batch: Minibatch, *, clip_range: float, entropy_coef: float
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradient of ``policy_loss - entropy_coef * entropy`` with respect to the logits, in closed form.

    With p = softmax(logits), H its entropy, a the action, A its advantage and r = p[a] / p_old[a], a sample
    gives (losses are means over samples)::

        d(-min(r A, clip(r) A)) / d logits[j] = -A r ([j = a] - p[j])   where the minimum is r A, else 0
        d(-H) / d logits[j]                   = p[j] (log p[j] + H)

    and the gradient of a row is the sum over its samples. That takes far fewer passes over [D, num_actions]
    than automatic differentiation.

    Args:
        logits: float32 [D, num_actions], before masking.

    Returns:
        The gradient, float32 [D, num_actions], then policy_loss, entropy, approx_kl, clip_fraction.
    """
    num_rows, num_actions = logits.shape
    size = len(batch.actions)
    all_log_probs = torch.log_softmax(mask_logits(logits, batch.masks), -1)
    probs = all_log_probs.exp()
    entropies = -torch.linalg.vecdot(probs, all_log_probs)
    chosen = batch.rows * num_actions + batch.actions
    log_ratio = all_log_probs.take(chosen) - batch.log_probs
    ratio = log_ratio.exp()
    unclipped = ratio * batch.advantages
    clipped = ratio.clamp(1 - clip_range, 1 + clip_range) * batch.advantages
    pull = torch.where(unclipped <= clipped, unclipped, 0.0) / size

    # What each row's samples weigh in the entropy, and how they pull at it together.
    bonus = torch.bincount(batch.rows, minlength=num_rows) * (entropy_coef / size)
    pulls = torch.zeros_like(entropies).index_add_(0, batch.rows, pull)
    gradient = (all_log_probs * bonus.unsqueeze(1)).add_((pulls + bonus * entropies).unsqueeze(1)).mul_(probs)
    gradient.view(-1).index_add_(0, chosen, -pull)
    return (
        gradient,
        -torch.minimum(unclipped, clipped).mean(),
        entropies.take(batch.rows).mean(),
        (ratio - 1 - log_ratio).mean(),
        ((ratio - 1).abs() > clip_range).float().mean(),
    )


def value_gradient(values: Tensor, batch: Minibatch, *, value_clip: float | None) -> tuple[Tensor, Tensor]:
    """Gradient of the value loss (half a mean square) in the predictions, float32 [D], and that loss.

    With ``value_clip`` the loss of a sample is the larger of that of the prediction and that of the
    prediction moved no further than ``value_clip`` from the old one.
    """
    predictions = values.take(batch.rows)
    error = predictions - batch.returns
    gradient = error
    if value_clip is not None:
        moved = predictions - batch.values
        clipped_error = batch.values + moved.clamp(-value_clip, value_clip) - batch.returns
        # Beyond the clip the clipped loss does not depend on the prediction; within it the two differ by
        # rounding alone.
        larger = (moved.abs() > value_clip) & (clipped_error.square() > error.square())
        gradient = torch.where(larger, 0.0, error)
        error = torch.where(larger, clipped_error, error)
    summed = torch.zeros_like(values).index_add_(0, batch.rows, gradient / len(gradient))
    return summed, error.square().mean() / 2


def ppo_gradients(
    logits: Tensor,
    values: Tensor,
    batch: Minibatch,
    *,
    clip_range: float,
    value_clip: float | None,
    value_coef: float,
    entropy_coef: float,
) -> tuple[Tensor, Tensor, Losses]:
    """Gradients of ``policy_loss + value_coef * value_loss - entropy_coef * entropy``, and the losses.

    Returns:
        The gradients with respect to logits float32 [D, num_actions] and values float32 [D], and the losses.
    """
    grad_logits, policy_loss, entropy, approx_kl, clip_fraction = policy_gradient(
        logits, batch, clip_range=clip_range, entropy_coef=entropy_coef
    )
    grad_values, value_loss = value_gradient(values, batch, value_clip=value_clip)
    losses = Losses(policy_loss, value_loss, entropy, approx_kl, clip_fraction)
    return grad_logits, grad_values * value_coef, losses


class PPO:
    """A policy that learns from a vector environment.

    ::

        ppo = PPO(PPOConfig(), env.single_observation_space, env.single_action_space, env.num_envs,
                  total_steps=1_000_000, seed=0)
        watch = Stopwatch()
        while ppo.steps < ppo.total_steps:
            stats = ppo.collect(env, watch)
            metrics = ppo.update(watch)

    Everything random comes from ``seed``: the initial weights, the actions, the order of samples and the
    seeds of the environments. On a CPU, for a given number of torch threads, the same seed gives the same
    parameters to the bit, also across `state_dict` and `load_state_dict`.

    Args:
        config: hyper-parameters.
        obs_space: ``Box`` float32 of one dimension, of one environment.
        action_space: ``Discrete`` starting at 0, of one environment.
        num_envs: N.
        total_steps: environment steps of the whole training, over which schedules run; one update more or
            less is no error, and past the end the final values hold.
        seed: not negative.
        device: where the network lives; "cpu" or "cuda". Rollouts stay in main memory.

    Attributes:
        policy: the network.
        rollout: what `collect` fills.
        steps: environment steps collected so far.
    """

    def __init__(
        self,
        config: PPOConfig,
        obs_space: gymnasium.Space,
        action_space: gymnasium.Space,
        num_envs: int,
        *,
        total_steps: int,
        seed: int,
        device: str = "cpu",
    ) -> None:
        obs_dim, num_actions = _sizes(obs_space, action_space)
        if total_steps < 1:
            raise ValueError(f"total_steps must be at least 1, got {total_steps}")
        self.config = config
        self.total_steps = total_steps
        self.steps = 0
        self.device = torch.device(device)
        weights_seed, sampling_seed, shuffling_seed, env_seed = np.random.SeedSequence(seed).spawn(4)
        # All draws are made on the CPU: they are few, and a run may go on on another device.
        self._sampling = _generator(sampling_seed)
        self._shuffling = _generator(shuffling_seed)
        self._env_seeds = [int(word) >> 1 for word in env_seed.generate_state(num_envs, np.uint64)]
        self.policy = ActorCritic(
            obs_dim,
            num_actions,
            config.hidden,
            config.activation,
            normalize_obs=config.normalize_obs,
            generator=_generator(weights_seed),
        ).to(self.device)
        self._parameters = flatten_parameters(self.policy)
        self._optimizer = torch.optim.Adam([self._parameters], eps=1e-5, fused=True)
        self._return_scale = ReturnScale(num_envs, config.gamma) if config.normalize_returns else None
        self.rollout = Rollout(config.num_steps, num_envs, obs_dim, num_actions, masks=config.action_masks)
        self._collector: NativeCollector | None = None
        self._collector_state: dict[str, Any] = {}

        on_cuda = self.device.type == "cuda"
        self._amp_dtype = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}[config.precision]
        if not on_cuda:
            self._amp_dtype = None
        self._scaler = torch.amp.GradScaler(self.device.type, enabled=self._amp_dtype == torch.float16)
        compiled = config.compile and on_cuda
        self._forward = torch.compile(self.policy, dynamic=True) if compiled else self.policy
        self._uniforms = torch.empty(0)
        _keep_freed_memory()

    def collect(self, env: "NativeVectorEnv", watch: Stopwatch) -> CollectStats:
        """Fills the rollout, acting with the current policy; the first time, after a reset of ``env``.

        Raises:
            ValueError: ``env`` is of the wrong kind or size, or another one than before.
            FloatingPointError: the policy gave NaN or infinity.
        """
        if self._collector is None:
            self._collector = NativeCollector(env, self.rollout, self._act, self._env_seeds)
            self._collector.load_state_dict(self._collector_state)
        elif self._collector.env is not env:
            raise ValueError("collect() was given another environment than before; make a new PPO for it")
        with watch("inference"):
            shape = (self.config.num_steps, self.rollout.num_envs, 1)
            self._uniforms = torch.rand(shape, generator=self._sampling).to(self.device)
        stats = self._collector.collect(watch)
        with watch("inference"):
            self._evaluate()
        self.steps += stats.steps
        return stats

    def update(self, watch: Stopwatch) -> PPOMetrics:
        """Learns from the rollout that `collect` has filled.

        Raises:
            FloatingPointError: parameters have become NaN or infinite; they are of no use any more.
        """
        config = self.config
        learning_rate = self._scheduled(config.learning_rate, config.final_learning_rate)
        entropy_coef = self._scheduled(config.entropy_coef, config.final_entropy_coef)
        with watch("returns"):
            reward_scale = config.reward_scale
            if self._return_scale is not None:
                reward_scale *= self._return_scale.update(self.rollout)
            self.rollout.compute_advantages(config.gamma, config.gae_lambda, reward_scale)
            explained_variance = _explained_variance(self.rollout)
            if config.normalize_advantages:
                advantages = self.rollout.advantages
                advantages -= advantages.mean()
                advantages /= advantages.std() + 1e-8
        with watch("update"):
            self._optimizer.param_groups[0]["lr"] = learning_rate
            rows = []
            for batch in self._minibatches():
                losses, grad_norm = self._gradient_step(batch, entropy_coef)
                rows.append(torch.stack([*losses, grad_norm]))
                if config.target_kl is not None and losses.approx_kl > config.target_kl:
                    break
            if self.policy.obs_norm is not None:
                self.policy.obs_norm.update(self._flat("obs"))
            means = torch.stack(rows).mean(0).tolist()
            policy_loss, value_loss, entropy, approx_kl, clip_fraction, grad_norm = means
            self._check_parameters()
        return PPOMetrics(
            policy_loss=policy_loss,
            value_loss=value_loss,
            entropy=entropy,
            approx_kl=approx_kl,
            clip_fraction=clip_fraction,
            grad_norm=grad_norm,
            explained_variance=explained_variance,
            learning_rate=learning_rate,
            entropy_coef=entropy_coef,
            gradient_steps=len(rows),
        )

    def _act(self, rollout: Rollout, t: int) -> None:
        with torch.inference_mode(), self._autocast():
            logits = self.policy.logits(rollout.tensors["obs"][t].to(self.device)).float()
            if rollout.masks is not None:
                logits = mask_logits(logits, rollout.tensors["masks"][t].to(self.device))
            actions, log_probs = sample_actions(logits, self._uniforms[t])
            rollout.tensors["actions"][t] = actions
            rollout.tensors["log_probs"][t] = log_probs

    def _evaluate(self) -> None:
        """Values of all observations of the rollout, and of the last ones of episodes that were cut off."""
        rollout = self.rollout
        rollout.find_groups()
        rollout.values[:] = self._values(rollout.distinct("obs"))[rollout.groups]
        cut_off = rollout.cut_off()
        rollout.final_values[cut_off] = self._values(rollout.final_obs[cut_off])
        if not (np.isfinite(rollout.log_probs).all() and np.isfinite(rollout.values).all()):
            self._check_parameters()
            raise FloatingPointError(
                "the policy gave NaN or infinity for observations of the environment; are those finite?"
            )

    def _values(self, obs: NDArray[np.float32]) -> NDArray[np.float32]:
        """Values float32 [B] of observations [B, obs_dim]."""
        with torch.inference_mode(), self._autocast():
            chunks = torch.from_numpy(obs).split(_VALUE_CHUNK)
            values = [self.policy.value(chunk.to(self.device)).float() for chunk in chunks]
            return torch.cat(values).cpu().numpy()

    def _minibatches(self) -> Iterator[Minibatch]:
        """Each epoch's samples in a new order, in equal parts."""
        rollout = self.rollout
        names = ("actions", "log_probs", "advantages", "returns", "values")
        samples = {name: self._flat(name).to(self.device) for name in names}
        groups = self._flat("groups").to(self.device)
        obs = torch.from_numpy(rollout.distinct("obs")).to(self.device)
        masks = None if rollout.masks is None else torch.from_numpy(rollout.distinct("masks")).to(self.device)
        parts = -(-len(rollout) // self.config.minibatch_size)
        for _ in range(self.config.num_epochs):
            order = torch.randperm(len(rollout), generator=self._shuffling).to(self.device)
            for part in order.tensor_split(parts):
                chosen, rows = groups[part].unique(return_inverse=True)
                yield Minibatch(
                    obs=obs[chosen],
                    rows=rows,
                    masks=None if masks is None else masks[chosen],
                    **{name: sample[part] for name, sample in samples.items()},
                )

    def _flat(self, name: str) -> Tensor:
        """An array of the rollout as [T * N, ...]."""
        return self.rollout.tensors[name][: self.rollout.num_steps].flatten(0, 1)

    def _gradient_step(self, batch: Minibatch, entropy_coef: float) -> tuple[Losses, Tensor]:
        """One step of the optimiser. Returns the losses and the gradient's norm before clipping."""
        with self._autocast():
            logits, values = self._forward(batch.obs)
        logits, values = logits.float(), values.float()
        with torch.no_grad():
            grad_logits, grad_values, losses = ppo_gradients(
                logits,
                values,
                batch,
                clip_range=self.config.clip_range,
                value_clip=self.config.value_clip,
                value_coef=self.config.value_coef,
                entropy_coef=entropy_coef,
            )
        self._optimizer.zero_grad(set_to_none=False)
        torch.autograd.backward((logits, values), self._scaler.scale((grad_logits, grad_values)))
        self._scaler.unscale_(self._optimizer)
        grad_norm = nn.utils.clip_grad_norm_(self._parameters, self.config.max_grad_norm)
        self._scaler.step(self._optimizer)
        self._scaler.update()
        return losses, grad_norm

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

    def policy_state(self) -> dict[str, Any]:
        """What inference needs (see `ActorCritic.from_state`): weights and architecture. Not a copy."""
        return self.policy.state()

    def state_dict(self) -> dict[str, Any]:
        """All that `load_state_dict` needs to go on exactly, apart from the environment's state.

        Nested dicts with string keys, of tensors and plain (JSON-able) values. Tensors of the network and
        optimiser are not copies: write them out before the next update. Call it between `update` and
            `collect`.
        """
        collector = self._collector_state if self._collector is None else self._collector.state_dict()
        return {
            "steps": self.steps,
            "policy": self.policy.state(),
            "optimizer": dict(self._optimizer.state[self._parameters]),
            "scaler": self._scaler.state_dict(),
            "generators": {
                "sampling": self._sampling.get_state(),
                "shuffling": self._shuffling.get_state(),
            },
            "return_scale": None if self._return_scale is None else self._return_scale.state_dict(),
            "collector": collector,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on where the other run stood; ``env.load_state`` does the same for the environment.

        Raises:
            ValueError: the state is of another network, number of environments or kind of normalisation, or
                is not finite.
        """
        architecture = self.policy.state()["architecture"]
        if state["policy"]["architecture"] != architecture:
            raise ValueError(
                f"the saved network is {state['policy']['architecture']}, this run's is {architecture}"
            )
        if (state["return_scale"] is None) != (self._return_scale is None):
            raise ValueError("normalize_returns of the saved run and of this one differ")
        load_weights(self.policy, state["policy"]["weights"])
        self._optimizer.state[self._parameters] = {
            key: value.to(self.device, copy=True) for key, value in state["optimizer"].items()
        }
        if self._scaler.is_enabled() and state["scaler"]:
            self._scaler.load_state_dict(state["scaler"])
        self._sampling.set_state(state["generators"]["sampling"])
        self._shuffling.set_state(state["generators"]["shuffling"])
        if self._return_scale is not None:
            self._return_scale.load_state_dict(state["return_scale"])
        self._collector_state = state["collector"]
        if self._collector is not None:
            self._collector.load_state_dict(self._collector_state)
        self.steps = state["steps"]


def _sizes(obs_space: gymnasium.Space, action_space: gymnasium.Space) -> tuple[int, int]:
    """obs_dim and num_actions; other spaces than PPO handles are refused."""
    if (
        not isinstance(obs_space, gymnasium.spaces.Box)
        or len(obs_space.shape) != 1
        or obs_space.dtype != np.float32
    ):
        raise ValueError(f"PPO needs observations of a one-dimensional float32 Box, got {obs_space}")
    if not isinstance(action_space, gymnasium.spaces.Discrete) or action_space.start != 0:
        raise ValueError(f"PPO needs a Discrete action space that starts at 0, got {action_space}")
    return obs_space.shape[0], int(action_space.n)


def _keep_freed_memory() -> None:
    """Stops glibc from returning each minibatch's memory to the system.

    It returns what is above twice the largest mapped block that it has seen freed, and minibatches are at
    that border: fetching the memory again would cost a quarter of an update. 32 MiB is the largest block that
    counts; nothing is written to it, so it costs nothing. Elsewhere this has no effect.
    """
    torch.empty(2**25 - 2**16, dtype=torch.uint8)


def _generator(seed: np.random.SeedSequence) -> torch.Generator:
    return torch.Generator().manual_seed(int(seed.generate_state(1, np.uint64)[0]) >> 1)


def _explained_variance(rollout: Rollout) -> float:
    """1: values are the returns; 0: they are no better than the mean return, or returns are constant."""
    variance = float(rollout.returns.var())
    return 0.0 if variance == 0 else 1 - float((rollout.returns - rollout.values[:-1]).var()) / variance
