"""PPO's gradient steps on the CPU, compiled."""

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fastrl._native._rust import PpoUpdate
from fastrl.algorithms.network_settings import NetworkConfig
from fastrl.algorithms.optimizer import Optimizer
from fastrl.algorithms.update_backend import takes_compiled_steps
from fastrl.collectors.threads import threads
from fastrl.networks.action_space import Actions
from fastrl.rollout.rollout import Rollout

if TYPE_CHECKING:
    from fastrl.algorithms.flat_adam import FlatAdam
    from fastrl.algorithms.ppo import PPO

# Methods that are compiled.
_METHODS = ("loss", "surrogate", "log_probs_and_entropy", "differentiate", "minibatches")

# Settings that compiled steps obey, or that say nothing of a gradient step: with any other PyTorch takes the steps.
_KNOWN = {field.name for field in fields(NetworkConfig)} | (
    {"num_steps", "num_epochs", "minibatch_size", "gamma", "gae_lambda", "normalize_advantages"}
    | {"clip_range", "value_clip", "value_coef", "entropy_coef", "final_entropy_coef", "target_kl"}
    | {"critic_warmup", "init_kl_coef", "init_kl_steps", "max_staleness", "burn_in", "correct_off_policy"}
    | {"learning_rate", "final_learning_rate", "max_grad_norm", "precision", "compile", "update_backend"}
    | {"normalize_obs", "freeze_obs_norm", "normalize_returns", "reward_scale", "reward_clip"}
    | {"action_masks", "squash_actions", "actor_inputs"}
)

# Options of networks for tables.
_OF_TABLES = {"table_rows", "pooling"}


@dataclass(frozen=True)
class StepMeans:
    """Means over the gradient steps of an update.

    Attributes:
        policy_loss: clipped surrogate, negated.
        value_loss: half the mean squared error.
        entropy: of the policy, in nats.
        approx_kl: KL(old, new), Schulman's estimator ``ratio - 1 - log(ratio)``.
        clip_fraction: share of samples whose ratio was outside the clip range.
        grad_norm: before clipping.
        gradient_steps: number of them.
    """

    policy_loss: float
    value_loss: float
    entropy: float
    approx_kl: float
    clip_fraction: float
    grad_norm: float
    gradient_steps: int

    def of_each_step(self, *names: str) -> list[Tensor]:
        """Means with these names, float32 [n], once for each gradient step."""
        return [torch.tensor([getattr(self, name) for name in names])] * self.gradient_steps


class Samples(NamedTuple):
    """S samples of a rollout. What the actor alone learns from is empty for a critic."""

    obs: Tensor  # float32 [G, D], what the networks see
    groups: Tensor  # int64 [S], which of these each sample has
    returns: Tensor  # float32 [S], or [S, A] of a critic of A agents
    values: Tensor  # as returns
    actions: Tensor = torch.zeros((0, 0), dtype=torch.int64)  # int64 [S] or [S, n], or draws float32 [S, n]
    log_probs: Tensor = torch.zeros(0)  # float32 [S]
    advantages: Tensor = torch.zeros(0)  # float32 [S]
    masks: Tensor | None = None  # bool [S, num_actions], True = allowed
    learned: Tensor | None = None  # bool [S, A], which returns are learned from; None: all


def samples_of(rollout: Rollout, obs: Tensor, groups: Tensor, rows: Tensor | slice = slice(None)) -> Samples:
    """Samples of some of the T * N steps of a rollout."""
    return Samples(
        obs,
        groups,
        returns=rollout.flat("returns")[rows],
        values=rollout.flat("values")[rows],
        actions=rollout.flat("actions")[rows],
        log_probs=rollout.flat("log_probs")[rows],
        advantages=rollout.flat("advantages")[rows],
        masks=None if rollout.masks is None else rollout.flat("masks")[rows],
    )


