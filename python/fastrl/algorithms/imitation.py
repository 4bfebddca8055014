"""Base of algorithms that learn to act as recorded demonstrations do (behaviour cloning): settings, loss, metrics."""

from abc import abstractmethod
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fastrl.algorithms.imitation_loss import ImitationLoss, imitation_loss, loss_for
from fastrl.algorithms.imitation_settings import ImitationConfig
from fastrl.algorithms.loss import LossMeans
from fastrl.algorithms.protocol import DatasetAlgorithm, DatasetBatch, DatasetSpec, Problem
from fastrl.networks.action_space import Actions
from fastrl.networks.kinds import LOG_STD_RANGE
from fastrl.networks.normalization import RunningNorm
from fastrl.utils.ranks import Ranks


class Minibatch(NamedTuple):
    """B samples to learn from, or a part of them."""

    obs: Tensor  # [B, obs_dim]
    outputs: Tensor  # of the policy as it is, with gradients, float32 [B, size]: logits or means
    actions: Tensor  # int64 [B] or [B, n], or draws float32 [B, n], of the expert
    log_std: Tensor | None = None  # of the policy, float32 [n]; None for discrete actions


class Imitation(DatasetAlgorithm):
    """Learns to act as recorded demonstrations do; subclasses have the networks."""

    config: ImitationConfig
    ranks: Ranks

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
        # Of the parts of `ImitationLoss` that are computed.
        self._metric_names = ("loss", score, "entropy")[: 3 if actions.is_box or config.entropy_coef else 2]
        self._shown = [*range(len(self._metric_names)), len(ImitationLoss.names())]
        self._learning_rate = problem.schedule(config.learning_rate, config.final_learning_rate)
        self._means = LossMeans(self.device, (*self._metric_names, "grad_norm"))
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
    def _observe(self, batch: DatasetBatch) -> None:
        """Adds observations to the running statistics."""

    def prepare(self, batches: Iterable[DatasetBatch]) -> None:
        """Statistics that came with the weights of another run stay."""
        modules = (module for network in self.networks() for module in network.modules())
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

    def _add(self, means: Tensor | NDArray[np.float32]) -> None:
        """Adds what a gradient step gave to the metrics: the parts of an `ImitationLoss`, and the gradient's norm."""
        self._means.add(0, means[self._shown])

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
        return dict(zip(self._metric_names, (sums / count).tolist(), strict=False))
