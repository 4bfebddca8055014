"""What learners of many agents have in common: policies, critics, collection, advantages, saving."""

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Annotated, Any, Generic, Literal, NamedTuple, TypeVar

import gymnasium
import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor, nn

from fastrl.algorithms.return_scale import ReturnScale
from fastrl.algorithms.schedules import Schedule, ScheduleName
from fastrl.collect.team import TeamCollector, TeamEnv, TeamStats
from fastrl.config import section
from fastrl.networks import flatten_parameters, load_weights
from fastrl.stopwatch import Stopwatch
from fastrl.team_networks import (
    LOG_STD_RANGE,
    Actions,
    Activation,
    Actor,
    CentralCritic,
    Critic,
    Init,
    Perceptron,
    Scripted,
    TeamPolicy,
)
from fastrl.team_rollout import TeamRollout

# Rows of a forward pass over a whole rollout: large enough to be cheap a row, small enough for caches.
_CHUNK = 4096


Network = TypeVar("Network", Actor, Critic, CentralCritic)


@section
class TeamConfig:
    """Hyper-parameters that all learners of many agents share."""

    num_steps: Annotated[int, Field(ge=1, description="steps of each world between updates")] = 64
    minibatch_size: Annotated[
        int, Field(ge=1, description="at most this many agent steps in a gradient step, in equal parts")
    ] = 8192
    gamma: Annotated[float, Field(ge=0, le=1, description="discount of future rewards")] = 0.99
    gae_lambda: Annotated[
        float,
        Field(ge=0, le=1, description="advantage estimation: 0 trusts the value function, 1 the rewards"),
    ] = 0.95
    critic: Annotated[
        Literal["own", "central"],
        Field(description="what values are judged from: own observations, or those of the whole world"),
    ] = "central"
    share: Annotated[bool, Field(description="one policy for all agents; false: one for each")] = True
    teams: Annotated[
        tuple[str, ...],
        Field(
            description="mixed teams: the name of each agent's policy, as many as agents; empty: see share"
        ),
    ] = ()
    agent_ids: Annotated[
        bool, Field(description="tell policies (and own critics) the index of the agent, one-hot")
    ] = False
    hidden: Annotated[
        tuple[Annotated[int, Field(ge=1)], ...],
        Field(description="widths of the hidden layers of actors and critics, each of which has its own"),
    ] = (128, 64, 32)
    activation: Annotated[
        Activation, Field(description="after each hidden layer; relu is much the fastest on CPUs")
    ] = "relu"
    init: Annotated[Init, Field(description="how hidden weights are drawn at first")] = "orthogonal"
    dropout: Annotated[
        float,
        Field(ge=0, lt=1, description="share of hidden units left out while learning, never when acting"),
    ] = 0.0
    initial_log_std: Annotated[
        float,
        Field(
            ge=LOG_STD_RANGE[0],
            le=LOG_STD_RANGE[1],
            description="Box actions: log of the deviation at first, in units of half an action's range",
        ),
    ] = -0.5
    normalize_obs: Annotated[bool, Field(description="observations are whitened by running statistics")] = (
        False
    )
    normalize_rewards: Annotated[
        bool, Field(description="rewards are divided by the running deviation of the discounted return")
    ] = True
    normalize_advantages: Annotated[
        bool, Field(description="each policy's advantages of a rollout are brought to mean 0, deviation 1")
    ] = True
    learning_rate: Annotated[float, Field(ge=0, description="Adam's learning rate at the start")] = 1e-3
    critic_learning_rate: Annotated[
        float | None, Field(ge=0, description="that of critics; none: the same as the policies'")
    ] = None
    lr_schedule: Annotated[
        ScheduleName, Field(description="how learning rates change from update to update")
    ] = "step"
    lr_every: Annotated[int, Field(ge=1, description="step: updates between two steps")] = 100
    lr_factor: Annotated[float, Field(gt=0, description="step: what a step multiplies by")] = 0.95
    lr_final_share: Annotated[
        float,
        Field(
            ge=0,
            le=1,
            description="linear, cosine, exponential: share of the learning rate that is left at the end;"
            " step: at least",
        ),
    ] = 0.0
    lr_warmup: Annotated[int, Field(ge=0, description="updates in which learning rates rise from 0")] = 0
    entropy_coef: Annotated[float, Field(ge=0, description="weight of the entropy bonus at the start")] = 0.01
    final_entropy_coef: Annotated[
        float, Field(ge=0, description="weight of the entropy bonus at the end, linearly")
    ] = 0.001
    critic_epochs: Annotated[
        int, Field(ge=1, description="passes of critics over the rollout in an update")
    ] = 2
    max_grad_norm: Annotated[
        float, Field(gt=0, description="gradients of each network are scaled down to this norm")
    ] = 1.0


