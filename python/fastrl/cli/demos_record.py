"""The commands ``fastrl demos record`` and ``fastrl demos replay``."""

import argparse
import math

from fastrl.cli.arguments import at_least, import_from_here, path, path_text, positive, seed
from fastrl.tasks import with_experts
from fastrl.utils.command_line import ArgumentParser
from fastrl.utils.env_options import read_options
from fastrl.utils.output import plain_console
from fastrl.utils.progress import Progress, load_torch
from fastrl.utils.tables import print_lines


def record(prog: str, arguments: list[str]) -> int:
    """Records episodes of an expert."""
    scripted = "; ".join(f"{folder.EXPERTS}: {folder.EXPERT_NAMES}" for folder in with_experts())
    parser = ArgumentParser(
        prog=prog,
        description="Records episodes of an expert. Episode i follows from the seed and i: the files are the same from"
        " any collector and any number of workers, and --resume continues to the same files.",
        epilog=f"{prog} CartPole-v1 --expert runs/cart --episodes 100 --out demos/cart\n"
        f"{prog} fastrl/Cage2-v0 --env-options red_agent=bline --expert baseline:react-restore --episodes 1000\n"
        f"    --out demos/cage2 --noise 0.1\n"
        f"{prog} my_module:make_env --expert my_module:expert --episodes 10 --out demos/mine",
    )
    parser.add_argument(
        "env",
        nargs="?",
        type=path_text,
        metavar="ENV",
        help="an environment's id, module:function, or a task such as cage2; left out: that of the expert's run",
    )
    parser.add_argument(
        "--env-options",
        nargs="+",
        default=[],
        metavar="KEY=VALUE",
        help="options of the environment, such as red_agent=bline",
    )
    parser.add_argument(
        "--expert",
        required=True,
        type=path_text,
        metavar="X",
        help=f"a run directory or checkpoint file; {scripted}; random; a zip file of Stable-Baselines3; or"
        " module:function, from an observation, of many agents also the agent's name, to an action",
    )
    parser.add_argument(
        "--episodes", required=True, type=at_least(1), metavar="INT", help="number of episodes"
    )
    parser.add_argument(
        "--out", required=True, type=path, metavar="DIR", help="directory of the data set, new or empty"
    )
    parser.add_argument(
        "--resume",
        action="store_true",
        help="continue a recording that was interrupted, or add episodes up to --episodes",
    )
    parser.add_argument(
        "--noise",
        type=_noise,
        default=0.0,
        metavar="FLOAT",
        help="noise on the actions; the expert's own are stored beside those taken [0]",
    )
    parser.add_argument(
        "--noise-kind",
        choices=("epsilon", "gaussian"),
        metavar="epsilon|gaussian",
        help="epsilon: share of steps with a random action; gaussian: standard deviation, as a share of half the"
        " range of the actions [gaussian for numbers, else epsilon]",
    )
    parser.add_argument(
        "--stochastic",
        action="store_true",
        help="a run's policy draws its actions; otherwise it takes the likeliest",
    )
    parser.add_argument("--seed", type=seed, default=0, metavar="INT", help="fixes all episodes [0]")
    parser.add_argument(
        "--max-episode-steps",
        type=at_least(0),
        default=0,
        metavar="INT",
        help="longer episodes are truncated [the environment's limit, else 1000]",
    )
    parser.add_argument(
        "--infos",
        nargs="+",
        default=[],
        metavar="KEY",
        help="keys of infos to record, whose values are numbers or arrays; all: every such key; of many agents"
        " action_mask alone",
    )
    parser.add_argument(
        "--collector",
        choices=("auto", "sequential", "sync", "executor", "native", "ray"),
        default="auto",
        metavar="auto|sequential|sync|executor|native|ray",
        help="sequential: in this process; sync: processes that step together; executor: processes that each run at"
        " their own pace; native: threads, for fastrl's compiled environments; ray: Ray actors [auto]",
    )
    parser.add_argument(
        "--n-workers", type=workers, default="auto", metavar="INT|auto", help="processes or threads [auto]"
    )
    parser.add_argument(
        "--task-timeout",
        type=positive,
        metavar="FLOAT",
        help="seconds after which a worker that does not answer is replaced [300]",
    )
    parser.add_argument("--ray-address", metavar="ADDRESS", help="of a running Ray cluster [start Ray here]")
    parser.add_argument(
        "--trust",
        action="store_true",
        help="let the expert's file run code, as a model of Stable-Baselines3 does",
    )
    options = parser.parse_args(arguments)
    import_from_here(options.env, trust=options.trust)
    import_from_here(options.expert)
    load_torch(arguments)
    from fastrl.demos.recorder import record as record_episodes

    console = plain_console(stderr=True)
    further = {
        name: value
        for name in ("task_timeout", "ray_address")
        if (value := getattr(options, name)) is not None
    }
    with Progress("recording", options.episodes, console) as progress:
        demos = record_episodes(
            options.env,
            options.expert,
            options.episodes,
            options.out,
            env_options=read_options(options.env_options),
            noise=options.noise,
            noise_kind=options.noise_kind,
            seed=options.seed,
            deterministic=not options.stochastic,
            max_episode_steps=options.max_episode_steps,
            infos=tuple(options.infos),
            collector=options.collector,
            n_workers=options.n_workers,
            resume=options.resume,
            trust=options.trust,
            advance=progress.advance,
            log=lambda line: print_lines(console, line),
            **further,
        )
    returns = demos.returns
    print(
        f"{options.out}: {len(demos):,} episodes, {demos.num_steps:,} steps, mean return {returns.mean():.6g},"
        f" from {returns.min():.6g} to {returns.max():.6g}"
    )
    return 0


def replay(prog: str, arguments: list[str]) -> int:
    """Plays the actions of a data set again."""
    parser = ArgumentParser(
        prog=prog,
        description="Plays the stored actions again and says whether observations, rewards and ends agree to the bit."
        " The exit code is 1 if they do not.",
    )
    parser.add_argument("dir", type=path, metavar="DIR", help="a data set")
    parser.add_argument(
        "--episodes", type=at_least(1), metavar="INT", help="so many, evenly chosen of all [all]"
    )
    parser.add_argument(
        "--env", metavar="ID", help="the environment, which may import code then [that of the data set]"
    )
    parser.add_argument(
        "--trust", action="store_true", help="let the data set's environment import code, as it says"
    )
    options = parser.parse_args(arguments)
    import_from_here(options.env, trust=options.trust)
    from fastrl.demos.replaying import replay as replay_episodes

    with Progress("replaying", None) as progress:
        report = replay_episodes(
            options.dir,
            episodes=options.episodes,
            env=options.env,
            trust=options.trust,
            advance=progress.advance,
        )
    print("\n".join(report.lines()))
    return 0 if report.agrees else 1


def _noise(text: str) -> float:
    """Converts an argument to a number from 0 on."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 <= number < math.inf:
        raise argparse.ArgumentTypeError(f"should be a number from 0 on, got {text!r}")
    return number


def workers(text: str) -> int | str:
    """Converts an argument to a number of workers, or "auto"."""
    return text if text == "auto" else at_least(1)(text)
