"""The command ``fastrl train``: starts or resumes a run of any task."""

import contextlib
import difflib
import shlex
import signal
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from fastrl.cli.arguments import import_from_here, path, say, value_of
from fastrl.tasks import find, task_for, tasks
from fastrl.training.run_directory import never_saved
from fastrl.utils.command_line import ArgumentParser, add_options, read_arguments
from fastrl.utils.config import ConfigError, Values, build, check, leaves, load_toml, to_toml
from fastrl.utils.output import ignoring_write_errors, plain_console
from fastrl.utils.progress import load_torch
from fastrl.utils.trust import refuse_reach, trust_option, trusted_import

if TYPE_CHECKING:
    from fastrl.training.summary import Summary
    from fastrl.training.task import Task

# Options without a value; a bare -- ends the options.
_FLAGS = {"--", "--help", "--print-config", "--profile", "--trust"}


def train(prog: str, arguments: list[str]) -> int:
    """Trains agents, or resumes a run."""
    name = _task_name(arguments)
    if name is None:
        _without_task(prog, arguments)
    load_torch(arguments)
    import_from_here(name, trust="--trust" in arguments)
    return _train(find(name), prog, arguments)


def _task_name(arguments: list[str]) -> str | None:
    """What is to be trained on, which says what the other arguments mean; None if they do not tell."""
    for before, argument in zip(["", *arguments], arguments, strict=False):
        # The word after an option is its value, also if it is the name of a task.
        is_value = before.startswith("--") and "=" not in before and before.replace("_", "-") not in _FLAGS
        if not is_value and (argument in tasks() or _is_task_path(argument)):
            return argument
    resumed = value_of("--resume", arguments)
    if resumed is None:
        return None
    return trusted_import("kind", task_of_run(Path(resumed)), resumed, trust="--trust" in arguments)


def _is_task_path(argument: str) -> bool:
    """Tells whether an argument names a task of the user's own, such as ``my_module:MY_TASK``."""
    module, colon, attribute = argument.partition(":")
    return bool(colon) and attribute.isidentifier() and attribute.isupper() and not module.startswith("-")


def task_of_run(run: Path) -> str:
    """The task of a run, as its newest checkpoint or its config.toml says.

    Raises:
        ConfigError: neither says it, or it is none that this fastrl knows.
    """
    from fastrl.training.checkpoint import CheckpointError, load_newest

    kind: Any = None
    problem: Exception | None = None
    try:
        kind = load_newest(run)[1].get("kind")
    except CheckpointError as error:
        problem = error
        for folder in (run, run.parent, run.parent.parent):
            if (folder / "config.toml").is_file():
                with contextlib.suppress(ConfigError):
                    kind = load_toml(folder / "config.toml").get("kind")
                break
    if kind is None:
        raise problem or ConfigError(
            f"{run} does not say what it was trained on: this fastrl cannot resume it"
        )
    if not isinstance(kind, str) or not (kind in tasks() or _is_task_path(kind)):
        raise ConfigError(f"{run} is of a kind of run that this fastrl does not know: {kind!r}")
    return kind


def _without_task(prog: str, arguments: list[str]) -> NoReturn:
    """Prints the help, or refuses arguments that do not name a task and proposes one."""
    if arguments and not {"-h", "--help"} & set(arguments):
        first = arguments[0] if not arguments[0].startswith("-") else None
        named = first or value_of("--env", arguments)
        if named is not None and (likely := command_for(named)) is not None:
            raise ConfigError(f"name the kind of run; did you mean {prog} {likely}?")
        if first is not None:
            raise ConfigError(f"unknown kind of run {first}; {_hint(first, tasks())}")
        raise ConfigError(
            f"name the kind of run, one of {', '.join(tasks())}; {prog} --help says what they are"
        )
    width = max(map(len, tasks()))
    parser = ArgumentParser(
        prog=prog,
        usage=f"{prog} KIND [options]\n       {prog} --resume RUN [options]",
        description="\n".join(
            [
                "Trains agents, or resumes a run.",
                "",
                "kinds of runs:",
                *(f"  {name:<{width}}  {folder.SUMMARY}" for name, folder in tasks().items()),
            ]
        ),
        epilog=f"{prog} KIND --help lists the settings and presets of a kind. Examples:\n"
        f"  {prog} cage2 --preset smoke\n"
        f"  {prog} gym --env CartPole-v1 --preset smoke\n"
        f"  {prog} pixels --env fastrl/Catch-v0\n"
        f"  {prog} traffic --preset fast",
    )
    _add_run_options(parser, "KIND", "in the help of each kind")
    parser.print_help()
    parser.exit()


def command_for(env_id: str) -> str | None:
    """The task and option that train on an environment, such as ``gym --env CartPole-v1``; None for other words."""
    name = task_for(env_id)
    if name is None:
        return None
    return name if env_id in tasks()[name].ENVIRONMENTS else f"{name} --env {env_id}"


