"""Critics of many agents: values of rollouts, and their regression on returns."""

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fastrl.algorithms.compiled_networks import Compiled
from fastrl.algorithms.compiled_update import Samples, StepMeans
from fastrl.algorithms.flat_adam import FlatAdam, minibatches
from fastrl.algorithms.loss import Loss
from fastrl.algorithms.multi_agent_settings import MultiAgentConfig
from fastrl.algorithms.optimizer import autocast
from fastrl.networks.multi_agent import CHUNK, CentralCritic, Critic
from fastrl.rollout.rollout import Rollout
from fastrl.utils.ranks import ALONE, Ranks, Shard

Rows = Mapping[str, NDArray[np.int64]]


class CriticMinibatch(NamedTuple):
    """B steps of agents that a critic learns to value, or a part of them. The agents were alive, and learn."""

    critic: Critic | CentralCritic
    obs: Tensor  # float32 or, with images, uint8 [B, obs_dim]; of a central critic [E, A, obs_dim], E environments
    agents: Tensor  # int64 [B], index of the agent in its environment
    values: Tensor  # by the critic as it is, with gradients, float32 [B]
    old_values: Tensor  # by the critic before the update, float32 [B]
    returns: Tensor  # float32 [B]


@dataclass(frozen=True)
class CriticLoss(Loss):
    """The loss of a minibatch of a critic.

    Attributes:
        value_loss: as of `MultiAgentLearner.metrics`.
    """

    value_loss: Tensor


