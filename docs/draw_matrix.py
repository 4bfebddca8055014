"""Draws docs/reference/matrix.md, which says what goes with what, by asking the code: `python docs/draw_matrix.py`

Each cell makes the model of a user who asks for it, so that the lines of what does not go are those that users see.
"""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Space, Text, Tuple
from gymnasium.vector import SyncVectorEnv

import fastrl
from fastrl.algorithms import algorithms
from fastrl.algorithms.protocol import DatasetAlgorithm
from fastrl.collectors.factory import COLLECTORS
from fastrl.collectors.protocol import CollectError
from fastrl.envs.registration import MULTI_AGENT_IDS
from fastrl.utils.errors import UserError

PAGE = Path(__file__).parent / "reference" / "matrix.md"

OBSERVATIONS: dict[str, Space[Any]] = {
    "vector": Box(-1, 1, (3,), np.float32),
    "image": Box(0, 255, (6, 6, 3), np.uint8),
    "Dict": Dict(goal=Discrete(3), speed=Box(-1, 1, (2,), np.float32)),
    "Dict with image": Dict(camera=Box(0, 255, (6, 6), np.uint8), speed=Box(-1, 1, (2,), np.float32)),
    "Discrete": Discrete(4),
    "MultiDiscrete": MultiDiscrete([2, 3]),
    "MultiBinary": MultiBinary(3),
    "Tuple": Tuple([Discrete(2), Box(-1, 1, (2,), np.float32)]),
    "Text": Text(4, charset="ab "),
    "Sequence": gymnasium.spaces.Sequence(Discrete(2)),
}
ACTIONS: dict[str, Space[Any]] = {
    "Discrete": Discrete(3),
    "MultiDiscrete": MultiDiscrete([2, 3]),
    "MultiBinary": MultiBinary(2),
    "Box": Box(-1, 1, (2,), np.float32),
    "Tuple": Tuple([Discrete(2), Discrete(2)]),
}
# Algorithms that learn from a data set step no environment: their pages in docs/algorithms have what they take.
STEPPING = {name: each for name, each in algorithms().items() if not issubclass(each, DatasetAlgorithm)}
SINGLE = tuple(name for name, each in STEPPING.items() if not each.many_agents)
TEAMS = tuple(name for name, each in STEPPING.items() if each.many_agents)
MEMORIES = ("gru", "lstm")

# Environments that collectors step: with discrete actions, and with continuous ones for algorithms that take no others.
KINDS: dict[str, tuple[str, str]] = {
    "a Gymnasium environment": ("CartPole-v1", "Pendulum-v1"),
    "a compiled environment": ("fastrl/Cage2-v0", "fastrl/highway-v0"),
}
CONTINUOUS: dict[str, dict[str, Any]] = {
    "fastrl/highway-v0": {"env__options": {"config": {"action": {"type": "ContinuousAction"}}}}
}
TEAM_KINDS = {
    "a parallel environment of PettingZoo": "mpe2.simple_spread_v3:parallel_env",
    "a compiled environment": "fastrl/coop-merge-v0",
}
NOTEBOOK = "a function or environment that this process alone has"
VECTOR = "a vector environment of your own"

NO_SETTING = "{} has no setting {}"

HEAD = """\
# What goes with what

Each cell says whether an algorithm takes a combination. A number stands for the line that a user sees who asks for a
combination that is refused; the lines are below the table.

`python docs/draw_matrix.py` draws this page: for each cell it makes the model. `tests/test_matrix.py` compares the page
with the code and trains the combinations that say yes. It also checks that a run that is stopped and resumed ends as
one that was not, to the bit ([reproducibility](../guides/reproducibility.md) says where that is promised).
"""


class MyEnv(gymnasium.Env[Any, Any]):
    """An environment of any spaces in which nothing happens."""

    def __init__(self, obs: Space[Any], actions: Space[Any]) -> None:
        self.observation_space, self.action_space = obs, actions

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> Any:
        return self.observation_space.sample(), 0.0, True, False, {}


