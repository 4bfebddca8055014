"""Types of arguments, errors and the import path, for all commands."""

import argparse
import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from fastrl.utils.config import ConfigError, brief
from fastrl.utils.output import printable


def import_from_here(name: str | None, *, trust: bool = False) -> None:
    """Adds the current directory to the end of the import path, also of child processes, if ``name`` is an import path
    such as ``module:factory``, or if files are trusted, which may have some."""
    if (trust or ":" in (name or "")) and (here := str(Path.cwd())) not in sys.path and "" not in sys.path:
        sys.path.append(here)


def value_of(option: str, arguments: Sequence[str]) -> str | None:
    """The value of an option before the parser is made; the last one counts, as for the parser. None without it."""
    found = None
    for name, value in zip(arguments, [*arguments, ""][1:], strict=True):
        if name == option:
            found = value
        elif name.startswith(f"{option}="):
            found = name.removeprefix(f"{option}=")
    return found


def path_of(option: str, arguments: Sequence[str]) -> Path | None:
    """The path that `value_of` finds.

    Raises:
        ConfigError: it is empty, or not UTF-8.
    """
    value = value_of(option, arguments)
    try:
        return None if value is None else path(value)
    except argparse.ArgumentTypeError as error:
        raise ConfigError(f"argument {option}: {error}") from None


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


def positive(text: str) -> float:
    """Converts an argument to a number from 0.001 to 1,000,000, such as seconds or frames per second."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0.001 <= number <= 1_000_000:
        raise argparse.ArgumentTypeError(f"should be a number from 0.001 to 1000000, got {brief(text)}")
    return number


def print_error(prog: str, message: object) -> None:
    """Prints the one line in which a command fails."""
    print_note(prog, f"error: {message}")


def print_note(prog: str, message: str) -> None:
    """Prints a line of a command on stderr."""
    print(printable(f"{prog}: {message}"), file=sys.stderr)
