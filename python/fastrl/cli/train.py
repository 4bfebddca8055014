"""The command ``fastrl train``: a function for each kind of run, and what they have in common."""

import argparse
import contextlib
import difflib
import math
import re
import shlex
import signal
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from fastrl.training.run_directory import never_saved
from fastrl.utils.command_line import ArgumentParser, add_options, read_arguments
from fastrl.utils.config import (
    ConfigError,
    Preset,
    Values,
    brief,
    build,
    check,
    leaves,
    read_toml,
    to_toml,
)
from fastrl.utils.output import ignoring_write_errors, plain_console
from fastrl.utils.progress import load_torch
from fastrl.utils.trust import refuse_reach, trust_option

if TYPE_CHECKING:
    from fastrl.tasks.summary import GymSummary, PixelSummary, Summary, TrafficSummary, WorkflowSummary

    AnySummary = Summary | GymSummary | PixelSummary | TrafficSummary | WorkflowSummary

ENVIRONMENTS = {
    "cage2": "a defender for CAGE Challenge 2, with PPO",
    "cage2-workflow": "a defender that repairs by an order of priority; searches for the best order",
    "gym": "any environment of Gymnasium, with PPO, asynchronous PPO or IMPALA",
    "pixels": "Atari, Mario and others that show images, with DQN",
    "traffic": "vehicles that drive together, with independent PPO, MAPPO or REINFORCE",
}
# The kind of run that an algorithm belongs to; "ppo" belongs to several.
_ALGORITHMS = {
    "dqn": "pixels",
    "async-ppo": "gym",
    "impala": "gym",
    "ippo": "traffic",
    "mappo": "traffic",
    "reinforce": "traffic",
}
# Tables that only one kind of run has in its settings.
_TABLES = {"search": "cage2-workflow", "dqn": "pixels", "curriculum": "traffic", "impala": "gym"}

# Options without a value; a bare -- ends the options.
_FLAGS = {"--", "--help", "--print-config", "--profile", "--trust"}


def train(prog: str, arguments: list[str]) -> int:
    """Trains PPO on CAGE Challenge 2, PPO or IMPALA on any environment, DQN from pixels, or agents in traffic."""
    kinds = {
        "cage2": _train_cage2,
        "cage2-workflow": _train_workflow,
        "gym": _train_gym,
        "pixels": _train_pixels,
        "traffic": _train_traffic,
    }
    kind = _kind(arguments)
    if kind is None:
        _without_kind(prog, arguments)
    load_torch(arguments)
    return kinds[kind](prog, arguments)


def _without_kind(prog: str, arguments: list[str]) -> NoReturn:
    """Prints the help, or refuses arguments that do not name a kind of run and proposes one."""
    if arguments and not {"-h", "--help"} & set(arguments):
        named = arguments[0] if not arguments[0].startswith("-") else None
        if named is None:
            named = _value_of("--env", arguments)
            algorithm = _ALGORITHMS.get(_value_of("--algorithm", arguments) or "")
            if algorithm is not None and named is None:
                raise ConfigError(f"name the kind of run; did you mean {prog} {algorithm}?")
        if named is not None and (likely := command_for(named)) is not None:
            raise ConfigError(f"name the kind of run; did you mean {prog} {likely}?")
        _check_environment(arguments[0] if not arguments[0].startswith("-") else None)
        raise ConfigError(
            f"name the kind of run, one of {', '.join(ENVIRONMENTS)}; {prog} --help says what they are"
        )
    width = max(map(len, ENVIRONMENTS))
    parser = ArgumentParser(
        prog=prog,
        usage=f"{prog} KIND [options]\n       {prog} --resume RUN [options]",
        description="\n".join(
            [
                "Trains agents, or goes on with a run.",
                "",
                "kinds of runs:",
                *(f"  {name:<{width}}  {what}" for name, what in ENVIRONMENTS.items()),
            ]
        ),
        epilog=f"{prog} KIND --help lists the settings and presets of a kind. Examples:\n"
        f"  {prog} cage2 --preset smoke\n"
        f"  {prog} gym --env CartPole-v1 --preset smoke\n"
        f"  {prog} pixels --env fastrl/Catch-v0\n"
        f"  {prog} traffic --preset fast",
    )
    _add_run_options(parser, "KIND")
    parser.print_help()
    parser.exit()


