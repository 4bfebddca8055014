"""A callback that films episodes."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from fastrl.envs.rows import in_rows, obs_rows_of
from fastrl.networks.action_space import Actions
from fastrl.networks.compiled_actor import Actor
from fastrl.training.callbacks import Callback, Run
from fastrl.training.episodes import build_env, episode_steps
from fastrl.training.errors import TrainError
from fastrl.training.rollouts import RolloutSource
from fastrl.training.trainer import Trainer
from fastrl.utils.video import check_video, write_video


class VideoRecorder(Callback):
    """Films an episode of the policy without exploration from time to time, and one at the end, as
    ``step-000000100000.mp4``. For environments with the render mode ``rgb_array``, one at a time.

    Args:
        every: environment steps between films.
        folder: where films go; a relative one lies in the run directory.
        suffix: ``.mp4`` or ``.gif``.
        seed: of the episode, the same in each film.
    """

    def __init__(
        self, every: int = 100_000, *, folder: str | Path = "videos", suffix: str = ".mp4", seed: int = 0
    ) -> None:
        self.every, self.folder, self.suffix, self.seed = every, Path(folder), suffix, seed
        self._filmed_at = -1
        self._env: gymnasium.Env[Any, Any] | None = None

    def on_start(self, run: Run) -> None:
        trainer = run.training
        if not isinstance(trainer, Trainer) or not isinstance(trainer.source, RolloutSource):
            raise TrainError(
                f"VideoRecorder: it films policies that learn from rollouts of single agents, not {run.algorithm} on"
                f" {run.env}: use fastrl render"
            )
        spec = trainer.source.spec
        if spec.is_vector:
            raise TrainError(f"VideoRecorder: {run.env} is a vector environment: it films single ones")
        self._folder = self.folder if run.directory is None else run.directory / self.folder
        self._folder.mkdir(parents=True, exist_ok=True)
        check_video(self._folder / f"step{self.suffix}")
        env = build_env(replace(spec, options={**spec.options, "render_mode": "rgb_array"}))
        if env.render_mode != "rgb_array":
            modes = ", ".join(env.metadata.get("render_modes", ())) or "none"
            env.close()
            raise TrainError(f"VideoRecorder: {run.env} has no render mode rgb_array, its modes: {modes}")
        self._env = in_rows(env, spec.id)

    def on_update(self, run: Run) -> None:
        if self._filmed_at < 0 or run.timesteps - self._filmed_at >= self.every:
            self._film(run)

    def on_end(self, run: Run) -> None:
        if self._env is not None:
            if run.timesteps > self._filmed_at:
                self._film(run)
            self._env.close()
            self._env = None

    def _film(self, run: Run) -> None:
        assert self._env is not None, "a run starts before its updates"
        self._filmed_at = run.timesteps
        trainer: Any = run.training
        actor = trainer.algorithm.make_actor(
            trainer.policy_checkpoint()["policy"], trainer.source.obs_space, trainer.source.action_space
        )
        pictures = _pictures(self._env, actor, trainer.algorithm.squash_actions, self.seed)
        path = self._folder / f"step-{run.timesteps:012d}{self.suffix}"
        write_video(path, pictures, fps=self._env.metadata.get("render_fps") or 30)


def _pictures(
    env: gymnasium.Env[Any, Any], actor: Actor, squash: bool, seed: int
) -> Iterator[NDArray[np.uint8]]:
    """The pictures of an episode in which the likeliest action is always chosen."""
    takes, dtype = Actions(env.action_space, squash), obs_rows_of(env).dtype
    draws, log_probs = np.zeros((1, *takes.shape), takes.dtype), np.zeros(1, np.float32)
    nothing = np.zeros(1, np.uint64), np.zeros(1, np.int64)
    states = np.zeros((1, actor.state_size), np.float32) if actor.state_size else None
    obs, _ = env.reset(seed=seed)
    yield _picture(env)
    for _ in range(episode_steps(env)):
        row = np.asarray(obs, dtype).reshape(1, -1)
        actor.act(row, *nothing, draws, log_probs, states=states, greedy=True)
        [action] = takes.to_envs(draws)
        obs, _, terminated, truncated, _ = env.step(action)
        yield _picture(env)
        if terminated or truncated:
            return


def _picture(env: gymnasium.Env[Any, Any]) -> NDArray[np.uint8]:
    picture: Any = env.render()
    return np.asarray(picture, np.uint8)