@dataclass(frozen=True)
class TeamMetrics:
    """What one update did: means over its gradient steps, unless noted; of living, learning agents alone.

    Attributes:
        policy_loss: what policies minimise, without the entropy bonus.
        value_loss: half the mean squared error of critics.
        entropy: of the policies, in nats; for Box actions, of the density before clipping.
        approx_kl: KL(old, new), Schulman's estimator ``ratio - 1 - log(ratio)``.
        clip_fraction: share of samples whose ratio was outside the clip range.
        grad_norm, value_grad_norm: of policies and critics, before clipping.
        explained_variance: 1 - var(returns - values) / var(returns) over the rollout, before the update.
        reward_scale: what rewards were multiplied by.
        alive: share of the rollout's rows that held a living agent.
        learning_rate, entropy_coef: in force.
        gradient_steps: of all policies.
    """

    policy_loss: float
    value_loss: float
    entropy: float
    approx_kl: float
    clip_fraction: float
    grad_norm: float
    value_grad_norm: float
    explained_variance: float
    reward_scale: float
    alive: float
    learning_rate: float
    entropy_coef: float
    gradient_steps: float


class PolicySums(NamedTuple):
    """Scalars (0-dimensional tensors) of one policy step, as in `TeamMetrics`."""

    policy_loss: Tensor
    entropy: Tensor
    approx_kl: Tensor
    clip_fraction: Tensor
    grad_norm: Tensor


class Trained(Generic[Network]):
    """A network with its optimiser: one vector of parameters and gradients, Adam, clipping."""

    def __init__(self, network: Network) -> None:
        self.network: Network = network
        self.vector = flatten_parameters(network)
        self.optimizer = torch.optim.Adam([self.vector], eps=1e-5, fused=True)

    def zero_grad(self) -> None:
        self.optimizer.zero_grad(set_to_none=False)

    def step(self, learning_rate: float, max_grad_norm: float) -> Tensor:
        """Takes a step along the gradient; returns the gradient's norm before clipping."""
        norm = nn.utils.clip_grad_norm_(self.vector, max_grad_norm)
        self.optimizer.param_groups[0]["lr"] = learning_rate
        self.optimizer.step()
        if isinstance(self.network, Actor) and self.network.log_std is not None:
            self.network.log_std.data.clamp_(*LOG_STD_RANGE)
        return norm

    def state_dict(self) -> dict[str, Any]:
        return {"weights": self.network.state_dict(), "optimizer": dict(self.optimizer.state[self.vector])}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        load_weights(self.network, state["weights"])
        self.optimizer.state[self.vector] = {
            key: value.to(self.vector.device, copy=True) for key, value in state["optimizer"].items()
        }


