"""Networks of many agents: actors for discrete and continuous actions, critics of one agent and of all.

Rows are agents, row = environment * A + agent, as in `fastrl.rollout.rollout`. (One agent has
`fastrl.networks.actor_critic.ActorCritic`: an actor and a critic with one vector of parameters, which compiled actors
can act for. Here both are apart, for policies may be shared, frozen or rules, and a critic may see all agents.)
"""

import functools
import math
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NotRequired, Self, TypedDict, Unpack

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fastrl.envs.rows import ObsRows
from fastrl.networks.acting_network import ActingNetwork
from fastrl.networks.action_space import Actions
from fastrl.networks.compiled_actor import MAX_OBS_DIM, MAX_TABLE_ROWS, ActorSpec, with_weights
from fastrl.networks.distributions import (
    Choices,
    choices_of,
    log_std_parameter,
)
from fastrl.networks.encoders import Decoder, Encoder
from fastrl.networks.kinds import EncoderKind, Init, MemoryKind, PerceptronActivation
from fastrl.networks.memory import Memory
from fastrl.networks.normalization import RunningNorm
from fastrl.networks.parameters import SavedNetwork, load_weights
from fastrl.networks.perceptron import Linear, Perceptron
from fastrl.networks.team_actor import Member, Scripted, TeamActor

# Rows of one pass through a network; the gradients of a minibatch add up over its chunks. Large enough to be cheap a
# row, small enough that what lies between the layers stays in caches and out of the process's memory.
CHUNK, _IMAGE_CHUNK = 2048, 256


class NetworkOptions(TypedDict):
    """Options of a critic, as of `PolicyNetwork`."""

    obs: NotRequired[Mapping[str, Any] | None]
    encoder: NotRequired[EncoderKind]
    hidden: Sequence[int]
    activation: PerceptronActivation
    init: Init
    normalize_obs: bool
    generator: torch.Generator | None


