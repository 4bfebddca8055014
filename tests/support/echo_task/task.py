"""Episodes in which each reward is 1 for the action that equals the observation."""

from collections.abc import Mapping
from typing import Annotated, Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete
from pydantic import Field
from rich.console import Console

from echo_task import NAME, SUMMARY
from fastrl.algorithms import find
from fastrl.envs.spec import EnvSpec
from fastrl.play.episodes import EnvEpisodes
from fastrl.runs.episodes import Episodes
from fastrl.runs.row import Number
from fastrl.runs.settings import RunConfig
from fastrl.sources.source import Source
from fastrl.training.callbacks import Callback, Run
from fastrl.training.evaluation import Returns
from fastrl.training.evaluation_options import EvaluationOptions
from fastrl.training.task import Task
from fastrl.utils.config import Preset, Setting, section


class Echo(gymnasium.Env[Any, Any]):
    """Shows 0 or 1."""

    observation_space = Box(0, 1, (2,), np.float32)
    action_space = Discrete(2)

    def __init__(self, length: int = 8) -> None:
        self._length = length

    def _observe(self) -> Any:
        self._bit = int(self.np_random.integers(2))
        return np.eye(2, dtype=np.float32)[self._bit]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self._step = 0
        return self._observe(), {}

    def step(self, action: Any) -> Any:
        self._step += 1
        reward = float(action == self._bit)
        return self._observe(), reward, False, self._step == self._length, {}


@section
class EnvConfig:
    """The environment."""

    length: Annotated[int, Field(ge=1, description="steps of an episode"), Setting(option="--length")] = 8
    num_envs: Annotated[int, Field(ge=1, description="environments that are stepped together")] = 8


class PerfectEpisodes(Callback):
    """Counts episodes without a wrong action."""

    name = "perfect_episodes"

    def __init__(self, length: int) -> None:
        self._length, self.count = length, 0

    def on_update(self, run: Run) -> None:
        self.count += int((run.ended.returns == self._length).sum())

    def metrics(self, ended: Episodes) -> Mapping[str, Number]:
        return {"rollout/perfect_episodes": self.count}

    def summary(self) -> Mapping[str, Any]:
        return {"perfect_episodes": self.count}

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.count = state["count"]


class EchoTask(Task):
    """See `fastrl.training.task.Task`."""

    name = NAME
    summary = SUMMARY
    run = RunConfig(total_timesteps=4096, row_seconds=0.0, eval_episodes=10)
    env = EnvConfig()
    presets = {"short": Preset("episodes of four steps", {"env": {"length": 4}})}  # noqa: RUF012

    def env_spec(self, settings: Any) -> EnvSpec:
        return EnvSpec("echo_task.task:Echo", {"length": settings.env.length})

    def callbacks(self, settings: Any, source: Source, console: Console) -> list[Callback]:
        return [PerfectEpisodes(settings.env.length)]

    def evaluate(self, state: Mapping[str, Any], settings: Any, options: EvaluationOptions) -> Returns:
        actor = find(settings.run.algo).make_actor(state["policy"], Echo.observation_space, Echo.action_space)
        length = settings.env.length
        played = EnvEpisodes(Echo(length), "Echo", actor)
        return Returns(played.returns(options.episodes, options.seed, length, options.advance))


TASK = EchoTask()
