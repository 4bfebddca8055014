"""The protocol between an algorithm and the trainer that drives it."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, NamedTuple, Protocol, TypeVar, get_args

import gymnasium

from fastrl.algorithms.schedules import TimestepSchedule
from fastrl.envs.rows import ObsKind, ObsRows
from fastrl.networks.action_space import ActionKind
from fastrl.networks.compiled_actor import Actor, ActorSpec
from fastrl.networks.team_actor import TeamActor
from fastrl.rollout.fragment import Fragment
from fastrl.utils.ranks import ALONE, Ranks
from fastrl.utils.timer import Stopwatch

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from fastrl.networks.multi_agent import MultiAgentPolicy
    from fastrl.replay.samplers import UniformSampler

E = TypeVar("E")

LearnsFrom = Literal["rollouts", "transitions", "dataset"]


@dataclass(frozen=True)
class Problem:
    """The spaces and sizes that an algorithm is built for.

    Attributes:
        obs_space: of one environment, or of one agent of it; experience has rows of it, see `obs_rows`.
        action_space: the flat one, see `fastrl.envs.rows.ActionRows`.
        num_envs: environments that are stepped, N.
        num_agents: agents of each environment, A.
        total_timesteps: environment steps of the whole run, at which schedules end. One update more or less is no
            error; past the end the final values hold.
        first_timestep: environment steps of earlier stages of the run.
        schedule_start: environment steps at which schedules start in any stage; 0: with the stage.
        ranks: that train together, each with the same experience.
        seed: of everything random in the algorithm; not negative.
        device: where networks live, "cpu" or "cuda".

    Raises:
        ValueError: a number below 1.
    """

    obs_space: gymnasium.Space[Any]
    action_space: gymnasium.Space[Any]
    num_envs: int
    total_timesteps: int
    num_agents: int = 1
    seed: int = 0
    device: str = "cpu"
    first_timestep: int = 0
    schedule_start: int = 0
    ranks: Ranks = ALONE

    def __post_init__(self) -> None:
        for name in ("num_envs", "num_agents", "total_timesteps"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")

    @functools.cached_property
    def obs_rows(self) -> ObsRows:
        """Storage of observations: their dtype, float32 or uint8, their length and their parts."""
        return ObsRows(self.obs_space)

    @property
    def obs_dim(self) -> int:
        """Length of an observation's row."""
        return self.obs_rows.size

    def schedule(self, start: float | str, end: float | None) -> TimestepSchedule:
        """A schedule that ends with the run, or the stage; arguments as of `TimestepSchedule`."""
        return TimestepSchedule(
            start, end, self.total_timesteps, max(self.first_timestep, self.schedule_start)
        )


