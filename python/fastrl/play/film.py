"""Films of episodes, of policies in any environment that draws itself."""

import contextlib
import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import gymnasium
import numpy as np
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray

from fastrl.envs import contract
from fastrl.envs.multi_agent import MultiAgentVectorEnv
from fastrl.envs.record_episodes import Act as TeamAct
from fastrl.envs.single import SingleEnv
from fastrl.envs.spec import EnvSpec
from fastrl.envs.viewer import View
from fastrl.play.episodes import build_any, episode_steps
from fastrl.play.own_agent import OwnAgent
from fastrl.play.play import Playable, Step, TeamEnv, play, team_act
from fastrl.runs.errors import TrainError
from fastrl.utils.video import check_video, draw_without_display, text_picture, text_shape, write_video

# Pictures per second of environments that name no number.
FPS = 30.0
# The same of text, which takes time to read.
TEXT_FPS = 4.0
# The same of traffic, which is drawn between its steps, too.
SCENE_FPS = 25.0
# Seconds that the end of an episode of traffic is shown.
HOLD = 1.0
# Modes of environments that draw themselves, the better one first.
_MODES = ("rgb_array", "ansi")

Picture = NDArray[np.uint8]


class Films:
    """Makes films of policies in one environment, which it keeps until `close`.

    Args:
        play: plays episodes of the policy in a checkpoint's state, so many, from a seed on. `Step.drawn` are pictures,
            uint8 [H, W, 3], or with a view scenes of traffic.
        fps: pictures per second, unless a film is to have others.
        close: closes the environment.
        view: draws scenes, which then move in real time.
    """

    def __init__(
        self,
        play: Callable[[Mapping[str, Any], int, int], Iterator[Step]],
        fps: float,
        close: Callable[[], object],
        view: View | None = None,
    ) -> None:
        self.play, self.fps, self.close, self.view = play, fps, close, view

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
        returns, fps = [0.0] * episodes, fps or self.fps
        played = self.play(state, episodes, seed)
        steps = played if self.view is None else drawn_scenes(played, self.view, fps=fps)

        def pictures() -> Iterator[Picture]:
            now = 0
            for step in steps:
                if step.episode != now:
                    advance(1)
                    now = step.episode
                returns[now] = step.total
                yield step.drawn
            advance(1)

        count = write_video(path, pictures(), fps=fps)
        return count, returns


class Played(Playable, Protocol):
    """Episodes that choose their actions, such as `fastrl.play.episodes.EnvEpisodes`."""

    def act(self, obs: Any, info: Mapping[str, Any], state: Any) -> tuple[Any, Any]: ...

    def render(self) -> Any: ...

    def close(self) -> object: ...


def env_films(
    spec: EnvSpec,
    num_envs: int,
    limit: int,
    played: Callable[[Mapping[str, Any], EnvSpec, Any], Played],
) -> Films:
    """Makes films of episodes in an environment of one agent.

    Args:
        spec: of the environment.
        num_envs: of a vector environment.
        limit: of an episode's steps; 0: the environment's own.
        played: makes the episodes, from the state of a checkpoint, the spec with a render mode, and the environment.

    Raises:
        TrainError, CollectError: as of `drawing_env`.
    """
    spec, env = drawing_env(spec, num_envs)
    pictures, num_steps = Pictures(env), episode_steps(env, limit)
    scenes = None if isinstance(env, VectorEnv) else env.unwrapped
    if not isinstance(scenes, SingleEnv) or scenes.view is None:
        scenes = None
    if isinstance(env, VectorEnv):
        spec.close(env)

    def play_drawn(state: Mapping[str, Any], episodes: int, seed: int) -> Iterator[Step]:
        with contextlib.closing(played(state, spec, env)) as each:
            seeds = range(seed, seed + episodes)
            draw = (lambda: pictures.of(each.render())) if scenes is None else scenes.scene
            yield from play(each.act, each, seeds, num_steps, name=spec.id, draw=draw)

    fps, view = (pictures.fps, None) if scenes is None else (SCENE_FPS, scenes.view)
    return Films(play_drawn, fps, functools.partial(spec.close, env), view)


def team_films(
    env: MultiAgentVectorEnv,
    acting: Callable[[Mapping[str, Any]], TeamAct],
    *,
    draw: Callable[[], Any] | None = None,
    fps: float | None = None,
) -> Films:
    """Makes films of episodes in an environment of several agents.

    Args:
        env: of one, which the films close.
        acting: makes the policy, from the state of a checkpoint.
        draw: gives a picture of the environment; None: its own.
        fps: pictures per second; None: the environment's.

    Raises:
        TrainError: it does not draw itself.
    """
    if draw is None and "rgb_array" not in env.render_modes:
        env.close()
        raise TrainError(f"{env.name} has no render mode rgb_array, so there is nothing to film")
    picture = draw or (lambda: env.render()[0])

    def play_drawn(state: Mapping[str, Any], episodes: int, seed: int) -> Iterator[Step]:
        seeds = range(seed, seed + episodes)
        act, draw_checked = team_act(acting(state)), lambda: checked_picture(picture())
        return play(act, TeamEnv(env), seeds, name=env.name, draw=draw_checked)

    return Films(play_drawn, env.fps if fps is None else fps, env.close)


class AgentEpisodes:
    """Episodes of an agent in an environment as Gymnasium makes it."""

    def __init__(self, agent: OwnAgent, env: Any) -> None:
        self.act, self.reset, self.step, self.render = agent, env.reset, env.step, env.render

    def close(self) -> None:
        """Does nothing: the environment is its owner's."""


def agent_films(path: str, spec: EnvSpec, limit: int, action_space: Any = None) -> Films:
    """Makes films of an agent; the arguments are those of `OwnAgent` and `env_films`.

    Args:
        action_space: that ``get_action`` is given; None: the environment's.
    """

    def played(state: Mapping[str, Any], spec: EnvSpec, env: Any) -> AgentEpisodes:
        return AgentEpisodes(OwnAgent(path, env.action_space if action_space is None else action_space), env)

    return env_films(spec, 1, limit, played)


def drawn_scenes(
    steps: Iterator[Step], view: View, *, fps: float = SCENE_FPS, speed: float = 1.0, fill: bool = True
) -> Iterator[Step]:
    """The pictures of a film at `speed` times real time, as `Step.drawn` in place of scenes; between two steps the cars
    move evenly. With ``fill`` the pictures are only as high as the road of the first scene."""
    period = speed / fps
    before: Step | None = None
    start, shown = 0.0, 0
    for step in steps:
        after = step.drawn
        if before is None and fill:
            view = view.filled(after)
        if before is None or step.number == 0:
            if before is not None:
                yield from _held(before, view, fps)
            start, shown = after.time, 0
        else:
            earlier = before.drawn
            while (time := start + shown * period) < after.time:
                share = (time - earlier.time) / (after.time - earlier.time)
                yield step._replace(drawn=view.draw(earlier.between(after, min(max(share, 0.0), 1.0))))
                shown += 1
        before = step
    if before is not None:
        yield from _held(before, view, fps)


def _held(step: Step, view: View, fps: float) -> Iterator[Step]:
    """Pictures of the end of an episode, for `HOLD` seconds."""
    yield from itertools.repeat(step._replace(drawn=view.draw(step.drawn)), max(round(HOLD * fps), 1))


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
        spec: of the environment, which is built with the render mode ``rgb_array``, or ``ansi`` where it has no other.
        num_envs: of a vector environment.

    Returns:
        The spec with that render mode, and the environment.

    Raises:
        TrainError, CollectError: it cannot be built, or does not draw itself.
    """
    draw_without_display()
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
