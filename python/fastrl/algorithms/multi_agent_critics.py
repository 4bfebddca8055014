"""Critics of many agents: values of rollouts, and their regression on returns."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fastrl.algorithms.compiled_networks import Compiled
from fastrl.algorithms.compiled_update import Samples
from fastrl.algorithms.flat_adam import FlatAdam, minibatches
from fastrl.algorithms.multi_agent_settings import MultiAgentConfig
from fastrl.networks.multi_agent import CentralCritic, Critic
from fastrl.rollout.rollout import Rollout
from fastrl.utils.ranks import ALONE, Ranks, Shard

Rows = Mapping[str, NDArray[np.int64]]


class OwnCritics:
    """A critic for each policy that learns, which sees what its agent sees and remembers.

    Args:
        config: hyper-parameters.
        critics: by the policy's name.
        members: which agents of an environment follow the policy, bool [A], by name.
        generator: of the order of samples and dropout.
        device: of the critics.
        ranks: that learn together.
    """

    def __init__(
        self,
        config: MultiAgentConfig,
        critics: Mapping[str, FlatAdam[Critic]],
        members: Mapping[str, NDArray[np.bool_]],
        generator: torch.Generator,
        device: torch.device,
        ranks: Ranks = ALONE,
    ) -> None:
        self.config, self._ranks = config, ranks
        self.optimizers = critics
        self.device = device
        self._members = members
        self._generator = generator
        # By name, those whose gradient steps are compiled; PyTorch takes those of the others.
        self.compiled: Compiled = {}

    def evaluate(self, rollout: Rollout) -> None:
        """Fills ``values``, and ``final_values`` where agents were cut off."""
        cut_off = rollout.cut_off()
        for name, optimizer in self.optimizers.items():
            members = np.tile(self._members[name], rollout.num_rows // len(self._members[name]))
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

    def update(self, rollout: Rollout, rows: Rows, learning_rate: float) -> list[Tensor]:
        """Learns from the rows int64 [B] (of [T * N]) of each policy; loss and gradient norm [2] of each step."""
        config, sums = self.config, []
        for name, optimizer in self.optimizers.items():
            own = torch.from_numpy(rows[name])
            if name in self.compiled and len(own):
                with torch.no_grad():
                    obs = optimizer.network.inputs(rollout.flat("obs")[own], self._agents(own))
                targets = (rollout.flat(target)[own] for target in ("returns", "values"))
                means = self.compiled[name](
                    Samples(obs, torch.arange(len(own)), *targets),
                    self._generator,
                    num_epochs=config.critic_epochs,
                    minibatch_size=config.minibatch_size,
                    learning_rate=learning_rate,
                    max_grad_norm=config.max_grad_norm,
                )
                sums += means.of_each_step("value_loss", "grad_norm")
                continue
            for _ in range(config.critic_epochs):
                for part in minibatches(own, config.minibatch_size, self._generator):

                    def learn(
                        shard: Shard, optimizer: FlatAdam[Critic] = optimizer, part: Tensor = part
                    ) -> Tensor:
                        return self._differentiate(optimizer, rollout, part[shard.rows], len(part))

                    loss = self._ranks.reduce(optimizer.gradient, len(part), 1, learn)
                    norm = optimizer.step(learning_rate, config.max_grad_norm)
                    sums.append(torch.cat([loss, norm.view(1)]))
        return sums

    def _differentiate(
        self, optimizer: FlatAdam[Critic], rollout: Rollout, rows: Tensor, size: int
    ) -> Tensor:
        """Adds the gradients of some of ``size`` samples to those of a critic; their loss, weighted, float32 [1]."""
        total = torch.zeros(1, device=self.device)
        for chunk in rows.split(optimizer.network.chunk):
            if not len(chunk):
                continue
            obs, memories, returns = (
                rollout.flat(name).index_select(0, chunk).to(self.device)
                for name in ("obs", "memories", "returns")
            )
            drops = optimizer.drops(len(chunk), self.config.dropout, self._generator)
            errors = optimizer.network(obs, self._agents(chunk), memories, drops) - returns
            loss = errors.square().sum() / (2 * size)
            torch.autograd.backward(loss)
            total += loss.detach()
        return total

    def observe(self, rollout: Rollout, rows: Rows) -> None:
        """Takes the rollout's observations into the running statistics, if there are any."""
        for name, optimizer in self.optimizers.items():
            if len(rows[name]):
                optimizer.network.observe(rollout.flat("obs")[torch.from_numpy(rows[name])].to(self.device))

    def _agents(self, rows: Tensor) -> Tensor:
        num_agents = len(next(iter(self._members.values())))
        return (rows % num_agents).to(self.device)


