"""Base of algorithms that learn policies of many agents: policies, critics, advantages, saving.

One agent could be learned here, as one row of each environment. But `fastrl.algorithms.ppo` learns it otherwise, and
joining the two would cost both. There, an actor and a critic take one step together; observations that repeat pass
through the network once (CAGE 2 repeats them fifty times); there are fp16 and ``torch.compile``. Here, policies and
critics are many networks, each with steps of its own, on two threads. The rollout, the perceptrons and the compiled
gradient steps are the same.
"""

import functools
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fastrl.algorithms.compiled_networks import Compiled, compiled_networks
from fastrl.algorithms.flat_adam import FlatAdam, minibatches, networks_of
from fastrl.algorithms.loss import Loss
from fastrl.algorithms.multi_agent_critics import (
    CentralCritics,
    CriticLoss,
    CriticMinibatch,
    OwnCritics,
    Rows,
    of_agents,
)
from fastrl.algorithms.multi_agent_settings import MultiAgentConfig
from fastrl.algorithms.optimizer import autocast
from fastrl.algorithms.ppo_loss import log_probs_and_entropy, log_probs_of
from fastrl.algorithms.protocol import MultiAgentAlgorithm, Problem
from fastrl.algorithms.reward_scaling import ReturnScale
from fastrl.algorithms.schedules import Schedule, first_value
from fastrl.algorithms.sequence_passes import SequenceBatch, SequencePasses
from fastrl.algorithms.team_learner import Partners, TeamLearner
from fastrl.networks.distributions import mask_logits
from fastrl.networks.multi_agent import CentralCritic, Critic, PolicyNetwork
from fastrl.networks.parameters import check_shapes, generator_of, load_weights
from fastrl.rollout.fragment import Fragment
from fastrl.rollout.layout import lay_out
from fastrl.rollout.rollout import Rollout, explained_variance
from fastrl.rollout.sequences import Sequences, write_at
from fastrl.utils.ranks import Shard
from fastrl.utils.seeding import NO_ENV
from fastrl.utils.timer import Stopwatch


class Minibatch(NamedTuple):
    """B samples of one policy to learn from, or a part of them. In each an agent acted that was alive."""

    policy: PolicyNetwork  # that they are of
    obs: Tensor  # float32 or, with images, uint8 [B, obs_dim]
    agents: Tensor  # int64 [B], index of the agent in its environment
    outputs: Tensor  # of the policy as it is, with gradients, float32 [B, size]: logits, unmasked, or means
    actions: Tensor  # int64 [B] or [B, n], or draws float32 [B, n]
    log_probs: Tensor  # float32 [B], when the actions were chosen; with dropout under the same one
    advantages: Tensor  # float32 [B]
    masks: Tensor | None = None  # bool [B, size], True = allowed

    def log_probs_and_entropy(self) -> tuple[Tensor, Tensor]:
        """Log-probabilities of the actions and entropies under the policy as it is, see the function of this name."""
        policy = self.policy
        return log_probs_and_entropy(
            self.outputs, policy.log_std, self.actions, policy.choices, masks=self.masks
        )


@dataclass(frozen=True)
class Losses(Loss):
    """The loss of a minibatch of a policy.

    Attributes:
        policy_loss, entropy, approx_kl, clip_fraction: as of `MultiAgentLearner.metrics`.
    """

    policy_loss: Tensor
    entropy: Tensor
    approx_kl: Tensor
    clip_fraction: Tensor


class Pass(NamedTuple):
    """P samples that go through a policy together.

    Attributes:
        rows: int64 [P], indices into [T * N].
        sequences: of a policy with a memory, along which it is carried; None: it has none.
    """

    rows: Tensor
    sequences: SequenceBatch | None = None


class Drawn(NamedTuple):
    """A minibatch of a policy: number of samples, and how those of a shard go through the policy."""

    size: int
    passes: Callable[[Shard], list[Pass]]


