"""The command line: ``fastrl train | eval | replay | bench``, and ``fastrl-train`` for the first.

Each command imports what it needs when it runs: PyTorch takes seconds, ``fastrl --help`` should not.
"""

import argparse
import contextlib
import math
import os
import shlex
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastrl.config import (
    ArgumentParser,
    ConfigError,
    Preset,
    UserError,
    Values,
    add_options,
    build,
    check,
    nearest,
    read_arguments,
    read_toml,
    to_toml,
)

if TYPE_CHECKING:
    from fastrl.evaluate import Contender
    from fastrl.summary import PixelSummary, Summary

# Settings of `train` that have a shorter option too.
SHORT = {
    "run.seed": "--seed",
    "run.device": "--device",
    "run.total_steps": "--total-steps",
    "env.num_envs": "--num-envs",
    "env.red_agent": "--red-agent",
    "env.ruleset": "--ruleset",
}
SHORT_PIXELS = {
    "run.seed": "--seed",
    "run.device": "--device",
    "run.total_steps": "--total-steps",
    "env.id": "--env",
    "collect.collectors": "--collectors",
}
ENVIRONMENTS = ("cage2", "pixels")


def main(argv: Sequence[str] | None = None) -> int:
    """The command ``fastrl``.

    Args:
        argv: what follows the command's name; None for that of this process.

    Returns:
        The exit code: 0; 1 for a failure; 2 for a user's mistake; 128 + n where signal n ended it.
    """
    arguments = [str(argument) for argument in (sys.argv[1:] if argv is None else argv)]
    if arguments and arguments[0] in COMMANDS:
        return _run(COMMANDS[arguments[0]][0], f"fastrl {arguments[0]}", arguments[1:])
    return _run(_umbrella, "fastrl", arguments)


def main_train(argv: Sequence[str] | None = None) -> int:
    """The command ``fastrl-train``, which is ``fastrl train``."""
    return _run(train, "fastrl-train", [str(a) for a in (sys.argv[1:] if argv is None else argv)])


def _run(command: Callable[[str, list[str]], int], prog: str, arguments: list[str]) -> int:
    """Runs a command; what a user can do something about ends in one line, not in a traceback."""
    try:
        code = command(prog, arguments)
        sys.stdout.flush()
        return code
    except UserError as error:
        return _fail(prog, error, 2)
    except KeyboardInterrupt:
        return _fail(prog, "interrupted", 128 + signal.SIGINT)
    except BrokenPipeError:
        # Whoever read the output has had enough. Python would complain again when it flushes at the end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except MemoryError as error:
        return _fail(
            prog, f"not enough memory: {error}; a smaller --num-envs or --replay.capacity needs less", 1
        )
    except FloatingPointError as error:
        return _fail(prog, error, 1)
    except OSError as error:
        if error.errno is None:
            raise
        return _fail(prog, f"{error.strerror}{f': {error.filename}' if error.filename else ''}", 1)


def _fail(prog: str, message: object, code: int) -> int:
    print(f"{prog}: error: {message}", file=sys.stderr)
    return code


def _umbrella(prog: str, arguments: list[str]) -> int:
    parser = ArgumentParser(
        prog=prog,
        usage="fastrl [-h] [--version] COMMAND ...",
        description="\n".join(
            [
                "Trains reinforcement-learning agents in compiled simulators.",
                "",
                "commands:",
                *(f"  {name:<8}{description}" for name, (_, description) in COMMANDS.items()),
            ]
        ),
        epilog="fastrl COMMAND --help tells more.",
    )
    parser.add_argument("--version", action="store_true", help="show the version and exit")
    if arguments and not arguments[0].startswith("-"):
        parser.error(f"unknown command {arguments[0]}; did you mean {nearest(arguments[0], COMMANDS)}?")
    if parser.parse_args(arguments).version:
        from fastrl._rust import __version__

        print(f"fastrl {__version__}")
    else:
        parser.print_help()
    return 0


