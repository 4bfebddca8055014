"""What commands have in common: types of arguments, and where modules of the user's are imported from."""

import argparse
import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fastrl.utils.config import brief


def import_from_here(name: str | None, *, trust: bool = False) -> None:
    """Lets what the command line names be in a module of the current directory, for this process and those it
    starts. Installed modules of the same name come first."""
    if (trust or ":" in (name or "")) and (here := str(Path.cwd())) not in sys.path and "" not in sys.path:
        sys.path.append(here)


def value_of(option: str, arguments: Sequence[str]) -> str | None:
    """The value that follows an option, or its ``=``; None without the option."""
    for name, value in zip(arguments, [*arguments, ""][1:], strict=True):
        if name == option:
            return value
        if name.startswith(f"{option}="):
            return name.removeprefix(f"{option}=")
    return None


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
