"""Critics of many agents: values of rollouts, and their regression on returns."""

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fastrl.algorithms.compiled_networks import Compiled
from fastrl.algorithms.compiled_update import Samples
from fastrl.algorithms.flat_adam import FlatAdam, minibatches
from fastrl.algorithms.loss import Loss
from fastrl.algorithms.multi_agent_settings import MultiAgentConfig
from fastrl.networks.multi_agent import CentralCritic, Critic
from fastrl.rollout.rollout import Rollout
from fastrl.utils.ranks import ALONE, Ranks, Shard

Rows = Mapping[str, NDArray[np.int64]]
C = TypeVar("C", Critic, CentralCritic)


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


class Critics(ABC, Generic[C]):
    """Networks that value observations, with an optimiser each.

    Args:
        config: hyper-parameters.
        optimizers: of the networks, by name.
        num_agents: of an environment, A.
        generator: of the order of samples and dropout.
        device: of the networks.
        ranks: that learn together.

    Attributes:
        compiled: by name, the gradient steps of those that have compiled ones; PyTorch takes those of the others.
    """

    def __init__(
        self,
        config: MultiAgentConfig,
        optimizers: Mapping[str, FlatAdam[C]],
        num_agents: int,
        generator: torch.Generator,
        device: torch.device,
        ranks: Ranks = ALONE,
    ) -> None:
        self.config = config
        self.optimizers: Mapping[str, FlatAdam[C]] = optimizers
        self.num_agents, self.device = num_agents, device
        self._generator, self._ranks = generator, ranks
        self.compiled: Compiled = {}

    @abstractmethod
    def evaluate(self, rollout: Rollout) -> None:
        """Fills ``values``, and ``final_values`` where agents were cut off."""

    @abstractmethod
    def observe(self, rollout: Rollout, rows: Rows) -> None:
        """Takes the rollout's observations into the running statistics, if there are any."""

    def update(
        self,
        rollout: Rollout,
        rows: Rows,
        learning_rate: float,
        loss: Callable[[CriticMinibatch], CriticLoss],
    ) -> list[Tensor]:
        """Learns by a loss from the rows int64 [B] (of [T * N]) of each policy.

        Returns:
            The parts of `CriticLoss`, and the norm of the gradient before clipping, float32 [2], of each step.
        """
        config, found = self.config, list[Tensor]()
        size = config.minibatch_size // self._agents_of_sample
        for name, optimizer in self.optimizers.items():
            samples = self._samples(name, rollout, rows)
            if name in self.compiled and len(samples):
                steps = self.compiled[name](
                    self._compiled_samples(optimizer.network, rollout, samples),
                    self._generator,
                    num_epochs=config.critic_epochs,
                    minibatch_size=size,
                    learning_rate=learning_rate,
                    max_grad_norm=config.max_grad_norm,
                )
                found += steps.of_each_step(*CriticLoss.names(), "grad_norm")
                continue
            for _ in range(config.critic_epochs):
                for part in minibatches(samples, size, self._generator):
                    learn = functools.partial(self._differentiate, optimizer, rollout, loss, part)
                    means = self._ranks.reduce(optimizer.gradient, len(part), len(CriticLoss.names()), learn)
                    norm = optimizer.step(learning_rate, config.max_grad_norm)
                    found.append(torch.cat([means, norm.view(1)]))
        return found

    def _differentiate(
        self,
        optimizer: FlatAdam[C],
        rollout: Rollout,
        loss: Callable[[CriticMinibatch], CriticLoss],
        samples: Tensor,
        shard: Shard,
    ) -> Tensor | None:
        """Adds the gradient of a shard of a minibatch to that of a critic; parts of its `CriticLoss`, weighted."""
        critic, size, found = optimizer.network, self._num_steps(rollout, samples), []
        for chunk in samples[shard.rows].split(self._chunk(critic)):
            if len(chunk):
                drops = optimizer.drops(len(chunk), self.config.dropout, self._generator)
                batch = self._minibatch(critic, rollout, chunk, drops)
                losses, weight = loss(batch), len(batch.values) / size
                torch.autograd.backward(losses.total * weight)
                found.append(losses.metrics() * weight)
        return torch.stack(found).sum(0) if found else None

    def _chunk(self, critic: C) -> int:
        """Samples of one pass."""
        return max(critic.chunk // self._agents_of_sample, 1)

    @property
    @abstractmethod
    def _agents_of_sample(self) -> int: ...

    @abstractmethod
    def _samples(self, name: str, rollout: Rollout, rows: Rows) -> Tensor:
        """Samples int64 [S] that a critic learns from."""

    @abstractmethod
    def _num_steps(self, rollout: Rollout, samples: Tensor) -> int:
        """Steps of agents in samples."""

    @abstractmethod
    def _compiled_samples(self, critic: C, rollout: Rollout, samples: Tensor) -> Samples: ...

    @abstractmethod
    def _minibatch(
        self, critic: C, rollout: Rollout, samples: Tensor, drops: Sequence[Tensor]
    ) -> CriticMinibatch: ...

    def _agents(self, rows: Tensor) -> Tensor:
        return (rows % self.num_agents).to(self.device)


class OwnCritics(Critics[Critic]):
    """A critic for each policy that learns, which sees what its agent sees and remembers. Samples are rows of [T * N].

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
        super().__init__(config, critics, *others)
        self._members = members

    def evaluate(self, rollout: Rollout) -> None:
        cut_off = rollout.cut_off()
        for name, optimizer in self.optimizers.items():
            members = np.tile(self._members[name], rollout.num_rows // self.num_agents)
            for arrays, chosen, values in (
                ((rollout.obs, rollout.memories), rollout.alive & members, rollout.values),
                ((rollout.final_obs, rollout.final_memories), cut_off & members, rollout.final_values),
            ):
                rows = np.flatnonzero(chosen)
                values.reshape(-1)[rows] = self._values(optimizer.network, arrays, rows)

    def _values(
        self, critic: Critic, arrays: Sequence[NDArray[Any]], rows: NDArray[np.int64]
    ) -> NDArray[np.float32]:
        """Values float32 [B] of rows int64 [B], indices into observations and memories [T * N, ...]."""
        tensors = [torch.from_numpy(array).flatten(0, 1) for array in arrays]
        with torch.inference_mode():
            values = []
            for part in torch.from_numpy(rows).split(critic.chunk):
                obs, memories = (each.index_select(0, part).to(self.device) for each in tensors)
                values.append(critic(obs, self._agents(part), memories).cpu())
            return torch.cat(values).numpy()

    def observe(self, rollout: Rollout, rows: Rows) -> None:
        for name, optimizer in self.optimizers.items():
            if len(rows[name]):
                optimizer.network.observe(rollout.flat("obs")[torch.from_numpy(rows[name])].to(self.device))

    @property
    def _agents_of_sample(self) -> int:
        return 1

    def _samples(self, name: str, rollout: Rollout, rows: Rows) -> Tensor:
        return torch.from_numpy(rows[name])

    def _num_steps(self, rollout: Rollout, samples: Tensor) -> int:
        return len(samples)

    def _compiled_samples(self, critic: Critic, rollout: Rollout, samples: Tensor) -> Samples:
        with torch.no_grad():
            obs = critic.inputs(rollout.flat("obs")[samples], self._agents(samples))
        targets = (rollout.flat(target)[samples] for target in ("returns", "values"))
        return Samples(obs, torch.arange(len(samples)), *targets)

    def _minibatch(
        self, critic: Critic, rollout: Rollout, samples: Tensor, drops: Sequence[Tensor]
    ) -> CriticMinibatch:
        obs, memories, old_values, returns = (
            rollout.flat(name).index_select(0, samples).to(self.device)
            for name in ("obs", "memories", "values", "returns")
        )
        agents = self._agents(samples)
        return CriticMinibatch(critic, obs, agents, critic(obs, agents, memories, drops), old_values, returns)


class CentralCritics(Critics[CentralCritic]):
    """One critic of whole environments. Samples are environments, of [T * E].

    Args:
        critic: of A agents.
        learns: agents of an environment that learn, bool [A]; others are observed, and their values have no meaning.
        others: as of `Critics`.
    """

    def __init__(
        self,
        config: MultiAgentConfig,
        critic: FlatAdam[CentralCritic],
        learns: NDArray[np.bool_],
        *others: Any,
    ) -> None:
        super().__init__(config, {"central": critic}, *others)
        self._learns = learns

    def evaluate(self, rollout: Rollout) -> None:
        """An environment in which agents were cut off is valued with the agents that would have continued."""
        shape = (-1, self.num_agents)
        cut_off = rollout.cut_off()
        envs = np.flatnonzero(cut_off.reshape(shape).any(1))
        everywhere = np.arange(rollout.alive.size // self.num_agents)
        continuing = rollout.alive[:-1] & ~rollout.terminations
        arrays = rollout.obs, rollout.alive, rollout.memories
        rollout.values.reshape(shape)[:] = self._values(arrays, everywhere)
        # Agents that are not cut off have the memory of their next step then.
        memories = np.where(cut_off[..., None], rollout.final_memories, rollout.memories[1:])
        arrays = rollout.final_obs, continuing, memories
        rollout.final_values.reshape(shape)[envs] = self._values(arrays, envs)

    def _values(self, arrays: Sequence[NDArray[Any]], envs: NDArray[np.int64]) -> NDArray[np.float32]:
        """Values float32 [B, A] of environments int64 [B], indices into observations, flags of living agents, and
        memories [T * K, A, ...]."""
        tensors = [
            torch.from_numpy(each).flatten(0, 1).unflatten(0, (-1, self.num_agents)) for each in arrays
        ]
        critic = self.optimizers["central"].network
        with torch.inference_mode():
            values = []
            for part in torch.from_numpy(envs).split(self._chunk(critic)):
                values.append(critic(*(each.index_select(0, part).to(self.device) for each in tensors)).cpu())
            return torch.cat(values).numpy()

    def observe(self, rollout: Rollout, rows: Rows) -> None:
        """Takes what all living agents observed."""
        alive = rollout.flat("alive").nonzero().squeeze(1)
        self.optimizers["central"].network.observe(rollout.flat("obs")[alive].to(self.device))

    def _by_env(self, rollout: Rollout, name: str) -> Tensor:
        """An array of the rollout, [T * E, A, ...]."""
        return rollout.flat(name).unflatten(0, (-1, self.num_agents))

    def _learned(self, rollout: Rollout, samples: Tensor) -> Tensor:
        """Mask bool [S, A] of the agents that were alive and learn."""
        return self._by_env(rollout, "alive").index_select(0, samples) & torch.from_numpy(self._learns)

    @property
    def _agents_of_sample(self) -> int:
        return self.num_agents

    def _samples(self, name: str, rollout: Rollout, rows: Rows) -> Tensor:
        learned = self._by_env(rollout, "alive") & torch.from_numpy(self._learns)
        return learned.any(1).nonzero().squeeze(1)

    def _num_steps(self, rollout: Rollout, samples: Tensor) -> int:
        return int(self._learned(rollout, samples).sum())

    def _compiled_samples(self, critic: CentralCritic, rollout: Rollout, samples: Tensor) -> Samples:
        obs, alive, returns, values = (
            self._by_env(rollout, name)[samples] for name in ("obs", "alive", "returns", "values")
        )
        with torch.no_grad():
            inputs = critic.inputs(obs, alive)
        # A critic of one agent has one value a sample.
        returns, values, learned = (
            each.squeeze(1) for each in (returns, values, self._learned(rollout, samples))
        )
        return Samples(inputs, torch.arange(len(samples)), returns, values, learned=learned)

    def _minibatch(
        self, critic: CentralCritic, rollout: Rollout, samples: Tensor, drops: Sequence[Tensor]
    ) -> CriticMinibatch:
        obs, alive, memories, old_values, returns = (
            self._by_env(rollout, name).index_select(0, samples).to(self.device)
            for name in ("obs", "alive", "memories", "values", "returns")
        )
        places = self._learned(rollout, samples).flatten().nonzero().squeeze(1)
        agents, places = self._agents(places), places.to(self.device)
        values, old_values, returns = (
            each.flatten().index_select(0, places)
            for each in (critic(obs, alive, memories, drops), old_values, returns)
        )
        return CriticMinibatch(critic, obs, agents, values, old_values, returns)
