"""Behaviour cloning: a policy that learns to act as an expert did (Pomerleau, "ALVINN", 1989)."""

import functools
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from fastrl.algorithms.compiled_imitation import CompiledImitation, takes_compiled_imitation
from fastrl.algorithms.imitation import Imitation, Minibatch
from fastrl.algorithms.imitation_loss import ImitationLoss
from fastrl.algorithms.imitation_settings import BCConfig, BCDeclaration
from fastrl.algorithms.policy_learner import PolicyLearner
from fastrl.algorithms.protocol import DatasetBatch, Problem
from fastrl.networks.actor_critic import ActorCritic
from fastrl.networks.parameters import check_shapes, load_weights
from fastrl.utils.ranks import Shard
from fastrl.utils.timer import Stopwatch


class BC(BCDeclaration, PolicyLearner[DatasetBatch], Imitation):
    """Behaviour cloning with the networks of PPO, of which the value function does not learn.

    Args:
        config: hyper-parameters.
        problem: spaces, and the samples of the whole run.
    """

    config: BCConfig
    takes_shards = True

    def __init__(self, config: BCConfig, problem: Problem) -> None:
        super().__init__(config, problem)
        self._start(config, problem, self.actions)
        self._kept: dict[str, Tensor] | None = None
        self._compiled: CompiledImitation | None = None
        policy, half = self.policy, self._optimizer.half
        is_plain = isinstance(policy, ActorCritic) and half != torch.float16
        compiled, self._why_not_compiled = takes_compiled_imitation(self, BC, is_plain=is_plain)
        if compiled and isinstance(policy, ActorCritic):
            self._compiled = CompiledImitation(
                self._optimizer, policy.actor, self.actions, config, has_bf16=half == torch.bfloat16
            )

    def _observe(self, batch: DatasetBatch) -> None:
        self.policy.update_statistics(batch.obs)

    def update(self, experience: DatasetBatch, watch: Stopwatch) -> None:
        with watch("update"):
            learning_rate = self._learning_rate(self.steps)
            if self._compiled is None:
                self._add(self._descend(experience, learning_rate))
            else:
                inputs = self.policy.normalized(experience.obs)
                self._add(self._compiled(inputs, experience.actions, learning_rate))
            self._keep_deviation(self.policy.log_std)
            self.steps += len(experience.actions)

    def _descend(self, batch: DatasetBatch, learning_rate: float) -> Tensor:
        """Takes a gradient step with PyTorch; returns the parts of an `ImitationLoss` and the gradient's norm."""
        self._passes = 0
        differentiate = functools.partial(self._differentiate, batch)
        means = self._reduce(len(batch.actions), len(ImitationLoss.names()), differentiate)
        grad_norm = self._optimizer.step(self.config.max_grad_norm, learning_rate)
        return torch.cat([means, grad_norm.detach().view(1)])

    def _differentiate(self, whole: DatasetBatch, shard: Shard) -> Tensor | None:
        """Adds the gradient of the loss of a shard; the parts of its `ImitationLoss`, weighted."""
        batch = whole if not self.ranks.shards else part_of(whole, shard, self.ranks.shards)
        if not len(batch.actions):
            return None
        with self._optimizer.autocast():
            outputs, _ = self._train_pass(batch)
        losses = self.loss(Minibatch(batch.obs, outputs.float(), batch.actions, self.policy.log_std))
        weight = len(batch.actions) / len(whole.actions)
        self._backpropagate(losses.total * weight)
        return losses.metrics() * weight

    def _minibatches(self, batch: DatasetBatch) -> Iterator[Minibatch]:
        with self._optimizer.autocast():
            outputs, _ = self._outputs_and_values(batch)
        yield Minibatch(batch.obs, outputs.float(), batch.actions, self.policy.log_std)

    def _outputs_and_values(self, obs: Any) -> tuple[Tensor, Tensor]:
        batch: DatasetBatch = obs
        if batch.batch_sizes is None:
            outputs = self.policy.outputs(batch.obs)
        else:
            states = torch.zeros((int(batch.batch_sizes[0]), self.policy.state_size), device=self.device)
            outputs, _, _ = self.policy.sequences(batch.obs, batch.batch_sizes, states)
        # Values are neither learned nor asked for.
        return outputs, outputs.new_zeros(0)

    def keep(self) -> None:
        self._kept = {name: tensor.clone() for name, tensor in self.policy.state_dict().items()}

    def restore(self) -> None:
        if self._kept is not None:
            load_weights(self.policy, self._kept)

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "kept": self._kept}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self._kept = None
        if state["kept"] is not None:
            check_shapes(self.policy.state_dict(), state["kept"])
            self._kept = {name: tensor.clone() for name, tensor in state["kept"].items()}


def part_of(batch: DatasetBatch, shard: Shard, shards: int) -> DatasetBatch:
    """The steps of a minibatch that a shard has; of whole episodes every ``shards``-th."""
    if batch.batch_sizes is None:
        return DatasetBatch(batch.obs[shard.rows], batch.actions[shard.rows])
    sizes = batch.batch_sizes
    # Of each step the number of the episode, which are in the same order at all of them.
    episodes = torch.cat([torch.arange(int(size)) for size in sizes])
    rows = (episodes % shards == shard.number).nonzero().squeeze(1)
    step_sizes = (sizes - shard.number + shards - 1).div(shards, rounding_mode="floor").clamp(min=0)
    rows_there = rows.to(batch.obs.device)
    return DatasetBatch(batch.obs[rows_there], batch.actions[rows_there], step_sizes[step_sizes > 0])
