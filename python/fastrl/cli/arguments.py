"""Command lines made from the signatures of commands; types of arguments, errors and the import path."""

import argparse
import functools
import inspect
import math
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

from fastrl.runs.curves import SUFFIXES
from fastrl.utils.command_line import ArgumentParser
from fastrl.utils.config import METAVARS, ConfigError
from fastrl.utils.names import suggestion
from fastrl.utils.output import plain_console, printable
from fastrl.utils.refusals import brief

# A text that is known now, or only when the command runs.
Text = str | Callable[[], str]


class Arg(NamedTuple):
    """An argument of a command, as the annotation of a parameter::

        def split(folder: Annotated[Path, Arg("data set", "DIR")], *, seed: Annotated[Seed, Arg("of the draw")] = 0):

    Keyword-only parameters are options, the others are positional. A function among the annotations converts the
    text; numbers need one. A bool is a switch; each word is an item of a sequence.

    Attributes:
        help: what it means; the default follows in brackets.
        metavar: what the value is called; empty: as its type says.
        also: another name of the option.
        repeats: each item of a sequence has the option before it.
    """

    help: Text
    metavar: str = ""
    also: str = ""
    repeats: bool = False


def command(
    epilog: Text = "", *, usage: str | None = None
) -> Callable[[Callable[..., int]], Callable[[str, list[str]], int]]:
    """Makes a command of a function: its parameters are the arguments, its docstring is the description.

    Parameters called ``prog`` and ``arguments`` get the name of the command, and its arguments as text.

    Args:
        epilog: the end of the help; lines that begin with ``{prog}`` are examples.
        usage: the command line in brief; None: made from the arguments. In both ``{prog}`` is the name of the command.
    """

    def decorate(function: Callable[..., int]) -> Callable[[str, list[str]], int]:
        @functools.wraps(function)
        def run(prog: str, arguments: list[str]) -> int:
            parser = ArgumentParser(
                prog=prog,
                usage=usage and usage.format(prog=prog),
                description=re.sub(
                    r"\n+", lambda ends: "\n" if ends[0][1:] else " ", inspect.getdoc(function) or ""
                ),
                epilog=re.sub(r"^(?=\{prog\} )", "  ", _now(epilog), flags=re.M).format(prog=prog),
            )
            add_arguments(parser, function)
            words = {"prog": prog, "arguments": arguments}
            wanted = words.keys() & inspect.signature(function).parameters
            return function(**vars(parser.parse_args(arguments)), **{name: words[name] for name in wanted})

        return run

    return decorate


# Commands by name, each with a line about it.
Commands = Mapping[str, tuple[Callable[[str, list[str]], int], str]]


class GroupParser(ArgumentParser):
    """The parser of a command that is a group of commands."""

    def __init__(self, prog: str, commands: Commands, description: str, options: str = "[-h]") -> None:
        width = max(map(len, commands)) + 2
        lines = (f"  {name:<{width}}{about}" for name, (_, about) in commands.items())
        super().__init__(
            prog=prog,
            usage=f"{prog} {options} COMMAND ...",
            description="\n".join([description, "", "commands:", *lines]),
            epilog=f"{prog} COMMAND --help explains a command.",
        )
        self._commands = commands

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        if args and not args[0].startswith("-"):
            self.error(f"unknown command {args[0]}; {suggestion(args[0], self._commands)}")
        return super().parse_args(args, namespace)


def add_arguments(parser: ArgumentParser, declared: Callable[..., Any]) -> None:
    """Adds the arguments that `Arg` describes: the parameters of a function, or the attributes of a class, which are
    options."""
    hints = get_type_hints(declared, include_extras=True)
    parameters = {} if isinstance(declared, type) else inspect.signature(declared).parameters
    for name, hint in hints.items():
        components = list(_components(hint))
        for arg in (component for component in components if isinstance(component, Arg)):
            parameter = parameters.get(name)
            form = _form(arg, components, getattr(declared, name) if parameter is None else parameter.default)
            if parameter is None or parameter.kind is parameter.KEYWORD_ONLY:
                options = [f"--{each.replace('_', '-')}" for each in (name, arg.also) if each]
                parser.add_argument(*options, dest=name, required="default" not in form, **form)
            else:
                parser.add_argument(name, **({"nargs": "?"} if "default" in form else {}) | form)


def _form(arg: Arg, components: list[Any], default: Any) -> dict[str, Any]:
    """Facts of an argument that argparse needs.

    Args:
        components: of its type.
        default: `inspect.Parameter.empty`: it has none.
    """
    has_default = default is not inspect.Parameter.empty
    form: dict[str, Any] = {"help": _now(arg.help).replace("%", "%%")}
    if has_default:
        form["default"] = list(default) if Sequence in components else default
        if default or type(default) in (int, float):
            form["help"] += f" [{default:g}]" if isinstance(default, float) else f" [{default}]"
    if bool in components:
        return form | {"action": "store_true"}
    choices = [component for component in components if isinstance(component, str)]
    names = [
        METAVARS[component]
        for component in components
        if isinstance(component, type) and component in METAVARS
    ]
    form["metavar"] = arg.metavar or "|".join([*names, *choices])
    converts = [component for component in components if inspect.isroutine(component)]
    assert converts or not {"INT", "FLOAT"} & set(names), f"{arg.help}: nothing converts it to a number"
    if converts:
        form["type"] = converts[0]
    elif Path in components:
        form["type"] = path
    elif choices:
        form["choices"] = choices
    if arg.repeats:
        form["action"] = "append"
    elif Sequence in components:
        form["nargs"] = "+"
    return form