def train(prog: str, arguments: list[str]) -> int:
    """Trains PPO on CAGE Challenge 2, or DQN from pixels."""
    if _kind(arguments) == "pixels":
        return _train_pixels(prog, arguments)
    # Its help tells the defaults of all settings, for which PyTorch has to be there.
    from rich.console import Console

    from fastrl.train import PRESETS, TrainConfig, new_run, resume_run

    parser = ArgumentParser(
        prog=prog,
        usage=f"{prog} cage2 [options]\n       {prog} pixels [options], see {prog} pixels --help"
        f"\n       {prog} --resume RUN [options]",
        description="Trains a defender for CAGE Challenge 2 with PPO.",
        epilog=_settings_epilog(PRESETS, "ppo.gamma"),
    )
    _add_run_options(parser, "cage2")
    parser.add_argument(
        "--total-episodes",
        metavar="INT",
        type=_at_least(1),
        help="instead of --total-steps: that many times env.episode_length",
    )
    add_options(parser, TrainConfig, SHORT)
    options = parser.parse_args(arguments)
    changes = read_arguments(TrainConfig, options, SHORT)
    if options.total_episodes is not None and "run.total_steps" in changes:
        raise ConfigError("--total-steps and --total-episodes say the same thing: give one of them")
    run_dir = None if options.run_dir is None else Path(options.run_dir)
    console = Console()
    if options.resume is not None:
        _check_resume(options, ("preset", "config", "total_episodes"))
        _check_environment(options.environment or "cage2", prog)
        summary = resume_run(Path(options.resume), changes, run_dir, console)
    else:
        _check_environment(options.environment, prog)
        layers = [changes]
        if options.config is not None:
            layers.insert(0, read_toml(TrainConfig, options.config))
        if options.preset is not None:
            layers.insert(0, _preset(TrainConfig, PRESETS, options.preset))
        config = build(TrainConfig, *layers)
        if options.total_episodes is not None:
            steps = options.total_episodes * config.env.episode_length
            config = build(TrainConfig, *layers, {"run.total_steps": steps})
        if options.print_config:
            print(to_toml(config), end="")
            return 0
        summary = new_run(config, run_dir, console)
    if summary.signal is None:
        run = shlex.quote(summary.run)
        _say(console, f"To score it by the challenge's protocol: fastrl eval {run}")
    return _ended(summary, prog, console)


def _train_pixels(prog: str, arguments: list[str]) -> int:
    from rich.console import Console

    from fastrl.pixel_settings import PRESETS, PixelConfig, preset_for
    from fastrl.pixels import new_run, resume_run

    parser = ArgumentParser(
        prog=prog,
        usage=f"{prog} pixels --env ID [options]\n       {prog} --resume RUN [options]",
        description="Trains DQN from pixels: collectors play in processes of their own, one learner learns.\n"
        "Atari (ALE/Pong-v5) needs the extra atari, Mario (SuperMarioBros-v0) the extra mario.",
        epilog=_settings_epilog(PRESETS, "dqn.gamma"),
    )
    _add_run_options(parser, "pixels")
    add_options(parser, PixelConfig, SHORT_PIXELS)
    options = parser.parse_args(arguments)
    changes = read_arguments(PixelConfig, options, SHORT_PIXELS)
    run_dir = None if options.run_dir is None else Path(options.run_dir)
    console = Console()
    if options.resume is not None:
        _check_resume(options, ("preset", "config"))
        summary = resume_run(Path(options.resume), changes, run_dir, console)
        return _ended(summary, prog, console)
    layers = [changes]
    if options.config is not None:
        # A whole file, such as a run's own, has all that a preset would set.
        layers.insert(0, read_toml(PixelConfig, options.config))
    if options.preset is not None:
        layers.insert(0, _preset(PixelConfig, PRESETS, options.preset))
    layers.insert(0, _preset(PixelConfig, PRESETS, preset_for(build(PixelConfig, *layers).env.id)))
    config = build(PixelConfig, *layers)
    if options.print_config:
        print(to_toml(config), end="")
        return 0
    return _ended(new_run(config, run_dir, console), prog, console)


