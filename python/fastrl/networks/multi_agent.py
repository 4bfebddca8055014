"""Networks of many agents: actors for discrete and continuous actions, critics of one agent and of all.

Rows are agents, row = environment * A + agent, as in `fastrl.rollout.multi_agent`. (One agent has
`fastrl.networks.actor_critic.ActorCritic`: an actor and a critic with one vector of parameters, which compiled actors
can act for. Here both are apart, for policies may be shared, frozen or rules, and a critic may see all agents.)
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self, TypedDict, Unpack

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fastrl.networks.action_space import Actions
from fastrl.networks.distributions import (
    gaussian_log_probs,
    log_std_parameter,
    sample_actions,
    sampling_noise,
)
from fastrl.networks.normalization import RunningNorm
from fastrl.networks.parameters import SavedNetwork, check_numbers, load_weights
from fastrl.networks.perceptron import Activation, Init, Perceptron, Trace
from fastrl.rollout.multi_agent import MultiAgentRollout

# Chooses actions by rule: from observations float32 [B, obs_dim] and agent indices int64 [B], actions of the
# environment, int64 [B] or float32 [B, n].
Scripted = Callable[[NDArray[np.float32], NDArray[np.int64]], NDArray[Any]]


class PerceptronOptions(TypedDict):
    """Options of a critic's `Perceptron`, and `normalize_obs`: whiten observations by running statistics."""

    hidden: Sequence[int]
    activation: Activation
    init: Init
    normalize_obs: bool
    generator: torch.Generator


class _Network(SavedNetwork):
    """A perceptron that may whiten observations.

    Args:
        obs_dim: length of an agent's observation.
        sizes: widths of input and output.
        last_gain: of the last layer's weights.
        num_ids: agents, of which each has a one-hot index behind its observation; 0: no index.
        options: the others.
    """

    def __init__(
        self,
        obs_dim: int,
        sizes: tuple[int, int],
        last_gain: float,
        num_ids: int = 0,
        **options: Unpack[PerceptronOptions],
    ) -> None:
        super().__init__()
        self.obs_dim = obs_dim
        self.num_ids = num_ids
        self.obs_norm = RunningNorm(obs_dim) if options["normalize_obs"] else None
        widths = [sizes[0], *options["hidden"], sizes[1]]
        self.body = Perceptron(
            widths, options["activation"], options["init"], last_gain, options["generator"]
        )

    def observe(self, obs: Tensor) -> None:
        """Adds observations float [B, obs_dim] to the running statistics, if there are any."""
        if self.obs_norm is not None:
            self.obs_norm.update(obs)

    def _outputs(self, obs: Tensor, agents: Tensor, trace: Trace | None) -> Tensor:
        """The outputs float [B, n] at observations float [B, obs_dim] of agents int64 [B]."""
        if self.obs_norm is not None:
            obs = self.obs_norm(obs)
        if self.num_ids:
            obs = torch.cat([obs, nn.functional.one_hot(agents, self.num_ids).to(obs.dtype)], -1)
        outputs: Tensor = self.body(obs, trace)
        return outputs


