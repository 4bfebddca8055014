"""Minibatches from a replay, as experience for an algorithm that learns from transitions."""

from collections.abc import Mapping
from types import TracebackType
from typing import Annotated, Any, Literal, Self

import numpy as np
from gymnasium.spaces import Box
from numpy.typing import NDArray
from pydantic import Field
from rich.console import Console

from fastrl.algorithms.protocol import Algorithm, OffPolicyAlgorithm, Problem
from fastrl.collectors.actor_process import Job
from fastrl.collectors.protocol import Report, even_ranges
from fastrl.collectors.transport import QueueTransport
from fastrl.envs import contract
from fastrl.envs.spec import EnvSpec
from fastrl.replay import Replay
from fastrl.training.episodes import build_env, episode_steps
from fastrl.training.errors import TrainError
from fastrl.training.experience import Episodes
from fastrl.training.metrics import counted, shares
from fastrl.training.minibatches import Minibatches, MinibatchSource, ReplayConfig, check_ranks
from fastrl.training.replay_actors import ActorProcesses, TransportFactory
from fastrl.training.replay_lockstep import LockstepActors
from fastrl.training.row import Number
from fastrl.utils.config import Setting, section
from fastrl.utils.timer import Stopwatch

_NO_EPISODES = Episodes()


@section
class ActorConfig:
    """Actors, worker processes that step environments and fill the replay, and how they and the learner keep pace."""

    n_workers: Annotated[
        int,
        Field(ge=1, le=256, description="worker processes that share the environments, each with one thread"),
        Setting(resumable=True, option="--n-workers"),
    ] = 2
    deterministic: Annotated[
        bool,
        Field(
            description="environments and learner take turns, so that one seed gives one run, to the bit; on a CPU, see"
            " docs/guides/reproducibility.md"
        ),
    ] = False
    fragment: Annotated[
        int, Field(ge=1, description="transitions that an actor sends at a time"), Setting(resumable=True)
    ] = 32
    queue: Annotated[
        int,
        Field(
            ge=1,
            description="transitions of each actor that may wait for the learner, rounded up to a power of two",
        ),
        Setting(resumable=True),
    ] = 1024
    publish_every: Annotated[
        int,
        Field(ge=1, description="gradient steps between two publications of the weights to actors"),
        Setting(resumable=True),
    ] = 100
    weights_every: Annotated[
        int,
        Field(ge=1, description="steps of each environment after which an actor looks for newer weights"),
        Setting(resumable=True),
    ] = 1
    epsilon_spread: Annotated[
        float,
        Field(
            ge=0,
            description="exploration differs between environments: the last one's share of random actions is the"
            " schedule's to the power of 1 + this; Ape-X has 7",
        ),
    ] = 0.0
    updates_per_step: Annotated[
        float | None,
        Field(gt=0, description="most minibatches per environment step; none: no limit"),
    ] = None
    min_updates_per_step: Annotated[
        float,
        Field(
            ge=0,
            description="least minibatches per environment step, for which actors wait; 0: they never wait",
        ),
    ] = 0.0
    prefetch: Annotated[
        Literal["auto", "on", "off"],
        Field(description="draw the next minibatch while the learner learns from one; auto: with a GPU"),
        Setting(resumable=True),
    ] = "auto"