def _value_of(option: str, arguments: list[str]) -> str | None:
    """The value that follows an option, or its ``=``; None without the option."""
    for name, value in zip(arguments, [*arguments, ""][1:], strict=True):
        if name == option:
            return value
        if name.startswith(f"{option}="):
            return name.removeprefix(f"{option}=")
    return None


def command_for(env_id: str) -> str | None:
    """The kind and option that train on an environment, such as ``gym --env CartPole-v1``; None for other words."""
    import gymnasium

    from fastrl.envs.registration import MULTI_AGENT_IDS

    if env_id in ("fastrl/Cage2-v0", "fastrl/Cage2Workflow-v0"):
        return "cage2" if env_id == "fastrl/Cage2-v0" else "cage2-workflow"
    if env_id in MULTI_AGENT_IDS:
        return f"traffic --env {env_id}"
    if env_id.startswith(("ALE/", "SuperMarioBros", "fastrl/Catch")) or "NoFrameskip" in env_id:
        return f"pixels --env {env_id}"
    versioned = re.search(r"-v\d+$", env_id) is not None
    return f"gym --env {env_id}" if versioned or ":" in env_id or env_id in gymnasium.registry else None


def _check_environment(name: str | None) -> None:
    if name is not None and name not in ENVIRONMENTS:
        raise ConfigError(f"unknown kind of run {name}; {_hint(name, ENVIRONMENTS)}")


def _hint(name: str, known: Collection[str]) -> str:
    """The known name that is likely meant, or all of them."""
    likely = difflib.get_close_matches(name, known, 1)
    return f"did you mean {likely[0]}?" if likely else f"there are {', '.join(known)}"


def _with_environment(changes: Values, options: argparse.Namespace) -> Values:
    """The settings that were given, with the environment that was named without ``--env``.

    Raises:
        ConfigError: two environments were named.
    """
    if options.env_id is None:
        return changes
    if changes.get("env.id", options.env_id) != options.env_id:
        raise ConfigError(f"two environments: {options.env_id} and --env {changes['env.id']}; name one")
    return changes | {"env.id": options.env_id}


def _check_algorithm(prog: str, kind: str, options: argparse.Namespace) -> None:
    """Refuses the algorithm of another kind of run, and names that kind."""
    name = vars(options).get("run.algorithm")
    other = _ALGORITHMS.get(name or "", kind)
    if other != kind:
        raise ConfigError(f"--algorithm {name} belongs to {prog} {other}: {ENVIRONMENTS[other]}")


def _train_cage2(prog: str, arguments: list[str]) -> int:
    # Its help tells the defaults of all settings, for which PyTorch has to be there.
    from fastrl.tasks.cage2.run import PRESETS, TrainConfig, new_run, resume_run

    parser = ArgumentParser(
        prog=prog,
        usage=f"{prog} cage2 [options]\n       {prog} --resume RUN [options]",
        description="Trains a defender for CAGE Challenge 2 with PPO.",
        epilog=_settings_epilog(PRESETS, "ppo.gamma"),
    )
    _add_run_options(parser, "cage2")
    parser.add_argument(
        "--total-episodes",
        metavar="INT",
        type=at_least(1),
        help="episodes in all, instead of --total-steps",
    )
    add_options(parser, TrainConfig)
    options = parser.parse_args(arguments)
    changes = read_arguments(TrainConfig, options)
    if options.total_episodes is not None and "run.total_steps" in changes:
        raise ConfigError("--total-steps and --total-episodes say the same thing: give one of them")

    def settings() -> TrainConfig:
        layers = _layers(TrainConfig, PRESETS, options, changes)
        config = build(TrainConfig, *layers)
        if options.total_episodes is not None:
            steps = options.total_episodes * config.env.episode_length
            config = build(TrainConfig, *layers, {"run.total_steps": steps})
        return config

    score = "score it by the challenge's protocol"
    run = Run(TrainConfig, settings, new_run, resume_run, ("total_episodes",), score=score)
    return _do(run, changes, options, prog)