def _kind(arguments: list[str]) -> str:
    """Whether pixels are to be trained on, which says what the other arguments mean; cage2 else."""
    if ENVIRONMENTS[1] in arguments:
        return ENVIRONMENTS[1]
    for name, value in zip(arguments, [*arguments, ""][1:], strict=True):
        option, equals, own = name.partition("=")
        if option == "--resume":
            run = Path(own if equals else value)
            for folder in (run, run.parent, run.parent.parent):
                with contextlib.suppress(OSError):
                    return "pixels" if "\n[dqn]" in (folder / "config.toml").read_text() else "cage2"
    return ENVIRONMENTS[0]


def _add_run_options(parser: ArgumentParser, environment: str) -> None:
    """Those that every kind of run has."""
    parser.add_argument("environment", nargs="?", metavar=environment, help="what to train on")
    parser.add_argument("--preset", metavar="NAME", help="a named set of settings, see below")
    parser.add_argument(
        "--config", metavar="FILE", help="a TOML file of settings, such as a run's config.toml"
    )
    parser.add_argument(
        "--resume", metavar="RUN", help="go on with a run (its directory) or a checkpoint file"
    )
    parser.add_argument(
        "--run-dir", "--out", metavar="DIR", help=f"where the run is written [runs/{environment}-DATE-TIME]"
    )
    parser.add_argument("--print-config", action="store_true", help="print all settings as TOML and exit")


def _settings_epilog(presets: Mapping[str, Preset], key: str) -> str:
    table, _, name = key.partition(".")
    return "\n".join(
        [
            "presets:",
            *(f"  {name}: {preset.description}" for name, preset in presets.items()),
            "",
            "A setting comes from the command line, else from the file, else from the preset, else it is",
            f"the default [in brackets]. What is --{key} here is {name} in the table [{table}] of a file.",
            "Ctrl-C saves a checkpoint and leaves.",
        ]
    )


def _check_resume(options: argparse.Namespace, others: Sequence[str]) -> None:
    for name in others:
        if getattr(options, name) is not None:
            raise ConfigError(
                f"--{name.replace('_', '-')} does not go with --resume, whose run has its settings"
            )


def _check_environment(name: str | None, prog: str) -> None:
    if name is None:
        raise ConfigError(
            f"what should be trained on? CAGE Challenge 2: {prog} cage2; Atari and others: {prog} pixels"
        )
    if name not in ENVIRONMENTS:
        raise ConfigError(f"unknown environment {name}; did you mean {nearest(name, ENVIRONMENTS)}?")


def _preset(config_type: type, presets: Mapping[str, Preset], name: str) -> Values:
    if name not in presets:
        raise ConfigError(f"--preset: unknown preset {name}; did you mean {nearest(name, presets)}?")
    return check(config_type, presets[name].values, f"preset {name}")


def _ended(summary: "Summary | PixelSummary", prog: str, console: Any) -> int:
    """The exit code of a run, and how to go on with one that was interrupted."""
    if summary.signal is None:
        return 0
    _say(console, f"Interrupted; to go on: {prog} --resume {shlex.quote(summary.run)}")
    return 128 + signal.Signals[summary.signal]


