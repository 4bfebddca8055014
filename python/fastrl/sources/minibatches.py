"""The replay of a run, and the minibatches that an algorithm learns from."""

import dataclasses
import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fastrl.algorithms.protocol import Algorithm, OffPolicyAlgorithm, ReplaySpec
from fastrl.replay import (
    HindsightSampler,
    MixedSampler,
    PrioritizedSampler,
    Replay,
    ReplayError,
    UniformSampler,
)
from fastrl.replay.prefetch import Prefetcher
from fastrl.replay.recurrent import RecurrentSampler
from fastrl.runs.errors import TrainError, check_memory
from fastrl.runs.metrics import counted
from fastrl.runs.row import Number
from fastrl.sources.demo_replay import DemoReplay
from fastrl.sources.settings import ReplayConfig
from fastrl.utils.timer import Stopwatch

# Name of the saved replay in a run directory.
REPLAY = "replay"


class Minibatches:
    """A replay and the minibatches drawn from it.

    Args:
        config: of the replay.
        num_envs: environments that fill it.
        hindsight: arguments of a `HindsightSampler` beside those of the algorithm; None: goals stay as they are.
        demos: demonstrations that are a part of each minibatch; None: there are none.
        seed: of the draws.
        row: arguments of `fastrl.replay.Replay` that describe its rows.

    Attributes:
        replay: None before `open`, unless one was loaded.
        sampler: None before `open`.
        started_at: environment steps when learning started; None before.
        count: minibatches since then.
        pretrained: minibatches of demonstrations alone, before.
        drawn: minibatches that were drawn last.

    Raises:
        TrainError: settings that do not go together, or more memory than the machine has.
    """

    def __init__(
        self,
        config: ReplayConfig,
        num_envs: int,
        *,
        hindsight: Mapping[str, Any] | None = None,
        demos: DemoReplay | None = None,
        seed: int = 0,
        **row: Any,
    ) -> None:
        self._config, self._num_envs, self._seed, self._row = config, num_envs, seed, row
        self._hindsight, self.demos = hindsight, demos
        self._masks = row.get("num_masked", 0), row.get("final_masks", False)
        if config.path is None:
            obs_nbytes = math.prod(row["obs_shape"]) * np.dtype(row["obs_dtype"]).itemsize
            extras = row.get("extra", {}).values()
            extra_nbytes = sum(math.prod(shape) * np.dtype(dtype).itemsize for dtype, shape in extras)
            check_memory(
                config.capacity * (obs_nbytes + self._masks[0] + extra_nbytes + 36),
                f"a replay of {config.capacity:,} transitions takes",
                "a smaller --replay.capacity, or --replay.path for a file",
            )
        if config.learning_starts > config.capacity:
            raise TrainError(
                f"--replay.learning-starts {config.learning_starts:,} is more than --replay.capacity"
                f" {config.capacity:,}: learning would never start"
            )
        self.replay: Replay | None = None
        self.sampler: UniformSampler | None = None
        self.started_at: int | None = None
        self.count = self.pretrained = 0
        self.drawn = 1
        # Draws demonstrations alone while there is pre-training.
        self._pretrainer: UniformSampler | None = None
        self._prefetcher: Prefetcher[Any] | None = None
        self._batch: Any = None
        self._td_errors: Any = None
        # Time of the last row of metrics, and minibatches since then.
        self._row_at, self._since_row = time.perf_counter(), 0

    def attach(self, algorithm: Algorithm[Any]) -> None:
        """Gives it the algorithm that the minibatches are for.

        Raises:
            TrainError: it does not learn from single steps, which hindsight needs.
        """
        assert isinstance(algorithm, OffPolicyAlgorithm)
        self._algorithm, self._device, self._spec = algorithm, algorithm.device, algorithm.replay_spec()
        self._is_on_gpu = self._device.type == "cuda"
        if self._config.prefetch == "on":
            if not self._config.overlap:
                raise TrainError(
                    "--replay.prefetch on: it draws while experience comes in; add --replay.overlap"
                )
            if self.demos is not None:
                raise TrainError("--replay.prefetch on: demonstrations are not drawn ahead; set it to off")
            if self._spec.sequences is not None:
                raise TrainError("--replay.prefetch on: sequences are not drawn ahead; set it to off")
        if self._spec.sequences is not None and (self.demos is not None or self._hindsight is not None):
            what = "--replay.hindsight replaces" if self.demos is None else "--demos brings"
            raise TrainError(
                f"{what} single steps, and --algo {algorithm.name} with a memory learns from sequences: leave one out"
            )
        if self._hindsight is not None and self._spec.sampler is not None:
            raise TrainError(
                f"--replay.hindsight has a sampler of its own, and so has --algo {algorithm.name}: set hindsight to 0"
            )
        if self._hindsight is not None and (self._spec.n_step > 1 or self._spec.prioritized is not None):
            raise TrainError(
                f"--replay.hindsight replaces the goals of single steps, drawn uniformly: --algo {algorithm.name} sums"
                f" the rewards of {self._spec.n_step}{'' if self._spec.prioritized is None else ', by priority'}; set"
                " its n_step to 1, and no priorities"
            )
        size = self._spec.batch_size
        if self.demos is None:
            return
        config = self.demos.config
        if config.priority_bonus and self._spec.prioritized is None:
            raise TrainError(
                f"--demos.priority-bonus {config.priority_bonus} is for prioritized replay, which --algo"
                f" {algorithm.name} does not use: set it to 0"
            )
        if round(config.offline_ratio * size) in (0, size):
            raise TrainError(
                f"--demos.offline-ratio {config.offline_ratio} of {counted(size, 'transition')} leaves no demonstration"
                " or nothing else in a minibatch: choose another one, or a larger batch"
            )

    def open(self) -> Replay:
        """Makes replay and sampler, unless they are there, and starts prefetching.

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
            self.sampler = self._make_sampler(self.replay)
            if self.is_pretraining:
                self._pretrainer = self._demo_sampler(self._spec.batch_size)
        prefetch = self._config.prefetch
        may_draw_ahead = self._config.overlap and self._is_on_gpu and self.demos is None
        if prefetch == "on" or (prefetch == "auto" and may_draw_ahead and self._spec.sequences is None):
            self._prefetcher = Prefetcher(self.sampler, self._device)
        self._row_at, self._since_row = time.perf_counter(), 0
        return self.replay

    def _make_sampler(self, replay: Replay) -> UniformSampler:
        demos, spec = self.demos, self._spec
        if demos is None:
            return make_sampler(spec, replay, self._seed, self._hindsight)
        size = round(demos.config.offline_ratio * spec.batch_size)
        first = dataclasses.replace(spec, batch_size=spec.batch_size - size)
        return MixedSampler(
            make_sampler(first, replay, self._seed, self._hindsight), self._demo_sampler(size)
        )

    def _demo_sampler(self, batch_size: int) -> UniformSampler:
        assert self.demos is not None
        return make_sampler(
            dataclasses.replace(self._spec, batch_size=batch_size),
            self.demos.replay,
            int(np.random.SeedSequence([self._seed, 1]).generate_state(1, np.uint64)[0]),
            self._hindsight,
            self.demos.config.priority_bonus,
        )

    @property
    def is_pretraining(self) -> bool:
        """True if the next minibatch is of demonstrations alone, for which no environment has to be stepped."""
        return self.demos is not None and self.pretrained < self.demos.config.pretrain_steps

    def _end_pretraining(self) -> None:
        """Once pre-training is over, continues with its priorities and its generator."""
        if self.is_pretraining:
            return
        if self._pretrainer is not None and isinstance(self.sampler, MixedSampler):
            self.sampler.second.load_state_dict(self._pretrainer.state_dict())
        self._pretrainer = None

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

    def sample(self, steps: int, watch: Stopwatch, due: int = 1) -> Any:
        """A minibatch, after so many environment steps, or several of those that are due, as a
        `fastrl.replay.samplers.Batches`. It is valid until the next call.

        Several are drawn where the algorithm takes them and draws do not depend on what it learns from the one before.
        """
        batches: Any = self._prefetcher or self._pretrainer or self.sampler
        self.drawn = min(due, self._algorithm.minibatches_at_once)
        if type(batches) not in (UniformSampler, HindsightSampler):
            self.drawn = 1
        with watch("sampling"):
            if self._spec.prioritized is not None:
                batches.beta = self._spec.prioritized.beta(steps)
            try:
                self._batch = batches.sample() if self.drawn == 1 else batches.sample_several(self.drawn)
            except ValueError:
                self._check_td_errors()
                raise
            if self._pretrainer is not None:
                self._batch = dataclasses.replace(self._batch, num_second=self._spec.batch_size)
        return self._batch

    def _check_td_errors(self) -> None:
        """Blames the network for an error with the last TD errors as priorities, which may be a thread's, later.

        Raises:
            FloatingPointError: they are NaN or infinite.
        """
        if self._td_errors is not None and not self._td_errors.isfinite().all():
            raise FloatingPointError(
                f"the TD errors are not finite (NaN or infinity) after {self.count} minibatches; go back to a"
                " checkpoint, and lower the learning rate or check rewards and observations"
            ) from None

    def feedback(self, td_errors: Any) -> None:
        """Takes the TD errors of what was drawn last."""
        is_ahead = self._prefetcher is not None
        if self._spec.prioritized is not None:
            batches: Any = self._prefetcher or self._pretrainer or self.sampler
            self._td_errors = td_errors if is_ahead else td_errors.cpu()
            try:
                batches.update_priorities(self._batch.indices, self._td_errors)
            except ValueError:
                self._check_td_errors()
                raise
        elif self._is_on_gpu and not is_ahead:
            import torch

            # The GPU reads the minibatch asynchronously, and the sampler soon reuses its memory.
            torch.cuda.current_stream().synchronize()
        self._since_row += self.drawn
        if not self.is_pretraining:
            self.count += self.drawn
            return
        self.pretrained += 1
        self._end_pretraining()

    def metrics(self) -> dict[str, Number]:
        """Numbers for a row of metrics: speed since the last row, and fill of the replay."""
        assert self.replay is not None
        now = time.perf_counter()
        updates, seconds = self._since_row, now - self._row_at
        self._since_row, self._row_at = 0, now
        return {
            "time/updates_per_second": updates / seconds,
            "collect/replay_fill": len(self.replay) / self._config.capacity,
            **({"collect/pretrain_steps": self.pretrained} if self.is_pretraining else {}),
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
        if (replay.num_masked, replay.final_masks) != self._masks:
            raise TrainError(
                f"{file} has other action masks than this run: choose the same action_masks, or remove the file"
            )
        self.replay, self.sampler = replay, None

    def take_over(self, other: "Minibatches") -> None:
        """Takes the replay of another run's part that has ended."""
        self.replay, self.sampler = other.replay, None
        self.pretrained = other.pretrained

    def state_dict(self) -> dict[str, Any]:
        """The start of learning, and the state of the sampler if the replay is saved, too."""
        state: dict[str, Any] = {
            "started_at": self.started_at,
            "minibatches": self.count,
            "pretrained": self.pretrained,
        }
        if self._config.save and self.replay is not None and self.sampler is not None:
            sampler = self._pretrainer or self.sampler
            if self._prefetcher is not None:
                self._prefetcher.wait()
            state |= {"replay": self.replay.mark, "sampler": sampler.state_dict()}
            if self.demos is not None:
                state["demos"] = self.demos.checksum
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> str:
        """Resumes exactly where the other one stood, if its replay has been loaded. Called after `open`.

        Returns:
            Why not; empty if so.
        """
        assert self.replay is not None and self.sampler is not None
        self.pretrained = int(state["pretrained"])
        if not self.is_pretraining:
            self._pretrainer = None
        if "sampler" not in state:
            return "the replay was not saved, see --replay.save"
        if self.replay.mark != state["replay"]:
            return "the replay that was saved is not the checkpoint's"
        if state.get("demos") != (None if self.demos is None else self.demos.checksum):
            return "the demonstrations are others than the checkpoint's"
        (self._pretrainer or self.sampler).load_state_dict(state["sampler"])
        started_at = state["started_at"]
        self.started_at = None if started_at is None else int(started_at)
        self.count = int(state["minibatches"])
        return ""


