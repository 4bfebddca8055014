"""The command ``fastrl pipeline``: record an expert, clone it, improve the clone."""

import shlex
from pathlib import Path

from fastrl.cli.arguments import at_least, import_from_here, path, path_text, seed
from fastrl.cli.demos_record import workers
from fastrl.utils.command_line import ArgumentParser
from fastrl.utils.config import ConfigError
from fastrl.utils.output import plain_console
from fastrl.utils.progress import Progress, load_torch
from fastrl.utils.tables import print_lines


def pipeline(prog: str, arguments: list[str]) -> int:
    """Runs the command."""
    parser = ArgumentParser(
        prog=prog,
        description="Records episodes of an expert, clones it, and improves the clone by reinforcement learning; then a"
        " report of time, memory and returns by stage. The same command again resumes what was interrupted and skips"
        " what is complete.",
        epilog=f"{prog} HalfCheetah-v5 --expert runs/cheetah --episodes 100 --epochs 50 --timesteps 500000\n"
        f"{prog} cage2 --expert baseline:react-restore --timesteps 5e6 --train ppo.critic-warmup=500000\n"
        f"{prog} CartPole-v1 --expert my_module:expert --skip agent",
    )
    parser.add_argument(
        "env",
        type=path_text,
        metavar="ENV",
        help="an environment's id, module:function, or a task such as cage2",
    )
    parser.add_argument(
        "--expert", required=True, type=path_text, metavar="X", help="as of fastrl demos record --expert"
    )
    parser.add_argument("--episodes", type=at_least(2), default=100, metavar="INT", help="to record [100]")
    parser.add_argument("--epochs", type=at_least(1), default=50, metavar="INT", help="of cloning [50]")
    parser.add_argument(
        "--timesteps",
        type=_steps,
        default=500_000,
        metavar="INT",
        help="environment steps of reinforcement learning [500000]",
    )
    parser.add_argument("--algo", default="ppo", metavar="NAME", help="that improves the clone [ppo]")
    parser.add_argument(
        "--out", type=path, metavar="DIR", help="directory of the results [runs/ENV-pipeline]"
    )
    parser.add_argument(
        "--skip",
        type=_stages,
        default=frozenset(),
        metavar="STAGE,...",
        help="leave out stages: demos, clone, agent",
    )
    parser.add_argument("--seed", type=seed, default=0, metavar="INT", help="of all stages [0]")
    parser.add_argument(
        "--n-workers",
        type=workers,
        default="auto",
        metavar="INT|auto",
        help="of recording and training [auto]",
    )
    parser.add_argument(
        "--noise", type=float, default=0.0, metavar="FLOAT", help="on the expert's actions [0]"
    )
    parser.add_argument(
        "--stochastic",
        action="store_true",
        help="an expert that is a run draws its actions, so that the clone explores as it does",
    )
    parser.add_argument(
        "--clone",
        nargs="+",
        default=[],
        metavar="KEY=VALUE",
        help="settings of cloning, such as bc.learning-rate=3e-4 demos.top=0.5",
    )
    parser.add_argument(
        "--train",
        nargs="+",
        default=[],
        metavar="KEY=VALUE",
        help="settings of reinforcement learning, such as ppo.critic-warmup=50000",
    )
    parser.add_argument("--no-compare", action="store_true", help="do not measure slices with one worker")
    parser.add_argument("--trust", action="store_true", help="let the expert's file run code")
    options = parser.parse_args(arguments)
    import_from_here(options.env, trust=options.trust)
    import_from_here(options.expert)
    load_torch(arguments)
    from fastrl.demos.pipeline import Settings, print_report, run_pipeline

    name = options.env.replace("/", "-").replace(":", "-")
    settings = Settings(
        env=options.env,
        expert=options.expert,
        episodes=options.episodes,
        epochs=options.epochs,
        timesteps=options.timesteps,
        algo=options.algo,
        out=options.out or Path("runs", f"{name}-pipeline"),
        seed=options.seed,
        n_workers=options.n_workers,
        skip=options.skip,
        record_options={
            "noise": options.noise,
            "deterministic": not options.stochastic,
            "trust": options.trust,
        },
        clone_options=[_option(each) for each in options.clone],
        agent_options=[_option(each) for each in options.train],
        compare=not options.no_compare,
    )
    console = plain_console()
    again = f"{prog} {shlex.join(arguments)}"
    try:
        outcome = run_pipeline(
            settings, console, lambda episodes: Progress("recording", episodes, plain_console(stderr=True))
        )
    except KeyboardInterrupt:
        print_lines(console, "", f"Interrupted; to resume: {again}")
        raise
    print_lines(console, "")
    print_report(outcome.reports, console)
    if outcome.stopped_by:
        print_lines(console, "", f"To resume: {again}")
    else:
        print_lines(console, "", f"Results, {settings.out}: demos, clone, agent, report.json, pipeline.png")
    return outcome.stopped_by


def _option(text: str) -> str:
    """An option of ``fastrl train`` from KEY=VALUE.

    Raises:
        ConfigError: another form.
    """
    key, equals, _ = text.partition("=")
    if not equals or not key or key.startswith("-"):
        raise ConfigError(f"{text!r} should be KEY=VALUE, such as ppo.learning-rate=1e-4")
    return f"--{text}"


def _stages(text: str) -> frozenset[str]:
    import argparse

    names = frozenset(filter(None, text.split(",")))
    if wrong := names - {"demos", "clone", "agent"}:
        raise argparse.ArgumentTypeError(
            f"should be of demos, clone and agent, got {', '.join(sorted(wrong))}"
        )
    return names


def _steps(text: str) -> int:
    """A number of steps, also as 5e6."""
    import argparse

    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not (number >= 1 and number == int(number)):
        raise argparse.ArgumentTypeError(f"should be an integer from 1 on, got {text!r}")
    return int(number)
