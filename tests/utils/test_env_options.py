"""Options of environments: one grammar on the command line, in files and in presets."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastrl.tasks import find
from fastrl.utils.command_line import ArgumentParser, add_options, read_arguments
from fastrl.utils.config import ConfigError, build, check, load_toml, to_toml
from fastrl.utils.env_options import parse_options, parse_value, read_options

# Of tasks whose environments take options.
CONFIG_TYPES = (find("gym").settings_type("ppo"), find("traffic").settings_type("ippo"))

names = st.from_regex(r"[a-z_][a-z0-9_]{0,8}", fullmatch=True)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)


def from_command_line(config_type: type, *words: str) -> Any:
    parser = ArgumentParser(prog="prog")
    add_options(parser, config_type)
    return build(config_type, read_arguments(config_type, parser.parse_args(words)))


@pytest.mark.slow
@given(st.dictionaries(names, values, max_size=4))
def test_values_come_back_from_command_lines_and_files(
    tmp_path_factory: pytest.TempPathFactory, options: dict[str, Any]
) -> None:
    pairs = [f"{name}={json.dumps(value)}" for name, value in options.items()]
    assert parse_options(pairs) == read_options(pairs) == options
    for config_type in CONFIG_TYPES:
        short = from_command_line(config_type, *(["--env-options", *pairs] if pairs else []))
        long = from_command_line(config_type, *(f"--env.options={pair}" for pair in pairs))
        assert short == long
        assert parse_options(short.env.options) == options
        assert build(config_type, check(config_type, {"env": {"options": pairs}}, "preset")) == short
        path = tmp_path_factory.mktemp("toml") / "run.toml"
        path.write_text(to_toml(short), encoding="utf-8")
        assert build(config_type, check(config_type, load_toml(path), str(path))) == short


@given(st.text())
def test_every_text_is_a_value(text: str) -> None:
    value = parse_value(text)
    assert value == text.strip() or not isinstance(value, str) or json.loads(text) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("true", True),
        ("True", True),
        ("false", False),
        ("False", False),
        ("none", None),
        ("None", None),
        ("null", None),
        ("3", 3),
        ("-1e-3", -1e-3),
        (" 3 ", 3),
        ("[208, 270]", [208, 270]),
        ('{"g": 0.5}', {"g": 0.5}),
        ('"true"', "true"),
        ("human", "human"),
        ("x=y", "x=y"),
        ("4x4", "4x4"),
        ("", ""),
        ("[1, 2", "[1, 2"),
        *((text, text) for text in ("[" * 100_000, "1" * 5000, "-" * 100_000 + "1", "{[]: 1}")),
    ],
)
def test_values(text: str, value: Any) -> None:
    parsed = parse_value(text)
    assert (parsed, type(parsed)) == (value, type(value))


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["lanes"], "should be KEY=VALUE such as lanes=3, got ['lanes']"),
        (["=1"], "should be KEY=VALUE such as lanes=3, got ['=1']"),
        (["a b=1"], "should be KEY=VALUE such as lanes=3, got ['a b=1']"),
        (["a=1", "a=2"], "should give a once, got ['a=1', 'a=2']"),
    ],
)
def test_pairs_of_another_form_are_refused(words: list[str], problem: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as read:
        read_options(words)
    assert str(read.value) == f"--env-options {problem}"
    for config_type in CONFIG_TYPES:
        with pytest.raises(ConfigError) as given:
            from_command_line(config_type, "--env-options", *words)
        assert str(given.value) == f"--env-options {problem}"
        with pytest.raises(ConfigError) as filed:
            check(config_type, {"env": {"options": words}}, "f.toml")
        assert str(filed.value) == f"f.toml: env.options {problem}"
