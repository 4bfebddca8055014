"""The command ``fastrl demos``: recorded episodes of experts."""

from fastrl.cli.arguments import Commands, GroupParser
from fastrl.cli.demos_record import record, replay
from fastrl.cli.demos_sets import export, filter_, import_, merge, show, split

COMMANDS: Commands = {
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
    parser = GroupParser(prog, COMMANDS, "Records and inspects demonstrations: episodes of an expert.")
    parser.parse_args(arguments)
    parser.print_help()
    return 0
