"""Behaviour cloning: a policy that learns to act as an expert did (Pomerleau, "ALVINN", 1989)."""

import functools
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal, NamedTuple

import torch
from pydantic import Field
from torch import Tensor

from fastrl.algorithms import hyper_parameters as hp
from fastrl.algorithms.imitation_loss import ImitationLoss, imitation_loss, loss_for
from fastrl.algorithms.network_settings import NetworkConfig
from fastrl.algorithms.policy_learner import PolicyLearner, described
from fastrl.algorithms.protocol import DatasetAlgorithm, DatasetBatch, DatasetSpec, Problem
from fastrl.algorithms.schedules import LinearSchedule
from fastrl.networks.actor_critic import ActorCritic
from fastrl.networks.distributions import LOG_STD_RANGE
from fastrl.networks.normalization import RunningNorm
from fastrl.networks.parameters import check_shapes, load_weights
from fastrl.utils.config import Setting, section
from fastrl.utils.ranks import Shard
from fastrl.utils.timer import Stopwatch
from fastrl.utils.tunable import Choices

# Numbers whose means are metrics: the parts of `ImitationLoss`, and the gradient's norm.
_SUMMED = len(ImitationLoss.parts()) + 1


@section
class BCConfig(NetworkConfig):
    """Hyper-parameters of behaviour cloning."""

    epochs: Annotated[
        int, Field(ge=1, description="passes over the demonstrations"), Setting(resumable=True)
    ] = 50
    batch_size: Annotated[
        int,
        Field(
            ge=1,
            description="samples in a gradient step; with a memory whole episodes of at least so many samples",
        ),
        Choices((64, 128, 256, 512, 1024), ordered=True),
    ] = 256
    loss: Annotated[
        Literal["auto", "log_likelihood", "mse", "cross_entropy"],
        Field(
            description="log_likelihood of the expert's actions (negated), also fits the deviation of continuous ones;"
            " mse: mean square error of the means of continuous actions; cross_entropy: of discrete ones, the same as"
            " log_likelihood; auto: cross_entropy or log_likelihood"
        ),
    ] = "auto"
    learning_rate: hp.LearningRate = 1e-3
    final_learning_rate: hp.FinalLearningRate = 0.0
    max_grad_norm: Annotated[
        float | None, Field(gt=0, description="gradients are scaled down to this norm; none: never")
    ] = 1.0
    label_smoothing: Annotated[
        float,
        Field(
            ge=0,
            lt=1,
            description="of discrete actions: share of the target's probability that all choices have in equal parts",
        ),
    ] = 0.0
    entropy_coef: Annotated[float, Field(ge=0, description="weight of an entropy bonus")] = 0.0
    min_log_std: Annotated[
        float,
        Field(
            ge=LOG_STD_RANGE[0],
            le=LOG_STD_RANGE[1],
            description="of continuous actions: lower bound of the deviation's logarithm, so that a clone of an expert"
            " without noise still explores where reinforcement learning continues with it",
        ),
    ] = -3.0
    normalize_obs: Annotated[
        bool,
        Field(
            description="observations are whitened by the mean and deviation of those that are learned from, which are"
            " saved with the policy"
        ),
    ] = False
    squash_actions: Annotated[
        bool,
        Field(
            description="continuous actions are brought within their bounds by tanh instead of being clipped to them"
        ),
    ] = False
    action_masks: Annotated[
        bool,
        Field(
            description="the clone chooses among the actions that the environment allows, as an expert does that obeys"
            " masks; what it learns does not depend on it"
        ),
    ] = False
    validation: Annotated[
        float,
        Field(
            ge=0, lt=1, description="share of the episodes that are not learned from, for the validation loss"
        ),
    ] = 0.1
    patience: Annotated[
        int,
        Field(
            ge=0,
            description="stop after so many epochs in succession without a lower validation loss, and go back to the"
            " policy of the lowest; 0: all epochs, and the last policy",
        ),
    ] = 0
    precision: Annotated[
        Literal["fp32", "bf16", "fp16"],
        Field(description="of the network's arithmetic while it learns (mixed precision)"),
    ] = "fp32"


class Minibatch(NamedTuple):
    """B samples to learn from, or a part of them."""

    obs: Tensor  # [B, obs_dim]
    outputs: Tensor  # of the policy as it is, with gradients, float32 [B, size]: logits or means
    actions: Tensor  # int64 [B] or [B, n], or draws float32 [B, n], of the expert