def make_sampler(
    spec: ReplaySpec,
    replay: Replay,
    seed: int,
    hindsight: Mapping[str, Any] | None = None,
    bonus: float = 0.0,
) -> UniformSampler:
    """A sampler that draws minibatches from a replay as an algorithm wants them.

    Args:
        hindsight: further arguments of a `HindsightSampler`; None: goals are not replaced.
        bonus: of a `PrioritizedSampler`.
    """
    if spec.sequences is not None:
        length, burn_in = spec.sequences
        return RecurrentSampler(
            replay,
            spec.batch_size,
            length=length,
            burn_in=burn_in,
            n_step=spec.n_step,
            gamma=spec.gamma,
            seed=seed,
        )
    if hindsight is not None:
        return HindsightSampler(replay, spec.batch_size, gamma=spec.gamma, seed=seed, **hindsight)
    common: dict[str, Any] = {"n_step": spec.n_step, "gamma": spec.gamma, "seed": seed}
    if spec.prioritized is None:
        return (spec.sampler or UniformSampler)(replay, spec.batch_size, **common)
    common |= {"alpha": spec.prioritized.alpha, "beta": spec.prioritized.beta(0), "bonus": bonus}
    return (spec.sampler or PrioritizedSampler)(replay, spec.batch_size, **common)