def _hint(name: str, known: Collection[str]) -> str:
    """The known name that is likely meant, or all of them."""
    likely = difflib.get_close_matches(name, known, 1)
    return f"did you mean {likely[0]}?" if likely else f"there are {', '.join(known)}"


class Command:
    """The command line for one task and one algorithm."""

    def __init__(self, task: "Task", prog: str, arguments: list[str]) -> None:
        self.task = task
        self.trust = "--trust" in arguments
        resumed = value_of("--resume", arguments)
        self.resume = None if resumed is None else path(resumed)
        if self.resume is not None and never_saved(self.resume):
            arguments = [*arguments, "--config", str(self.resume / "config.toml")]
        self.file = value_of("--config", arguments)
        self.tree = {} if self.file is None else self._read_file(Path(self.file))
        self.algorithm = self._algorithm(arguments)
        self.config_type = task.settings_type(self.algorithm)
        self.has_env_id = "env.id" in leaves(self.config_type)
        self.parser = self._parser(prog)
        self.options = self.parser.parse_args(arguments)
        self.changes = self._changes()

    def _read_file(self, file: Path) -> dict[str, Any]:
        tree = load_toml(file)
        kind = tree.pop("kind", self.task.name)
        if kind != self.task.name:
            raise ConfigError(
                f"{file} has the settings of another kind of run, {kind}, not of {self.task.name}"
            )
        return tree

    def _algorithm(self, arguments: list[str]) -> str:
        """The algorithm that the command line names, else the run, the file, the preset or the task."""
        from fastrl.training.checkpoint import load_newest

        given = value_of("--algorithm", arguments) or value_of("--run.algorithm", arguments)
        if given is not None:
            import_from_here(given)
            return given
        if self.resume is not None and not never_saved(self.resume):
            file, state = load_newest(self.resume)
            config = state.get("config")
            name = self.task.algorithm_in(config if isinstance(config, dict) else {})
            return trusted_import("run.algorithm", name, file, trust=self.trust)
        if "algorithm" in self.tree.get("run", {}):
            name = self.task.algorithm_in(self.tree)
            return trusted_import("run.algorithm", name, str(self.file), trust=self.trust)
        preset = self.task.presets.get(value_of("--preset", arguments) or "")
        return self.task.algorithm_in({} if preset is None else preset.values)

    def _parser(self, prog: str) -> ArgumentParser:
        name = self.task.name
        parser = ArgumentParser(
            prog=prog,
            usage=f"{prog} {name}{' --env ID' if self.has_env_id else ''} [options]\n"
            f"       {prog} --resume RUN [options]",
            description=self.task.description(prog),
            epilog=self._epilog(),
        )
        _add_run_options(parser, name, "below")
        if self.has_env_id:
            parser.add_argument(
                "env_id", nargs="?", metavar="ID", help="the environment, the same as --env ID"
            )
        parser.add_argument("--lr", metavar="FLOAT", help="learning rate of the algorithm")
        add_options(parser, self.config_type)
        return parser

    def _epilog(self) -> str:
        from fastrl.algorithms import algorithms

        table = self._algorithm_table
        own = {name: each.summary for name, each in algorithms().items() if self.task.takes(each)}
        return "\n".join(
            [
                *(
                    ["algorithms:", *(f"  {name}: {summary}" for name, summary in own.items()), ""]
                    if own
                    else []
                ),
                "presets:",
                *(f"  {name}: {preset.description}" for name, preset in self.task.presets.items()),
                "",
                (
                    "A setting comes from the command line, else from the file, else from the preset, else from the"
                    f" preset of the environment, else it is the default [in brackets]. --{table}.gamma is gamma in"
                    f" the table [{table}] of a file. --algorithm chooses the table. --print-config shows all settings."
                ),
                "Ctrl-C saves a checkpoint and leaves.",
            ]
        )

    @property
    def _algorithm_table(self) -> str:
        return self.task.algorithm_table(self.algorithm)

    def _changes(self) -> Values:
        """The settings that were given by options."""
        options, changes = self.options, read_arguments(self.config_type, self.options)
        if options.lr is not None:
            key = f"{self._algorithm_table}.learning_rate"
            if key in changes:
                raise ConfigError(f"--lr and --{key} say the same thing: give one of them")
            if key not in leaves(self.config_type):
                raise ConfigError(f"--lr: {self.algorithm} has no setting {key}")
            changes[key] = leaves(self.config_type)[key].parse(options.lr, "--lr")
        if self.has_env_id and options.env_id is not None:
            if changes.get("env.id", options.env_id) != options.env_id:
                raise ConfigError(
                    f"two environments: {options.env_id} and --env {changes['env.id']}; name one"
                )
            changes["env.id"] = options.env_id
        return changes

    def settings(self) -> Any:
        """The settings of a new run: defaults, presets, file, options."""
        from fastrl.training.settings import with_one_goal

        layers = [self.changes]
        if self.file is not None:
            values = check(self.config_type, self.tree, self.file)
            refuse_reach(self.config_type, values, self.file, trust=self.trust, named=self.changes)
            layers.insert(0, values)
        if (preset := self.options.preset) is not None:
            if preset not in self.task.presets:
                raise ConfigError(f"--preset: unknown preset {preset}; {_hint(preset, self.task.presets)}")
            layers.insert(0, self.task.preset_values(self.config_type, preset))
        layers = [with_one_goal(layer) for layer in layers]
        env_id = getattr(build(self.config_type, *layers).env, "id", "")
        own = [
            with_one_goal(self.task.preset_values(self.config_type, name))
            for name in self.task.default_presets(env_id)
        ]
        return build(self.config_type, *own, *layers)