class BC(PolicyLearner[DatasetBatch], DatasetAlgorithm):
    """Behaviour cloning with the networks of PPO, of which the value function does not learn.

    Args:
        config: hyper-parameters.
        problem: spaces, and the samples of the whole run.
    """

    name = "bc"
    summary = "behaviour cloning: learns to act as recorded demonstrations do (--demos)"
    config_type = BCConfig
    config: BCConfig
    network_of = "ppo"
    takes_shards = True

    def __init__(self, config: BCConfig, problem: Problem) -> None:
        super().__init__(config, problem, precision=config.precision)
        if config.label_smoothing and self.actions.is_box:
            raise ValueError("label_smoothing is for discrete actions: set it to 0")
        if config.patience and not config.validation:
            raise ValueError("patience counts epochs by their validation loss: set validation above 0")
        self._loss_name = loss_for(config.loss, self.actions)
        self._nvec = tuple(self.actions.nvec.tolist())
        self._learning_rate = LinearSchedule(
            config.learning_rate, config.final_learning_rate, problem.total_timesteps
        )
        # Sums of numbers of the gradient steps since the last row of metrics, and how many; and the last row's means.
        self._sums, self._count = torch.zeros(_SUMMED, device=self.device), 0
        self._means: dict[str, float] = {}
        self._kept: dict[str, Tensor] | None = None

    @classmethod
    def dataset_spec(cls, config: Any) -> DatasetSpec:
        return DatasetSpec(
            batch_size=config.batch_size,
            epochs=config.epochs,
            validation=config.validation,
            patience=config.patience,
            whole_episodes=config.memory != "none",
        )

    @property
    def squash_actions(self) -> bool:
        return self.config.squash_actions

    def prepare(self, obs: Iterable[Tensor]) -> None:
        """Statistics that came with the weights of another run stay."""
        norms = [module for module in self.policy.modules() if isinstance(module, RunningNorm)]
        if any(norm.count > 0 for norm in norms):
            return
        for part in obs if norms else ():
            self.policy.update_statistics(part)

    def update(self, experience: DatasetBatch, watch: Stopwatch) -> None:
        with watch("update"):
            self._passes = 0
            means = self._reduce(
                len(experience.actions), _SUMMED - 1, functools.partial(self._differentiate, experience)
            )
            learning_rate = self._learning_rate(self.steps)
            grad_norm = self._optimizer.step(self.config.max_grad_norm, learning_rate)
            if self.policy.log_std is not None:
                self.policy.log_std.data.clamp_(self.config.min_log_std, LOG_STD_RANGE[1])
            self._sums += torch.cat([means, grad_norm.detach().view(1)])
            self._count += 1
            self.steps += len(experience.actions)

    def _differentiate(self, whole: DatasetBatch, shard: Shard) -> Tensor | None:
        """Adds the gradient of the loss of a shard; the parts of its `ImitationLoss`, weighted."""
        batch = whole if not self.ranks.shards else part_of(whole, shard, self.ranks.shards)
        if not len(batch.actions):
            return None
        with self._optimizer.autocast():
            outputs, _ = self._train_pass(batch)
        losses = self.loss(Minibatch(batch.obs, outputs.float(), batch.actions))
        weight = len(batch.actions) / len(whole.actions)
        self._backpropagate(losses.total * weight)
        return losses.numbers() * weight

    def loss(self, batch: Minibatch) -> ImitationLoss:
        """The loss that the setting asks for. A subclass may change it, see the guide "A loss of your own"."""
        return imitation_loss(
            batch.outputs,
            self.policy.log_std,
            batch.actions,
            name=self._loss_name,
            nvec=self._nvec,
            label_smoothing=self.config.label_smoothing,
            entropy_coef=self.config.entropy_coef,
        )

    def _outputs_and_values(self, obs: Any) -> tuple[Tensor, Tensor]:
        batch: DatasetBatch = obs
        if batch.batch_sizes is None:
            outputs = self.policy.outputs(batch.obs)
        else:
            assert not isinstance(self.policy, ActorCritic), "a network with a memory"
            states = torch.zeros((int(batch.batch_sizes[0]), self.policy.state_size), device=self.device)
            outputs, _, _ = self.policy.sequences(batch.obs, batch.batch_sizes, states)
        # Values are neither learned nor asked for.
        return outputs, outputs.new_zeros(0)

    def metrics(self) -> dict[str, float]:
        if self._count:
            self._means = self._named((self._sums / self._count).tolist())
            self._means["learning_rate"] = self._learning_rate(self.steps)
            self._sums.zero_()
            self._count = 0
            self._check_parameters()
        return self._means

    def _named(self, means: list[float]) -> dict[str, float]:
        """Means of the parts of `ImitationLoss`, by name."""
        score = "mean_square_error" if self.actions.is_box else "accuracy"
        names = ("loss", score, "entropy", "grad_norm")
        return {name: mean for name, mean in zip(names, means, strict=False) if mean == mean}

    @torch.no_grad()
    def validate(self, batches: Iterable[DatasetBatch]) -> dict[str, float]:
        self._check_parameters()
        sums, count = torch.zeros(_SUMMED - 1, device=self.device), 0
        for batch in batches:
            with self._optimizer.autocast():
                outputs, _ = self._outputs_and_values(batch)
            losses = self.loss(Minibatch(batch.obs, outputs.float(), batch.actions))
            sums += losses.numbers() * len(batch.actions)
            count += len(batch.actions)
        return self._named((sums / count).tolist())

    def keep(self) -> None:
        self._kept = {name: tensor.clone() for name, tensor in self.policy.state_dict().items()}

    def restore(self) -> None:
        if self._kept is not None:
            load_weights(self.policy, self._kept)

    def state_dict(self) -> dict[str, Any]:
        return {
            "steps": self.steps,
            "actions": self.actions.state(),
            "policy": self.policy.state(),
            "optimizer": self._optimizer.state_dict(),
            "kept": self._kept,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        architecture, saved = described(self.policy.state()), described(state["policy"])
        if saved != architecture:
            raise ValueError(f"the saved network is {saved}, this run's is {architecture}")
        load_weights(self.policy, state["policy"]["weights"])
        self._optimizer.load_state_dict(state["optimizer"])
        self._kept = None
        if state["kept"] is not None:
            check_shapes(self.policy.state_dict(), state["kept"])
            self._kept = {name: tensor.clone() for name, tensor in state["kept"].items()}
        self.steps = state["steps"]


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