class PolicyNetwork(_Network):
    """A policy: the distribution of an agent's action, given its own observation and perhaps its index.

    Discrete actions have a categorical distribution. Continuous ones have a Gaussian, its mean the network's output
    and its deviation a parameter of its own, the same everywhere.

    Args:
        obs_dim: length of an observation.
        actions: what is chosen.
        num_ids: agents, of which each has a one-hot index behind its observation; 0: no index.
        hidden, activation, init: of the `Perceptron`.
        normalize_obs: whiten observations by the running statistics in ``obs_norm``.
        initial_log_std: of the Gaussian, in units of half the range of an action.
        generator: where the initial weights come from.

    Attributes:
        log_std: Parameter [n], or None for discrete actions; kept within `LOG_STD_RANGE` by the learner.
    """

    log_std: nn.Parameter | None

    def __init__(
        self,
        obs_dim: int,
        actions: Actions,
        *,
        num_ids: int = 0,
        hidden: Sequence[int] = (128, 64, 32),
        activation: Activation = "relu",
        init: Init = "orthogonal",
        normalize_obs: bool = False,
        initial_log_std: float = 0.0,
        generator: torch.Generator,
    ) -> None:
        super().__init__(
            obs_dim,
            (obs_dim + num_ids, actions.size),
            0.01,
            num_ids,
            hidden=hidden,
            activation=activation,
            init=init,
            normalize_obs=normalize_obs,
            generator=generator,
        )
        self.actions = actions
        self._architecture = {
            "obs_dim": obs_dim,
            "num_ids": num_ids,
            "hidden": list(hidden),
            "activation": activation,
            "init": init,
            "normalize_obs": normalize_obs,
        }
        self.log_std = log_std_parameter(actions.size, initial_log_std) if actions.is_box else None

    def forward(self, obs: Tensor, agents: Tensor, trace: Trace | None = None) -> Tensor:
        """Logits float [B, size], or means of the Gaussian.

        Args:
            obs: float [B, obs_dim].
            agents: int64 [B], index of the agent in its environment.
            trace: as for `Perceptron`.
        """
        return self._outputs(obs, agents, trace)

    def draw(self, obs: Tensor, agents: Tensor, noise: Tensor | None) -> tuple[Tensor, Tensor]:
        """Draws (see `Actions`) and their log-probabilities float [B]; without noise the likeliest ones."""
        outputs = self(obs, agents)
        if self.log_std is not None:
            draws = outputs if noise is None else outputs + self.log_std.exp() * noise
            return draws, gaussian_log_probs(outputs, self.log_std, draws)
        if noise is not None:
            return sample_actions(outputs, noise)
        log_probs, chosen = torch.log_softmax(outputs, -1).max(-1)
        return chosen, log_probs

    def state(self) -> dict[str, Any]:
        """See `SavedNetwork.state`; with ``actions`` (JSON-able)."""
        return {**super().state(), "actions": self.actions.state()}

    @classmethod
    def from_state(cls, state: Mapping[str, Any], **options: Any) -> Self:
        """See `SavedNetwork.from_state`."""
        return super().from_state(state, actions=Actions.from_state(state["actions"]), **options)

    @staticmethod
    def check_size(state: Mapping[str, Any]) -> None:
        architecture = state["architecture"]
        inputs = architecture["obs_dim"] + architecture["num_ids"]
        outputs = Actions.from_state(state["actions"]).size
        check_numbers(state["weights"], [inputs, *architecture["hidden"], outputs])


class Critic(_Network):
    """The value of an agent's own observation (independent learners).

    Args: as those of `PolicyNetwork`.
    """

    def __init__(self, obs_dim: int, *, num_ids: int, **options: Unpack[PerceptronOptions]) -> None:
        super().__init__(obs_dim, (obs_dim + num_ids, 1), 1.0, num_ids, **options)

    def forward(self, obs: Tensor, agents: Tensor, trace: Trace | None = None) -> Tensor:
        """Expected discounted returns float [B] at observations float [B, obs_dim] of agents int64 [B]."""
        return self._outputs(obs, agents, trace).squeeze(-1)


class CentralCritic(_Network):
    """The values of all agents of an environment, from what all of them observe and which of them are alive (MAPPO).

    The joint observation is the concatenation of the agents' observations, zeros for those
    that are not alive, and a flag each that says which are. There is an output for each agent, so that one pass values
    a whole environment.

    Args:
        obs_dim: D, of one agent.
        num_agents: A.
        options: as those of `PolicyNetwork`.
    """

    def __init__(self, obs_dim: int, num_agents: int, **options: Unpack[PerceptronOptions]) -> None:
        super().__init__(obs_dim, (num_agents * (obs_dim + 1), num_agents), 1.0, **options)

    def forward(self, obs: Tensor, alive: Tensor, trace: Trace | None = None) -> Tensor:
        """Expected discounted returns float [B, A] at observations float [B, A, D] of agents alive bool [B, A].

        Observations of agents that are not alive do not matter.
        """
        if self.obs_norm is not None:
            obs = self.obs_norm(obs)
        obs = obs.masked_fill(~alive.unsqueeze(-1), 0)
        values: Tensor = self.body(torch.cat([obs.flatten(1), alive.float()], 1), trace)
        return values