def _train_gym(prog: str, arguments: list[str]) -> int:
    from fastrl.tasks.gym.run import new_run, resume_run
    from fastrl.tasks.gym.settings import PRESETS, GymConfig, presets_for

    parser = ArgumentParser(
        prog=prog,
        usage=f"{prog} gym --env ID [options]\n       {prog} --resume RUN [options]",
        description="Trains on any environment of Gymnasium, such as\n"
        f"  {prog} gym --env CartPole-v1 --collect executor --algorithm ppo --n-workers auto",
        epilog=_settings_epilog(PRESETS, "ppo.gamma", begins=True),
    )
    _add_run_options(parser, "gym")
    _add_environment(parser)
    add_options(parser, GymConfig)
    options = parser.parse_args(arguments)
    _check_algorithm(prog, "gym", options)
    changes = _with_environment(read_arguments(GymConfig, options), options)

    def settings() -> GymConfig:
        layers = _layers(GymConfig, PRESETS, options, changes)
        names = presets_for(build(GymConfig, *layers).env.id)
        return build(GymConfig, *(preset(GymConfig, PRESETS, name) for name in names), *layers)

    run = Run(
        GymConfig,
        settings,
        new_run,
        resume_run,
        score="score it on new episodes",
    )
    return _do(run, changes, options, prog)


def _train_workflow(prog: str, arguments: list[str]) -> int:
    from fastrl.tasks.workflow.run import new_run, resume_run
    from fastrl.tasks.workflow.settings import PRESETS, WorkflowConfig

    parser = ArgumentParser(
        prog=prog,
        usage=f"{prog} cage2-workflow [options]\n       {prog} --resume RUN [options]",
        description="Searches CAGE Challenge 2 for the best workflow: the order of priority among five types of units"
        " by which a defender defends best.",
        epilog=_settings_epilog(PRESETS, "inner.gamma"),
    )
    _add_run_options(parser, "cage2-workflow")
    add_options(parser, WorkflowConfig)
    options = parser.parse_args(arguments)
    changes = read_arguments(WorkflowConfig, options)

    def settings() -> WorkflowConfig:
        return build(WorkflowConfig, *_layers(WorkflowConfig, PRESETS, options, changes))

    score = "score its best policy by the challenge's protocol"
    return _do(
        Run(WorkflowConfig, settings, new_run, resume_run, score=score, longer=None),
        changes,
        options,
        prog,
    )


def _train_pixels(prog: str, arguments: list[str]) -> int:
    from fastrl.tasks.pixels.run import new_run, resume_run
    from fastrl.tasks.pixels.settings import PRESETS, PixelConfig, preset_for

    parser = ArgumentParser(
        prog=prog,
        usage=f"{prog} pixels --env ID [options]\n       {prog} --resume RUN [options]",
        description="Trains DQN from pixels: worker processes play, one learner learns.\n"
        "Atari (ALE/Pong-v5) needs the extra atari, Mario (SuperMarioBros-v0) the extra mario.",
        epilog=_settings_epilog(PRESETS, "dqn.gamma", begins=True),
    )
    _add_run_options(parser, "pixels")
    _add_environment(parser)
    add_options(parser, PixelConfig)
    options = parser.parse_args(arguments)
    changes = _with_environment(read_arguments(PixelConfig, options), options)

    def settings() -> PixelConfig:
        layers = _layers(PixelConfig, PRESETS, options, changes)
        name = preset_for(build(PixelConfig, *layers).env.id)
        return build(PixelConfig, preset(PixelConfig, PRESETS, name), *layers)

    return _do(Run(PixelConfig, settings, new_run, resume_run), changes, options, prog)


