"""Films of episodes, of policies in any environment that draws itself."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray

from fastrl.envs import contract
from fastrl.envs.spec import EnvSpec
from fastrl.play.episodes import build_any
from fastrl.play.play import Step
from fastrl.runs.errors import TrainError
from fastrl.utils.video import check_video, text_picture, text_shape, write_video

# Pictures per second of environments that name no number.
FPS = 30.0
# The same of text, which takes time to read.
TEXT_FPS = 4.0
# Modes of environments that draw themselves, the better one first.
_MODES = ("rgb_array", "ansi")

Picture = NDArray[np.uint8]


class Films:
    """Makes films of policies in one environment, which it keeps until `close`.

    Args:
        play: plays episodes of the policy in a checkpoint's state, so many, from a seed on. `Step.drawn` are pictures,
            uint8 [H, W, 3]; a step may come with several.
        fps: pictures per second, unless a film is to have others.
        close: closes the environment.
    """

    def __init__(
        self,
        play: Callable[[Mapping[str, Any], int, int], Iterator[Step]],
        fps: float,
        close: Callable[[], object],
    ) -> None:
        self.play, self.fps, self.close = play, fps, close

    def film(
        self,
        state: Mapping[str, Any],
        path: Path,
        *,
        episodes: int = 1,
        seed: int = 0,
        fps: float | None = None,
        advance: Callable[[int], object] = lambda done: None,
    ) -> tuple[int, list[float]]:
        """Plays episodes without exploration, and writes a film of them.

        Args:
            state: of a checkpoint with the policy; its part of `Trainer.policy_checkpoint` is enough.
            path: of the film, .mp4 or .gif.
            seed: of the episodes.
            fps: pictures per second; None: the environment's.
            advance: called with 1 after each episode.

        Returns:
            The number of pictures, and the return of each episode; of many agents their mean return.

        Raises:
            TrainError, CheckpointError: the policy does not fit, or there is none.
            CollectError: the environment cannot be stepped.
            VideoError: the film cannot be written.
        """
        check_video(path)
        returns = [0.0] * episodes

        def pictures() -> Iterator[Picture]:
            now = 0
            for step in self.play(state, episodes, seed):
                if step.episode != now:
                    advance(1)
                    now = step.episode
                returns[now] = step.total
                yield step.drawn
            advance(1)

        count = write_video(path, pictures(), fps=fps or self.fps)
        return count, returns


class Pictures:
    """Makes pictures of what an environment draws.

    Args:
        env: of `drawing_env`.

    Attributes:
        fps: pictures per second.
    """

    def __init__(self, env: gymnasium.Env[Any, Any] | VectorEnv[Any, Any, Any]) -> None:
        self._is_text = env.render_mode == "ansi"
        self._text_shape: tuple[int, int] | None = None
        self.fps = TEXT_FPS if self._is_text else float(env.metadata.get("render_fps") or FPS)

    def of(self, drawn: Any) -> Picture:
        """The picture, uint8 [H, W, 3]; of text all have the size of the first one.

        Raises:
            TrainError: it is none.
        """
        if not self._is_text:
            return checked_picture(drawn)
        text = str(drawn)
        self._text_shape = self._text_shape or text_shape(text)
        return text_picture(text, self._text_shape)


def drawing_env(
    spec: EnvSpec, num_envs: int | None = None
) -> tuple[EnvSpec, gymnasium.Env[Any, Any] | VectorEnv[Any, Any, Any]]:
    """Builds an environment, or a vector environment, that draws itself: as pictures, or as text where it has no
    pictures.

    Args:
        spec: of the environment; it is built with the render mode ``rgb_array``, or ``ansi`` where it has no other.
        num_envs: of a vector environment.

    Returns:
        The spec with that render mode, and the environment.

    Raises:
        TrainError, CollectError: it cannot be built, or does not draw itself.
    """
    spec = spec.as_rows()
    env = build_any(spec, num_envs)
    if env.render_mode in _MODES:
        return spec, env
    modes = env.metadata.get("render_modes", ())
    spec.close(env)
    mode = next((mode for mode in _MODES if mode in modes), None)
    if mode is None:
        raise TrainError(
            f"{spec.id} has neither render mode, {' or '.join(_MODES)}, so there is nothing to film; its modes:"
            f" {', '.join(modes) or 'none'}"
        )
    with_mode = dataclasses.replace(spec, options={**spec.options, "render_mode": mode})
    try:
        env = build_any(with_mode, num_envs)
    except TrainError as error:
        if not isinstance(error.__cause__, TypeError):
            raise
        # A factory without that parameter.
        raise TrainError(
            f"{spec.id} was made without a render mode, and takes none: give its function a parameter render_mode, or"
            f" let it make environments with render_mode={mode!r}"
        ) from None
    if env.render_mode != mode:
        # An environment that exists already is not built again.
        spec.close(env)
        raise TrainError(f"{spec.id} was made without a render mode: make it with render_mode={mode!r}")
    return with_mode, env


def checked_picture(drawn: Any) -> Picture:
    """A picture that an environment has drawn, uint8 [H, W, 3].

    Raises:
        TrainError: it is none.
    """
    if not isinstance(drawn, np.ndarray) or drawn.ndim != 3 or drawn.shape[-1] != 3:
        raise TrainError(
            f"render() should return pictures [height, width, 3], got {contract.describe(drawn)}"
        )
    return drawn.astype(np.uint8, copy=False)