class Algorithm(ABC, Generic[E]):
    """Learns a policy from experience; it never steps an environment.

    A new algorithm is one module with a subclass. `fastrl.algorithms.find` finds it there by its ``name``, and a class
    of the user's own by its import path.

    Class attributes:
        name: by which users choose it, such as ``"ppo"``.
        summary: one line for help texts.
        config_type: its settings, made with `fastrl.utils.config.section`.
        learns_from: what `update` takes. "rollouts": a list of `fastrl.rollout.fragment.Fragment`, an update's worth.
            "transitions": a minibatch drawn from a replay, see `OffPolicyAlgorithm`. "dataset": a minibatch of recorded
            steps, see `DatasetAlgorithm`.
        many_agents: it learns policies of environments of many agents.
        obs_kinds: observations that it takes, as of `fastrl.envs.rows.ObsRows`; all unless it says otherwise.
        action_kinds: actions that it takes, as of `fastrl.networks.action_space.Actions`; all unless it says otherwise.
        network_of: the algorithm that can start with its weights, whose settings of networks presets give it, too.
        takes_shards: it learns by `fastrl.utils.ranks.Ranks.reduce`, and so on several ranks.

    Args:
        config: of `config_type`.
        problem: spaces and sizes.

    Attributes:
        config: its settings.
        steps: environment steps that it has learned from.
        device: where its networks live.

    Raises:
        ValueError: spaces or settings that it does not take; the message says which it takes.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    config_type: ClassVar[type[Any]]
    learns_from: ClassVar[LearnsFrom]
    many_agents: ClassVar[bool] = False
    obs_kinds: ClassVar[frozenset[ObsKind]] = frozenset(get_args(ObsKind))
    action_kinds: ClassVar[frozenset[ActionKind]] = frozenset(get_args(ActionKind))
    network_of: ClassVar[str] = ""
    takes_shards: ClassVar[bool] = False

    config: Any
    steps: int
    device: torch.device | str = "cpu"
    # A remark; empty: gradient steps are compiled, or there are no compiled ones.
    _why_not_compiled = ""

    @abstractmethod
    def __init__(self, config: Any, problem: Problem) -> None: ...

    @classmethod
    def check_state(cls, config: Any, state: Mapping[str, Any]) -> None:
        """Compares what `state_dict` gave with settings, before memory is taken for the sizes that these claim.

        Raises:
            ValueError, KeyError: its networks are of other sizes, or have fewer weights than they claim.
        """

    @property
    def num_steps(self) -> int:
        """Steps of each environment in a rollout. Algorithms that learn from rollouts have it."""
        return int(self.config.num_steps)

    @property
    def action_masks(self) -> bool:
        """True if experience should carry the environment's action masks."""
        return False

    @property
    def final_masks(self) -> bool:
        """True if it should carry those of the last observations of truncated episodes, too."""
        return False

    @property
    def squash_actions(self) -> bool:
        """True if actions of a Box are squashed, see `fastrl.networks.action_space.Actions`."""
        return False

    @property
    def max_staleness(self) -> int:
        """Versions by which the policy that collects may lag at most; 0: collection and learning take turns."""
        return 0

    @abstractmethod
    def actor_spec(self) -> Callable[..., Any]:
        """Makes what chooses actions where experience is collected; it pickles. By `learns_from`: a
        `fastrl.networks.compiled_actor.ActorSpec`, or what `OffPolicyAlgorithm` or `MultiAgentAlgorithm` say."""

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
        """Numbers by name, which is ``train/NAME`` in rows of metrics: of the last update, or means since the last
        call. It may wait for the GPU, which `update` need not."""

    @property
    def update_backend(self) -> str:
        """Backend that takes gradient steps, "compiled" or "torch"; empty where there is no choice."""
        if not hasattr(getattr(self, "config", None), "update_backend"):
            return ""
        return "torch" if self._why_not_compiled else "compiled"

    def remarks(self) -> list[str]:
        """Remarks on the settings for people at the start of a run, a line each; usually none."""
        return [self._why_not_compiled] if self._why_not_compiled else []

    def networks(self) -> Sequence[nn.Module]:
        """Networks that learn, the one that acts first; of many agents all that act together; none by default."""
        return []

    @abstractmethod
    def policy_state(self) -> dict[str, Any]:
        """Weights and architecture, all that inference needs, for checkpoints. Not a copy."""

    @classmethod
    def make_actor(
        cls,
        policy: Mapping[str, Any],
        obs_space: gymnasium.Space[Any],
        action_space: gymnasium.Space[Any],
    ) -> Actor:
        """An actor with the weights that `policy_state` gave, for evaluation where rollouts are learned from.

        Args:
            obs_space, action_space: as of `Problem`; the actor is given rows.

        Raises:
            ValueError: the policy is for other spaces, or the algorithm has no such actor.
        """
        from fastrl.networks.acting_network import saved_actor

        if "architecture" not in policy:
            raise ValueError(f"{cls.name} has no make_actor(), so its policies cannot be evaluated")
        return saved_actor(policy, obs_space, action_space)

    @abstractmethod
    def load_policy(self, state: Mapping[str, Any]) -> list[str]:
        """Starts from the weights of another run's checkpoint, as its `state_dict` has them.

        The other run may have had fewer inputs: see `fastrl.networks.wider`.

        Returns:
            Remarks for people on what differs; usually none.

        Raises:
            ValueError: a network for other spaces, or of another architecture, or not finite.
        """

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """All that `load_state_dict` needs: nested dicts with string keys, of tensors and JSON values. Tensors are not
        copies. Call it between updates."""

    @classmethod
    def has_stages(cls) -> bool:
        """True if settings may change on the way of a run, see `start_stage`."""
        return cls.start_stage is not Algorithm.start_stage

    def start_stage(self, state: Mapping[str, Any]) -> None:
        """Continues from the state of the algorithm of the stage before (see `fastrl.training.stages`), which may have
        had fewer inputs: moments of optimisers are zeros for the new ones.

        Raises:
            ValueError: as of `load_policy`, or the algorithm has no stages.
        """
        raise ValueError(f"{self.name} has no stages")

    @abstractmethod
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resumes exactly from the state of another algorithm of the same kind.

        Raises:
            ValueError, KeyError: the state is of another network or other settings, or is not finite.
        """


@dataclass(frozen=True)
class Prioritization:
    """Settings of prioritized replay (Schaul et al., 2016).

    Attributes:
        alpha: exponent of the TD error; 0 is uniform.
        beta: exponent of the importance weights, by environment steps of the run.
    """

    alpha: float
    beta: Callable[[int], float]


class SequenceSpec(NamedTuple):
    """Sequences of steps, see `fastrl.replay.recurrent.RecurrentSampler`.

    Attributes:
        length: steps that are learned from.
        burn_in: steps before them.
    """

    length: int
    burn_in: int


@dataclass(frozen=True)
class ReplaySpec:
    """Minibatches that an algorithm learns from.

    Attributes:
        batch_size: transitions in a minibatch.
        n_step: rewards that are summed before the bootstrap.
        gamma: discount.
        prioritized: None: transitions are drawn uniformly.
        sampler: makes another sampler than a `fastrl.replay.PrioritizedSampler` (where ``prioritized``) or
            `fastrl.replay.UniformSampler`, of the same arguments; None: one of these.
        sequences: of a network with a memory, whose transitions lie along sequences; None: it has none.
    """

    batch_size: int
    n_step: int
    gamma: float
    prioritized: Prioritization | None = None
    sampler: Callable[..., UniformSampler] | None = None
    sequences: SequenceSpec | None = None

    @classmethod
    def of(cls, config: Any, **others: Any) -> ReplaySpec:
        """The minibatches that settings ask for."""
        sequences = None
        if getattr(config, "memory", "none") != "none":
            sequences = SequenceSpec(config.sequence_length, config.burn_in)
        return cls(config.batch_size, config.n_step, config.gamma, sequences=sequences, **others)


class Transitions(Protocol):
    """A minibatch of B transitions, as the samplers of ``fastrl.replay`` draw them."""

    @property
    def obs(self) -> Tensor: ...  # [B, D] or [B, stack, frame]
    @property
    def actions(self) -> Tensor: ...  # int64 [B], or float32 [B, n]
    @property
    def rewards(self) -> Tensor: ...  # float32 [B], discounted sum of up to n steps
    @property
    def next_obs(self) -> Tensor: ...  # the same, after these steps
    @property
    def discounts(self) -> Tensor: ...  # float32 [B], gamma^steps, or 0 where the episode terminated
    @property
    def weights(self) -> Tensor: ...  # float32 [B], importance weights
    @property
    def num_second(self) -> int: ...  # how many are demonstrations, the last ones of the B
    @property
    def masks(self) -> Tensor | None: ...  # bool [B, M], actions allowed at obs; None without `action_masks`
    @property
    def next_masks(self) -> Tensor | None: ...  # those at next_obs; None without `final_masks`


class OffPolicyAlgorithm(Algorithm[Transitions]):
    """Learns from minibatches that a replay gives; `update` returns their TD errors, float32 [B].

    Environment steps are counted where the replay is filled: ``steps`` is for the source of the minibatches to set.

    Observations are rows; those of stacked frames come as [B, stack, frame]. Where an episode terminated nothing
    follows: the discount is 0, so that the next mask does not count, which may be all False then.

    Class attributes:
        replay_defaults: settings of the table ``[replay]`` that are others than the task's.

    Attributes:
        needs_statistics: `observe` comes before the first `update`.
        updates: gradient steps so far.
        minibatches_at_once: the most that one call of `update` takes, as a `fastrl.replay.samplers.Batches`.
    """

    learns_from = "transitions"
    replay_defaults: ClassVar[Mapping[str, Any]] = {}
    device: torch.device
    updates: int
    needs_statistics = False
    minibatches_at_once = 1

    @property
    def final_masks(self) -> bool:
        """True if it learns what the best allowed action is worth after each transition."""
        return self.action_masks

    @abstractmethod
    def actor_spec(self) -> ActorSpec: ...

    @abstractmethod
    def replay_spec(self) -> ReplaySpec:
        """Describes the minibatches to draw."""

    def observe(self, fragments: Sequence[Fragment]) -> None:
        """Takes what was collected, before it is learned from, into statistics of the run; does nothing without any."""

    def exploration(self) -> Callable[[int], float]:
        """A schedule: share of random actions by environment steps of the run; it pickles."""
        return no_exploration


def no_exploration(steps: int) -> float:
    """The schedule of algorithms whose policies explore by themselves."""
    return 0.0


class MultiAgentAlgorithm(Algorithm[Sequence[Fragment]]):
    """Learns policies of many agents from fragments of environments of many agents.

    Attributes:
        policy: of all agents, as it is now.
    """

    learns_from = "rollouts"
    many_agents = True
    policy: MultiAgentPolicy

    @abstractmethod
    def actor_spec(self) -> Callable[[], TeamActor]: ...


class DatasetBatch(NamedTuple):
    """A minibatch of B recorded steps, on the algorithm's device.

    Attributes:
        obs: rows [B, D] of observations, see `Problem.obs_rows`.
        actions: as a policy draws them, see `fastrl.networks.action_space.Actions`: int64 [B] or [B, n], or float32
            [B, n].
        batch_sizes: int64 [L], of whole episodes, packed: how many of them have a first, a second, ... step, of which
            the rows follow each other in this order, the longest episode first; on the CPU. None: single steps.
        agents: int64 [B], the index of the agent in its environment; None: environments are a single agent's.
    """

    obs: Tensor
    actions: Tensor
    batch_sizes: Tensor | None = None
    agents: Tensor | None = None


@dataclass(frozen=True)
class DatasetSpec:
    """The way in which an algorithm goes through a data set.

    Attributes:
        batch_size: steps in a minibatch, at most; with whole episodes at least, except for the last one of an epoch.
        epochs: passes over the data.
        validation: share of the episodes that are not learned from.
        patience: epochs in succession without a lower validation loss after which the run stops; 0: never.
        whole_episodes: minibatches are of whole episodes.
    """

    batch_size: int
    epochs: int
    validation: float = 0.0
    patience: int = 0
    whole_episodes: bool = False


class DatasetAlgorithm(Algorithm[DatasetBatch]):
    """Learns from minibatches of recorded steps. Its ``steps`` are the samples that it has learned from, and
    `Problem.total_timesteps` those of the whole run."""

    learns_from = "dataset"
    device: torch.device

    @classmethod
    @abstractmethod
    def dataset_spec(cls, config: Any) -> DatasetSpec:
        """Describes what `update` is to be given, by the algorithm's settings."""

    @abstractmethod
    def prepare(self, batches: Iterable[DatasetBatch]) -> None:
        """Takes statistics of all observations that are learned from, before the first update."""

    @abstractmethod
    def validate(self, batches: Iterable[DatasetBatch]) -> dict[str, float]:
        """Means over steps that are not learned from, by name; ``loss`` is among them."""

    @abstractmethod
    def keep(self) -> None:
        """Keeps a copy of the policy as it is."""

    @abstractmethod
    def restore(self) -> None:
        """Goes back to the policy that was kept, if one was."""
