"""The command ``fastrl demos``: recorded episodes of experts."""

from collections.abc import Callable

from fastrl.cli.demos_minari import export, import_
from fastrl.cli.demos_record import record, replay
from fastrl.cli.demos_sets import filter_, merge, show, split
from fastrl.utils.command_line import ArgumentParser
from fastrl.utils.names import nearest

COMMANDS: dict[str, tuple[Callable[[str, list[str]], int], str]] = {
    "record": (record, "record episodes of an expert"),
    "replay": (replay, "play stored actions again, and compare to the bit"),
    "show": (show, "print a summary, and draw returns and lengths"),
    "filter": (filter_, "keep the episodes with the highest returns"),
    "split": (split, "make two data sets of one, by episodes"),
    "merge": (merge, "make one data set of several"),
    "export": (export, "write a data set for Minari"),
    "import": (import_, "read a data set of Minari"),
}


def demos(prog: str, arguments: list[str]) -> int:
    """Runs one of `COMMANDS`."""
    if arguments and arguments[0] in COMMANDS:
        return COMMANDS[arguments[0]][0](f"{prog} {arguments[0]}", arguments[1:])
    parser = ArgumentParser(
        prog=prog,
        usage=f"{prog} [-h] COMMAND ...",
        description="\n".join(
            [
                "Records and inspects demonstrations: episodes of an expert.",
                "",
                "commands:",
                *(f"  {name:<8}{description}" for name, (_, description) in COMMANDS.items()),
            ]
        ),
        epilog=f"{prog} COMMAND --help explains a command.",
    )
    if arguments and not arguments[0].startswith("-"):
        parser.error(f"unknown command {arguments[0]}; did you mean {nearest(arguments[0], COMMANDS)}?")
    parser.parse_args(arguments)
    parser.print_help()
    return 0