def of_agents(flags: NDArray[np.bool_], agents: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Flags of rows, bool [..., E * A], of some agents of each environment (bool [A]); false for those of others."""
    return (flags.reshape(*flags.shape[:-1], -1, len(agents)) & agents).reshape(flags.shape)


class _Samples(NamedTuple):
    """All samples of a rollout."""

    seen: tuple[Tensor, ...]  # arguments of the networks [S, ...]
    values: Tensor  # float32 [T * N]
    returns: Tensor  # float32 [T * N]
    learned: Tensor  # bool [S, W], which agents were alive, and learn


class Critics(ABC):
    """Networks that value observations, with an optimiser each. A sample is what one pass through them values: W rows
    of the rollout, one after the other.

    Args:
        config: hyper-parameters.
        optimizers: of the networks, by name.
        width: W.
        learns: agents of an environment that learn, bool [A]; others are observed, and their values have no meaning.
        generator: of the order of samples and dropout.
        device: of the networks.
        ranks: that learn together.

    Attributes:
        compiled: by name, the gradient steps of those that have compiled ones; PyTorch takes those of the others.
    """

    def __init__(
        self,
        config: MultiAgentConfig,
        optimizers: Mapping[str, FlatAdam[Any]],
        width: int,
        learns: NDArray[np.bool_],
        generator: torch.Generator,
        device: torch.device,
        ranks: Ranks = ALONE,
    ) -> None:
        self.config, self.optimizers, self.device = config, optimizers, device
        self.num_agents = len(learns)
        self._width, self._learns = width, torch.from_numpy(learns)
        self._generator, self._ranks = generator, ranks
        self.compiled: Compiled = {}

    @abstractmethod
    def evaluate(self, rollout: Rollout) -> None:
        """Fills ``values``, and ``final_values`` where agents were cut off."""

    @abstractmethod
    def values_at(self, obs: Tensor, alive: Tensor) -> Tensor:
        """Values float32 [K] of rows of agents [K, obs_dim] without a memory that act (bool [K]); zeros of others."""

    @abstractmethod
    def observe(self, rollout: Rollout, rows: Rows) -> None:
        """Takes the rollout's observations into the running statistics, if there are any."""

    @abstractmethod
    def _samples(self, name: str, every: _Samples, rows: Rows) -> Tensor:
        """The samples int64 [S] that a critic learns from."""

    @abstractmethod
    def _rows(self, every: _Samples, samples: Tensor) -> tuple[Tensor, Tensor | None]:
        """The rows int64 [B] of the rollout that samples int64 [S] have and that are learned from, and where they are
        among the [S * W] values; None: they are all of them."""

    @abstractmethod
    def _seen(self, obs: Tensor, alive: Tensor, memories: Tensor) -> tuple[Tensor, ...]:
        """Arguments of the networks, by sample, from arrays [T * N, ...]."""

    def _write_values(
        self, name: str, seen: Sequence[Tensor], samples: NDArray[np.int64], out: NDArray[np.float32]
    ) -> None:
        """Writes the values of some samples int64 [S] to their rows of ``out``, float32 [all, W]."""
        critic = self.optimizers[name].network
        is_compiled = name in self.compiled
        with torch.inference_mode():
            if is_compiled and critic.takes_obs:
                self.compiled[name].values(seen[0], samples, out)
                return
            for part in torch.from_numpy(samples).split(CHUNK if is_compiled else self._chunk(critic)):
                inputs = critic.inputs(
                    *(each.index_select(0, part).to(self.device) for each in seen), encoded=not is_compiled
                )
                if is_compiled:
                    values = np.empty((len(part), self._width), np.float32)
                    self.compiled[name].values(inputs, np.arange(len(part)), values)
                else:
                    values = critic.body(inputs).cpu().numpy()
                out[part.numpy()] = values

    def _chunk(self, critic: Critic | CentralCritic) -> int:
        """Samples of one pass."""
        return max(critic.chunk // self._width, 1)

    def prepare(
        self,
        rollout: Rollout,
        rows: Rows,
        learning_rate: float,
        loss: Callable[[CriticMinibatch], CriticLoss],
    ) -> Callable[[], list[Tensor]]:
        """Makes a function that learns by a loss from the rows int64 [B] (of [T * N]) of each policy; another thread
        may call it. It returns the parts of `CriticLoss`, and the norm of the gradient before clipping, float32 [2],
        of each step."""
        every = self._all_samples(rollout)
        samples = {name: self._samples(name, every, rows) for name in self.optimizers}
        if not self.compiled:
            return functools.partial(self._learn, every, samples, learning_rate, loss)
        steps: Iterable[Callable[[], StepMeans]] = (
            self._compiled_steps(name, every, each, learning_rate)
            for name, each in samples.items()
            if len(each)
        )
        if self._width == len(self.compiled) == 1:
            # Its samples take no time but the interpreter's, for which two threads would wait for each other.
            steps = list(steps)
        return lambda: [
            step for take in steps for step in take().of_each_step(*CriticLoss.names(), "grad_norm")
        ]

    def _compiled_steps(
        self, name: str, every: _Samples, samples: Tensor, learning_rate: float
    ) -> Callable[[], StepMeans]:
        config, optimizer = self.config, self.optimizers[name]
        return self.compiled[name].prepare(
            _compiled_samples(optimizer.network, every, samples),
            optimizer,
            self._generator,
            num_epochs=config.critic_epochs,
            minibatch_size=config.minibatch_size // self._width,
            learning_rate=learning_rate,
            max_grad_norm=config.max_grad_norm,
        )

    def _learn(
        self,
        every: _Samples,
        samples: Mapping[str, Tensor],
        learning_rate: float,
        loss: Callable[[CriticMinibatch], CriticLoss],
    ) -> list[Tensor]:
        """PyTorch's gradient steps, from samples int64 [S] of each critic."""
        config, found = self.config, list[Tensor]()
        size = config.minibatch_size // self._width
        for name, optimizer in self.optimizers.items():
            for _ in range(config.critic_epochs):
                for part in minibatches(samples[name], size, self._generator):
                    learn = functools.partial(self._differentiate, optimizer, every, loss, part)
                    means = self._ranks.reduce(optimizer.gradient, len(part), len(CriticLoss.names()), learn)
                    norm = optimizer.step(learning_rate, config.max_grad_norm)
                    found.append(torch.cat([means, norm.view(1)]))
        return found

    def _all_samples(self, rollout: Rollout) -> _Samples:
        names = ("obs", "alive", "memories", "values", "returns")
        obs, alive, memories, values, returns = map(rollout.flat, names)
        learned = alive.view(-1, self.num_agents) & self._learns
        return _Samples(self._seen(obs, alive, memories), values, returns, learned.view(-1, self._width))

    def _differentiate(
        self,
        optimizer: FlatAdam[Any],
        every: _Samples,
        loss: Callable[[CriticMinibatch], CriticLoss],
        samples: Tensor,
        shard: Shard,
    ) -> Tensor | None:
        """Adds the gradient of a shard of a minibatch to that of a critic; parts of its `CriticLoss`, weighted."""
        critic, size, found = optimizer.network, int(every.learned.index_select(0, samples).sum()), []
        for chunk in samples[shard.rows].split(self._chunk(critic)):
            if not len(chunk):
                continue
            drops = optimizer.drops(len(chunk), self.config.dropout, self._generator)
            obs, *others = (each.index_select(0, chunk).to(self.device) for each in every.seen)
            rows, places = self._rows(every, chunk)
            old_values, returns = (
                each.index_select(0, rows).to(self.device) for each in (every.values, every.returns)
            )
            agents = (rows % self.num_agents).to(self.device)
            with autocast(self.device.type, self.config.precision):
                values = critic(obs, *others, drops).float().flatten()
            if places is not None:
                values = values.index_select(0, places.to(self.device))
            losses = loss(CriticMinibatch(critic, obs, agents, values, old_values, returns))
            weight = len(rows) / size
            torch.autograd.backward(losses.total * weight)
            found.append(losses.metrics() * weight)
        return torch.stack(found).sum(0) if found else None


def _compiled_samples(critic: Critic | CentralCritic, every: _Samples, samples: Tensor) -> Samples:
    with torch.no_grad():
        inputs = critic.inputs(*every.seen, encoded=False)
    # A critic of one value a sample has no axis of agents.
    returns, values, learned = (
        each.view(every.learned.shape)[samples].squeeze(1)
        for each in (every.returns, every.values, every.learned)
    )
    return Samples(inputs, samples, returns, values, learned=learned)


class OwnCritics(Critics):
    """A critic for each policy that learns, which sees what its agent sees and remembers. A sample is a row.

    Args:
        members: which agents of an environment follow the policy, bool [A], by name.
        others: as of `Critics`.
    """

    def __init__(
        self,
        config: MultiAgentConfig,
        critics: Mapping[str, FlatAdam[Critic]],
        members: Mapping[str, NDArray[np.bool_]],
        *others: Any,
    ) -> None:
        super().__init__(config, critics, 1, *others)
        self._members = members
        # Of the rows of the largest arrays so far.
        self._agents = torch.arange(0)

    def evaluate(self, rollout: Rollout) -> None:
        cut_off = rollout.cut_off()
        for name in self.optimizers:
            members = self._members[name]
            for arrays, chosen, values in (
                (
                    (rollout.obs, rollout.alive, rollout.memories),
                    of_agents(rollout.alive, members),
                    rollout.values,
                ),
                (
                    (rollout.final_obs, rollout.alive, rollout.final_memories),
                    of_agents(cut_off, members),
                    rollout.final_values,
                ),
            ):
                rows = np.flatnonzero(chosen)
                if len(rows):
                    seen = self._seen(*(torch.from_numpy(each).flatten(0, 1) for each in arrays))
                    self._write_values(name, seen, rows, values.reshape(-1, 1))

    def values_at(self, obs: Tensor, alive: Tensor) -> Tensor:
        values, seen = np.zeros((len(obs), 1), np.float32), self._seen(obs, alive, obs.new_zeros(len(obs), 0))
        for name in self.optimizers:
            rows = np.flatnonzero(of_agents(alive.numpy(), self._members[name]))
            self._write_values(name, seen, rows, values)
        return torch.from_numpy(values).flatten()

    def observe(self, rollout: Rollout, rows: Rows) -> None:
        for name, optimizer in self.optimizers.items():
            if len(rows[name]):
                optimizer.network.observe(rollout.flat("obs")[torch.from_numpy(rows[name])].to(self.device))

    def _samples(self, name: str, every: _Samples, rows: Rows) -> Tensor:
        return torch.from_numpy(rows[name])

    def _rows(self, every: _Samples, samples: Tensor) -> tuple[Tensor, None]:
        return samples, None

    def _seen(self, obs: Tensor, alive: Tensor, memories: Tensor) -> tuple[Tensor, ...]:
        if len(self._agents) < len(obs):
            self._agents = torch.arange(len(obs)) % self.num_agents
        return obs, self._agents[: len(obs)], memories


class CentralCritics(Critics):
    """One critic of whole environments. A sample is an environment at a step.

    Args:
        critic: of A agents.
        learns, others: as of `Critics`.
    """

    def __init__(
        self,
        config: MultiAgentConfig,
        critic: FlatAdam[CentralCritic],
        learns: NDArray[np.bool_],
        *others: Any,
    ) -> None:
        super().__init__(config, {"central": critic}, len(learns), learns, *others)

    def evaluate(self, rollout: Rollout) -> None:
        """An environment in which agents were cut off is valued with the agents that would have continued."""
        shape = (-1, self.num_agents)
        cut_off = rollout.cut_off()
        continuing = rollout.alive[:-1] & ~rollout.terminations
        # Agents that are not cut off have the memory of their next step then.
        memories = np.where(cut_off[..., None], rollout.final_memories, rollout.memories[1:])
        everywhere = np.arange(rollout.alive.size // self.num_agents)
        for arrays, envs, values in (
            ((rollout.obs, rollout.alive, rollout.memories), everywhere, rollout.values),
            (
                (rollout.final_obs, continuing, memories),
                np.flatnonzero(cut_off.reshape(shape).any(1)),
                rollout.final_values,
            ),
        ):
            seen = self._seen(*(torch.from_numpy(each).flatten(0, 1) for each in arrays))
            self._write_values("central", seen, envs, values.reshape(shape))

    def values_at(self, obs: Tensor, alive: Tensor) -> Tensor:
        seen = self._seen(obs, alive, obs.new_zeros(len(obs), 0))
        envs = np.arange(len(obs) // self.num_agents)
        values = np.empty((len(envs), self.num_agents), np.float32)
        self._write_values("central", seen, envs, values)
        return torch.where(alive, torch.from_numpy(values).flatten(), 0.0)

    def observe(self, rollout: Rollout, rows: Rows) -> None:
        """Takes what all living agents observed."""
        alive = rollout.flat("alive").nonzero().squeeze(1)
        self.optimizers["central"].network.observe(rollout.flat("obs")[alive].to(self.device))

    def _samples(self, name: str, every: _Samples, rows: Rows) -> Tensor:
        return every.learned.any(1).nonzero().squeeze(1)

    def _rows(self, every: _Samples, samples: Tensor) -> tuple[Tensor, Tensor]:
        rows = samples.unsqueeze(1) * self.num_agents + torch.arange(self.num_agents)
        places = every.learned.index_select(0, samples).flatten().nonzero().squeeze(1)
        return rows.flatten().index_select(0, places), places

    def _seen(self, obs: Tensor, alive: Tensor, memories: Tensor) -> tuple[Tensor, ...]:
        return tuple(each.unflatten(0, (-1, self.num_agents)) for each in (obs, alive, memories))