class ReplaySource(MinibatchSource):
    """Brings minibatches, as the samplers of ``fastrl.replay`` draw them.

    Actors fill the replay while the learner learns (`fastrl.training.replay_actors`) or, with
    ``collect.deterministic``, in turns with it (`fastrl.training.replay_lockstep`).

    Args:
        spec: of the environment, whose observations are vectors or single frames; one is built at once, to see its
            spaces.
        num_envs: environments that are stepped, by all actors together.
        replay, collect: settings.
        seed: of episodes, exploration and minibatches.
        stack: newest frames that make an observation.
        has_episode_info: ``info["episode"]`` has return and length where an episode of the user's has ended, as
            `fastrl.envs.pixels.PixelEnv` gives them; otherwise each episode is one of the user's.
        console: gets lines about actors that died.

    Attributes:
        make_transport: makes the transport from actors to the replay; another one may be set before it runs.
        minibatches: the replay, and what is drawn from it.
        actors: while it runs.

    Raises:
        TrainError, CollectError: the environment cannot be built, settings do not go together, or the replay does not
            fit into memory.
    """

    def __init__(
        self,
        spec: EnvSpec,
        num_envs: int,
        replay: ReplayConfig,
        collect: ActorConfig,
        *,
        seed: int = 0,
        stack: int = 1,
        has_episode_info: bool = False,
        console: Console | None = None,
    ) -> None:
        self.spec, self.num_envs, self.collect, self.seed = spec, num_envs, collect, seed
        self.env_id = spec.id
        self.collector = LockstepActors.name if collect.deterministic else ActorProcesses.name
        self._config, self._stack, self._has_episode_info = replay, stack, has_episode_info
        self._console = console or Console(quiet=True)
        self.make_transport: TransportFactory = QueueTransport
        env = build_env(spec)
        space, self.action_space = env.observation_space, env.action_space
        self.episode_steps = episode_steps(env)
        contract.close(env)
        if not isinstance(space, Box):
            raise TrainError(
                f"--env {spec.id}: observations should be a Box to be kept in a replay, got {space}"
            )
        # Shape of one observation in the replay: images have channels, which are the stacked frames.
        is_image = len(space.shape) == 2
        self._frame_shape = (1, *space.shape) if is_image and stack == 1 else space.shape
        shape = (stack, *space.shape) if stack > 1 else self._frame_shape
        self._dtype = space.dtype
        self.obs_space = (
            space if shape == space.shape else Box(space.low.min(), space.high.max(), shape, space.dtype.type)
        )
        self._check()
        self.minibatches = Minibatches(
            replay,
            num_envs,
            obs_shape=self._frame_shape,
            obs_dtype=self._dtype,
            action_shape=self.action_space.shape or (),
            action_dtype=self.action_space.dtype or np.int64,
            stack=stack,
            extra={"version": (np.uint32, ())},
            seed=seed,
        )
        self.actors: ActorProcesses | LockstepActors | None = None
        # Steps while no actors run.
        self._steps = 0
        # State of lockstep actors, for the next ones.
        self._saved: dict[str, Any] | None = None
        # Restarts and dropped rows of earlier sessions.
        self._restarts = self._dropped = 0
        self._report = Report()

    def _check(self) -> None:
        """Refuses settings that do not go together."""
        collect = self.collect
        if collect.deterministic and collect.prefetch == "on":
            raise TrainError("--collect.prefetch on does not go with --collect.deterministic")
        if collect.n_workers > self.num_envs:
            raise TrainError(
                f"--n-workers {collect.n_workers} are more than the {counted(self.num_envs, 'environment')} of"
                " --num-envs: each worker should have one at least"
            )

    def check_ranks(self) -> None:
        """Each steps all environments."""
        check_ranks(self._config, self.ranks.count)
        if not self.collect.deterministic:
            raise TrainError(
                f"--ranks {self.ranks.count}: each has to have the same replay of frames; add --collect.deterministic"
            )

    def problem(self, total_timesteps: int, seed: int, device: str) -> Problem:
        return Problem(
            self.obs_space, self.action_space, self.num_envs, total_timesteps, seed=seed, device=device
        )

    def attach(self, algorithm: Algorithm[Any]) -> None:
        if algorithm.action_masks:
            raise TrainError(
                f"--{algorithm.name}.action-masks: a replay of frames keeps no action masks; set action_masks to false"
            )
        self.minibatches.attach(algorithm)
        assert isinstance(algorithm, OffPolicyAlgorithm)
        if not hasattr(algorithm, "explorer"):
            raise TrainError(
                f"{algorithm.name} has no explorer, so it does not learn from a replay of frames"
            )
        self._algorithm = algorithm
        self._epsilon = algorithm.exploration()

    @property
    def steps(self) -> int:
        return self._steps if self.actors is None else self.actors.steps

    def __enter__(self) -> Self:
        replay = self.minibatches.open()
        self.minibatches.started_at = None
        try:
            if self.collect.deterministic:
                self.actors = self._lockstep_actors(replay)
            else:
                self.actors = self._actor_processes(replay)
                if self.collect.prefetch == "on" or (
                    self.collect.prefetch == "auto" and self._algorithm.device.type == "cuda"
                ):
                    self.minibatches.prefetch()
        except BaseException:
            self._close()
            raise
        self._is_due = self._has_due_minibatch()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.actors is not None:
            self._saved = self._actors_state()
            self._report = self.actors.report()
            self._dropped, self._restarts = self._losses()
        self._close()

    def _close(self) -> None:
        self.minibatches.close()
        if self.actors is not None:
            self.actors.close()
            self._steps, self.actors = self.actors.steps, None

    def _exponents(self) -> NDArray[np.float64]:
        """To which each environment's share of random actions is raised."""
        return 1 + self.collect.epsilon_spread * np.linspace(0, 1, self.num_envs)

    def _actor_processes(self, replay: Replay) -> ActorProcesses:
        collect, exponents = self.collect, self._exponents()
        jobs = [
            Job(
                index=i,
                envs=envs,
                make_env=self.spec.make,
                has_episode_info=self._has_episode_info,
                make_actor=self._algorithm.explorer_spec(),
                row=replay.dtype,
                stack=self._stack if self._stack > 1 else 0,
                epsilon=self._epsilon,
                powers=exponents[envs.start : envs.stop],
                fragment=collect.fragment,
                weights_every=collect.weights_every,
                seed=self.seed,
            )
            for i, envs in enumerate(even_ranges(self.num_envs, collect.n_workers))
        ]
        return ActorProcesses(
            jobs,
            replay,
            self._algorithm,
            self._console,
            make_transport=self.make_transport,
            queue=collect.queue,
            publish_every=collect.publish_every,
            learning_starts=self._config.learning_starts,
            updates_per_step=collect.updates_per_step,
            min_updates_per_step=collect.min_updates_per_step,
            steps=self._steps,
        )

    def _lockstep_actors(self, replay: Replay) -> LockstepActors:
        actors = self.actors = LockstepActors(
            self.spec,
            self.collect.n_workers,
            self._algorithm,
            replay,
            self._exponents(),
            has_episode_info=self._has_episode_info,
            stack=self._stack if self._stack > 1 else 0,
            updates_per_step=self.collect.updates_per_step,
            seed=self.seed,
            steps=self._steps,
        )
        if self._saved is None:
            actors.start()
            return actors
        try:
            difference = self._resume_lockstep(actors, self._saved)
        except (KeyError, TypeError, ValueError, AttributeError, IndexError, ArithmeticError) as error:
            raise TrainError(f"the checkpoint's environments are not those of this run: {error!r}") from None
        if difference:
            self._print_inexact(replay, difference)
        return actors

    def _resume_lockstep(self, actors: LockstepActors, state: Mapping[str, Any]) -> str:
        """Resumes from the state of lockstep actors, whose replay is there. Returns why not to the bit; empty if so."""
        if not actors.load_state_dict(state):
            return "the same seeds and actions led elsewhere, the environment is not deterministic"
        return self.minibatches.load_state_dict(state)

    def next(self, watch: Stopwatch) -> Any | None:
        actors = self.actors
        assert actors is not None, "it runs as a context"
        actors.refresh(watch)
        if not self._is_due:
            actors.collect(watch)
            self._is_due = self._has_due_minibatch()
            if not self._is_due:
                return None
        self._algorithm.steps = steps = actors.taken
        return self.minibatches.sample(steps, watch)

    def _has_due_minibatch(self) -> bool:
        assert self.actors is not None
        self.minibatches.start_learning(self.actors.taken)
        return self.actors.is_due(self.minibatches.started_at, self.minibatches.count)

    def take_episodes(self) -> Episodes:
        assert self.actors is not None, "it runs as a context"
        return self.actors.take_episodes() or _NO_EPISODES

    def report(self) -> Report:
        return self._report if self.actors is None else self.actors.report()

    def numbers(self) -> Mapping[str, Number]:
        assert self.actors is not None, "it runs as a context"
        dropped, restarts = self._losses()
        return {
            **self._learning_numbers(self.steps),
            **self.actors.numbers(),
            "collect/dropped": dropped,
            "collect/restarts": restarts,
        }

    def _losses(self) -> tuple[int, int]:
        """Rows dropped and actors restarted so far, in earlier sessions too."""
        if self.actors is None:
            return self._dropped, self._restarts
        return self._dropped + self.actors.dropped, self._restarts + self.actors.restarts

    def highlights(self) -> list[str]:
        losses = zip(self._losses(), ("dropped", "restarts"), strict=True)
        return super().highlights() + [f"{number:,} {name}" for number, name in losses if number]

    def summary(self) -> Mapping[str, Any]:
        return {
            "workers": dict(self._report.seconds),
            "dropped": self._dropped,
            "restarts": self._restarts,
        }

    def lines(self) -> list[str]:
        lines = []
        if self._report.workers:
            lines = [f"{counted(self._report.workers, 'worker')}; their time: {shares(self._report.seconds)}"]
        if self._dropped or self._restarts:
            lines.append(
                f"{self._dropped:,} transitions dropped, {counted(self._restarts, 'restart')} of workers"
            )
        return lines

    def _actors_state(self) -> dict[str, Any] | None:
        """The state of lockstep actors; the replay and its sampler are in it only if the replay is saved, too."""
        if not isinstance(self.actors, LockstepActors):
            return self._saved
        return {**self.actors.state_dict(), **self.minibatches.state_dict()}

    def state_dict(self) -> dict[str, Any]:
        dropped, restarts = self._losses()
        return {
            "steps": self.steps,
            "dropped": dropped,
            "restarts": restarts,
            "lockstep": self._saved if self.actors is None else self._actors_state(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._steps = state["steps"]
        self._dropped, self._restarts = state["dropped"], state["restarts"]
        self._saved = state["lockstep"]
