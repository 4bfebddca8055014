"""The replay of a run, and the minibatches that an algorithm learns from: common to all sources of transitions."""

import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from pydantic import Field

from fastrl.algorithms.protocol import Algorithm, OffPolicyAlgorithm, ReplaySpec
from fastrl.replay import PrioritizedSampler, Replay, ReplayError, UniformSampler
from fastrl.replay.prefetch import Prefetcher
from fastrl.training.errors import TrainError, check_memory
from fastrl.training.metrics import counted
from fastrl.training.row import Number
from fastrl.utils.config import Setting, section
from fastrl.utils.timer import Stopwatch
from fastrl.utils.trust import Reach, writes_files

# Name of the saved replay in a run directory.
REPLAY = "replay"


@section
class ReplayConfig:
    """The replay buffer."""

    capacity: Annotated[
        int,
        Field(ge=1, description="transitions that are kept, 7.1 kB each with frames of 84x84"),
        Setting(resumable=True),
    ] = 400_000
    learning_starts: Annotated[
        int, Field(ge=1, description="transitions in the replay before learning starts")
    ] = 10_000
    path: Annotated[
        Path | None,
        Field(description="file that holds the replay, which may be larger than memory; none: in memory"),
        Reach(writes_files),
        Setting(resumable=True),
    ] = None
    save: Annotated[
        bool,
        Field(
            description="write the replay into the run directory when the run ends or is stopped, so that a resumed run"
            " has it"
        ),
        Setting(resumable=True),
    ] = False