class MultiAgentPolicy:
    """The policies of all agents of an environment, and how they act.

    A policy is an `PolicyNetwork` or a rule (`Scripted`).

    ::

        policy = MultiAgentPolicy.from_state(learner.policy_state())
        actions = policy.act(obs, alive)                    # obs [K * A, D], alive [K * A], any number of environments

    Args:
        names: of the policy of each agent of an environment, A.
        policies: by name.
        actions: of an agent.
        device: of the actors.

    Raises:
        ValueError: a name without a policy, or an actor of other actions.
    """

    def __init__(
        self,
        names: Sequence[str],
        policies: Mapping[str, PolicyNetwork | Scripted],
        actions: Actions,
        device: torch.device | str = "cpu",
    ) -> None:
        missing = sorted(set(names) - policies.keys())
        if missing or not names:
            raise ValueError(
                f"every agent needs a policy: there is none named {missing}, only {sorted(policies)}"
            )
        self.names = tuple(names)
        self.policies = dict(policies)
        self.actions = actions
        self.device = torch.device(device)
        for name, policy in policies.items():
            if isinstance(policy, PolicyNetwork) and policy.actions.state() != actions.state():
                raise ValueError(
                    f"policy {name!r} chooses {policy.actions.state()}, the agents' actions are {actions.state()}"
                )
        self._members = {name: np.array([each == name for each in names]) for name in dict.fromkeys(names)}

    @property
    def num_agents(self) -> int:
        return len(self.names)

    def members(self, name: str) -> NDArray[np.bool_]:
        """The agents of an environment that follow a policy, bool [A]."""
        return self._members[name]

    def act(
        self,
        obs: NDArray[np.float32],
        alive: NDArray[np.bool_],
        deterministic: bool = True,
        generator: torch.Generator | None = None,
    ) -> NDArray[Any]:
        """Actions of the environment, int64 [K * A] or float32 [K * A, n]; any where no agent is alive.

        Args:
            obs: float32 [K * A, obs_dim].
            alive: bool [K * A].
            deterministic: the likeliest actions; otherwise drawn, for which a generator is needed.
            generator: of the draws.

        Raises:
            ValueError: rows that are no whole number of environments, or no generator.
        """
        if len(obs) % self.num_agents or len(obs) != len(alive):
            raise ValueError(
                f"expected rows of environments of {self.num_agents} agents, got {len(obs)} observations"
                f" and {len(alive)} flags"
            )
        noise = None
        if not deterministic:
            if generator is None:
                raise ValueError("actions are to be drawn: give a generator")
            noise = sampling_noise(self.actions, (len(obs),), generator)
        draws, _ = self.draw(torch.from_numpy(obs), alive, noise)
        return self.actions.to_env(draws.numpy())

    def act_into(self, rollout: MultiAgentRollout, t: int, noise: Tensor | None) -> NDArray[Any]:
        """Chooses the actions of step ``t`` and writes them and their log-probabilities; returns the environment's."""
        draws, log_probs = self.draw(rollout.tensors["obs"][t], rollout.alive[t], noise)
        rollout.tensors["actions"][t] = draws
        rollout.tensors["log_probs"][t] = log_probs
        return self.actions.to_env(rollout.actions[t])

    def draw(self, obs: Tensor, alive: NDArray[np.bool_], noise: Tensor | None) -> tuple[Tensor, Tensor]:
        """Draws int64 [R] or float32 [R, n] and log-probabilities float32 [R]; zeros where no agent is alive."""
        rows = len(alive)
        draws = torch.zeros((rows, self.actions.size) if self.actions.is_box else rows, dtype=self._dtype)
        log_probs = torch.zeros(rows)
        num_envs = rows // self.num_agents
        for name, members in self._members.items():
            chosen = np.flatnonzero(alive & np.tile(members, num_envs))
            if not len(chosen):
                continue
            agents = chosen % self.num_agents
            policy = self.policies[name]
            index = torch.from_numpy(chosen)
            if isinstance(policy, PolicyNetwork):
                with torch.inference_mode():
                    drawn, log_prob = policy.draw(
                        obs.index_select(0, index).to(self.device),
                        torch.from_numpy(agents).to(self.device),
                        None if noise is None else noise.index_select(0, index).to(self.device),
                    )
                draws[index], log_probs[index] = drawn.cpu(), log_prob.cpu()
            else:
                draws[index] = torch.from_numpy(self._scripted(name, policy, obs.numpy()[chosen], agents))
        return draws, log_probs

    @property
    def _dtype(self) -> torch.dtype:
        return torch.float32 if self.actions.is_box else torch.int64

    def _scripted(
        self, name: str, rule: Scripted, obs: NDArray[np.float32], agents: NDArray[np.int64]
    ) -> NDArray[Any]:
        actions = np.asarray(rule(obs, agents))
        shape = (len(obs), self.actions.size) if self.actions.is_box else (len(obs),)
        if actions.shape != shape:
            raise ValueError(
                f"the scripted policy {name!r} should give actions {list(shape)}, gave {list(actions.shape)}"
            )
        return self.actions.from_env(actions)

    def state(self) -> dict[str, Any]:
        """All that `from_state` needs, tensors and JSON-able values, but for rules: of these only names. Not a copy."""
        return {
            "policies": list(self.names),
            "actions": self.actions.state(),
            "actors": {
                name: policy.state()
                for name, policy in self.policies.items()
                if isinstance(policy, PolicyNetwork)
            },
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any], scripted: Mapping[str, Scripted] | None = None) -> Self:
        """The policy that `state` came from; rules have to be given again.

        Raises:
            ValueError: a rule is missing, or weights do not fit or are not finite.
        """
        actors = {name: PolicyNetwork.from_state(actor) for name, actor in state["actors"].items()}
        return cls(state["policies"], {**(scripted or {}), **actors}, Actions.from_state(state["actions"]))

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Takes the weights of another policy of the same shape, in place.

        Raises:
            ValueError: they do not fit or are not finite; nothing has changed for the actor that is named.
        """
        for name, actor in state["actors"].items():
            own = self.policies.get(name)
            if not isinstance(own, PolicyNetwork):
                raise ValueError(f"there is no actor named {name!r} here, only {sorted(self.policies)}")
            load_weights(own, actor["weights"])

    @property
    def weights_nbytes(self) -> int:
        """Size of what `load` reads, bytes."""
        return sum(weight.nbytes for weight in self._weights())

    def write_weights(self, out: Any) -> None:
        """Writes the weights of all actors into a contiguous buffer of `weights_nbytes` bytes."""
        data, end = np.frombuffer(out, np.uint8), 0
        for weight in self._weights():
            start, end = end, end + weight.nbytes
            data[start:end] = weight.cpu().contiguous().reshape(-1).view(torch.uint8).numpy()

    def load(self, weights: Any) -> None:
        """Takes the weights that `write_weights` of a policy of the same shape has written."""
        data, end = np.frombuffer(weights, np.uint8), 0
        for weight in self._weights():
            start, end = end, end + weight.nbytes
            weight.reshape(-1).view(torch.uint8).copy_(torch.from_numpy(data[start:end].copy()))

    def _weights(self) -> list[Tensor]:
        """The weights of all actors, in a fixed order."""
        actors = sorted(
            (name, each) for name, each in self.policies.items() if isinstance(each, PolicyNetwork)
        )
        return [weight.detach() for _, actor in actors for _, weight in sorted(actor.state_dict().items())]