def _train_traffic(prog: str, arguments: list[str]) -> int:
    from fastrl.tasks.traffic.run import new_run, resume_run
    from fastrl.tasks.traffic.settings import PRESETS, TrafficConfig

    parser = ArgumentParser(
        prog=prog,
        usage=f"{prog} traffic [options]\n       {prog} --resume RUN [options]",
        description="Trains vehicles that drive together, each an agent of its own, such as\n"
        f"  {prog} traffic --preset performance --vehicles 12 --episodes 800 --save-freq 100 --eval-freq 50",
        epilog=_settings_epilog(PRESETS, "mappo.gamma"),
    )
    _add_run_options(parser, "traffic")
    _add_environment(parser)
    parser.add_argument("--lr", metavar="FLOAT", help="learning rate of the algorithm that is used")
    add_options(parser, TrafficConfig)
    options = parser.parse_args(arguments)
    _check_algorithm(prog, "traffic", options)
    changes = _with_environment(read_arguments(TrafficConfig, options), options)

    def settings() -> TrafficConfig:
        layers = _layers(TrafficConfig, PRESETS, options, changes)
        config = build(TrafficConfig, *layers)
        if options.lr is not None:
            key = f"{'reinforce' if config.run.algorithm == 'reinforce' else 'mappo'}.learning_rate"
            if key in changes:
                raise ConfigError(f"--lr and --{key} say the same thing: give one of them")
            rate = leaves(TrafficConfig)[key].parse(options.lr, "--lr")
            config = build(TrafficConfig, *layers, {key: rate})
        return config

    run = Run(
        TrafficConfig,
        settings,
        new_run,
        resume_run,
        ("lr",),
        score="score it on other seeds",
        longer=("--episodes", "episodes"),
        film=True,
    )
    return _do(run, changes, options, prog)


@dataclass(frozen=True)
class Run:
    """What one kind of run is begun with.

    Attributes:
        config_type: of its settings.
        settings: makes them from the options that were given.
        begin: begins a run: its settings, where (None: a new place), a console.
        go_on: goes on with one: its path, changed settings, where, a console, and ``trust``.
        options: those of this kind alone that do not go with ``--resume``.
        score: what ``fastrl eval`` of the run does; empty: it scores no such run.
        longer: the option, and the number in the summary, by which a complete run goes on; None: it cannot.
        film: ``fastrl render`` can show it.
    """

    config_type: type
    settings: Callable[[], Any]
    begin: Callable[[Any, Path | None, Any], "AnySummary"]
    go_on: Callable[..., "AnySummary"]
    options: Sequence[str] = ()
    score: str = ""
    longer: tuple[str, str] | None = ("--total-steps", "steps")
    film: bool = False


def _do(run: Run, changes: Values, options: argparse.Namespace, prog: str) -> int:
    """Begins a run, goes on with one, or prints the settings; returns the exit code."""
    _check_environment(options.environment)
    goes_on = options.resume is not None
    if goes_on:
        _check_resume(options, ("preset", "config", *run.options))
        named = options.environment
        if named is not None and named != (kind := _kind_of_run(options.resume)):
            raise ConfigError(f"{options.resume} is a run of another kind, {kind}, not of {named}")
        if never_saved(options.resume):
            goes_on, options.config = False, options.resume / "config.toml"
    import_from_here(changes.get("env.id"), trust=options.trust)
    if options.print_config:
        from fastrl.training.session import saved_settings

        saved = (run.config_type, options.resume, changes)
        print(to_toml(saved_settings(*saved) if goes_on else run.settings()), end="")
        return 0
    # A training of hours is worth more than the lines that it prints.
    with ignoring_write_errors("stdout", f"{prog}: "):
        return _train(run, changes, options, prog, goes_on)


def _train(run: Run, changes: Values, options: argparse.Namespace, prog: str, goes_on: bool) -> int:
    from fastrl.training.profiler import show as show_profile

    console = plain_console()
    if goes_on:
        trust = " --trust" if options.trust or "env.id" in changes else ""
        summary = run.go_on(options.resume, changes, options.run_dir, console, trust=options.trust)
    else:
        config = run.settings()
        trust = trust_option(config)
        import_from_here(getattr(config.env, "id", None))
        if None not in (options.resume, options.run_dir):
            say(console, f"{options.resume} has no checkpoint yet: its run starts over in {options.run_dir}")
        summary = run.begin(config, options.run_dir or options.resume, console)
    # Where the time went, in full or in short.
    if not (options.profile and show_profile(Path(summary.run), console)):
        summary.print_times(console)
    if summary.signal is not None:
        say(console, f"Interrupted; to go on: {prog} --resume {shlex.quote(summary.run)}{trust}")
        return 128 + signal.Signals[summary.signal]
    for line in _next_commands(run, summary, prog, trust):
        console.print(line, highlight=False, soft_wrap=True, markup=False)
    return 0


