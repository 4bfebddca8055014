"""Environments that fill a replay in turns with the learner: then one seed gives one run, to the bit.

In a round each environment takes one step, all by the newest weights; after it the learner learns from as many
minibatches as are due by then. Nothing depends on how fast a process is, nor on how many share the environments.
"""

import zlib
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fastrl.algorithms.protocol import OffPolicyAlgorithm
from fastrl.collectors.actor_process import Stacks
from fastrl.collectors.protocol import CollectError, Report
from fastrl.envs.process_pool import WorkerError
from fastrl.envs.process_vector import ProcessVectorEnv
from fastrl.envs.spec import EnvSpec
from fastrl.replay import Replay
from fastrl.training.experience import Episodes
from fastrl.training.row import Number
from fastrl.utils.seeding import env_seeds
from fastrl.utils.timer import Stopwatch

# Default minibatches for each environment step, as in DQN (Mnih et al., 2015).
UPDATES_PER_STEP = 0.25


class LockstepActors:
    """Environments in worker processes, stepped in rounds; see `fastrl.training.replay_actors.ActorProcesses`.

    Args:
        spec: of the environment. A seed for `reset` counts only where a new episode of the user's starts.
        num_workers: processes.
        algorithm: acts.
        replay: is filled.
        exponents: float64 [N], to which each environment's share of random actions is raised.
        has_episode_info: ``info["episode"]`` has return and length where an episode of the user's has ended.
        stack: newest frames that make an observation; 0: observations are not stacked.
        updates_per_step: minibatches that are due for each environment step; None: `UPDATES_PER_STEP`.
        seed: of episodes.
        steps: environment steps before.

    Attributes:
        steps: environment steps so far whose minibatches have been learnt from.
        taken: environment steps in the replay so far.
        restarts, dropped: 0; here a process that dies ends the run.

    Raises:
        CollectError: environments cannot be built; later, a process has died.
    """

    name = "lockstep"
    restarts = dropped = 0

    def __init__(
        self,
        spec: EnvSpec,
        num_workers: int,
        algorithm: OffPolicyAlgorithm,
        replay: Replay,
        exponents: NDArray[np.float64],
        *,
        has_episode_info: bool,
        stack: int,
        updates_per_step: float | None,
        seed: int,
        steps: int,
    ) -> None:
        self._algorithm, self._replay = algorithm, replay
        self._epsilon, self._exponents = algorithm.exploration(), exponents
        self._has_episode_info, self._seed = has_episode_info, seed
        self.steps = self.taken = steps
        self._ratio = updates_per_step or UPDATES_PER_STEP
        num_envs = len(exponents)
        # The running episode of each environment: number, actions so far, return and length.
        self._numbers = np.zeros(num_envs, np.int64)
        self._actions: list[list[int]] = [[] for _ in range(num_envs)]
        self._returns, self._lengths = np.zeros(num_envs), np.zeros(num_envs, np.int64)
        self._ended: list[tuple[float, int]] = []
        self._shape = replay.dtype["obs"].shape
        self._stacks = Stacks(num_envs, stack, self._shape, replay.dtype["obs"].base)
        try:
            self.envs = ProcessVectorEnv(
                spec, num_envs, num_workers, autoreset_mode="same_step", start_method="forkserver", info=True
            )
        except WorkerError as error:
            raise _worker_died(error) from error

    def start(self) -> None:
        """Starts the episodes of `_numbers`."""
        obs, _ = self.envs.reset(seed=self._seeds(self._numbers).tolist())
        for i, frame in enumerate(self._frames(obs)):
            self._stacks.begin(i, frame)
            self._actions[i] = []
        self._returns[:], self._lengths[:] = 0, 0
        self._seed_next()

    def _seeds(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        return env_seeds(self._seed, np.arange(len(numbers)), numbers)

    def _seed_next(self) -> None:
        """Environments that reset themselves start the next episode."""
        self.envs.next_seeds[:] = self._seeds(self._numbers + 1)

    def _frames(self, obs: NDArray[Any]) -> NDArray[Any]:
        """Observations in the shape in which the replay has them."""
        return obs.reshape(len(obs), *self._shape)

    def refresh(self, watch: Stopwatch) -> None:
        """Weights need no publication here."""

    def collect(self, watch: Stopwatch) -> None:
        """Takes a step of every environment.

        Raises:
            CollectError: a process has died.
        """
        with watch("inference"):
            actions = self._algorithm.explorer.act(
                self._stacks.obs, self._epsilon(self.taken) ** self._exponents
            )
        try:
            with watch("waiting"):
                obs, rewards, terminations, truncations, infos = self.envs.step(actions)
        except WorkerError as error:
            raise _worker_died(error) from error
        with watch("buffer"):
            obs = self._frames(obs)
            ended = terminations | truncations
            next_obs = obs.copy()
            if ended.any():
                next_obs[ended] = self._frames(infos["final_obs"])[ended]
            before = np.stack([self._stacks.newest(i) for i in range(len(obs))])
            version = np.full(len(obs), self._algorithm.updates, np.uint32)
            self._replay.add_many(
                before,
                actions,
                rewards.astype(np.float32),
                next_obs,
                terminations,
                truncations,
                version=version,
            )
            self._follow(range(len(obs)), obs, ended, actions)
            self._count_episodes(rewards, ended, infos.get("final_info", {}))
            self._seed_next()
        self.taken += len(obs)

    def _follow(
        self, rows: Iterable[int], obs: NDArray[Any], ended: NDArray[np.bool_], actions: NDArray[np.int64]
    ) -> None:
        """Keeps the actions and frames of a step of some environments."""
        for i in rows:
            self._actions[i].append(int(actions[i]))
            if ended[i]:
                self._stacks.begin(i, obs[i])
            else:
                self._stacks.push(i, obs[i])

    def _count_episodes(
        self, rewards: NDArray[np.float64], ended: NDArray[np.bool_], infos: Mapping[str, Any]
    ) -> None:
        self._returns += rewards
        self._lengths += 1
        over = (
            np.asarray(infos.get("_episode", np.zeros(len(ended), np.bool_)))
            if self._has_episode_info
            else ended
        )
        for i in np.flatnonzero(over).tolist():
            episodes = (
                {"r": self._returns, "l": self._lengths} if not self._has_episode_info else infos["episode"]
            )
            self._ended.append((float(episodes["r"][i]), int(episodes["l"][i])))
            self._numbers[i] += 1
            self._actions[i] = []
        self._returns[ended], self._lengths[ended] = 0, 0

    def is_due(self, started_at: int | None, minibatches: int) -> bool:
        """True if a minibatch is to be learned from before the next round."""
        due = started_at is not None and minibatches < int((self.taken - started_at) * self._ratio)
        if not due:
            self.steps = self.taken
        return due

    def take_episodes(self) -> Episodes | None:
        if not self._ended:
            return None
        returns, lengths = zip(*self._ended, strict=True)
        self._ended = []
        return Episodes(np.array(returns), np.array(lengths, np.int64))

    def report(self) -> Report:
        spent, waited = self.envs.worker_seconds.sum(axis=0).tolist()
        return Report(workers=self.envs.num_workers, seconds={"environment": spent, "waiting": waited})

    def numbers(self) -> dict[str, Number]:
        return {"collect/staleness": 0.0, "collect/queue_depth": 0}

    def state_dict(self) -> dict[str, Any]:
        """All that `load_state_dict` needs beside the algorithm's state and the replay."""
        return {
            "taken": self.taken,
            "numbers": torch.from_numpy(self._numbers.copy()),
            "lengths": [len(actions) for actions in self._actions],
            "actions": torch.tensor(
                [action for actions in self._actions for action in actions], dtype=torch.int32
            ),
            "obs": zlib.crc32(self._stacks.obs.data),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> bool:
        """Resumes where the other one stood: takes the actions of its running episodes again.

        Returns:
            Whether the environments show what they showed then; if not, their episodes have started over.

        Raises:
            ValueError: the state is of other environments.
        """
        lengths = np.array(state["lengths"], np.int64)
        if len(lengths) != len(self._numbers) or len(state["actions"]) != lengths.sum():
            raise ValueError(f"the state has {len(lengths)} environments, the run {len(self._numbers)}")
        self._numbers[:] = state["numbers"].numpy()
        self.taken = int(state["taken"])
        self.start()
        is_same = self._replay_actions(
            np.split(state["actions"].numpy(), np.cumsum(lengths)[:-1]), state["obs"]
        )
        if not is_same:
            self.start()
        return is_same

    def _replay_actions(self, recorded: list[NDArray[np.int32]], checksum: int) -> bool:
        """Takes the recorded actions in the episodes that have just started; whether observations are as recorded."""
        lengths = np.array([len(actions) for actions in recorded])
        obs = np.zeros((len(recorded), *self._shape), self._replay.dtype["obs"].base)
        rewards = np.zeros(len(recorded))
        terminations, truncations = np.zeros((2, len(recorded)), np.bool_)
        actions = np.zeros(len(recorded), np.int64)
        for t in range(lengths.max()):
            mask = lengths > t
            rows = np.flatnonzero(mask)
            for i in rows.tolist():
                actions[i] = recorded[i][t]
            self.envs.step_into(
                actions, obs.reshape(len(obs), -1), rewards, terminations, truncations, mask=mask
            )
            ended = terminations | truncations
            self._follow(rows.tolist(), obs, ended, actions)
            self._returns[rows] += rewards[rows]
            self._lengths[rows] += 1
            self._returns[mask & ended], self._lengths[mask & ended] = 0, 0
            self._seed_next()
        return zlib.crc32(self._stacks.obs.data) == checksum

    def close(self) -> None:
        self.envs.close()


def _worker_died(error: WorkerError) -> CollectError:
    death = error.deaths[0]
    return CollectError(
        f"actor {death.worker} died ({death.cause}): a deterministic run ends then; --resume continues from its last"
        " checkpoint",
        death.traceback,
    )
