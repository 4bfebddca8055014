"""What learners of many agents have in common: policies, critics, collection, advantages, saving."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fastrl.algorithms.flat_adam import FlatAdam
from fastrl.algorithms.multi_agent_critics import CHUNK, CentralCritics, OwnCritics, Rows
from fastrl.algorithms.multi_agent_settings import MultiAgentConfig, MultiAgentMetrics
from fastrl.algorithms.ppo_loss import log_probs_of, surrogate_gradient
from fastrl.algorithms.reward_scaling import ReturnScale
from fastrl.algorithms.schedules import Schedule
from fastrl.collectors.multi_agent import TeamCollector, TeamEnv, TeamStats
from fastrl.networks.action_space import Actions
from fastrl.networks.actor_critic import check_architecture, load_weights, sampling_noise
from fastrl.networks.multi_agent import Actor, CentralCritic, Critic, MultiAgentPolicy, Scripted, Trace
from fastrl.rollout.multi_agent import MultiAgentRollout
from fastrl.utils.timer import Stopwatch


class PolicySums(NamedTuple):
    """Scalars (0-dimensional tensors) of one policy step, as in `MultiAgentMetrics`."""

    policy_loss: Tensor
    entropy: Tensor
    approx_kl: Tensor
    clip_fraction: Tensor
    grad_norm: Tensor


class MultiAgentLearner:
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

    config: MultiAgentConfig

    def __init__(
        self,
        config: MultiAgentConfig,
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
        self.policy = MultiAgentPolicy(teams, policies, actions, self.device)
        self._actors = {name: FlatAdam(actor) for name, actor in actors.items()}
        members = {name: self.policy.members(name) for name in learning}
        learns = np.any(list(members.values()), axis=0)
        self._critics: OwnCritics | CentralCritics
        if config.critic == "central":
            central = FlatAdam(CentralCritic(obs_dim, num_agents, **shape).to(self.device))
            self._critics = CentralCritics(config, central, learns, self._generators["critics"], self.device)
        else:
            own = {
                name: FlatAdam(Critic(obs_dim, num_ids=num_ids, **shape).to(self.device)) for name in learning
            }
            self._critics = OwnCritics(config, own, members, self._generators["critics"], self.device)
        # Which rows learn, bool [N].
        self._learning = np.tile(learns, num_envs)
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
        self.rollout = MultiAgentRollout(config.num_steps, rows, obs_dim, action_space)
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
            self._noise = sampling_noise(self.policy.actions, shape, self._generators["sampling"])
        stats = self._collector.collect(self.rollout, watch)
        self.receive(self.rollout, watch)
        return stats

    def receive(self, rollout: MultiAgentRollout, watch: Stopwatch) -> None:
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

    def update(self, watch: Stopwatch) -> MultiAgentMetrics:
        """Learns from the rollout that `collect` has filled.

        Raises:
            FloatingPointError: parameters have become NaN or infinite; they are of no use any more.
        """
        config, rollout = self.config, self.rollout
        entropy_coef = self._entropy(self.updates)
        actor_rate, critic_rate = (self._schedules[name](self.updates) for name in ("actor", "critic"))
        with watch("returns"):
            if self._return_scale is not None:
                self._reward_scale = self._return_scale.update(rollout, rollout.alive[:-1] & self._learning)
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
            critics = self._pool.submit(self._critics.update, rollout, rows, critic_rate)
            sums = [
                self._update_policy(name, trained, torch.from_numpy(rows[name]), actor_rate, entropy_coef)
                for name, trained in self._actors.items()
            ]
            value_sums = critics.result()
            self._observe(rows)
            self._check_parameters()
        policy_rows = [torch.stack(row) for steps in sums for row in steps]
        means = torch.stack(policy_rows).mean(0).tolist() if policy_rows else [0.0] * 5
        value_means = torch.stack(value_sums).mean(0).tolist() if value_sums else [0.0] * 2
        self.updates += 1
        policy_loss, entropy, approx_kl, clip_fraction, grad_norm = means
        return MultiAgentMetrics(
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
        self, name: str, trained: FlatAdam[Actor], rows: Tensor, learning_rate: float, entropy_coef: float
    ) -> list[PolicySums]:
        """Learns from the rows int64 [B] (of T * N) of one policy; the losses of each step."""

    @torch.no_grad()
    def _policy_step(
        self,
        trained: FlatAdam[Actor],
        rows: Tensor,
        old: Actor | None,
        *,
        clip_range: float,
        entropy_coef: float,
        learning_rate: float,
    ) -> PolicySums:
        """One step of a policy along the mean over rows int64 [B] (of [T * N]).

        Args:
            old: the policy that ratios compare with, under the same dropout; None: the rollout's log-probabilities.
        """
        actor, rollout = trained.network, self.rollout
        obs, actions, log_probs, advantages = (
            rollout.flat(name) for name in ("obs", "actions", "log_probs", "advantages")
        )
        losses = []
        for part in rows.split(CHUNK):
            weight = len(part) / len(rows)
            own_obs, agents, chosen = (
                obs.index_select(0, part).to(self.device),
                self._agents(part),
                actions.index_select(0, part).to(self.device),
            )
            trace = trained.trace(len(part), self.config.dropout, self._generators["policies"])
            outputs = actor(own_obs, agents, trace)
            if old is None:
                old_log_probs = log_probs.index_select(0, part).to(self.device)
            else:
                old_outputs = outputs if old is actor else old(own_obs, agents, Trace(trace.drops))
                old_log_probs = log_probs_of(old_outputs, old.log_std, chosen)
            gradient = surrogate_gradient(
                outputs,
                actor.log_std,
                chosen,
                old_log_probs,
                advantages.index_select(0, part).to(self.device),
                clip_range=clip_range,
                entropy_coef=entropy_coef,
            )
            trace.backpropagate(gradient.outputs * weight)
            if gradient.log_std is not None:
                trained.log_std_gradient.add_(gradient.log_std, alpha=weight)
            losses.append(torch.stack(gradient.losses) * weight)
        norm = trained.step(learning_rate, self.config.max_grad_norm)
        policy_loss, entropy, approx_kl, clip_fraction = torch.stack(losses).sum(0)
        return PolicySums(policy_loss, entropy, approx_kl, clip_fraction, norm)

    def act(
        self, obs: NDArray[np.float32], alive: NDArray[np.bool_], deterministic: bool = True
    ) -> NDArray[Any]:
        """Actions of the environment for any number of worlds, see `MultiAgentPolicy.act`."""
        return self.policy.act(obs, alive, deterministic, self._generators["acting"])

    def _act(self, rollout: MultiAgentRollout, t: int) -> NDArray[Any]:
        return self.policy.act_into(rollout, t, self._noise[t])

    def _rows(self, name: str) -> NDArray[np.int64]:
        """Where a policy acted, as indices into [T * N]."""
        chose = self.rollout.alive[:-1] & np.tile(self.policy.members(name), self.num_envs)
        return np.flatnonzero(chose)

    def _observe(self, rows: Rows) -> None:
        """Takes the rollout's observations into the running statistics; its log-probabilities were of the old ones."""
        if self.config.normalize_obs:
            self._critics.observe(self.rollout, rows)
            for name, trained in self._actors.items():
                if len(rows[name]):
                    obs = self.rollout.flat("obs")[torch.from_numpy(rows[name])]
                    trained.network.observe(obs.to(self.device))

    def _agents(self, rows: Tensor) -> Tensor:
        return (rows % self.num_agents).to(self.device)

    def _evaluate(self) -> None:
        """Values of all observations of the rollout, and of the last ones of agents that were cut off."""
        rollout = self.rollout
        self._critics.evaluate(rollout)
        acted = rollout.alive[:-1] & self._learning
        finite = (
            np.isfinite(rollout.values[rollout.alive & self._learning]).all()
            and np.isfinite(rollout.log_probs[acted]).all()
            and np.isfinite(rollout.final_values[rollout.cut_off() & self._learning]).all()
        )
        if not finite:
            self._check_parameters()
            raise FloatingPointError(
                "the networks gave NaN or infinity for observations of the environment; are those finite?"
            )

    def _explained_variance(self) -> float:
        """1: values are the returns; 0: they are no better than the mean return, or returns are constant."""
        acted = self.rollout.alive[:-1] & self._learning
        returns, values = self.rollout.returns[acted], self.rollout.values[:-1][acted]
        variance = float(returns.var()) if len(returns) else 0.0
        return 0.0 if variance == 0 else 1 - float((returns - values).var()) / variance

    def _check_parameters(self) -> None:
        for kind, group in (("policy", self._actors), ("critic", self._critics.trained)):
            for name, trained in group.items():
                if not trained.vector.isfinite().all():
                    raise FloatingPointError(
                        f"the {kind} {name!r} is not finite (NaN or infinity) after {self.steps} steps;"
                        " go back to a checkpoint, and lower the learning rate or check the rewards"
                    )

    def policy_state(self) -> dict[str, Any]:
        """What inference needs (see `MultiAgentPolicy.from_state`): weights and architecture. Not a copy."""
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
            "critics": {name: trained.state_dict() for name, trained in self._critics.trained.items()},
            "generators": {name: generator.get_state() for name, generator in self._generators.items()},
            "return_scale": None if self._return_scale is None else self._return_scale.state_dict(),
            "collector": collector,
        }

    def take_weights(self, policy: Mapping[str, Any], critics: Mapping[str, Any]) -> bool:
        """Begins with the weights of another learner's actors, and of its critics if all are like this one's. The teams
        may have other numbers of agents.

        Args:
            policy, critics: as `state_dict` has them.

        Returns:
            Whether the critics were like this one's.

        Raises:
            ValueError: its actors are others, or not finite.
        """
        theirs, ours = _shape_of(policy), _shape_of(self.policy.state())
        if theirs["actors"].keys() != ours["actors"].keys():
            raise ValueError(f"its actors are {sorted(theirs['actors'])}, not {sorted(ours['actors'])}")
        if theirs["actions"] != ours["actions"]:
            raise ValueError(f"its actions are {theirs['actions']}, not {ours['actions']}")
        for name, architecture in ours["actors"].items():
            check_architecture(theirs["actors"][name], architecture)
        self.policy.load(policy)
        own = self._critics.trained
        shapes = {
            name: {key: tensor.shape for key, tensor in trained.network.state_dict().items()}
            for name, trained in own.items()
        }
        saved = {
            name: {key: tensor.shape for key, tensor in critic["weights"].items()}
            for name, critic in critics.items()
        }
        if saved != shapes:
            return False
        for name, trained in own.items():
            load_weights(trained.network, critics[name]["weights"])
        return True

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on where the other run stood; ``env.load_state`` does the same for the environment.

        Raises:
            ValueError: the state is of other networks, teams, number of worlds or kind of normalisation, or is not
                finite.
        """
        own = _shape_of(self.policy.state())
        if _shape_of(state["policy"]) != own:
            raise ValueError(f"the saved policies are {_shape_of(state['policy'])}, this run's are {own}")
        if state["critics"].keys() != self._critics.trained.keys():
            raise ValueError(
                f"the saved critics are {sorted(state['critics'])}, this run's are {sorted(self._critics.trained)}"
            )
        if (state["return_scale"] is None) != (self._return_scale is None):
            raise ValueError("normalize_rewards of the saved run and of this one differ")
        self.policy.load(state["policy"])
        for all_trained, saved in (
            (self._actors, state["actors"]),
            (self._critics.trained, state["critics"]),
        ):
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


def _teams(config: MultiAgentConfig, num_agents: int) -> tuple[str, ...]:
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
