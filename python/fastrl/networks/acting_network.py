"""Networks that choose actions: what they have in common, the class of a saved one, and the actor of a saved one."""

import functools
import importlib
import pkgutil
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Self

import numpy as np
from gymnasium.spaces import Space
from numpy.typing import NDArray
from torch import Tensor, nn

from fastrl import networks
from fastrl.envs.rows import ActionRows, ObsRows
from fastrl.networks.action_space import Actions
from fastrl.networks.compiled_actor import Actor, ActorSpec, MlpActor, with_weights
from fastrl.networks.parameters import SavedNetwork, write_tensors
from fastrl.networks.torch_actor import TorchActor

_KINDS: dict[str, type["ActingNetwork"]] = {}


class ActingNetwork(SavedNetwork):
    """A network whose outputs say what to do: the base of policies and of networks that value actions.

    `network_type` finds a subclass of a module of this package by its ``kind``; there is no list to extend.

    Class attributes:
        kind: names the class in `state`.

    Attributes:
        obs_rows: form of the observations, of networks that are for one form alone.
        obs_dim: length of a row of observations.
        num_actions: number of discrete actions, sum of the numbers of actions (MultiDiscrete), or numbers in an action
            (Box).
        log_std: of a Gaussian, Parameter [num_actions]; None for choices.
        gives_values: outputs and values together cost no more than outputs, and `step` gives both.
        state_size: length of its memory of an episode; 0: it has none.
    """

    kind: ClassVar[str]
    obs_rows: ObsRows
    obs_dim: int
    num_actions: int
    log_std: nn.Parameter | None
    gives_values: bool = False
    state_size: int = 0

    def outputs(self, rows: Tensor) -> Tensor:
        """Logits, means or values float [B, outputs] at observations [B, obs_dim]."""
        raise NotImplementedError

    def step(self, rows: Tensor, states: Tensor | None) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """A step of each row's episode: the outputs, the values [B] if it ``gives_values``, and the states after it.

        Args:
            states: float32 [B, state_size], before the step; None without memory.
        """
        return self.outputs(rows), None, None

    def takes(self, obs_rows: ObsRows) -> bool:
        """True if observations have the form that the network is for."""
        return obs_rows.state() == self.obs_rows.state()

    def for_observations(self, obs_rows: ObsRows) -> "ActingNetwork":
        """The network that acts on observations: itself, but where they are a part of those that it takes."""
        return self

    def actor_architecture(self) -> dict[str, Any] | None:
        """Arguments that make `fastrl.networks.compiled_actor.MlpActor` act as this network, without torch, but for the
        kind of actions if they are of several numbers; None if it has no compiled form."""
        return None

    def actor_tensors(self) -> list[Tensor]:
        """Tensors that its actor reads, in order: the weights and statistics as they are now; those of the policy alone
        if it has a compiled form."""
        return list(self.state_dict().values())

    @property
    def actor_nbytes(self) -> int:
        """Size of what `actor_weights` writes, bytes."""
        return 4 * sum(tensor.numel() for tensor in self.actor_tensors())

    def actor_weights(self, out: NDArray[np.float32]) -> None:
        """Writes what its actor's ``load`` reads.

        Args:
            out: float32 [``actor_nbytes`` / 4].

        Raises:
            ValueError: ``out`` is not such an array.
        """
        write_tensors(self.actor_tensors(), out)

    def maker(self) -> Callable[[], Self]:
        """Makes networks of this architecture, whose weights are to be loaded; pickles."""
        return functools.partial(type(self).without_weights, self._architecture)

    def actor_spec(self, actions: Actions) -> ActorSpec:
        """Makes an actor: compiled where it can be, else PyTorch's.

        Args:
            actions: that the network's draws become.
        """
        architecture = self.actor_architecture()
        if architecture is None:
            return functools.partial(TorchActor, self.maker(), actions.state())
        if actions.kind == "multi_discrete":
            architecture |= {"kind": "multi_discrete", "nvec": actions.nvec.tolist()}
        return functools.partial(MlpActor, architecture)

    def loaded_actor(self, actions: Actions, saved: Mapping[str, Any] | None = None) -> Actor:
        """An actor with the weights as they are now.

        Args:
            saved: state of the policy, which may say more of how it acts.
        """
        weights = np.zeros(self.actor_nbytes // 4, np.float32)
        self.actor_weights(weights)
        return with_weights(self.actor_spec(actions), weights)

    def state(self) -> dict[str, Any]:
        """See `SavedNetwork.state`; with the ``kind``."""
        return {**super().state(), "kind": self.kind}

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "kind" in vars(cls):
            _KINDS[cls.kind] = cls


class PolicyNet(ActingNetwork):
    """A policy and a value function.

    Attributes:
        log_std: the learner keeps it within `fastrl.networks.distributions.LOG_STD_RANGE`.
        has_noise: it draws random numbers in ``train()`` mode, as dropout does.
    """

    has_noise: bool = False

    def forward(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """``outputs(rows)`` and ``value(rows)``."""
        raise NotImplementedError

    def outputs(self, rows: Tensor) -> Tensor:
        """The policy at observations [B, obs_dim], as float [B, num_actions]: unnormalised log-probabilities (logits)
        of discrete actions, means of continuous ones."""
        return self(rows)[0]

    def value(self, rows: Tensor) -> Tensor:
        """Expected discounted returns float [B] at observations [B, obs_dim]."""
        return self(rows)[1]

    def sequences(self, rows: Tensor, batch_sizes: Tensor, states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The policy and the values along sequences of steps, see `fastrl.networks.memory.Memory.forward`. With a
        memory they depend on the steps before, and this alone computes them.

        Args:
            rows: observations [P, obs_dim].
            batch_sizes: int64 [L], sequences that have a first, a second, ... step; on the CPU.
            states: float32 [S, state_size], before the first steps.

        Returns:
            Outputs [P, num_actions], values [P], and the states after the last steps [S, state_size].
        """
        raise NotImplementedError(f"{type(self).__name__} has no memory")

    def step(self, rows: Tensor, states: Tensor | None) -> tuple[Tensor, Tensor | None, Tensor | None]:
        return (*self(rows), None) if self.gives_values else super().step(rows, states)

    def update_architecture(self) -> dict[str, Any] | None:
        """Arguments of `fastrl._native._rust.PpoUpdate` but for the actions and the precision, by which it learns this
        network; None if it does not."""
        return None

    def normalized(self, rows: Tensor) -> Tensor:
        """Observations float [B, obs_dim] as compiled gradient steps take them."""
        return rows

    def update_statistics(self, rows: Tensor) -> None:
        """Adds observations [B, obs_dim] to the running statistics that whiten them, if there are any."""


def network_type(state: Mapping[str, Any]) -> type[ActingNetwork]:
    """The class of a saved network.

    Raises:
        ValueError: there is no such kind.
    """
    # Perceptrons of older versions have none.
    kind = state.get("kind", "actor_critic")
    if kind not in _KINDS:
        for module in pkgutil.iter_modules(networks.__path__):
            importlib.import_module(f"{networks.__name__}.{module.name}")
    if kind not in _KINDS:
        raise ValueError(f"networks of the kind {kind!r} are not known, only {', '.join(sorted(_KINDS))}")
    return _KINDS[kind]


def saved_network(state: Mapping[str, Any]) -> ActingNetwork:
    """The network of a policy's saved state. One of the user's own is imported:
    `fastrl.networks.own_network.own_path` says what.

    Raises:
        ValueError: weights that do not fit the architecture, or are not finite; an unknown kind.
    """
    return network_type(state).from_state(state)


def network_in(
    policy: Mapping[str, Any], obs_space: Space[Any], action_space: Space[Any]
) -> tuple[ActingNetwork, Actions]:
    """The network of a policy's saved state that acts in an environment, and what its draws become there.

    Raises:
        ValueError: the policy is for other spaces, or cannot be loaded.
    """
    obs_rows = ObsRows(obs_space)
    network = saved_network(policy).for_observations(obs_rows)
    saved = policy.get("action_space", {"kind": "discrete", "size": network.num_actions})
    actions = Actions(ActionRows(action_space).flat_space, bool(saved.get("squash")))
    if (network.obs_dim, network.num_actions) != (obs_rows.size, actions.size):
        raise ValueError(
            f"the policy takes {network.obs_dim} numbers for {network.num_actions} actions, the environment has"
            f" {obs_rows.size} for {action_space}"
        )
    if not network.takes(obs_rows) or saved != actions.state():
        raise ValueError(
            f"the policy takes other observations than the environment's {obs_space}, or has other actions than its"
            f" {action_space}, with as many numbers"
        )
    return network, actions


def saved_actor(policy: Mapping[str, Any], obs_space: Space[Any], action_space: Space[Any]) -> Actor:
    """The actor of a policy's saved state in an environment; errors as of `network_in`."""
    network, actions = network_in(policy, obs_space, action_space)
    return network.loaded_actor(actions, policy)