def _next_commands(run: Run, summary: "AnySummary", prog: str, trust: str) -> list[str]:
    """Lines that say where a complete run is, and what can be done with it."""
    where = shlex.quote(summary.run)
    lines = ["", f"Run directory: {summary.run}"]
    if run.score:
        lines.append(f"To {run.score}: fastrl eval {where}{trust}")
    if run.film:
        lines.append(f"To film it: fastrl render {where} --out episode.mp4")
    if run.longer is not None:
        option, number = run.longer
        lines.append(
            f"To train it further: {prog} --resume {where} {option} {2 * getattr(summary, number)}{trust}"
        )
    return lines


def _layers(
    config_type: type, presets: Mapping[str, Preset], options: argparse.Namespace, changes: Values
) -> list[Values]:
    """The settings that were given, from a preset, from a file and by options; later ones go before earlier ones."""
    layers = [changes]
    if options.config is not None:
        values = _read_config(config_type, options)
        refuse_reach(config_type, values, str(options.config), trust=options.trust, named=changes)
        layers.insert(0, values)
    if options.preset is not None:
        layers.insert(0, preset(config_type, presets, options.preset))
    return layers


def import_from_here(env_id: str | None, *, trust: bool = False) -> None:
    """Lets an environment that the command line names be in a module of the current directory, for this process and
    those it starts. Installed modules of the same name come first."""
    if (trust or ":" in (env_id or "")) and (here := str(Path.cwd())) not in sys.path and "" not in sys.path:
        sys.path.append(here)


def _read_config(config_type: type, options: argparse.Namespace) -> Values:
    """The settings in the file that was given.

    Raises:
        ConfigError: as of `read_toml`; one of another kind of run is called that.
    """
    try:
        return read_toml(config_type, options.config)
    except ConfigError:
        others = [kind for kind, other in _settings_types().items() if _fits(other, options.config)]
        if not others:
            raise
    raise ConfigError(
        f"{options.config} has the settings of another kind of run, {' or '.join(others)}, not of {options.environment}"
    )


def _fits(config_type: type, path: Path) -> bool:
    with contextlib.suppress(ConfigError):
        read_toml(config_type, path)
        return True
    return False


def _settings_types() -> dict[str, type]:
    """The settings of each kind of run."""
    from fastrl.tasks.cage2.run import TrainConfig
    from fastrl.tasks.gym.settings import GymConfig
    from fastrl.tasks.pixels.settings import PixelConfig
    from fastrl.tasks.traffic.settings import TrafficConfig
    from fastrl.tasks.workflow.settings import WorkflowConfig

    return {
        "cage2": TrainConfig,
        "cage2-workflow": WorkflowConfig,
        "gym": GymConfig,
        "pixels": PixelConfig,
        "traffic": TrafficConfig,
    }


def _kind(arguments: list[str]) -> str | None:
    """What is to be trained on, which says what the other arguments mean; None if they do not tell."""
    for before, argument in zip(["", *arguments], arguments, strict=False):
        # The word after an option is its value, also if it is the name of a kind.
        is_value = before.startswith("--") and "=" not in before and before.replace("_", "-") not in _FLAGS
        if argument in ENVIRONMENTS and not is_value:
            return argument
    resumed = _value_of("--resume", arguments)
    return None if resumed is None else _kind_of_run(Path(resumed))


def _kind_of_run(run: Path) -> str:
    """The kind of a run, from its newest checkpoint, else from the tables of its config.toml."""
    from fastrl.training.checkpoint import CheckpointError, load_newest

    with contextlib.suppress(CheckpointError):
        kind = load_newest(run)[1].get("kind", "cage2")
        kind = "cage2-workflow" if kind == "workflow" else kind
        if not isinstance(kind, str) or kind not in ENVIRONMENTS:
            raise ConfigError(f"{run} is of a kind of run that this fastrl does not know: {kind!r}")
        return kind
    for folder in (run, run.parent, run.parent.parent):
        with contextlib.suppress(OSError):
            settings = (folder / "config.toml").read_text(errors="replace")
            kinds = (kind for table, kind in _TABLES.items() if f"\n[{table}]" in settings)
            return next(kinds, "cage2")
    return "cage2"