class MyParallelEnv:
    """Two agents of any spaces to whom nothing happens, with the interface of PettingZoo's ParallelEnv."""

    possible_agents = ("a", "b")
    agents = ("a", "b")

    def __init__(self, obs: Space[Any], actions: Space[Any]) -> None:
        self._obs, self._actions = obs, actions

    def observation_space(self, agent: str) -> Space[Any]:
        return self._obs

    def action_space(self, agent: str) -> Space[Any]:
        return self._actions

    def reset(self, seed: int | None = None, options: Any = None) -> None:
        """Not called."""

    def step(self, actions: Any) -> None:
        """Not called."""

    def close(self) -> None:
        """Does nothing."""


def factory_of(make: Callable[..., Any], obs: str, actions: str) -> Callable[[], Any]:
    """A function of the user's that makes environments of these kinds of spaces."""

    def factory() -> Any:
        return make(OBSERVATIONS[obs], ACTIONS[actions])

    factory.__module__, factory.__qualname__ = "my_module", "make_env"
    return factory


def refusal(env: Any, algorithm: str, **settings: Any) -> str:
    """The line with which a model is refused; empty if it is not."""
    try:
        fastrl.Model(env, algo=algorithm, num_envs=2, hidden=[4], device="cpu", **settings)
    except (UserError, CollectError) as error:
        return str(error)
    return ""


def table(corner: str, rows: Sequence[str], columns: Sequence[str], cell: Callable[[str, str], str]) -> str:
    """A table whose cells say yes, or the number of a refusal, and the refusals below it."""
    lines = [f"| {corner} | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|"]
    notes: list[str] = []
    for row in rows:
        shown = []
        for column in columns:
            note = cell(row, column)
            if note and note not in notes:
                notes.append(note)
            shown.append(f"[{notes.index(note) + 1}]" if note else "yes")
        lines.append(f"| {row} | {' | '.join(shown)} |")
    below = [f"{number}. `{note}`" for number, note in enumerate(notes, 1)]
    return "\n".join([*lines, "", *below, *([""] if below else [])])


def grouped(
    names: Sequence[str],
    corner: str,
    rows: Sequence[str],
    columns: Sequence[str],
    ask: Callable[[str, str, str], str],
) -> str:
    """A table for each group of algorithms that go with the same, from ``ask(algorithm, row, column)``."""
    groups: dict[tuple[bool, ...], tuple[list[str], dict[tuple[str, str], str]]] = {}
    for name in names:
        found = {(row, column): ask(name, row, column) for row, column in itertools.product(rows, columns)}
        groups.setdefault(tuple(not note for note in found.values()), ([], found))[0].append(name)
    return "\n".join(
        f"### {', '.join(those)}\n\n{table(corner, rows, columns, lambda r, c, own=own: own[r, c])}"
        for those, own in groups.values()
    )


def has_setting(algorithm: str, name: str) -> bool:
    return name in {field.name for field in dataclasses.fields(algorithms()[algorithm].config_type)}


def of_spaces(make: Callable[..., Any], algorithm: str, obs: str, actions: str) -> str:
    """The refusal of environments of these kinds of spaces."""
    return refusal(factory_of(make, obs, actions), algorithm)


def of_collector(algorithm: str, kind: str, collector: str) -> str:
    """The refusal of a collector."""
    kind, _, whole = kind.partition(", ")
    is_continuous = "discrete" not in algorithms()[algorithm].action_kinds
    settings: dict[str, Any] = {"episodes_per_update": 2} if whole else {}
    if kind == NOTEBOOK:
        env: Any = factory_of(MyEnv, "vector", "Box" if is_continuous else "Discrete")
    elif kind == VECTOR:
        env_id = KINDS["a Gymnasium environment"][is_continuous]
        env = SyncVectorEnv([lambda: gymnasium.make(env_id)] * 2)
    else:
        env = KINDS[kind][is_continuous]
        settings |= CONTINUOUS.get(env, {})
    return refusal(env, algorithm, collector=collector, **settings)