class CentralCritics:
    """One critic of whole environments.

    Args:
        config: hyper-parameters.
        critic: of A agents.
        learns: agents of an environment that learn, bool [A]; others are observed, and their values have no meaning.
        generator: of the order of samples and dropout.
        device: of the critic.
        ranks: that learn together.
    """

    def __init__(
        self,
        config: MultiAgentConfig,
        critic: FlatAdam[CentralCritic],
        learns: NDArray[np.bool_],
        generator: torch.Generator,
        device: torch.device,
        ranks: Ranks = ALONE,
    ) -> None:
        self.config, self._ranks = config, ranks
        self.optimizers = {"central": critic}
        self.device = device
        self._learns = learns
        self._generator = generator
        # "central", if its gradient steps are compiled.
        self.compiled: Compiled = {}

    def evaluate(self, rollout: Rollout) -> None:
        """Fills ``values``, and ``final_values`` of environments in which agents were cut off.

        An environment is valued there with the agents that would have continued.
        """
        shape = (-1, len(self._learns))
        cut_off = rollout.cut_off()
        envs = np.flatnonzero(cut_off.reshape(shape).any(1))
        everywhere = np.arange(rollout.alive.size // len(self._learns))
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
        num_agents = len(self._learns)
        tensors = [torch.from_numpy(each).flatten(0, 1).unflatten(0, (-1, num_agents)) for each in arrays]
        critic = self.optimizers["central"].network
        with torch.inference_mode():
            values = []
            for part in torch.from_numpy(envs).split(max(critic.chunk // num_agents, 1)):
                values.append(critic(*(each.index_select(0, part).to(self.device) for each in tensors)).cpu())
            return torch.cat(values).numpy()

    def update(self, rollout: Rollout, rows: Rows, learning_rate: float) -> list[Tensor]:
        """Learns from all environments in which a learning agent acted; loss and gradient norm [2] of each step."""
        config, optimizer = self.config, self.optimizers["central"]
        shape = (-1, len(self._learns))
        all_obs, all_alive, all_memories, all_returns = (
            rollout.flat(name).unflatten(0, shape) for name in ("obs", "alive", "memories", "returns")
        )
        learns = torch.from_numpy(self._learns)
        samples = (all_alive & learns).any(1).nonzero().squeeze(1)
        size = config.minibatch_size // len(self._learns)
        if "central" in self.compiled and len(samples):
            with torch.no_grad():
                obs = optimizer.network.inputs(all_obs[samples], all_alive[samples])
            # A critic of one agent has one value a sample.
            returns, values, learned = (
                each[samples].squeeze(1)
                for each in (all_returns, rollout.flat("values").unflatten(0, shape), all_alive & learns)
            )
            means = self.compiled["central"](
                Samples(obs, torch.arange(len(samples)), returns, values, learned=learned),
                self._generator,
                num_epochs=config.critic_epochs,
                minibatch_size=size,
                learning_rate=learning_rate,
                max_grad_norm=config.max_grad_norm,
            )
            return means.of_each_step("value_loss", "grad_norm")
        chunk_size = max(optimizer.network.chunk // len(self._learns), 1)
        sums = []
        for _ in range(config.critic_epochs):
            for part in minibatches(samples, size, self._generator):
                learning = (all_alive.index_select(0, part) & learns).to(self.device)
                count = learning.sum()

                def learn(
                    shard: Shard, part: Tensor = part, learning: Tensor = learning, count: Tensor = count
                ) -> Tensor:
                    total = torch.zeros(1, device=self.device)
                    of_shard = part[shard.rows].split(chunk_size), learning[shard.rows].split(chunk_size)
                    for envs, counts in zip(*of_shard, strict=True):
                        if not len(envs):
                            continue
                        drops = optimizer.drops(len(envs), config.dropout, self._generator)
                        obs, alive, memories, returns = (
                            each.index_select(0, envs).to(self.device)
                            for each in (all_obs, all_alive, all_memories, all_returns)
                        )
                        values = optimizer.network(obs, alive, memories, drops)
                        errors = torch.where(counts, values - returns, 0.0)
                        loss = errors.square().sum() / (2 * count)
                        torch.autograd.backward(loss)
                        total += loss.detach()
                    return total

                loss = self._ranks.reduce(optimizer.gradient, len(part), 1, learn)
                norm = optimizer.step(learning_rate, config.max_grad_norm)
                sums.append(torch.cat([loss, norm.view(1)]))
        return sums

    def observe(self, rollout: Rollout, rows: Rows) -> None:
        """Takes what all living agents observed into the running statistics, if there are any."""
        alive = rollout.flat("alive").nonzero().squeeze(1)
        self.optimizers["central"].network.observe(rollout.flat("obs")[alive].to(self.device))