class Minibatches:
    """A replay and the minibatches drawn from it.

    Args:
        config: of the replay.
        num_envs: environments that fill it.
        obs_shape, obs_dtype, action_shape, action_dtype, stack, extra: of the replay, see `fastrl.replay.Replay`.
        seed: of the draws.

    Attributes:
        replay: None before `open`, unless one was loaded.
        sampler: None before `open`.
        started_at: environment steps when learning started; None before.
        count: minibatches since then.

    Raises:
        TrainError: settings that do not go together, or more memory than the machine has.
    """

    def __init__(
        self,
        config: ReplayConfig,
        num_envs: int,
        obs_shape: tuple[int, ...],
        obs_dtype: Any,
        action_shape: tuple[int, ...],
        action_dtype: Any,
        *,
        stack: int = 1,
        extra: Mapping[str, Any] | None = None,
        seed: int = 0,
    ) -> None:
        self._config, self._num_envs, self._seed = config, num_envs, seed
        self._row = {
            "obs_shape": obs_shape,
            "obs_dtype": obs_dtype,
            "action_shape": action_shape,
            "action_dtype": action_dtype,
            "stack": stack,
            "extra": extra,
        }
        if config.path is None:
            check_memory(
                config.capacity * (math.prod(obs_shape) * np.dtype(obs_dtype).itemsize + 40),
                f"a replay of {config.capacity:,} transitions takes",
                "a smaller --replay.capacity, or --replay.path for a file",
            )
        if config.learning_starts > config.capacity:
            raise TrainError(
                f"--replay.learning-starts {config.learning_starts:,} is more than --replay.capacity"
                f" {config.capacity:,}: learning would never start"
            )
        self.replay: Replay | None = None
        self.sampler: UniformSampler | PrioritizedSampler | None = None
        self.started_at: int | None = None
        self.count = 0
        self._prefetcher: Prefetcher[Any] | None = None
        self._batch: Any = None
        # Time of the last row of metrics, and minibatches since then.
        self._row_at, self._since_row = time.perf_counter(), 0

    def attach(self, algorithm: Algorithm[Any]) -> None:
        """Gives it the algorithm that the minibatches are for.

        Raises:
            TrainError: it learns from something else.
        """
        if not isinstance(algorithm, OffPolicyAlgorithm):
            raise TrainError(f"{algorithm.name} does not learn from minibatches of transitions")
        self._device, self._spec = algorithm.device, algorithm.replay_spec()

    def open(self) -> Replay:
        """Makes replay and sampler, unless they are there.

        Raises:
            TrainError: the replay's file cannot be made.
        """
        if self.replay is None:
            try:
                self.replay = Replay(
                    self._config.capacity, num_envs=self._num_envs, path=self._config.path, **self._row
                )
            except OSError as error:
                raise TrainError(f"--replay.path {self._config.path}: {error}") from None
        if self.sampler is None:
            self.sampler = make_sampler(self._spec, self.replay, self._seed)
        self._row_at, self._since_row = time.perf_counter(), 0
        return self.replay

    def prefetch(self) -> None:
        """Draws the next minibatch while the learner learns from one, until `close`."""
        assert self.sampler is not None
        self._prefetcher = Prefetcher(self.sampler, self._device)

    def close(self) -> None:
        """Ends prefetching; replay and sampler stay."""
        if self._prefetcher is not None:
            self._prefetcher.close()
            self._prefetcher = None

    def start_learning(self, steps: int) -> None:
        """Notes that learning starts after so many environment steps, if there are enough transitions now."""
        assert self.replay is not None
        if self.started_at is None and len(self.replay) >= self._config.learning_starts:
            self.started_at, self.count = steps, 0

    def sample(self, steps: int, watch: Stopwatch) -> Any:
        """A minibatch, after so many environment steps. It is valid until the next call."""
        batches: Any = self._prefetcher or self.sampler
        with watch("sampling"):
            if self._spec.prioritized is not None:
                batches.beta = self._spec.prioritized.beta(steps)
            self._batch = batches.sample()
        return self._batch

    def feedback(self, td_errors: Any) -> None:
        """Takes the TD errors of the last minibatch."""
        is_ahead = self._prefetcher is not None
        if self._spec.prioritized is not None:
            batches: Any = self._prefetcher or self.sampler
            batches.update_priorities(self._batch.indices, td_errors if is_ahead else td_errors.cpu())
        elif not is_ahead and self._device.type == "cuda":
            # The GPU reads the minibatch asynchronously, and the sampler soon reuses its memory.
            torch.cuda.current_stream().synchronize()
        self.count += 1
        self._since_row += 1

    def numbers(self) -> dict[str, Number]:
        """Numbers for a row of metrics: speed since the last row, and fill of the replay."""
        assert self.replay is not None
        now = time.perf_counter()
        updates, seconds = self._since_row, now - self._row_at
        self._since_row, self._row_at = 0, now
        return {
            "time/updates_per_second": updates / seconds,
            "collect/replay_fill": len(self.replay) / self._config.capacity,
        }

    def save(self, directory: Path) -> None:
        """Writes the replay into a run directory, if settings ask for it."""
        if self._config.save and self.replay is not None:
            self.replay.save(directory / REPLAY)

    def load(self, directory: Path) -> None:
        """Loads the replay of a run directory, if there is one.

        Raises:
            TrainError: it is damaged, or of other environments.
        """
        file = directory / REPLAY
        if not file.exists():
            return
        try:
            replay = Replay.load(file)
        except (ReplayError, FileNotFoundError) as error:
            raise TrainError(f"{error}; remove {file} to continue without it") from None
        if replay.num_envs != self._num_envs:
            raise TrainError(
                f"{file} holds {counted(replay.num_envs, 'environment')}, this run would have {self._num_envs}: choose"
                " the same --num-envs, or remove the file"
            )
        self.replay, self.sampler = replay, None

    def take_over(self, other: "Minibatches") -> None:
        """Takes the replay of another run's part that has ended."""
        self.replay, self.sampler = other.replay, None

    def state_dict(self) -> dict[str, Any]:
        """When learning started, and the state of the sampler if the replay is saved, too."""
        state: dict[str, Any] = {"started_at": self.started_at, "minibatches": self.count}
        if self._config.save and self.replay is not None and self.sampler is not None:
            state |= {"replay": self.replay.mark, "sampler": self.sampler.state_dict()}
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> str:
        """Resumes exactly where the other one stood, if its replay has been loaded. Called after `open`.

        Returns:
            Why not; empty if so.
        """
        assert self.replay is not None and self.sampler is not None
        if "sampler" not in state:
            return "the replay was not saved, see --replay.save"
        if self.replay.mark != state["replay"]:
            return "the replay that was saved is not the checkpoint's"
        self.sampler.load_state_dict(state["sampler"])
        self.started_at, self.count = state["started_at"], int(state["minibatches"])
        return ""


def make_sampler(spec: ReplaySpec, replay: Replay, seed: int) -> UniformSampler | PrioritizedSampler:
    """A sampler that draws minibatches from a replay as an algorithm wants them."""
    common: dict[str, Any] = {"n_step": spec.n_step, "gamma": spec.gamma, "seed": seed}
    if spec.prioritized is None:
        return UniformSampler(replay, spec.batch_size, **common)
    alpha, beta = spec.prioritized.alpha, spec.prioritized.beta(0)
    return PrioritizedSampler(replay, spec.batch_size, alpha=alpha, beta=beta, **common)