def _train(task: "Task", prog: str, arguments: list[str]) -> int:
    """Starts a run, resumes one, or prints the settings; returns the exit code."""
    resumes = value_of("--resume", arguments) is not None
    for name in ("--preset", "--config"):
        if resumes and value_of(name, arguments) is not None:
            raise ConfigError(f"{name} does not go with --resume, whose run has its settings")
    command = Command(task, prog, arguments)
    options = command.options
    if options.task not in (None, task.name):
        raise ConfigError(f"unknown kind of run {options.task}; {_hint(options.task, tasks())}")
    if resumes:
        kind = task_of_run(options.resume)
        if kind != task.name:
            raise ConfigError(f"{options.resume} is a run of another kind, {kind}, not of {task.name}")
        resumes = not never_saved(options.resume)
    import_from_here(command.changes.get("env.id"), trust=options.trust)
    if options.print_config:
        from fastrl.training.run import saved_settings

        settings = saved_settings(task, options.resume, command.changes) if resumes else command.settings()
        print(f'kind = "{task.name}"\n\n{to_toml(settings)}', end="")
        return 0
    # A training of hours is worth more than the lines that it prints.
    with ignoring_write_errors("stdout", f"{prog}: "):
        return _run(command, prog, resumes=resumes)


def _run(command: Command, prog: str, *, resumes: bool) -> int:
    from fastrl.training.profiler import show as show_profile
    from fastrl.training.run import resume_run, start_run

    console, options, task = plain_console(), command.options, command.task
    if resumes:
        trust = " --trust" if options.trust or "env.id" in command.changes else ""
        summary = resume_run(
            task, options.resume, command.changes, options.run_dir, console, trust=options.trust
        )
    else:
        settings = command.settings()
        trust = trust_option(settings)
        import_from_here(getattr(settings.env, "id", None))
        if None not in (options.resume, options.run_dir):
            say(console, f"{options.resume} has no checkpoint yet: its run starts over in {options.run_dir}")
        summary = start_run(task, settings, options.run_dir or options.resume, console)
    if ":" in task.name:
        trust = " --trust"
    # Where the time went, in full or in short.
    if not (options.profile and show_profile(Path(summary.run), console)):
        summary.print_times(console)
    if summary.signal is not None:
        say(console, f"Interrupted; to resume: {prog} --resume {shlex.quote(summary.run)}{trust}")
        return 128 + signal.Signals[summary.signal]
    for line in _next_commands(task, summary, prog, trust):
        console.print(line, highlight=False, soft_wrap=True, markup=False)
    return 0


def _next_commands(task: "Task", summary: "Summary", prog: str, trust: str) -> list[str]:
    """Lines that say where a complete run is, and what can be done with it."""
    where = shlex.quote(summary.run)
    lines = ["", f"Run directory: {summary.run}"]
    if task.score_hint:
        lines.append(f"To {task.score_hint}: fastrl eval {where}{trust}")
    if task.film:
        lines.append(f"To film it: fastrl render {where} --out episode.mp4")
    if task.can_train_longer:
        goal = (
            f"--total-episodes {2 * summary.episodes}"
            if summary.unit == "episodes"
            else f"--total-steps {2 * summary.steps}"
        )
        lines.append(f"To train it further: {prog} --resume {where} {goal}{trust}")
    return lines


def _add_run_options(parser: ArgumentParser, task: str, where: str) -> None:
    """Those that every kind of run has."""
    parser.add_argument("task", nargs="?", metavar=task, help="the kind of run")
    parser.add_argument("--preset", metavar="NAME", help=f"a named set of settings, listed {where}")
    parser.add_argument(
        "--config", type=path, metavar="FILE", help="a TOML file of settings, such as a run's config.toml"
    )
    parser.add_argument(
        "--resume", type=path, metavar="RUN", help="resume a run (its directory) or a checkpoint file"
    )
    parser.add_argument(
        "--run-dir",
        "--out",
        type=path,
        metavar="DIR",
        help=f"where the run is written [runs/{task}-DATE-TIME]",
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