class _Network(SavedNetwork):
    """A perceptron that may whiten observations; before it, where observations have images, an encoder.

    Args:
        obs_dim: length of an agent's observation.
        inputs: width of the perceptron's input for the length of an observation or of its features.
        outputs: width of its output.
        last_gain: of the last layer's weights.
        num_ids: agents, of which each has a one-hot index behind its observation; 0: no index.
        num_memories: numbers of a policy's memory behind an observation.
        last_inputs: see `Perceptron`.
        options: the others.

    Attributes:
        num_agents: observations that it takes together.
        chunk: rows of one pass in which gradients are computed.
    """

    num_agents = 1

    def __init__(
        self,
        obs_dim: int,
        inputs: Callable[[int], int],
        outputs: int,
        last_gain: float,
        num_ids: int = 0,
        num_memories: int = 0,
        last_inputs: int | None = None,
        **options: Unpack[NetworkOptions],
    ) -> None:
        super().__init__()
        self.obs_dim = obs_dim
        self.num_ids, self.num_memories = num_ids, num_memories
        self.decoder: Decoder | None = None
        self.encoder: Encoder | None = None
        self.obs_norm: RunningNorm | None = None
        self.chunk, features, generator = CHUNK, obs_dim, options["generator"]
        if (obs := options.get("obs")) is not None:
            kind = options.get("encoder", "auto")
            rows = ObsRows.from_state(obs)
            self.decoder = Decoder(rows, options["normalize_obs"], flat=kind == "mlp")
            self.encoder = Encoder(self.decoder, kind, (), "relu", generator=generator)
            self.chunk, features = _IMAGE_CHUNK, self.encoder.size
        elif options["normalize_obs"]:
            self.obs_norm = RunningNorm(obs_dim)
        widths = [inputs(features), *options["hidden"], outputs]
        self.body = Perceptron(
            widths, options["activation"], options["init"], last_gain, generator, last_inputs
        )

    def observe(self, obs: Tensor) -> None:
        """Adds observations [B, obs_dim] to the running statistics, if there are any."""
        if self.decoder is not None:
            self.decoder.update_statistics(obs)
        elif self.obs_norm is not None:
            self.obs_norm.update(obs)

    def _features(self, obs: Tensor, encoded: bool) -> Tensor:
        """Observations [B, obs_dim] as the perceptron takes them: whitened, or features float [B, F] if ``encoded``."""
        if self.decoder is not None and self.encoder is not None:
            if not encoded:
                return obs
            features: Tensor = self.encoder(*self.decoder(obs))
            return features
        return obs if self.obs_norm is None else self.obs_norm(obs)

    @property
    def pooling(self) -> tuple[int, int, int] | None:
        """Number of tables that the encoder pools, their rows and width, where compiled networks do so: an observation
        is a table, and there is no memory. None: they do not."""
        table = None if self.encoder is None or self.num_memories else self.encoder.pooling
        widest = max(self.compiled_inputs, self.body.sizes[0])
        if table is None or math.prod(table) != self.obs_dim or widest > MAX_OBS_DIM:
            return None
        return (self.num_agents, *table) if self.num_agents * table[0] <= MAX_TABLE_ROWS else None

    @property
    def compiled_inputs(self) -> int:
        """Length of `inputs` that are not encoded."""
        features = self.obs_dim if self.encoder is None else self.encoder.size
        return self.body.sizes[0] + self.num_agents * (self.obs_dim - features)

    @property
    def is_plain(self) -> bool:
        """It is a perceptron that compiled actors and gradient steps know, of numbers or of pooled rows."""
        has_encoder = self.encoder is not None and self.pooling is None
        return not has_encoder and self.body.activation in ("relu", "tanh")

    @property
    def takes_obs(self) -> bool:
        """Inputs that are not encoded are an agent's observations as they are."""
        return self.obs_norm is None and self.compiled_inputs == self.obs_dim

    def inputs(
        self, obs: Tensor, agents: Tensor, memories: Tensor | None = None, *, encoded: bool = True
    ) -> Tensor:
        """Inputs of the perceptron float [B, n] at observations [B, obs_dim] of agents int64 [B].

        Args:
            memories: of critics, float32 [B, num_memories]: what the policy remembers there; None: there are none.
            encoded: by the encoder, if there is one; compiled networks encode themselves.
        """
        features = self._features(obs, encoded)
        inputs = [features, memories] if self.num_memories and memories is not None else [features]
        if self.num_ids:
            inputs.append(nn.functional.one_hot(agents, self.num_ids).to(features.dtype))
        return torch.cat(inputs, -1) if len(inputs) > 1 else features