def of_team_collector(algorithm: str, kind: str, collector: str) -> str:
    """The refusal of a collector of many agents."""
    kind, _, whole = kind.partition(", ")
    settings: dict[str, Any] = {"episodes_per_update": 2} if whole else {}
    if kind == NOTEBOOK:
        return refusal(
            factory_of(MyParallelEnv, "vector", "Discrete"), algorithm, collector=collector, **settings
        )
    return refusal(TEAM_KINDS[kind], algorithm, collector=collector, **settings)


def of_masks(algorithm: str, actions: str) -> str:
    """The refusal of action masks."""
    if not has_setting(algorithm, "action_masks"):
        return NO_SETTING.format(algorithm, "action_masks")
    make = MyParallelEnv if algorithm in TEAMS else MyEnv
    return refusal(factory_of(make, "vector", actions), algorithm, action_masks=True)


def of_memory(algorithm: str, memory: str) -> str:
    """The refusal of a recurrent network."""
    if not has_setting(algorithm, "memory"):
        return NO_SETTING.format(algorithm, "memory")
    make = MyParallelEnv if algorithm in TEAMS else MyEnv
    return refusal(factory_of(make, "Dict", actions_of(algorithm)), algorithm, memory=memory)


def actions_of(algorithm: str) -> str:
    """Discrete actions, or those that an algorithm without them takes."""
    return "Discrete" if "discrete" in STEPPING[algorithm].action_kinds else "Box"


def of_world(env_id: str, algorithm: str) -> str:
    """The refusal of one of fastrl's environments of many agents."""
    few = "highway-v0" in env_id or "fast" in env_id
    settings = {} if "Cage4" in env_id else {"vehicles": 1 if few else 3}
    return refusal(env_id.strip("`"), algorithm, **settings)


def draw() -> str:
    """The page."""
    choices = [kind for kind in ACTIONS if kind != "Tuple"]
    kept = ("coop", "ring", "Cage4")
    worlds = [f"`{name}`" for name in MULTI_AGENT_IDS if any(part in name for part in kept)]
    spaces = ("observations \\ actions", list(OBSERVATIONS), list(ACTIONS))
    team_kinds = [f"{env}{unit}" for unit in ("", ", whole episodes") for env in (*TEAM_KINDS, NOTEBOOK)]
    kinds = [f"{env}{unit}" for unit in ("", ", whole episodes") for env in (*KINDS, NOTEBOOK, VECTOR)]
    return "\n".join(
        [
            HEAD,
            "## One agent: observations and actions\n",
            grouped(SINGLE, *spaces, functools.partial(of_spaces, MyEnv)),
            "## Collectors\n",
            "Any observations and actions of the tables above go with every collector that takes the environment.\n",
            grouped(SINGLE, "environment", kinds, COLLECTORS, of_collector),
            "## Action masks\n",
            "`action_masks`, where the environment gives them.\n",
            table("algorithm", (*SINGLE, *TEAMS), choices, of_masks),
            "## Memory\n",
            "`memory`, a recurrent network.\n",
            table("algorithm", (*SINGLE, *TEAMS), MEMORIES, of_memory),
            "## Many agents: PettingZoo's parallel environments\n",
            grouped(TEAMS, *spaces, functools.partial(of_spaces, MyParallelEnv)),
            "## Many agents: fastrl's environments\n",
            table("environment", worlds, TEAMS, of_world),
            "## Many agents: collectors\n",
            grouped(TEAMS, "environment", team_kinds, COLLECTORS, of_team_collector),
        ]
    )


if __name__ == "__main__":
    PAGE.write_text(draw(), encoding="utf-8")
