"""The command ``fastrl render``."""

import argparse
import contextlib
from pathlib import Path
from typing import Annotated, Any, Literal

from fastrl.cli.arguments import Arg, Count, EnvOptions, Positive, Seed, TrustRuns, command, import_from_here
from fastrl.tasks import find, load_saved
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
    "{prog} --env fastrl/ring-v0 --env-options drive=humans --time-space diagram.png",
    usage="{prog} RUN [options]\n       {prog} --env ID [--policy idle|random] [options]",
)
def render(
    arguments: list[str],
    run: Annotated[Path | None, Arg("a run directory, or a checkpoint file", "RUN")] = None,
    *,
    env: Annotated[
        str | None, Arg("traffic without a run: fastrl/highway-v0, fastrl/coop-merge-v0, ...", "ID")
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
    directory, of which the best policy acts, or a checkpoint file."""
    if fps is not None and fps < 0.01:
        raise ConfigError(f"--fps should be at least 0.01, got {fps:g}")
    if (run is None) == (env is None):
        raise ConfigError("expected either a run or --env ID")
    if run is not None:
        if policy is not None:
            raise ConfigError("--policy does not go with a run, which has its own")
        load_torch(arguments)
        kind, _ = load_saved(run)
        if kind != "traffic":
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
                raise ConfigError(f"--{given[0]} does not go with a run of {kind}, only with traffic")
            return _film(kind, run, out, trust=trust, episodes=episodes, seed=seed, fps=fps)
    from fastrl.tasks.traffic import render as traffic
    from fastrl.tasks.traffic.run_env import run_env

    outputs = traffic.Outputs(video=out, log=log, time_space=time_space, ages=ages)
    outputs.check()
    settings = read_options(env_options)
    if run is not None:
        simulation, act = run_env(run, settings)
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
        fps=fps or traffic.FPS,
        speed=speed or 1.0,
        view=view,
    )
    simulation.close()
    return 0


def _film(kind: str, run: Path, out: Path | None, *, trust: bool, **options: Any) -> int:
    """Films a run of any task but traffic, which has more to show; options are those of ``films.film``."""
    from fastrl.training.evaluation import BEST
    from fastrl.training.run import load_run, using_checkpoint

    if out is None:
        raise ConfigError("expected --out FILE, such as --out episode.mp4")
    check_video(out)
    # Before there is an environment, which may change the current directory.
    file = out.absolute()
    import_from_here(None, trust=trust)
    task = find(trusted_import("kind", kind, run, trust=trust))
    best = run / "checkpoints" / BEST
    checkpoint = best if best.is_file() else run
    settings, state = load_run(task, checkpoint, trust=trust)
    with (
        contextlib.closing(task.films(settings)) as films,
        Progress("filming", options["episodes"]) as progress,
        using_checkpoint(checkpoint, "holds no policy that this fastrl can use"),
    ):
        count, returns = films.film(state, file, advance=progress.advance, **options)
    shown = ", ".join(f"{each:.6g}" for each in returns)
    print(f"{out}: {count} pictures, {'return' if len(returns) == 1 else 'returns'} {shown}")
    return 0
