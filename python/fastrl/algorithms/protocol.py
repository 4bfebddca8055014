"""The protocol between an algorithm and the trainer that drives it."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Literal, Self, TypeVar

import gymnasium

from fastrl.networks.compiled_actor import ActorSpec
from fastrl.utils.timer import Stopwatch

E = TypeVar("E")

LearnsFrom = Literal["rollouts", "transitions", "multi_agent_rollouts"]


@dataclass(frozen=True)
class Problem:
    """What an algorithm is built for.

    Attributes:
        obs_space, action_space: of one environment, or of one agent of it.
        num_envs: environments that are stepped, N.
        num_agents: agents of each environment, A.
        total_steps: environment steps of the whole run, over which schedules run. One update more or less is no error;
            past the end the final values hold.
        seed: of everything random in the algorithm; not negative.
        device: where networks live, "cpu" or "cuda".
    """

    obs_space: gymnasium.Space[Any]
    action_space: gymnasium.Space[Any]
    num_envs: int
    total_steps: int
    num_agents: int = 1
    seed: int = 0
    device: str = "cpu"


class Algorithm(ABC, Generic[E]):
    """Learns a policy from experience that somebody else collects; it never steps an environment.

    A new algorithm is one module with a subclass. `fastrl.algorithms.find` finds it there by its ``name``, and a class
    of the user's own by its import path.

    Class attributes:
        name: by which users choose it, such as ``"ppo"``.
        summary: one line for help texts.
        config_type: its settings, made with `fastrl.utils.config.section`.
        learns_from: what `update` takes. "rollouts": a list of `fastrl.rollout.fragment.Fragment`, an update's worth.
            "transitions": a minibatch drawn from a replay. "multi_agent_rollouts": a rollout of many agents.

    Attributes:
        config: its settings.
        steps: environment steps that it has learnt from.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    config_type: ClassVar[type[Any]]
    learns_from: ClassVar[LearnsFrom]

    config: Any
    steps: int

    @classmethod
    @abstractmethod
    def build(cls, config: Any, problem: Problem) -> Self:
        """Makes the algorithm with new weights.

        Raises:
            ValueError: spaces or settings that it does not take; the message says which it takes.
        """

    @property
    def num_steps(self) -> int:
        """Steps of each environment in a rollout. Algorithms that learn from rollouts have it."""
        return int(self.config.num_steps)

    @property
    def action_masks(self) -> bool:
        """Whether experience should carry the environment's action masks."""
        return False

    @property
    def max_staleness(self) -> int:
        """How many versions behind the newest one the policy may be that collected what is learnt from; 0: collection
        and learning take turns."""
        return 0

    @abstractmethod
    def actor_spec(self) -> ActorSpec:
        """Makes what chooses actions where experience is collected; it pickles."""

    @property
    @abstractmethod
    def weights_nbytes(self) -> int:
        """Size of what `write_weights` writes, bytes."""

    @abstractmethod
    def write_weights(self, out: Any) -> None:
        """Writes the weights that actors ``load`` into a contiguous writable buffer of `weights_nbytes` bytes."""

    @abstractmethod
    def update(self, experience: E, watch: Stopwatch) -> Any:
        """Learns from experience, and measures what it spends its time on.

        Returns:
            What the source of the experience asks for: TD errors of the minibatch for a prioritized replay, else None.

        Raises:
            ValueError: experience of other sizes or spaces.
            FloatingPointError: the network, or what it was given, is not finite.
        """

    @abstractmethod
    def metrics(self) -> Mapping[str, float]:
        """Numbers by name: of the last update, or means since the last call. It may wait for the GPU, which `update`
        need not."""

    @abstractmethod
    def policy_state(self) -> dict[str, Any]:
        """What inference needs, weights and architecture, for checkpoints. Not a copy."""

    @abstractmethod
    def load_policy(self, state: Mapping[str, Any]) -> list[str]:
        """Starts from the weights of another run's checkpoint, as its `state_dict` has them.

        Returns:
            Parts that differ and so keep their new weights, for people; usually none.

        Raises:
            ValueError: a network for other spaces, or of another architecture, or not finite.
        """

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """All that `load_state_dict` needs: nested dicts with string keys, of tensors and JSON values. Tensors are not
        copies. Call it between updates."""

    @abstractmethod
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resumes exactly where the algorithm stood that gave the state.

        Raises:
            ValueError, KeyError: the state is of another network or other settings, or is not finite.
        """