def _add_run_options(parser: ArgumentParser, environment: str) -> None:
    """Those that every kind of run has."""
    parser.add_argument("environment", nargs="?", metavar=environment, help="the kind of run")
    where = "below" if environment in ENVIRONMENTS else "in the help of each kind"
    parser.add_argument("--preset", metavar="NAME", help=f"a named set of settings, listed {where}")
    parser.add_argument(
        "--config", type=path, metavar="FILE", help="a TOML file of settings, such as a run's config.toml"
    )
    parser.add_argument(
        "--resume", type=path, metavar="RUN", help="go on with a run (its directory) or a checkpoint file"
    )
    parser.add_argument(
        "--run-dir",
        "--out",
        type=path,
        metavar="DIR",
        help=f"where the run is written [runs/{environment}-DATE-TIME]",
    )
    parser.add_argument(
        "--trust",
        action="store_true",
        help="let the file or run that is given import code, connect to a Ray cluster and write files, as it says",
    )
    parser.add_argument("--print-config", action="store_true", help="print all settings as TOML and exit")
    parser.add_argument(
        "--profile",
        action="store_true",
        help="at the end, show in full where the time went, and draw profile.png in the run directory",
    )


def _add_environment(parser: ArgumentParser) -> None:
    """The environment as an argument, for those who leave out ``--env``."""
    parser.add_argument("env_id", nargs="?", metavar="ID", help="the environment, the same as --env ID")


def _settings_epilog(presets: Mapping[str, Preset], key: str, *, begins: bool = False) -> str:
    """Presets, and where settings come from; ``begins``: also from presets that environments begin with."""
    table, _, name = key.partition(".")
    sources = ["the command line", "the file", "the preset"]
    if begins:
        sources.append("the preset of the environment")
    return "\n".join(
        [
            "presets:",
            *(f"  {name}: {preset.description}" for name, preset in presets.items()),
            "",
            (
                f"A setting comes from {', else from '.join(sources)}, else it is the default [in brackets]."
                f" --{key} is {name} in the table [{table}] of a file. --print-config shows all settings."
            ),
            "Ctrl-C saves a checkpoint and leaves.",
        ]
    )


def _check_resume(options: argparse.Namespace, others: Sequence[str]) -> None:
    for name in others:
        if getattr(options, name) is not None:
            raise ConfigError(
                f"--{name.replace('_', '-')} does not go with --resume, whose run has its settings"
            )


def preset(config_type: type, presets: Mapping[str, Preset], name: str) -> Values:
    if name not in presets:
        raise ConfigError(f"--preset: unknown preset {name}; {_hint(name, presets)}")
    return check(config_type, presets[name].values, f"preset {name}")


def path(text: str) -> Path:
    """A type for argparse: paths. An empty one, which would be the current directory, is a variable without a value."""
    return Path(path_text(text))


def path_text(text: str) -> str:
    """As `path`, left as it is."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise argparse.ArgumentTypeError(f"should be a path in UTF-8, got {text!r}") from None
    if not text:
        raise argparse.ArgumentTypeError("should be a path, got an empty text")
    return text


def at_least(least: int, most: int = 10**9) -> Callable[[str], int]:
    """A type for argparse: integers from ``least`` to ``most``."""

    def convert(text: str) -> int:
        try:
            number = float(text) if "e" in text.lower() else int(text)
        except ValueError:
            number = math.nan
        if not number >= least or (number < math.inf and number != int(number)):
            raise argparse.ArgumentTypeError(f"should be an integer of at least {least}, got {brief(text)}")
        if number > most:
            raise argparse.ArgumentTypeError(f"should be an integer of at most {most}, got {brief(text)}")
        return int(number)

    return convert


# A type for argparse: what everything random can be fixed by.
seed = at_least(0, 2**63 - 1)


def say(console: Any, line: str) -> None:
    console.print(f"\n{line}", highlight=False, soft_wrap=True, markup=False)


def positive(text: str) -> float:
    """An option's number above 0, such as has a meaning for people: seconds, pictures a second."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0.001 <= number <= 1_000_000:
        raise argparse.ArgumentTypeError(f"should be a number from 0.001 to 1000000, got {brief(text)}")
    return number
