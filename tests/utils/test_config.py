import contextlib
import dataclasses
import math
import os
import re
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field, ValidationError

from fastrl.utils.command_line import ArgumentParser, add_options, read_arguments
from fastrl.utils.config import (
    ConfigError,
    EndOf,
    Setting,
    Values,
    build,
    by_keyword,
    check,
    leaves,
    load_toml,
    nearest,
    resumable_keys,
    section,
    to_toml,
    to_tree,
)


@section
class RunPart:
    """One run. And more."""

    seed: Annotated[int, Field(ge=0, description="fixes the run"), Setting(option="--seed")] = 0
    device: Annotated[
        Literal["auto", "cpu", "cuda"], Field(description="where it lives"), Setting(resumable=True)
    ] = "auto"
    name: Annotated[str, Field(description="100% free text")] = "it"


@section
class LearnPart:
    """Learning."""

    learning_rate: Annotated[float, Field(gt=0, description="size of a step")] = 1e-3
    value_clip: Annotated[float | None, Field(gt=0, description="limit")] = None
    hidden: Annotated[tuple[Annotated[int, Field(ge=1)], ...], Field(description="widths")] = (64, 64)
    actions: Annotated[Literal["effective"] | tuple[int, ...] | None, Field(description="which")] = None
    compile: Annotated[bool, Field(description="faster")] = False


@section
class Config:
    run: RunPart = RunPart()
    learn: LearnPart = LearnPart()


def read_toml(path: str | Path) -> Values:
    return check(Config, load_toml(path), str(path))