def _components(hint: Any) -> Iterator[Any]:
    """The types and annotations that a hint is made of, and the values of a Literal."""
    origin = get_origin(hint)
    if origin is Annotated:
        yield from hint.__metadata__
        yield from _components(hint.__origin__)
    elif origin is Literal:
        yield from get_args(hint)
    else:
        yield origin or hint
        for each in get_args(hint):
            yield from _components(each)


def _now(text: Text) -> str:
    return text if isinstance(text, str) else text()


def import_from_here(name: str | None, *, trust: bool = False) -> None:
    """Adds the current directory to the end of the import path, also of child processes, if ``name`` is an import path
    such as ``module:factory``, or if files are trusted, which may have some."""
    if (trust or ":" in (name or "")) and (here := str(Path.cwd())) not in sys.path and "" not in sys.path:
        sys.path.append(here)


def path(text: str) -> Path:
    """Converts an argument to a path; an empty one, usually an unset shell variable, is refused."""
    return Path(path_text(text))


def path_text(text: str) -> str:
    """Checks an argument as `path` does, and keeps it as text."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise argparse.ArgumentTypeError(f"should be a path in UTF-8, got {text!r}") from None
    if not text:
        raise argparse.ArgumentTypeError("should be a path, got an empty text")
    return text


def at_least(least: int, most: int = 10**9) -> Callable[[str], int]:
    """Returns a converter for argparse: integers from ``least`` to ``most``, also written as ``1e6``."""

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


# Converts an argument to a random seed.
seed = at_least(0, 2**63 - 1)


def picture(text: str) -> Path:
    """Converts an argument to the path of a picture to draw."""
    found = path(text)
    if found.suffix.lower() not in SUFFIXES:
        raise argparse.ArgumentTypeError(f"expected a name that ends in {' or '.join(SUFFIXES)}, got {text}")
    return found


def check_folders(*paths: Path | None) -> None:
    """Refuses files to be written into folders that are not there.

    Raises:
        ConfigError
    """
    for file in filter(None, paths):
        if not file.parent.is_dir():
            raise ConfigError(f"{file}: there is no folder {file.parent}")


def present(
    found: Any, json: Path | None, figure: Path | None, *, pictures: str, said: str, **facts: Any
) -> None:
    """Shows what a command has found, writes it where it was asked to, and names the files.

    Args:
        found: has `show` and `to_tree`.
        json: file for its tree.
        figure: file for its picture.
        pictures: the module whose `draw` draws it.
        said: what is in the files.
        facts: entries of the JSON before the tree's.
    """
    from fastrl.utils.files import save_figure, to_json, write_atomically

    found.show(plain_console())
    if json is not None:
        write_atomically(json, to_json({**facts, **found.to_tree()}, indent=2).encode())
        print(f"{json}: {said}")
    if figure is not None:
        save_figure(figure, import_module(pictures).draw(found))
        print(f"{figure}: {said}")


def real(least: float = -math.inf, most: float = math.inf, bounds: str = "") -> Callable[[str], float]:
    """Returns a converter for argparse: finite numbers from ``least`` to ``most``, which ``bounds`` says in errors."""

    def convert(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not math.isfinite(value) or not least <= value <= most:
            raise argparse.ArgumentTypeError(f"should be a number{bounds}, got {brief(text)}")
        return value

    return convert


# Converts an argument to a number such as seconds or frames per second.
positive = real(0.001, 1_000_000, " from 0.001 to 1000000")


def workers(text: str) -> int | str:
    """Converts an argument to a number of workers, or "auto"."""
    return text if text == "auto" else at_least(1)(text)


# Types of parameters of several commands.
Count = Annotated[int, at_least(1)]
Seed = Annotated[int, seed]
Number = Annotated[float, real()]
Positive = Annotated[float, positive]
NotNegative = Annotated[float, real(0, bounds=" from 0 on")]
# The name of something that is perhaps a path.
Name = Annotated[str, path_text]
Workers = Annotated[int | Literal["auto"], workers]
Picture = Annotated[Path, picture]
RunEnv = Annotated[str | None, Arg("the run's environment, which may import code then", "ID")]
TrustRuns = Annotated[bool, Arg("let runs import code, as their checkpoints say")]
EnvOptions = Annotated[
    Sequence[str], Arg("options of the environment, such as num_agents=4 red_agent=bline", "KEY=VALUE")
]


def print_error(prog: str, message: object) -> None:
    """Prints the one line in which a command fails."""
    print_note(prog, f"error: {message}")


def print_note(prog: str, message: str) -> None:
    """Prints a line of a command on stderr."""
    print(printable(f"{prog}: {message}"), file=sys.stderr)