class CompiledSteps:
    """Gradient steps of a rollout, all of them in one call of ``fastrl._native._rust.PpoUpdate``.

    It changes parameters and the optimiser's moments where they are, and draws the order of samples as PyTorch's steps
    do, so that both can take turns. Results do not depend on the number of threads.

    Args:
        parameters: of the networks that learn, as one vector.
        actions: that the actor chooses; None: a critic learns alone.
        beside: networks that learn at the same time, with which it shares the cores.
        options: the others of ``PpoUpdate``.
    """

    def __init__(self, parameters: Tensor, actions: Actions | None, beside: int = 0, **options: Any) -> None:
        self._parameters = parameters.detach().numpy()
        self._num_threads = max(threads() // (1 + beside), 1)
        nvec, box_size = None, 0
        if actions is not None and actions.is_box:
            box_size = actions.size
        elif actions is not None:
            nvec = actions.nvec.tolist()
        self._has_one_choice = nvec is not None and len(nvec) == 1
        self._num_values = options.get("critic_outputs", 1)
        self._compiled = PpoUpdate(nvec=nvec, numbers=box_size, **options)

    def prepare(
        self,
        samples: Samples,
        optimizer: "Optimizer | FlatAdam[Any]",
        generator: torch.Generator,
        *,
        num_epochs: int,
        minibatch_size: int,
        **settings: Any,
    ) -> Callable[[], StepMeans]:
        """Draws the order of samples; the function that it returns takes the gradient steps, and hardly needs the
        interpreter, so that a thread may take them beside others.

        Args:
            optimizer: of the parameters, whose moments change in place.
            generator: draws the order of samples.
            settings: further ones of ``PpoUpdate.run``.
        """
        size = len(samples.groups)
        minibatches = -(-size // max(minibatch_size, 1))
        states, orders = [], []
        for _ in range(num_epochs):
            if settings.get("target_kl") is not None:
                states.append(generator.get_state())
            orders.append(torch.randperm(size, generator=generator))
        actions = samples.actions
        run = functools.partial(
            self._compiled.run,
            self._parameters,
            optimizer.mean.numpy(),
            optimizer.square.numpy(),
            samples.obs.numpy(),
            samples.groups.numpy(),
            # Those of MultiDiscrete have a further axis, also where they are of one choice.
            (actions.flatten() if self._has_one_choice else actions).numpy(),
            samples.log_probs.numpy(),
            samples.advantages.numpy(),
            samples.returns.numpy(),
            samples.values.numpy(),
            None if samples.masks is None else samples.masks.numpy(),
            None if samples.learned is None else samples.learned.numpy(),
            torch.stack(orders).numpy(),
            steps=optimizer.steps,
            minibatches=minibatches,
            num_threads=self._num_threads,
            **settings,
        )

        def take() -> StepMeans:
            means = StepMeans(*run())
            optimizer.steps += means.gradient_steps
            epochs = -(-means.gradient_steps // minibatches)
            if epochs < num_epochs:
                # PyTorch's steps draw no order that they do not need.
                generator.set_state(states[epochs])
            return means

        return take

    def values(self, inputs: Tensor, rows: NDArray[np.int64], out: NDArray[np.float32]) -> None:
        """Writes the values of some rows [R] of what the critic sees, float32 [G, D], to the same rows of ``out``,
        float32 [G, critic's outputs]."""
        out = out.squeeze(1) if self._num_values == 1 else out
        self._compiled.values(self._parameters, inputs.numpy(), rows, out, num_threads=threads())


class CompiledUpdate:
    """The compiled gradient steps of an actor and a critic that take them together.

    Args:
        learner: whose policy has them.
        architecture: the policy's, see `PolicyNet.update_architecture`.
        optimizer: of the policy.

    Attributes:
        gives_values: `values` is faster than the policy's.
    """

    def __init__(self, learner: "PPO", architecture: Mapping[str, Any], optimizer: Optimizer) -> None:
        self._config, self._policy = learner.config, learner.policy
        # PyTorch has the values of a perceptron as soon.
        self.gives_values = not architecture.keys().isdisjoint(_OF_TABLES)
        has_bf16 = optimizer.half == torch.bfloat16
        self._steps = CompiledSteps(optimizer.vector, learner.actions, bf16=has_bf16, **architecture)

    @classmethod
    def of(cls, learner: "PPO", known: type, optimizer: Optimizer) -> tuple[Self | None, str]:
        """The gradient steps of a learner whose loss is that of the class ``known``. None where PyTorch takes them, for
        the reason in the text.

        Raises:
            ValueError: compiled ones are asked for, and there are none for the loss, the network, its device or
                precision.
        """
        architecture = learner.policy.update_architecture()

        def condition() -> str:
            if architecture is None:
                return (
                    "separate perceptrons of vectors, or the encoders pointer or rows of a table that comes first,"
                    " without images, memory, layer norm, dropout or a network of your own"
                )
            if optimizer.half is not None and not architecture.keys().isdisjoint(_OF_TABLES):
                return "precision fp32 with the encoders pointer and rows"
            return "precision fp32 or bf16" if optimizer.half == torch.float16 else ""

        is_compiled, why = takes_compiled_steps(learner, known, _METHODS, _KNOWN, condition)
        if not is_compiled:
            return None, why
        assert architecture is not None
        return cls(learner, architecture, optimizer), ""

    def values(self, obs: NDArray[np.float32]) -> NDArray[np.float32]:
        """Values float32 [B] of observations float32 [B, obs_dim]."""
        values = np.empty((len(obs), 1), np.float32)
        self._steps.values(torch.from_numpy(obs), np.arange(len(obs)), values)
        return values[:, 0]

    def __call__(
        self,
        rollout: Rollout,
        optimizer: Optimizer,
        generator: torch.Generator,
        *,
        entropy_coef: float,
        learning_rate: float,
    ) -> StepMeans:
        """Takes the gradient steps of a rollout with advantages, returns and groups."""
        config = self._config
        obs = self._policy.normalized(torch.from_numpy(rollout.distinct_obs()))
        take = self._steps.prepare(
            samples_of(rollout, obs, rollout.flat("groups")),
            optimizer,
            generator,
            num_epochs=config.num_epochs,
            minibatch_size=config.minibatch_size,
            learning_rate=learning_rate,
            max_grad_norm=config.max_grad_norm,
            clip_range=config.clip_range,
            value_clip=config.value_clip,
            value_coef=config.value_coef,
            entropy_coef=entropy_coef,
            normalize_advantages=config.normalize_advantages == "minibatch",
            target_kl=config.target_kl,
        )
        return take()
