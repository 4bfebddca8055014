"""Behaviour cloning of many agents: each policy learns to act as its agents did."""

import functools
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fastrl.algorithms.compiled_imitation import CompiledImitation, takes_compiled_imitation
from fastrl.algorithms.imitation import Imitation, Minibatch
from fastrl.algorithms.imitation_loss import ImitationLoss
from fastrl.algorithms.imitation_settings import MABCConfig, MABCDeclaration
from fastrl.algorithms.protocol import DatasetBatch, Problem
from fastrl.algorithms.team_learner import TeamLearner
from fastrl.networks.parameters import check_shapes, generator_of, load_weights
from fastrl.utils.ranks import Shard
from fastrl.utils.timer import Stopwatch


class MABC(MABCDeclaration, TeamLearner[DatasetBatch], Imitation):
    """Behaviour cloning with the policies of IPPO, each with an Adam of its own.

    Args:
        config: hyper-parameters.
        problem: spaces of an agent, and the samples of the whole run.
    """

    config: MABCConfig
    takes_shards = True

    def __init__(self, config: MABCConfig, problem: Problem) -> None:
        super().__init__(config, problem, generator_of(np.random.SeedSequence(problem.seed).spawn(1)[0]))
        self._start(config, problem, self.policy.actions)
        self._kept: dict[str, dict[str, Tensor]] | None = None
        is_plain = all(
            each.network.is_plain and each.network.encoder is None for each in self.actors.values()
        )
        compiled, self._why_not_compiled = takes_compiled_imitation(self, MABC, is_plain=is_plain)
        self._compiled = {
            name: CompiledImitation(each, each.network.body, each.network.actions, config)
            for name, each in self.actors.items()
            if compiled
        }

    def _observe(self, batch: DatasetBatch) -> None:
        for name, rows in self._rows(batch):
            self.actors[name].network.observe(batch.obs[rows])

    def _rows(self, batch: DatasetBatch) -> Iterator[tuple[str, Tensor]]:
        """The rows int64 [n] of each policy, if it has any."""
        assert batch.agents is not None, "a data set of many agents"
        agents = batch.agents.cpu().numpy()
        for name in self.actors:
            if len(rows := np.flatnonzero(self.policy.members(name)[agents])):
                yield name, torch.from_numpy(rows).to(self.device)

    def _minibatch(self, name: str, batch: DatasetBatch, rows: Tensor) -> Minibatch:
        network, obs = self.actors[name].network, batch.obs[rows]
        assert batch.agents is not None
        outputs = network(obs, batch.agents[rows])
        return Minibatch(obs, outputs, batch.actions[rows], network.log_std)

    def _minibatches(self, batch: DatasetBatch) -> Iterator[Minibatch]:
        return (self._minibatch(name, batch, rows) for name, rows in self._rows(batch))

    def update(self, experience: DatasetBatch, watch: Stopwatch) -> None:
        size = len(experience.actions)
        with watch("update"):
            learning_rate = self._learning_rate(self.steps)
            means = torch.zeros(len(ImitationLoss.names()) + 1, device=self.device)
            step = self._compiled_step if self._compiled else self._descend
            for name, rows in self._rows(experience):
                found = step(name, experience, rows, learning_rate)
                self._keep_deviation(self.actors[name].network.log_std)
                means += found * (len(rows) / size)
            self._add(means)
            self.steps += size

    def _descend(self, name: str, batch: DatasetBatch, rows: Tensor, learning_rate: float) -> Tensor:
        """Takes a gradient step of a policy with PyTorch; returns the parts of an `ImitationLoss` and the gradient's
        norm."""
        optimizer = self.actors[name]
        learn = functools.partial(self._differentiate, name, batch, rows)
        found = self.ranks.reduce(optimizer.gradient, len(rows), len(ImitationLoss.names()), learn)
        grad_norm = optimizer.step(learning_rate, self.config.max_grad_norm or np.inf)
        return torch.cat([found, grad_norm.view(1)])

    def _compiled_step(self, name: str, batch: DatasetBatch, rows: Tensor, learning_rate: float) -> Tensor:
        """Does what `_descend` does."""
        assert batch.agents is not None, "a data set of many agents"
        inputs = self.actors[name].network.inputs(batch.obs[rows], batch.agents[rows])
        return torch.from_numpy(self._compiled[name](inputs, batch.actions[rows], learning_rate))

    def _differentiate(self, name: str, batch: DatasetBatch, rows: Tensor, shard: Shard) -> Tensor | None:
        """Adds the gradient of a shard of a policy's rows; the parts of its `ImitationLoss`, weighted."""
        chosen = rows[shard.rows]
        if not len(chosen):
            return None
        losses, weight = self.loss(self._minibatch(name, batch, chosen)), len(chosen) / len(rows)
        torch.autograd.backward(losses.total * weight)
        return losses.metrics() * weight

    def _check_parameters(self) -> None:
        self._check_finite("policy", self.actors)

    def keep(self) -> None:
        self._kept = {
            name: {key: tensor.clone() for key, tensor in each.network.state_dict().items()}
            for name, each in self.actors.items()
        }

    def restore(self) -> None:
        for name, weights in (self._kept or {}).items():
            load_weights(self.actors[name].network, weights)

    def state_dict(self) -> dict[str, Any]:
        return {
            "steps": self.steps,
            "policy": self.policy.state(),
            "actors": {name: optimizer.state_dict() for name, optimizer in self.actors.items()},
            # Critics start again where reinforcement learning continues.
            "critics": {},
            "kept": self._kept,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.check_same_policies(state)
        self.policy.load_state(state["policy"])
        for name, optimizer in self.actors.items():
            optimizer.load_state_dict(state["actors"][name])
        self._kept = None
        if state["kept"] is not None:
            for name, optimizer in self.actors.items():
                check_shapes(optimizer.network.state_dict(), state["kept"][name])
            self._kept = {
                name: {key: tensor.clone() for key, tensor in weights.items()}
                for name, weights in state["kept"].items()
            }
        self.steps = state["steps"]
