"""Episodes of traffic to look at: a film, a log of trajectories, diagrams of time and space and of ages on links."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium.spaces import Box, Discrete
from numpy.typing import NDArray
from rich.console import Console

from fastrl.collectors.team_spec import CompiledTeamSpec, TeamSpec
from fastrl.envs.multi_agent import MultiAgentVectorEnv
from fastrl.envs.opponents import OpponentVectorEnv
from fastrl.envs.traffic.link_figure import draw_ages
from fastrl.envs.traffic.trajectories import Recorder, draw_time_space
from fastrl.play.film import SCENE_FPS, drawn_scenes
from fastrl.play.play import Step, TeamEnv, play, team_act, team_seeds
from fastrl.runs.metrics import counted
from fastrl.utils.errors import UserError
from fastrl.utils.output import plain_console
from fastrl.utils.progress import Progress
from fastrl.utils.tables import print_lines
from fastrl.utils.video import check_video, write_video

if TYPE_CHECKING:
    from fastrl._native._rust import TrafficScene
    from fastrl.envs.record_episodes import Act

POLICIES = ("idle", "random")


class RenderError(UserError):
    """An environment or a run that cannot be shown."""


def make_env(env_id: str, options: Mapping[str, Any]) -> MultiAgentVectorEnv:
    """One environment, which stays as its episode ended until it is reset.

    Raises:
        RenderError: there is no such environment, or it refuses an option.
    """
    return made(CompiledTeamSpec(env_id, options))


def made(spec: TeamSpec) -> MultiAgentVectorEnv:
    """One environment of a spec, see `make_env`."""
    try:
        env = spec.make_team(1, workers=1)
    except (ValueError, TypeError, OverflowError) as error:
        raise RenderError(f"{spec.id}: {error}") from None
    if not env.has_scenes:
        raise RenderError(f"{spec.id} has nothing to show")
    return env


def scripted(name: str, env: MultiAgentVectorEnv, seed: int) -> Act:
    """A policy that needs no training: "idle" changes nothing, "random" draws each action evenly."""
    rows = env.num_envs * env.num_agents
    space = env.single_action_space
    generator = np.random.default_rng(seed)
    if isinstance(space, Discrete):
        # Of three or five manoeuvres, and their products with what agents send with, the second changes nothing.
        manoeuvres = space.n == 3 or (space.n % 5 == 0)
        idle = np.full(rows, 1 if manoeuvres else 0, np.int64)
        draw: Callable[[], NDArray[Any]] = lambda: generator.integers(space.n, size=rows)  # noqa: E731
    else:
        assert isinstance(space, Box)
        idle = np.zeros((rows, *space.shape), np.float32)
        draw = lambda: generator.uniform(space.low, space.high, (rows, *space.shape)).astype(np.float32)  # noqa: E731
    if name not in POLICIES:
        raise RenderError(f"policy: expected {' or '.join(POLICIES)}, got {name!r}")
    return lambda *others: (idle if name == "idle" else draw(), None)


def moments(env: MultiAgentVectorEnv, act: Act, seeds: Sequence[int]) -> Iterator[Step]:
    """Plays an episode of each seed in one environment of autoreset mode "disabled"; `Step.drawn` are its scenes."""
    return play(team_act(act), TeamEnv(env), seeds, name=env.name, draw=env.scene)


@dataclass(frozen=True)
class Outputs:
    """Files to write; None: not that one."""

    video: Path | None = None
    log: Path | None = None
    time_space: Path | None = None
    ages: Path | None = None

    def check(self) -> None:
        """Checks that they can be written, before hours are spent on their contents.

        Raises:
            RenderError, VideoError: they cannot.
        """
        paths = [path for path in (self.video, self.log, self.time_space, self.ages) if path is not None]
        if not paths:
            raise RenderError(
                "there is nothing to write: give --out FILE.mp4, --log FILE.npz, --time-space FILE.png"
                " or --ages FILE.png"
            )
        for path in paths:
            if not path.parent.is_dir():
                raise RenderError(f"{path}: there is no folder {path.parent}")
        if self.log is not None and self.log.suffix != ".npz":
            raise RenderError(f"{self.log}: expected a name that ends in .npz")
        if self.video is not None:
            check_video(self.video)


def render(
    env: MultiAgentVectorEnv,
    act: Act,
    outputs: Outputs,
    *,
    title: str,
    episodes: int = 1,
    seed: int = 0,
    fps: float = SCENE_FPS,
    speed: float = 1.0,
    view: Mapping[str, Any] | None = None,
    console: Console | None = None,
) -> None:
    """Runs episodes and writes the files that are asked for.

    Args:
        env: one environment, see `make_env`.
        act: the policy.
        outputs: the files.
        title: of the diagrams.
        episodes, seed: their number, on the seeds that `fastrl eval` uses too.
        fps, speed: of the film: pictures per second, and its speed in multiples of real time.
        view: fields of `fastrl.envs.viewer.View` that differ from the environment's own.
        console: shows progress.

    Raises:
        RenderError, VideoError, TrajectoryError: a file cannot be written.
    """
    outputs.check()
    console = console or plain_console(stderr=True)
    try:
        own_view = replace(env.view, **(view or {}))
    except (ValueError, TypeError) as error:
        raise RenderError(str(error)) from None
    whole = env.unopposed if isinstance(env, OpponentVectorEnv) else env
    recorder, places = Recorder(env.name, whole.num_agents), list(env.agents)
    # Of the first episode.
    scenes: list[TrafficScene] = []
    seeds = team_seeds(seed, episodes)
    # The length of a single episode is not known.
    with Progress("running", episodes if episodes > 1 else None, console) as progress:

        def watched() -> Iterator[Step]:
            for step in moments(env, act, seeds):
                scene, number, info = step.drawn, step.episode, step.info
                progress.describe(f"episode {number + 1} of {episodes}, {scene.time:.1f} s")
                progress.advance(int(step.number == 0 < number))
                alive, rewards = np.zeros(whole.num_agents, np.bool_), np.zeros(whole.num_agents, np.float32)
                alive[places], rewards[places] = info["alive"], info.get("rewards", 0.0)
                recorder.add(scene, number, alive, rewards)
                if number == 0:
                    scenes.append(scene)
                yield step

        shown = 0
        if outputs.video is not None:
            film = drawn_scenes(
                watched(), own_view, fps=fps, speed=speed, fill="screen_height" not in (view or {})
            )
            shown = write_video(outputs.video, (each.drawn for each in film), fps=fps)
        else:
            for _ in watched():
                pass
    if outputs.video is not None:
        print_lines(console, f"{outputs.video}: {counted(shown, 'picture')}, {shown / fps:.1f} s")
    seen = recorder.trajectories()
    if outputs.log is not None:
        seen.save(outputs.log)
        cars = seen.present.shape[1]
        line = f"{outputs.log}: {counted(len(seen.time), 'moment')}, {counted(cars, 'car')}"
        print_lines(console, line)
    if outputs.time_space is not None:
        draw_time_space(seen, outputs.time_space, title=title)
        print_lines(console, str(outputs.time_space))
    if outputs.ages is not None:
        draw_ages(scenes, outputs.ages, title=title)
        print_lines(console, str(outputs.ages))
