"""The command ``fastrl render``."""

import argparse
import contextlib
from typing import Any

from fastrl.cli.arguments import at_least, import_from_here, path, positive, seed
from fastrl.tasks import find, load_saved
from fastrl.utils.command_line import ArgumentParser
from fastrl.utils.config import ConfigError
from fastrl.utils.env_options import read_options
from fastrl.utils.progress import Progress, load_torch
from fastrl.utils.trust import trusted_import
from fastrl.utils.video import check_video


def render(prog: str, arguments: list[str]) -> int:
    """Films episodes of a run; of traffic also writes a log or a diagram."""
    parser = ArgumentParser(
        prog=prog,
        usage=f"{prog} RUN [options]\n       {prog} --env ID [--policy idle|random] [options]",
        description="Films episodes of a run, without exploration; its environment should have the render mode"
        " rgb_array. Traffic is also shown as a log of all trajectories, or as a diagram of time and space, radio"
        " links as one of ages. RUN is a"
        " run directory, of which the best policy acts, or a checkpoint file.",
        epilog=f"{prog} runs/merge --out episode.mp4 --log trajectory.npz\n"
        f"{prog} --env fastrl/ring-v0 --env-options drive=humans --time-space diagram.png",
    )
    parser.add_argument(
        "run",
        nargs="?",
        type=path,
        metavar="RUN",
        help="a run directory, or a checkpoint file",
    )
    parser.add_argument(
        "--env",
        metavar="ID",
        help="traffic without a run: fastrl/highway-v0, fastrl/coop-merge-v0, ...",
    )
    parser.add_argument(
        "--policy",
        choices=("idle", "random"),
        metavar="idle|random",
        help="how the agents drive without a run: no change, or random actions [idle]",
    )
    parser.add_argument(
        "--env-options",
        nargs="+",
        default=[],
        metavar="KEY=VALUE",
        help="options of the environment, such as num_agents=4",
    )
    parser.add_argument("--out", type=path, metavar="FILE", help="the film, .mp4 or .gif")
    parser.add_argument("--log", type=path, metavar="FILE", help="the trajectories, .npz")
    parser.add_argument(
        "--time-space", type=path, metavar="FILE", help="the diagram of the first episode, .png"
    )
    parser.add_argument(
        "--ages",
        type=path,
        metavar="FILE",
        help="traffic with radio links: the age of information over the first episode, .png",
    )
    parser.add_argument(
        "--episodes", type=at_least(1), default=1, metavar="INT", help="number of episodes [1]"
    )
    parser.add_argument("--seed", type=seed, default=0, metavar="INT", help="seed of the episodes [0]")
    parser.add_argument(
        "--fps",
        type=positive,
        metavar="FLOAT",
        help="pictures per second of the film [the environment's, or 25]",
    )
    parser.add_argument(
        "--speed",
        type=positive,
        metavar="FLOAT",
        help="traffic: speed of the film, in multiples of real time [1]",
    )
    parser.add_argument(
        "--size",
        type=_size,
        metavar="WxH",
        help="traffic: width and height of the pictures, pixels [the environment's]",
    )
    parser.add_argument(
        "--scaling", type=positive, metavar="FLOAT", help="traffic: greatest number of pixels per metre [5.5]"
    )
    parser.add_argument(
        "--trust", action="store_true", help="let the run import code, as its checkpoint says"
    )
    options = parser.parse_args(arguments)
    if options.fps is not None and options.fps < 0.01:
        raise ConfigError(f"--fps should be at least 0.01, got {options.fps:g}")
    if (options.run is None) == (options.env is None):
        raise ConfigError("expected either a run or --env ID")
    if options.run is not None and options.policy is not None:
        raise ConfigError("--policy does not go with a run, which has its own")
    if options.run is not None:
        load_torch(arguments)
        kind, _ = load_saved(options.run)
        if kind != "traffic":
            return _film(options, kind)
    from fastrl.tasks.traffic.render import Outputs, make_env, render, scripted
    from fastrl.tasks.traffic.run_env import run_env

    outputs = Outputs(video=options.out, log=options.log, time_space=options.time_space, ages=options.ages)
    outputs.check()
    env_options = read_options(options.env_options)
    if options.run is not None:
        env, act = run_env(options.run, env_options)
        title = f"{env.name}, run {options.run}"
    else:
        env = make_env(options.env, env_options)
        policy = options.policy or "idle"
        act = scripted(policy, env, options.seed)
        # With another driver of the agents' vehicles the policy has no effect.
        driven = env_options.get("drive", "agents") == "agents"
        title = ", ".join([env.name, *options.env_options, *([policy] if driven else [])])
    view: dict[str, Any] = {} if options.scaling is None else {"scaling": options.scaling}
    if options.size is not None:
        view["screen_width"], view["screen_height"] = options.size
    render(
        env,
        act,
        outputs,
        title=title,
        episodes=options.episodes,
        seed=options.seed,
        fps=25.0 if options.fps is None else options.fps,
        speed=options.speed or 1.0,
        view=view,
    )
    env.close()
    return 0


def _film(options: argparse.Namespace, kind: str) -> int:
    """Films a run of any task but traffic, which has more to show."""
    from fastrl.training.evaluation import BEST
    from fastrl.training.run import load_run, using_checkpoint

    for name in ("log", "time_space", "ages", "speed", "size", "scaling", "env_options"):
        if getattr(options, name):
            raise ConfigError(
                f"--{name.replace('_', '-')} does not go with a run of {kind}, only with traffic"
            )
    if options.out is None:
        raise ConfigError("expected --out FILE, such as --out episode.mp4")
    check_video(options.out)
    # Before there is an environment, which may change the current directory.
    out = options.out.absolute()
    import_from_here(None, trust=options.trust)
    task = find(trusted_import("kind", kind, options.run, trust=options.trust))
    best = options.run / "checkpoints" / BEST
    file = best if best.is_file() else options.run
    settings, state = load_run(task, file, trust=options.trust)
    with (
        contextlib.closing(task.films(settings)) as films,
        Progress("filming", options.episodes) as progress,
        using_checkpoint(file, "holds no policy that this fastrl can use"),
    ):
        count, returns = films.film(
            state,
            out,
            episodes=options.episodes,
            seed=options.seed,
            fps=options.fps,
            advance=progress.advance,
        )
    shown = ", ".join(f"{each:.6g}" for each in returns)
    print(f"{options.out}: {count} pictures, {'return' if len(returns) == 1 else 'returns'} {shown}")
    return 0


def _size(text: str) -> tuple[int, int]:
    width, _, height = text.partition("x")
    if not (
        width.isdecimal() and height.isdecimal() and 16 <= int(width) <= 8192 and 16 <= int(height) <= 8192
    ):
        raise argparse.ArgumentTypeError(
            f"should be two numbers from 16 to 8192 such as 600x150, got {text!r}"
        )
    return int(width), int(height)
