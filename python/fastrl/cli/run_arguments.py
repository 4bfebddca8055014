"""The command line of a run: the task that its arguments mean, and the settings that they give."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, NoReturn, TypeVar

from fastrl.cli.arguments import Arg, Positive, add_arguments, at_least, import_from_here
from fastrl.tasks import find, is_task, load_saved, named_tasks, task_for, task_name_on, tasks
from fastrl.utils.command_line import ArgumentParser, add_options, read_arguments
from fastrl.utils.config import ConfigError, Values, build, leaves, load_toml, values_of
from fastrl.utils.errors import UserError
from fastrl.utils.progress import load_torch
from fastrl.utils.trust import trusted_import

if TYPE_CHECKING:
    from fastrl.training.task import Task

C = TypeVar("C", bound="Command")

# Options that --help shows of every task that has them, beside `Task.common_options`; --help-all shows all. Of the two
# goals only that which the task has.
_COMMON = (
    "--algo",
    "--preset",
    "--total-timesteps",
    "--total-episodes",
    "--num-envs",
    "--collector",
    "--n-workers",
    "--seed",
    "--seeds",
    "--run-dir",
    "--resume",
)
# With more presets than these, --help describes only those of the environment and "smoke".
_MANY_PRESETS = 8


class SettingsOptions:
    """Options of all commands that make the settings of a run."""

    preset: Annotated[
        str | None, Arg("named set of settings; the help of an environment lists them", "NAME")
    ] = None
    config: Annotated[Path | None, Arg("TOML file of settings, such as a run's config.toml", "FILE")] = None
    trust: Annotated[
        bool, Arg("allow the given file or run to import code, connect to a Ray cluster and write files")
    ] = False


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(","))


class MeasuringOptions(SettingsOptions):
    """Options of commands that measure how a run is fastest."""

    tune_seconds: Annotated[
        Positive, Arg("seconds of measuring for fastrl autotune and --auto; slow environments take longer")
    ] = 15.0
    may_change: Annotated[
        tuple[str, ...],
        _names,
        Arg(
            "settings that measuring may choose although they change what is learnt, such as num-envs,batch-size; there"
            " are num-envs, batch-size, updates-per-step and precision [none]",
            "LIST",
        ),
    ] = ()


class TrainOptions(MeasuringOptions):
    """Options of ``fastrl train`` that are no settings."""

    resume: Annotated[Path | None, Arg("resume a run (its directory) or a checkpoint file", "RUN")] = None
    seeds: Annotated[
        str | None, Arg("a run for each seed, side by side as cores allow, such as 0,1,2 or 0-9", "LIST")
    ] = None
    ranks: Annotated[
        int | None,
        at_least(1, 1024),
        Arg("train with N processes that share out environments and gradients; see also run.shards [1]", "N"),
    ] = None
    auto: Annotated[
        bool,
        Arg("first measure how the run is fastest on this machine, as fastrl autotune does, then run so"),
    ] = False
    run_dir: Annotated[
        Path | None, Arg("run directory, new or empty [runs/ENV-ALGO-sSEED-DATE-TIME]", "DIR", also="out")
    ] = None
    print_config: Annotated[bool, Arg("print all settings as TOML and exit")] = False
    profile: Annotated[
        bool,
        Arg("at the end, show in full where the time went; draw profile.png in the run directory"),
    ] = False


class FirstPass:
    """A first pass over the arguments, which finds the task; the settings of the task are the other options.

    Args:
        declared: the options that are no settings.

    Attributes:
        options: the values of these.
        algo: the algorithm; None: not named.
        wants_help: it asks for help.
        env: the task or the environment; None: not named.
        maybe: options of other names, each with what follows: its value, or, if it takes none, the environment.
    """

    def __init__(self, declared: type, prog: str, arguments: list[str]) -> None:
        parser = ArgumentParser(prog=prog, add_help=False)
        add_arguments(parser, declared)
        parser.add_argument("--algo", "--run.algo")
        parser.add_argument("--env", "--env.id")
        parser.add_argument("-h", "--help", "--help-all", action="store_true")
        self.options, others = parser.parse_known_args(arguments)
        self.algo: str | None = self.options.algo
        self.wants_help: bool = self.options.help
        named: list[str] = []
        self.maybe: list[tuple[str, str]] = []
        for before, word in zip(["", *others], others, strict=False):
            # KEY=VALUE follows --env-options.
            if word.startswith("-") or "=" in word:
                continue
            option = before.replace("_", "-")
            if not option.startswith("-") or "=" in option or option == "--" or option.startswith("--no-"):
                named.append(word)
            elif is_task(word) or ":" in word or "-v" in word:
                self.maybe.append((option, word))
        self.env: str | None = named[0] if named else self.options.env


def find_command(prog: str, arguments: list[str], make: "type[C]") -> "C":
    """The command line for the task that its arguments mean.

    Args:
        make: `Command`, or a subclass with other options.
    """
    first = FirstPass(make.declared, prog, arguments)
    run, file = getattr(first.options, "resume", None), first.options.config
    if first.env is None:
        first.env = next((env for option, env in first.maybe if _is_switch(option, env, first.algo)), None)
    if first.env is None and run is None and (file is None or first.wants_help):
        if arguments and not first.wants_help:
            raise ConfigError(
                f"name what to train on, before the options: {prog} cage2, or an environment, {prog} CartPole-v1"
            )
        _print_help(prog, make)
    trust, config = first.options.trust, None
    import_from_here(first.algo)
    import_from_here(first.env, trust=trust)
    if run is not None:
        load_torch(arguments)
        kind, config = load_saved(run)
        name = trusted_import("kind", kind, str(run), trust=trust or first.env == kind)
        if first.env is not None and first.env != name:
            # Of an environment the settings say whether it is the run's.
            meant = first.env if is_task(first.env) else task_name_on(first.env, first.algo)
            if meant != name:
                raise ConfigError(f"{run} is a run of {name}, not of {first.env}")
    elif first.env is not None:
        name = first.env if _is_named_task(first.env) else task_name_on(first.env, first.algo)
    else:
        assert file is not None
        name = _task_of_file(file, trust=trust)
    return make(find(name), prog, arguments, config, first)


def _is_switch(option: str, env: str, algo: str | None) -> bool:
    """True for an option that takes no value in the training on an environment."""
    # A module is not asked what its function makes: the word may be something else.
    name = env if is_task(env) else task_for(env, algo or ("ppo" if ":" in env else None))
    if name is None:
        return False
    task = find(name)
    algorithm = algo or task.usual_algorithm(env)
    parser = ArgumentParser(add_help=False)
    add_options(parser, task.settings_type(algorithm), task.algorithm_table(algorithm))
    return option in parser.switches()


def _is_named_task(name: str) -> bool:
    return is_task(name) and not (name in tasks() and tasks()[name].NEEDS_ENVIRONMENT)


def _task_of_file(file: Path, *, trust: bool) -> str:
    """The task that a file of settings names.

    Raises:
        ConfigError: it names none.
        TrustError: it would import code.
    """
    kind = load_toml(file).get("kind")
    if not isinstance(kind, str):
        raise ConfigError(f"{file} names no task (kind = ...): name the environment before the options")
    return trusted_import("kind", kind, str(file), trust=trust)


def _print_help(prog: str, make: "type[Command]") -> NoReturn:
    """Prints the help that names no environment, and exits."""
    width = max(map(len, named_tasks()))
    summaries = {name: tasks()[name].SUMMARY for name in named_tasks()}
    parser = ArgumentParser(
        common=_COMMON,
        prog=prog,
        usage=make.usage(prog, "ENV [--algo ALGO] [--preset NAME]"),
        description="\n".join(
            [
                make.purpose,
                "",
                "ENV is one of",
                *(f"  {name:<{width}}  {summary}" for name, summary in summaries.items()),
                "or any environment: an id of Gymnasium, such as CartPole-v1, or module:function that makes one.",
            ]
        ),
        epilog=f"{prog} ENV --help lists the settings, algorithms and presets of an environment. Examples:\n"
        f"  {prog} cage2 --preset smoke{make.required}\n"
        f"  {prog} CartPole-v1 --preset smoke{make.required}\n"
        f"  {prog} fastrl/Catch-v0 --algo dqn{make.required}\n"
        f"  {prog} fastrl/coop-merge-v0 --algo mappo{make.required}",
    )
    make.add_own_options(parser)
    parser.print_help()
    parser.exit()


class Command:
    """The command line for one task and one algorithm.

    Args:
        saved: nested settings of the run to resume; None without a checkpoint: a new run starts.
        first: what a first pass over the arguments has found; None: it is made here.

    Class attributes:
        purpose: one line for help texts.
        required: the options that each example of the help needs.
        common: options that ``--help`` shows, beside those of the task.
        declared: the options that are no settings.

    Attributes:
        checkpoint: what to resume, a run directory or a checkpoint file; None: a new run starts.
        options: the parsed options.
        changes: the settings that options give.
    """

    purpose: ClassVar[str] = "Trains agents, or resumes a run."
    required: ClassVar[str] = ""
    common: ClassVar[Sequence[str]] = _COMMON
    declared: ClassVar[type] = TrainOptions

    def __init__(
        self,
        task: "Task",
        prog: str,
        arguments: list[str],
        saved: Any = None,
        first: FirstPass | None = None,
    ) -> None:
        self.task, self.prog, self.saved = task, prog, saved
        first = first or FirstPass(self.declared, prog, arguments)
        self.named, self.trust, self.preset = first.env, first.options.trust, first.options.preset
        self.checkpoint, self.file = getattr(first.options, "resume", None), first.options.config
        if self.checkpoint is not None:
            for option, value in (("--preset", self.preset), ("--config", self.file)):
                if value is not None:
                    raise ConfigError(f"{option} does not go with --resume: the run keeps its settings")
            if saved is None:
                # Nothing to resume: the run starts over with its settings.
                self.file, self.checkpoint = self.checkpoint / "config.toml", None
        self.tree = {} if self.file is None else load_toml(self.file)
        self.algorithm = self._algorithm(first.algo)
        self.config_type = task.settings_type(self.algorithm)
        parser = self._parser(prog, wants_help=first.wants_help, full="--help-all" in arguments)
        self.options = parser.parse_args(arguments)
        self.changes = self._changes()

    def _algorithm(self, given: str | None) -> str:
        """The algorithm that the command line names, else that of the run to resume, the file, the preset or the
        task."""
        if given is not None:
            import_from_here(given)
            return given
        if self.checkpoint is not None:
            name = self.task.algorithm_in(self.saved if isinstance(self.saved, dict) else {})
            return trusted_import("run.algo", name, self.checkpoint, trust=self.trust)
        file = str(self.file)
        return self.task.choose_algorithm(self.preset, self.tree, file, trust=self.trust, env_id=self.named)

    def _parser(self, prog: str, *, wants_help: bool, full: bool) -> ArgumentParser:
        values = self._shown_values() if wants_help else {}
        goal = "--total-episodes" if values.get("run.total_timesteps") is None else "--total-timesteps"
        common = [name for name in self.common if not name.startswith("--total-") or name == goal]
        common = [name for name in common if name not in self.task.rare_options]
        # After the options that say how experience is collected.
        common[-4:-4] = [name for name in self.task.common_options if name not in common]
        parser = ArgumentParser(
            common=common,
            prog=prog,
            usage=self.usage(prog, self.named or "ENV"),
            description=self.description(),
            epilog=self._epilog(values, full=full) if wants_help else None,
        )
        self.add_own_options(parser)
        parser.add_argument("--lr", metavar="FLOAT", help="learning rate of the algorithm")
        add_options(parser, self.config_type, self._algorithm_table, values)
        return parser

    @staticmethod
    def usage(prog: str, env: str) -> str:
        """The command line in brief; ``env`` stands for what names the environment."""
        return f"{prog} {env} [settings]\n       {prog} --resume RUN [settings]"

    @classmethod
    def add_own_options(cls, parser: ArgumentParser) -> None:
        """Adds the options that are no settings."""
        parser.add_argument(
            "env", nargs="?", metavar="ENV", help="what to train on, a task or an environment"
        )
        add_arguments(parser, cls.declared)

    def description(self) -> str:
        return self.task.description(self.prog)

    def _shown_values(self) -> Values:
        """The values that the help shows: those of a run without further options. Defaults, if there can be none."""
        changes: Values = {"run.algo": self.algorithm}
        if self.named is not None and not is_task(self.named) and "env.id" in leaves(self.config_type):
            changes["env.id"] = self.named
        try:
            settings = self.task.make_settings(
                changes, preset=self.preset, tree=self.tree, source=str(self.file), trust=self.trust
            )
            return values_of(settings)
        except UserError:
            return {key: leaf.default for key, leaf in leaves(self.config_type).items()}

    def _epilog(self, values: Values, *, full: bool) -> str:
        from fastrl.algorithms import declarations

        table = self._algorithm_table
        taking = {name: each.summary for name, each in declarations().items() if self.task.takes(each)}
        return "\n".join(
            [
                *(
                    ["algorithms:", *(f"  {name}: {summary}" for name, summary in taking.items()), ""]
                    if taking
                    else []
                ),
                "presets:",
                *self._presets(values, full=full),
                "",
                (
                    "A setting comes from the command line, else from the file (--config), else from the preset, else"
                    " from the environment's preset, else it is the default; its value here stands in"
                    f" [brackets]. --gamma is short for --{table}.gamma, gamma in the table [{table}] of a file; --algo"
                    " chooses the table. --print-config prints all settings as such a file."
                ),
                "Ctrl-C saves a checkpoint and leaves.",
            ]
        )

    def _presets(self, values: Values, *, full: bool) -> list[str]:
        """Lines about presets: of many only the ones that matter here."""
        presets = self.task.presets
        defaults = self.task.default_presets(build(self.config_type, values)) if values else ()
        named = presets if full or len(presets) <= _MANY_PRESETS else [*defaults, *({"smoke"} & set(presets))]
        lines = [
            f"  {name}: {presets[name].description}{' (taken without --preset)' if name in defaults else ''}"
            for name in named
        ]
        if others := [name for name in presets if name not in named]:
            lines.append(f"  others: {', '.join(others)}; --help-all describes them")
        return lines

    @property
    def _algorithm_table(self) -> str:
        return self.task.algorithm_table(self.algorithm)

    def _changes(self) -> Values:
        """The settings that were given by options."""
        options, changes = self.options, read_arguments(self.config_type, self.options)
        if options.lr is not None:
            key = f"{self._algorithm_table}.learning_rate"
            if key in changes:
                raise ConfigError(
                    f"--lr and {leaves(self.config_type)[key].option} say the same thing: give one of them"
                )
            if key not in leaves(self.config_type):
                raise ConfigError(f"--lr: {self.algorithm} has no setting {key}")
            changes[key] = leaves(self.config_type)[key].parse(options.lr, "--lr")
        named = options.env
        if named is not None and not is_task(named) and "env.id" in leaves(self.config_type):
            if changes.get("env.id", named) != named:
                raise ConfigError(f"two environments: {named} and --env {changes['env.id']}; name one")
            changes["env.id"] = named
        return changes

    def settings(self) -> Any:
        """The settings of the run: of a new one defaults, presets, file, options; of one to resume its own, changed by
        options."""
        if self.checkpoint is not None:
            from fastrl.runs.checkpoint import using_checkpoint
            from fastrl.training.run import resumed_settings

            with using_checkpoint(self.checkpoint, "has no settings that this fastrl can read"):
                return resumed_settings(self.task, self.checkpoint, self.saved, self.changes, trust=True)
        return self.task.make_settings(
            self.changes, preset=self.preset, tree=self.tree, source=str(self.file), trust=self.trust
        )