def evaluate(prog: str, arguments: list[str]) -> int:
    """Scores defenders by the challenge's protocol."""
    from rich.console import Console

    from fastrl.envs.cage2_blue import BASELINES
    from fastrl.evaluate import HORIZONS, RULESETS, evaluate, score_table
    from fastrl.files import to_json

    parser = ArgumentParser(
        prog=prog,
        description="Scores defenders of CAGE Challenge 2 by its protocol, beside the published scores:\n"
        f"episodes of {', '.join(map(str, HORIZONS))} steps against B_line, Meander and Sleep.",
        epilog=f"baselines: {', '.join(f'baseline:{name}' for name in BASELINES)}",
    )
    parser.add_argument(
        "subjects", nargs="+", metavar="RUN", help="run directory, checkpoint file or baseline"
    )
    parser.add_argument(
        "--episodes", type=_at_least(1), default=1000, metavar="INT", help="of each of the nine kinds [1000]"
    )
    parser.add_argument(
        "--ruleset",
        choices=[*RULESETS, "both"],
        default="both",
        metavar="|".join([*RULESETS, "both"]),
        help="main: today's CybORG; leaderboard: the one that the leaderboard was scored on [both]",
    )
    parser.add_argument("--seed", type=_at_least(0), default=0, metavar="INT", help="of the episodes [0]")
    parser.add_argument(
        "--stochastic",
        action="store_true",
        help="draw actions from the policy instead of taking the likeliest",
    )
    parser.add_argument(
        "--device", choices=["cpu", "cuda"], default="cpu", metavar="cpu|cuda", help="for the network [cpu]"
    )
    parser.add_argument("--json", action="store_true", help="print the results as JSON and nothing else")
    options = parser.parse_args(arguments)
    contenders = [_contender(name, options) for name in options.subjects]
    rulesets = RULESETS if options.ruleset == "both" else [options.ruleset]
    console = Console()
    evaluations = []
    for contender in contenders:
        for ruleset in rulesets:
            evaluation = evaluate(contender, ruleset=ruleset, episodes=options.episodes, seed=options.seed)
            evaluations.append(evaluation)
            if not options.json:
                console.print(score_table(evaluation))
                console.print()
    if options.json:
        print(to_json([evaluation.to_tree() for evaluation in evaluations], indent=2))
    return 0


def _contender(name: str, options: argparse.Namespace) -> "Contender":
    from fastrl.envs.cage2_blue import BASELINES
    from fastrl.evaluate import of_baseline, of_policy

    if name.startswith("baseline:"):
        baseline = name.removeprefix("baseline:")
        if baseline not in BASELINES:
            raise ConfigError(f"unknown baseline {baseline}; did you mean {nearest(baseline, BASELINES)}?")
        return of_baseline(baseline)
    from fastrl.policy import load_policy

    policy = load_policy(name, device=options.device, seed=options.seed)
    return of_policy(policy, name, deterministic=not options.stochastic)


def replay(prog: str, arguments: list[str]) -> int:
    """Checks the simulator against traces of the real CybORG."""
    from rich.console import Console
    from rich.table import Table

    from fastrl.envs.cage2_traces import replay_files

    parser = ArgumentParser(
        prog=prog,
        description="Replays traces of the real CybORG, from the recorded decisions and from nothing but\n"
        "the seed, and counts the steps in which the simulator differs.",
        epilog="Exit code: 0 if nothing differs, 1 if something does, 2 if a file could not be replayed.",
    )
    parser.add_argument("files", nargs="+", metavar="FILE", help="a trace, .npz")
    reports = list(replay_files(parser.parse_args(arguments).files))
    good = [report for report in reports if report.error is None]
    if good:
        folder = os.path.commonpath([Path(report.file).parent for report in good]) or "."
        columns = [
            ("steps", [report.steps for report in good]),
            ("differ", [report.mismatches for report in good]),
            ("from seed", [report.seed_steps for report in good]),
            ("differ", [report.seed_mismatches for report in good]),
        ]
        table = Table(title=f"traces in {folder}", title_justify="left", title_style="bold", show_footer=True)
        table.add_column("trace", "total", overflow="fold")
        for name, numbers in columns:
            table.add_column(name, f"{sum(numbers):,}", justify="right", no_wrap=True)
        for report, *row in zip(good, *(numbers for _, numbers in columns), strict=True):
            name = os.path.relpath(report.file, folder)
            table.add_row(name, *(f"{number:,}" for number in row), style=None if report.ok else "red")
        Console().print(table)
    for report in good:
        if report.first_difference is not None:
            print(f"{report.file}: {report.first_difference}")
    for report in reports:
        if report.error is not None:
            _fail(prog, f"{report.file}: {report.error}", 2)
    return 2 if len(good) < len(reports) else int(not all(report.ok for report in good))