class TeamLearner:
    """Policies of many agents that learn from a `TeamEnv`; `MAPPO` and `REINFORCE` say how.

    ::

        learner = MAPPO(MAPPOConfig(), env.single_observation_space, env.single_action_space, env.num_envs,
                        env.num_agents, total_updates=1000, seed=0)
        watch = Stopwatch()
        while learner.updates < learner.total_updates:
            stats = learner.collect(env, watch)
            metrics = learner.update(watch)

    Everything random comes from ``seed``: the initial weights, the actions, the order of samples, dropout and the
    seeds of the worlds. On a CPU, for a given number of torch threads, the same seed gives the same parameters to
    the bit, also across `state_dict` and `load_state_dict`.

    Policies and critics are networks of their own, each with its own Adam and its own clipping. An update of
    policies and one of critics do not need each other, and run on two threads.

    Args:
        config: hyper-parameters.
        obs_space: ``Box`` float32 of one dimension, of one agent.
        action_space: of one agent, ``Discrete`` starting at 0 or ``Box`` float32 of one dimension.
        num_envs: worlds, K.
        num_agents: rows of a world, A.
        total_updates: of the whole training, over which schedules run; past the end the final values hold.
        seed: not negative.
        device: where the networks live; "cpu" or "cuda". Rollouts stay in main memory.
        partners: policies of ``config.teams`` that do not learn, by name: a policy state (of a learner with a single
            policy, as `policy_state` gives it), which is frozen, or a rule (`Scripted`).

    Attributes:
        policy: who acts how.
        rollout: what `collect` fills.
        steps: steps of worlds collected so far; updates: done so far.

    Raises:
        ValueError: spaces that it cannot handle, or teams and partners that do not fit.
    """

    config: TeamConfig

    def __init__(
        self,
        config: TeamConfig,
        obs_space: gymnasium.Space,
        action_space: gymnasium.Space,
        num_envs: int,
        num_agents: int,
        *,
        total_updates: int,
        seed: int,
        device: str = "cpu",
        partners: Mapping[str, Mapping[str, Any] | Scripted] | None = None,
    ) -> None:
        obs_dim = _obs_dim(obs_space)
        actions = Actions(action_space)
        for name, size in {
            "total_updates": total_updates,
            "num_envs": num_envs,
            "num_agents": num_agents,
        }.items():
            if size < 1:
                raise ValueError(f"{name} must be at least 1, got {size}")
        self.config = config
        self.total_updates = total_updates
        self.num_envs, self.num_agents = num_envs, num_agents
        self.steps = self.updates = 0
        self.device = torch.device(device)
        seeds = np.random.SeedSequence(seed).spawn(6)
        weights, env_seed = _generator(seeds[0]), seeds[5]
        # All draws are made on the CPU: they are few, and a run may go on on another device. Policies and critics learn
        # at the same time and so have generators of their own.
        names = ("sampling", "acting", "policies", "critics")
        self._generators = {name: _generator(each) for name, each in zip(names, seeds[1:5], strict=True)}
        self._env_seeds = [int(word) >> 1 for word in env_seed.generate_state(num_envs, np.uint64)]

        shape: dict[str, Any] = {
            "hidden": config.hidden,
            "activation": config.activation,
            "init": config.init,
            "normalize_obs": config.normalize_obs,
            "generator": weights,
        }
        num_ids = num_agents if config.agent_ids else 0
        teams = _teams(config, num_agents)
        fixed = _partners(partners or {}, teams)
        learning = [name for name in dict.fromkeys(teams) if name not in fixed]
        if not learning:
            raise ValueError(f"no policy is left to learn: teams are {list(teams)}, all of them partners")
        actors = {
            name: Actor(
                obs_dim, actions, num_ids=num_ids, initial_log_std=config.initial_log_std, **shape
            ).to(self.device)
            for name in learning
        }
        policies: dict[str, Actor | Scripted] = {**fixed, **actors}
        for policy in fixed.values():
            if isinstance(policy, Actor):
                policy.to(self.device).requires_grad_(False)
        self.policy = TeamPolicy(teams, policies, actions, self.device)
        self._actors = {name: Trained(actor) for name, actor in actors.items()}
        self._critics: dict[str, Trained[Critic] | Trained[CentralCritic]] = {}
        if config.critic == "central":
            self._critics["central"] = Trained(CentralCritic(obs_dim, num_agents, **shape).to(self.device))
        else:
            self._critics = {
                name: Trained(Critic(obs_dim, num_ids=num_ids, **shape).to(self.device)) for name in learning
            }
        self._learns = np.any([self.policy.members(name) for name in learning], axis=0)
        self._schedules = {
            name: Schedule(
                config.lr_schedule,
                start,
                end=start * config.lr_final_share,
                total=total_updates,
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
        self._entropy = Schedule(
            "linear", config.entropy_coef, end=config.final_entropy_coef, total=total_updates
        )
        rows = num_envs * num_agents
        self._return_scale = ReturnScale(rows, config.gamma) if config.normalize_rewards else None
        self._reward_scale = 1.0
        self.rollout = TeamRollout(config.num_steps, rows, obs_dim, action_space)
        self._collector: TeamCollector | None = None
        self._collector_state: dict[str, Any] = {}
        self._noise = torch.empty(0)
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="critics")

    def collect(self, env: TeamEnv, watch: Stopwatch) -> TeamStats:
        """Fills the rollout, acting with the current policies; the first time, after a reset of ``env``.

        Raises:
            ValueError: ``env`` is of the wrong kind or size, or another one than before.
            FloatingPointError: rewards, observations or parameters are not finite.
        """
        if self._collector is None:
            if (env.num_envs, env.num_agents) != (self.num_envs, self.num_agents):
                raise ValueError(
                    f"this learner was made for {self.num_envs} worlds of {self.num_agents} agents,"
                    f" the environment has {env.num_envs} of {env.num_agents}"
                )
            self._collector = TeamCollector(env, self._act, self._env_seeds)
            self._collector.load_state_dict(self._collector_state)
        elif self._collector.env is not env:
            raise ValueError("collect() was given another environment than before; make a new learner for it")
        with watch("inference"):
            shape = (self.config.num_steps, self.rollout.num_rows)
            self._noise = self.policy.actions.noise(shape, self._generators["sampling"])
        stats = self._collector.collect(self.rollout, watch)
        self.receive(self.rollout, watch)
        return stats

    def receive(self, rollout: TeamRollout, watch: Stopwatch) -> None:
        """Takes a rollout to learn from, which `collect` has filled, or somebody else with ``policy.act_into``.

        Raises:
            ValueError: it is of another size than this learner's.
            FloatingPointError: observations or parameters are not finite.
        """
        if rollout.obs.shape[1:] != self.rollout.obs.shape[1:]:
            raise ValueError(
                f"expected a rollout of rows {list(self.rollout.obs.shape[1:])},"
                f" got {list(rollout.obs.shape[1:])}"
            )
        self.rollout = rollout
        with watch("inference"):
            self._evaluate()
        self.steps += rollout.num_steps * self.num_envs

    def update(self, watch: Stopwatch) -> TeamMetrics:
        """Learns from the rollout that `collect` has filled.

        Raises:
            FloatingPointError: parameters have become NaN or infinite; they are of no use any more.
        """
        config, rollout = self.config, self.rollout
        entropy_coef = self._entropy(self.updates)
        actor_rate, critic_rate = (self._schedules[name](self.updates) for name in ("actor", "critic"))
        with watch("returns"):
            if self._return_scale is not None:
                self._reward_scale = self._return_scale.update(rollout)
            rollout.compute_advantages(config.gamma, config.gae_lambda, self._reward_scale)
            explained_variance = self._explained_variance()
            rows = {name: self._rows(name) for name in self._actors}
            if config.normalize_advantages:
                flat = rollout.advantages.reshape(-1)
                for chosen in rows.values():
                    advantages = flat[chosen]
                    if len(advantages):
                        flat[chosen] = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
        with watch("update"):
            critics = self._pool.submit(self._update_critics, rows, critic_rate)
            sums = [
                self._update_policy(name, trained, torch.from_numpy(rows[name]), actor_rate, entropy_coef)
                for name, trained in self._actors.items()
            ]
            value_sums = critics.result()
            self._update_norms(rows)
            self._check_parameters()
        policy_rows = [torch.stack(row) for steps in sums for row in steps]
        means = torch.stack(policy_rows).mean(0).tolist() if policy_rows else [0.0] * 5
        value_means = torch.stack(value_sums).mean(0).tolist() if value_sums else [0.0] * 2
        self.updates += 1
        policy_loss, entropy, approx_kl, clip_fraction, grad_norm = means
        return TeamMetrics(
            policy_loss=policy_loss,
            value_loss=value_means[0],
            entropy=entropy,
            approx_kl=approx_kl,
            clip_fraction=clip_fraction,
            grad_norm=grad_norm,
            value_grad_norm=value_means[1],
            explained_variance=explained_variance,
            reward_scale=self._reward_scale,
            alive=float(rollout.alive[:-1].mean()),
            learning_rate=actor_rate,
            entropy_coef=entropy_coef,
            gradient_steps=float(len(policy_rows)),
        )

    @abstractmethod
    def _update_policy(
        self, name: str, trained: Trained[Actor], rows: Tensor, learning_rate: float, entropy_coef: float
    ) -> list[PolicySums]:
        """Learns from the rows int64 [B] (of T * N) of one policy; the losses of each step."""

    def act(
        self, obs: NDArray[np.float32], alive: NDArray[np.bool_], deterministic: bool = True
    ) -> NDArray[Any]:
        """Actions of the environment for any number of worlds, see `TeamPolicy.act`."""
        return self.policy.act(obs, alive, deterministic, self._generators["acting"])

    def _act(self, rollout: TeamRollout, t: int) -> NDArray[Any]:
        return self.policy.act_into(rollout, t, self._noise[t])

    def _rows(self, name: str) -> NDArray[np.int64]:
        """Where a policy acted, as indices into [T * N]."""
        chose = self.rollout.alive[:-1] & np.tile(self.policy.members(name), self.num_envs)
        return np.flatnonzero(chose)

    def _flat(self, name: str) -> Tensor:
        """An array of the rollout as [T * N, ...]."""
        return self.rollout.tensors[name][: self.rollout.num_steps].flatten(0, 1)

    def _agents(self, rows: Tensor) -> Tensor:
        return (rows % self.num_agents).to(self.device)

    # Values.

    def _evaluate(self) -> None:
        """Values of all observations of the rollout, and of the last ones of agents that were cut off."""
        rollout = self.rollout
        cut_off = rollout.cut_off()
        if self.config.critic == "central":
            worlds = (-1, self.num_agents)
            going_on = rollout.alive[:-1] & ~rollout.terminations
            cut_worlds = np.flatnonzero(cut_off.reshape(worlds).any(1))
            everywhere = np.arange(rollout.alive.size // self.num_agents)
            rollout.values.reshape(worlds)[:] = self._world_values(rollout.obs, rollout.alive, everywhere)
            rollout.final_values.reshape(worlds)[cut_worlds] = self._world_values(
                rollout.final_obs, going_on, cut_worlds
            )
        else:
            for name in self._actors:
                members = np.tile(self.policy.members(name), self.num_envs)
                for obs, chosen, values in (
                    (rollout.obs, rollout.alive & members, rollout.values),
                    (rollout.final_obs, cut_off & members, rollout.final_values),
                ):
                    rows = np.flatnonzero(chosen)
                    values.reshape(-1)[rows] = self._row_values(name, obs, rows)
        learning = rollout.alive & np.tile(self._learns, self.num_envs)
        finite = (
            np.isfinite(rollout.values[learning]).all()
            and np.isfinite(rollout.log_probs[learning[:-1]]).all()
        )
        if not finite or not np.isfinite(rollout.final_values[cut_off]).all():
            self._check_parameters()
            raise FloatingPointError(
                "the networks gave NaN or infinity for observations of the environment; are those finite?"
            )

    def _world_values(
        self, obs: NDArray[np.float32], alive: NDArray[np.bool_], worlds: NDArray[np.int64]
    ) -> NDArray[np.float32]:
        """Values float32 [B, A] of worlds int64 [B], indices into [T * K]."""
        all_obs = torch.from_numpy(obs).reshape(-1, self.num_agents, obs.shape[-1])
        all_alive = torch.from_numpy(alive).reshape(-1, self.num_agents)
        critic = self._critics["central"].network
        with torch.inference_mode():
            values = [
                critic(all_obs[part].to(self.device), all_alive[part].to(self.device)).cpu()
                for part in torch.from_numpy(worlds).split(max(_CHUNK // self.num_agents, 1))
            ]
            return torch.cat(values).numpy()

    def _row_values(
        self, name: str, obs: NDArray[np.float32], rows: NDArray[np.int64]
    ) -> NDArray[np.float32]:
        """Values float32 [B] of rows int64 [B], indices into [T * N]."""
        all_obs = torch.from_numpy(obs).flatten(0, 1)
        critic = self._critics[name].network
        with torch.inference_mode():
            values = [
                critic(all_obs[part].to(self.device), self._agents(part)).cpu()
                for part in torch.from_numpy(rows).split(_CHUNK)
            ]
            return torch.cat(values).numpy()

    def _explained_variance(self) -> float:
        """1: values are the returns; 0: they are no better than the mean return, or returns are constant."""
        learning = self.rollout.alive[:-1] & np.tile(self._learns, self.num_envs)
        returns, values = self.rollout.returns[learning], self.rollout.values[:-1][learning]
        variance = float(returns.var()) if len(returns) else 0.0
        return 0.0 if variance == 0 else 1 - float((returns - values).var()) / variance

    def _update_critics(self, rows: Mapping[str, NDArray[np.int64]], learning_rate: float) -> list[Tensor]:
        """Regression of values on returns; loss and gradient norm [2] of each step."""
        sums = []
        central = self.config.critic == "central"
        for name, trained in self._critics.items():
            if central:
                learning = self.rollout.alive[:-1] & np.tile(self._learns, self.num_envs)
                samples = np.flatnonzero(learning.reshape(-1, self.num_agents).any(1))
            else:
                samples = rows[name]
            size = self.config.minibatch_size // (self.num_agents if central else 1)
            for _ in range(self.config.critic_epochs):
                for part in self._parts(torch.from_numpy(samples), size, "critics"):
                    loss = self._central_step(part) if central else self._own_step(name, part)
                    norm = trained.step(learning_rate, self.config.max_grad_norm)
                    sums.append(torch.stack([loss, norm]))
        return sums

    def _own_step(self, name: str, rows: Tensor) -> Tensor:
        """Adds up the gradient of an own critic's loss over rows of [T * N]; the loss."""
        trained = self._critics[name]
        obs = self._flat("obs")[rows].to(self.device)
        drops = self._drops(trained.network.body, len(rows), "critics")
        values = trained.network(obs, self._agents(rows), drops)
        errors = values.detach() - self._flat("returns")[rows].to(self.device)
        trained.zero_grad()
        values.backward(errors / len(errors))
        return errors.square().mean() / 2

    def _central_step(self, worlds: Tensor) -> Tensor:
        """Adds up the gradient of the central critic's loss over worlds of [T * K]; the loss."""
        trained = self._critics["central"]
        shape = (-1, self.num_agents)
        obs = self._flat("obs").unflatten(0, shape)[worlds].to(self.device)
        alive = self._flat("alive").unflatten(0, shape)[worlds].to(self.device)
        returns = self._flat("returns").unflatten(0, shape)[worlds].to(self.device)
        values = trained.network(obs, alive, self._drops(trained.network.body, len(worlds), "critics"))
        learning = alive & torch.from_numpy(self._learns).to(self.device)
        errors = torch.where(learning, values.detach() - returns, 0.0)
        count = learning.sum()
        trained.zero_grad()
        values.backward(errors / count)
        return errors.square().sum() / (2 * count)

    def _parts(self, samples: Tensor, size: int, generator: str) -> Iterator[Tensor]:
        """Samples in a new order, in equal parts of at most ``size``."""
        if len(samples):
            order = torch.randperm(len(samples), generator=self._generators[generator])
            yield from samples[order].tensor_split(-(-len(samples) // max(size, 1)))

    def _drops(self, body: Perceptron, rows: int, generator: str) -> Sequence[Tensor]:
        if self.config.dropout == 0:
            return ()
        masks = body.dropout_masks(rows, self.config.dropout, self._generators[generator])
        return [mask.to(self.device) for mask in masks]

    def _update_norms(self, rows: Mapping[str, NDArray[np.int64]]) -> None:
        """Takes the rollout's observations into the running statistics; log-probabilities were of the old ones."""
        if not self.config.normalize_obs:
            return
        obs = self._flat("obs")
        everybody = np.flatnonzero(self.rollout.alive[:-1])
        central = self.config.critic == "central"
        seen: list[tuple[Actor | Critic | CentralCritic, NDArray[np.int64]]] = [
            *((trained.network, rows[name]) for name, trained in self._actors.items()),
            *((each.network, everybody if central else rows[name]) for name, each in self._critics.items()),
        ]
        for network, chosen in seen:
            if len(chosen):
                network.observe(obs[torch.from_numpy(chosen)].to(self.device))

    def _check_parameters(self) -> None:
        for kind, all_trained in (("policy", self._actors), ("critic", self._critics)):
            for name, trained in all_trained.items():
                if not trained.vector.isfinite().all():
                    raise FloatingPointError(
                        f"the {kind} {name!r} is not finite (NaN or infinity) after {self.steps} steps;"
                        " go back to a checkpoint, and lower the learning rate or check the rewards"
                    )

    def policy_state(self) -> dict[str, Any]:
        """What inference needs (see `TeamPolicy.from_state`): weights and architecture. Not a copy."""
        return self.policy.state()

    def state_dict(self) -> dict[str, Any]:
        """All that `load_state_dict` needs to go on exactly, apart from the environment's state.

        Nested dicts with string keys, of tensors and plain (JSON-able) values. Tensors of networks and optimisers are
        not copies: write them out before the next update. Call it between `update` and `collect`.
        """
        collector = self._collector_state if self._collector is None else self._collector.state_dict()
        return {
            "steps": self.steps,
            "updates": self.updates,
            "policy": self.policy.state(),
            "actors": {name: trained.state_dict() for name, trained in self._actors.items()},
            "critics": {name: trained.state_dict() for name, trained in self._critics.items()},
            "generators": {name: generator.get_state() for name, generator in self._generators.items()},
            "return_scale": None if self._return_scale is None else self._return_scale.state_dict(),
            "collector": collector,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on where the other run stood; ``env.load_state`` does the same for the environment.

        Raises:
            ValueError: the state is of other networks, teams, number of worlds or kind of normalisation, or is not
                finite.
        """
        own = _shape_of(self.policy.state())
        if _shape_of(state["policy"]) != own:
            raise ValueError(f"the saved policies are {_shape_of(state['policy'])}, this run's are {own}")
        if state["critics"].keys() != self._critics.keys():
            raise ValueError(
                f"the saved critics are {sorted(state['critics'])}, this run's are {sorted(self._critics)}"
            )
        if (state["return_scale"] is None) != (self._return_scale is None):
            raise ValueError("normalize_rewards of the saved run and of this one differ")
        self.policy.load(state["policy"])
        for all_trained, saved in ((self._actors, state["actors"]), (self._critics, state["critics"])):
            for name, trained in all_trained.items():
                trained.load_state_dict(saved[name])
        for name, generator in self._generators.items():
            generator.set_state(state["generators"][name])
        if self._return_scale is not None:
            self._return_scale.load_state_dict(state["return_scale"])
        self._collector_state = state["collector"]
        if self._collector is not None:
            self._collector.load_state_dict(self._collector_state)
        self.steps, self.updates = state["steps"], state["updates"]


def _shape_of(state: Mapping[str, Any]) -> dict[str, Any]:
    """A policy state without its weights."""
    actors = {name: actor["architecture"] for name, actor in state["actors"].items()}
    return {"teams": list(state["teams"]), "actions": state["actions"], "actors": actors}


def _obs_dim(space: gymnasium.Space) -> int:
    if not isinstance(space, gymnasium.spaces.Box) or len(space.shape) != 1 or space.dtype != np.float32:
        raise ValueError(f"agents need observations of a one-dimensional float32 Box, got {space}")
    return space.shape[0]


def _teams(config: TeamConfig, num_agents: int) -> tuple[str, ...]:
    """The name of each agent's policy."""
    if not config.teams:
        return ("shared",) * num_agents if config.share else tuple(f"agent{i}" for i in range(num_agents))
    if len(config.teams) != num_agents:
        raise ValueError(
            f"teams should name the policy of each of {num_agents} agents, got {len(config.teams)} names"
        )
    return config.teams


def _partners(
    partners: Mapping[str, Mapping[str, Any] | Scripted], teams: Sequence[str]
) -> dict[str, Actor | Scripted]:
    """Frozen actors and rules."""
    unknown = sorted(partners.keys() - set(teams))
    if unknown:
        raise ValueError(f"partners {unknown} are in no team; teams are {sorted(set(teams))}")
    fixed: dict[str, Actor | Scripted] = {}
    for name, partner in partners.items():
        if not isinstance(partner, Mapping):
            fixed[name] = partner
            continue
        actors = partner["actors"]
        if len(actors) != 1:
            raise ValueError(
                f"partner {name!r} should be the state of a single policy, got {sorted(actors)};"
                " pick one: {**state, 'actors': {name: state['actors'][name]}}"
            )
        fixed[name] = Actor.from_state(next(iter(actors.values())))
    return fixed


def _generator(seed: np.random.SeedSequence) -> torch.Generator:
    return torch.Generator().manual_seed(int(seed.generate_state(1, np.uint64)[0]) >> 1)
