"""Command lines made from the types of a configuration: a parser, an option for every setting, help texts."""

import argparse
import itertools
import re
import shutil
import textwrap
from collections.abc import Sequence
from typing import Any, NoReturn

from fastrl.utils.config import Values, leaves, sections, short_names, to_plain
from fastrl.utils.names import likely
from fastrl.utils.other_names import other_setting

# Words that are a value of a switch in other programs, and no argument of ours.
_TRUTHS = {"true", "false", "yes", "no", "on", "off", "0", "1"}


class ArgumentParser(argparse.ArgumentParser):
    """argparse whose errors are one line that names the nearest valid option; exit code 2.

    Underscores in option names mean hyphens.

    Args:
        common: names of the options that ``-h`` and ``--help`` show, in this order, where ``--help-all`` shows all;
            empty: both show all, and there is no ``--help-all``.
        add_help: there are options for the help.
        options: of argparse.
    """

    def __init__(self, *, common: Sequence[str] = (), add_help: bool = True, **options: Any) -> None:
        options.setdefault("formatter_class", HelpFormatter)
        super().__init__(allow_abbrev=False, add_help=False, **options)
        if add_help:
            self.add_argument("-h", "--help", action=_Help, help="show this help and exit")
        if common:
            self.add_argument("--help-all", action=_Help, help="show all options and exit")
        # Also numbers such as -1e-3 are values, not options.
        self._negative_number_matcher = re.compile(r"-(\d[\d_]*\.?\d*|\.\d+)(e[+-]?\d+)?$", re.IGNORECASE)
        self._common = common
        # Short names that several settings have, with the long names of these.
        self._ambiguous: dict[str, list[str]] = {}

    def show_common_options(self) -> None:
        """Makes the help show the common options alone, in one list."""
        names = [name for name in ("-h", "--help-all", *self._common) if name in self._option_string_actions]
        shown = [self._option_string_actions[name] for name in names]
        hidden = len({id(action) for action in self._option_string_actions.values()}) - len(shown)
        for group in self._action_groups:
            group.description = argparse.SUPPRESS
            group._group_actions = []
        self._optionals._group_actions = [*shown[2:], *shown[:2]]
        self.epilog = f"{self.epilog}\n\n--help-all shows {hidden} more options."

    def switches(self) -> set[str]:
        """The options that are true or false and take no value."""
        return {name for name, action in self._option_string_actions.items() if isinstance(action, _Switch)}

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        arguments = [self._spelled(str(argument)) for argument in args]
        for option, value in itertools.pairwise(arguments):
            if value.lower() in _TRUTHS and isinstance(self._option_string_actions.get(option), _Switch):
                self._refuse_value(option, value)
        # Plain parsing accepts no optional positional argument after options.
        return self.parse_intermixed_args(arguments, namespace)

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message}\n")

    def _spelled(self, argument: str) -> str:
        """The argument with the name of its option, if it has one, spelled as it was defined."""
        option, equals, value = argument.partition("=")
        if not option.startswith("--") or option == "--":
            return argument
        known = {_normal(name): name for name in self._option_string_actions if name.startswith("--")}
        if several := self._ambiguous.get(_normal(option)):
            self.error(f"{option} is a setting of several tables: give {' or '.join(several)}")
        if _normal(option) not in known:
            found = likely(_normal(option), known)
            if other := other_setting(_normal(option), {name.rpartition(".")[2] for name in known}):
                self.error(f"unknown option {option}; {other}")
            lists = f"{'--help-all' if self._common else '--help'} lists all options"
            hint = lists if found is None else f"did you mean {known[found]}?"
            self.error(f"unknown option {option}; {hint}")
        name = known[_normal(option)]
        if equals and isinstance(self._option_string_actions[name], _Switch):
            self._refuse_value(name, value)
        return name + equals + value

    def _refuse_value(self, option: str, value: str) -> NoReturn:
        names = self._option_string_actions[option].option_strings
        on = option if f"--no-{option[2:]}" in names else f"--{option.removeprefix('--no-')}"
        self.error(f"{option} takes no value, got {value!r}: give {on} or --no-{on[2:]}")


