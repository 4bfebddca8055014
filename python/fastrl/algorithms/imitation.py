"""Base of algorithms that learn to act as recorded demonstrations do (behaviour cloning): settings, loss, metrics."""

from abc import abstractmethod
from collections.abc import Iterable, Iterator
from typing import Annotated, Any, Literal, NamedTuple

import torch
from pydantic import Field
from torch import Tensor, nn

from fastrl.algorithms import hyper_parameters as hp
from fastrl.algorithms.imitation_loss import ImitationLoss, imitation_loss, loss_for
from fastrl.algorithms.loss import LossMeans
from fastrl.algorithms.protocol import DatasetAlgorithm, DatasetBatch, DatasetSpec, Problem
from fastrl.algorithms.schedules import LinearSchedule
from fastrl.networks.action_space import Actions
from fastrl.networks.distributions import LOG_STD_RANGE
from fastrl.networks.normalization import RunningNorm
from fastrl.utils.config import Setting, section
from fastrl.utils.tunable import Choices


@section
class ImitationConfig:
    """Hyper-parameters of imitation."""

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


class Minibatch(NamedTuple):
    """B samples to learn from, or a part of them."""

    obs: Tensor  # [B, obs_dim]
    outputs: Tensor  # of the policy as it is, with gradients, float32 [B, size]: logits or means
    actions: Tensor  # int64 [B] or [B, n], or draws float32 [B, n], of the expert
    log_std: Tensor | None = None  # of the policy, float32 [n]; None for discrete actions


class Imitation(DatasetAlgorithm):
    """Learns to act as recorded demonstrations do; subclasses have the networks."""

    config: ImitationConfig

    def _start(self, config: ImitationConfig, problem: Problem, actions: Actions) -> None:
        """Takes the settings, once there is a device.

        Raises:
            ValueError: settings that do not go together.
        """
        if config.label_smoothing and actions.is_box:
            raise ValueError("label_smoothing is for discrete actions: set it to 0")
        if config.patience and not config.validation:
            raise ValueError("patience counts epochs by their validation loss: set validation above 0")
        self._loss_name = loss_for(config.loss, actions)
        self._nvec = tuple(actions.nvec.tolist())
        score = "mean_square_error" if actions.is_box else "accuracy"
        # Those parts of `ImitationLoss` that are computed.
        self._parts = ("loss", score, "entropy")[: 3 if actions.is_box or config.entropy_coef else 2]
        self._learning_rate = LinearSchedule(
            config.learning_rate, config.final_learning_rate, problem.total_timesteps
        )
        self._means = LossMeans(self.device, (*self._parts, "grad_norm"))
        self._metrics: dict[str, float] = {}

    @classmethod
    def dataset_spec(cls, config: Any) -> DatasetSpec:
        return DatasetSpec(
            batch_size=config.batch_size,
            epochs=config.epochs,
            validation=config.validation,
            patience=config.patience,
            whole_episodes=getattr(config, "memory", "none") != "none",
        )

    def loss(self, batch: Minibatch) -> ImitationLoss:
        """The loss that the setting asks for. A subclass may change it, see the guide "A loss of your own"."""
        return imitation_loss(
            batch.outputs,
            batch.log_std,
            batch.actions,
            name=self._loss_name,
            nvec=self._nvec,
            label_smoothing=self.config.label_smoothing,
            entropy_coef=self.config.entropy_coef,
        )

    @abstractmethod
    def _minibatches(self, batch: DatasetBatch) -> Iterator[Minibatch]:
        """Parts of a batch that policies learn from."""

    @abstractmethod
    def _networks(self) -> list[nn.Module]:
        """Networks that learn."""

    @abstractmethod
    def _observe(self, batch: DatasetBatch) -> None:
        """Adds observations to the running statistics."""

    def prepare(self, batches: Iterable[DatasetBatch]) -> None:
        """Statistics that came with the weights of another run stay."""
        modules = (module for network in self._networks() for module in network.modules())
        norms = [module for module in modules if isinstance(module, RunningNorm)]
        if any(norm.count > 0 for norm in norms):
            return
        for batch in batches if norms else ():
            self._observe(batch)

    @abstractmethod
    def _check_parameters(self) -> None:
        """Refuses parameters that are NaN or infinite.

        Raises:
            FloatingPointError
        """

    def _add(self, means: Tensor, grad_norm: Tensor) -> None:
        """Adds what a gradient step gave to the metrics."""
        self._means.add(0, torch.cat([means[: len(self._parts)], grad_norm.detach().view(1)]))

    def _keep_deviation(self, log_std: Tensor | None) -> None:
        """Keeps the deviation of continuous actions within its bounds."""
        if log_std is not None:
            log_std.data.clamp_(self.config.min_log_std, LOG_STD_RANGE[1])

    def metrics(self) -> dict[str, float]:
        if self._means.counts[0]:
            self._check_parameters()
            means = self._means.take(f"{self.steps} samples")
            self._metrics = {**means, "learning_rate": self._learning_rate(self.steps)}
        return self._metrics

    @torch.no_grad()
    def validate(self, batches: Iterable[DatasetBatch]) -> dict[str, float]:
        self._check_parameters()
        sums, count = torch.zeros(len(ImitationLoss.names()), device=self.device), 0
        for batch in batches:
            for part in self._minibatches(batch):
                sums += self.loss(part).metrics() * len(part.actions)
                count += len(part.actions)
        return dict(zip(self._parts, (sums / count).tolist(), strict=False))