class PolicyNetwork(_Network, ActingNetwork):
    """A policy: the distribution of an agent's action, given its own observation and perhaps its index.

    Discrete actions have a categorical distribution, multi-discrete ones one for each number. Continuous ones have a
    Gaussian, its mean the network's output and its deviation a parameter of its own, the same everywhere.

    Args:
        obs_dim: length of an observation.
        actions: what is chosen.
        num_ids: agents, of which each has a one-hot index behind its observation; 0: no index.
        obs: `ObsRows.state` of observations with images or tables, which go through an encoder; None: they are vectors.
        encoder: its network, see `fastrl.networks.encoders.Encoder`; "mlp": images are numbers like others.
        hidden, activation, init: of the `Perceptron`.
        normalize_obs: whiten numbers of observations by running statistics.
        memory: a recurrent layer before the last layer; then `sequences` computes the policy.
        memory_size: number of its outputs.
        initial_log_std: of the Gaussian, in units of half the range of an action.
        generator: where the initial weights come from.

    Attributes:
        log_std: as of `ActingNetwork`; kept within `LOG_STD_RANGE` by the learner.
    """

    kind = "agent"

    def __init__(
        self,
        obs_dim: int,
        actions: Actions,
        *,
        num_ids: int = 0,
        obs: Mapping[str, Any] | None = None,
        encoder: EncoderKind = "auto",
        hidden: Sequence[int] = (128, 64, 32),
        activation: PerceptronActivation = "relu",
        init: Init = "orthogonal",
        normalize_obs: bool = False,
        memory: MemoryKind = "none",
        memory_size: int = 64,
        initial_log_std: float = 0.0,
        generator: torch.Generator | None,
    ) -> None:
        super().__init__(
            obs_dim,
            lambda features: features + num_ids,
            actions.size,
            0.01,
            num_ids,
            last_inputs=None if memory == "none" else memory_size,
            obs=obs,
            encoder=encoder,
            hidden=hidden,
            activation=activation,
            init=init,
            normalize_obs=normalize_obs,
            generator=generator,
        )
        self.actions, self.num_actions = actions, actions.size
        # Actions are saved apart; without a memory its size does not matter.
        for name in ("actions", *(() if memory != "none" else ("memory", "memory_size"))):
            del self._architecture[name]
        self.memory: Memory | None = None
        if memory != "none":
            self.memory = Memory(memory, self.body.sizes[-2], memory_size, generator)
            self.state_size = self.memory.state_size
            if self.encoder is None:
                # A pass along fewer sequences is not shorter.
                self.chunk = sys.maxsize
        self.log_std = log_std_parameter(actions.size, initial_log_std) if actions.is_box else None

    @property
    def obs_parts(self) -> Mapping[str, Any] | None:
        """`ObsRows.state` of observations whose parts an encoder takes: images or tables; None: they are vectors."""
        return self._architecture["obs"]

    @functools.cached_property
    def choices(self) -> Choices | None:
        """Layout of the logits of multi-discrete actions; None for others."""
        return choices_of(self.actions)

    def forward(self, obs: Tensor, agents: Tensor, drops: Sequence[Tensor] = ()) -> Tensor:
        """Logits float [B, size], or means of the Gaussian, of a policy without a memory.

        Args:
            obs: float or, with images, uint8 [B, obs_dim].
            agents: int64 [B], index of the agent in its environment.
            drops: as for `Perceptron`.
        """
        outputs: Tensor = self.body(self.inputs(obs, agents), drops)
        return outputs

    def sequences(
        self,
        obs: Tensor,
        agents: Tensor,
        batch_sizes: Tensor,
        states: Tensor,
        drops: Sequence[Tensor] = (),
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The policy along sequences of steps, see `fastrl.networks.memory.Memory.forward`.

        Args:
            obs, agents, drops: as of `forward`, of P steps.
            batch_sizes, states: as of `fastrl.networks.acting_network.PolicyNet.sequences`.

        Returns:
            Outputs [P, size], the memory's outputs [P, memory_size], and the states after the last steps.
        """
        assert self.memory is not None, "a policy with a memory"
        features = self.body.features(self.inputs(obs, agents), drops)
        # Further numbers are of policies with a longer memory.
        of_memory = states[:, : self.state_size].contiguous()
        memories, after = self.memory(features, batch_sizes, of_memory)
        return self.body[-1](memories), memories, after

    def step(self, rows: Tensor, states: Tensor | None) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """See `ActingNetwork.step`; rows have the one-hot index of the agent behind the observation, if it is used."""
        obs, index = rows[:, : self.obs_dim], rows[:, self.obs_dim :]
        agents = index.argmax(1) if self.num_ids else index.new_zeros(len(rows), dtype=torch.int64)
        return self.step_of(obs, agents, states)

    def step_of(
        self, obs: Tensor, agents: Tensor, states: Tensor | None
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """`step` for observations [B, obs_dim] of agents int64 [B]; further numbers of states are of policies with a
        longer memory."""
        if self.memory is None or states is None:
            return self(obs, agents), None, None
        of_memory = states[:, : self.state_size].contiguous()
        memories, after = self.memory.step(self.body.features(self.inputs(obs, agents)), of_memory)
        return self.body[-1](memories), None, after

    def maker(self) -> Callable[[], Self]:
        return functools.partial(self.without_weights, self._architecture, actions=self.actions)

    def fixed_actor_spec(self) -> ActorSpec:
        """Makes an actor with the present weights, see `actor_spec`."""
        weights = np.zeros(self.actor_nbytes // 4, np.float32)
        self.actor_weights(weights)
        return functools.partial(with_weights, self.actor_spec(self.actions), weights)

    def actor_architecture(self) -> dict[str, Any] | None:
        if not self.is_plain or (self.encoder is not None and self.memory is not None):
            return None
        architecture = {
            "kind": "gaussian" if self.actions.is_box else "discrete",
            "obs_dim": self.obs_dim + self.num_ids,
            "outputs": self.actions.size,
            "hidden": self._architecture["hidden"],
            "activation": self.body.activation,
            "obs_clip": None if self.obs_norm is None else self.obs_norm.clip,
        }
        if self.pooling is not None:
            architecture["pooling"] = self.pooling
        if self.memory is not None:
            architecture |= {"memory": self.memory.kind, "memory_size": self.memory.size}
        return architecture

    def actor_tensors(self) -> list[Tensor]:
        if self.actor_architecture() is None:
            return super().actor_tensors()
        of_deviations = [] if self.log_std is None else [self.log_std]
        if self.encoder is not None:
            return [*self.encoder.parameters(), *self.body.parameters(), *of_deviations]
        tensors: list[Tensor] = []
        if self.obs_norm is not None:
            # The index of the agent is not whitened.
            pad = (0, self.num_ids)
            tensors = [
                nn.functional.pad(self.obs_norm.mean, pad),
                nn.functional.pad(self.obs_norm.scale(), pad, value=1.0),
            ]
        for i, layer in enumerate(self.body):
            assert isinstance(layer, Linear)
            if self.memory is not None and i == len(self.body) - 1:
                tensors += self.memory.actor_tensors()
            tensors += [layer.weight.t(), layer.bias]
        return [*tensors, *of_deviations]

    def state(self) -> dict[str, Any]:
        """See `ActingNetwork.state`; with ``actions`` (JSON-able)."""
        return {**super().state(), "actions": self.actions.state()}

    @classmethod
    def check_size(cls, state: Mapping[str, Any], **options: Any) -> None:
        super().check_size(state, actions=Actions.from_state(state["actions"]))

    @classmethod
    def from_state(cls, state: Mapping[str, Any], **options: Any) -> Self:
        """See `SavedNetwork.from_state`."""
        return super().from_state(state, actions=Actions.from_state(state["actions"]), **options)


class Critic(_Network):
    """The value of an agent's own observation, and of what its policy remembers (independent learners).

    Args:
        num_memories: numbers that the policy remembers; 0: it has no memory.
        others: as those of `PolicyNetwork`.
    """

    def __init__(
        self, obs_dim: int, *, num_ids: int, num_memories: int = 0, **options: Unpack[NetworkOptions]
    ) -> None:
        others = num_memories + num_ids
        super().__init__(
            obs_dim, lambda features: features + others, 1, 1.0, num_ids, num_memories, **options
        )

    def forward(
        self, obs: Tensor, agents: Tensor, memories: Tensor | None = None, drops: Sequence[Tensor] = ()
    ) -> Tensor:
        """Expected discounted returns float [B]; arguments as of `inputs` and `Perceptron`."""
        values: Tensor = self.body(self.inputs(obs, agents, memories), drops).squeeze(-1)
        return values


class CentralCritic(_Network):
    """The values of all agents of an environment, from what all of them observe and remember, and which of them are
    alive (MAPPO).

    The joint observation is the concatenation of the agents' observations, or of the features that one encoder makes of
    each, zeros for those that are not alive, and a flag each that says which are. There is an output for each agent, so
    that one pass values a whole environment.

    Args:
        obs_dim: D, of one agent.
        num_agents: A.
        num_memories: numbers that each agent's policy remembers; 0: none has a memory.
        options: as those of `PolicyNetwork`.
    """

    def __init__(
        self, obs_dim: int, num_agents: int, *, num_memories: int = 0, **options: Unpack[NetworkOptions]
    ) -> None:
        super().__init__(
            obs_dim,
            lambda features: num_agents * (features + num_memories + 1),
            num_agents,
            1.0,
            num_memories=num_memories,
            **options,
        )
        self.num_agents = num_agents

    def forward(
        self, obs: Tensor, alive: Tensor, memories: Tensor | None = None, drops: Sequence[Tensor] = ()
    ) -> Tensor:
        """Expected discounted returns float [B, A] at observations [B, A, D] of agents alive bool [B, A].

        Observations of agents that are not alive do not matter.

        Args:
            memories: float32 [B, A, num_memories], what the policies remember there; None: they have no memory.
        """
        values: Tensor = self.body(self.inputs(obs, alive, memories), drops)
        return values

    def inputs(
        self, obs: Tensor, alive: Tensor, memories: Tensor | None = None, *, encoded: bool = True
    ) -> Tensor:
        """Inputs of the perceptron float [B, n]: joint observations, then what the policies remember."""
        features = self._features(obs.flatten(0, 1), encoded).unflatten(0, alive.shape)
        seen = [features, memories] if self.num_memories and memories is not None else [features]
        seen = [each.masked_fill(~alive.unsqueeze(-1), 0).flatten(1) for each in seen]
        return torch.cat([*seen, alive.float()], 1)


class MultiAgentPolicy:
    """The policies of all agents of an environment, for which a `TeamActor` acts.

    A policy is a `PolicyNetwork` or a rule (`Scripted`).

    Args:
        names: of the policy of each agent of an environment, A.
        policies: by name.
        actions: of an agent.

    Attributes:
        networks: the policies that are no rules, by name.
        state_size: as of `TeamActor`.

    Raises:
        ValueError: a name without a policy, or an actor of other actions.
    """

    def __init__(
        self,
        names: Sequence[str],
        policies: Mapping[str, PolicyNetwork | Scripted],
        actions: Actions,
    ) -> None:
        missing = sorted(set(names) - policies.keys())
        if missing or not names:
            raise ValueError(
                f"every agent needs a policy: there is none named {missing}, only {sorted(policies)}"
            )
        self.names = tuple(names)
        self.policies = dict(policies)
        self.actions = actions
        self.networks = {name: each for name, each in policies.items() if isinstance(each, PolicyNetwork)}
        for name, policy in self.networks.items():
            if policy.actions.state() != actions.state():
                raise ValueError(
                    f"policy {name!r} chooses {policy.actions.state()}, the agents' actions are {actions.state()}"
                )
        self.state_size = max((each.state_size for each in self.networks.values()), default=0)
        self._members = {name: np.array([each == name for each in names]) for name in dict.fromkeys(names)}

    @property
    def num_agents(self) -> int:
        return len(self.names)

    def members(self, name: str) -> NDArray[np.bool_]:
        """The agents of an environment that follow a policy, bool [A]."""
        return self._members[name]

    def state(self) -> dict[str, Any]:
        """All that `from_state` needs, tensors and JSON-able values, but for rules: of these only names. Not a copy."""
        return {
            "policies": list(self.names),
            "actions": self.actions.state(),
            "actors": {name: policy.state() for name, policy in self.networks.items()},
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
            if name not in self.networks:
                raise ValueError(f"there is no actor named {name!r} here, only {sorted(self.policies)}")
            load_weights(self.networks[name], actor["weights"])

    def actor_spec(self, learning: Collection[str] = ()) -> Callable[[], TeamActor]:
        """Makes the actor of these policies; it pickles, if rules do.

        Args:
            learning: names of those whose weights are published; the others keep their present ones.
        """
        members: dict[str, Member] = {}
        for name, policy in self.policies.items():
            if not isinstance(policy, PolicyNetwork):
                members[name] = Member(rule=policy)
            elif name in learning:
                members[name] = Member(policy.actor_spec(policy.actions), num_ids=policy.num_ids)
            else:
                members[name] = Member(policy.fixed_actor_spec(), num_ids=policy.num_ids, learns=False)
        return functools.partial(TeamActor, self.names, members, self.actions.state())


def fixed_policies(
    partners: Mapping[str, Mapping[str, Any] | Scripted], policies: Sequence[str]
) -> dict[str, PolicyNetwork | Scripted]:
    """Policies that do not learn, by name: rules, and networks of policy states.

    Args:
        partners: as of `fastrl.algorithms.multi_agent.MultiAgentLearner`.
        policies: the name of each agent's policy.

    Raises:
        ValueError: a name that is no agent's policy, or a state of several policies.
    """
    unknown = sorted(partners.keys() - set(policies))
    if unknown:
        raise ValueError(f"partners {unknown} are no agent's policy; policies are {sorted(set(policies))}")
    fixed: dict[str, PolicyNetwork | Scripted] = {}
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
        fixed[name] = PolicyNetwork.from_state(next(iter(actors.values())))
    return fixed
