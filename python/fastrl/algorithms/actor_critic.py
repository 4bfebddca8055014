"""Base of algorithms that learn an actor and a critic from rollouts: network, optimiser, loading, saving."""

import sys
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fastrl.algorithms.network_settings import ActorCriticConfig
from fastrl.algorithms.optimizer import keep_freed_memory
from fastrl.algorithms.policy_learner import PolicyLearner
from fastrl.algorithms.protocol import Problem
from fastrl.algorithms.reward_scaling import ReturnScale
from fastrl.algorithms.sequence_passes import SequencePasses
from fastrl.networks.torch_actor import CHUNK
from fastrl.rollout.fragment import Fragment
from fastrl.rollout.layout import lay_out
from fastrl.rollout.rollout import Rollout
from fastrl.utils.timer import Stopwatch

# Rows of the critic's forward passes over a whole rollout: large enough to be cheap a row, small enough for
# caches.
VALUE_CHUNK = 4096


class ActorCriticLearner(PolicyLearner[Sequence[Fragment]]):
    """Learns an actor and a critic from rollouts. These stay in main memory; of images minibatches alone become
    float32.

    Arguments and other attributes are those of `PolicyLearner`.

    Attributes:
        rollout: what the present update learns from.
        reward_scale: what the present update multiplies rewards by: the setting, and one over the deviation of returns
            where these are normalised.
    """

    learns_from = "rollouts"
    config: ActorCriticConfig

    def __init__(self, config: ActorCriticConfig, problem: Problem) -> None:
        self.config = config
        if self.burn_in >= config.num_steps:
            raise ValueError(
                f"burn_in should be less than num_steps, {config.num_steps}, got {self.burn_in}: nothing would be left"
                " to learn from"
            )
        super().__init__(config, problem)
        if self.action_masks and self.actions.is_box:
            raise ValueError("action masks are for discrete actions: set action_masks to false")
        self._return_scale = ReturnScale(problem.num_envs, config.gamma) if config.normalize_returns else None
        self.reward_scale = config.reward_scale
        self.rollout = Rollout(
            config.num_steps,
            problem.num_envs,
            self.obs_rows.size,
            self.actions.size,
            masks=self.action_masks,
            continuous=self.actions.is_box,
            action_width=0 if self._choices is None else self._choices.num_choices,
            obs_dtype=self.obs_rows.dtype,
            state_size=self.policy.state_size,
        )
        self._chunk = CHUNK if self._has_images else VALUE_CHUNK
        self._metrics: Any = None
        chunk = self._chunk if self._has_images else sys.maxsize
        self._sequences = (
            SequencePasses.of(self.policy, self._optimizer, self.device, chunk, self.burn_in)
            if self.policy.state_size
            else None
        )
        keep_freed_memory()

    @property
    def action_masks(self) -> bool:
        return self.config.action_masks

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
                self.reward_scale = self.config.reward_scale * self._return_scale.update(fragments)
        self.steps += len(self.rollout)
        self._passes = 0

    def predict_values(self, obs: NDArray[Any]) -> NDArray[np.float32]:
        """Values float32 [...] of observations [..., obs_dim], by a network without a memory."""
        if not obs.size:
            return np.zeros(obs.shape[:-1], np.float32)
        values = self._in_chunks(self.policy.value, obs.reshape(-1, obs.shape[-1]))
        return values.numpy().reshape(obs.shape[:-1])

    def _in_chunks(self, network: Callable[[Tensor], Tensor], obs: NDArray[Any]) -> Tensor:
        """Outputs float32 [B, ...] of a network at observations [B, obs_dim]."""
        with torch.inference_mode(), self._optimizer.autocast():
            chunks = torch.from_numpy(obs).split(self._chunk)
            return torch.cat([network(chunk.to(self.device)).float() for chunk in chunks]).cpu()

    @property
    def max_staleness(self) -> int:
        return self.config.max_staleness

    @property
    def burn_in(self) -> int:
        """Steps at the start of fragments that bring a network's memory up to date, and are not learned from."""
        return self.config.burn_in

    def _scheduled(self, start: float | str, end: float | None) -> float:
        """The value of a schedule that ends with the run, for the present rollout."""
        return self._problem.schedule(start, end)(self._steps_before)

    @property
    def _steps_before(self) -> int:
        """Environment steps before the present rollout."""
        return max(self.steps - len(self.rollout), 0)

    def _check_outputs(self) -> None:
        """Refuses log-probabilities and values of the rollout that are not finite."""
        if not (np.isfinite(self.rollout.log_probs).all() and np.isfinite(self.rollout.values).all()):
            self._check_parameters()
            raise FloatingPointError(
                "the policy gave NaN or infinity for observations of the environment; are those finite?"
            )

    def start_stage(self, state: Mapping[str, Any]) -> None:
        wider, saved = self._widening(state), state["policy"]["weights"]
        adam = {
            name: tensor if tensor.ndim == 0 else wider.vector(tensor, saved, self.policy)
            for name, tensor in state["optimizer"]["adam"].items()
        }
        weights = wider.weights(saved, self.policy)
        self.load_state_dict(
            {
                **state,
                "policy": {**self.policy.state(), "weights": weights},
                "optimizer": {**state["optimizer"], "adam": adam},
            }
        )

    def state_dict(self) -> dict[str, Any]:
        return {
            **super().state_dict(),
            "return_scale": None if self._return_scale is None else self._return_scale.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if (state["return_scale"] is None) != (self._return_scale is None):
            raise ValueError("normalize_returns of the saved run and of this one differ")
        super().load_state_dict(state)
        if self._return_scale is not None:
            self._return_scale.load_state_dict(state["return_scale"])