def from_command_line(*arguments: str) -> Config:
    parser = ArgumentParser(prog="prog")
    add_options(parser, Config)
    return build(Config, read_arguments(Config, parser.parse_args(arguments)))


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one line on stderr that a command line is refused with."""
    with pytest.raises(SystemExit) as exit_info:
        from_command_line(*arguments)
    assert exit_info.value.code == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    return lines[0]


def test_sections_are_frozen_and_take_keywords_only() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        RunPart().seed = 1  # type: ignore[misc]
    with pytest.raises((TypeError, ValidationError)):
        RunPart(1)  # type: ignore[call-arg]
    with pytest.raises(ValidationError, match="sed"):
        RunPart(sed=1)  # type: ignore[call-arg]
    with pytest.raises(ValidationError):
        LearnPart(learning_rate=math.nan)


def test_defaults_are_checked_too() -> None:
    @section
    class Wrong:
        rate: Annotated[float, Field(gt=0)] = 0.0

    with pytest.raises(ValidationError):
        Wrong()


def test_later_layers_go_on_top() -> None:
    preset = check(
        Config, {"run": {"seed": 1, "name": "preset"}, "learn": {"learning_rate": 0.1}}, "preset p"
    )
    file = check(Config, {"run": {"seed": 2}, "learn": {"hidden": [8]}}, "f.toml")
    config = build(Config, preset, file, {"run.seed": 3})
    assert config == Config(
        run=RunPart(seed=3, name="preset"), learn=LearnPart(learning_rate=0.1, hidden=(8,))
    )


@section
class SchedulePart:
    rate: float = 3.0
    final_rate: Annotated[float | None, EndOf("rate")] = 1.0
    share: float = 1.0
    final_share: Annotated[float, EndOf("share", "falls")] = 0.1


@section
class Schedules:
    learn: SchedulePart = SchedulePart()


def test_a_start_that_is_given_alone_has_the_end_of_no_lower_layer() -> None:
    def ends(*layers: dict[str, float | None]) -> tuple[float | None, float]:
        learn = build(Schedules, *({f"learn.{key}": layer[key] for key in layer} for layer in layers)).learn
        return learn.final_rate, learn.final_share

    assert ends() == ends({}) == (1.0, 0.1)
    # Constant, unless the same layer or a later one says where it ends.
    assert ends({"rate": 2.0})[0] is None
    assert ends({"rate": 2.0, "final_rate": 0.5})[0] == ends({"rate": 2.0}, {"final_rate": 0.5})[0] == 0.5
    assert ends({"rate": 2.0, "final_rate": 0.5}, {"rate": 1.0})[0] is None
    assert ends({"final_rate": 0.5})[0] == 0.5
    # One that falls keeps its end, but does not rise to it.
    assert [ends({"share": share})[1] for share in (0.5, 0.1, 0.05, 0.0)] == [0.1, 0.1, 0.05, 0.0]
    assert ends({"share": 0.05, "final_share": 0.2})[1] == 0.2


@pytest.mark.parametrize(
    ("arguments", "key", "value"),
    [
        (["--seed", "3"], "run.seed", 3),
        (["--run.seed=1e3"], "run.seed", 1000),
        (["--run.seed", "1_000"], "run.seed", 1000),
        (["--learn.learning-rate", "3e-4"], "learn.learning_rate", 3e-4),
        (["--learn.learning-rate=1"], "learn.learning_rate", 1.0),
        (["--learning-rate=1"], "learn.learning_rate", 1.0),
        (["--learning_rate", "1"], "learn.learning_rate", 1.0),
        (["--no-compile"], "learn.compile", False),
        (["--learn.hidden", "128,64,32"], "learn.hidden", (128, 64, 32)),
        (["--learn.hidden", "[64, 64]"], "learn.hidden", (64, 64)),
        (["--learn.hidden", "7"], "learn.hidden", (7,)),
        (["--learn.hidden", ""], "learn.hidden", ()),
        (["--learn.value-clip", "0.2"], "learn.value_clip", 0.2),
        (["--learn.value-clip", "none"], "learn.value_clip", None),
        (["--learn.actions", "effective"], "learn.actions", "effective"),
        (["--learn.actions", "1,2"], "learn.actions", (1, 2)),
        (["--learn.compile"], "learn.compile", True),
        (["--no-learn.compile"], "learn.compile", False),
        (["--learn.compile", "--seed", "4"], "run.seed", 4),
        (["--run.name", "none"], "run.name", "none"),
        (["--seed", "1", "--seed", "2"], "run.seed", 2),
    ],
)
def test_options(arguments: list[str], key: str, value: Any) -> None:
    part, name = key.split(".")
    got = getattr(getattr(from_command_line(*arguments), part), name)
    assert got == value
    assert type(got) is type(value)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--learn.learning_rat", "1"], ["--learn.learning_rat;", "--learn.learning-rate?"]),
        (["--learning-rat=1"], ["--learning-rat;", "--learning-rate?"]),
        (["--lr", "1"], ["--lr;", "--learning-rate?"]),
        (["--sead", "1"], ["--sead;", "--seed?"]),
        (["--seed"], ["--seed"]),
        (["stray"], ["stray"]),
        (["--learn.compile=no"], ["--learn.compile takes no value", "'no'", "--no-learn.compile"]),
        (["--no-learn.compile", "true"], ["--no-learn.compile takes no value", "'true'"]),
        (["--learn.compile", "False"], ["--learn.compile takes no value", "'False'", "--no-learn.compile"]),
        (["--learn.compile", "0"], ["--learn.compile takes no value", "'0'"]),
        (["--learn.compil"], ["--learn.compil;", "--learn.compile?"]),
    ],
)
def test_unknown_options_name_the_nearest(
    arguments: list[str], words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    line = refused(capsys, *arguments)
    assert line.startswith("prog: error: ")
    for word in words:
        assert word in line


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--seed", "x"], "--seed should be a valid integer, got 'x'"),
        (["--seed", "1.5"], "--seed should be a valid integer, got '1.5'"),
        (["--seed", "-1"], "--seed should be greater than or equal to 0, got '-1'"),
        (["--learn.learning-rate", "nan"], "--learn.learning-rate should be a finite number, got 'nan'"),
        (["--learn.learning-rate", "none"], "--learn.learning-rate should be a valid number, got 'none'"),
        (
            ["--run.device", "gpu"],
            "--run.device should be 'auto', 'cpu' or 'cuda', got 'gpu'; did you mean 'cpu'?",
        ),
        (
            ["--learn.hidden", "64,x"],
            "--learn.hidden should be a list whose item 2 is a valid integer, got '64,x'",
        ),
    ],
)
def test_ill_typed_options_are_named(arguments: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        from_command_line(*arguments)
    assert str(error.value) == message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[learn]\nlr = 1", "unknown key learn.lr; did you mean learn.learning_rate?"),
        ("[larn]\nhidden = [1]", "unknown table [larn]; did you mean learn?"),
        ("sed = 1", "unknown key sed; did you mean run.seed?"),
        ("learn = 1", "learn should be a table of settings, got 1"),
        ("[run]\nseed = '1'", "run.seed should be a valid integer, got '1'"),
        ("[run]\nseed = true", "run.seed should be a valid integer, got True"),
        ("[run]\nseed.x = 1", "run.seed should be a valid integer, got {'x': 1}"),
        ("[learn]\nlearning_rate = inf", "learn.learning_rate should be a finite number, got inf"),
        ("[learn]\nhidden = 64", "learn.hidden should be a list, got 64"),
        (
            "[learn]\nhidden = [64, 0]",
            "learn.hidden should be a list whose item 2 is greater than or equal to 1",
        ),
        ("[learn]\ncompile = 1979-05-27", "learn.compile should be a valid boolean, got datetime"),
    ],
)
def test_mistakes_in_files_are_named(tmp_path: Any, text: str, message: str) -> None:
    path = tmp_path / "run.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as error:
        read_toml(path)
    assert str(error.value).startswith(f"{path}: {message}")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "content", [b"[learn\n", b"\xff\xfe\x00", b"a = 1\na = 2\n", b"PK\x03\x04" + bytes(99)]
)
def test_files_that_are_not_toml(tmp_path: Any, content: bytes) -> None:
    path = tmp_path / "run.toml"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"is not a TOML file") as error:
        read_toml(path)
    assert "\n" not in str(error.value)


def test_yaml_is_answered(tmp_path: Any) -> None:
    path = tmp_path / "ppo.yml"
    path.write_text("n_steps: 128\n")
    with pytest.raises(ConfigError, match="settings are no YAML: --print-config prints a file to edit"):
        read_toml(path)


def test_missing_file(tmp_path: Any) -> None:
    with pytest.raises(ConfigError, match=r"cannot read .*nowhere.toml: No such file"):
        read_toml(tmp_path / "nowhere.toml")
    with pytest.raises(ConfigError, match="is no regular file"):
        read_toml(tmp_path)


finite = st.floats(min_value=1e-300, max_value=1e300)
configs = st.builds(
    Config,
    run=st.builds(
        RunPart,
        seed=st.integers(0, 2**63 - 1),
        device=st.sampled_from(["auto", "cpu", "cuda"]),
        name=st.text(st.characters(exclude_categories=["Cs"])),
    ),
    learn=st.builds(
        LearnPart,
        learning_rate=finite,
        value_clip=st.none() | finite,
        hidden=st.lists(st.integers(1, 4096), max_size=4).map(tuple),
        actions=st.none() | st.just("effective") | st.lists(st.integers(0, 144), max_size=4).map(tuple),
        compile=st.booleans(),
    ),
)


@given(configs)
def test_toml_reads_back_equal(tmp_path_factory: pytest.TempPathFactory, config: Config) -> None:
    path = tmp_path_factory.mktemp("toml") / "run.toml"
    path.write_text(to_toml(config), encoding="utf-8")
    assert build(Config, read_toml(path)) == config
    assert build(Config, check(Config, to_tree(config), "tree")) == config


def test_toml_is_complete() -> None:
    tree = to_tree(Config())
    assert {f"{part}.{name}" for part, values in tree.items() for name in values} == set(leaves(Config))


def test_values_that_do_not_go_together() -> None:
    @section
    class Pair:
        low: int = 0
        high: int = 1

        def __post_init__(self) -> None:
            if self.low > self.high:
                raise ValueError(f"low {self.low} is above high {self.high}")

    @section
    class Whole:
        pair: Pair = Pair()

    with pytest.raises(ConfigError, match=r"^pair: low 2 is above high 1$"):
        build(Whole, {"pair.low": 2})


@pytest.mark.parametrize(
    ("name", "expected"),
    [("clip", "ppo.clip_range"), ("ppo.lr", "ppo.learning_rate"), ("num_env", "env.num_envs"), ("zzz", None)],
)
def test_nearest(name: str, expected: str | None) -> None:
    known = ["env.num_envs", "ppo.clip_range", "ppo.learning_rate", "run.seed"]
    assert nearest(name, known) == expected or (expected is None and nearest(name, known) in known)


def test_help_tells_names_types_defaults_and_limits() -> None:
    parser = ArgumentParser(prog="prog")
    add_options(parser, Config)
    text = " ".join(parser.format_help().split())
    assert " --seed INT fixes the run [0]" in text
    assert " --device auto|cpu|cuda where it lives [auto]" in text
    assert " --hidden INT,INT,... widths [64,64]" in text
    assert " --value-clip FLOAT|none limit [none]" in text
    assert " --compile/--no-compile faster [false]" in text
    assert "100% free text" in text
    assert "run: One run. And more." in text


def test_marks_of_settings() -> None:
    assert resumable_keys(Config) == ["run.device"]
    assert {key: leaf.option for key, leaf in leaves(RunPart).items()} == {
        "seed": "--seed",
        "device": "--device",
        "name": "--name",
    }
    assert leaves(Config)["run.device"].option == "--run.device"
    assert leaves(Config)["run.seed"].setting == Setting(option="--seed")
    assert leaves(Config)["run.name"].setting == Setting()


def test_the_last_mark_of_a_setting_counts() -> None:
    @section
    class Part:
        seed: Annotated[Annotated[int, Setting(option="--seed")], Setting(resumable=True)] = 0

    assert leaves(Part)["seed"].setting == Setting(resumable=True)


def test_short_help_shows_common_options_in_their_order(capsys: pytest.CaptureFixture[str]) -> None:
    parser = ArgumentParser(prog="prog", common=("--hidden", "--not-here", "--seed"), epilog="The end.")
    add_options(parser, Config, defaults={"learn.hidden": (3, 4)})
    with pytest.raises(SystemExit) as exit_info:
        parser.parse_args(["-h"])
    out = capsys.readouterr().out.partition("\noptions:")[2]
    assert exit_info.value.code == 0
    assert re.findall(r"^  (-\S+)", out, re.MULTILINE) == ["--hidden", "--seed", "-h,", "--help-all"]
    assert "widths [3,4]" in out and "run:" not in out
    assert out.endswith(f"The end.\n\n--help-all shows {len(leaves(Config)) - 2} more options.\n")


@section
class OtherPart:
    """Settings with names that other tables have too."""

    name: Annotated[str, Field(description="its name")] = "other"
    hidden: Annotated[int, Field(description="something else")] = 1
    seed: Annotated[int, Field(description="of its own")] = 5


@section
class Shared:
    run: RunPart = RunPart()
    learn: LearnPart = LearnPart()
    other: OtherPart = OtherPart()


@pytest.mark.parametrize(
    ("name", "value", "key"),
    [
        ("learning_rate", 0.5, "learn.learning_rate"),
        ("hidden", (7,), "learn.hidden"),  # of the algorithm's table
        ("seed", 3, "run.seed"),  # an option of its own
        ("device", "cpu", "run.device"),
        ("other__seed", 3, "other.seed"),
        ("other__hidden", 3, "other.hidden"),
    ],
)
def test_short_names_mean_the_same_in_options_and_keywords(name: str, value: Any, key: str) -> None:
    assert by_keyword(Shared, "learn", {name: value}) == {key: value}
    parser = ArgumentParser(prog="prog")
    add_options(parser, Shared, "learn")
    option = f"--{name.replace('__', '.').replace('_', '-')}"
    text = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
    assert read_arguments(Shared, parser.parse_args([option, text])) == {key: value}


def test_ambiguous_short_names_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(
        ConfigError, match=r"^name is a setting of several tables: say run__name or other__name$"
    ):
        by_keyword(Shared, "learn", {"name": "x"})
    parser = ArgumentParser(prog="prog")
    add_options(parser, Shared, "learn")
    with pytest.raises(SystemExit):
        parser.parse_args(["--name", "x"])
    line = "prog: error: --name is a setting of several tables: give --run.name or --other.name\n"
    assert capsys.readouterr().err == line


def test_every_leaf_has_an_option() -> None:
    parser = ArgumentParser()
    add_options(parser, Config)
    unknown: list[str] = []
    for leaf in leaves(Config).values():
        with contextlib.suppress(SystemExit):  # its value is missing
            unknown += parser.parse_known_args([leaf.long_option])[1]
    assert not unknown


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("a = " + "[" * 5000 + "]" * 5000, "its values are nested too deeply"),
        ("a = " + "9" * 5000, "Exceeds the limit (4300 digits) for integer string conversion"),
    ],
)
def test_a_file_that_python_cannot_read_is_refused(text: str, why: str, tmp_path: Path) -> None:
    file = tmp_path / "f.toml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=f"^{re.escape(f'{file}: {why}')}"):
        read_toml(file)


def test_a_file_that_never_ends_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="/dev/zero is not a file of settings: it is no regular file"):
        read_toml("/dev/zero")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ConfigError, match="pipe is not a file of settings: it is no regular file"):
        read_toml(tmp_path / "pipe")
    os.truncate(os.open(tmp_path / "long", os.O_CREAT | os.O_WRONLY), 1 << 30)
    with pytest.raises(ConfigError, match="long is not a file of settings: it has more than 1,048,576 bytes"):
        read_toml(tmp_path / "long")


def test_tables_that_dots_nest_too_deeply_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "f.toml"
    file.write_text(".".join("a" * 5000) + " = 1")
    with pytest.raises(ConfigError, match="its values are nested too deeply"):
        read_toml(file)


def test_the_defaults_of_a_section_are_those_of_the_instance_in_the_configuration() -> None:
    @section
    class Run:
        steps: int = 10
        seed: int = 0

    @section
    class Task:
        run: Run = Run(steps=500)

    assert leaves(Task)["run.steps"].default == 500
    assert build(Task, {"run.seed": 3}).run == Run(steps=500, seed=3)
