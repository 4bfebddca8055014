"""Recorded demonstrations as experience for an algorithm that learns from a data set."""

from __future__ import annotations

import math
import time
import zlib
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch
from numpy.typing import NDArray

from fastrl._native._epochs import EpochSampler
from fastrl.algorithms.protocol import Algorithm, DatasetAlgorithm, DatasetBatch, DatasetSpec, Problem
from fastrl.envs.spec import EnvSpec
from fastrl.networks.action_space import Actions
from fastrl.play.episodes import facts_of, sampled_rows
from fastrl.replay.prefetch import Prefetcher
from fastrl.runs.episodes import Episodes
from fastrl.runs.errors import TrainError
from fastrl.runs.metrics import brief
from fastrl.runs.row import Number
from fastrl.sources.demo_arrays import (
    DemoArrays,
    Demos,
    batches_of,
    best_episodes,
    check_env,
    packed_rows,
    split_episodes,
)
from fastrl.sources.settings import DemosConfig
from fastrl.sources.source import Source
from fastrl.utils.output import quiet_console
from fastrl.utils.tables import print_lines
from fastrl.utils.timer import Stopwatch

if TYPE_CHECKING:
    from rich.console import Console

# Bytes of a minibatch's observations from which on another thread copies them while the learner learns; to pass smaller
# ones on between threads costs more than to copy them.
_PREFETCHED = 1 << 18

# Rows of a pass without gradients.
_CHUNK = 4096


class Batches:
    """Draws minibatches of steps, or of whole episodes: each once an epoch, in a new order each epoch.

    Two minibatches are used in turns: one is valid until the draw after the next.

    Args:
        arrays: the demonstrations.
        episodes: int64 [E], those to draw from.
        spec: sizes.
        seed: of the orders.
    """

    def __init__(self, arrays: DemoArrays, episodes: NDArray[np.int64], spec: DatasetSpec, seed: int) -> None:
        self.arrays, self._episodes, self._spec = arrays, episodes, spec
        items = episodes if spec.whole_episodes else arrays.steps_of(episodes)
        self._sampler = EpochSampler(items, seed=seed)
        self.num_samples = int(arrays.lengths[episodes].sum())
        self._drawn = np.empty(1 if spec.whole_episodes else spec.batch_size, np.int64)
        self._turn = 0
        self._slots = [] if spec.whole_episodes else [self._slot(spec.batch_size) for _ in range(2)]

    def _slot(self, size: int) -> tuple[NDArray[Any], NDArray[Any], DatasetBatch]:
        """Arrays for a minibatch of so many steps, and the minibatch that they are."""
        obs = np.empty((size, *self.arrays.obs.shape), self.arrays.obs.dtype)
        actions = np.empty((size, *self.arrays.actions.shape[1:]), self.arrays.actions.dtype)
        return obs, actions, DatasetBatch(torch.from_numpy(obs), torch.from_numpy(actions))

    def seek(self, epoch: int, position: int) -> None:
        """Goes to the place that a minibatch has named."""
        self._sampler.seek(epoch, position)

    def sample(self) -> tuple[DatasetBatch, tuple[int, int]]:
        """A minibatch, and the place where the next one begins: the epoch, and what has been drawn of it."""
        batch = self._episode_batch() if self._spec.whole_episodes else self._step_batch()
        return batch, (self._sampler.epoch, self._sampler.position)

    def _step_batch(self) -> DatasetBatch:
        count, arrays = self._sampler.draw(self._drawn), self.arrays
        obs, actions, batch = self._slots[self._turn]
        self._turn = 1 - self._turn
        if count == len(obs):
            arrays.obs.take_into(self._drawn, obs)
            arrays.action_rows.take_into(self._drawn, actions)
            return self._with_agents(batch, self._drawn)
        rows = self._drawn[:count]
        arrays.obs.take_into(rows, obs[:count])
        arrays.action_rows.take_into(rows, actions[:count])
        return self._with_agents(DatasetBatch(batch.obs[:count], batch.actions[:count]), rows)

    def _with_agents(self, batch: DatasetBatch, rows: NDArray[np.int64]) -> DatasetBatch:
        agents = self.arrays.agents
        return batch if agents is None else batch._replace(agents=torch.from_numpy(agents[rows]))

    def _episode_batch(self) -> DatasetBatch:
        chosen, total, epoch = list[int](), 0, self._sampler.epoch
        while total < self._spec.batch_size and self._sampler.epoch == epoch:
            self._sampler.draw(self._drawn)
            chosen.append(int(self._drawn[0]))
            total += int(self.arrays.lengths[chosen[-1]])
        return self.packed(np.array(chosen))

    def packed(self, episodes: NDArray[np.int64]) -> DatasetBatch:
        """A minibatch of whole episodes."""
        arrays = self.arrays
        rows, sizes = packed_rows(arrays.firsts[episodes], arrays.lengths[episodes])
        obs, actions, batch = self._slot(len(rows))
        arrays.obs.take_into(rows, obs)
        arrays.action_rows.take_into(rows, actions)
        return batch._replace(batch_sizes=torch.from_numpy(sizes))

    def in_order(self, episodes: NDArray[np.int64]) -> Iterator[DatasetBatch]:
        """Minibatches of all steps of some episodes, in order."""
        arrays = self.arrays
        if self._spec.whole_episodes:
            for part in batches_of(arrays.lengths[episodes], _CHUNK):
                yield self.packed(episodes[part])
            return
        rows = arrays.steps_of(episodes)
        for start in range(0, len(rows), _CHUNK):
            chunk = rows[start : start + _CHUNK]
            obs, actions = arrays.obs_at(chunk), arrays.actions[chunk]
            yield self._with_agents(DatasetBatch(torch.from_numpy(obs), torch.from_numpy(actions)), chunk)


