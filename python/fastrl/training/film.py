"""Films of episodes of one agent, in any environment that draws itself."""

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from fastrl.envs import contract
from fastrl.envs.spec import EnvSpec
from fastrl.training.episodes import build_env, episode_steps
from fastrl.training.errors import TrainError
from fastrl.utils.video import check_video, write_video

# Action and new state of the policy's memory, for an observation and the state before; None where an episode starts.
Predict = Callable[[Any, Any], tuple[Any, Any]]

# Pictures per second of environments that name no number.
FPS = 30.0


def film(
    spec: EnvSpec,
    predict: Predict,
    path: Path,
    *,
    episodes: int = 1,
    seed: int = 0,
    fps: float | None = None,
    advance: Callable[[int], object] = lambda done: None,
) -> tuple[int, list[float]]:
    """Plays episodes and writes a film of them.

    Args:
        spec: of the environment; it is built with the render mode ``rgb_array``.
        path: of the film, .mp4 or .gif.
        seed: of the first episode; the next ones have the numbers after it.
        fps: pictures per second; None: what the environment names, else `FPS`.
        advance: called with 1 after each episode.

    Returns:
        The number of pictures, and the return of each episode.

    Raises:
        TrainError, CollectError: the environment cannot be built, or does not draw itself.
        VideoError: the film cannot be written.
    """
    check_video(path)
    env = build_env(
        dataclasses.replace(spec, options={**spec.options, "render_mode": "rgb_array"}, rows=False)
    )
    try:
        if env.render_mode != "rgb_array":
            modes = ", ".join(env.metadata.get("render_modes", ())) or "none"
            raise TrainError(
                f"{spec.id} has no render mode rgb_array, so there is nothing to film; its modes: {modes}"
            )
        returns: list[float] = []

        def pictures() -> Iterator[NDArray[np.uint8]]:
            for number in range(episodes):
                returns.append(0.0)
                for picture, reward in _episode(env, predict, seed + number):
                    returns[-1] += reward
                    yield picture
                advance(1)

        own = env.metadata.get("render_fps")
        count = write_video(path, pictures(), fps=fps or (float(own) if own else FPS))
    finally:
        contract.close(env)
    return count, returns


def _episode(
    env: gymnasium.Env[Any, Any], predict: Predict, seed: int
) -> Iterator[tuple[NDArray[np.uint8], float]]:
    """The pictures of an episode, and the reward before each."""
    obs, _ = env.reset(seed=seed)
    state = None
    yield _picture(env), 0.0
    for _ in range(episode_steps(env)):
        action, state = predict(obs, state)
        obs, reward, terminated, truncated, _ = env.step(action)
        yield _picture(env), float(reward)
        if terminated or truncated:
            return


def _picture(env: gymnasium.Env[Any, Any]) -> NDArray[np.uint8]:
    picture: Any = env.render()
    if not isinstance(picture, np.ndarray) or picture.ndim != 3 or picture.shape[-1] != 3:
        raise TrainError(f"render() should return pictures [height, width, 3], got {type(picture).__name__}")
    return picture.astype(np.uint8, copy=False)