class MultiAgentLearner(TeamLearner[Sequence[Fragment]], MultiAgentAlgorithm):
    """Policies of many agents that learn from rollouts; `MAPPO` and `REINFORCE` say how.

    ::

        learner = MAPPO(MAPPOConfig(), Problem(obs_space, action_space, num_envs, total_timesteps, num_agents))
        watch = Stopwatch()
        while learner.updates < learner.total_updates:
            learner.write_weights(buffer)
            collector.publish(buffer)
            learner.update(collector.collect(), watch)

    Everything random comes from the seed: the initial weights, the order of samples and dropout. On a CPU, for a
    given number of torch threads, the same seed gives the same parameters to the bit, also across `state_dict` and
    `load_state_dict`.

    Policies and critics are networks of their own, each with its own Adam and its own clipping. An update of
    policies and one of critics do not need each other, and run on two threads.

    With ``config.memory`` policies have a memory of each agent's episode. Critics are given what the policies
    remembered when they acted, the outputs of their recurrent layers, beside the observations.

    Args:
        config: hyper-parameters.
        problem: observations of an agent are of any space, its actions of a flat one. Rollouts stay in main memory.
        partners: as of `TeamLearner`.

    Attributes:
        updates: done so far; total_updates: of the whole run, over which schedules run, if each has ``num_steps`` steps
            of all environments; with whole episodes schedules count these steps.
        critics: the networks that value observations, with their optimisers.
        entropy_coef: in force.

    Raises:
        ValueError: spaces that it does not take, or policies and partners that do not fit.
    """

    config: MultiAgentConfig
    takes_shards = True

    def __init__(
        self,
        config: MultiAgentConfig,
        problem: Problem,
        partners: Partners | None = None,
    ) -> None:
        num_envs, num_agents, obs_dim = problem.num_envs, problem.num_agents, problem.obs_dim
        seeds = np.random.SeedSequence(problem.seed).spawn(5)
        memory = {"memory": config.memory, "memory_size": config.memory_size}
        super().__init__(config, problem, generator_of(seeds[0]), partners, **memory)
        actions = self.policy.actions
        total_updates = -(-problem.total_timesteps // (config.num_steps * num_envs))
        if self.ranks.shards and config.dropout:
            raise ValueError(
                "dropout is drawn for whole minibatches: set it to 0, or train without ranks and shards"
            )
        self.total_updates, self.num_envs, self.updates = total_updates, num_envs, 0
        self._first_update = problem.schedule_start // (config.num_steps * num_envs)
        scheduled = max(total_updates - self._first_update, 1)
        # All draws are made on the CPU: they are few, and a run may resume on another device. Policies and critics
        # learn at the same time and so have generators of their own.
        # The second and third seed are unused: without them a run would draw other samples and dropout.
        names = ("policies", "critics")
        self._generators = {name: generator_of(each) for name, each in zip(names, seeds[3:], strict=True)}
        members = {name: self.policy.members(name) for name in self.actors}
        learns = np.any(list(members.values()), axis=0)
        # Passes of policies that have a memory.
        self._passes = {
            name: SequencePasses(
                functools.partial(self._along, actor.network),
                nullcontext,
                self.device,
                0,
                actor.network.chunk,
                members[name],
            )
            for name, actor in self.actors.items()
            if actor.network.state_size
        }
        num_memories = config.memory_size if self._passes else 0
        shape = {**self._shape, "num_memories": num_memories}
        self.critics: OwnCritics | CentralCritics
        others = learns, self._generators["critics"], self.device, self.ranks
        if self.central_critic:
            central = FlatAdam(CentralCritic(obs_dim, num_agents, **shape).to(self.device))
            self.critics = CentralCritics(config, central, *others)
        else:
            num_ids = num_agents if config.agent_ids else 0
            critics = {
                name: FlatAdam(Critic(obs_dim, num_ids=num_ids, **shape).to(self.device))
                for name in self.actors
            }
            self.critics = OwnCritics(config, critics, members, *others)
        self._compiled: Compiled = {}
        self._learns = learns
        self._schedules = {
            name: Schedule(
                config.lr_schedule,
                start,
                end=first_value(start) * config.lr_final_share,
                total=scheduled,
                every=config.lr_every,
                factor=config.lr_factor,
                warmup=config.lr_warmup,
            )
            for name, start in {
                "actor": config.learning_rate,
                "critic": config.learning_rate
                if config.critic_learning_rate is None
                else config.critic_learning_rate,
            }.items()
        }
        start, end = config.entropy_coef, config.final_entropy_coef
        self.entropy_coef = first_value(start)
        self._entropy = Schedule(
            "linear", start, end=self.entropy_coef if end is None else end, total=scheduled
        )
        rows = num_envs * num_agents
        self._return_scale = ReturnScale(rows, config.gamma) if config.normalize_rewards else None
        self._reward_scale = 1.0
        self.rollout = Rollout(
            config.num_steps,
            rows,
            obs_dim,
            actions.size,
            masks=config.action_masks,
            continuous=actions.is_box,
            action_width=actions.shape[0] if actions.kind == "multi_discrete" else 0,
            obs_dtype=problem.obs_rows.dtype,
            state_size=self.policy.state_size,
            many_agents=True,
            memory_size=num_memories,
        )
        self._metrics: dict[str, float] = {}
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="critics")

    def _compile(self, known: type["MultiAgentLearner"], losses: Sequence[str]) -> None:
        """Takes compiled gradient steps where there are some.

        Args:
            known: the class whose losses are compiled.
            losses: its methods that are: "critic_loss", and "loss" where policies have compiled steps.

        Raises:
            ValueError: they are asked for, and there are none.
        """
        self._compiled, self.critics.compiled, self._why_not_compiled = compiled_networks(self, known, losses)

    @property
    @abstractmethod
    def central_critic(self) -> bool:
        """True: one critic sees what all agents of an environment observe; false: each sees what its agent does."""

    def update(self, experience: Sequence[Fragment], watch: Stopwatch) -> None:
        self.load_rollout(experience, watch)
        self.learn_rollout(watch)

    def metrics(self) -> dict[str, float]:
        """Numbers of the last update: means over its gradient steps, unless noted; of living, learning agents alone.

        ``policy_loss``: what policies minimise, without the entropy bonus. ``value_loss``: half the mean squared error
        of critics. ``entropy``: of the policies, in nats; for Box actions, of the density before clipping.
        ``approx_kl``: KL(old, new), Schulman's estimator ``ratio - 1 - log(ratio)``. ``clip_fraction``: share of
        samples whose ratio was outside the clip range. ``grad_norm``, ``value_grad_norm``: of policies and critics,
        before clipping. ``explained_variance``: 1 - var(returns - values) / var(returns) over the rollout, before the
        update. ``reward_scale``: what rewards were multiplied by. ``alive``: share of the rollout's rows that held a
        living agent. ``learning_rate``, ``entropy_coef``: in force. ``gradient_steps``: of all policies.
        """
        return self._metrics

    def load_rollout(self, fragments: Sequence[Fragment], watch: Stopwatch) -> None:
        """Makes fragments what is learned from next, and values their observations.

        Raises:
            ValueError: they are of other sizes than this learner's.
            FloatingPointError: observations or parameters are not finite.
        """
        with watch("buffer"):
            rollout = lay_out(fragments, self.rollout)
        envs, agents = sum(each.num_rows for each in fragments), fragments[0].obs.shape[2]
        is_whole = fragments[0].env_indices[0] == NO_ENV
        if agents != self.num_agents or not (is_whole or rollout.num_rows == self.num_envs * agents):
            raise ValueError(
                f"expected whole episodes, or fragments of {self.num_envs} environments, of {self.num_agents} agents;"
                f" got {envs} environments of {agents} agents"
            )
        self.rollout = rollout
        with watch("inference"):
            self._evaluate()
        self.steps += len(rollout) // self.num_agents

    def learn_rollout(self, watch: Stopwatch) -> None:
        """Learns from `rollout`."""
        config, rollout = self.config, self.rollout
        steps_before = max(self.steps - len(rollout) // self.num_agents, 0)
        done = max(steps_before // (config.num_steps * self.num_envs) - self._first_update, 0)
        self.entropy_coef = self._entropy(done)
        actor_rate, critic_rate = (self._schedules[name](done) for name in ("actor", "critic"))
        with watch("returns"):
            acted = self._acted(self._learns)
            if self._return_scale is not None:
                self._reward_scale = self._return_scale.update_rows(rollout, acted)
            rollout.compute_advantages(config.gamma, config.gae_lambda, self._reward_scale)
            explained = explained_variance(rollout.returns[acted], rollout.values[:-1][acted])
            rows = {name: self.rows_of(name) for name in self.actors}
            choices = {name: self._with_choice(each) for name, each in rows.items()}
            if config.normalize_advantages == "rollout":
                flat = rollout.advantages.reshape(-1)
                for chosen in choices.values():
                    advantages = flat[chosen]
                    if len(advantages):
                        flat[chosen] = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
        with watch("update"):
            learn = self.critics.prepare(rollout, rows, critic_rate, self.critic_loss)
            critics = self._pool.submit(learn)
            if self.ranks.count > 1:
                # Ranks exchange gradients in one order.
                wait([critics])
            steps = [
                step
                for name in self.actors
                for step in self._update_policy(name, torch.from_numpy(choices[name]), actor_rate)
            ]
            value_sums = critics.result()
            self._observe(rows)
            self._check_parameters()
        means = torch.stack(steps).mean(0).tolist() if steps else [0.0] * (len(Losses.names()) + 1)
        value_means = torch.stack(value_sums).mean(0).tolist() if value_sums else [0.0] * 2
        self.updates += 1
        policy_loss, entropy, approx_kl, clip_fraction, grad_norm = means
        self._metrics = {
            "policy_loss": policy_loss,
            "value_loss": value_means[0],
            "entropy": entropy,
            "approx_kl": approx_kl,
            "clip_fraction": clip_fraction,
            "grad_norm": grad_norm,
            "value_grad_norm": value_means[1],
            "explained_variance": explained,
            "reward_scale": self._reward_scale,
            "alive": float(rollout.alive[:-1].mean()),
            "learning_rate": actor_rate,
            "entropy_coef": self.entropy_coef,
            "gradient_steps": float(len(steps)),
        }

    @abstractmethod
    def _update_policy(self, name: str, rows: Tensor, learning_rate: float) -> list[Tensor]:
        """Learns from the rows int64 [B] (of T * N) of one policy; what `_policy_step` gives of each step."""

    @abstractmethod
    def loss(self, batch: Minibatch) -> Losses:
        """The loss of a minibatch of a policy. A subclass may change it, see the guide "A loss of your own"."""

    def critic_loss(self, batch: CriticMinibatch) -> CriticLoss:
        """Half the mean squared error of the values V(s) from the returns R, of a minibatch of a critic. A subclass may
        change it. It is called on another thread than `loss`, at the same time."""
        V, R = batch.values, batch.returns
        L = (V - R).square().mean() / 2
        return CriticLoss(L, value_loss=L)

    def _minibatches(self, name: str, rows: Tensor) -> Iterator[Drawn]:
        """The rows int64 [B] (of [T * N]) of a policy in a new order, in minibatches; with a memory whole rows of
        fragments."""
        size, generator = self.config.minibatch_size, self._generators["policies"]
        if name in self._passes:
            shards = self._passes[name].minibatches(size, generator, max(self.ranks.shards, 1))
            return (self._of_sequences(name, each) for each in shards)
        return (self._of_rows(name, each) for each in minibatches(rows, size, generator))

    def _whole(self, name: str, rows: Tensor) -> Drawn:
        """The rows of a policy as a single minibatch."""
        if name in self._passes:
            return self._of_sequences(name, self._passes[name].whole(max(self.ranks.shards, 1)))
        return self._of_rows(name, rows)

    def _of_rows(self, name: str, rows: Tensor) -> Drawn:
        chunk = self.actors[name].network.chunk
        return Drawn(len(rows), lambda shard: [Pass(each) for each in rows[shard.rows].split(chunk)])

    def _of_sequences(self, name: str, shards: Sequence[Sequences]) -> Drawn:
        def passes(shard: Shard) -> list[Pass]:
            batches = self._passes[name].chunks(shards[shard.number])
            return [Pass(torch.from_numpy(each.packed.places), each) for each in batches]

        return Drawn(sum(int(each.lengths.sum()) for each in shards), passes)

    def _policy_step(
        self, name: str, drawn: Drawn, learning_rate: float, old: PolicyNetwork | None = None
    ) -> Tensor:
        """One step of a policy along the mean over a minibatch.

        Args:
            old: the policy that ratios compare with, under the same dropout; None: the rollout's log-probabilities.

        Returns:
            The parts of `Losses`, and the norm of the gradient before clipping, float32 [5].
        """

        optimizer = self.actors[name]

        def learn(shard: Shard) -> Tensor | None:
            passes = [each for each in drawn.passes(shard) if len(each.rows)]
            found = [self._differentiate(optimizer, each, drawn.size, old) for each in passes]
            return torch.stack(found).sum(0) if found else None

        means = self.ranks.reduce(optimizer.gradient, drawn.size, len(Losses.names()), learn)
        return torch.cat([means, optimizer.step(learning_rate, self.config.max_grad_norm).view(1)])

    def _differentiate(
        self,
        optimizer: FlatAdam[PolicyNetwork],
        samples: Pass,
        size: int,
        old: PolicyNetwork | None,
    ) -> Tensor:
        """Adds the gradients of some of ``size`` samples to those of a policy; parts of their `Losses`, weighted."""
        policy, rollout, part = optimizer.network, self.rollout, samples.rows
        obs, actions, log_probs, advantages = (
            rollout.flat(name).index_select(0, part).to(self.device)
            for name in ("obs", "actions", "log_probs", "advantages")
        )
        masks = None if rollout.masks is None else rollout.flat("masks")[part].to(self.device)
        agents = self._agents(part)
        drops = optimizer.drops(len(part), self.config.dropout, self._generators["policies"])

        def outputs_of(network: PolicyNetwork) -> Tensor:
            if samples.sequences is not None:
                return self._along(network, samples.sequences, drops)[0]
            found: Tensor = network(obs, agents, drops)
            return found

        if old is not None:
            with torch.no_grad(), autocast(self.device.type, self.config.precision):
                outputs = outputs_of(old).float()
            log_probs = log_probs_of(mask_logits(outputs, masks), old.log_std, actions, old.choices)
        with autocast(self.device.type, self.config.precision):
            outputs = outputs_of(policy).float()
        losses = self.loss(Minibatch(policy, obs, agents, outputs, actions, log_probs, advantages, masks))
        weight = len(part) / size
        torch.autograd.backward(losses.total * weight)
        return losses.metrics() * weight

    def _along(
        self, network: PolicyNetwork, batch: SequenceBatch, drops: Sequence[Tensor] = ()
    ) -> tuple[Tensor, Tensor, Tensor]:
        """`PolicyNetwork.sequences` for a batch."""
        agents = self._agents(torch.from_numpy(batch.packed.places))
        return network.sequences(batch.obs, agents, batch.batch_sizes, batch.states, drops)

    def rows_of(self, name: str) -> NDArray[np.int64]:
        """The steps in which a policy acted, as indices into [T * N]."""
        return np.flatnonzero(self._acted(self.policy.members(name)))

    def _with_choice(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Those of the rows in which masks left a choice: in others the loss is constant."""
        masks, actions = self.rollout.masks, self.policy.actions
        if masks is None or self._passes:
            return rows
        count = actions.shape[0] if actions.kind == "multi_discrete" else 1
        chosen: NDArray[np.int64] = rows[self.rollout.flat("masks").numpy()[rows].sum(1) > count]
        return chosen

    def _acted(self, agents: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Mask of the steps in which some agents of an environment (bool [A]) acted, bool [T, N]."""
        return of_agents(self.rollout.alive[:-1], agents)

    def _observe(self, rows: Rows) -> None:
        """Takes the rollout's observations into the running statistics; its log-probabilities were of the old ones."""
        if self.config.normalize_obs:
            self.critics.observe(self.rollout, rows)
            for name, optimizer in self.actors.items():
                if len(rows[name]):
                    obs = self.rollout.flat("obs")[torch.from_numpy(rows[name])]
                    optimizer.network.observe(obs.to(self.device))

    def _agents(self, rows: Tensor) -> Tensor:
        return (rows % self.num_agents).to(self.device)

    def _evaluate(self) -> None:
        """Values of all observations of the rollout, and of the last ones of agents that were cut off."""
        rollout = self.rollout
        for passes in self._passes.values():
            for batch, _, memories in passes.over(rollout):
                places = batch.packed.places
                write_at(rollout.memories, rollout.final_memories, places, memories.numpy())
        self.critics.evaluate(rollout)
        learns = self._learns
        finite = (
            np.isfinite(rollout.values[of_agents(rollout.alive, learns)]).all()
            and np.isfinite(rollout.log_probs[self._acted(learns)]).all()
            and np.isfinite(rollout.final_values[of_agents(rollout.cut_off(), learns)]).all()
        )
        if not finite:
            self._check_parameters()
            raise FloatingPointError(
                "the networks gave NaN or infinity for observations of the environment; are those finite?"
            )

    def networks(self) -> list[nn.Module]:
        return [*super().networks(), networks_of(self.critics.optimizers)]

    def critic_values(self, rows: NDArray[Any], alive: NDArray[np.bool_]) -> Tensor | None:
        """Values float32 [K], in the units of the rewards that were learned from, of rows of agents [K, D] that act
        (bool [K]), zeros of others; None: they depend on what policies remember."""
        return (
            None if self._passes else self.critics.values_at(torch.from_numpy(rows), torch.from_numpy(alive))
        )

    def _check_parameters(self) -> None:
        self._check_finite("policy", self.actors)
        self._check_finite("critic", self.critics.optimizers)

    def state_dict(self) -> dict[str, Any]:
        return {
            "steps": self.steps,
            "updates": self.updates,
            "policy": self.policy.state(),
            "actors": {name: optimizer.state_dict() for name, optimizer in self.actors.items()},
            "critics": {name: optimizer.state_dict() for name, optimizer in self.critics.optimizers.items()},
            "generators": {name: generator.get_state() for name, generator in self._generators.items()},
            "return_scale": None if self._return_scale is None else self._return_scale.state_dict(),
        }

    def load_policy(self, state: Mapping[str, Any]) -> list[str]:
        """Critics are loaded only if all are like this one's. There may be other numbers of agents."""
        wider, critics = self._load_actors(state), state["critics"]
        agents, memories = self.num_agents, self.rollout.memories.shape[2]
        others = agents if self.config.agent_ids else 0
        inputs, remarks = replace(wider, others=others + memories), wider.remark()
        own: dict[str, Critic | CentralCritic] = {
            name: optimizer.network for name, optimizer in self.critics.optimizers.items()
        }
        fresh = [*remarks, "critics differ and start with new weights"]
        if own.keys() != critics.keys():
            return fresh
        if self.central_critic:
            inputs = replace(wider, agents=agents, others=agents * (memories + 1))
        weights = {name: inputs.weights(critics[name]["weights"], critic) for name, critic in own.items()}
        try:
            for name, critic in own.items():
                check_shapes(critic.state_dict(), weights[name])
        except ValueError:
            return fresh
        for name, critic in own.items():
            load_weights(critic, weights[name])
        return remarks

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.check_same_policies(state)
        if state["critics"].keys() != self.critics.optimizers.keys():
            raise ValueError(
                f"the saved critics are {sorted(state['critics'])}, this run's are {sorted(self.critics.optimizers)}"
            )
        if (state["return_scale"] is None) != (self._return_scale is None):
            raise ValueError("normalize_rewards of the saved run and of this one differ")
        self.policy.load_state(state["policy"])
        for optimizers, saved in (
            (self.actors, state["actors"]),
            (self.critics.optimizers, state["critics"]),
        ):
            for name, optimizer in optimizers.items():
                optimizer.load_state_dict(saved[name])
        for name, generator in self._generators.items():
            generator.set_state(state["generators"][name])
        if self._return_scale is not None:
            self._return_scale.load_state_dict(state["return_scale"])
        self.steps, self.updates = state["steps"], state["updates"]
