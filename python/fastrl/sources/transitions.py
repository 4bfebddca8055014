"""Transitions from any collector, as experience for an algorithm that learns from a replay of them.

Fragments go to the replay; in between the algorithm learns from as many minibatches as are due. Where collection waits
for the learner, what is learnt depends neither on the collector nor on how fast its workers are.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from fastrl.algorithms.protocol import Algorithm, OffPolicyAlgorithm, no_exploration
from fastrl.envs.spec import EnvSpec
from fastrl.replay import Replay
from fastrl.replay.recurrent import state_fields
from fastrl.rollout.fragment import Fragment
from fastrl.runs.errors import TrainError
from fastrl.runs.row import Number
from fastrl.sources.collecting import CollectConfig
from fastrl.sources.dataset import opened
from fastrl.sources.demo_arrays import Demos, check_env
from fastrl.sources.demo_replay import DemoReplay
from fastrl.sources.goals import Goals
from fastrl.sources.minibatches import Minibatches
from fastrl.sources.rollouts import ANY_STALENESS, RolloutSource
from fastrl.sources.settings import OfflineConfig, ReplayConfig
from fastrl.utils.errors import UserError
from fastrl.utils.seeding import NO_ENV
from fastrl.utils.tables import print_lines
from fastrl.utils.timer import Stopwatch

if TYPE_CHECKING:
    from rich.console import Console


class TransitionSource(RolloutSource):
    """Brings minibatches of transitions, as the samplers of ``fastrl.replay`` draw them.

    Args:
        replay: settings of the replay.
        offline: settings of demonstrations; None: there are none.
        demos: a data set in place of the one that they name.
        needs_demos: False: for a policy that does not learn, demonstrations that cannot be opened are left out.
        stack: newest frames that make an observation, along its first axis; the replay keeps each frame once.
        others: as of `RolloutSource`.

    Attributes:
        minibatches: the replay, once an algorithm is attached.
        goals: of hindsight; None: without.
    """

    brings = "transitions"

    def __init__(
        self,
        spec: EnvSpec,
        num_envs: int,
        collect: CollectConfig,
        replay: ReplayConfig,
        *,
        offline: OfflineConfig | None = None,
        demos: Demos | None = None,
        needs_demos: bool = True,
        stack: int = 1,
        seed: int = 0,
        console: Console | None = None,
        episode_info: Sequence[str] = (),
    ) -> None:
        super().__init__(spec, num_envs, collect, seed=seed, console=console, episode_info=episode_info)
        self._replay_config, self._stack = replay, stack
        self.goals = Goals(self.spec) if replay.hindsight else None
        self._offline = offline
        self._demos: Demos | None = None
        if offline is not None and (demos is not None or offline.path is not None):
            assert self.env_actions is not None
            try:
                found, self._demos_name = opened(offline, demos)
                check_env(found, spec.id, self.obs_space, self.env_actions, self._demos_name)
                self._demos = found
            except UserError:
                if needs_demos:
                    raise
        # Environment steps in the replay. `steps` counts those whose minibatches have been learnt from.
        self._taken = 0
        # Of each environment a checksum of the observation that its next fragment starts with; None: unknown.
        self._next_obs: list[int | None] = [None] * num_envs
        # Minibatches to learn from before more experience is collected.
        self._due = 0
        # State to resume from, for the first session.
        self._to_resume: Mapping[str, Any] | None = None

    def check_ranks(self) -> None:
        super().check_ranks()
        if self._replay_config.overlap:
            raise TrainError(
                f"--ranks {self.ranks.count}: each has to have the same replay; set replay.overlap to false"
            )
        if self._replay_config.path is not None:
            raise TrainError(
                f"--ranks {self.ranks.count}: each has a replay of its own, in memory; leave out replay.path"
            )

    def _num_steps(self, algorithm: Algorithm[Any]) -> int:
        return self._replay_config.train_freq

    def _max_staleness(self) -> int:
        return ANY_STALENESS if self._replay_config.overlap or self.collect.is_live else 0

    def attach(self, algorithm: Algorithm[Any]) -> None:
        super().attach(algorithm)
        plan = self.plan
        row: dict[str, Any] = {
            "obs_shape": (plan.obs_dim // self._stack,),
            "obs_dtype": plan.obs_rows.dtype,
            "action_shape": plan.actions.shape,
            "action_dtype": plan.actions.dtype,
            "num_masked": plan.num_masked,
            "final_masks": plan.final_masks,
            "extra": {
                "version": (np.uint32, ()),
                **(state_fields(plan.state_size) if plan.state_size else {}),
            },
        }
        assert isinstance(algorithm, OffPolicyAlgorithm)
        demos = None
        if self._demos is not None and self._offline is not None:
            if algorithm.needs_statistics and self._offline.pretrain_steps:
                raise TrainError(
                    "there are no statistics of observations before steps are collected: set demos.pretrain_steps to 0,"
                    " or take another encoder"
                )
            demos = DemoReplay(self._demos, self._offline, plan.actions, self._demos_name, row)
        self.minibatches = Minibatches(
            self._replay_config,
            self.num_envs,
            hindsight=self._hindsight(),
            demos=demos,
            seed=self.seed,
            stack=self._stack,
            **row,
        )
        self.minibatches.attach(algorithm)
        self._epsilon, self._observe = algorithm.exploration(), algorithm.observe

    def _hindsight(self) -> Mapping[str, Any] | None:
        """The arguments of a `HindsightSampler`; None without hindsight."""
        if self.goals is None:
            return None
        config = self._replay_config
        return {
            **self.goals.arguments(self.plan.obs_rows),
            "her_ratio": config.hindsight,
            "strategy": config.hindsight_goals,
        }

    def __enter__(self) -> Self:
        super().__enter__()
        if self.goals is not None:
            self.goals.open()
        replay = self.minibatches.open()
        if self._to_resume is not None:
            state, self._to_resume = self._to_resume, None
            try:
                difference = self.minibatches.load_state_dict(state)
            except (
                KeyError,
                TypeError,
                ValueError,
                IndexError,
                AttributeError,
                ArithmeticError,
                RuntimeError,
            ) as error:
                raise TrainError(
                    f"the checkpoint's minibatches are not those of this run: {error!r}"
                ) from None
            if difference:
                # No episode continues one that the replay has.
                for env in range(self.num_envs):
                    replay.cut(env)
                print_lines(
                    self._console,
                    f"not to the bit as if it had never stopped: {difference}; learning continues once the replay has"
                    f" {self._replay_config.learning_starts:,} transitions",
                )
        self._due = self._due_minibatches()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.goals is not None:
            self.goals.close()
        self.minibatches.close()
        super().__exit__(kind, error, trace)

    @property
    def collected_steps(self) -> int:
        return self._taken

    def _due_minibatches(self) -> int:
        """The number of minibatches that the algorithm is to learn from before more experience is collected."""
        mine, due = self.minibatches, 0
        mine.start_learning(self._taken)
        if mine.started_at is not None:
            due = int((self._taken - mine.started_at) * self._replay_config.updates_per_step) - mine.count
        if due <= 0:
            self.steps = self._taken
        return due

    def next(self, watch: Stopwatch) -> Any:
        """A minibatch, or several; None while the replay has too few transitions. Experience is collected when none is
        due, but not before pre-training has ended."""
        if self.minibatches.is_pretraining:
            return self.minibatches.sample(0, watch)
        if self._due <= 0:
            self._algorithm.steps = self._taken
            fragments = self._collect(watch)
            with watch("buffer"):
                if fragments:
                    self._observe(fragments)
                for fragment in fragments:
                    self.store(fragment)
            self._due = self._due_minibatches()
            if self._due <= 0:
                return None
        self._algorithm.steps = self._taken
        return self.minibatches.sample(self._taken, watch, self._due)

    def store(self, fragment: Fragment) -> None:
        replay = self.minibatches.replay
        assert replay is not None
        envs = fragment.env_indices
        if envs[0] == NO_ENV:
            envs = fragment.episodes[:1, 1] % self.num_envs
        else:
            for row, env in enumerate(envs.tolist()):
                # An environment that was replaced does not continue where it stood.
                if self._next_obs[env] != zlib.crc32(fragment.obs[0, row].tobytes()):
                    replay.cut(env)
                self._next_obs[env] = zlib.crc32(fragment.obs[-1, row].tobytes())
        store_fragment(replay, fragment, envs)
        self._taken += len(fragment)

    def feedback(self, result: Any) -> None:
        """Takes the TD errors of the last minibatches."""
        self.updates = self.minibatches.drawn
        self.minibatches.feedback(result)
        self._due = self._due_minibatches()

    def metrics(self) -> Mapping[str, Number]:
        found = {**super().metrics(), **self.minibatches.metrics()}
        if self._epsilon is no_exploration:
            return found
        return {**found, "rollout/exploration_rate": self._epsilon(self._taken)}

    def save_files(self, directory: Path) -> None:
        self.minibatches.save(directory)

    def load_files(self, directory: Path) -> None:
        self.minibatches.load(directory)

    def take_over(self, other: Self) -> None:
        self.minibatches.take_over(other.minibatches)

    def state_dict(self) -> dict[str, Any]:
        return {
            **super().state_dict(),
            "taken": self._taken,
            "next_obs": list(self._next_obs),
            "minibatches": self.minibatches.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        if not all(isinstance(each, int | None) for each in state["next_obs"]):
            raise ValueError("next_obs should be checksums")
        if len(state["next_obs"]) != self.num_envs:
            raise ValueError(f"the state has {len(state['next_obs'])} environments, the run {self.num_envs}")
        self._taken, self._next_obs = int(state["taken"]), list(state["next_obs"])
        self._to_resume = state["minibatches"]


def store_fragment(replay: Replay, fragment: Fragment, envs: NDArray[np.int64]) -> None:
    """Adds a fragment of T steps of R environments to a replay, whose environments ``envs``, int64 [R], they are."""
    states = {}
    if fragment.states is not None:
        # That before the first step is known, and an episode starts from zeros.
        axes = fragment.rewards.shape
        states["state"] = np.zeros((*axes, *fragment.states.shape[1:]), np.float32)
        states["has_state"] = np.ones(axes, np.bool_)
        states["state"][0], states["has_state"][1:] = fragment.states, fragment.ended[:-1]
    replay.append_steps(
        envs,
        fragment.obs,
        fragment.actions,
        fragment.rewards,
        fragment.terminations,
        fragment.truncations,
        fragment.final_obs,
        masks=fragment.masks,
        final_masks=fragment.final_masks,
        version=np.array(fragment.version, np.uint32),
        **states,
    )
