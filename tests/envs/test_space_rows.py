"""Rows of observations and actions of any space, beside Gymnasium's own flattening."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import (
    Box,
    Dict,
    Discrete,
    Graph,
    MultiBinary,
    MultiDiscrete,
    Sequence,
    Space,
    Text,
    Tuple,
)
from gymnasium.spaces.utils import flatten
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array
from hypothesis import given, settings
from hypothesis import strategies as st

from fastrl.envs import contract
from fastrl.envs.contract import ContractError
from fastrl.envs.rows import TEXT_SIZE, ActionRows, ObsRows, RowEnv, RowError, in_rows, obs_rows_of
from fastrl.envs.spec import EnvSpec, as_spec

SHAPES = st.lists(st.integers(1, 3), min_size=0, max_size=3).map(tuple)
DTYPES = st.sampled_from([np.float32, np.float64, np.uint8, np.int8, np.int32, np.int64])


@st.composite
def boxes(draw: Any, shapes: Any = SHAPES, dtypes: Any = DTYPES) -> Box:
    shape, dtype = draw(shapes), draw(dtypes)
    low, high = (0, 255) if dtype == np.uint8 else (draw(st.integers(-9, 0)), draw(st.integers(1, 9)))
    if np.dtype(dtype).kind == "f" and draw(st.booleans()):
        low = -np.inf
    return Box(low, high, shape, dtype)


@st.composite
def multi_discretes(draw: Any) -> MultiDiscrete:
    nvec = np.array(draw(st.lists(st.integers(1, 4), min_size=1, max_size=4)))
    start = np.array(draw(st.lists(st.integers(-3, 3), min_size=len(nvec), max_size=len(nvec))))
    if len(nvec) == 4 and draw(st.booleans()):
        nvec, start = nvec.reshape(2, 2), start.reshape(2, 2)
    return MultiDiscrete(nvec, start=start)


DISCRETES = st.builds(lambda n, start: Discrete(n, start=start), st.integers(1, 5), st.integers(-3, 3))
BINARIES = st.one_of(st.integers(1, 4), st.just([2, 3])).map(MultiBinary)
LEAVES = st.one_of(boxes(), DISCRETES, multi_discretes(), BINARIES)
SPACES = st.recursive(
    LEAVES,
    lambda children: st.one_of(
        st.dictionaries(st.sampled_from("abcd"), children, min_size=1).map(Dict),
        st.lists(children, min_size=1, max_size=3).map(Tuple),
    ),
    max_leaves=5,
)
SEEDS = st.integers(0, 2**31 - 1)


def leaves_of(space: Space[Any], value: Any) -> Iterator[tuple[Space[Any], Any]]:
    if isinstance(space, Dict):
        for key, child in space.spaces.items():
            yield from leaves_of(child, value[key])
    elif isinstance(space, Tuple):
        for child, each in zip(space.spaces, value, strict=True):
            yield from leaves_of(child, each)
    else:
        yield space, value


def row_of(rows: ObsRows, value: Any) -> Any:
    row = np.full(rows.size, 7, rows.dtype)
    rows.write(value, row)
    return row


@pytest.mark.slow
@given(space=SPACES, seed=SEEDS)
@settings(max_examples=300, deadline=None)
def test_rows_are_what_gymnasium_flattens(space: Space[Any], seed: int) -> None:
    space.seed(seed)
    rows, value = ObsRows(space), space.sample()
    row = row_of(rows, value)
    leaves = list(leaves_of(space, value))
    is_image = [
        isinstance(each, Box) and each.dtype == np.uint8 and len(each.shape) in (2, 3) for each, _ in leaves
    ]
    assert rows.dtype == (np.uint8 if any(is_image) else np.float32)
    assert [part.kind == "image" for part in rows.parts] == is_image
    assert [part.place.start for part in rows.parts[1:]] == [part.place.stop for part in rows.parts[:-1]]
    assert rows.parts[-1].place.stop == rows.size
    for part, (leaf, each), image in zip(rows.parts, leaves, is_image, strict=True):
        expected = flatten(leaf, each)
        found = row[part.place]
        if not image and rows.dtype == np.uint8:
            found = found.copy().view(np.float32)
        assert found.tobytes() == expected.astype(found.dtype).tobytes()
        assert part.size == len(expected) and part.space is leaf
    if rows.dtype == np.float32:
        assert row.tobytes() == np.asarray(flatten(space, value)).astype(np.float32).tobytes()
        assert rows.row_space.dtype != np.float32 or rows.row_space.contains(
            row.reshape(rows.row_space.shape)
        )


@pytest.mark.slow
@given(space=SPACES, seed=SEEDS)
@settings(max_examples=150, deadline=None)
def test_batches_are_rows_of_each(space: Space[Any], seed: int) -> None:
    space.seed(seed)
    rows, values = ObsRows(space), [space.sample() for _ in range(3)]
    batch = concatenate(space, values, create_empty_array(space, 3))
    out = np.full((3, rows.size), 7, rows.dtype)
    rows.write_batch(batch, out)
    assert out.tobytes() == b"".join(row_of(rows, value).tobytes() for value in values)
    assert batch_space(space, 3).contains(batch)


@given(space=SPACES)
@settings(max_examples=100, deadline=None)
def test_rows_come_back_from_their_state(space: Space[Any]) -> None:
    state = ObsRows(space).state()
    rows = ObsRows.from_state(json.loads(json.dumps(state, allow_nan=False)))
    assert rows.state() == state
    assert [(part.name, part.kind, part.place, part.shape) for part in rows.parts] == [
        (part.name, part.kind, part.place, part.shape) for part in ObsRows(space).parts
    ]
    assert rows.space == space


def test_keys_of_a_state_keep_their_order() -> None:
    space = Dict([("b", Discrete(2)), ("a", Box(0, 1, (3,)))])
    assert [part.name for part in ObsRows.from_state(ObsRows(space).state()).parts] == ["b", "a"]


ACTION_SPACES = st.one_of(
    DISCRETES, multi_discretes(), BINARIES, boxes(st.sampled_from([(1,), (3,), (2, 2), ()]))
)


@pytest.mark.slow
@given(space=ACTION_SPACES, seed=SEEDS)
@settings(max_examples=300, deadline=None)
def test_actions_return_from_their_flat_form(space: Space[Any], seed: int) -> None:
    space.seed(seed)
    rows = ActionRows(space)
    assert ActionRows(rows.flat_space).is_plain
    for action in [space.sample() for _ in range(3)]:
        flat = rows.from_env(action)
        back = rows.to_env(int(flat) if isinstance(space, Discrete) else flat)
        assert space.contains(np.asarray(back) if isinstance(space, Box) else back)
        if isinstance(space, Box) and space.dtype == np.float64:
            np.testing.assert_allclose(back, action, rtol=1e-6)
        else:
            assert np.array_equal(back, action)
        assert rows.flat_space.contains(flat)


@given(space=ACTION_SPACES, seed=SEEDS)
@settings(max_examples=200, deadline=None)
def test_every_flat_action_is_one_of_the_environment(space: Space[Any], seed: int) -> None:
    rows = ActionRows(space)
    rows.flat_space.seed(seed)
    flat = [rows.flat_space.sample() for _ in range(4)]
    batch = rows.to_env(np.stack(flat))
    assert len(batch) == 4
    for one, many in zip(flat, batch, strict=True):
        given_one = rows.to_env(int(one) if isinstance(space, Discrete) else one)
        assert space.contains(np.asarray(given_one) if isinstance(space, Box) else given_one), given_one
        assert np.array_equal(given_one, many)


def test_unbounded_actions_stay_unbounded() -> None:
    flat = ActionRows(Box(-np.inf, 5, (2, 1), np.float64)).flat_space
    assert flat == Box(-np.inf, 5, (2,), np.float32)
    whole = ActionRows(Box(np.iinfo(np.int32).min, 5, (1,), np.int32))
    assert whole.to_env(np.float32([-2.6])).tolist() == [-3]


@pytest.mark.parametrize(
    ("space", "obs", "message"),
    [
        (Discrete(3, start=1), 0, "expected values of Discrete(3, start=1), got 0"),
        (Discrete(3), 1.0, "expected an integer, got 1.0"),
        (Dict(a=Discrete(3)), {"b": 1}, "expected a dict with the keys 'a', got one with the keys 'b'"),
        (Dict(a=Discrete(3)), 1, "expected a dict with the keys 'a', got 1"),
        (Tuple([Discrete(3)] * 2), (1,), "expected a tuple of 2 values, got 1 values"),
        (
            Dict(a=Tuple([Box(0, 1, (2,))])),
            {"a": (np.zeros(3),)},
            "at 'a/0': expected numbers of shape (2,), got an array of float64 of shape (3,)",
        ),
        (Dict(a=MultiBinary(2)), {"a": [0, 2]}, "at 'a': expected values of MultiBinary(2), got 2"),
        (
            Dict(a=Box(0, 255, (2, 2), np.uint8)),
            {"a": np.full((2, 2), 256)},
            "at 'a': expected values of Box(0, 255, (2, 2), uint8), got 256",
        ),
        (
            Dict(a=Box(0, 255, (2, 2), np.uint8), b=Box(-1, 1, (1,), np.float64)),
            {"a": np.zeros((2, 2), np.uint8), "b": [1e300]},
            "at 'b': expected finite float32 numbers, got NaN or infinity",
        ),
        (Dict(a=Box(0, 1, (2,))), {"a": [[1], [2, 3]]}, "at 'a': expected numbers of shape (2,), got a list"),
    ],
)
def test_observations_of_another_form_are_refused_in_one_line(
    space: Space[Any], obs: Any, message: str
) -> None:
    rows = ObsRows(space)
    with pytest.raises(RowError) as caught:
        rows.write(obs, np.zeros(rows.size, rows.dtype))
    assert str(caught.value) == message


def test_texts_are_their_words() -> None:
    rows = ObsRows(Dict(a=Text(100), b=Discrete(2)))
    assert rows.size == TEXT_SIZE + 2
    one, same, other = (
        row_of(rows, {"a": text, "b": 1}) for text in ("Open the red door!", "open door, the red", "the key")
    )
    assert (one == same).all() and one[:TEXT_SIZE].sum() == 4 and (one != other).any()
    batch = np.empty((2, rows.size), np.float32)
    rows.write_batch({"a": ("the key", "Open the red door!"), "b": np.ones(2, np.int64)}, batch)
    assert (batch == [other, one]).all()
    again = ObsRows.from_state(json.loads(json.dumps(rows.state())))
    assert (row_of(again, {"a": "the key", "b": 1}) == other).all()
    with pytest.raises(RowError, match=r"^at 'a': expected a text, got "):
        row_of(rows, {"a": 3, "b": 1})
    # The letters of one text are no texts.
    for wrong in ("ab", None, ["ab"], ["ab", 3]):
        with pytest.raises(RowError, match=r"^at 'a': expected texts, got "):
            rows.write_batch({"a": wrong, "b": np.ones(2, np.int64)}, batch)


def test_minigrid_is_found_by_its_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("minigrid", reason="pip install '.[bench]'")
    env = EnvSpec("MiniGrid-Empty-5x5-v0", rows=True).make()
    obs, _ = env.reset(seed=0)
    assert obs.shape == (7 * 7 * 3 + 4 * (4 + TEXT_SIZE),) and obs.dtype == np.uint8
    env.close()
    monkeypatch.setitem(sys.modules, "minigrid", None)
    monkeypatch.setattr(gymnasium, "registry", {})
    message = "env: MiniGrid-Empty-5x5-v0 needs minigrid, which is not installed: pip install minigrid"
    with pytest.raises(ValueError, match=message):
        EnvSpec("MiniGrid-Empty-5x5-v0").make()


def test_spaces_without_rows_are_refused_in_one_line() -> None:
    graph: Any = Graph(Discrete(2), None)
    for space in (graph, Dict(a=Tuple([graph])), Sequence(Discrete(2))):
        with pytest.raises(
            ValueError, match=r"observations should be a Box, Discrete, .* are (Sequence|Graph)\("
        ) as caught:
            ObsRows(space)
        assert "\n" not in str(caught.value)
        with pytest.raises(ValueError, match=r"actions should be Discrete, .*ActionWrapper"):
            ActionRows(space)
    empty: Any = Box(0, 1, (0,))
    for nothing in (empty, Dict(a=empty), Dict(), Tuple([])):
        with pytest.raises(ValueError, match="at least one"):
            ObsRows(nothing)
    with pytest.raises(ValueError, match="actions should have at least one number"):
        ActionRows(empty)
    foreign: Any = object()
    for make, noun in ((ObsRows, "observation_space"), (ActionRows, "action_space")):
        with pytest.raises(
            ValueError, match=f"{noun} should be one of gymnasium.spaces, got a builtins.object"
        ):
            make(foreign)


class Nested(gymnasium.Env[Any, Any]):
    """Observes what it was given last; ``wrong`` makes ``step`` give something else."""

    def __init__(self, wrong: str = "") -> None:
        self.observation_space = Dict(
            action=MultiDiscrete([[2, 3], [3, 2]], start=[[1, 0], [-1, 0]]),
            camera=Box(0, 255, (2, 3, 1), np.uint8),
            inner=Tuple([Discrete(3, start=1), Box(-np.inf, np.inf, (), np.float64)]),
        )
        self.action_space = MultiDiscrete([[2, 3], [3, 2]], start=[[1, 0], [-1, 0]])
        self.wrong = wrong

    def _obs(self, action: Any, number: int) -> Any:
        return {
            "camera": np.full((2, 3, 1), number, np.uint8),
            "action": action,
            "inner": (1 + number % 3, np.float64(number) / 2),
        }

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.number = 0
        return self._obs(np.array([[1, 0], [-1, 0]]), 0), {"options": options}

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action)
        self.number += 1
        obs = self._obs(action, self.number)
        if self.wrong == "obs":
            del obs["inner"]
        if self.wrong == "form":
            return obs, 0.0, False, {}
        return obs, 1.0, False, False, {}


def test_an_environment_gives_rows_and_takes_flat_actions() -> None:
    env = as_spec(Nested).as_rows().make()
    rows = obs_rows_of(env)
    assert isinstance(env, RowEnv) and rows.kind == "mixed"
    assert env.action_space == MultiDiscrete([2, 3, 3, 2])
    assert env.observation_space == Box(0, 255, (6 + 4 * 10 + 4 * 3 + 4,), np.uint8)
    assert [part.name for part in rows.parts] == ["action", "camera", "inner/0", "inner/1"]
    obs, info = env.reset(seed=1, options={"a": 1})
    assert info == {"options": {"a": 1}} and env.observation_space.contains(obs)
    obs, reward, *_ = env.step(np.array([1, 2, 0, 1]))
    assert reward == 1.0 and env.observation_space.contains(obs)
    expected = [0, 1, 0, 0, 1, 1, 0, 0, 0, 1, 0, 1, 0, 0.5]
    camera = rows.parts[1].place
    assert obs[camera].tolist() == [1] * 6
    assert np.delete(obs, np.arange(camera.start, camera.stop)).view(np.float32).tolist() == expected


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (
            "obs",
            "test_space_rows:Nested: step() gave an observation that its observation_space does not have:",
        ),
        (
            "form",
            "test_space_rows:Nested: step() should return (obs, reward, terminated, truncated, info), got 4 values",
        ),
    ],
)
def test_a_nested_observation_of_another_form_ends_in_one_line(wrong: str, message: str) -> None:
    env = as_spec(Nested, wrong=wrong).as_rows().make()
    form = contract.obs_form(
        "test_space_rows:Nested", env.observation_space.shape or (), env.observation_space.dtype
    )
    contract.reset(env, form, 1)
    with pytest.raises(ContractError) as caught:
        contract.step(env, form, np.array([1, 2, 0, 1]))
    assert str(caught.value).startswith(message) and "\n" not in str(caught.value)


def test_environments_that_need_no_conversion_are_not_wrapped() -> None:
    for env_id in ("CartPole-v1", "Pendulum-v1", "fastrl/Catch-v0"):
        plain, env = EnvSpec(env_id).make(), EnvSpec(env_id).as_rows().make()
        assert type(env) is type(plain)
        assert obs_rows_of(env).is_plain
    assert ObsRows(Box(0, 255, (8, 8), np.uint8)).kind == "image"
    assert ObsRows(Box(0, 255, (8,), np.uint8)).dtype == np.float32
    assert ObsRows(Box(-1, 1, (2, 2), np.float64)).kind == "vector"
    assert obs_rows_of(EnvSpec("FrozenLake-v1").as_rows().make()).size == 16


def test_what_is_no_environment_is_refused() -> None:
    class Duck:
        observation_space, action_space = Discrete(2), Discrete(2)

    duck: Any = Duck()
    with pytest.raises(ValueError, match=r"expected a gymnasium\.Env, got a Duck"):
        in_rows(duck)


def test_sizes() -> None:
    space = Dict(a=Discrete(4), b=MultiDiscrete([2, 3]), c=Box(-1, 2, (2, 2)))
    rows = ObsRows(space)
    assert rows.size == 4 + 5 + 4 == math.prod(rows.row_space.shape)
    assert rows.row_space.low.tolist() == [0] * 9 + [-1] * 4
    assert rows.row_space.high.tolist() == [1] * 9 + [2] * 4
