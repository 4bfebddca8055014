"""Command lines made from the types of a configuration: a parser, an option for every setting, help texts."""

import argparse
import itertools
import re
import shutil
import textwrap
from collections.abc import Sequence
from typing import Any, NoReturn

from fastrl.utils.config import LIKELY, Values, leaves, likeness, nearest, sections, to_plain


class ArgumentParser(argparse.ArgumentParser):
    """argparse whose errors are one line that names the nearest valid option; exit code 2.

    Underscores in option names mean hyphens. With settings (`add_options`) ``-h`` and ``--help`` show the common
    options, ``--help-all`` shows all.
    """

    def __init__(self, **options: Any) -> None:
        options.setdefault("formatter_class", HelpFormatter)
        super().__init__(allow_abbrev=False, add_help=False, **options)
        self.add_argument("-h", "--help", action=_Help, help="show this help and exit")
        self.uncommon: list[argparse.Action] = []

    def hide(self, *actions: argparse.Action) -> None:
        """Leaves options out of ``--help``; ``--help-all`` shows them."""
        if not self.uncommon:
            self.add_argument("--help-all", action=_Help, help="show all options and exit")
        self.uncommon += actions

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        arguments = [self._spelled(str(argument)) for argument in args]
        for option, value in itertools.pairwise(arguments):
            if value in ("true", "false") and isinstance(self._option_string_actions.get(option), _Switch):
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
        if _normal(option) not in known:
            near = nearest(_normal(option), known)
            likely = likeness(_normal(option), near) >= LIKELY
            hint = f"did you mean {known[near]}?" if likely else f"{self._help_option} lists all options"
            self.error(f"unknown option {option}; {hint}")
        name = known[_normal(option)]
        if equals and isinstance(self._option_string_actions[name], _Switch):
            self._refuse_value(name, value)
        return name + equals + value

    def _refuse_value(self, option: str, value: str) -> NoReturn:
        switch = self._option_string_actions[option].option_strings
        on, off = (name for name in switch[:2])
        self.error(f"{option} takes no value, got {value!r}: give {on} or {off}")

    @property
    def _help_option(self) -> str:
        return "--help-all" if self.uncommon else "--help"


def add_options(parser: ArgumentParser, config_type: type) -> None:
    """Adds an option ``--section.key`` for every leaf, and the shorter one of its `Setting`; of a leaf that is true or
    false two, ``--x`` and ``--no-x``.

    Each section is a group in the help.

    Args:
        parser: the parser that gets the options.
        config_type: a section of sections.
    """
    groups = {
        name: parser.add_argument_group(
            name, (cls.__doc__ or "").strip().partition("\n")[0].replace("``", "")
        )
        for name, cls in sections(config_type).items()
    }
    for key, leaf in leaves(config_type).items():
        form: dict[str, Any] = {"metavar": leaf.metavar()}
        if leaf.is_switch:
            form = {"action": _Switch}
        elif leaf.setting.words:
            # It may be repeated.
            form |= {"action": "extend", "nargs": "+"}
        action = groups[key.partition(".")[0]].add_argument(
            *dict.fromkeys([leaf.option, leaf.long_option]),
            dest=key,
            help=f"{leaf.description} [{_shown(leaf.default)}]".replace("%", "%%"),
            default=argparse.SUPPRESS,
            **form,
        )
        if not leaf.setting.common:
            parser.hide(action)


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
    """Names all spellings of an option before its value once: ``--seed, --run.seed INT``. Lines break between words and
    nowhere else; those of descriptions stay, and break where they are too long for the terminal."""

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
            lines += _wrapped(indent + line, width, " " * hanging + indent) or [""]
        return "\n".join(lines)

    def _format_action_invocation(self, action: argparse.Action) -> str:
        if isinstance(action, _Switch):
            on, off, *others = action.option_strings
            return ", ".join([f"{on}/{off}", *others[::2]])
        if not action.option_strings or action.nargs == 0:
            return super()._format_action_invocation(action)
        value = self._format_args(action, self._get_default_metavar_for_optional(action))
        return f"{', '.join(action.option_strings)} {value}"


class _Switch(argparse.BooleanOptionalAction):
    """``--x`` or ``--no-x``."""


class _Help(argparse.Action):
    """Prints the help and exits: ``--help`` leaves out the settings that are not common."""

    def __init__(self, option_strings: Sequence[str], dest: str, **others: Any) -> None:
        super().__init__(option_strings, argparse.SUPPRESS, nargs=0, default=argparse.SUPPRESS, **others)

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: Any, values: Any, option_string: str | None = None
    ) -> NoReturn:
        assert isinstance(parser, ArgumentParser)
        hidden = [] if option_string == "--help-all" else parser.uncommon
        for action in hidden:
            action.help = argparse.SUPPRESS
        for group in parser._action_groups:
            # argparse leaves out the title of an empty group, but not its description.
            if all(action.help is argparse.SUPPRESS for action in group._group_actions):
                group.description = argparse.SUPPRESS
        parser.print_help()
        if hidden:
            print(f"\n--help-all shows {len(hidden)} more settings.")
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
