"""Spaces of a search."""

from pathlib import Path

import numpy as np
import pytest
from tuning_fakes import SPACE, space_from

from fastrl.algorithms import algorithms
from fastrl.tasks import find, tasks
from fastrl.tuning.population import population_space
from fastrl.tuning.space import Parameter, mark_of, read_space, space_of
from fastrl.tuning.tune import space_for
from fastrl.utils.config import ConfigError, build, check, leaves, to_tree
from fastrl.utils.tunable import Range


def settings_of(algo: str = "ppo"):
    return find("gym").make_settings({"env.id": "CartPole-v1", "run.algo": algo})


@pytest.mark.parametrize("name", algorithms())
def test_every_algorithm_has_a_space_whose_points_are_settings(name: str) -> None:
    task = next(find(each) for each in tasks() if find(each).takes(algorithms()[name]))
    config_type = task.settings_type(name)
    space = space_of(build(config_type), has_images=False)
    table = task.algorithm_table(name)
    assert f"{table}.learning_rate" in space.marks and len(space.parameters) >= 5
    generator = np.random.default_rng(0)
    for _ in range(20):
        build(config_type, space.values(space.draw(generator)))


def test_marks_lie_within_what_settings_allow() -> None:
    # Space itself checks both ends, and build all else; what no space has by default is checked here.
    leaf = leaves(type(settings_of()))["ppo.memory_size"]
    mark = mark_of(leaf)
    assert isinstance(mark, Range) and not mark.search
    assert leaf.convert(mark.low, "low") == 32


def test_a_part_of_the_space_is_off_or_only_for_images() -> None:
    plain, images = (space_of(settings_of(), has_images=each) for each in (False, True))
    names = {each.name for each in plain.parameters}
    assert {"ppo.hidden.width", "ppo.hidden.depth"} <= names and "ppo.memory" not in names
    assert "ppo.memory" in plain.marks
    assert "ppo.encoder" not in plain.marks
    assert "ppo.encoder" in {each.name for each in images.parameters}


def test_given_settings_are_not_searched() -> None:
    space = space_of(settings_of(), has_images=False, fixed=["ppo.gamma"])
    assert "ppo.gamma" not in space.marks


def test_a_start_that_is_searched_has_the_end_that_was_given_else_none(tmp_path: Path) -> None:
    settings = find("gym").make_settings(
        {"env.id": "CartPole-v1", "run.algo": "ppo", "ppo.final_learning_rate": 1e-6}
    )
    space = space_for(find("gym"), settings, None, ["ppo.final_learning_rate"], "random")
    assert {each.name for each in space.parameters} >= {"ppo.learning_rate", "ppo.entropy_coef"}
    file = tmp_path / "space.toml"
    file.write_text(space.to_toml())
    for each in (space, read_space(settings, file), population_space(space)):
        values = each.values(each.at([0.5] * len(each.parameters)))
        ppo = build(type(settings), check(type(settings), to_tree(settings), "settings"), values).ppo
        assert (ppo.final_learning_rate, ppo.final_entropy_coef) == (1e-6, None)
        assert (ppo.learning_rate, ppo.entropy_coef) == (
            values["ppo.learning_rate"],
            values["ppo.entropy_coef"],
        )


def test_what_is_printed_is_read_back(tmp_path: Path) -> None:
    settings = settings_of()
    space = space_of(settings, has_images=True)
    file = tmp_path / "space.toml"
    file.write_text(space.to_toml())
    again = read_space(settings, file)
    assert again.parameters == space.parameters
    assert again.to_toml() == space.to_toml()


def test_memory_is_searched_where_a_file_says_so(tmp_path: Path) -> None:
    text = space_of(settings_of(), has_images=False).to_toml().replace("search = false\n", "")
    space = space_from(text, tmp_path / "x", settings_of())
    assert {"ppo.memory", "ppo.memory_size"} <= {each.name for each in space.parameters}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[ppo.gama]\nlow=0.9\nhigh=1", "unknown setting ppo.gama; did you mean ppo.gamma"),
        ("[ppo.gamma]\nlow=0.9\nhigh=1.5", "ppo.gamma should be less than or equal to 1, got 1.5"),
        ("[ppo.gamma]\nlow=0.9\nhigh=0.8", "low should be a number less than high"),
        ("[ppo.gamma]\nlow=0\nhigh=0.8\nlog=true", "log needs a low above 0"),
        ("[ppo.gamma]\nlow=0.1", "should have low and high"),
        ("[ppo.gamma]\nvalues=[]", "has no values"),
        ("[ppo]\ngamma=0.9", "should be a table such as"),
        ('[ppo.activation]\nvalues=["relu", "sine"]', "ppo.activation should be"),
    ],
)
def test_a_wrong_space_is_refused_in_one_line(text: str, problem: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=problem) as caught:
        space_from(text, tmp_path / "x", settings_of())
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "parameter",
    [
        Parameter("a", 1e-5, 1e-1, log=True),
        Parameter("a", 0.9, 0.999, log=True, from_one=True),
        Parameter("a", -1, 2),
        Parameter("a", 1, 16, integer=True),
        Parameter("a", 16, 512, log=True, integer=True),
        Parameter("a", choices=(16, 32, 64), ordered=True),
        Parameter("a", choices=("x", None, True)),
    ],
)
def test_values_lie_in_their_range_and_shares_are_their_inverse(parameter: Parameter) -> None:
    values = [parameter.at(share) for share in np.linspace(0, 0.999999, 200)]
    if parameter.choices:
        assert set(values) == set(parameter.choices)
    else:
        assert min(values) >= parameter.low and max(values) <= parameter.high
        assert {min(values), max(values)} >= ({parameter.low} if not parameter.log else set())
        rising = values[::-1] if parameter.from_one else values
        assert rising == sorted(rising)
        assert all(isinstance(value, int) == parameter.integer for value in values)
    shares = [parameter.share(value) for value in values]
    assert min(shares) >= -1e-9 and max(shares) <= 1 + 1e-9
    assert max(shares) - min(shares) > 0.9


def test_each_whole_number_is_as_likely() -> None:
    parameter = Parameter("a", 1, 4, integer=True)
    drawn = [parameter.at(share) for share in np.linspace(0, 0.99999, 4000)]
    assert np.bincount(drawn)[1:].tolist() == pytest.approx([1000] * 4, abs=2)


def test_a_space_of_text_has_its_parameters(tmp_path: Path) -> None:
    space = space_from(SPACE, tmp_path / "x", settings_of())
    point = space.at([0.5, 0.5, 0.0, 0.99, 0.0])
    assert point["ppo.learning_rate"] == pytest.approx(1e-3)
    assert space.values(point)["ppo.hidden"] == (16, 16)
    assert 1 - point["ppo.gamma"] == pytest.approx(1e-2)