def bench(prog: str, arguments: list[str]) -> int:
    """Measures on this machine: the simulator's speed, or the pixel pipeline beside others."""
    if arguments and arguments[0] == "pixels":
        return _bench_pixels(f"{prog} pixels", arguments[1:])
    if arguments and arguments[0] == "cage2":
        arguments = arguments[1:]
    from dataclasses import asdict

    from rich.console import Console

    from fastrl.bench import SIZES, measure, speed_table
    from fastrl.files import to_json

    parser = ArgumentParser(
        prog=prog,
        usage=f"{prog} [cage2] [options]\n       {prog} pixels [options], see {prog} pixels --help",
        description="Measures how many steps a second the simulator makes, on one thread and on all cores.",
    )
    parser.add_argument(
        "--seconds", type=_positive, default=1.0, metavar="FLOAT", help="for each measurement [1]"
    )
    parser.add_argument("--json", action="store_true", help="print the results as JSON and nothing else")
    options = parser.parse_args(arguments)
    # One game cannot be shared out.
    cases = [(num_envs, threads) for num_envs in SIZES for threads in ((1, 0) if num_envs > 1 else (1,))]
    speeds = [measure(num_envs, threads, options.seconds) for num_envs, threads in cases]
    if options.json:
        print(to_json([asdict(speed) for speed in speeds], indent=2))
    else:
        Console().print(speed_table(speeds))
    return 0


def _bench_pixels(prog: str, arguments: list[str]) -> int:
    from dataclasses import asdict

    from rich.console import Console

    from fastrl.bench_pixels import compare, flow_table
    from fastrl.files import to_json
    from fastrl.pixel_settings import BENCH, PRESETS, PixelConfig, preset_for

    parser = ArgumentParser(
        prog=prog,
        description="Compares the pixel pipeline with the same learner fed by multiprocessing.Queue, by a lock\n"
        "around one buffer, and with collectors that hand over nothing, in turns.",
        epilog="Every setting of fastrl train pixels can be given; actions are random unless\n"
        "--dqn.epsilon says otherwise, so that collectors are as fast as their games.",
    )
    parser.add_argument(
        "--seconds", type=_positive, default=5.0, metavar="FLOAT", help="of each measurement [5]"
    )
    parser.add_argument("--rounds", type=_at_least(1), default=3, metavar="INT", help="of all four [3]")
    parser.add_argument("--json", action="store_true", help="print the results as JSON and nothing else")
    add_options(parser, PixelConfig, SHORT_PIXELS)
    options = parser.parse_args(arguments)
    changes = read_arguments(PixelConfig, options, SHORT_PIXELS)
    layers = [check(PixelConfig, BENCH, "bench"), changes]
    env_id = build(PixelConfig, *layers).env.id
    if env_id != BENCH["env"]["id"]:
        layers[0] = _preset(PixelConfig, PRESETS, preset_for(env_id)) | {
            key: value for key, value in layers[0].items() if not key.startswith("env.")
        }
    config = build(PixelConfig, *layers)
    try:
        flows = compare(config, options.seconds, options.rounds)
    except (ValueError, ImportError, TypeError) as error:
        raise ConfigError(str(error)) from error
    if options.json:
        print(to_json([asdict(flow) for flow in flows], indent=2))
    else:
        Console().print(flow_table(flows, config))
    return 0


def _at_least(least: int) -> Callable[[str], int]:
    """A type for argparse: integers from ``least`` on."""

    def convert(text: str) -> int:
        try:
            number = float(text) if "e" in text.lower() else int(text)
        except ValueError:
            number = math.nan
        if not number >= least or number != int(number):
            raise argparse.ArgumentTypeError(f"should be an integer of at least {least}, got {text!r}")
        return int(number)

    return convert


def _positive(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"should be a number above 0, got {text!r}")
    return number


def _say(console: Any, line: str) -> None:
    console.print(f"\n{line}", highlight=False, soft_wrap=True, markup=False)


COMMANDS: dict[str, tuple[Callable[[str, list[str]], int], str]] = {
    "train": (train, "train a defender for CAGE Challenge 2, or a player from pixels"),
    "eval": (evaluate, "score runs, checkpoints or baselines by the challenge's protocol"),
    "replay": (replay, "check the simulator against traces of the real CybORG"),
    "bench": (bench, "measure the simulator's speed, or the pixel pipeline, on this machine"),
}
