"""PPO's gradient steps on the CPU, compiled."""

from collections.abc import Sequence
from dataclasses import fields
from typing import NamedTuple

import torch
from torch import nn

from fastrl._native._rust import PpoUpdate
from fastrl.algorithms.actor_critic import ActorCriticConfig
from fastrl.algorithms.optimizer import Optimizer
from fastrl.algorithms.ppo_settings import PPOConfig
from fastrl.networks.action_space import Actions
from fastrl.networks.actor_critic import ActorCritic
from fastrl.networks.torch_actor import PolicyNet
from fastrl.rollout.rollout import Rollout

# Settings that compiled steps obey, or that say nothing of a gradient step: with any other PyTorch takes the steps.
_KNOWN = {field.name for field in fields(ActorCriticConfig)} | {
    "num_epochs",
    "minibatch_size",
    "gae_lambda",
    "clip_range",
    "value_clip",
    "normalize_advantages",
    "target_kl",
    "critic_warmup",
    "init_kl_coef",
    "init_kl_steps",
    "freeze_obs_norm",
    "actor_inputs",
    "precision",
    "compile",
    "update_backend",
    "max_staleness",
    "burn_in",
    "correct_off_policy",
}


class StepMeans(NamedTuple):
    """Means over the gradient steps of an update, as in `fastrl.algorithms.ppo.PPOMetrics`, and their number."""

    policy_loss: float
    value_loss: float
    entropy: float
    approx_kl: float
    clip_fraction: float
    grad_norm: float
    gradient_steps: int


class CompiledUpdate:
    """All gradient steps of a rollout in one call of ``fastrl._native._rust.PpoUpdate``.

    It reads and writes the policy's parameters and the optimiser's moments where they are, and draws the order of
    samples as PyTorch's steps do, so that both backends can take turns. Results do not depend on the number of threads.

    Args:
        parameters: the policy's, as one vector.
    """

    def __init__(self, policy: ActorCritic, actions: Actions, parameters: nn.Parameter) -> None:
        self._policy, self._parameters = policy, parameters.data.numpy()
        self._has_one_choice = len(actions.nvec) == 1
        architecture = policy.actor_architecture()
        self._compiled = PpoUpdate(
            obs_dim=policy.obs_dim,
            hidden=architecture["hidden"],
            activation=architecture["activation"],
            nvec=None if actions.is_box else actions.nvec.tolist(),
            numbers=actions.size if actions.is_box else 0,
            actor_inputs=policy.actor_inputs,
        )

    def __call__(
        self,
        rollout: Rollout,
        config: PPOConfig,
        optimizer: Optimizer,
        generator: torch.Generator,
        *,
        entropy_coef: float,
        learning_rate: float,
    ) -> StepMeans:
        """Takes the gradient steps.

        Args:
            rollout: with advantages, returns and groups.
            optimizer: of the parameters.
            generator: draws the order of samples.
        """
        minibatches = -(-len(rollout) // config.minibatch_size)
        states, orders = [], []
        for _ in range(config.num_epochs):
            states.append(generator.get_state())
            orders.append(torch.randperm(len(rollout), generator=generator))
        obs = self._policy.normalized(torch.from_numpy(rollout.distinct_obs()))
        moments = optimizer.moments()
        actions = rollout.flat("actions")
        numbers = self._compiled.run(
            self._parameters,
            moments["exp_avg"].numpy(),
            moments["exp_avg_sq"].numpy(),
            obs.numpy(),
            rollout.flat("groups").numpy(),
            # Those of MultiDiscrete have a further axis, also where they are of one choice.
            (actions.flatten() if self._has_one_choice else actions).numpy(),
            rollout.flat("log_probs").numpy(),
            rollout.flat("advantages").numpy(),
            rollout.flat("returns").numpy(),
            rollout.flat("values").numpy(),
            None if rollout.masks is None else rollout.flat("masks").numpy(),
            torch.stack(orders).numpy(),
            steps=int(moments["step"]),
            minibatches=minibatches,
            clip_range=config.clip_range,
            value_clip=config.value_clip,
            value_coef=config.value_coef,
            entropy_coef=entropy_coef,
            max_grad_norm=config.max_grad_norm,
            learning_rate=learning_rate,
            normalize_advantages=config.normalize_advantages == "minibatch",
            target_kl=config.target_kl,
            num_threads=torch.get_num_threads(),
        )
        means = StepMeans(*numbers)
        moments["step"] += means.gradient_steps
        epochs = -(-means.gradient_steps // minibatches)
        if epochs < config.num_epochs:
            # PyTorch's steps draw no order that they do not need.
            generator.set_state(states[epochs])
        return means


def compiled_update(
    config: PPOConfig,
    policy: PolicyNet,
    actions: Actions,
    parameters: nn.Parameter,
    optimizer: Optimizer,
    *,
    own_methods: Sequence[str] = (),
    shards: int = 0,
) -> tuple[CompiledUpdate | None, str]:
    """The compiled gradient steps that the settings ask for; None: PyTorch takes them, for the reason in the text.

    Args:
        parameters: the policy's, as one vector.
        optimizer: of these.
        own_methods: of a subclass, in place of those that the compiled steps are of.
        shards: of each minibatch; 0: it is whole.

    Raises:
        ValueError: compiled ones are asked for, and there are none for the loss, the network, its device or precision.
    """
    unknown = sorted({field.name for field in fields(config)} - _KNOWN)
    if config.update_backend == "torch":
        return None, ""
    if own_methods:
        takes = f"PPO's own {' and '.join(own_methods)}"
    elif unknown:
        takes = f"PPO's own settings, without {', '.join(unknown)}"
    elif shards:
        takes = "whole minibatches, without ranks and shards"
    elif parameters.device.type != "cpu":
        takes = "networks on the CPU"
    elif not isinstance(policy, ActorCritic):
        takes = "separate perceptrons of vectors, without images, memory, layer norm, dropout or a network of your own"
    elif optimizer.half is not None:
        takes = "precision fp32"
    else:
        return CompiledUpdate(policy, actions, parameters), ""
    if config.update_backend == "compiled":
        raise ValueError(f"update_backend compiled is for {takes}: set update_backend to auto or torch")
    return None, f"PyTorch takes the gradient steps: compiled ones are for {takes}"