def add_options(
    parser: ArgumentParser, config_type: type, table: str = "", defaults: Values | None = None
) -> None:
    """Adds an option ``--section.key`` for every leaf, and the short names that mean it (`short_names`); of a leaf that
    is true or false also ``--no-x``.

    Each section is a group in the help.

    Args:
        parser: the parser that gets the options.
        config_type: a section of sections.
        table: whose settings short names mean first.
        defaults: values that the help shows in place of the defaults of the type.
    """
    known, shown = leaves(config_type), defaults or {}
    spellings: dict[str, list[str]] = {key: [leaf.option] for key, leaf in known.items()}
    for name, keys in short_names(known, table).items():
        option = f"--{name.replace('_', '-')}"
        if option in parser._option_string_actions:
            continue
        if len(keys) == 1:
            spellings[keys[0]].append(option)
        else:
            parser._ambiguous[_normal(option)] = [known[key].long_option for key in keys]
    groups = {
        name: parser.add_argument_group(
            name, (cls.__doc__ or "").strip().partition("\n")[0].replace("``", "")
        )
        for name, cls in sections(config_type).items()
    }
    for key, leaf in known.items():
        form: dict[str, Any] = {"metavar": leaf.metavar()}
        if leaf.is_switch:
            form = {"action": _Switch}
        elif leaf.setting.words:
            # It may be repeated.
            form |= {"action": "extend", "nargs": "+"}
        # Options of the command itself, or of settings that were added before, keep their names.
        free = [name for name in spellings[key] if name not in parser._option_string_actions]
        names = sorted(dict.fromkeys([*free, leaf.long_option]), key=lambda name: "." in name)
        groups[key.partition(".")[0]].add_argument(
            *names,
            dest=key,
            help=f"{leaf.description} [{_shown(shown.get(key, leaf.default))}]".replace("%", "%%"),
            default=argparse.SUPPRESS,
            **form,
        )


def read_arguments(config_type: type, arguments: argparse.Namespace) -> Values:
    """Returns the values that options made by `add_options` set.

    Raises:
        ConfigError: an ill-typed value; the message names the option.
    """
    given = vars(arguments)
    return {
        key: given[key] if leaf.is_switch else leaf.parse(given[key], leaf.option)
        for key, leaf in leaves(config_type).items()
        if key in given
    }


class HelpFormatter(argparse.HelpFormatter):
    """Names an option and its value once: ``--run-dir, --out DIR``; of a setting only its first name. Lines break
    between words and nowhere else; those of descriptions stay, and break where they are too long for the terminal;
    examples, which are indented, break so that a shell takes them."""

    def __init__(self, prog: str) -> None:
        columns = shutil.get_terminal_size().columns
        super().__init__(prog, max_help_position=34 if columns >= 100 else 24, width=max(columns - 2, 40))

    def _split_lines(self, text: str, width: int) -> list[str]:
        return _wrapped(" ".join(text.split()), width)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        # Text after a name such as "  smoke: " or "  cage2   " is wrapped below itself or a little indented.
        lines = []
        for line in text.splitlines():
            named = re.match(r"\s+\S+\s\s+", line)
            hanging = (
                len(named[0]) if named else len(line) - len(line.lstrip()) + (4 if line[:1] == " " else 0)
            )
            is_example = line.startswith(f"  {self._prog} ")
            *broken, last = _wrapped(indent + line, width - 2 * is_example, " " * hanging + indent) or [""]
            lines += [*(f"{each} \\" if is_example else each for each in broken), last]
        return "\n".join(lines)

    def _format_action_invocation(self, action: argparse.Action) -> str:
        if isinstance(action, _Switch):
            return "/".join(action.option_strings[:2])
        if not action.option_strings or action.nargs == 0:
            return super()._format_action_invocation(action)
        value = self._format_args(action, self._get_default_metavar_for_optional(action))
        is_setting = "." in action.dest
        return f"{', '.join(action.option_strings[: 1 if is_setting else None])} {value}"


class _Switch(argparse.BooleanOptionalAction):
    """``--x`` or ``--no-x``."""


class _Help(argparse.Action):
    """Prints the help and exits; ``--help`` shows the common options alone, if there are such."""

    def __init__(self, option_strings: Sequence[str], dest: str, **others: Any) -> None:
        super().__init__(option_strings, argparse.SUPPRESS, nargs=0, default=argparse.SUPPRESS, **others)

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: Any, values: Any, option_string: str | None = None
    ) -> NoReturn:
        assert isinstance(parser, ArgumentParser)
        if parser._common and option_string != "--help-all":
            parser.show_common_options()
        parser.print_help()
        parser.exit()


def _wrapped(text: str, width: int, hanging: str = "") -> list[str]:
    return textwrap.wrap(
        text, width, subsequent_indent=hanging, break_on_hyphens=False, break_long_words=False
    )


def _shown(value: Any) -> str:
    plain = to_plain(value)
    if isinstance(plain, bool):
        return str(plain).lower()
    if isinstance(plain, int) and plain >= 10_000:
        return f"{plain:_}"
    return ",".join(map(str, plain)) if isinstance(plain, list) else str(plain)


def _normal(option: str) -> str:
    return option.lstrip("-").replace("-", "_")
