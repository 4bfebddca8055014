"""The command ``fastrl render``."""

import argparse
import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from fastrl.cli.arguments import (
    Arg,
    Count,
    EnvOptions,
    Name,
    Positive,
    Seed,
    TrustRuns,
    command,
    import_from_here,
)
from fastrl.play.own_agent import is_agent
from fastrl.tasks import agent_task_on, find, load_saved
from fastrl.utils.config import ConfigError
from fastrl.utils.env_options import read_options
from fastrl.utils.progress import Progress, load_torch
from fastrl.utils.trust import trusted_import
from fastrl.utils.video import check_video


def _size(text: str) -> tuple[int, int]:
    width, _, height = text.partition("x")
    if not (
        width.isdecimal() and height.isdecimal() and 16 <= int(width) <= 8192 and 16 <= int(height) <= 8192
    ):
        raise argparse.ArgumentTypeError(
            f"should be two numbers from 16 to 8192 such as 600x150, got {text!r}"
        )
    return int(width), int(height)


@command(
    "{prog} runs/merge --out episode.mp4 --log trajectory.npz\n"
    "{prog} my_agent:Agent --env cage2 --out game.mp4\n"
    "{prog} --env fastrl/ring-v0 --env-options drive=humans --time-space diagram.png",
    usage="{prog} RUN [options]\n       {prog} MODULE:AGENT --env ID [options]\n"
    "       {prog} --env ID [--policy idle|random] [options]",
)
def render(
    arguments: list[str],
    run: Annotated[
        Name | None,
        Arg(
            "a run directory, a checkpoint file, or with --env an agent of your own, module:name, or with --env cage4"
            " a baseline: baseline:guard, ...",
            "RUN",
        ),
    ] = None,
    *,
    env: Annotated[
        str | None,
        Arg(
            "of an agent of your own: cage2, CartPole-v1, ...; else traffic: fastrl/coop-merge-v0, ...", "ID"
        ),
    ] = None,
    policy: Annotated[
        Literal["idle", "random"] | None,
        Arg("how the agents drive without a run: no change, or random actions [idle]"),
    ] = None,
    env_options: EnvOptions = (),
    out: Annotated[Path | None, Arg("the film, .mp4 or .gif", "FILE")] = None,
    log: Annotated[Path | None, Arg("the trajectories, .npz", "FILE")] = None,
    time_space: Annotated[Path | None, Arg("the diagram of the first episode, .png", "FILE")] = None,
    ages: Annotated[
        Path | None,
        Arg("traffic with radio links: the age of information over the first episode, .png", "FILE"),
    ] = None,
    episodes: Annotated[Count, Arg("number of episodes")] = 1,
    seed: Annotated[Seed, Arg("seed of the episodes")] = 0,
    fps: Annotated[Positive | None, Arg("pictures per second of the film [the environment's, or 25]")] = None,
    speed: Annotated[
        Positive | None, Arg("traffic: speed of the film, in multiples of real time [1]")
    ] = None,
    size: Annotated[
        tuple[int, int] | None,
        _size,
        Arg("traffic: width and height of the pictures, pixels [the environment's]", "WxH"),
    ] = None,
    scaling: Annotated[Positive | None, Arg("traffic: greatest number of pixels per metre [5.5]")] = None,
    trust: TrustRuns = False,
) -> int:
    """Films episodes of a run, without exploration; its environment should have the render mode rgb_array. Traffic is
    also shown as a log of all trajectories, or as a diagram of time and space, radio links as one of ages. RUN is a run
    directory, of which the best policy acts, a checkpoint file, or an agent as of ``fastrl eval``."""
    if fps is not None and fps < 0.01:
        raise ConfigError(f"--fps should be at least 0.01, got {fps:g}")
    own = run is not None and is_agent(run)
    subject = "an agent" if own else "a run"
    if own and env is None:
        raise ConfigError(f"{run}: say where it plays: --env cage2, --env CartPole-v1")
    if not own and (run is None) == (env is None):
        raise ConfigError("expected either a run or --env ID")
    if run is not None:
        if policy is not None:
            raise ConfigError(f"--policy does not go with {subject}, which has its own")
        load_torch(arguments)
        kind = agent_task_on(env) if own and env is not None else load_saved(Path(run))[0]
        if own or kind != "traffic":
            of_traffic = {
                "log": log,
                "time-space": time_space,
                "ages": ages,
                "speed": speed,
                "size": size,
                "scaling": scaling,
                "env-options": env_options,
            }
            if given := [name for name, value in of_traffic.items() if value]:
                raise ConfigError(f"--{given[0]} does not go with {subject} of {kind}, only with traffic")
            return _film(kind, run, env, out, trust=trust, episodes=episodes, seed=seed, fps=fps)
    from fastrl.play.film import SCENE_FPS
    from fastrl.tasks.traffic import render as traffic
    from fastrl.tasks.traffic.run_env import run_env

    outputs = traffic.Outputs(video=out, log=log, time_space=time_space, ages=ages)
    outputs.check()
    settings = read_options(env_options)
    if run is not None:
        simulation, act = run_env(Path(run), settings)
        title = f"{simulation.name}, run {run}"
    else:
        assert env is not None, "it is either"
        simulation = traffic.make_env(env, settings)
        act = traffic.scripted(policy or "idle", simulation, seed)
        # With another driver of the agents' vehicles the policy has no effect.
        driven = settings.get("drive", "agents") == "agents"
        title = ", ".join([simulation.name, *env_options, *([policy or "idle"] if driven else [])])
    view: dict[str, Any] = {} if scaling is None else {"scaling": scaling}
    if size is not None:
        view["screen_width"], view["screen_height"] = size
    traffic.render(
        simulation,
        act,
        outputs,
        title=title,
        episodes=episodes,
        seed=seed,
        fps=fps or SCENE_FPS,
        speed=speed or 1.0,
        view=view,
    )
    simulation.close()
    return 0


def _film(kind: str, run: str, env: str | None, out: Path | None, *, trust: bool, **options: Any) -> int:
    """Films a run of any task but traffic, which has more to show, or an agent of the user's own in ``env``; options
    are those of `Films.film`."""
    from fastrl.runs.checkpoint import to_play, using_checkpoint
    from fastrl.training.run import load_run

    if out is None:
        raise ConfigError("expected --out FILE, such as --out episode.mp4")
    check_video(out)
    # Before there is an environment, which may change the current directory.
    file = out.absolute()
    import_from_here(run if env is not None else None, trust=trust)
    task = find(trusted_import("kind", kind, run, trust=trust))
    with contextlib.ExitStack() as opened:
        if env is not None:
            settings = task.make_settings({} if env == task.name else {"env.id": env})
            state: Mapping[str, Any] = {}
            films = task.agent_films(run, settings)
        else:
            checkpoint = to_play(Path(run))
            settings, state = load_run(task, checkpoint, trust=trust)
            films = task.films(settings)
            opened.enter_context(using_checkpoint(checkpoint, "holds no policy that this fastrl can use"))
        opened.callback(films.close)
        progress = opened.enter_context(Progress("filming", options["episodes"]))
        count, returns = films.film(state, file, advance=progress.advance, **options)
    shown = ", ".join(f"{each:.6g}" for each in returns)
    print(f"{out}: {count} pictures, {'return' if len(returns) == 1 else 'returns'} {shown}")
    return 0
