"""Games and learner of a run from pixels in turns: then one seed gives one run, to the bit.

In a round each game takes one step, all by the newest weights; after it the learner learns from as many batches as are
due by then. Nothing depends on how fast anybody is, nor on how many processes share the games.
"""

import zlib
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fastrl.algorithms.dqn import DQN
from fastrl.collectors.actor_process import Stacks
from fastrl.collectors.counters import Game
from fastrl.envs.pixels import make_seeded_pixels
from fastrl.envs.process_vector import ProcessVectorEnv
from fastrl.envs.spec import as_spec
from fastrl.replay import PrioritizedSampler, Replay, UniformSampler
from fastrl.tasks.pixels.settings import PixelConfig
from fastrl.training.off_policy import learn_batch
from fastrl.utils.seeding import env_seeds
from fastrl.utils.timer import Stopwatch

# Batches for each step of the environments where the settings name no number: DQN's own (Mnih et al., 2015).
UPDATES_PER_STEP = 0.25


class Turns:
    """The games in worker processes, and rounds.

    Args:
        config: of the run.
        env_options: of `make_seeded_pixels`.
        powers: float64 [N], of the games' epsilons.
        steps, batches: of the run so far.

    Attributes:
        steps, batches: as they are now.
        watch: seconds of this process by part: ``waiting`` for the games, ``inference``, ``buffer``, ``sampling`` and
            ``update``.

    Raises:
        WorkerError: games cannot be built; later, a process has died.
    """

    def __init__(
        self,
        config: PixelConfig,
        env_options: dict[str, Any],
        dqn: DQN,
        replay: Replay,
        sampler: UniformSampler | PrioritizedSampler,
        powers: NDArray[np.float64],
        steps: int,
        batches: int,
    ) -> None:
        self._config, self._dqn, self._replay, self._sampler = config, dqn, replay, sampler
        self._powers = powers
        self._epsilon, self._spec = dqn.exploration(), dqn.replay_spec()
        self.steps, self.batches = steps, batches
        self.watch = Stopwatch()
        self._ratio = config.collect.updates_per_step or UPDATES_PER_STEP
        # Steps and batches when learning began.
        self._began: tuple[int, int] | None = None
        num_envs = len(powers)
        # Of the games that run, by environment: their numbers, and the actions so far.
        self._numbers = np.zeros(num_envs, np.int64)
        self._actions: list[list[int]] = [[] for _ in range(num_envs)]
        self._shape = replay.dtype["obs"].shape
        stack = config.env.stack if config.env.stack > 1 else 0
        self._stacks = Stacks(num_envs, stack, self._shape, replay.dtype["obs"].base)
        self._envs = ProcessVectorEnv(
            as_spec(make_seeded_pixels, **env_options),
            num_envs,
            config.collect.collectors,
            autoreset_mode="same_step",
            start_method="forkserver",
            info=True,
        )

    @property
    def worker_seconds(self) -> tuple[float, float]:
        """Seconds that the processes have spent on games and on waiting, summed over them."""
        spent, waited = self._envs.worker_seconds.sum(axis=0)
        return float(spent), float(waited)

    def begin(self) -> None:
        """Begins the games of `_numbers`."""
        obs, _ = self._envs.reset(seed=self._seeds(self._numbers).tolist())
        for i, frame in enumerate(self._frames(obs)):
            self._stacks.begin(i, frame)
            self._actions[i] = []
        self._seed_next()

    def _seeds(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        return env_seeds(self._config.run.seed, np.arange(len(numbers)), numbers)

    def _seed_next(self) -> None:
        """Environments that begin a game by themselves, begin the next one."""
        self._envs.next_seeds[:] = self._seeds(self._numbers + 1)

    def _frames(self, obs: NDArray[Any]) -> NDArray[Any]:
        """As the replay has them."""
        return obs.reshape(len(obs), *self._shape)

    def round(self) -> list[Game]:
        """A step of every game, and what is to be learnt after it; the games that have ended."""
        stacks, watch = self._stacks, self.watch
        with watch("inference"):
            actions = self._dqn.act(stacks.obs, self._epsilon(self.steps) ** self._powers)
        with watch("waiting"):
            obs, rewards, terminations, truncations, infos = self._envs.step(actions)
        with watch("buffer"):
            obs = self._frames(obs)
            ended = terminations | truncations
            later = obs.copy()
            if ended.any():
                later[ended] = self._frames(infos["final_obs"])[ended]
            before = np.stack([stacks.newest(i) for i in range(len(obs))])
            version = np.full(len(obs), self._dqn.updates, np.uint32)
            self._replay.add_many(
                before,
                actions,
                rewards.astype(np.float32),
                later,
                terminations,
                truncations,
                version=version,
            )
            self._follow(range(len(obs)), obs, ended, actions)
            games = self._over(infos.get("final_info", {}))
            self._seed_next()
        self.steps += len(obs)
        self._learn()
        return games

    def _follow(
        self, rows: Iterable[int], obs: NDArray[Any], ended: NDArray[np.bool_], actions: NDArray[np.int64]
    ) -> None:
        """Keeps the actions and frames of a step of some games."""
        for i in rows:
            self._actions[i].append(int(actions[i]))
            if ended[i]:
                self._stacks.begin(i, obs[i])
            else:
                self._stacks.push(i, obs[i])

    def _over(self, infos: dict[str, Any]) -> list[Game]:
        games = []
        for i in np.flatnonzero(infos.get("_episode", ())).tolist():
            told = infos["episode"]
            games.append(Game(float(told["r"][i]), int(told["l"][i])))
            self._numbers[i] += 1
            self._actions[i] = []
        return games

    def _learn(self) -> None:
        if self._began is None:
            if len(self._replay) < self._config.replay.starts:
                return
            self._began = self.steps, self.batches
        due = int((self.steps - self._began[0]) * self._ratio)
        while self.batches - self._began[1] < due:
            learn_batch(self._dqn, self._spec, self._sampler, self.steps, self.watch)
            self.batches += 1

    def state(self) -> dict[str, Any]:
        """All that `restore` needs beside the learner's state; the replay and its sampler only if it is saved, too."""
        lengths = [len(actions) for actions in self._actions]
        state: dict[str, Any] = {
            "began": None if self._began is None else list(self._began),
            "numbers": torch.from_numpy(self._numbers.copy()),
            "lengths": lengths,
            "actions": torch.tensor(
                [action for actions in self._actions for action in actions], dtype=torch.int32
            ),
            "shown": zlib.crc32(self._stacks.obs.data),
        }
        if self._config.run.save_replay:
            state |= {"replay": self._replay.mark, "sampler": self._sampler.state_dict()}
        return state

    def restore(self, state: dict[str, Any]) -> str:
        """Goes on where the other one stood, whose replay is there. Returns why not to the bit, in words; empty if
        so.

        Raises:
            ValueError: the state is of other games.
        """
        lengths = np.array(state["lengths"], np.int64)
        if len(lengths) != len(self._numbers) or len(state["actions"]) != lengths.sum():
            raise ValueError(f"the state has {len(lengths)} games, the run {len(self._numbers)}")
        self._numbers[:] = state["numbers"].numpy()
        self.begin()
        if not self._play_again(np.split(state["actions"].numpy(), np.cumsum(lengths)[:-1]), state["shown"]):
            self.begin()
            return self._cut("the same seeds and actions led elsewhere, the games are not deterministic")
        if "sampler" not in state:
            return self._cut("the replay was not saved, see --run.save_replay")
        if self._replay.mark != state["replay"]:
            return self._cut("the replay that was saved is not the checkpoint's")
        self._sampler.load_state_dict(state["sampler"])
        self._began = None if state["began"] is None else tuple(state["began"])
        return ""

    def _cut(self, why: str) -> str:
        for i in range(len(self._numbers)):
            self._replay.cut(i)
        return why

    def _play_again(self, played: list[NDArray[np.int32]], shown: int) -> bool:
        """Plays the actions of the games, which have just begun; whether they show what they showed."""
        lengths = np.array([len(actions) for actions in played])
        obs = np.zeros((len(played), *self._shape), self._replay.dtype["obs"].base)
        rewards = np.zeros(len(played))
        terminations, truncations = np.zeros((2, len(played)), np.bool_)
        actions = np.zeros(len(played), np.int64)
        for t in range(lengths.max()):
            mask = lengths > t
            rows = np.flatnonzero(mask).tolist()
            for i in rows:
                actions[i] = played[i][t]
            self._envs.step_into(
                actions, obs.reshape(len(obs), -1), rewards, terminations, truncations, mask=mask
            )
            self._follow(rows, obs, terminations | truncations, actions)
            self._seed_next()
        return zlib.crc32(self._stacks.obs.data) == shown

    def close(self) -> None:
        self._envs.close()