class DatasetSource(Source):
    """Brings minibatches of demonstrations; after each epoch it has the algorithm validate.

    Args:
        spec: of the environment; one is built at once, to compare its spaces.
        num_envs: for vector environments.
        config: names the demonstrations, and what of them is used.
        dataset: the way through them.
        demos: the data set; None: that in the folder of the settings.
        needs_demos: False: for a policy that does not learn, the data set is not opened.
        seed: of the split and the orders.
        console: for people.

    Attributes:
        demos: the data set; arrays: its episodes in main memory or mapped; batches: what draws from them.

    Raises:
        TrainError, CollectError: the environment cannot be built, or the data set is not of it, damaged or empty.
    """

    brings = "dataset"
    collector = ""

    def __init__(
        self,
        spec: EnvSpec,
        num_envs: int,
        config: DemosConfig,
        dataset: DatasetSpec,
        *,
        demos: Demos | None = None,
        needs_demos: bool = True,
        seed: int = 0,
        console: Console | None = None,
    ) -> None:
        self.env_id, self.num_envs, self._seed = spec.id, num_envs, seed
        self._config, self._dataset = config, dataset
        self._console = console or quiet_console()
        self._spec = spec
        self._see_env(spec)
        # None: it was not opened.
        self.demos: Demos | None = None
        self.name = str(config.path or "")
        self.learned = self.validated = np.zeros(0, np.int64)
        # Samples in an epoch, and a checksum of the episodes that are learned from.
        self.num_samples, self._checksum = 0, 0
        if needs_demos:
            self._open(*opened(config, demos))
        # Where the next minibatch begins: the epoch, and what has been drawn of it.
        self._place = (0, 0)
        self._next_place = (0, 0)
        # Numbers of the last validation, and of those so far the lowest loss and epochs since then.
        self._validation: dict[str, float] = {}
        self._best, self._stale = math.inf, 0
        self._algorithm: DatasetAlgorithm | None = None
        self.arrays: DemoArrays | None = None
        self._prefetcher: Prefetcher[tuple[DatasetBatch, tuple[int, int]]] | None = None
        self._row_at, self._row_steps = time.perf_counter(), 0

    def _see_env(self, spec: EnvSpec) -> None:
        """Builds an environment, and reads its spaces and the longest episode."""
        found = facts_of(spec, self.num_envs)
        self.obs_space, self.action_space, self.env_actions, self.episode_steps, _ = found

    def sampled_rows(self) -> NDArray[Any]:
        return sampled_rows(self._spec, self.num_envs)

    def _check_demos(self, demos: Demos, name: str) -> None:
        """Refuses a data set of another environment.

        Raises:
            TrainError
        """
        assert self.env_actions is not None
        check_env(demos, self.env_id, self.obs_space, self.env_actions, name)

    def _open(self, demos: Demos, name: str) -> None:
        """Takes the data set, and decides which episodes are learned from."""
        self._check_demos(demos, name)
        if not len(demos):
            raise TrainError(f"{name} has no episodes: record some, or choose another one")
        returns = np.ascontiguousarray(demos.returns, np.float64)
        best = best_episodes(returns, self._config.top)
        self.demos, self.name = demos, name
        self.learned, self.validated = split_episodes(best, self._dataset.validation, self._seed)
        lengths = np.ascontiguousarray(demos.lengths, np.int64)[self.learned]
        self.num_samples = int(lengths.sum())
        if not self.num_samples:
            raise TrainError(f"{name} has no steps to learn from: record some, or choose another one")
        self._checksum = zlib.crc32(returns[self.learned].tobytes(), zlib.crc32(lengths.tobytes()))

    @property
    def goal(self) -> tuple[int, str]:
        return self._dataset.epochs * self.num_samples, "samples"

    @property
    def rounds(self) -> tuple[int, str]:
        return self._place[0], "epochs"

    @property
    def steps(self) -> int:
        """Samples that were learned from."""
        return 0 if self._algorithm is None else self._algorithm.steps

    @property
    def is_stopped(self) -> bool:
        """True once the validation loss has not got lower for the epochs that the settings name."""
        return 0 < self._dataset.patience <= self._stale

    def check_ranks(self) -> None:
        """Each has the same data set, and draws the same minibatches."""

    def problem(self, total_timesteps: int, seed: int) -> Problem:
        """The goal of the settings is that of environments; this one is the samples of all epochs."""
        return super().problem(max(self.goal[0], 1), seed)

    def attach(self, algorithm: Algorithm[Any]) -> None:
        self.expect(algorithm)
        assert isinstance(algorithm, DatasetAlgorithm)
        self._algorithm = algorithm
        self._actions = Actions(self.action_space, algorithm.squash_actions)

    def __enter__(self) -> Self:
        algorithm = self._algorithm
        assert algorithm is not None, "attach() comes first"
        assert self.demos is not None, "it learns, so it needs its data set"
        if self.arrays is None:
            self.arrays = DemoArrays.of(
                self.demos,
                self._actions,
                own_actions=self._config.actions == "expert",
                many_agents=self.num_agents is not None,
                name=self.name,
            )
        arrays = self.arrays
        self.batches = Batches(arrays, self.learned, self._dataset, self._seed)
        if not algorithm.steps:
            print_lines(
                self._console,
                f"learning from {len(self.learned):,} of {len(self.demos):,} episodes of {self.name},"
                f" {self.num_samples:,} samples, mean return {brief(float(arrays.returns[self.learned].mean()))};"
                f" {len(self.validated):,} episodes are for validation",
            )
            algorithm.prepare(self.batches.in_order(self.learned))
        self.batches.seek(*self._place)
        nbytes = self._dataset.batch_size * arrays.obs.shape[0] * arrays.obs.dtype.itemsize
        if algorithm.device.type == "cuda" or nbytes >= _PREFETCHED or arrays.is_mapped:
            self._prefetcher = Prefetcher(self.batches)
        self._row_at, self._row_steps = time.perf_counter(), self.steps
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._prefetcher is not None:
            self._prefetcher.close()
            self._prefetcher = None

    def next(self, watch: Stopwatch) -> DatasetBatch:
        assert self._algorithm is not None, "it runs as a context"
        with watch("sampling"):
            batch, self._next_place = (self._prefetcher or self.batches).sample()
            return self._on_device(batch)

    def _on_device(self, batch: DatasetBatch) -> DatasetBatch:
        assert self._algorithm is not None
        device = self._algorithm.device
        if device.type == "cpu":
            return batch
        agents = None if batch.agents is None else batch.agents.to(device)
        return DatasetBatch(batch.obs.to(device), batch.actions.to(device), batch.batch_sizes, agents)

    def feedback(self, result: Any) -> None:
        """Validates after the last minibatch of an epoch."""
        before, self._place = self._place, self._next_place
        if self._place[0] == before[0] or self._algorithm is None:
            return
        algorithm, patience = self._algorithm, self._dataset.patience
        if len(self.validated):
            batches = map(self._on_device, self.batches.in_order(self.validated))
            self._validation = algorithm.validate(batches)
            is_better = self._validation["loss"] < self._best
            self._best = min(self._validation["loss"], self._best)
            self._stale = 0 if is_better else self._stale + 1
            if patience and is_better:
                algorithm.keep()
        if patience and (self.is_stopped or self._place[0] >= self._dataset.epochs):
            algorithm.restore()

    def take_episodes(self) -> Episodes:
        return _NO_EPISODES

    def metrics(self) -> Mapping[str, Number]:
        now = time.perf_counter()
        speed = (self.steps - self._row_steps) / (now - self._row_at)
        self._row_at, self._row_steps = now, self.steps
        return {
            "dataset/epoch": self.steps / self.num_samples,
            "dataset/samples_per_second": speed,
            **{f"dataset/validation_{name}": value for name, value in self._validation.items()},
        }

    def summary(self) -> Mapping[str, Any]:
        return {
            "demos": self.name,
            "epochs": self._place[0],
            "episodes_learned": len(self.learned),
            "episodes_validated": len(self.validated),
            "validation": dict(self._validation),
            "best_validation_loss": self._best if math.isfinite(self._best) else None,
        }

    def lines(self) -> list[str]:
        if not self._validation:
            return []
        numbers = ", ".join(
            f"{name.replace('_', ' ')} {brief(each)}" for name, each in self._validation.items()
        )
        kept = f"; the lowest loss was {brief(self._best)}" if self._best < self._validation["loss"] else ""
        return [f"validation after {self._place[0]:,} epochs: {numbers}{kept}"]

    def state_dict(self) -> dict[str, Any]:
        return {
            "steps": self.steps,
            "checksum": self._checksum,
            "num_samples": self.num_samples,
            "place": list(self._place),
            "validation": dict(self._validation),
            "best": None if math.isinf(self._best) else self._best,
            "stale": self._stale,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if self.demos is None:
            self._checksum, self.num_samples = int(state["checksum"]), int(state["num_samples"])
        elif state["checksum"] != self._checksum:
            raise TrainError(
                f"{self.name} has other episodes than the data set that the run has learned from"
            )
        epoch, position = map(int, state["place"])
        self._place = self._next_place = (epoch, position)
        self._validation = dict(state["validation"])
        self._best = math.inf if state["best"] is None else float(state["best"])
        self._stale = int(state["stale"])


_NO_EPISODES = Episodes()


def opened(config: DemosConfig, demos: Demos | None) -> tuple[Demos, str]:
    """The data set that settings name, or the given one; and its name.

    Raises:
        TrainError: there is none.
    """
    if demos is not None:
        return demos, "the data set"
    if config.path is None:
        raise TrainError(
            "--demos: name the folder of a data set, as of fastrl demos record (from Python demos=FOLDER)"
        )
    # Data sets need pyarrow, nothing else does.
    try:
        from fastrl.replay.episodes import load
    except ImportError as error:
        raise TrainError(f"--demos: {error}; pip install 'fastrl[demos]' has what it needs") from None
    if not (config.path / "meta.json").exists():
        raise TrainError(
            f"--demos: {config.path} has no data set to learn from; name its folder (from Python demos=FOLDER)"
        )
    return load(config.path), str(config.path)
